"""Is a row no worse than dot? Words for rows, with one error rate for the table (no torch).

An interval (evidence.py) gives the word: better if its lower end is above zero, no worse if that
end is above minus the margin, worse if its upper end is below minus the margin, behind if its upper
end is below zero. Each side has half of the level for the whole table. A graphical procedure shares
it out (Bretz et al. 2009): the chance of any wrong word is at most the level, however rows depend
on each other. With planned looks every look has a part of the level (Bonferroni over looks). A row
that is decided at a look keeps its word and is trained no further.

Two rules. study.json names the one its seeds were planned by; a study without a name has the first.

    holm    equal shares; a row hands its share on once it is better, or worse; looks have the
            shares of their seeds; row and dot have the same seeds; the rule of three is added
    graph   the primary row begins with 0.7 of the level; a row that is no worse hands 0.8 of its
            share to the others; dot has more seeds, n sqrt(rows); spreads are moderated: the mean
            variance of dot and the rows near it counts as two or three further degrees of freedom
            of each row, but not of the primary; the rule of three is added only where almost no
            example tells the row from dot, and not to overlaps of text.

tools/simulation.py has the error rates of both. The steps, each a function: Measured.read takes
scores and statistics from runs, allowed sets the margin, gather weighs one row against dot, decide
gives words, judge does all of it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.labels import DOCUMENTS, Statistics
from synthesizer_attention.metrics.scores import METRICS
from synthesizer_attention.study.evidence import (
    FEWEST_SEEDS,
    HOLM,
    RULE,
    Array,
    Evidence,
    Influences,
    Rule,
    Units,
    effective_units,
    jackknife,
    seed_freedom,
    t_quantile,
    weigh,
)

RULES = {rule.name: rule for rule in (HOLM, RULE)}
LEVEL, PLANNED, BITS = RULE.level, RULE.planned, RULE.bits

FAR = ("none", "fixed_random")  # rows whose spread says nothing of the others'
OVERLAP = ("bleu", "chrf", "rouge", "meteor", "cider", "embedding")  # no share of right answers
FEWEST_UNITS = 30  # below that a report warns
DRAWS = 4000  # simulated studies behind a power
BETTER, NO_WORSE, WORSE, UNDECIDED = "better", "no worse", "worse", "undecided"
BEHIND = "behind"  # below dot, not known to be by more than the margin
NOT_JUDGED = "not judged"
VOID = "void"


def rule_of(study: Mapping[str, Any]) -> Rule:
    """The rule that a study.json names."""
    name = study.get("rule") or HOLM.name
    if name not in RULES:
        raise UserError(
            f"rule is {name!r}, by which this version cannot judge; it knows {', '.join(RULES)}: "
            "install the version that wrote the record"
        )
    return RULES[name]


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
    return word in (UNDECIDED, BEHIND, NOT_JUDGED)


@dataclass(frozen=True)
class Decision:
    """A row's word, and the levels of the two ends of the interval that it was read off."""

    word: str
    lower: float
    upper: float
    look: int = 0  # place of the look that decided it, or of the last one

    def interval(self, evidence: Evidence) -> tuple[float, float]:
        """The interval of the gain."""
        low = evidence.gain - evidence.error(self.lower)
        if self.word == NO_WORSE:  # a part of the share was handed on before better was tested
            low = min(low, 0.0)
        return low, evidence.gain + evidence.error(self.upper)


def decide(
    found: Sequence[Sequence[Evidence | None]],
    margin: float,
    looks: Looks | None = None,
    rule: Rule = HOLM,
    primary: int | None = None,
) -> list[Decision]:
    """The decision for each row; found[look][row], None where a row was not trained so far.

    Rows whose evidence does not suffice at the first look are not judged, and cost nothing.
    """
    looks, side = looks or Looks.once(rule.fewest_seeds), rule.level / 2
    judged = [place for place, one in enumerate(found[0]) if one is not None and one.suffices]
    words = dict.fromkeys(judged, UNDECIDED)
    first = np.full(len(judged), 1 / max(1, len(judged)))
    if rule.primary and primary in judged and len(judged) > 1:
        first[:] = (1 - rule.primary) / (len(judged) - 1)
        first[judged.index(primary)] = rule.primary
    lower, upper = _Graph(first, rule.passed_on), _Graph(first, None)
    made: dict[int, Decision] = {}
    for look, rows in enumerate(found):
        level = side * rule.look_share(looks.planned, look)
        tested = {
            node: one
            for node, place in enumerate(judged)
            if words[place] in (UNDECIDED, BEHIND)
            and (one := rows[place]) is not None
            and math.isfinite(one.example_variance)
        }
        moved = True
        while moved:  # until nothing more passes
            moved = False
            for node, one in tested.items():
                no_worse, better = node, node + len(judged)
                for test, bound, word in ((no_worse, -margin, NO_WORSE), (better, 0.0, BETTER)):
                    if (
                        lower.holds(test)
                        and one.gain - one.error(level * lower.share(test)) > bound
                    ):
                        words[judged[node]] = word
                        moved |= lower.reject(test)
                high = one.gain + one.error(level * upper.share(node))
                if upper.holds(node) and high < -margin:
                    words[judged[node]] = WORSE
                    moved |= upper.reject(node)
        for node, one in tested.items():
            place, ends = judged[node], (level * lower.end(node), level * upper.share(node))
            if rule.says_behind and words[place] == UNDECIDED and one.gain + one.error(ends[1]) < 0:
                words[place] = BEHIND
            made[place] = Decision(words[place], *ends, look)
    plain = Decision(NOT_JUDGED, side, side)
    return [made.get(place, plain) for place in range(len(found[0]))]


class _Graph:
    """Shares of a level that hypotheses hold, and where each goes once it is rejected.

    Bretz et al. 2009. Of k rows, node k + i waits behind node i: it is the next word of the row,
    which keeps all but `passed_on` of the row's share. Without it there is one word a row.
    """

    def __init__(self, shares: Array, passed_on: float | None) -> None:
        count = len(shares)
        among = (np.ones((count, count)) - np.eye(count)) / max(1, count - 1)
        self.shares, self.moves, self.count = shares.copy(), among, count
        if passed_on is not None:
            part = passed_on if count > 1 else 0.0
            self.shares = np.concatenate([shares, np.zeros(count)])
            self.moves = np.block(
                [[part * among, (1 - part) * np.eye(count)], [among, np.zeros((count, count))]]
            )
        self.left = np.ones(len(self.shares), dtype=bool)

    def holds(self, node: int) -> bool:
        """Whether a hypothesis is not rejected yet and has a share to be tested with."""
        return bool(self.left[node]) and self.share(node) > 0

    def share(self, node: int) -> float:
        """What it holds, or held when it was rejected."""
        return float(self.shares[node])

    def end(self, row: int) -> float:
        """The share at which a row's lower end is printed: the larger of its two words'."""
        return max(self.share(row), self.share(row + self.count))

    def reject(self, node: int) -> bool:
        """Hand its share on; return whether anybody got it."""
        self.left[node] = False
        out = np.where(self.left, self.moves[node], 0.0)
        self.shares = self.shares + self.share(node) * out
        back = self.moves[:, node] * self.moves[node]  # there and back again
        through = self.moves + np.outer(self.moves[:, node], self.moves[node])
        rest = (1 - back)[:, None]
        self.moves = np.divide(through, rest, out=np.zeros_like(through), where=rest > 1e-12)
        np.fill_diagonal(self.moves, 0.0)
        self.moves[:, ~self.left] = 0.0
        return bool(out.any())


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


OneRun = tuple[Measured, int]
"""A row's run under a seed."""


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
    chance: float = math.nan  # P(not worse by more than the margin), under a flat prior
    is_primary: bool = False

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
    rule: Rule = HOLM,
    primary: str | None = None,
    again: Measured | None = None,
) -> list[Comparison]:
    """Compare each row with dot at every look taken; rows without a seed to compare are left out.

    The seeds of the A/A row, if they are given, count as further seeds of dot.
    """
    sign = 1.0 if higher_is_better else -1.0
    size = allowed(metric, dot, rule) if margin is None else margin
    paired = rule.most_dot_seeds == 1
    kept = [row for row in rows if row.scores and (not paired or row.scores.keys() & dot.scores)]
    seen_in = (dot, *kept) if paired else kept
    every = sorted({seed for row in seen_in for seed in row.scores})
    looks = (looks or Looks.once(max(len(every), rule.fewest_seeds))).within(len(every))
    first = next((place for place, row in enumerate(kept) if row.label == primary), None)
    found = []
    for count in looks.taken:
        of_dot = [(dot, seed) for seed in sorted(dot.scores)[: rule.dot_seeds(count, len(kept))]]
        of_dot += [(again, seed) for seed in sorted(again.scores)[:count]] if again else []
        of_rows = [[(row, s) for s in every[:count] if s in row.scores] for row in kept]
        variance, freedom = _prior([of_dot, *of_rows], rule)
        priors = [(variance, 0 if row == first else freedom, freedom) for row in range(len(kept))]
        found.append(
            [
                gather(of_dot, runs, metric, sign, rule, prior)
                for runs, prior in zip(of_rows, priors, strict=True)
            ]
        )
    made = []
    for place, decision in enumerate(decide(found, size, looks, rule, first) if kept else ()):
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
                math.nan if paired else evidence.chance(size),
                place == first,
            )
        )
    return made


def _prior(sides: Sequence[Sequence[OneRun]], rule: Rule) -> tuple[float, int]:
    """The mean variance of dot and the rows near it, and the degrees of freedom it counts as."""
    near = [
        np.array([row.scores[seed] for row, seed in runs])
        for runs in sides
        if len(runs) >= rule.fewest_seeds and runs[0][0].label.partition(",")[0] not in FAR
    ]
    near = [scores for scores in near if np.isfinite(scores).all()]
    freedom = rule.prior_freedom(len(near) - 1)
    degrees = [len(scores) - 1 for scores in near]
    squares = sum(n * float(scores.var(ddof=1)) for n, scores in zip(degrees, near, strict=True))
    return (squares / sum(degrees), freedom) if freedom else (0.0, 0)


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
    dot: Sequence[OneRun],
    row: Sequence[OneRun],
    metric: str,
    sign: float,
    rule: Rule = HOLM,
    prior: tuple[float, int, int] = (0.0, 0, 0),
) -> Evidence | None:
    """What runs show, those of shared seeds alone if the rule says so; None without any."""
    if rule.most_dot_seeds == 1:
        shared = {seed for _, seed in row} & {seed for _, seed in dot}
        row, dot = ([run for run in runs if run[1] in shared] for runs in (row, dot))
    if not (row and dot):
        return None
    scores, sides = [], []
    for runs in (row, dot):
        scores.append(sign * np.array([side.scores[seed] for side, seed in runs]))
        with np.errstate(invalid="ignore"):  # a perplexity may be infinite; weigh() sees to it
            sides.append(_influences(runs, metric, sign))
    if sides[0].values.shape[1] != sides[1].values.shape[1]:
        sides = [Influences(np.full((len(runs), 2), np.inf), 2.0) for runs in (row, dot)]
    overlaps = not rule.adds_unseen and metric.startswith(OVERLAP)
    limit = 100.0 if in_percent(metric) and not overlaps else 0.0
    return weigh(scores[0], scores[1], sides[0], sides[1], limit=limit, rule=rule, prior=prior)


def _influences(runs: Sequence[OneRun], metric: str, sign: float) -> Influences:
    """The jackknife of each run's statistics; infinite where they are missing or do not fit."""
    tables = [side.statistics[seed] for side, seed in runs if seed in side.statistics]
    sizes = {len(table) for table in tables}
    units = runs[0][0].units
    fits = units is None or sizes == {len(units)}
    if len(tables) < len(runs) or len(sizes) != 1 or sizes == {1} or not fits:
        return Influences(np.full((len(runs), 1), np.inf), 1.0)
    values: Array = sign * np.stack([side.influence(metric, seed) for side, seed in runs])
    return Influences(values, effective_units(len(tables[0]), units))


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
    rule: Rule = HOLM,
    is_primary: bool = False,
) -> float:
    """How often so many seeds decide one of so many rows whose true gain is this.

    row_sd and dot_sd are the spreads of single seeds, example_error the standard error that test
    examples add to the gain. Simulated with fixed draws, so that the same question has one answer;
    without the shares that other rows hand on, so that it is a little more often.
    """
    rng = np.random.default_rng(0)
    first = rule.primary or 1 / rows
    part = first if is_primary or rows == 1 else (1 - first) / (rows - 1)
    level = rule.level / 2 * share * part
    counts = (seeds, rule.dot_seeds(seeds, rows))
    more = rule.prior_freedom(rows)
    pooled = (rows * row_sd**2 + dot_sd**2) / (rows + 1)
    means, own, degrees = [], [], []
    for sd, count, extra in zip(
        (row_sd, dot_sd), counts, (0 if is_primary else more, more), strict=True
    ):
        draws = rng.normal(0.0, 1.0, (DRAWS, count)) * sd
        means.append(draws.mean(1))
        degrees.append(count - 1 + extra)
        spread = (extra * pooled + (count - 1) * draws.var(1, ddof=1)) / degrees[-1]
        own.append(spread / count)
    gains = gain + means[0] - means[1] + rng.normal(0.0, 1.0, DRAWS) * example_error
    freedom = [
        round(seed_freedom(a, b, seeds, degrees[0], min(degrees)), 1)
        for a, b in np.transpose(own).tolist()
    ]
    by_seeds = np.array([t_quantile(level, max(seeds - 1, f)) for f in freedom]) ** 2
    by_examples = t_quantile(level, math.inf) ** 2 * example_error**2
    error = np.sqrt(by_seeds * (own[0] + own[1]) + by_examples)
    return float((np.abs(gains + margin) > error).mean())


def power_sentence(
    seeds: Sequence[int],
    *,
    sd: float | None,
    margin: float,
    rows: int,
    example_error: float = 0.0,
    rule: Rule = HOLM,
) -> str:
    """What a study can be expected to decide, from its own spread or, None, before it is known."""
    if sd is None:
        spreads = (0.1, 0.25, 0.5)
        counted = f"With {seeds[0]} seeds and {rows} row{'s' * (rows > 1)}"
        decided = []
        for is_primary in (True, False) if rule.primary and rows > 1 else (False,):
            asked: dict[str, Any] = {"rows": rows, "rule": rule, "is_primary": is_primary}
            found = [power(seeds[0], row_sd=x, dot_sd=x, margin=1.0, **asked) for x in spreads]
            decided.append(" / ".join(f"{100 * chance:.0f}" for chance in found))
        how = f"{decided[0]} % of studies if"
        if len(decided) > 1:
            counted += f" (dot has {rule.dot_seeds(seeds[0], rows)} seeds)"
            how = f"{decided[0]} % of studies if it is the primary row, {decided[1]} % else, where"
        return (
            f"{counted}, a row equal to dot is decided in {how} the seed std is "
            f"{' / '.join(map(str, spreads))} of the margin."
        )
    known: dict[str, Any] = {
        "row_sd": sd,
        "dot_sd": sd,
        "margin": margin,
        "example_error": example_error,
    }
    listed = ", ".join(
        f"{n} seeds decide it in {power(n, rows=rows, rule=rule, **known):.0%} of cases"
        for n in seeds
    )
    return (
        f"A row equal to dot, one of {rows}, where seeds spread by {sd:.2g} and the margin is "
        f"{margin:.2g}: {listed}."
    )


def failing_rate(seeds: int) -> float:
    """How many of all seeds may fail although none of these did (95 % bound): 1 - 0.05^(1/n)."""
    return float(1 - LEVEL ** (1 / seeds))
