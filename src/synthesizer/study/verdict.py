"""Is a row no worse than dot? Non-inferiority with a margin, over seeds and examples (no torch).

evidence.py says what runs show of a difference and how sure it is; sequential.py turns that into
words with one 5 % for a whole table. Here: margins and the rows of a table; answer.py has the
sentence on top.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from synthesizer.errors import UserError
from synthesizer.metrics import DOCUMENTS, ROUGE, SCORES, Statistics
from synthesizer.study.evidence import (
    FEWEST_SEEDS,
    Array,
    Evidence,
    Influences,
    Units,
    influences,
    weigh,
)
from synthesizer.study.sequential import (
    BETTER,
    LEVEL,
    NOT_JUDGED,
    VOID,
    WORSE,
    Decision,
    Looks,
    decide,
    is_open,
)

DOT = "dot"
FEWEST_UNITS = 30  # below that a report warns
BITS = 0.02  # per byte: what a language model may lose and be no worse


@dataclass(frozen=True)
class Margin:
    """How much worse still counts as no worse: points of the metric, but at most a share of dot's
    value, so that a margin never outgrows a small score.
    """

    points: float
    share: float = 0.02

    def of(self, reference: float) -> float:
        """The margin in the metric's own unit."""
        return min(self.points, self.share * abs(reference))

    def __str__(self) -> str:
        return f"{self.points:g}, at most {self.share:.0%} of dot's value"


TEXTS, OTHERS = Margin(0.5), Margin(1.0)
MARGINS = dict.fromkeys(
    ("bleu", "bleu1", "bleu4", "chrf", *ROUGE, "meteor15_no_wordnet"), TEXTS
)  # ours; --margin overrides it
LANGUAGE_MODEL = {"bits_per_byte": 3, "perplexity": 1, "word_perplexity": 2}
"""Metrics whose margin is BITS per byte, and the column of their statistics that they divide by."""
IN_PERCENT = set(SCORES) - set(LANGUAGE_MODEL)


def margin_for(metric: str) -> Margin:
    """The default margin of a metric that is not a language model's."""
    return MARGINS.get(metric, OTHERS)


def allowed(metric: str, dot: "Measured") -> float:
    """The default margin in the metric's own unit.

    A perplexity is 2^(bits per unit), so that BITS per byte are a factor of it: two language models
    are judged alike whether their metric counts bytes, tokens or words. Where the statistics have
    no bytes (spans that were cut out), BITS are per token.
    """
    reference = float(np.mean(list(dot.scores.values())))
    if metric not in LANGUAGE_MODEL:
        return margin_for(metric).of(reference)
    if metric == "bits_per_byte":
        return BITS
    totals = sum((rows.sum(0, np.float64) for rows in dot.statistics.values()), np.zeros(4))
    per_unit = totals[3] / totals[LANGUAGE_MODEL[metric]] if totals[3] else 1.0
    return float(reference * (2 ** (BITS * per_unit) - 1))


def check_margin(margin: float, metric: str, dot: "Measured") -> None:
    """Refuse a margin that lets anything be no worse.

    Shares and similarities end at 100; a language model's metric has no end, and as much again as
    dot's own is further than a margin goes.
    """
    score = float(np.mean(list(dot.scores.values())))
    most, why = (100.0, "its scale") if metric in IN_PERCENT else (score, "dot's own")
    if not 0 < margin < most and np.isfinite(most):
        raise UserError(
            f"margin is {margin:g} points of {metric}; expected more than 0 and less than "
            f"{most:.4g}, {why}: --margin sets it"
        )


@dataclass(frozen=True)
class Measured:
    """One row's runs: score and per-example statistics of the main metric, by seed."""

    label: str
    scores: Mapping[int, float]
    statistics: Mapping[int, Statistics]
    units: Units | None = None  # the document of each example

    @classmethod
    def read(
        cls,
        label: str,
        runs: Mapping[int, tuple[Mapping[str, Any], Mapping[str, Any]]],
        metric: str,
    ) -> "Measured":
        """From each seed's result.json and statistics.npz."""
        scores = {
            seed: float(result["metrics"][metric])
            for seed, (result, _) in runs.items()
            if metric in result.get("metrics", {})
        }
        arrays = {seed: found for seed, (_, found) in runs.items()}
        statistics = {seed: found[metric] for seed, found in arrays.items() if metric in found}
        units = next((found[DOCUMENTS] for found in arrays.values() if DOCUMENTS in found), None)
        return cls(label, scores, statistics, units)


@dataclass(frozen=True)
class Comparison:
    """What is known of one row against dot, in the metric's own unit; differences are row - dot."""

    label: str
    difference: float
    low: float  # of the interval that the word was read off; examples alone below FEWEST_SEEDS
    high: float
    num_seeds: int  # shared with dot
    margin: float
    word: str
    levels: tuple[float, float] = (LEVEL / 2, LEVEL / 2)  # errors of low and high
    units: float = 0.0  # effective number of independent ones in the test set
    unseen: float = 0.0  # bound on the effect of kinds of examples that never occurred

    @property
    def covers_seeds(self) -> bool:
        """Whether the interval knows what another seed may do."""
        return self.num_seeds >= FEWEST_SEEDS

    @property
    def advice(self) -> str:
        """What is missing to a word."""
        if not is_open(self.word):
            return ""
        if not self.covers_seeds:
            return f"{self.num_seeds} of {FEWEST_SEEDS} seeds"
        if self.word == NOT_JUDGED:
            return "no per-example statistics"
        if not self.margin:
            return "dot scores 0, and so does a share of it: set --margin"
        if self.unseen >= self.margin:
            needed = self.units * self.unseen / self.margin
            return f"too few test examples: no worse takes more than {needed:,.0f}"
        return ""


def judge(
    dot: Measured,
    rows: Sequence[Measured],
    *,
    metric: str,
    higher_is_better: bool,
    margin: float | None = None,
    looks: Looks | None = None,
) -> list[Comparison]:
    """Compare each row with dot at every look taken; rows without a shared seed are left out."""
    sign = 1.0 if higher_is_better else -1.0
    size = allowed(metric, dot) if margin is None else margin
    kept = [row for row in rows if row.scores.keys() & dot.scores.keys()]
    every = sorted({seed for row in (dot, *kept) for seed in row.scores})
    looks = (looks or Looks.once(max(len(every), FEWEST_SEEDS))).within(len(every))
    found: list[list[Evidence | None]] = [
        [_evidence(dot, row, metric, sign, every[:count]) for row in kept] for count in looks.taken
    ]
    decisions = decide(found, size, looks) if kept else []
    return [
        _comparison(row.label, found, place, decision, size, sign)
        for place, (row, decision) in enumerate(zip(kept, decisions, strict=True))
    ]


def judge_again(
    dot: Measured, again: Measured, *, metric: str, higher_is_better: bool, margin: float | None
) -> Comparison | None:
    """The A/A row, dot under other seeds, by itself: a word but no worse voids its table.

    Its seeds are others, so they are matched by their order. It has a level of its own: a sound
    table is voided in at most 5 of 100 cases.
    """
    count = min(len(dot.scores), len(again.scores))
    pair = [_renumbered(row, count) for row in (dot, again)]
    if count < FEWEST_SEEDS:
        return None
    return judge(
        pair[0], pair[1:], metric=metric, higher_is_better=higher_is_better, margin=margin
    )[0]


def is_void(again: Comparison | None) -> bool:
    """Whether dot differs from itself, so that no word of the table means anything."""
    return again is not None and again.word in (BETTER, WORSE)


def voided(comparison: Comparison) -> Comparison:
    """The same numbers without a word."""
    return replace(comparison, word=VOID)


def _renumbered(row: Measured, count: int) -> Measured:
    seeds = dict(enumerate(sorted(row.scores)[:count]))
    return Measured(
        row.label,
        {new: row.scores[old] for new, old in seeds.items()},
        {new: row.statistics[old] for new, old in seeds.items() if old in row.statistics},
        row.units,
    )


def _evidence(
    dot: Measured, row: Measured, metric: str, sign: float, every: Sequence[int]
) -> Evidence | None:
    """What the shared ones of these seeds show; None where there is none."""
    seeds = [seed for seed in every if seed in row.scores and seed in dot.scores]
    if not seeds:
        return None
    scores = [sign * np.array([side.scores[seed] for seed in seeds]) for side in (row, dot)]
    with np.errstate(invalid="ignore"):  # a perplexity may be infinite; weigh() sees to it
        sides = [_influences(side, metric, sign, seeds) for side in (row, dot)]
    if sides[0].values.shape != sides[1].values.shape:
        sides = [Influences(np.full((len(seeds), 2), np.inf), 2.0)] * 2
    limit = 100.0 if metric in IN_PERCENT else 0.0
    return weigh(scores[0], scores[1], sides[0], sides[1], limit=limit)


def _influences(side: Measured, metric: str, sign: float, seeds: Sequence[int]) -> Influences:
    tables = [side.statistics[seed] for seed in seeds if seed in side.statistics]
    sizes = {len(table) for table in tables}
    fits = side.units is None or sizes == {len(side.units)}
    if len(tables) < len(seeds) or len(sizes) != 1 or sizes == {1} or not fits:
        return Influences(np.full((len(seeds), 1), np.inf), 1.0)
    found = influences(SCORES[metric], tables, side.units)
    values: Array = sign * found.values
    return Influences(values, found.units)


def _comparison(
    label: str,
    found: Sequence[Sequence[Evidence | None]],
    place: int,
    decision: Decision,
    margin: float,
    sign: float,
) -> Comparison:
    seen = [row[place] for row in found[: decision.look + 1]]
    evidence = next(one for one in reversed(seen) if one is not None)
    low, high = sorted(sign * end for end in decision.interval(evidence))
    levels = (decision.lower, decision.upper)
    return Comparison(
        label,
        sign * evidence.gain,
        low,
        high,
        evidence.seeds,
        margin,
        decision.word,
        levels if sign > 0 else levels[::-1],
        evidence.units,
        evidence.unseen(decision.lower),
    )
