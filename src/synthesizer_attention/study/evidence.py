"""What runs show of a gain over dot, and how sure it is: seeds and examples (no torch).

All rows see the same test examples, so examples are paired. Seeds of two rows have nothing in
common that shows in their scores, so seeds are not. The mean gain has these errors:

    what other seeds would do      v = S_row^2/n + S_dot^2/m, S the spread of a row's scores
    what other examples would do   V, by a jackknife over independent units of the test set,
                                   less the part that S has already seen

and its one-sided bound at a level is gain -+ sqrt(t[f]^2 v + t[U-1]^2 V), t Student's quantiles.
f lies (n-2)/(n+1) of the way from n - 1 to Welch and Satterthwaite's degrees of freedom: if one
row's spread is a tenth of the other's, theirs make a bound at 0.2 % from three seeds err 2.4 times
as often as it says, these 1.1 times. U is the effective number of units, (sum w)^2 / sum w^2, w
their sizes. The bound is never nearer than other examples would move it with these very models. A
kind of example that never turned up among U units may be as common as -log(level)/U (the rule of
three); near its ceiling a score can lose as much by it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synthesizer_attention.metrics.labels import Statistics, Total

Array = NDArray[np.float64]
Units = NDArray[Any]  # (examples,), the document of each example

ALIKE = 0.01  # share of units below which hardly any tells a row from dot
MAX_BLOCKS = 500


@dataclass(frozen=True)
class Rule:
    """The numbers that verdicts are reached by."""

    name: str  # as study.json has it
    level: float = 0.05  # the chance of any wrong word in a table
    fewest_seeds: int = 3  # below that a row is not judged
    planned: tuple[int, ...] = (3, 5, 8, 12)  # seeds at which --until-decided looks
    share: float = 0.02  # of dot's value, which a margin never exceeds
    bits: float = 0.02  # per byte: what a language model may lose and be no worse
    primary: float = 0.0  # share of the level with which the primary row begins
    passed_on: float = 0.0  # share that a row hands on once it is no worse
    spending: tuple[float, ...] = ()  # of four planned looks; of others, and without it, by seeds
    prior: tuple[tuple[int, int], ...] = ()  # (near rows, degrees of freedom) of moderation
    adds_unseen: bool = True  # always, or only if hardly any example tells the row from dot
    says_behind: bool = False
    most_dot_seeds: float = 1.0  # of a row's: dot has sqrt(rows) times as many, at most

    def dot_seeds(self, seeds: int, rows: int) -> int:
        """How many seeds dot has beside so many rows of so many seeds."""
        return round(seeds * max(1.0, min(rows**0.5, self.most_dot_seeds)))

    def look_share(self, planned: Sequence[int], look: int) -> float:
        """The part of the level that a look has."""
        if self.spending and len(planned) == len(self.spending):
            return self.spending[look]
        before = planned[look - 1] if look else 0
        return (planned[look] - before) / planned[-1]

    def prior_freedom(self, near: int) -> int:
        """How many degrees of freedom the spread of so many near rows adds to each."""
        return max((freedom for rows, freedom in self.prior if near >= rows), default=0)


HOLM = Rule("holm")
RULE = Rule(
    "graph",
    primary=0.7,
    passed_on=0.8,
    spending=(0.05, 0.15, 0.3, 0.5),
    prior=((4, 2), (8, 3)),
    adds_unseen=False,
    says_behind=True,
    most_dot_seeds=3.0,
)

FEWEST_SEEDS = RULE.fewest_seeds


@dataclass(frozen=True)
class Evidence:
    """A gain over dot (positive is better) and the variances of its mean."""

    gain: float
    seeds: int
    seed_variance: float  # what other seeds would do, on the test set at hand
    freedom: float  # degrees of, of seed_variance
    units: float  # effective number of independent ones in the test set
    example_variance: float  # what other test examples would do beside that
    fixed_variance: float = 0.0  # what other test examples would do to these very models
    range: float = 0.0  # what a score can lose by unseen kinds of examples; 0: no such bound

    @property
    def suffices(self) -> bool:
        """Whether there is enough of it to judge by."""
        return self.seeds >= FEWEST_SEEDS and math.isfinite(self.example_variance)

    def unseen(self, level: float) -> float:
        """A bound on the effect of kinds of examples that never occurred."""
        return self.range * -math.log(level) / self.units if self.range else 0.0

    def error(self, level: float) -> float:
        """How far the gain may be off at one side."""
        by_units = t_quantile(level, max(1.0, self.units - 1)) ** 2
        known = by_units * self.fixed_variance
        if self.seeds >= FEWEST_SEEDS:
            by_seeds = t_quantile(level, self.freedom) ** 2 * self.seed_variance
            known = max(known, by_seeds + by_units * self.example_variance)
        return math.sqrt(known + self.unseen(level) ** 2)

    def chance(self, margin: float) -> float:
        """P(gain > -margin) given these runs, under a flat prior."""
        spread = math.sqrt(max(self.seed_variance + self.example_variance, self.fixed_variance))
        if not 0 < spread < math.inf:
            return math.nan
        value, freedom = (self.gain + margin) / spread, max(1, int(self.freedom))
        inside = _between(math.atan(abs(value) / math.sqrt(freedom)), freedom)
        return 0.5 + math.copysign(inside / 2, value)


@dataclass(frozen=True)
class Influences:
    """What each block of examples does to a row's score, seed by seed."""

    values: Array  # (seeds, blocks); the mean over blocks is about zero
    units: float  # effective number of independent units behind the blocks


def weigh(
    row_scores: Array,
    dot_scores: Array,
    row: Influences,
    dot: Influences,
    *,
    limit: float = 0.0,
    rule: Rule = HOLM,
    prior: tuple[float, int, int] = (0.0, 0, 0),
) -> Evidence:
    """Scores (seeds,), higher is better, and influences of a row and of dot, as evidence.

    The prior of a moderated spread: a variance, and its degrees of freedom for row and for dot.
    """
    seeds, blocks = row.values.shape
    gain = float(row_scores.mean() - dot_scores.mean())
    pieces = (row.values, dot.values, row_scores, dot_scores)
    if not all(np.isfinite(piece).all() for piece in pieces):
        return Evidence(gain, seeds, math.inf, 1.0, 2.0, math.inf, math.inf)
    together = row.values.mean(0) - dot.values.mean(0)
    fixed = float(together.var(ddof=1)) / blocks
    if not rule.adds_unseen and np.sum(abs(together + gain) > 1e-9) >= ALIKE * row.units:
        limit = 0.0
    if seeds < FEWEST_SEEDS:
        return Evidence(gain, seeds, math.inf, 1.0, row.units, fixed, fixed, limit)
    variance, *extra = prior
    own, freedom = [], []
    for scores, more in zip((row_scores, dot_scores), extra, strict=True):
        degrees = len(scores) - 1
        spread = (more * variance + degrees * float(scores.var(ddof=1))) / (more + degrees)
        own.append(spread / len(scores))
        freedom.append(more + degrees)
    # An example that one seed gets right and another wrong is in the seeds' spread already.
    seen = sum(float(v.values.var(0, ddof=1).mean()) / v.values.size for v in (row, dot))
    beside = max(0.0, fixed - seen)
    degrees_of_sum = seed_freedom(own[0], own[1], seeds, freedom[0], min(freedom))
    return Evidence(gain, seeds, sum(own), degrees_of_sum, row.units, beside, fixed, limit)


def seed_freedom(
    row_variance: float, dot_variance: float, seeds: int, row_freedom: float, dot_freedom: float
) -> float:
    """Degrees of freedom of the sum: from one row's part of the way to Satterthwaite's."""
    least = min(row_freedom, dot_freedom)
    squares = row_variance**2 / row_freedom + dot_variance**2 / dot_freedom
    sum_of_both = (row_variance + dot_variance) ** 2 / squares if squares else 2 * least
    return least + max(0.0, sum_of_both - least) * (seeds - 2) / (seeds + 1)


def effective_units(examples: int, units: Units | None) -> float:
    """How many units of one size would tell as much; each example is one where none are given."""
    if units is None:
        return float(examples)
    sizes = np.unique(units, return_counts=True)[1].astype(np.float64)
    return float(sizes.sum() ** 2 / (sizes**2).sum())


def jackknife(
    score: Callable[[Total], float], statistics: Statistics, units: Units | None = None
) -> Array:
    """What each block of whole neighbouring units does to the score; the mean is about zero.

    A unit is a block of its own up to MAX_BLOCKS; beyond that, neighbours join.
    """
    rows = np.asarray(statistics, dtype=np.float64)
    if units is not None:
        numbers = np.unique(units, return_inverse=True)[1]
        rows = np.stack([np.bincount(numbers, column) for column in rows.T], axis=1)
    count = min(len(rows), MAX_BLOCKS)
    sums = np.add.reduceat(rows, np.arange(count) * len(rows) // count, axis=0)
    total = sums.sum(0)
    whole = score(total)
    without = np.array([score(total - block) for block in sums])
    return np.asarray((count - 1) * (whole - without))


def t_quantile(level: float, freedom: float) -> float:
    """The value that Student's t exceeds with probability level.

    Between whole degrees of freedom its logarithm is taken as linear in 1 / freedom, which is up to
    4 % too wide between one and two, 1 % between two and three, and never too narrow.
    """
    freedom = min(freedom, MAX_BLOCKS)
    whole = math.floor(freedom)
    if whole == freedom:
        return _whole_quantile(level, whole)
    share = (1 / whole - 1 / freedom) * whole * (whole + 1)
    low, high = _whole_quantile(level, whole), _whole_quantile(level, whole + 1)
    return low ** (1 - share) * high**share


@cache
def _whole_quantile(level: float, freedom: int) -> float:
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
