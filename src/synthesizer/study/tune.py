"""Which settings a row tries before it is measured, and which of them it takes (no torch).

Every row has the same number of trials, of one seed that is never reported, and is judged on
validation. Trial n is the n-th point of a sequence that fills the square evenly and does not
depend on how many trials there are, so that more trials go on where fewer ended:

    u_n = (1/2 + n a) mod 1 in each dimension, a = the golden ratio and sqrt(2), less one

(an additive recurrence). The first dimension is log lr, the second log (lr x table_rate): what
tables are moved by. Point 0, the centre, is the recipe's own. Each kind of positions that a dot
product may have is a row of its own here, and tries what every other row tries.
"""

import math
from collections.abc import Sequence
from typing import Any

from synthesizer.experiment.recipe import Recipe

TRIALS = 4  # of a full study, per row
TRIAL_SEED = 0  # so that no reported seed chose its own settings
LR_RANGE = 4.0  # learning rates from the recipe's divided by this to times this
TABLE_RANGE = 10.0  # the same for lr x table_rate
STEPS = ((math.sqrt(5) - 1) / 2, math.sqrt(2) - 1)  # of the sequence


def point(number: int) -> tuple[float, float]:
    """The point of a trial in the unit square; the first, 0, is the centre."""
    first, second = (0.5 + number * step for step in STEPS)
    return first % 1, second % 1


def settings_of(recipe: Recipe, number: int) -> tuple[str, ...]:
    """What a row changes in its trial of this number, the first being 0."""
    train, (first, second) = recipe.train, point(number)
    lr = train.lr * LR_RANGE ** (2 * first - 1)
    moved = train.lr * train.table_rate * TABLE_RANGE ** (2 * second - 1)
    return f"train.lr={lr:.3g}", f"train.table_rate={moved / lr:.3g}"


def best_of(trials: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The trial with the best validation score; None where all of them failed."""
    known = [trial for trial in trials if trial["validation"] is not None]
    if not known:
        return None
    sign = 1 if known[0]["higher_is_better"] else -1
    return max(known, key=lambda trial: sign * trial["validation"])


def learning_rate_of(trial: dict[str, Any]) -> float | None:
    """The learning rate that a trial set; None where it set none, or no number."""
    found = [text.partition("=")[2] for text in trial["changes"] if text.startswith("train.lr=")]
    try:
        return float(found[0]) if found else None
    except ValueError:  # study.json may be anybody's
        return None


def at_the_edge(trials: Sequence[dict[str, Any]]) -> str:
    """'lowest' or 'highest' where the best trial has the extreme learning rate, else ''."""
    best = best_of(trials)
    rates = [rate for trial in trials if (rate := learning_rate_of(trial)) is not None]
    rate = None if best is None else learning_rate_of(best)
    if rate is None or len(set(rates)) < 2 or rate not in (min(rates), max(rates)):
        return ""
    return "lowest" if rate == min(rates) else "highest"


def expected_best(trials: Sequence[dict[str, Any]]) -> list[float]:
    """The best score to expect after 1, 2, ..., K of the K trials in random order."""
    known = [trial for trial in trials if trial["validation"] is not None]
    if not known:
        return []
    sign = 1 if known[0]["higher_is_better"] else -1
    scores = sorted(sign * trial["validation"] for trial in known)
    total = len(scores)
    return [
        sign
        * sum(
            score * math.comb(place, count - 1) / math.comb(total, count)
            for place, score in enumerate(scores)
        )
        for count in range(1, total + 1)
    ]
