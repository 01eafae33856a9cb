"""What replacing heads costs: head by head, then more and more of them, with intervals.

A cost is positive where the model gets worse, in the metric's own unit. Intervals resample the
examples, the same ones for both models, so that what is hard for both cancels.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synthesizer.audit.averages import Average
from synthesizer.audit.examples import Examples, Outcome, agreement_statistics, run
from synthesizer.audit.hook import Hook
from synthesizer.audit.measured import Measured, Say
from synthesizer.audit.tables import HeadTables
from synthesizer.metrics.per_example import Statistics

Head = tuple[int, int]  # layer, head
RESAMPLES = 2000
LEVEL = 0.05  # the chance that a bound is passed, at each end
_NORMAL = 1.6449  # its quantile


@dataclass(frozen=True)
class HeadCost:
    """What replacing one head alone does, on the examples that rank."""

    layer: int
    head: int
    moved: float  # how far the outputs move: what heads are ranked by
    moved_low: float
    moved_high: float
    cost: float  # in the metric
    cost_low: float
    cost_high: float


@dataclass(frozen=True)
class Point:
    """A number of heads replaced, and the metric there on the examples that judge."""

    replaced: int
    value: float
    cost: float
    low: float
    high: float
    order: str = "measured"  # or random: the control

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Auditor:
    """Replace heads of a hooked model by their averages, and measure."""

    def __init__(
        self, hook: Hook, averages: Sequence[Average], kind: str, measured: Measured | None = None
    ) -> None:
        self.hook = hook
        self.heads: list[Head] = [
            (place, head) for place, layer in enumerate(hook.layers) for head in layer.dots
        ]
        self.whole = [average.tables(kind) for average in averages]
        self.measured = measured or Measured()
        self.original = cache(partial(self.outcome, ()))  # of examples, each read once

    def tables(self, heads: Iterable[Head]) -> dict[int, HeadTables]:
        """By layer, the tables of these heads."""
        chosen: dict[int, list[int]] = {}
        for layer, head in sorted(map(tuple, heads)):
            chosen.setdefault(layer, []).append(head)
        return {layer: self.whole[layer].pick(inside) for layer, inside in chosen.items()}

    def outcome(self, heads: Iterable[Head], examples: Examples) -> Outcome:
        """What the model makes of the examples with these heads replaced."""
        self.hook.tables = self.tables(heads)
        try:
            return run(self.hook.model, examples)
        finally:
            self.hook.tables = {}

    def costs(
        self, examples: Examples, replaced: Sequence[Head] = (), *, say: Say
    ) -> list[HeadCost]:
        """What each head not yet replaced costs beyond those that are, cheapest first."""
        base = cache(lambda: self.outcome(replaced, examples))

        def cost(head: Head) -> HeadCost:
            outcome = self.outcome([*replaced, head], examples)
            original = self.original(examples)
            moved = outcome.moved_from(original, examples.metric)
            center, error = float(moved.mean()), float(moved.std() / math.sqrt(len(moved)))
            interval = center - _NORMAL * error, center + _NORMAL * error
            point = compare(outcome, base() if replaced else original, original, examples, 1)
            return HeadCost(*head, center, *interval, point.cost, point.low, point.high)

        measures = {
            f"head {head} of layer {layer} behind {len(replaced)}": partial(cost, (layer, head))
            for layer, head in self.heads
            if (layer, head) not in replaced
        }
        found = self.measured.all(measures, HeadCost, say, "heads")
        return sorted(found, key=lambda cost: cost.moved)

    def walk(
        self, examples: Examples, first: Sequence[HeadCost], steps: int, say: Say
    ) -> list[Head]:
        """Put all heads in the order of what they cost, measured again after each step."""
        order: list[Head] = []
        ranked = list(first)
        size = max(1, math.ceil(len(self.heads) / steps))
        while ranked:
            order += [(cost.layer, cost.head) for cost in ranked[:size]]
            if len(order) >= len(self.heads):
                break
            say(f"{len(order)} of {len(self.heads)} heads ranked; measuring the others again")
            ranked = self.costs(examples, order, say=say)
        return order

    def curve(
        self, examples: Examples, order: Sequence[Head], counts: Sequence[int], say: Say,
        name: str = "measured",
    ) -> list[Point]:  # fmt: skip
        """The metric with the first k heads of the order replaced, for every k of counts."""

        def point(count: int) -> Point:
            original = self.original(examples)
            outcome = self.outcome(order[:count], examples) if count else original
            found = replace(compare(outcome, original, original, examples, count), order=name)
            say(f"{count} of {len(order)} heads replaced: {found.value:.4g}")
            return found

        measures = {f"{count} in {name} order": partial(point, count) for count in counts}
        return self.measured.all(measures, Point, say, "points")

    def most_moved(
        self, examples: Examples, heads: Sequence[Head], count: int
    ) -> list[dict[str, Any]]:
        """The examples whose outputs move farthest with these heads replaced."""
        original, outcome = self.original(examples), self.outcome(heads, examples)
        moved = outcome.moved_from(original, examples.metric)
        if examples.metric == "spearman":  # a row of its own for each text of a pair
            moved = moved.reshape(-1, 2).mean(1)
        names = self.hook.model.config.id2label if examples.metric == "accuracy" else {}
        return [
            {
                "place": place,
                "texts": [text[:200] for text in examples.texts[place]],
                "target": names.get(target := examples.targets[place], target),
                "moved": float(moved[place]),
                "before": names.get(shown := examples.shown(original, place), shown),
                "after": names.get(shown := examples.shown(outcome, place), shown),
            }
            for place in np.argsort(-moved)[:count].tolist()
            if place < len(examples.texts)
        ]

    def shuffled(self, seed: int) -> list[Head]:
        """All heads in random order: what the ranking must beat."""
        order = list(self.heads)
        random.Random(seed).shuffle(order)
        return order


def compare(
    outcome: Outcome, base: Outcome, original: Outcome, examples: Examples, replaced: int
) -> Point:
    """The metric of one outcome, and how much worse it is than another, with its interval."""
    ours, theirs = (_statistics(o, original, examples) for o in (outcome, base))
    sign = 1.0 if examples.higher_is_better else -1.0
    value, before = (examples.value(each.sum(0)) for each in (ours, theirs))
    drawn = resampled_costs(ours, theirs, examples) * sign
    low, high = np.quantile(drawn, [LEVEL, 1 - LEVEL])
    return Point(replaced, value, sign * (before - value), float(low), float(high))


def resampled_costs(
    ours: Statistics, theirs: Statistics, examples: Examples, seed: int = 0
) -> NDArray[np.float64]:
    """theirs - ours, on resamples of the examples that both share."""
    count = len(ours)
    generator = np.random.default_rng(seed)
    drawn = np.empty(RESAMPLES)
    for place in range(RESAMPLES):
        times = np.bincount(generator.integers(count, size=count), minlength=count)
        drawn[place] = examples.value(times @ theirs) - examples.value(times @ ours)
    return drawn


def _statistics(outcome: Outcome, original: Outcome, examples: Examples) -> Statistics:
    if examples.metric == "agreement":
        return agreement_statistics(outcome, original)
    return outcome.statistics


def most_heads(points: Sequence[Point], margin: float) -> Point:
    """The last point of the curve before one whose cost may pass the margin.

    Points are tried in a fixed order and the first failure ends it, so that the chance of a wrong
    claim is that of one test, however many points there are.
    """
    best = points[0]
    for point in points[1:]:
        if point.high > margin:
            break
        best = point
    return best


def sentence(point: Point, total: int, margin: float, metric: str, before: int = 0) -> str:
    """The answer, in words; `before` heads were tables when the audit began."""
    start = f" Of the model as it is: {before} of its heads are tables already." if before else ""
    if not point.replaced:
        return (
            f"No head can be shown to be a table at a loss of at most {margin:.3g} {unit(metric)}: "
            f"measure on more examples, or allow more with a smaller --keep.{start}"
        )
    which = "further heads" if before else "heads"
    return (
        f"{point.replaced} of {total} {which} can be tables at a loss of at most {margin:.3g} "
        f"{unit(metric)} (measured {point.cost:.3g}, interval {point.low:.3g} to {point.high:.3g})."
        f"{start}"
    )


def why_ended(points: Sequence[Point], best: Point, margin: float, metric: str) -> str:
    """Whether the next point of the curve costs too much, or examples are too few to tell."""
    after = next((point for point in points if point.replaced > best.replaced), None)
    if after is None:
        return ""
    heads = "1 head" if after.replaced == 1 else f"{after.replaced} heads"
    found = f"{after.cost:.3g} {unit(metric)} (interval {after.low:.3g} to {after.high:.3g})"
    if after.cost > margin:
        return f"With {heads} the loss is more than that: {found}."
    return (
        f"With {heads} the measured loss is within it, and its interval is not: {found}. More "
        "examples would narrow it."
    )


def unit(metric: str) -> str:
    """What a metric counts in."""
    return {
        "loss": "nats a token",
        "accuracy": "points of accuracy",
        "spearman": "points of Spearman's correlation",
        "agreement": "points of agreement with the original",
    }[metric]


def checkpoints_of(total: int, steps: int) -> list[int]:
    """The numbers of heads at which the curve is measured: in equal steps from none to all.

    The first step is halved down to one head, so that "no head" is said of one that was tried.
    """
    counts = {round(step * total / steps) for step in range(steps + 1)}
    first = min(counts - {0})
    return sorted(counts | {max(1, first >> halved) for halved in range(first.bit_length())})
