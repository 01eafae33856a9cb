"""What replacing heads costs and saves.

Costs are measured head by head, then of more and more of them, with intervals. A cost is positive
where the model gets worse, in the metric's own unit. Intervals resample the examples, the same ones
for both models, so that what is hard for both cancels.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from synthesizer_attention.audit.averages import Average
from synthesizer_attention.audit.converted import Layer
from synthesizer_attention.audit.examples import METRICS, Examples
from synthesizer_attention.audit.hook import Hook
from synthesizer_attention.audit.projections import kept_keys
from synthesizer_attention.audit.record import HeadCost, Measured, Point, Say
from synthesizer_attention.audit.restart import Passes
from synthesizer_attention.audit.tables import HeadTables
from synthesizer_attention.training.meter import time_in_turn

Head = tuple[int, int]  # layer, head
RESAMPLES = 2000
LEVEL = 0.05  # the chance that a bound is passed, at each end
_NORMAL = 1.6449  # its quantile
LENGTHS = (64, 256, 512)  # timed where the user names none
MOST_TOKENS = 2048  # of a timed pass
MOST_WORK = 5e10  # its tokens times the model's parameters: large models are timed on fewer
ROUNDS = 3
_FLOAT = 4  # bytes


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
        alone = dict(reversed(self.heads))  # the first of each layer
        self.passes = Passes(hook, [self.tables([head]) for head in sorted(alone.items())])
        self.original = cache(partial(self.outputs, ()))  # of examples, each read once

    def tables(self, heads: Iterable[Head]) -> dict[int, HeadTables]:
        """By layer, the tables of these heads."""
        chosen: dict[int, list[int]] = {}
        for layer, head in sorted(map(tuple, heads)):
            chosen.setdefault(layer, []).append(head)
        return {layer: self.whole[layer].pick(inside) for layer, inside in chosen.items()}

    def outputs(self, heads: Iterable[Head], examples: Examples, keep: int | None = None) -> Tensor:
        """The model's outputs on the examples with these heads replaced.

        With `keep`, the states before that layer are kept for passes that differ from there on.
        """
        return self.passes.outputs(self.tables(heads), examples, keep)

    def compare(self, outputs: Tensor, base: Tensor, examples: Examples, replaced: int) -> Point:
        """The metric of outputs, and how much worse it is than another's, with its interval.

        The interval is of resamples of the examples that both share.
        """
        metric, original = METRICS[examples.metric], self.original(examples)
        ours, theirs = (examples.statistics(each, original) for each in (outputs, base))
        sign = 1.0 if metric.higher_is_better else -1.0
        value, before = (metric.value(each.sum(0)) for each in (ours, theirs))
        generator, count = np.random.default_rng(0), len(ours)
        drawn = np.empty(RESAMPLES)
        for place in range(RESAMPLES):
            times = np.bincount(generator.integers(count, size=count), minlength=count)
            drawn[place] = metric.value(times @ theirs) - metric.value(times @ ours)
        low, high = np.quantile(drawn * sign, [LEVEL, 1 - LEVEL])
        return Point(replaced, value, sign * (before - value), float(low), float(high))

    def costs(
        self, examples: Examples, replaced: Sequence[Head] = (), *, say: Say
    ) -> list[HeadCost]:
        """The cost of each head that is not replaced yet, beyond those that are; cheapest first."""
        base = cache(lambda: self.outputs(replaced, examples))

        def cost(head: Head) -> HeadCost:
            self.passes.reach(self.tables(replaced), examples, head[0])
            outputs, original = self.outputs([*replaced, head], examples), self.original(examples)
            moved = METRICS[examples.metric].moved(outputs, original)
            center, error = float(moved.mean()), float(moved.std() / math.sqrt(len(moved)))
            interval = center - _NORMAL * error, center + _NORMAL * error
            point = self.compare(outputs, base() if replaced else original, examples, 1)
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

        def point(count: int, then: int) -> Point:
            original, differs = self.original(examples), min(order[count:then], default=None)
            keep = None if differs is None else differs[0]
            outputs = self.outputs(order[:count], examples, keep) if count else original
            found = replace(self.compare(outputs, original, examples, count), order=name)
            say(f"{count} of {len(order)} heads replaced: {found.value:.4g}")
            return found

        steps = zip(counts, [*counts[1:], 0], strict=True)
        measures = {f"{n} in {name} order": partial(point, n, then) for n, then in steps}
        return self.measured.all(measures, Point, say, "points")

    def most_moved(
        self, examples: Examples, heads: Sequence[Head], count: int
    ) -> list[dict[str, Any]]:
        """The examples whose outputs move farthest with these heads replaced."""
        metric, original = METRICS[examples.metric], self.original(examples)
        outputs = self.outputs(heads, examples)
        moved = metric.moved(outputs, original).reshape(len(examples), -1).mean(1)
        names = self.hook.model.config.id2label if metric.has_classes else {}
        found = []
        for place in np.argsort(-moved)[:count].tolist():
            target = examples.targets[place]
            before, after = (metric.shown(o, original, place) for o in (original, outputs))
            found.append({
                "place": place,
                "texts": [text[:200] for text in examples.texts[place]],
                "target": names.get(target, target),
                "moved": float(moved[place]),
                "before": names.get(before, before),
                "after": names.get(after, after),
            })  # fmt: skip
        return found


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


def change(point: Point) -> tuple[str, str]:
    """A point's cost and its interval in words: "0.06 better", "0.2 better to 0.08 worse"."""
    ends = (point.low, point.high) if point.high > 0 else (point.high, point.low)
    cost, first, last = (
        f"{abs(value):.3g}{(value > 0) * ' worse'}{(value < 0) * ' better'}"
        for value in (point.cost, *ends)
    )
    if first.partition(" ")[2] == last.partition(" ")[2]:
        first = first.partition(" ")[0]
    return cost, f"{first} to {last}"


def sentence(point: Point, total: int, margin: float, metric: str, before: int = 0) -> str:
    """The answer, in words; `before` heads were tables when the audit began."""
    start = f" Of the model as it is: {before} of its heads are tables already." if before else ""
    unit = METRICS[metric].unit
    if not point.replaced:
        return (
            f"No head can be shown to be a table at a loss of at most {margin:.3g} {unit}: "
            f"measure on more examples, or allow more with a smaller --keep.{start}"
        )
    which = "further heads" if before else "heads"
    cost, interval = change(point)
    return (
        f"{point.replaced} of {total} {which} can be tables at a loss of at most {margin:.3g} "
        f"{unit} (measured: {cost}; interval: {interval}).{start}"
    )


def why_ended(points: Sequence[Point], best: Point, margin: float, metric: str) -> str:
    """Whether the next point of the curve costs too much, or examples are too few to tell."""
    after = next((point for point in points if point.replaced > best.replaced), None)
    if after is None:
        return ""
    unit = METRICS[metric].unit
    heads = "1 head" if after.replaced == 1 else f"{after.replaced} heads"
    found = f"{after.cost:.3g} {unit} (interval: {change(after)[1]})"
    if after.cost > margin:
        return f"With {heads} the loss is more than that: {found}."
    return (
        f"With {heads} the measured loss is within it, and its interval is not: {found}. More "
        "examples would narrow it."
    )


def checkpoints_of(total: int, steps: int) -> list[int]:
    """The numbers of heads at which the curve is measured: in equal steps from none to all.

    The first step is halved down to one head, so that "no head" is said of one that was tried.
    """
    counts = {round(step * total / steps) for step in range(steps + 1)}
    first = min(counts - {0})
    return sorted(counts | {max(1, first >> halved) for halved in range(first.bit_length())})


def size_with(
    layers: Sequence[Layer], d_model: int, length: int, replaced: Iterable[tuple[int, int]]
) -> dict[str, int]:
    """Count parameters, FLOPs and cache with these (layer, head)s replaced by tables.

    Parameters of projections and tables, biases aside; FLOPs of a token in a text of this length;
    bytes that a decoded token keeps.
    """
    gone = {place: list(layer.tables) for place, layer in enumerate(layers)}
    for place, head in replaced:
        gone[place].append(head)
    parameters = flops = cache = 0
    for place, layer in enumerate(layers):
        facts = {**asdict(layer), "heads": gone[place]}
        dots, keys = layer.num_heads - len(facts["heads"]), len(kept_keys(facts))
        made = (layer.num_heads + layer.num_key_heads) if layer.normed and dots else dots + keys
        weights = d_model * layer.d_head * (made + layer.num_key_heads + layer.num_heads)
        parameters += weights + len(facts["heads"]) * (2 * length + 1)
        flops += 2 * weights + 2 * length * layer.d_head * (dots + layer.num_heads)
        cache += _FLOAT * layer.d_head * (keys + layer.num_key_heads) if layer.causal else 0
    return {"parameters": parameters, "flops": flops, "cache_bytes": cache}


def random_texts(model: PreTrainedModel, length: int) -> dict[str, Tensor]:
    """Unpadded texts of random tokens: neither changes what is computed."""
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.randint(vocabulary, (num_timed(model, length), length))
    return {"input_ids": ids} | (
        {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    )


def num_timed(model: PreTrainedModel, length: int) -> int:
    """The number of examples of this length in a timed pass."""
    tokens = min(MOST_TOKENS, MOST_WORK / sum(p.numel() for p in model.parameters()))
    return max(1, int(tokens) // length)


@torch.no_grad()
def measure_speed(
    models: Mapping[int, PreTrainedModel], batches: Mapping[int, dict[str, Tensor]]
) -> list[dict[str, Any]]:
    """Milliseconds of a forward pass over a batch of each length, best of ROUNDS.

    Models are named by how many of their heads are replaced, and are timed in turn.
    """
    rows = []
    for length, inputs in batches.items():
        works = [partial(model, **inputs) for model in models.values()]
        rounds = list(time_in_turn(works, ROUNDS, torch.device("cpu")))
        tokens = length * len(next(iter(inputs.values())))
        for replaced, seconds in zip(models, zip(*rounds, strict=True), strict=True):
            best = 1000 * min(seconds)
            rows.append({"length": length, "tokens": tokens, "replaced": replaced, "ms": best})
    return rows
