"""The table of a study: the same columns for the page, for Markdown and for table.csv."""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import fill

from synthesizer_attention.report.reliability import worst
from synthesizer_attention.report.summary import MISSING, Line, Summary, difference_text, span
from synthesizer_attention.study.stats import NOT_JUDGED
from synthesizer_attention.untrusted import printable

NAME = 18  # letters of a row's name on a line of a terminal

Value = float | int | str | None

_FORMULA = re.compile(r"(^|[;\t\n])( *[=+\-@\uff1d\uff0b\uff0d\uff20])")


TERMS = {
    "difference from dot": "The variant's mean minus dot's over the seeds both have, with its "
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


@dataclass(frozen=True)
class Column:
    """A heading, what it shows, and under which keys table.csv keeps the numbers.

    On a terminal it has a short heading, and may show less; without one it is not there.
    """

    head: str
    show: Callable[[Line], str]
    keep: dict[str, Callable[[Line], Value]]
    short: str | None = None
    show_short: Callable[[Line], str] | None = None


def columns(summary: Summary) -> list[Column]:
    """All columns but the row's name; those that no row fills are left out of what is shown."""
    digits = summary.digits
    several = any(line.sd is not None for line in summary.lines)
    spread = ", mean \N{PLUS-MINUS SIGN} sd" if several else ""
    score: dict[str, Callable[[Line], Value]] = {
        "metric": lambda line: summary.metric,
        "mean": lambda line: line.mean,
        "sd": lambda line: line.sd,
        "seeds": lambda line: len(line.scores),
    }
    difference: dict[str, Callable[[Line], Value]] = {
        "difference": _found("difference"),
        "low": lambda line: _end(line, "low"),
        "high": lambda line: _end(line, "high"),
        "low_level": lambda line: line.comparison.levels[0] if line.comparison else None,
        "high_level": lambda line: line.comparison.levels[1] if line.comparison else None,
        "margin": _found("margin"),
    }
    worst_seed = partial(worst, higher_is_better=summary.higher_is_better)
    name = summary.metric_name
    return [
        Column(f"{name}{spread}", lambda line: span(line.scores, digits), score, name),
        Column(
            "worst seed", lambda line: _number(worst_seed(line), digits), {"worst_seed": worst_seed}
        ),
        Column(
            "difference from dot",
            lambda line: difference_text(line.comparison, digits),
            difference,
            f"vs {summary.dot_name}",
        ),
        Column("verdict", _verdict, {"verdict": _found("word")}, "verdict", _short_verdict),
        _costs("parameters", "parameters", big, "params"),
        _costs("FLOPs per token", "flops", big),
        _speeds("training"),
        _speeds("decoding"),
        _costs("peak memory of a training step", "memory", _bytes),
        _costs("cache per decoded token", "cache", _bytes),
        _costs("peak memory of the process, libraries included", "process_memory", _bytes),
        _costs("sharpness", "sharpness", _two_digits, "sharpness"),
        _costs("source gap", "source_gap", _two_digits),
        _costs("steps per token", "steps_per_token", _two_digits),
        Column("learning rate", _rates, {"learning_rates": _rates}),
        Column("remarks", lambda line: _under(_remarks(line)), {"remarks": _remarks}),
    ]


def _costs(
    head: str, name: str, show: Callable[[float | None], str], short: str | None = None
) -> Column:
    return Column(head, lambda line: show(line.cost[name]), _cost(name), short)


def _speeds(name: str) -> Column:
    """Tokens per second, and beside dot's."""
    keep = _cost(name) | {f"{name}_relative": lambda line: line.relative[name]}
    head = f"{name}, tokens/s"
    return Column(
        head, lambda line: _speed(line, name), keep, name, lambda line: _times(line.relative[name])
    )


def cells(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Head and rows as text, without columns that are empty throughout."""
    names = [f"{line.paper_name}\n{line.row.label}" for line in summary.lines]
    return _filled(summary, names, {c.head: c.show for c in columns(summary)})


def brief(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Head and rows for a terminal: what fits beside a row's name."""
    names = [fill(line.row.label, NAME) for line in summary.lines]
    shown = {c.short: c.show_short or c.show for c in columns(summary) if c.short}
    head, rows = _filled(summary, names, shown)
    return head, [[first, *(cell.replace("\n", ", ") for cell in row)] for first, *row in rows]


def _filled(
    summary: Summary, names: Sequence[str], shown: Mapping[str, Callable[[Line], str]]
) -> tuple[list[str], list[list[str]]]:
    texts = {head: [show(line) for line in summary.lines] for head, show in shown.items()}
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
        for line in summary.lines:
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


def _cost(name: str) -> dict[str, Callable[[Line], Value]]:
    return {name: lambda line: line.cost[name]}


def _found(name: str) -> Callable[[Line], Value]:
    return lambda line: getattr(line.comparison, name) if line.comparison else None


def _two_digits(value: float | None) -> str:
    return _number(value, 2)


def _number(value: float | None, digits: int) -> str:
    return MISSING if value is None else f"{value:.{digits}f}"


def _end(line: Line, name: str) -> float | None:
    found = line.comparison
    return getattr(found, name) if found and found.covers_seeds else None


def _verdict(line: Line) -> str:
    found = line.comparison
    if found is None:
        return MISSING
    word = f"{found.word} so far" if line.is_closing else found.word
    return f"{word}\n{found.advice}" if found.advice else word


def _short_verdict(line: Line) -> str:
    """Without what the answer below the table says of all rows."""
    judged = line.comparison is None or line.comparison.word != NOT_JUDGED
    return _verdict(line) if judged else NOT_JUDGED


def _speed(line: Line, name: str) -> str:
    value, relative = line.cost[name], line.relative[name]
    if value is None:
        return MISSING
    return big(value) + (f" ({_times(relative)})" if relative else "")


def _times(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}\N{MULTIPLICATION SIGN}"


def _bytes(value: float | None) -> str:
    if value is None:
        return MISSING
    for size, unit in ((2**20, "MiB"), (2**10, "KiB")):
        if value >= 10 * size:
            return f"{value / size:,.0f} {unit}"
    return f"{value:,.0f} B"


def _rates(line: Line) -> str:
    rates = [
        f"{train['lr']:g} (\N{MULTIPLICATION SIGN}{train['table_rate']:g})"
        for run in line.row.runs
        if (train := run.recipe.get("train")) and "lr" in train and "table_rate" in train
    ]
    return ", ".join(dict.fromkeys(rates)) or MISSING


def _under(text: str) -> str:
    return f"\n{text}" if text else ""


def _remarks(line: Line) -> str:
    return "; ".join(filter(None, [line.state, line.row.note or ""]))
