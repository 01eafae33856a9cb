"""The tables of a study: results, metrics, varied values, the search, the paper (no torch)."""

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np

from synthesizer_attention.errors import printable
from synthesizer_attention.metrics.glue import GLUE, SUPERGLUE
from synthesizer_attention.metrics.scores import METRICS, base_metric, shown
from synthesizer_attention.report.load import SPEEDS, Row, plain_change
from synthesizer_attention.report.summary import (
    MISSING,
    Line,
    Summary,
    compare,
    difference_text,
    remark,
    span,
)
from synthesizer_attention.run.recipe import paper
from synthesizer_attention.study.rows import DOT
from synthesizer_attention.study.stats import BETTER, NO_WORSE, NOT_JUDGED, VOID, Comparison
from synthesizer_attention.study.tune import at_the_edge, expected_best, settings_tried

Cells = tuple[list[str], list[list[str]]]  # head and rows
Value = float | int | str | None
MOST_PERPLEXITY = 10_000  # of words; above it no longer tells anything
NAME = 18  # letters of a row's name on a line of a terminal
TIMES = "\N{MULTIPLICATION SIGN}"
RATES = ("train.lr", "train.table_rate", "model.positions")
_FORMULA = re.compile(r"(^|[;\t\n])( *[=+\-@\uff1d\uff0b\uff0d\uff20])")


# The table of results: the same columns for the page, for Markdown, a terminal and table.csv.

TERMS = {
    "difference": "The variant's mean minus dot's over the seeds both have, with its "
    "interval: other seeds and other test examples would move it within these bounds.",
    "verdict": "better: ahead of dot. no worse: behind it by less than the margin. worse: "
    "behind by more. undecided: the interval allows more than one of these.",
    "FLOPs per token": "Multiplications and additions of a forward pass at full length.",
    "training, tokens/s": "Tokens of training batches per second on the machine that ran it; in "
    "brackets beside dot's.",
    "decoding, tokens/s": "Greedy decoding with a cache, from the same prompts and for as many new "
    "tokens in every variant, past any end-of-text token; in brackets beside dot's.",
    "peak memory of a training step": "The most that weights, gradients, optimizer state and "
    "activations took at once.",
    "sharpness": "1 - entropy / log(visible keys) of the attention weights, mean over heads and "
    "tokens: 0 is uniform attention, 1 attends to one key. A table near 0 was not learned.",
    "source gap": "Loss with a shuffled source minus loss with the right one, in nats per target. "
    "Near 0, the output does not depend on the source.",
    "steps per token": "Layers that a token passes in a Universal Transformer, which stops early.",
    "learning rate": "train.lr and, in brackets, the factor of tables and mixture weights.",
}
"""What the headings of the table mean."""
GRAPH_TERMS = {
    "difference": "The variant's mean minus dot's, with its interval: other seeds and other test "
    "examples would move it within these bounds.",
    "verdict": "better: ahead of dot. no worse: ahead, or behind by less than the margin. worse: "
    "behind by more. behind: behind, and by how much is open. undecided: ahead or behind is open.",
}
"""The same by the rule of newer studies."""


def terms(summaries: Sequence[Summary]) -> dict[str, str]:
    """What headings mean in these studies; all of them where there is no table."""
    graph = any(summary.study.rule.says_behind for summary in summaries)
    meant = TERMS | (GRAPH_TERMS if graph else {})
    names = {summary.dot_name for summary in summaries}
    head = f"difference from {names.pop() if len(names) == 1 else DOT}"
    return {head if name == "difference" else name: text for name, text in meant.items()}


@dataclass(frozen=True)
class Column:
    """A heading, what it shows, and under which keys table.csv keeps the numbers.

    On a terminal it has a short heading, and may show less; without one it is not there.
    """

    head: str
    show: Callable[[Line], str]
    keep: Mapping[str, Callable[[Line], Value]]
    short: str = ""
    show_short: Callable[[Line], str] | None = None


def columns(summary: Summary) -> list[Column]:
    """All columns but the row's name; those that no row fills are left out of what is shown."""
    digits, name = summary.digits, summary.metric_name
    several = any(line.sd is not None for line in summary.lines)
    spread = ", mean \N{PLUS-MINUS SIGN} sd" if several else ""
    worst = min if summary.higher_is_better else max

    def cost(head: str, key: str, show: Callable[[float | None], str], short: str = "") -> Column:
        return Column(
            head, lambda line: show(line.cost[key]), {key: lambda line: line.cost[key]}, short
        )

    def speed(key: str) -> Column:
        """Tokens per second, and beside dot's."""

        def show(line: Line) -> str:
            beside = line.relative[key]
            return big(line.cost[key]) + (f" ({_times(beside)})" if beside else "")

        keep: dict[str, Callable[[Line], Value]] = {
            key: lambda line: line.cost[key],
            f"{key}_relative": lambda line: line.relative[key],
        }
        return Column(f"{key}, tokens/s", show, keep, key, lambda line: _times(line.relative[key]))

    def found(read: Callable[[Comparison], Value]) -> Callable[[Line], Value]:
        return lambda line: read(line.comparison) if line.comparison else None

    def worst_seed(line: Line) -> float | None:
        return worst(line.scores) if len(line.scores) > 1 else None

    return [
        Column(
            f"{name}{spread}",
            lambda line: span(line.scores, digits),
            {
                "metric": lambda line: summary.metric,
                "mean": lambda line: line.mean,
                "sd": lambda line: line.sd,
                "seeds": lambda line: len(line.scores),
            },
            name,
        ),
        Column(
            "worst seed", lambda line: number(worst_seed(line), digits), {"worst_seed": worst_seed}
        ),
        Column(
            f"difference from {summary.dot_name}",
            lambda line: difference_text(line.comparison, digits),
            {
                "difference": found(lambda c: c.difference),
                "low": found(lambda c: c.low if c.covers_seeds else None),
                "high": found(lambda c: c.high if c.covers_seeds else None),
                "low_level": found(lambda c: c.levels[0]),
                "high_level": found(lambda c: c.levels[1]),
                "margin": found(lambda c: c.margin),
            },
            f"vs {summary.dot_name}",
        ),
        Column(
            "verdict",
            _verdict,
            {"verdict": found(lambda c: c.word), "within_margin": found(_chance)},
            "verdict",  # on a terminal without what the answer below the table says of all rows
            lambda line: _verdict(line).partition("\n")[0]
            if line.comparison and line.comparison.word == NOT_JUDGED
            else _verdict(line),
        ),
        cost("parameters", "parameters", big, "params"),
        cost("FLOPs per token", "flops", big),
        speed("training"),
        speed("decoding"),
        cost("peak memory of a training step", "memory", in_bytes),
        cost("cache per decoded token", "cache", in_bytes),
        cost("peak memory of the process, libraries included", "process_memory", in_bytes),
        cost("sharpness", "sharpness", number, "sharpness"),
        cost("source gap", "source_gap", number),
        cost("steps per token", "steps_per_token", number),
        Column("learning rate", _rates, {"learning_rates": _rates}),
        Column(
            "remarks", lambda line: f"\n{said}" if (said := _remarks(line)) else "",
            {"remarks": _remarks},
        ),
    ]  # fmt: skip


def advice(summary: Summary) -> str:
    """Which row to use and what it saves: the best that is better, the cheapest that is no worse.

    Cheapest by FLOPs, which no machine changes. Nothing is said of varied values and void tables.
    """
    dot, found = summary.dot, [line for line in summary.lines if line.comparison]
    words = {line.comparison.word for line in found if line.comparison}
    if dot is None or dot.row.varied or not words - {NOT_JUDGED, VOID}:
        return ""
    others = [line for line in found if line.row.spec != DOT]
    better, level = (
        [line for line in others if line.comparison and line.comparison.word == word]
        for word in (BETTER, NO_WORSE)
    )
    cheapest = sorted(level, key=lambda line: (line.cost["flops"] or math.inf, -_gain(line)))[:1]
    metric = summary.metric_name.removesuffix(", %")
    score = number(dot.mean, summary.digits)
    if not better and not cheapest:
        known = f"{summary.dot_name}, {metric} {score}"
        return f"Which should I use? {known}: no other row is known to keep up with it."
    named = [("Best", line) for line in better[:1]] + [("Cheapest", line) for line in cheapest]
    said = [
        f"{f'{why}: ' if len(named) > 1 else ''}{line.row.label}, {metric} "
        f"{number(line.mean, summary.digits)} ({line.comparison.word if line.comparison else ''}): "
        f"{_saved(line.relative)}."
        for why, line in named
    ]
    return f"Which should I use? {' '.join(said)} All beside {summary.dot_name}, {metric} {score}."


def _gain(line: Line) -> float:
    return abs(line.comparison.difference) if line.comparison else 0.0


def _saved(relative: Mapping[str, float | None]) -> str:
    """'12% fewer parameters, training 1.31x as fast, 50% less cache': beside dot's."""
    said = []
    for key, less, more in (("parameters", "fewer", "more"), ("cache", "less", "more")):
        if (ratio := relative[key]) is not None:
            change = f"{abs(1 - ratio):.0%}"
            how = f"{change} {less if ratio < 1 else more}"
            said.append(f"{'as much' if key == 'cache' else 'as many'} {key}" if change == "0%"
                        else f"{how} {key}")  # fmt: skip
    said += [f"{key} {_times(ratio)} as fast" for key in SPEEDS if (ratio := relative[key])]
    return ", ".join(said)


def in_order(summary: Summary) -> list[Line]:
    """The first table's lines: each varied value by itself, in the paper's order or best first.

    The paper's order is that of the published table which the recipe reproduces.
    """
    values = list(dict.fromkeys(row.varied for row in summary.study.rows))
    chosen = paper()["recipes"].get(summary.study.recipe.get("paper"), [])[:1]
    printed = [
        row.get("label", row.get("synthesis"))
        for choice in chosen
        for row in paper()["tables"][choice["table"]]["rows"]
    ]

    def place(line: Line) -> tuple[int, int]:
        names = [name for name in (line.row.name, line.row.spec) if name in printed]
        return values.index(line.row.varied), printed.index(names[0]) if names else len(printed)

    return sorted(summary.lines, key=place)


def cells(summary: Summary) -> Cells:
    """Head and rows as text, without columns that are empty throughout."""
    names = [f"{line.paper_name}\n{line.row.label}" for line in in_order(summary)]
    return _filled(summary, names, {c.head: c.show for c in columns(summary)})


def brief(summary: Summary) -> Cells:
    """Head and rows for a terminal: what fits beside a row's name."""
    names = [fill(line.row.label, NAME) for line in in_order(summary)]
    shown = {c.short: c.show_short or c.show for c in columns(summary) if c.short}
    head, rows = _filled(summary, names, shown)
    return head, [[first, *(cell.replace("\n", ", ") for cell in row)] for first, *row in rows]


def _filled(
    summary: Summary, names: Sequence[str], shown: Mapping[str, Callable[[Line], str]]
) -> Cells:
    lines = in_order(summary)
    texts = {head: [show(line) for line in lines] for head, show in shown.items()}
    kept = {head: column for head, column in texts.items() if set(column) - {MISSING, ""}}
    rows = [list(row) for row in zip(names, *kept.values(), strict=True)]
    return ["variant", *kept], rows


def csv_text(summaries: Sequence[Summary]) -> str:
    """Every row of every study, numbers unrounded."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for place, summary in enumerate(summaries):
        kept = {key: read for column in columns(summary) for key, read in column.keep.items()}
        if place == 0:
            writer.writerow(["study", "row", "synthesis", *kept])
        for line in in_order(summary):
            known = [summary.study.name, line.row.label, line.row.spec]
            values = [*known, *(read(line) for read in kept.values())]
            writer.writerow([no_formula(v) if isinstance(v, str) else v for v in values])
    return stream.getvalue()


def no_formula(words: str) -> str:
    """Text that no spreadsheet computes: an apostrophe before whatever would begin a formula.

    Also after a semicolon, which begins a new cell in some countries' spreadsheets.
    """
    return _FORMULA.sub(r"\1'\2", printable(words, lines=True))


def big(value: float | None) -> str:
    """1,234,567 as 1.23M."""
    if value is None:
        return MISSING
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.0f}"


def in_bytes(value: float | None) -> str:
    """11,534,336 as 11 MiB."""
    if value is None:
        return MISSING
    for size, unit in ((2**20, "MiB"), (2**10, "KiB")):
        if value >= 10 * size:
            return f"{value / size:,.0f} {unit}"
    return f"{value:,.0f} B"


def number(value: float | None, digits: int = 2) -> str:
    """A number, or a dash."""
    return MISSING if value is None else f"{value:.{digits}f}"


def _times(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}{TIMES}"


def _verdict(line: Line) -> str:
    found = line.comparison
    if found is None:
        return MISSING
    word = f"{found.word} so far" if line.is_closing else found.word
    beside = "; ".join(filter(None, [found.advice, remark(found)]))
    return f"{word}\n{beside}" if beside else word


def _chance(found: Comparison) -> float | None:
    return found.chance if math.isfinite(found.chance) else None


def _rates(line: Line) -> str:
    rates = [
        f"{train['lr']:g} ({TIMES}{train['table_rate']:g})"
        for run in line.row.runs
        if (train := run.recipe.get("train")) and "lr" in train and "table_rate" in train
    ]
    return ", ".join(dict.fromkeys(rates)) or MISSING


def _remarks(line: Line) -> str:
    return "; ".join(filter(None, [line.state, line.row.note or ""]))


# All metrics of a task, in the order and under the headings of the paper's tables.

_SUITES = {"GLUE": ("glue", GLUE), "SuperGLUE": ("superglue", SUPERGLUE)}
_PERPLEXITY = {"perplexity of references": ("perplexity",)}
_ROUGE: dict[str, tuple[str, ...]] = {
    "ROUGE-1": ("rouge1",),
    "ROUGE-2": ("rouge2",),
    "ROUGE-L, summary level": ("rougeLsum",),
    "ROUGE-L, sentence level": ("rougeL",),
    **_PERPLEXITY,
}
COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "translation": {"BLEU": ("bleu",), "chrF": ("chrf",), **_PERPLEXITY},
    "language_modeling": {
        "perplexity": ("perplexity",),
        "word perplexity": ("word_perplexity",),
        "bits per byte": ("bits_per_byte",),
    },
    "span_corruption": {
        "log perplexity": ("loss",),
        "perplexity": ("perplexity",),
        "token accuracy, %": ("token_accuracy",),
    },
    "principal_sentence": _ROUGE,
    "summarization": _ROUGE,
    "dialogue": {
        "BLEU-1/4": ("bleu1", "bleu4"),
        "ROUGE-L": ("rougeL",),
        "METEOR (exact, stem)": ("meteor_exact_stem",),
        "METEOR, mean of segments": ("meteor15_no_wordnet",),
        "CIDEr": ("cider",),
        "embedding similarity": ("embedding_average",),
        **_PERPLEXITY,
    },
    "classification": {"accuracy, %": ("accuracy",), "macro F1": ("macro_f1",)},
    "text_to_text": {
        head: keys
        for suite, (prefix, metrics) in _SUITES.items()
        for head, keys in {
            suite: (prefix,),
            **{
                f"{suite} {printed}": tuple(f"{prefix}_{task}_{name}" for name in metrics[task])
                for task, printed in paper()["tables"][prefix]["columns"].items()
                if task != "average"
            },
        }.items()
    },
}
"""Headings, and the metrics under each; two under one heading are shown as a/b, as in the paper."""
_PLACED = {key for columns in COLUMNS.values() for keys in columns.values() for key in keys}


def higher_is_better(name: str) -> bool:
    """Whether more of a metric is better; the loss has no statistics of its own."""
    return name in METRICS and METRICS[name].higher_is_better


def metric_tables(summary: Summary) -> tuple[Cells, Cells] | None:
    """Means of all metrics, and differences from dot; None where runs have one metric."""
    study = summary.study
    rows = [row for row in study.rows if row.finished]
    task = str(study.recipe.get("task", ""))
    added = {shown(name): (name,) for name in METRICS if name not in _PLACED}
    parts = [key for row in rows for key in row.finished[0].told("metrics") if "@" in key]
    for key in parts:  # of a test set made of several
        metric, _, part = key.partition("@")
        added[f"{shown(metric)}, {part}"] = (key,)

    def tells(row: Row, key: str) -> bool:
        scores = [*row.scores(key).values()]
        absurd = key == "word_perplexity" and scores and not np.mean(scores) <= MOST_PERPLEXITY
        return bool(scores) and not absurd

    known = {
        head: tuple(key for key in keys if any(tells(row, key) for row in rows))
        for head, keys in {**COLUMNS.get(task, {}), **added}.items()
    }
    columns = {head: keys for head, keys in known.items() if keys}
    if len(columns) < 2:
        return None
    compared = {
        key: {line.row.label: line.comparison for line in summary.lines if line.comparison}
        if key == summary.metric
        else compare(study, rows, key, higher_is_better(base_metric(key)), None, summary.looks)
        for keys in columns.values()
        for key in keys
    }

    def table(rows: Sequence[Row], show: Callable[[Row, str], str]) -> Cells:
        return ["variant", *columns], [
            [row.label, *(" / ".join(show(row, key) for key in keys) for keys in columns.values())]
            for row in rows
        ]

    others = [row for row in rows if any(row.label in found for found in compared.values())]
    return (
        table(
            rows, lambda row, key: span(list(row.scores(key).values()) if tells(row, key) else [])
        ),
        table(
            others,
            lambda row, key: difference_and_verdict(
                compared[key].get(row.label) if tells(row, key) else None
            ),
        ),
    )


def difference_and_verdict(found: Comparison | None) -> str:
    """'+0.31 [+0.20, +0.42], better'."""
    if found is None:
        return difference_text(found)
    beside = f" ({said})" if (said := remark(found)) else ""
    return f"{difference_text(found)}, {found.word}{beside}"


def varied_table(summary: Summary) -> Cells | None:
    """A row for each variant, a column for each value of what --vary changed."""
    study = summary.study
    values = list(dict.fromkeys(row.varied for row in study.rows if row.varied))
    cells: dict[str, list[str]] = {}
    for row in (row for row in study.rows if row.varied):
        line = cells.setdefault(row.name, [MISSING] * len(values))
        scores = list(row.scores(summary.metric).values())
        line[values.index(row.varied)] = span(scores, summary.digits)
    names = (", ".join(map(plain_change, varied)) for varied in values)
    rows = [[name, *line] for name, line in cells.items()]
    return (["variant", *names], rows) if values else None


# What the search tried for each row, what it chose, and by how many seeds.


def trials_of(summary: Summary, trials: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trials that say which scores are better; those that failed do not on their own."""
    return [{"higher_is_better": summary.higher_is_better, **trial} for trial in trials]


def _searched(summary: Summary) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The trials of each row, and of the dot products that were tried and left."""
    rows = {line.row.label: trials_of(summary, line.row.trials) for line in summary.lines}
    yield from ((label, trials) for label, trials in rows.items() if trials)
    beaten: dict[str, list[dict[str, Any]]] = {}
    for trial in trials_of(summary, summary.study.chosen.get("trials", [])):
        label = trial.get("row", "")
        if label and not rows.get(label):
            beaten.setdefault(label, []).append(trial)
    yield from beaten.items()


def search_table(summary: Summary) -> Cells:
    """What the search found for each row: the rate at an edge, and the best to expect of k."""
    rows = []
    for label, trials in _searched(summary):
        expected = expected_best(trials)
        if not expected or not summary.study.facts.get("tune"):
            continue
        places = (0, (len(expected) - 1) // 2, len(expected) - 1)
        spread = [f"{expected[place]:.{summary.digits}f}" for place in places]
        edge = at_the_edge(trials)
        rows.append([label, f"{edge} of those tried: widen" if edge else "inside", *spread])
    heads = ["best learning rate", "expected best of 1", "of half", "of all trials"]
    return ["variant", *heads], rows


def trial_table(summary: Summary) -> Cells:
    """What was tried for each row, the best first; without tuning, one row alone is chosen."""
    searched = {label: (trials, settings_tried(trials)) for label, trials in _searched(summary)}
    seeds = max((len(one.scores) for _, each in searched.values() for one in each), default=1)
    several = seeds if seeds > 1 else 0
    kept = {line.row.label for line in summary.lines}
    chosen, digits = summary.study.chosen.get("label"), summary.digits

    def rates(changes: Sequence[str]) -> list[str]:
        set_to = dict(change.split("=", 1) for change in changes)
        return [set_to.get(key, MISSING) for key in RATES]

    rows = []
    for label, (trials, each) in searched.items():
        if summary.study.facts.get("tune"):
            taken = "chosen" if label in kept else "its best"
        else:
            taken = "chosen" if label == chosen else ""
        for one in sorted(each, key=lambda one: one.rank, reverse=True):
            scores = ["failed" if s is None else f"{s:.{digits}f}" for s in one.scores]
            mean = [f"{one.mean:.{digits}f}" if len(scores) > 1 else MISSING] if several else []
            blank = [MISSING] * (seeds - len(scores))
            rows.append([label, *rates(one.changes), *scores, *blank, *mean, taken])
            taken = ""
        known = {one.changes for one in each}
        failed = dict.fromkeys(c for t in trials if (c := tuple(t["changes"])) not in known)
        rows += [[label, *rates(one), "failed", *[MISSING] * several, ""] for one in failed]
    heads = [f"validation {summary.metric_name}", *["second seed", "mean"][:several], ""]
    return ["variant", "learning rate", "table rate", "positions", *heads], rows


# What the paper reports, from paper.toml: shown beside our numbers, never among them.


class PaperTable(NamedTuple):
    """Some columns of one published table."""

    title: str
    source: str
    notes: Sequence[str]
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def paper_tables(key: str | None, here: Sequence[str]) -> list[PaperTable]:
    """The published tables that a recipe's `paper` names; `here` are our rows: specs and labels."""
    known, found = paper(), []
    for choice in known["recipes"].get(key, []):
        stored = known["tables"][choice["table"]]
        columns = choice.get("columns", list(stored["columns"]))
        rows = [
            (
                row["name"],
                next((row[key] for key in ("label", "synthesis") if row.get(key) in here), MISSING),
                *(str(row.get(column, MISSING)) for column in columns),
            )
            for row in stored["rows"]
            if any(column in row for column in columns)
        ]
        head = ("published row", "our row", *(stored["columns"][column] for column in columns))
        source = known["sources"][stored["source"]]
        found.append(PaperTable(stored["title"], source, stored.get("notes", ()), head, rows))
    return found
