"""Write the tables of docs/performance.md from results/bench: python tools/performance.py."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BENCH = ROOT / "results" / "bench"
GPT2 = "Hugging Face GPT-2"
FUSED = "dot by PyTorch's fused kernel"
MARK = re.compile(r"<!-- bench (.+?) -->\n.*?<!-- end -->", re.DOTALL)
HEAD = ("case", "variant", "goal", "measured", "rounds", "arithmetic alone", "")

Record = dict[str, Any]  # a bench.json
Line = dict[str, Any]  # one of its rows


@dataclass(frozen=True)
class Case:
    """One setting of one record, and what its variants are to reach over a row of it."""

    title: str
    record: str
    goals: dict[str, float]
    where: tuple[tuple[str, object], ...] = ()  # fields that a row must have
    beside: str = "dot"


def _single(goal: float) -> dict[str, float]:
    names = ("random", "fixed_random", "factorized_random", "dense", "factorized_dense")
    return dict.fromkeys((*names, "random+dot"), goal)


LONG = {"random": 2.2, "factorized_random": 2.2, "dense": 1.3, "random+dense": 1.2,
        "random+dot": 1.05, "dense+dot": 0.78}  # fmt: skip
SHORT = {"random": 2.0, "dense": 1.05, "factorized_dense": 1.0, "random+dense": 1.0,
         "random+dot": 0.95, "dense+dot": 0.75}  # fmt: skip
DECODING = {"dot": 1.0, "random": 1.25, "random+dot": 1.0}
CASES = (
    Case("causal training, length 1024, one thread", "threads", LONG, (("threads", 1),)),
    Case("the same, two threads", "threads", LONG, (("threads", 2),)),
    Case("length 64, width 64", "small-sublayer", SHORT),
    Case("length 64, width 64, without a C compiler", "small-sublayer-torch", SHORT),
    Case("whole step, `python-docs`", "small-lm", _single(0.95)),
    Case("whole step, `grammar-ende`", "small-seq2seq", _single(0.95)),
    Case("whole step, `listops-short`", "small-classifier", _single(0.95)),
    Case("decoding, batch 8", "decode-8", DECODING, beside=GPT2),
    Case("decoding, batch 1", "decode-1", DECODING, beside=GPT2),
    Case("decoding, small model, batch 8", "decode-small-8", DECODING, beside=GPT2),
    Case("decoding, small model, batch 1", "decode-small-1", DECODING, beside=GPT2),
    Case("length 4096, batch 1", "lengths", {"random": 1.4, "random+dot": 0.9},
         (("length", 4096),)),
    Case("length 16,384, batch 1", "longest", {"factorized_random": 1.0}),
    Case("bfloat16, causal training, length 1024", "bfloat16",
         {"dense": 1.3, "random+dot": 1.05, "dense+dot": 0.8}, (("precision", "bfloat16"),), FUSED),
)  # fmt: skip


LOWER = (
    ("language model of width 512", "bfloat16-lm", {"dot": 2.3, "random": 2.3}),
    ("length 64, width 64", "bfloat16-small", {"dot": 1.0}),
    ("length 128, width 384", "bfloat16-middle", {"dot": 1.6}),
    ("length 1024, width 512", "bfloat16", {"dot": 1.8}),
)


def arithmetic(variant: str, row: Line, plan: Record) -> float | None:
    """Dot's multiplications over the variant's; None where nothing is reckoned.

    A causal sublayer in training, per token: 6 D^2 for each projection of width D forward and
    back, T D for each of its products with the visible half (three of them for dot forward and
    made again, four back). Whole models: as counted on the plain path, every pair included.
    Decoding reads every weight once a token.
    """
    width, length = plan["d_model"], row["length"]
    if row["mode"] == "decode":
        layers, words = plan["num_layers"] * width**2, plan["vocab_size"] * width
        projections = {"random": 2, "fixed_random": 2, "dense": 3}.get(variant, 4)
        return (12 * layers + words) / ((8 + projections) * layers + words)
    if row["mode"] != "train" or row["view"] != "causal":
        return None
    tables = dict.fromkeys(("random", "fixed_random", "factorized_random"), (12.0, 3))
    dots = dict.fromkeys(("dot", "random+dot"), (24.0, 7))
    dense = dict.fromkeys(("dense", "random+dense"), (18.0, 7))
    others = {"dense+dot": (30.0, 11), "factorized_dense": (18.75, 3)}
    parts = (tables | dots | dense | others).get(variant)
    if parts is None:
        return None
    return (24 * width + 7 * length) / (parts[0] * width + parts[1] * length)


def table_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def read(name: str, bench: Path = BENCH) -> Record | None:
    """The record of a name; None where there is none."""
    path = bench / name / "bench.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def goals(bench: Path = BENCH) -> str:
    """Every goal, met or missed."""
    lines = []
    for case in CASES:
        record = read(case.record, bench)
        rows = [row for row in (record or {"rows": []})["rows"]
                if all(row.get(key) == value for key, value in case.where)]  # fmt: skip
        beside = next((row for row in rows if row["variant"] == case.beside), None)
        for variant, goal in case.goals.items():
            mine = next((row for row in rows if row["variant"] == variant), None)
            title = f"{case.title}{'' if case.beside == 'dot' else f', over {case.beside}'}"
            lines.append(
                [title, f"`{variant}`", f"{goal:g}", *_measured(mine, beside, goal, record)]
            )
    lines += [*_longest(bench), *_compiled(bench), *_lower(bench)]
    return table_of(HEAD, lines)


def _measured(
    mine: Line | None, beside: Line | None, goal: float, record: Record | None
) -> list[str]:
    if mine is None or beside is None or record is None:
        return ["", "", "", "not measured"]
    speed = beside["best_seconds"] / mine["best_seconds"]
    spread = (
        f"{mine['speed_low']:.2f} to {mine['speed_high']:.2f}" if beside["variant"] == "dot" else ""
    )
    bound = arithmetic(mine["variant"], mine, record["plan"])
    if bound is None and mine["flops"] and beside["flops"]:
        bound = beside["flops"] / mine["flops"]
    met = "met" if round(speed, 2) >= goal else "**missed**"
    return [f"{speed:.2f}", spread, "" if bound is None else f"{bound:.2f}", met]


def _longest(bench: Path) -> Iterable[list[str]]:
    """Memory where a table of all logits would not fit."""
    record = read("longest", bench)
    peaks = {row["variant"]: row["peak_bytes"] for row in (record or {"rows": []})["rows"]}
    if peaks:
        ratio = peaks["factorized_random"] / peaks["dot"]
        shown = [f"{ratio:.2f}", "", "", "met" if round(ratio, 2) <= 1 else "**missed**"]
        title = "length 16,384, peak memory over dot's"
        yield [title, "`factorized_random`", "at most 1", *shown]


def _compiled(bench: Path) -> Iterable[list[str]]:
    """Compiled against eager, each over its own dot: speed, and peak memory of the same variant."""
    compiled, eager = read("compiled", bench), read("threads", bench)
    if compiled is None or eager is None:
        return
    before = {row["variant"]: row for row in eager["rows"] if row["threads"] == 1}
    for row in compiled["rows"]:
        old = before.get(row["variant"])
        if old is None:
            continue
        kept, memory = (
            old["best_seconds"] / row["best_seconds"],
            row["peak_bytes"] / old["peak_bytes"],
        )
        name = f"`{row['variant']}`"
        met = "met" if round(kept, 2) >= 0.95 else "**missed**"
        yield ["torch.compile, speed over eager", name, "0.95", f"{kept:.2f}", "", "", met]
        met = "met" if round(memory, 2) <= 1.3 else "**missed**"
        yield [
            "torch.compile, memory over eager",
            name,
            "at most 1.3",
            f"{memory:.2f}",
            "",
            "",
            met,
        ]


def _lower(bench: Path) -> Iterable[list[str]]:
    """The same variant in bfloat16 over float32, both of one record."""
    for title, name, goals in LOWER:
        rows = (read(name, bench) or {"rows": []})["rows"]
        for variant, goal in goals.items():
            best = {row.get("precision"): row["best_seconds"]
                    for row in rows if row["variant"] == variant}  # fmt: skip
            shown = ["", "", "", "not measured"]
            if {"float32", "bfloat16"} <= {*best}:
                speed = best["float32"] / best["bfloat16"]
                met = "met" if round(speed, 2) >= goal else "**missed**"
                shown = [f"{speed:.2f}", "", "", met]
            yield [f"bfloat16 over float32, {title}", f"`{variant}`", f"{goal:g}", *shown]


def speeds(record: Record) -> str:
    """Variants down, settings across: speed over dot."""
    rows = record["rows"]
    heads = list(dict.fromkeys(map(_setting, rows)))
    several = [n for n, values in enumerate(zip(*heads, strict=True)) if len(set(values)) > 1]
    table = []
    for name in dict.fromkeys(row["variant"] for row in rows):
        found = {_setting(row): f"{row['speed']:.2f}" for row in rows if row["variant"] == name}
        table.append([f"`{name}`", *(found.get(head, "") for head in heads)])
    titles = [", ".join(head[n] for n in several) or "speed over dot" for head in heads]
    return table_of(["speed over dot" if several else "variant", *titles], table)


def memory(record: Record) -> str:
    """What a call keeps for backward and its peak, in MB, of the causal rows."""
    rows = [row for row in record["rows"] if row["view"] == "causal"]
    table = []
    for name in dict.fromkeys(row["variant"] for row in rows):
        for lower in dict.fromkeys(row.get("precision", "float32") for row in rows):
            own = [row for row in rows if row.get("precision", "float32") == lower]
            mine = {row["mode"]: row for row in own if row["variant"] == name}
            if "train" in mine:
                train, run = mine["train"], mine.get("inference", {})
                sizes = (train["saved_bytes"], train["peak_bytes"], run.get("peak_bytes"))
                shown = ["" if size is None else f"{size / 1e6:.0f} MB" for size in sizes]
                which = "" if lower == "float32" else f", {lower}"
                table.append([f"`{name}`{which}", *shown])
    return table_of(["variant", "kept for backward", "peak, training", "peak, inference"], table)


def _setting(row: Line) -> tuple[str, ...]:
    count = row.get("threads", 1)
    threads = f"{count} thread{'s' if count > 1 else ''}"
    precision = row.get("precision", "float32")
    return row["mode"], row["view"], f"length {row['length']}", threads, precision


def told(record: Record, name: str) -> str:
    """Where a record is and what made it."""
    machine = record["machine"]
    return (
        f"[results/bench/{name}](../results/bench/{name}/bench.json), kernel {machine['kernel']}, "
        f"load average {machine['load_average']:.1f} at the start: `{record['command']}`"
    )


TABLES: dict[str, Callable[[Record], str]] = {"speeds": speeds, "memory": memory}


def filled(page: str, bench: Path = BENCH) -> str:
    """The page with every marked table made again: <!-- bench speeds RECORD -->, or goals."""

    def fill(match: re.Match[str]) -> str:
        kind, _, name = match[1].partition(" ")
        record = read(name, bench) if name else None
        if kind == "goals":
            body = goals(bench)
        elif record is None:
            body = f"Not recorded: {name}."
        else:
            body = f"{told(record, name)}\n\n{TABLES[kind](record)}"
        return f"<!-- bench {match[1]} -->\n{body}\n<!-- end -->"

    return MARK.sub(fill, page)


if __name__ == "__main__":
    path = ROOT / "docs" / "performance.md"
    path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
