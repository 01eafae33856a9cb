"""Write docs/performance.md from results/bench: python tools/performance.py."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from results import IMAGES, standalone
from synthesizer_attention.bench.growth import growth_plots
from synthesizer_attention.bench.plan import COMPILED, DOT, FUSED, Plan, Result, Row

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "results" / "bench"
MARK = re.compile(r"<!-- bench (.+?) -->\n.*?<!-- end -->", re.DOTALL)
GPT2, LLAMA, MARIAN = "Hugging Face GPT-2", "Hugging Face Llama", "Hugging Face Marian"
ENCODER, OTHER = "torch.nn.TransformerEncoder", "x-transformers"
STATIC = LLAMA + ", compiled, static cache"
EAGER = "eager"  # beside which a compiled variant stands: itself
HERE = "this processor does not multiply bfloat16"

Record = dict[str, Any]  # a bench.json
Line = dict[str, Any]  # one of its rows


@dataclass(frozen=True)
class Case:
    """One setting of one record, and how many times as fast as another its variants are to be."""

    title: str
    record: str
    goals: dict[str, float]
    where: dict[str, object] = field(default_factory=dict)  # fields that a row must have
    beside: str = DOT
    lower: bool = False  # in bfloat16, over float32 where nothing stands beside


def _single(goal: float) -> dict[str, float]:
    names = ("random", "fixed_random", "factorized_random", "dense", "factorized_dense")
    return dict.fromkeys((*names, "random+dot"), goal)


def _compiled(*names: str) -> dict[str, float]:
    return dict.fromkeys((name + COMPILED for name in names), 0.95)


LONG = {"random": 2.2, "factorized_random": 2.2, "dense": 1.3, "random+dense": 1.2,
        "random+dot": 1.05, "dense+dot": 0.78}  # fmt: skip
SHORT = {"random": 2.0, "dense": 1.05, "factorized_dense": 1.0, "random+dense": 1.0,
         "random+dot": 0.95, "dense+dot": 0.75}  # fmt: skip
DECODING = {"dot": 1.0, "random": 1.25, "random+dot": 1.0}
AS_FAST, MORE = {"dot": 1.0}, {"dot": 1.4}
STEP = "language model, width 512, 2 layers"
CASES = (
    Case("sublayer, length 1024, one thread", "threads", LONG, {"threads": 1}),
    Case("sublayer, length 1024, two threads", "threads", LONG, {"threads": 2}),
    Case("sublayer, length 64, width 64", "small-sublayer", SHORT),
    Case("the same without a C compiler", "small-sublayer-torch", SHORT),
    Case("torch.compile, length 1024", "compiled",
         _compiled("dot", "random", "dense", "factorized_dense", "random+dense", "random+dot"),
         beside=EAGER),
    Case("sublayer, length 4096, batch 1", "lengths", {"random": 1.4, "random+dot": 0.9},
         {"length": 4096}),
    Case("sublayer, length 16,384, batch 1", "longest", {"factorized_random": 1.0}),
    Case("whole step, `python-docs`", "small-lm", _single(0.95)),
    Case("whole step, `grammar-ende`", "small-seq2seq", _single(0.95)),
    Case("whole step, `listops-short`", "small-classifier", _single(0.95)),
    *(Case(STEP, "peers", AS_FAST, beside=peer) for peer in (GPT2, LLAMA, ENCODER, OTHER)),
    *(Case(f"{STEP}, all compiled", "peers-compiled", {"dot" + COMPILED: 1.0},
           beside=peer + COMPILED)
      for peer in (GPT2, LLAMA, ENCODER, OTHER)),
    Case("decoding 16 sequences, two threads", "decode-16", MORE, beside=GPT2),
    Case("decoding 16 sequences, two threads", "decode-16", {"dense+dot": 0.9}),
    *(Case("decoding 16 sequences, two threads", "decode-16", AS_FAST, beside=peer)
      for peer in (LLAMA, OTHER)),
    Case("decoding 16 sequences, two threads", "decode-static", AS_FAST, beside=STATIC),
    Case("decoding 16, relative positions", "decode-relative", MORE, beside=GPT2),
    Case("decoding 16, rotary positions", "decode-rotary", MORE, beside=GPT2),
    Case("decoding 16, window of 32", "decode-window", MORE, beside=GPT2),
    Case("decoding 16 by an encoder-decoder", "translate-16", MORE, beside=MARIAN),
    Case("decoding, batch 8", "decode-8", DECODING, beside=GPT2),
    Case("decoding, batch 1", "decode-1", DECODING, beside=GPT2),
    Case("decoding, small model, batch 8", "decode-small-8", DECODING, beside=GPT2),
    Case("decoding, small model, batch 1", "decode-small-1", DECODING, beside=GPT2),
    Case("bfloat16, length 1024", "memory", {"dense": 1.3, "random+dot": 1.05, "dense+dot": 0.8},
         {"mode": "train"}, FUSED, lower=True),
    *(Case(f"bfloat16, {size}", name, goals, {"mode": mode}, "", lower=True)
      for size, name, mode, goals in (
          ("language model of width 512", "bfloat16-lm", "lm", {"dot": 2.3, "random": 2.3}),
          ("length 64, width 64", "bfloat16-small", "train", {"dot": 1.0}),
          ("length 128, width 384", "bfloat16-middle", "train", {"dot": 1.6}),
          ("length 1024, width 512", "memory", "train", {"dot": 1.8}))),
)  # fmt: skip


def table_of(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def read(name: str, bench: Path = BENCH) -> Record | None:
    """The record of a name; None where there is none."""
    path = bench / name / "bench.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def goals(bench: Path = BENCH) -> str:
    """One line of each case: which of its goals are met and which are not, and how many in all."""
    lines, counts = [], {"met": 0, "missed": 0, "not measured": 0}
    for case in CASES:
        record = read(case.record, bench)
        words: dict[str, list[str]] = {name: [] for name in counts}
        for variant, goal in case.goals.items():
            speed, name = speed_of(case, variant, record), variant.removesuffix(COMPILED)
            said = "not measured" if speed is None else "met" if speed >= goal else "missed"
            counts[said] += 1
            shown = "" if speed is None else f" {speed:.2f}"
            words[said].append(f"`{name}`{shown} ({goal:g})")
        others = ["**missed** " + ", ".join(words["missed"])] if words["missed"] else []
        if words["not measured"]:
            machine = record or read("memory", bench)
            why = f", {HERE}" if machine and _lacks(case, machine) else ""
            others.append(f"not measured{why}: " + ", ".join(words["not measured"]))
        link = f"[{case.title}](../results/bench/{case.record}/bench.json)"
        beside = case.beside or "float32"
        title = case.title if record is None else link
        lines.append([title, beside, ", ".join(words["met"]), "; ".join(others)])
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    head = ["case", "times as fast as", "met (goal)", "missed or not measured (goal)"]
    return f"{sum(counts.values())} goals: {told}.\n\n{table_of(head, lines)}"


def _lacks(case: Case, record: Record) -> bool:
    return case.lower and not record["machine"].get("bfloat16")


def speed_of(case: Case, variant: str, record: Record | None) -> float | None:
    """How many times as fast as what stands beside it, by the best rounds of one run."""
    if record is None or _lacks(case, record):
        return None
    precision = "bfloat16" if case.lower else "float32"
    mine = _best(record, case.where, variant, precision)
    beside = {EAGER: variant.removesuffix(COMPILED), "": variant}.get(case.beside, case.beside)
    theirs = _best(record, case.where, beside, precision if case.beside else "float32")
    return None if mine is None or theirs is None else round(theirs / mine, 2)


def _best(record: Record, where: dict[str, object], variant: str, precision: str) -> float | None:
    for row in record["rows"]:
        same = all(row.get(key) == value for key, value in where.items())
        if same and (row["variant"], row.get("precision", "float32")) == (variant, precision):
            return float(row["best_seconds"])
    return None


def memory(bench: Path = BENCH) -> str:
    """What a causal call keeps for backward and its peaks, in MB: float32 / bfloat16."""
    record = read("memory", bench)
    if record is None:
        return "Not recorded: memory."
    sizes = (("train", "saved_bytes"), ("train", "peak_bytes"), ("inference", "peak_bytes"))
    table = []
    for name in dict.fromkeys(row["variant"] for row in record["rows"]):
        cells = []
        for mode, what in sizes:
            own = [row for row in record["rows"] if (row["variant"], row["mode"]) == (name, mode)]
            found = {row["precision"]: row[what] for row in own}
            both = (found.get("float32"), found.get("bfloat16"))
            cells.append(" / ".join("" if n is None else f"{n / 1e6:.0f}" for n in both))
        table.append([f"`{name}`", *cells])
    head = ["MB, float32 / bfloat16", "kept for backward", "peak, training", "peak, inference"]
    return f"{told('memory', record)}\n\n{table_of(head, table)}"


def growth(bench: Path = BENCH) -> str:
    """The plots of the record `growth`, as lines of the page."""
    record = read("growth", bench)
    if record is None:
        return "Not recorded: growth."
    names = [f"![{name}: time and memory](images/{file})" for name, file, _ in drawn(record)]
    return "\n".join([told("growth", record), "", *names])


def drawn(record: Record) -> Iterator[tuple[str, str, str]]:
    """Variant, file and drawing of each plot of growth."""
    rows = [Row(**row) for row in record["rows"]]
    for plot in growth_plots(Result(Plan(), record["machine"]), rows):
        yield plot.title, f"growth-{plot.title.replace('+', '-')}.svg", plot.svg


def told(name: str, record: Record) -> str:
    """Where a record is and what made it."""
    machine = record["machine"]
    return (
        f"[results/bench/{name}](../results/bench/{name}/bench.json), {machine['device']}, "
        f"load average {machine['load_average']:.1f} at the start: `{record['command']}`"
    )


PARTS: dict[str, Callable[[Path], str]] = {"goals": goals, "memory": memory, "growth": growth}


def filled(page: str, bench: Path = BENCH) -> str:
    """The page with every marked part made again: <!-- bench goals -->, memory or growth."""
    return MARK.sub(
        lambda match: f"<!-- bench {match[1]} -->\n{PARTS[match[1]](bench)}\n<!-- end -->", page
    )


def write(page: Path, bench: Path = BENCH, images: Path = IMAGES) -> None:
    """Write the page's parts and the plots."""
    for path in images.glob("growth-*.svg"):
        path.unlink()
    record = read("growth", bench)
    for _, file, svg in drawn(record) if record else ():
        (images / file).write_text(standalone(svg), encoding="utf-8")
    page.write_text(filled(page.read_text(encoding="utf-8"), bench), encoding="utf-8")


if __name__ == "__main__":
    write(ROOT / "docs" / "performance.md")
