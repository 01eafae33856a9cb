"""Choose the settings that a row tries on validation, and the one that it takes (no torch).

Every row has the same number of trials and is judged on validation, by seeds that are never
reported. Trial n is the n-th point of a sequence that fills the square evenly and does not depend
on how many trials there are, so that more trials go on where fewer ended:

    u_n = (1/2 + n a) mod 1 in each dimension, a = the golden ratio and sqrt(2), less one

(an additive recurrence). The first dimension is log lr, the second log (lr x table_rate): what
tables are moved by. Point 0, the centre, is the recipe's own. Each kind of positions that a dot
product may have is a row of its own here, and tries what every other row tries.

One seed picks lucky trials, so the best two of a row are trained again under a second seed, and the
mean of both decides (successive halving). What that buys: docs/compare.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from synthesizer_attention.run.recipe import Recipe

TRIALS = 6  # of a full study, per row
REPEATED = 2  # of them, the best, are trained again
TRIAL_SEEDS = (0, 100_000)  # so that no reported seed chose its own settings
LR_RANGE = 4.0  # learning rates from the recipe's divided by this to times this
TABLE_RANGE = 10.0  # the same for lr x table_rate
STEPS = ((math.sqrt(5) - 1) / 2, math.sqrt(2) - 1)  # of the sequence


def point(number: int) -> tuple[float, float]:
    """The point of a trial in the unit square; the first, 0, is the centre."""
    first, second = (0.5 + number * step for step in STEPS)
    return first % 1, second % 1


def settings_of(recipe: Recipe, number: int) -> dict[str, str]:
    """What a row sets in its trial of this number, the first being 0."""
    train, (first, second) = recipe.train, point(number)
    lr = train.lr * LR_RANGE ** (2 * first - 1)
    moved = train.lr * train.table_rate * TABLE_RANGE ** (2 * second - 1)
    return {"train.lr": f"{lr:.3g}", "train.table_rate": f"{moved / lr:.3g}"}


@dataclass(frozen=True)
class Tried:
    """One setting, and the validation score of each seed it was tried with; None: it failed."""

    changes: tuple[str, ...]
    scores: tuple[float | None, ...]
    higher_is_better: bool
    row: str = ""  # where the settings of several rows are compared

    @property
    def known(self) -> list[float]:
        """The scores of the runs that did not fail."""
        return [score for score in self.scores if score is not None]

    @property
    def mean(self) -> float:
        """What decides between two settings that were tried equally often."""
        return math.fsum(self.known) / len(self.known)

    @property
    def rank(self) -> tuple[bool, int, float]:
        """More is better: no seed failed, then more seeds, then the better mean."""
        sign = 1 if self.higher_is_better else -1
        return len(self.known) == len(self.scores), len(self.known), sign * self.mean


def settings_tried(trials: Sequence[dict[str, Any]]) -> list[Tried]:
    """The trials by setting, in the order of their first runs; what failed always has none."""
    found: dict[tuple[str, tuple[str, ...]], list[dict[str, Any]]] = {}
    for trial in trials:
        found.setdefault((trial.get("row", ""), tuple(trial["changes"])), []).append(trial)
    known = [trial for trial in trials if trial["validation"] is not None]
    higher = all(trial.get("higher_is_better", True) for trial in known)
    every = [
        Tried(changes, tuple(one["validation"] for one in ones), higher, row)
        for (row, changes), ones in found.items()
    ]
    return [one for one in every if one.known]


def best_of(trials: Sequence[dict[str, Any]]) -> Tried | None:
    """The setting that does best on validation; None where all of them failed."""
    return max(settings_tried(trials), key=lambda one: one.rank, default=None)


def worth_repeating(trials: Sequence[dict[str, Any]], count: int) -> list[tuple[str, ...]]:
    """The settings whose first seed did best, which get a second."""
    once = settings_tried([trial for trial in trials if trial.get("seed", 0) == TRIAL_SEEDS[0]])
    return [one.changes for one in sorted(once, key=lambda one: one.rank, reverse=True)[:count]]


def learning_rate_of(changes: Sequence[str]) -> float | None:
    """The learning rate among some settings; None where they set none, or no number."""
    found = [text.partition("=")[2] for text in changes if text.startswith("train.lr=")]
    try:
        return float(found[0]) if found else None
    except ValueError:  # study.json may be anybody's
        return None


def at_the_edge(trials: Sequence[dict[str, Any]]) -> str:
    """'lowest' or 'highest' where the chosen setting has the extreme learning rate, else ''."""
    best = best_of(trials)
    found = (learning_rate_of(trial["changes"]) for trial in trials)
    rates = {rate for rate in found if rate is not None}
    rate = None if best is None else learning_rate_of(best.changes)
    if rate is None or len(rates) < 2 or rate not in (min(rates), max(rates)):
        return ""
    return "lowest" if rate == min(rates) else "highest"


def expected_best(trials: Sequence[dict[str, Any]]) -> list[float]:
    """The best score of the first seed to expect after 1, 2, ..., K of the K settings."""
    tried = [one for one in settings_tried(trials) if one.scores[0] is not None]
    if not tried:
        return []
    sign = 1 if tried[0].higher_is_better else -1
    scores = sorted(sign * one.scores[0] for one in tried if one.scores[0] is not None)
    total = len(scores)
    return [
        sign
        * sum(
            score * math.comb(place, count - 1) / math.comb(total, count)
            for place, score in enumerate(scores)
        )
        for count in range(1, total + 1)
    ]
