"""The ladder: every row at several sizes and budgets, and what that says of larger ones (no torch).

The recipe is the top rung, on all of its data. Each rung below has

    half the training examples      train.data_share; smaller parts lie within larger ones
    half the steps                  and all that is counted in steps: every rung passes over its
                                    data equally often, with the same schedule but for its length
    1/sqrt(2) of the width          fewer heads of the same size, d_ff in proportion: half the
                                    parameters of a layer

and costs about a quarter: parameters and tokens shrink alike, as they grow alike where compute is
well spent (Hoffmann et al. 2022). Depth, length, tokenizer (learned from all of train), batch,
dropout and learning rates stay, so that losses are per the same tokens. Small rungs get more seeds,
because they are cheap.

A law per row, and one floor for all of them (what no model can know), are fitted to mean losses:

    loss = floor + exp(a - b log C)      C = 3 x forward FLOPs per token x tokens of its batches

For a given floor that is a weighted line through log(loss - floor); the floor is searched. The
intervals are percentiles of a parametric bootstrap over seeds: every mean is moved by Student's t
times its standard error and all is fitted again. A row's spread is taken to be the same share of
its loss at every rung, which gives it the degrees of freedom of all rungs; where laws miss the
means by more than seeds explain, errors grow by that factor. A row that misses far more than the
others do follows no such law and is left out of the fit.

The lead of a row is log((loss_row - floor) / (loss_dot - floor)) at equal compute: a line in log C,
below zero where the row leads. A lead in nats always shrinks as losses near the floor; this one
keeps its size where the row saves the same share of compute at every scale.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FEWEST_RUNGS = 3  # two parameters a row and a floor: fewer rungs fit any
BACKWARD = 3.0  # a training token costs this many forward ones
LEVEL = 0.05  # of any wrong interval among the rows
DRAWS = 2000  # of the bootstrap
FLOORS = 24  # tried at once, twice
LAWLESS = 0.01  # of ladders in which a row is left out by chance
HOLDS = 0.5  # a lead that changes by less than this share of itself over the ladder holds
GROWS, SHRINKS, STAYS, UNKNOWN = "grows", "shrinks", "holds", "unknown"


def training_flops(result: dict[str, Any], recipe: dict[str, Any]) -> float:
    """What a run's training computed."""
    train = recipe["train"]
    tokens = result["steps"] * train["batch_tokens"] * train.get("accumulate", 1)
    return float(BACKWARD * result["flops_per_token"] * tokens)


@dataclass(frozen=True)
class Measured:
    """Losses of one row: a list over rungs, smallest first, of its seeds; and what a run computed.

    A rung without runs is empty, and its compute is not read.
    """

    compute: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Interval:
    """An estimate and its bounds."""

    value: float
    low: float
    high: float

    @property
    def is_signed(self) -> bool:
        """Whether all of it is on one side of zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Trend:
    """What the laws say of one row beside the opponent."""

    word: str
    bottom: Interval  # difference of losses at the smallest rung's compute, row - opponent
    top: Interval  # at the largest rung's
    slope: Interval  # of the lead by log compute: above zero the row falls behind
    crossing: Interval | None  # FLOPs where the lines cross, where they do
    grid: Array  # FLOPs
    gap: Array  # (3, grid): difference of losses, its lower and its upper bound


@dataclass(frozen=True)
class Laws:
    """A fitted ladder: laws per row, in order."""

    floor: Interval
    scale: tuple[float, ...]  # a
    power: tuple[Interval, ...]  # b
    misfit: float  # how much more the laws miss than seeds explain, at least one
    trends: tuple[Trend | None, ...]  # None for the opponent

    def loss(self, row: int, compute: Array) -> Array:
        """The law of a row."""
        curve: Array = self.floor.value + np.exp(
            self.scale[row] - self.power[row].value * np.log(compute)
        )
        return curve


@dataclass(frozen=True)
class _Points:
    """What is fitted: means over seeds and their errors, (rows, rungs)."""

    x: Array  # log compute
    means: Array
    errors: Array
    trained: NDArray[np.bool_]  # where there are runs
    freedom: NDArray[Any]  # (rows,), of a row's spread

    @property
    def weights(self) -> Array:
        return np.where(self.trained, 1 / self.errors**2, 0.0)

    @property
    def spare(self) -> int:
        """Means beyond the numbers that are fitted to them."""
        return int(self.trained.sum()) - 2 * len(self.means) - 1

    def without(self, row: int) -> "_Points":
        fields = (self.x, self.means, self.errors, self.trained, self.freedom)
        return _Points(*(np.delete(each, row, axis=0) for each in fields))


def _points(rows: Sequence[Measured]) -> _Points | None:
    """None where a row has too few rungs, or no rung has a second seed."""
    counts = np.array([[len(seeds) for seeds in row.losses] for row in rows])
    if (counts > 0).sum(1).min(initial=FEWEST_RUNGS) < FEWEST_RUNGS or len(rows) < 2:
        return None
    freedom = np.maximum(counts - 1, 0).sum(1)
    means = np.array([[np.mean(s) if s else 1.0 for s in row.losses] for row in rows])
    if freedom.min() < 1 or not np.isfinite(means).all():
        return None
    trained = counts > 0
    x = np.log(np.where(trained, [row.compute for row in rows], 1.0))
    # The standard deviation over seeds of each row, as a share of its loss.
    squares = [
        sum(
            len(seeds) * float(np.var(seeds)) / mean**2
            for seeds, mean in zip(row.losses, own, strict=True)
            if seeds
        )
        for row, own in zip(rows, means, strict=True)
    ]
    spread = np.maximum(np.sqrt(np.array(squares) / freedom), 1e-6)
    errors = spread[:, None] * means / np.sqrt(np.maximum(counts, 1))
    return _Points(x, means, errors, trained, freedom)


def find_lawless(rows: Sequence[Measured], opponent: int) -> list[int]:
    """The rows that follow no law beside the others, the worst first; never the opponent.

    One such row would move the floor of all and widen all intervals. A row is one if without it the
    others miss their means by so much less that chance (an F test, Bonferroni over the rows) would
    do it in LAWLESS of ladders; then the rest is looked at again.
    """
    points, kept, found = _points(rows), list(range(len(rows))), list[int]()
    while points is not None and len(kept) > 2:
        whole = _fit(points.x, points.means[None], points.weights)[3].item()
        tests = {row: _test(points, place, whole) for place, row in enumerate(kept)}
        del tests[opponent]
        worst = min(tests, key=lambda row: tests[row])
        if tests[worst] * len(tests) > LAWLESS:
            break
        points = points.without(kept.index(worst))
        kept.remove(worst)
        found.append(worst)
    return found


def _test(points: _Points, row: int, whole: float) -> float:
    """How often chance alone makes one row miss so much more than the rest."""
    rest = points.without(row)
    own = points.spare - rest.spare
    if rest.spare < 1 or own < 1:
        return 1.0
    miss = _fit(rest.x, rest.means[None], rest.weights)[3].item()
    # where the others miss less than their seeds explain, that is luck and no measure
    ratio = (whole - miss) / own / max(miss / rest.spare, 1.0)
    draws = np.random.default_rng(0).f(own, rest.spare, 100_000)
    return float((draws >= ratio).mean())


def fit_ladder(
    rows: Sequence[Measured], opponent: int, *, seed: int = 0, draws: int = DRAWS
) -> Laws | None:
    """Fit all rows; None where a row has too few rungs, or no rung has a second seed."""
    points = _points(rows)
    if points is None:
        return None
    x, means, weights, freedom = points.x, points.means, points.weights, points.freedom
    *fitted, miss = _fit(x, means[None], weights)
    misfit = max(1.0, math.sqrt(float(miss[0]) / points.spare)) if points.spare > 0 else 1.0
    rng = np.random.default_rng(seed)
    chance = rng.standard_normal((draws, *means.shape))
    chance /= np.sqrt(rng.chisquare(freedom, (draws, len(rows))) / freedom)[..., None]
    drawn = np.maximum(means + misfit * points.errors * chance, 0.01 * means)
    again = _fit(x, drawn, weights)[:3]
    # Of each, the fit to the means comes first, and the draws follow.
    floor, a, b = (np.concatenate(pair) for pair in zip(fitted, again, strict=True))
    own = x[opponent][points.trained[opponent]]
    ends, level = (float(own.min()), float(own.max())), LEVEL / (len(rows) - 1)
    lines = list(zip(a.T, b.T, strict=True))
    trends = [
        None if line is lines[opponent] else _trend(line, lines[opponent], ends, level)
        for line in lines
    ]
    powers = [_interval(power, LEVEL) for _, power in lines]
    return Laws(
        _interval(floor, LEVEL), tuple(map(float, a[0])), tuple(powers), misfit, tuple(trends)
    )


def _fit(x: Array, y: Array, weights: Array) -> tuple[Array, Array, Array, Array]:
    """Floor, a, b and the weighted sum of squares for losses y (draws, rows, rungs)."""
    least = np.where(weights > 0, y, np.inf).min((1, 2))
    low, high = np.zeros(len(y)), np.full(len(y), 0.99)
    for _ in range(2):  # the second time between the neighbours of the best
        shares = low + (high - low) * np.linspace(0, 1, FLOORS)[:, None]
        misses = np.stack([_lines(x, y, weights, share * least)[2] for share in shares])
        best, each = misses.argmin(0), np.arange(len(y))
        low, high = (shares[np.clip(best + side, 0, FLOORS - 1), each] for side in (-1, 1))
        share = shares[best, each]
    a, b, miss = _lines(x, y, weights, share * least)
    return share * least, a, b, miss


def _lines(x: Array, y: Array, weights: Array, floor: Array) -> tuple[Array, Array, Array]:
    """The weighted line of each row through log(y - floor), and how far the losses are off."""
    above = np.maximum(y - floor[:, None, None], 1e-9)
    w = weights * above**2  # the error of a logarithm is the error over the value
    z = np.log(above)
    total = w.sum(-1)
    middle = (w * x).sum(-1) / total
    apart = x - middle[..., None]
    slope = (w * apart * z).sum(-1) / (w * apart**2).sum(-1)
    height = (w * z).sum(-1) / total
    a, b = height - slope * middle, -slope
    found = floor[:, None, None] + np.exp(np.minimum(a[..., None] - b[..., None] * x, 50.0))
    return a, b, (weights * (y - found) ** 2).sum((1, 2))


def _trend(
    own: tuple[Array, Array], dot: tuple[Array, Array], ends: tuple[float, float], level: float
) -> Trend:
    """From the lines a, b of a row and of the opponent, over fits."""
    (a, b), (dot_a, dot_b), (bottom, top) = own, dot, ends
    x = np.linspace(bottom, top, 25)
    curves = (np.exp(np.minimum(p[:, None] - q[:, None] * x, 50.0)) for p, q in (own, dot))
    gaps = np.subtract(*curves)
    slopes, leads = dot_b - b, (a - b * top) - (dot_a - dot_b * top)  # below zero the row leads
    slope, lead = _interval(slopes, level), _interval(leads, level)
    crossing, word = None, UNKNOWN
    if slope.is_signed:
        word = GROWS if slope.value * lead.value > 0 else SHRINKS
        # A draw whose lines do not come nearer crosses nowhere ahead.
        at = _interval(top - leads / np.where(slopes == 0, 1e-12, slopes), level)
        limit = 600.0  # of exp
        crossing = Interval(
            *(math.exp(min(max(v, -limit), limit)) for v in (at.value, at.low, at.high))
        )
    elif lead.is_signed:
        change = max(abs(slope.low), abs(slope.high)) * (top - bottom)
        word = STAYS if change <= HOLDS * abs(lead.value) else UNKNOWN
    band = np.stack([gaps[0], *np.quantile(gaps[1:], [level / 2, 1 - level / 2], axis=0)])
    first, last = (Interval(*map(float, band[:, end])) for end in (0, -1))
    return Trend(word, first, last, slope, crossing, np.exp(x), band)


def _interval(fits: Array, level: float) -> Interval:
    """Of one number: the fit to the means, and percentiles of the draws."""
    low, high = np.quantile(fits[1:], [level / 2, 1 - level / 2])
    return Interval(float(fits[0]), float(low), float(high))
