"""The numbers of a study: each row's means over seeds, its verdict, and the answer (no torch)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics import METRICS, shown
from synthesizer_attention.report.answer import Varied, answer, answer_by_value
from synthesizer_attention.report.costs import cost_of, relative_cost
from synthesizer_attention.report.load import Record, Row, Study, plain_change
from synthesizer_attention.report.opponent import DOT, base_of, opponent_of
from synthesizer_attention.run.run import STUDY
from synthesizer_attention.spec import NONE
from synthesizer_attention.study.rows import AGAIN
from synthesizer_attention.study.stats import (
    BETTER,
    BITS,
    LANGUAGE_MODEL,
    NO_WORSE,
    WORSE,
    Comparison,
    Looks,
    Measured,
    allowed,
    check_margin,
    is_void,
    judge,
    judge_again,
    voided,
)

PAPER_NAMES = {"dot": "Vanilla", NONE: "no self-attention"}
MISSING, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
CLOSING = 0.9  # a gap below this share of itself after the last third still shrinks
MOST_DRAWN = 16  # rows in a plot; the others stay in the table
UNIVERSAL = "universal"  # as compare labels it


@dataclass(frozen=True)
class Line:
    """One row of the table; what no finished run tells is None."""

    row: Row
    index: int  # of the row's colour, dashes and marker; 0 is dot
    scores: tuple[float, ...]
    comparison: Comparison | None
    cost: dict[str, float | None]  # means over finished runs
    relative: dict[str, float | None]  # the same over dot's
    gaps: tuple[float, float, float] | None = None  # to dot on validation, at thirds of the steps

    @property
    def is_closing(self) -> bool:
        """Whether a decided row's gap to dot shrinks by a tenth or more in the last third.

        Where a row is no worse, a gap below a tenth of the margin has closed already.
        """
        if self.gaps is None or self.comparison is None:
            return False
        _, before, last = self.gaps
        word = self.comparison.word
        if word == NO_WORSE and abs(last) < (1 - CLOSING) * self.comparison.margin:
            return False
        decided = word in (BETTER, NO_WORSE, WORSE)
        return decided and before * last > 0 and abs(last) < CLOSING * abs(before)

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.scores)) if self.scores else None

    @property
    def sd(self) -> float | None:
        known = len(self.scores) > 1 and np.isfinite(self.scores).all()
        return float(np.std(self.scores, ddof=1)) if known else None

    @property
    def paper_name(self) -> str:
        """What the paper calls it."""
        runs = self.row.runs
        shares = any(run.recipe.get("model", {}).get("universal") for run in runs)
        shares |= not runs and self.row.label == UNIVERSAL
        name = paper_name(self.row.spec)
        return f"Universal {name.replace('Vanilla', 'Transformer')}" if shares else name

    @property
    def state(self) -> str:
        """What is missing of the row, if anything."""
        if self.row.error:
            return f"failed: {self.row.error}"
        if self.row.left_out:
            return f"left out: {self.row.left_out}"
        unfinished = [run for run in self.row.runs if run.result is None]
        if not self.row.runs:
            return "not run"
        return "; ".join(f"seed {run.seed} {run.state}" for run in unfinished)


@dataclass(frozen=True)
class Opponent:
    """A row beside dot that the others are compared with."""

    label: str
    margin: str
    compared: dict[str, Comparison]  # by label; differences are row - opponent


@dataclass(frozen=True)
class Summary:
    """A study in numbers and words."""

    study: Study
    metric: str
    higher_is_better: bool
    lines: tuple[Line, ...]
    margin: str
    answer: str
    again: Comparison | None = None  # dot under other seeds, against dot
    looks: Looks | None = None
    opponent: Row | None = None  # the dot product that rows are compared with
    has_documents: bool = False  # whether the records say which test examples belong together
    opponents: tuple[Opponent, ...] = ()

    @property
    def question(self) -> str:
        return f"Does {self.study.name} need dot-product attention?"

    @property
    def dot_name(self) -> str:
        """The dot product that differences are from; varied values have one each of this name."""
        row = self.opponent
        return DOT if row is None else row.name

    @property
    def metric_name(self) -> str:
        return shown(self.metric)

    @property
    def digits(self) -> int:
        return 3 if self.metric == "bits_per_byte" else 2

    @property
    def finished(self) -> list[Record]:
        return [run for row in self.study.rows for run in row.finished]

    @property
    def drawn(self) -> list[Line]:
        """The rows that plots have room for: dot, and the best of the others."""
        others = [line for line in self.lines if line.index]
        kept = others[: MOST_DRAWN - 1]
        return [line for line in self.lines if line.index == 0 or line in kept]

    @property
    def scope(self) -> str:
        varied: dict[str, list[str]] = {}
        for row in () if self.study.facts.get("ladder") else self.study.rows:
            for key, _, value in (change.partition("=") for change in row.varied):
                values = varied.setdefault(key.rpartition(".")[2], [])
                values += [value] if value not in values else []
        dot = self.opponent.runs[0].recipe if self.opponent and self.opponent.runs else None
        seeds = sorted({run.seed for run in self.finished})
        said = scope(dot or self.study.recipe, seeds, varied)
        equal_time = self.study.facts.get("match") == "time"
        return said.replace(
            " steps of ", " steps (of dot; the others train as long) of ", equal_time
        )


def summarize(study: Study) -> Summary:
    """Put a study into numbers."""
    finished = [run for row in study.rows for run in row.finished]
    first = (finished[0].result or {}) if finished else {}
    metric, higher = first.get("main_metric", ""), first.get("higher_is_better", True)
    plain = opponent_of(study)
    dot = plain if plain is not None and plain.finished else None
    seeds = {run.seed for row in study.rows if row.label != AGAIN for run in row.finished}
    looks = study.looks and study.looks.within(len(seeds))
    compared: dict[str, Comparison] = {}
    again: Comparison | None = None
    margin, reference = "", None
    asked: dict[str, Any] = {"metric": metric, "higher_is_better": higher, "margin": study.margin}
    if dot is not None and metric in METRICS:
        reference = measured(dot, metric)
        _check_margin(study, metric, reference)
        trained = [row for row in study.rows if row.finished]
        found: list[Comparison] = []
        for varied in dict.fromkeys(row.varied for row in trained):  # one, but for --vary
            same = [row for row in trained if row.varied == varied]
            base = base_of(study, same[0])
            own = [row for row in same if row is not base]
            others = [measured(row, metric) for row in own if row.label != AGAIN]
            if base is not None and others:
                found += judge(measured(base, metric), others, **asked, looks=looks)
        for row in trained:
            if row.label == AGAIN:
                again = judge_again(reference, measured(row, metric), **asked)
        kept = [voided(c) for c in found] if is_void(again) else found
        compared = {comparison.label: comparison for comparison in kept}
        size = allowed(metric, reference) if study.margin is None else study.margin
        margin = _margin_text(metric, size)
    ordered = sorted(study.rows, key=lambda row: row is not plain)
    lines = [
        _line(row, index, metric, compared.get(row.label), base_of(study, row))
        for index, row in enumerate(ordered)
    ]
    lines.sort(key=lambda line: _rank(line.mean, 1 if higher else -1))
    said = _answer(study, compared, lines, margin, higher_is_better=higher)
    documents = reference is not None and reference.units is not None
    opponents = tuple(_opponents(study, {**asked, "looks": looks})) if metric in METRICS else ()
    found_in = (study, metric, higher, tuple(lines), margin, said, again, looks, dot)
    return Summary(*found_in, has_documents=documents, opponents=opponents)


def _check_margin(study: Study, metric: str, dot: Measured) -> None:
    try:
        if study.margin is not None:
            check_margin(study.margin, metric, dot)
    except UserError as error:
        raise UserError(f"{study.path / STUDY}: {error}") from None


def _answer(
    study: Study,
    compared: dict[str, Comparison],
    lines: Sequence[Line],
    margin: str,
    *,
    higher_is_better: bool,
) -> str:
    """One sentence for the study (a ladder's largest rung), or over all varied values.

    The sentence says the varied values, so that rows go by their names without them.
    """
    values = list(dict.fromkeys(row.varied for row in study.rows)) or [()]
    tables = []
    for varied in values[:1] if study.facts.get("ladder") else values:
        own = [row for row in study.rows if row.varied == varied and row.label in compared]
        specs = [(row.spec, replace(compared[row.label], label=row.name)) for row in own]
        closing = {line.row.name for line in lines if line.is_closing and line.row in own}
        said = ", ".join(plain_change(change) for change in varied)
        tables.append(Varied(said, specs, closing))
    if len(tables) > 1:
        key = " and ".join(change.partition("=")[0].rpartition(".")[2] for change in values[0])
        short = [replace(one, value=one.value.removeprefix(f"{key} ")) for one in tables]
        return answer_by_value(study.name, key, short, margin)
    one = tables[0]
    subject = f"{study.name} with {one.value}" if one.value else study.name
    return answer(
        subject, one.compared, margin, higher_is_better=higher_is_better, closing=one.closing
    )


def _opponents(study: Study, asked: dict[str, Any]) -> Iterator[Opponent]:
    """Every row that --against named, and all others beside it: with an error rate of its own."""
    metric = asked["metric"]
    for label in study.facts.get("against") or ():
        rival = next((row for row in study.rows if row.label == label and row.finished), None)
        if rival is None:
            continue
        others = [row for row in study.rows if row.finished and row.label not in (label, AGAIN)]
        beside = measured(rival, metric)
        found = judge(beside, [measured(row, metric) for row in others], **asked)
        size = allowed(metric, beside) if study.margin is None else study.margin
        compared = {comparison.label: comparison for comparison in found}
        yield Opponent(label, _margin_text(metric, size), compared)


def span(values: Sequence[float], digits: int = 2) -> str:
    """'12.30 \N{PLUS-MINUS SIGN} 0.41': mean and standard deviation over seeds; a dash for none."""
    if not values:
        return MISSING
    mean = f"{float(np.mean(values)):.{digits}f}".replace("-", MINUS)
    if len(values) < 2 or not np.isfinite(values).all():
        return mean
    return f"{mean} \N{PLUS-MINUS SIGN} {float(np.std(values, ddof=1)):.{digits}f}"


def _runs_of(seeds: Sequence[int]) -> list[str]:
    """[1, 2, 3, 4, 7] -> ['1 to 4', '7']; a run of two or three is spelt out."""
    runs: list[list[int]] = []
    for seed in sorted(seeds):
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    spelt = ([f"{run[0]} to {run[-1]}"] if len(run) > 3 else map(str, run) for run in runs)
    return [word for words in spelt for word in words]


def difference_text(found: Comparison | None, digits: int = 2) -> str:
    """'+0.31 [+0.20, +0.42]'; without the interval where seeds are too few for one."""
    if found is None:
        return MISSING
    ends = [found.low, found.high] if found.covers_seeds and math.isfinite(found.low) else []
    shown, *bounds = [
        f"{value:+.{digits}f}".replace("-", MINUS) for value in (found.difference, *ends)
    ]
    return f"{shown} [{', '.join(bounds)}]" if bounds else shown


def scope(recipe: dict[str, Any], seeds: Sequence[int], varied: Mapping[str, Sequence[str]]) -> str:
    """What the answer holds for, and what it leaves open; varied keys have several values."""
    model, train = recipe.get("model", {}), recipe.get("train", {})
    if not (model and train):
        return "Scope: unknown; no run has a readable recipe."
    layers = [model["num_layers"]]
    if model.get("kind") == "encoder_decoder":
        layers.append(model.get("num_decoder_layers") or model["num_layers"])
    tokens = train["batch_tokens"] * train.get("accumulate", 1)
    data = recipe.get("data", {})
    origin = data.get("builtin") or data.get("train") or data.get("hub") or data.get("local")
    origin = " or ".join(origin) if isinstance(origin, list) else origin
    listed = ", ".join(_runs_of(seeds))
    *fewer, most = varied.get("num_heads", [str(model["num_heads"])])
    heads = f"{', '.join(fewer)} or {most}" if fewer else most
    others = [f"{key} {', '.join(vs)}" for key, vs in varied.items() if key != "num_heads"]
    seed_words = f"{'seed' if len(seeds) == 1 else 'seeds'} {listed}" if seeds else "no seed yet"
    return (
        f"Scope: {_layers(layers)} of width {model['d_model']}, "
        f"{heads} {'head' if heads == '1' else 'heads'}, length {model['max_len']}; "
        f"{train['steps']:,} steps of {tokens:,} tokens on {origin or recipe['name']}; "
        f"{'; '.join([*others, seed_words])}. "
        "Only self-attention differs between variants: cross-attention, where a model has any, "
        "is dot product in all of them. Another scale or data set may answer otherwise."
    )


def _layers(counts: Sequence[int]) -> str:
    return "1 layer" if list(counts) == [1] else f"{'+'.join(map(str, counts))} layers"


def paper_name(spec: str) -> str:
    """'factorized_random:k=8+dot' is 'Factorized Random + Vanilla'."""
    named = [part.partition(":")[0] for part in spec.split("+")]
    return " + ".join(PAPER_NAMES.get(name, name.replace("_", " ").title()) for name in named)


def _rank(mean: float | None, sign: int) -> float:
    """Best first; what has no score, or diverged, last."""
    return math.inf if mean is None or math.isnan(mean) else -sign * mean


def _line(
    row: Row, index: int, metric: str, comparison: Comparison | None, base: Row | None
) -> Line:
    dot = thirds(base, metric) if base is not None and comparison is not None else None
    own = None if dot is None else thirds(row, metric)
    gaps = None
    if own is not None and dot is not None:
        gaps = (own[0] - dot[0], own[1] - dot[1], own[2] - dot[2])
    scores = tuple(scores_of(row, metric).values())
    return Line(row, index, scores, comparison, cost_of(row), relative_cost(row, base), gaps)


def thirds(row: Row, metric: str) -> tuple[float, float, float] | None:
    """Validation scores after one, two and three thirds of the steps, the mean over runs."""
    found = []
    for run in row.finished:
        steps = int(run.recipe.get("train", {}).get("steps", 0))
        scored = [
            (line["step"], line["validation"][metric])
            for line in run.lines
            if isinstance(line.get("validation"), dict) and metric in line["validation"]
        ]
        if len(scored) < 3 or scored[0][0] > steps / 3 or scored[-1][0] < steps:
            return None
        at, values = zip(*scored, strict=True)
        found.append(np.interp([steps / 3, 2 * steps / 3, steps], at, values))
    if not found:
        return None
    first, second, last = (float(value) for value in np.mean(found, axis=0))
    return first, second, last


def measured(row: Row, metric: str) -> Measured:
    """A row's scores and per-example statistics of a metric."""
    runs = {run.seed: (run.result or {}, run.arrays("statistics.npz")) for run in row.finished}
    return Measured.read(row.label, runs, metric)


def scores_of(row: Row, metric: str) -> dict[int, float]:
    """A metric by seed, of the finished runs that have it."""
    found = {run.seed: (run.result or {})["metrics"].get(metric) for run in row.finished}
    return {seed: value for seed, value in found.items() if value is not None}


def _margin_text(metric: str, size: float) -> str:
    name = shown(metric)
    if metric in LANGUAGE_MODEL and metric != "bits_per_byte":
        return f"{size:.3g} {name}, {BITS:g} bits per byte"
    share = name.removesuffix(", %")
    if share == name:
        return f"{size:.3g} {name}"
    return f"{size:.3g} {'point' if size == 1 else 'points'} of {share}"
