"""Is a row no worse than dot? Non-inferiority with a margin, over seeds and examples (no torch).

Every row is compared with dot seed by seed and example by example: rows of one seed share the order
of the data and the start of the weights they have in common, and all rows meet the same test
examples. Pairing is right whether that makes them alike or not. With n shared seeds, the mean
difference has two errors, and its one-sided bound at a level is

    difference -+ sqrt(t[n-1]^2 S^2/n + t[G-1]^2 V),

S the spread of the seeds' differences on the test set at hand, V the variance that other test
examples would add (a jackknife over G blocks of neighbouring examples, less the part that S has
already seen), t Student's quantiles. Where luck makes the seeds agree, the bound is still no nearer
than other test examples would move it with the models as they are. A bootstrap over three seeds
would claim too much: where seeds make the noise, it errs in 18 of 100 cases that it calls 5.
tests/test_verdict.py simulates both.

A row is decided where its bound passes the margin at LEVEL, after Holm's correction over the rows;
`better` is a second question with a correction of its own.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from synthesizer.errors import UserError
from synthesizer.metrics import ROUGE, SCORES, Statistics, Total
from synthesizer.spec import NONE, parse_spec, split_layers, variants

Array = NDArray[np.float64]

LEVEL = 0.05  # the chance of any wrong verdict in a table; both ends of an interval err this often
FEWEST_SEEDS = 3
MOST_SEEDS = 100  # that are worth recommending
MAX_BLOCKS = 500

BETTER, NO_WORSE, WORSE, UNDECIDED = "better", "no worse", "worse", "undecided"
NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Margin:
    """How much worse still counts as no worse: points of the metric, or a share of dot's value."""

    value: float
    relative: bool = False

    def of(self, reference: float) -> float:
        """The margin in the metric's own unit."""
        return self.value * abs(reference) if self.relative else self.value

    def __str__(self) -> str:
        return f"{self.value:.0%} of dot's value" if self.relative else f"{self.value:g}"


_HALF, _ONE, _SHARE = Margin(0.5), Margin(1.0), Margin(0.02, relative=True)
MARGINS = {  # ours; --margin overrides it
    **dict.fromkeys(("bleu", "bleu1", "bleu4", "chrf"), _HALF),
    **dict.fromkeys((*ROUGE, "meteor_no_wordnet", "meteor15_no_wordnet"), _HALF),
    **dict.fromkeys(("bits_per_byte", "perplexity", "word_perplexity"), _SHARE),
}
"""Half a point where texts are compared, 2 % of dot's value for language models, else one point."""


def margin_for(metric: str) -> Margin:
    """The default margin of a metric."""
    return MARGINS.get(metric, _ONE)


@dataclass(frozen=True)
class Measured:
    """One row's runs: score and per-example statistics of the main metric, by seed."""

    label: str
    scores: Mapping[int, float]
    statistics: Mapping[int, Statistics]


@dataclass(frozen=True)
class Comparison:
    """What is known of one row against dot, in the metric's own unit; differences are row - dot."""

    label: str
    difference: float
    low: float  # of the difference, seeds and examples; examples alone below FEWEST_SEEDS
    high: float
    num_seeds: int  # shared with dot
    margin: float
    word: str
    settled_by: int | None = None  # seeds that would probably decide an undecided row

    @property
    def covers_seeds(self) -> bool:
        """Whether the interval knows what another seed may do."""
        return self.num_seeds >= FEWEST_SEEDS

    @property
    def advice(self) -> str:
        """What would settle it."""
        if self.word not in (UNDECIDED, NOT_JUDGED):
            return ""
        if not self.covers_seeds:
            return f"{self.num_seeds} of {FEWEST_SEEDS} seeds"
        if self.word == NOT_JUDGED:
            return "no per-example statistics"
        if self.settled_by is None:
            return f"more than {MOST_SEEDS} seeds, or a larger test set"
        return f"about {self.settled_by} seeds would probably settle it"


def judge(
    dot: Measured,
    rows: Sequence[Measured],
    *,
    metric: str,
    higher_is_better: bool,
    margin: float | None = None,
) -> list[Comparison]:
    """Compare each row with dot; rows without a shared seed are left out."""
    sign = 1.0 if higher_is_better else -1.0
    reference = float(np.mean(list(dot.scores.values())))
    allowed = margin_for(metric).of(reference) if margin is None else margin
    shared = [(row, sorted(row.scores.keys() & dot.scores.keys())) for row in rows]
    kept = [(row, seeds) for row, seeds in shared if seeds]
    found = [_evidence(dot, row, seeds, SCORES[metric], sign) for row, seeds in kept]
    words, levels = decide(found, allowed)
    return [
        _comparison(row.label, evidence, word, level, allowed, sign)
        for (row, _), evidence, word, level in zip(kept, found, words, levels, strict=True)
    ]


def answer(
    subject: str,
    compared: Sequence[tuple[str, Comparison]],
    margin: str,
    *,
    higher_is_better: bool = True,
) -> str:
    """Whether the subject needs dot product, in a sentence, from (spec, comparison) of its rows."""
    if not compared:
        return f"No verdict: there is no finished pair of dot and another row on {subject}."
    kinds = [(kind_of(spec), comparison) for spec, comparison in compared]
    alone = [comparison for kind, comparison in kinds if kind == "synthetic"]
    if all(comparison.word == NOT_JUDGED for _, comparison in compared):
        seeds = max(comparison.num_seeds for _, comparison in compared)
        if seeds >= FEWEST_SEEDS:
            return f"No verdict on {subject}: its runs have no per-example statistics to judge by."
        first = f"No verdict on {subject} from {_count(seeds, 'seed')} shared with dot"
        return f"{first}; {FEWEST_SEEDS} give one.{_so_far(alone, higher_is_better)}"
    better, even = _labels(alone, BETTER), _labels(alone, NO_WORSE)
    if _labels([comparison for kind, comparison in kinds if kind == NONE], BETTER, NO_WORSE):
        sentence = f"No: {subject} does not even need self-attention; none is no worse than dot"
    elif better or even:
        claims = [_claim(better, "better"), _claim(even, "no worse")]
        said = " and ".join(claim for claim in claims if claim)
        sentence = f"No: on {subject} {said} than dot product"
    elif alone and len(_labels(alone, WORSE)) == len(alone):
        few = {1: "the one row without dot product is", 2: "both rows without dot product are"}
        every = few.get(len(alone), f"all {len(alone)} rows without dot product are")
        sentence = f"Yes: on {subject} {every} worse"
    elif alone:
        open_rows = _labels(alone, UNDECIDED, NOT_JUDGED)
        sentence = f"Undecided: on {subject} more seeds are needed for {_join(open_rows)}"
    else:
        sentence = f"No verdict on {subject}: no row does without dot product"
    mixed = _labels([comparison for kind, comparison in kinds if kind == "mixed"], BETTER)
    also = f"; {_claim(mixed, 'better')} than dot" if mixed else ""
    return f"{sentence} (margin {margin}){also}."


def _so_far(alone: Sequence[Comparison], higher_is_better: bool) -> str:
    if not alone:
        return ""
    best = (max if higher_is_better else min)(alone, key=lambda row: row.difference)
    gained = best.difference > 0 if higher_is_better else best.difference < 0
    size = f"{abs(best.difference):.3g} {'better' if gained else 'worse'} than dot"
    told = size if best.difference else "equal to dot"
    return f" So far the best row without dot product is {best.label}, {told}."


def kind_of(spec: str) -> str:
    """What a row is: synthetic (no dot product in it), mixed, none, or other (a baseline)."""
    try:
        terms = [term for item, _ in split_layers(spec) for term in parse_spec(item)]
    except UserError:  # written by another version
        return "other"
    if any(variants()[term.name].baseline for term in terms):
        return "other"
    names = {term.name for term in terms}
    if names == {NONE}:
        return NONE
    return "mixed" if "dot" in names else "synthetic"


def _labels(comparisons: Sequence[Comparison], *words: str) -> list[str]:
    return [comparison.label for comparison in comparisons if comparison.word in words]


def _claim(labels: Sequence[str], word: str) -> str:
    return f"{_join(labels)} {'is' if len(labels) == 1 else 'are'} {word}" if labels else ""


def _join(labels: Sequence[str]) -> str:
    *first, last = labels
    return f"{', '.join(first)} and {last}" if first else last


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


@dataclass(frozen=True)
class Evidence:
    """A gain over dot (positive is better) and the variances of its mean."""

    gain: float
    seeds: int
    seed_variance: float  # what other seeds would do, on the test set at hand
    blocks: int
    example_variance: float  # what other test examples would do beside that
    fixed_variance: float = 0.0  # what other test examples would do to these very models

    @property
    def suffices(self) -> bool:
        """Whether there is enough of it to judge by."""
        return self.seeds >= FEWEST_SEEDS and math.isfinite(self.example_variance)

    def error(self, level: float, seeds: int | None = None) -> float:
        """How far the gain may be off at one side; with another number of seeds, probably."""
        count = seeds or self.seeds
        share = self.seeds / count
        by_examples = t_quantile(level, self.blocks - 1) ** 2
        own = max(0.0, self.fixed_variance - self.example_variance)
        fixed = by_examples * (self.example_variance + own * share)
        if count < FEWEST_SEEDS:
            return math.sqrt(fixed)
        by_seeds = t_quantile(level, count - 1) ** 2 * self.seed_variance * share
        return math.sqrt(max(by_seeds + by_examples * self.example_variance, fixed))


def decide(found: Sequence[Evidence], margin: float) -> tuple[list[str], list[float]]:
    """The word for each row, and the level that the row was, or would be, decided at."""
    can = [evidence.suffices for evidence in found]
    against = _step_down(found, can, lambda e, error: abs(e.gain + margin) > error)
    above = _step_down(found, can, lambda e, error: e.gain > error)
    words = []
    for evidence, judged, level, superior in zip(found, can, against, above, strict=True):
        if not judged:
            words.append(NOT_JUDGED)
        elif superior.passed:
            words.append(BETTER)
        elif not level.passed:
            words.append(UNDECIDED)
        else:
            words.append(NO_WORSE if evidence.gain > -margin else WORSE)
    return words, [step.level for step in against]


@dataclass(frozen=True)
class _Step:
    level: float
    passed: bool


def _step_down(
    found: Sequence[Evidence],
    can: Sequence[bool],
    passes: Callable[[Evidence, float], bool],
) -> list[_Step]:
    """Holm: test at LEVEL over the rows left; those that pass leave; again until none does."""
    levels: dict[int, float] = {}
    left = [place for place, judged in enumerate(can) if judged]
    while left:
        level = LEVEL / len(left)
        passed = [place for place in left if passes(found[place], found[place].error(level))]
        levels |= dict.fromkeys(passed, level)
        left = [place for place in left if place not in passed]
        if not passed:
            break
    last = LEVEL / max(1, len(left))
    return [_Step(levels.get(place, last), place in levels) for place in range(len(found))]


def _comparison(
    label: str, evidence: Evidence, word: str, level: float, margin: float, sign: float
) -> Comparison:
    error = evidence.error(LEVEL)
    low, high = sorted(sign * (evidence.gain + side * error) for side in (-1, 1))
    settled_by = seeds_needed(evidence, level, margin) if word == UNDECIDED else None
    difference = sign * evidence.gain
    return Comparison(label, difference, low, high, evidence.seeds, margin, word, settled_by)


def seeds_needed(evidence: Evidence, level: float, margin: float) -> int | None:
    """How many seeds decide a row if more of them look like those at hand."""
    gap = abs(evidence.gain + margin)
    counts = range(evidence.seeds + 1, MOST_SEEDS + 1)
    return next((count for count in counts if evidence.error(level, count) < gap), None)


def _evidence(
    dot: Measured,
    row: Measured,
    seeds: Sequence[int],
    score: Callable[[Total], float],
    sign: float,
) -> Evidence:
    gains = sign * np.array([row.scores[seed] - dot.scores[seed] for seed in seeds])
    pairs = [(row.statistics.get(seed), dot.statistics.get(seed)) for seed in seeds]
    with np.errstate(invalid="ignore"):  # a perplexity may be infinite; weigh() sees to it
        influences = [
            sign * (jackknife(score, mine) - jackknife(score, other))
            for mine, other in pairs
            if mine is not None and other is not None and len(mine) == len(other) > 1
        ]
    complete = len(influences) == len(seeds)
    table = np.array(influences) if complete else np.full((len(seeds), 2), np.inf)
    return weigh(gains, table)


def weigh(gains: Array, influences: Array) -> Evidence:
    """Gains (seeds,) and what each block of examples does to them (seeds, blocks), as evidence."""
    seeds, blocks = influences.shape
    gain = float(gains.mean())
    if not (np.isfinite(influences).all() and np.isfinite(gains).all()):
        return Evidence(gain, seeds, math.inf, 2, math.inf, math.inf)
    fixed = float(influences.mean(0).var(ddof=1)) / blocks
    if seeds < FEWEST_SEEDS:
        return Evidence(gain, seeds, math.inf, blocks, fixed, fixed)
    alone = float(influences.var(1, ddof=1).mean()) / blocks
    seen_by_seeds = (alone - fixed) / (seeds - 1)
    spread = float(gains.var(ddof=1)) / seeds
    return Evidence(gain, seeds, spread, blocks, max(0.0, fixed - seen_by_seeds), fixed)


def jackknife(score: Callable[[Total], float], statistics: Statistics) -> Array:
    """What each block of neighbouring examples does to the score; the mean is about zero."""
    count = min(len(statistics), MAX_BLOCKS)
    starts = np.arange(count) * len(statistics) // count
    sums = np.add.reduceat(np.asarray(statistics, dtype=np.float64), starts, axis=0)
    total = sums.sum(0)
    whole = score(total)
    without = np.array([score(total - block) for block in sums])
    return np.asarray((count - 1) * (whole - without))


@cache
def t_quantile(level: float, freedom: int) -> float:
    """The value that Student's t with whole degrees of freedom exceeds with probability level."""
    low, high = 0.0, math.pi / 2
    for _ in range(80):
        angle = (low + high) / 2
        low, high = (angle, high) if (1 - _between(angle, freedom)) / 2 > level else (low, angle)
    return math.tan(low) * math.sqrt(freedom)


def _between(angle: float, freedom: int) -> float:
    """P(|t| < tan(angle) sqrt(freedom)), the finite sum for whole degrees of freedom."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
