"""When a row is decided: one 5 % for every word of a table, spent over rows and looks (no torch).

A word is read off an interval: better where its lower end is above zero, no worse where that end is
above minus the margin, worse where its upper end is below minus the margin. Each side has half of
LEVEL for the whole table, so that the chance of any wrong word is at most LEVEL, however rows
depend on each other:

- lower ends: every row begins with an equal share. A row is tested for no worse, then for better,
  with the same share; only when both pass does the share go to the other rows (a graphical
  procedure: within a row a fixed sequence, over the rows Holm's).
- upper ends: Holm over the rows for worse.

With planned looks, each look has the part of the level that its seeds have of all planned seeds
(Bonferroni over looks: right whatever the looks have in common). A row that is decided at a look
keeps its word and is trained no further. A look that was not planned has no level left.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from synthesizer.errors import UserError
from synthesizer.study.evidence import FEWEST_SEEDS, Evidence, seed_freedom, t_quantile

LEVEL = 0.05  # the chance of any wrong word in a table
BETTER, NO_WORSE, WORSE, UNDECIDED = "better", "no worse", "worse", "undecided"
NOT_JUDGED = "not judged"
VOID = "void"
PLANNED = (3, 5, 8, 12)  # seeds at which --until-decided looks
DRAWS = 4000  # simulated studies behind a power


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
        seeds = next_look(self, words)
        return None if seeds is None else replace(self, taken=(*self.taken, seeds))


def next_look(looks: Looks, words: Iterable[str]) -> int | None:
    """At how many seeds to judge next: None where every row is decided or the plan is done."""
    left = looks.planned[len(looks.taken) :]
    settled = bool(looks.taken) and not any(is_open(word) for word in words)
    return None if settled or not left else left[0]


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
        return (
            evidence.gain - evidence.error(self.lower),
            evidence.gain + evidence.error(self.upper),
        )


def decide(
    found: Sequence[Sequence[Evidence | None]], margin: float, looks: Looks | None = None
) -> list[Decision]:
    """The decision for each row; found[look][row], None where a row was not trained so far.

    Rows whose evidence does not suffice at the first look are not judged, and cost nothing.
    """
    looks = looks or Looks.once(FEWEST_SEEDS)
    judged = [place for place, one in enumerate(found[0]) if one is not None and one.suffices]
    words = dict.fromkeys(judged, UNDECIDED)
    sides = {"lower": _shares(judged), "upper": _shares(judged)}
    made: dict[int, Decision] = {}
    for look, rows in enumerate(found):
        here = LEVEL / 2 * looks.share(look)
        tested = {
            place: one
            for place in judged
            if words[place] == UNDECIDED
            and (one := rows[place]) is not None
            and math.isfinite(one.example_variance)
        }
        _test(tested, words, sides, here, margin)
        for place in tested:
            levels = (here * sides["lower"][place], here * sides["upper"][place])
            made[place] = Decision(words[place], *levels, look)
    plain = Decision(NOT_JUDGED, LEVEL / 2, LEVEL / 2)
    return [made.get(place, plain) for place in range(len(found[0]))]


def _shares(places: Sequence[int]) -> dict[int, float]:
    return dict.fromkeys(places, 1 / len(places) if places else 0.0)


def _test(
    tested: Mapping[int, Evidence],
    words: dict[int, str],
    sides: dict[str, dict[int, float]],
    level: float,
    margin: float,
) -> None:
    """Test until nothing more passes, handing the shares of finished rows on."""
    lower, upper = sides["lower"], sides["upper"]
    done: dict[str, set[int]] = {
        "lower": {place for place, word in words.items() if word == BETTER},
        "upper": {place for place, word in words.items() if word == WORSE},
    }
    moved = True
    while moved:
        moved = False
        for place, one in tested.items():
            if place not in done["lower"]:
                low = one.gain - one.error(level * lower[place])
                if low > -margin and words[place] == UNDECIDED:
                    words[place] = NO_WORSE
                if low > 0:
                    words[place] = BETTER
                    moved |= _hand_on(place, lower, done["lower"])
            if place not in done["upper"]:
                high = one.gain + one.error(level * upper[place])
                if high < -margin:
                    words[place] = WORSE
                    moved |= _hand_on(place, upper, done["upper"])


def _hand_on(place: int, shares: dict[int, float], done: set[int]) -> bool:
    """Share out what a finished row held among the rest; it keeps the level it passed at."""
    done.add(place)
    rest = [other for other in shares if other not in done]
    for other in rest:
        shares[other] += shares[place] / len(rest)
    return bool(rest)


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
    seeds: Sequence[int],
    *,
    sd: float | None,
    margin: float,
    rows: int,
    example_error: float = 0.0,
) -> str:
    """What a study can be expected to decide, before it is run or from its own spread."""
    if sd is None:
        return _power_by_spread(seeds[0], rows)
    chances = [
        power(n, row_sd=sd, dot_sd=sd, margin=margin, rows=rows, example_error=example_error)
        for n in seeds
    ]
    listed = ", ".join(
        f"{n} seeds decide it in {chance:.0%} of cases"
        for n, chance in zip(seeds, chances, strict=True)
    )
    return (
        f"A row equal to dot, one of {rows}, where seeds spread by {sd:.2g} and the margin is "
        f"{margin:.2g}: {listed}."
    )


def _power_by_spread(seeds: int, rows: int) -> str:
    """The same where nobody knows yet how far seeds lie apart."""
    chances = {
        name: power(seeds, row_sd=spread, dot_sd=spread, margin=1.0, rows=rows)
        for name, spread in (("a tenth", 0.1), ("a quarter", 0.25), ("half", 0.5))
    }
    listed = ", ".join(f"{100 * c:.0f} by {name} of it" for name, c in chances.items())
    return (
        f"Of 100 rows equal to dot, each one of {rows}, {seeds} seeds decide as many as seeds "
        f"spread little beside the margin: {listed}; how far they spread is not known before."
    )


def failing_rate(seeds: int) -> float:
    """How many of all seeds may fail although none of these did (95 % bound): 1 - 0.05^(1/n)."""
    return float(1 - LEVEL ** (1 / seeds))
