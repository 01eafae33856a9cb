"""Is a row no worse than dot? Non-inferiority with a margin, over seeds and examples (no torch).

Evidence. All rows meet the same test examples, so examples are paired; seeds of two rows have
nothing in common that shows in their scores, so seeds are not. The mean gain over n seeds has these
errors:

    what other seeds would do      v = S_row^2/n + S_dot^2/n, S the spread of a row's scores
    what other examples would do   V, by a jackknife over independent units of the test set,
                                   less the part that S has already seen

and its one-sided bound at a level is

    gain -+ sqrt(t[f]^2 v + t[U-1]^2 V + r^2),

t Student's quantiles. f lies (n-2)/(n+1) of the way from the n - 1 degrees of freedom of one row to
what Welch and Satterthwaite give to two: where one row's spread is a tenth of the other's, theirs
make a bound at 0.2 % from three seeds err 2.4 times as often as it says, these 1.1 times. U is the
effective number of units, (sum w)^2 / sum w^2 with w their sizes. r is the rule of three: a kind of
example that never turned up among U units may be as common as -log(level)/U, which is as much as a
score in percent can lose by it. Where luck makes seeds agree, the bound is still no nearer than
other examples would move it with the models as they are.

Words. A word is read off an interval: better where its lower end is above zero, no worse where that
end is above minus the margin, worse where its upper end is below minus the margin. Each side has
half of LEVEL for the whole table, so that the chance of any wrong word is at most LEVEL, however
rows depend on each other:

- lower ends: every row begins with an equal share. A row is tested for no worse, then for better,
  with the same share; only when both pass does the share go to the other rows (a graphical
  procedure: within a row a fixed sequence, over the rows Holm's).
- upper ends: Holm over the rows for worse.

With planned looks, each look has the part of the level that its seeds have of all planned seeds
(Bonferroni over looks: right whatever the looks have in common). A row that is decided at a look
keeps its word and is trained no further. A look that was not planned has no level left.

The steps, each a function: Measured.read takes scores and statistics from runs, allowed sets the
margin, gather weighs one row against dot, decide gives words, judge does all of it. The numbers of
a rule are a Rule; study.json names the rule that its seeds were planned by.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.labels import DOCUMENTS, Statistics, Total
from synthesizer_attention.metrics.scores import METRICS

Array = NDArray[np.float64]
Units = NDArray[Any]  # (examples,), the document of each example


@dataclass(frozen=True)
class Rule:
    """The numbers that verdicts are reached by."""

    name: str  # as study.json has it
    level: float  # the chance of any wrong word in a table
    fewest_seeds: int  # below that a row is not judged
    planned: tuple[int, ...]  # seeds at which --until-decided looks
    share: float  # of dot's value, which a margin never exceeds
    bits: float  # per byte: what a language model may lose and be no worse


RULE = Rule("holm", level=0.05, fewest_seeds=3, planned=(3, 5, 8, 12), share=0.02, bits=0.02)
RULES = {RULE.name: RULE}
"""By name; a study without one was planned by the first."""
LEVEL, FEWEST_SEEDS, PLANNED, BITS = RULE.level, RULE.fewest_seeds, RULE.planned, RULE.bits

FEWEST_UNITS = 30  # below that a report warns
MAX_BLOCKS = 500
DRAWS = 4000  # simulated studies behind a power
BETTER, NO_WORSE, WORSE, UNDECIDED = "better", "no worse", "worse", "undecided"
NOT_JUDGED = "not judged"
VOID = "void"


def rule_of(study: Mapping[str, Any]) -> Rule:
    """The rule that a study.json names."""
    name = study.get("rule") or RULE.name
    if name not in RULES:
        raise UserError(
            f"rule is {name!r}, by which this version cannot judge; it knows {', '.join(RULES)}: "
            "install the version that wrote the record"
        )
    return RULES[name]


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
    range: float = 0.0  # what a score can lose: 100 where it is in percent; 0: no such bound

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


@dataclass(frozen=True)
class Influences:
    """What each block of examples does to a row's score, seed by seed."""

    values: Array  # (seeds, blocks); the mean over blocks is about zero
    units: float  # effective number of independent units behind the blocks


def weigh(
    row_scores: Array, dot_scores: Array, row: Influences, dot: Influences, *, limit: float = 0.0
) -> Evidence:
    """Scores (seeds,), higher is better, and influences of a row and of dot, as evidence."""
    seeds, blocks = row.values.shape
    gain = float(row_scores.mean() - dot_scores.mean())
    pieces = (row.values, dot.values, row_scores, dot_scores)
    if not all(np.isfinite(piece).all() for piece in pieces):
        return Evidence(gain, seeds, math.inf, 1.0, 2.0, math.inf, math.inf)
    together = row.values.mean(0) - dot.values.mean(0)
    fixed = float(together.var(ddof=1)) / blocks
    if seeds < FEWEST_SEEDS:
        return Evidence(gain, seeds, math.inf, 1.0, row.units, fixed, fixed, limit)
    own = [float(scores.var(ddof=1)) / seeds for scores in (row_scores, dot_scores)]
    # An example that one seed gets right and another wrong is in the seeds' spread already.
    seen = sum(float(v.values.var(0, ddof=1).mean()) / (seeds * blocks) for v in (row, dot))
    beside = max(0.0, fixed - seen)
    freedom = seed_freedom(own[0], own[1], seeds)
    return Evidence(gain, seeds, sum(own), freedom, row.units, beside, fixed, limit)


def seed_freedom(row_variance: float, dot_variance: float, seeds: int) -> float:
    """Degrees of freedom of the sum: from one row's part of the way to Satterthwaite's."""
    squares = row_variance**2 + dot_variance**2
    added = (row_variance + dot_variance) ** 2 / squares - 1 if squares else 1.0
    return (seeds - 1) * (1 + added * (seeds - 2) / (seeds + 1))


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


@dataclass(frozen=True)
class Looks:
    """At how many seeds a study was, or is to be, judged.

    study.json: "looks": {"planned": [3, 5, 8, 12], "taken": [3, 5]}. An old record may add
    "unplanned": [3], where its table had been judged before looks were planned.
    """

    planned: tuple[int, ...]
    taken: tuple[int, ...]
    unplanned: tuple[int, ...] = ()

    @classmethod
    def once(cls, seeds: int) -> "Looks":
        """A number of seeds that was fixed before."""
        return cls((seeds,), (seeds,))

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> "Looks":
        """From study.json."""
        planned, taken = (tuple(map(int, record[key])) for key in ("planned", "taken"))
        unplanned = tuple(map(int, record.get("unplanned", ())))
        rising = all(a < b for a, b in pairwise(planned))
        if not planned or planned[0] < FEWEST_SEEDS or not rising:
            raise UserError(
                f"looks are planned at {list(planned)} seeds; expected rising numbers from "
                f"{FEWEST_SEEDS} on, as in {list(PLANNED)}"
            )
        if not taken or taken != planned[: len(taken)]:
            raise UserError(
                f"looks were taken at {list(taken)} seeds where {list(planned)} were planned; "
                "the level was spent on the plan: take the looks in order and no others"
            )
        return cls(planned, taken, unplanned)

    def record(self) -> dict[str, list[int]]:
        """As study.json keeps it."""
        told = {"planned": list(self.planned), "taken": list(self.taken)}
        return told | ({"unplanned": list(self.unplanned)} if self.unplanned else {})

    def share(self, look: int) -> float:
        """The part of the level that a look has: that of its new seeds among all planned."""
        before = self.planned[look - 1] if look else 0
        return (self.planned[look] - before) / self.planned[-1]

    def within(self, seeds: int) -> "Looks":
        """Without looks that are begun and want more seeds than are there."""
        there = tuple(count for count in self.taken if count <= seeds)
        return replace(self, taken=there or self.taken[:1])

    def after(self, words: Iterable[str]) -> "Looks | None":
        """The looks with the next one taken; None where nothing is open or none is left."""
        left = self.planned[len(self.taken) :]
        settled = bool(self.taken) and not any(is_open(word) for word in words)
        return None if settled or not left else replace(self, taken=(*self.taken, left[0]))


def is_open(word: str) -> bool:
    """Whether more seeds may still change a row's word."""
    return word in (UNDECIDED, NOT_JUDGED)


@dataclass(frozen=True)
class Decision:
    """A row's word, and the levels of the two ends of the interval that it was read off."""

    word: str
    lower: float
    upper: float
    look: int = 0  # place of the look that decided it, or of the last one

    def interval(self, evidence: Evidence) -> tuple[float, float]:
        """The interval of the gain."""
        low, high = evidence.error(self.lower), evidence.error(self.upper)
        return evidence.gain - low, evidence.gain + high


def decide(
    found: Sequence[Sequence[Evidence | None]],
    margin: float,
    looks: Looks | None = None,
    rule: Rule = RULE,
) -> list[Decision]:
    """The decision for each row; found[look][row], None where a row was not trained so far.

    Rows whose evidence does not suffice at the first look are not judged, and cost nothing.
    """
    looks, side = looks or Looks.once(rule.fewest_seeds), rule.level / 2
    judged = [place for place, one in enumerate(found[0]) if one is not None and one.suffices]
    words = dict.fromkeys(judged, UNDECIDED)
    lower = dict.fromkeys(judged, 1 / max(1, len(judged)))  # shares of a look's level
    upper = dict(lower)
    made: dict[int, Decision] = {}
    for look, rows in enumerate(found):
        level = side * looks.share(look)
        tested = {
            place: one
            for place in judged
            if words[place] == UNDECIDED
            and (one := rows[place]) is not None
            and math.isfinite(one.example_variance)
        }
        _test(tested, words, lower, upper, level, margin)
        for place in tested:
            ends = level * lower[place], level * upper[place]
            made[place] = Decision(words[place], *ends, look)
    plain = Decision(NOT_JUDGED, side, side)
    return [made.get(place, plain) for place in range(len(found[0]))]


def _test(
    tested: Mapping[int, Evidence],
    words: dict[int, str],
    lower: dict[int, float],
    upper: dict[int, float],
    level: float,
    margin: float,
) -> None:
    """Test until nothing more passes, handing the shares of finished rows on."""
    above = {place for place, word in words.items() if word == BETTER}
    below = {place for place, word in words.items() if word == WORSE}
    moved = True
    while moved:
        moved = False
        for place, one in tested.items():
            if place not in above:
                low = one.gain - one.error(level * lower[place])
                if low > -margin and words[place] == UNDECIDED:
                    words[place] = NO_WORSE
                if low > 0:
                    words[place] = BETTER
                    moved |= _hand_on(place, lower, above)
            if place not in below and one.gain + one.error(level * upper[place]) < -margin:
                words[place] = WORSE
                moved |= _hand_on(place, upper, below)


def _hand_on(place: int, shares: dict[int, float], done: set[int]) -> bool:
    """Share out what a finished row held among the rest; it keeps the level it passed at."""
    done.add(place)
    rest = [other for other in shares if other not in done]
    for other in rest:
        shares[other] += shares[place] / len(rest)
    return bool(rest)


LANGUAGE_MODEL = {"bits_per_byte": 3, "perplexity": 1, "word_perplexity": 2}
"""Metrics whose margin is BITS per byte, and the column of their statistics that they divide by."""


def in_percent(metric: str) -> bool:
    """Whether a metric is a share of 100."""
    return metric in METRICS and metric not in LANGUAGE_MODEL


def allowed(metric: str, dot: "Measured", rule: Rule = RULE) -> float:
    """The default margin in the metric's own unit: its points, but at most a share of dot's value.

    A perplexity is 2^(bits per unit), so that bits per byte are a factor of it: two language models
    are judged alike whether their metric counts bytes, tokens or words. Where the statistics have
    no bytes (spans that were cut out), the bits are per token.
    """
    reference = float(np.mean(list(dot.scores.values())))
    if metric not in LANGUAGE_MODEL:
        points = METRICS[metric].margin if metric in METRICS else 1.0
        return min(points, rule.share * abs(reference))
    if metric == "bits_per_byte":
        return rule.bits
    totals = sum((rows.sum(0, np.float64) for rows in dot.statistics.values()), np.zeros(4))
    per_unit = totals[3] / totals[LANGUAGE_MODEL[metric]] if totals[3] else 1.0
    return float(reference * (2 ** (rule.bits * per_unit) - 1))


def check_margin(margin: float, metric: str, dot: "Measured") -> None:
    """Refuse a margin that lets anything be no worse.

    Shares and similarities end at 100; a language model's metric has no end, and as much again as
    dot's own is further than a margin goes.
    """
    score = float(np.mean(list(dot.scores.values())))
    most, why = (100.0, "its scale") if in_percent(metric) else (score, "dot's own")
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
    _known: dict[tuple[str, int], Array] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )

    def influence(self, metric: str, seed: int) -> Array:
        """The jackknife of a seed's statistics, made once for all rows it is compared with."""
        if (metric, seed) not in self._known:
            found = jackknife(METRICS[metric].score, self.statistics[seed], self.units)
            self._known[metric, seed] = found
        return self._known[metric, seed]

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
    rule: Rule = RULE,
) -> list[Comparison]:
    """Compare each row with dot at every look taken; rows without a shared seed are left out."""
    sign = 1.0 if higher_is_better else -1.0
    size = allowed(metric, dot, rule) if margin is None else margin
    kept = [row for row in rows if row.scores.keys() & dot.scores.keys()]
    every = sorted({seed for row in (dot, *kept) for seed in row.scores})
    looks = (looks or Looks.once(max(len(every), rule.fewest_seeds))).within(len(every))
    found = [[gather(dot, row, metric, sign, every[:n]) for row in kept] for n in looks.taken]
    made = []
    for place, decision in enumerate(decide(found, size, looks, rule) if kept else ()):
        seen = [at_look[place] for at_look in found[: decision.look + 1]]
        evidence = next(one for one in reversed(seen) if one is not None)
        low, high = sorted(sign * end for end in decision.interval(evidence))
        levels = (decision.lower, decision.upper)
        made.append(
            Comparison(
                kept[place].label,
                sign * evidence.gain,
                low,
                high,
                evidence.seeds,
                size,
                decision.word,
                levels if sign > 0 else levels[::-1],
                evidence.units,
                evidence.unseen(decision.lower),
            )
        )
    return made


def judge_again(
    dot: Measured, again: Measured, *, metric: str, higher_is_better: bool, margin: float | None
) -> Comparison | None:
    """The A/A row, dot under other seeds, by itself: a word but no worse voids its table.

    Its seeds are others, so they are matched by their order. It has a level of its own: a sound
    table is voided in at most 5 of 100 cases.
    """
    count = min(len(dot.scores), len(again.scores))
    if count < FEWEST_SEEDS:
        return None
    pair = []
    for row in (dot, again):
        seeds = dict(enumerate(sorted(row.scores)[:count]))
        scores = {new: row.scores[old] for new, old in seeds.items()}
        known = {new: row.statistics[old] for new, old in seeds.items() if old in row.statistics}
        pair.append(replace(row, scores=scores, statistics=known))
    dot, again = pair
    return judge(dot, [again], metric=metric, higher_is_better=higher_is_better, margin=margin)[0]


def is_void(again: Comparison | None) -> bool:
    """Whether dot differs from itself, so that no word of the table means anything."""
    return again is not None and again.word in (BETTER, WORSE)


def voided(comparison: Comparison) -> Comparison:
    """The same numbers without a word."""
    return replace(comparison, word=VOID)


def gather(
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
    limit = 100.0 if in_percent(metric) else 0.0
    return weigh(scores[0], scores[1], sides[0], sides[1], limit=limit)


def _influences(side: Measured, metric: str, sign: float, seeds: Sequence[int]) -> Influences:
    """The jackknife of each seed's statistics; infinite where they are missing or do not fit."""
    tables = [side.statistics[seed] for seed in seeds if seed in side.statistics]
    sizes = {len(table) for table in tables}
    fits = side.units is None or sizes == {len(side.units)}
    if len(tables) < len(seeds) or len(sizes) != 1 or sizes == {1} or not fits:
        return Influences(np.full((len(seeds), 1), np.inf), 1.0)
    values: Array = sign * np.stack([side.influence(metric, seed) for seed in seeds])
    return Influences(values, effective_units(len(tables[0]), side.units))


def power(
    seeds: int,
    *,
    row_sd: float,
    dot_sd: float,
    margin: float,
    rows: int,
    example_error: float = 0.0,
    gain: float = 0.0,
    share: float = 1.0,
) -> float:
    """How often so many seeds decide one of so many rows whose true gain is this.

    row_sd and dot_sd are the spreads of single seeds, example_error the standard error that test
    examples add to the gain. Simulated with fixed draws, so that the same question has one answer.
    """
    rng = np.random.default_rng(0)
    level = LEVEL / 2 * share / rows
    draws = rng.normal(0.0, 1.0, (2, DRAWS, seeds)) * np.reshape([row_sd, dot_sd], (2, 1, 1))
    means = draws.mean(2)
    gains = gain + means[0] - means[1] + rng.normal(0.0, 1.0, DRAWS) * example_error
    own = draws.var(2, ddof=1) / seeds
    freedom = [round(seed_freedom(a, b, seeds), 1) for a, b in own.T.tolist()]
    by_seeds = np.array([t_quantile(level, max(seeds - 1, f)) for f in freedom]) ** 2
    by_examples = t_quantile(level, math.inf) ** 2 * example_error**2
    error = np.sqrt(by_seeds * own.sum(0) + by_examples)
    return float((np.abs(gains + margin) > error).mean())


def power_sentence(
    seeds: Sequence[int], *, sd: float | None, margin: float, rows: int, example_error: float = 0.0
) -> str:
    """What a study can be expected to decide, from its own spread or, None, before it is known."""
    if sd is None:
        spreads = (0.1, 0.25, 0.5)
        found = [
            power(seeds[0], row_sd=each, dot_sd=each, margin=1.0, rows=rows) for each in spreads
        ]
        shown = " / ".join(f"{100 * chance:.0f}" for chance in found)
        return (
            f"With {seeds[0]} seeds and {rows} row{'s' * (rows > 1)}, a row equal to dot is "
            f"decided in {shown} % of studies if the seed std is "
            f"{' / '.join(map(str, spreads))} of the margin."
        )
    known = {"row_sd": sd, "dot_sd": sd, "margin": margin, "example_error": example_error}
    listed = ", ".join(
        f"{n} seeds decide it in {power(n, rows=rows, **known):.0%} of cases" for n in seeds
    )
    return (
        f"A row equal to dot, one of {rows}, where seeds spread by {sd:.2g} and the margin is "
        f"{margin:.2g}: {listed}."
    )


def failing_rate(seeds: int) -> float:
    """How many of all seeds may fail although none of these did (95 % bound): 1 - 0.05^(1/n)."""
    return float(1 - LEVEL ** (1 / seeds))
