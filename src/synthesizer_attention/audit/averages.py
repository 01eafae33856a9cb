"""How each head attends on average, and how much of its attention that explains.

    averages = measure_averages(hook, batches, max_len)     one pass over the texts
    tables = averages[layer].tables(kind)                   the logarithms of the averages
    shares = explain(hook, batches, ...)                    a second pass: what the averages explain

Only real tokens count. The first and the last token of a text have columns of their own: often they
are sinks, which take the attention that a head has no use for, and the last one's position varies.
Letters: B batch, H heads, T queries, S keys, N longest sequence.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from synthesizer_attention.attention.masks import masked_softmax
from synthesizer_attention.audit.converted import Layer
from synthesizer_attention.audit.hook import Hook
from synthesizer_attention.audit.tables import RELATIVE, HeadTables, sink_slots

Batch = Mapping[str, Any]
TINY = 1e-8  # the least average attention: its logarithm is finite
UNIFORM, SINK, POSITIONAL, CONTENT = "uniform", "sink", "positional", "content"


@dataclass
class Average:
    """Sums of one layer's attention weights, by distance, by sink and by position."""

    layer: Layer
    max_len: int

    def __post_init__(self) -> None:
        heads, size, zeros = self.layer.num_heads, self.max_len, torch.zeros
        self.offsets, self.offset_counts = zeros(heads, 2 * size - 1), zeros(2 * size - 1)
        self.sinks, self.sink_counts = zeros(heads, 2), zeros(2)
        self.positions, self.position_counts = zeros(heads, size, size), zeros(size, size)

    def add(self, weights: Tensor, visible: Tensor) -> None:
        """Count one batch: weights (B, H, T, T), visible (B or 1, 1, T, T)."""
        size = weights.shape[-1]
        seen = visible[:, 0].expand(len(weights), -1, -1)
        real = seen.any(-2)  # (B, T): tokens that some query sees
        seen = seen & real[:, :, None]
        kept = weights.float() * seen[:, None]
        self.positions[:, :size, :size] += kept.sum(0)
        self.position_counts[:size, :size] += seen.sum(0)
        plain = real.clone()
        number, texts = real.to(torch.uint8), torch.arange(len(real))
        sinks = [number.argmax(-1), size - 1 - number.flip(-1).argmax(-1)]
        for column, slot in enumerate(sinks[:1] if self.layer.causal else sinks):
            self.sinks[:, column] += kept[texts, :, :, slot].sum((0, 2))
            self.sink_counts[column] += seen[texts, :, slot].sum()
            plain[texts, slot] = False
        slots = torch.arange(size)
        place = (slots - slots[:, None] + self.max_len - 1).flatten()
        apart = (kept * plain[:, None, None]).sum(0).flatten(1)
        self.offsets.index_add_(1, place, apart)
        self.offset_counts.index_add_(0, place, (seen & plain[:, None]).sum(0).flatten().float())

    def tables(self, kind: str) -> HeadTables:
        """Tables of all heads: softmax of a logarithm divides by what is visible."""
        heads = range(self.layer.num_heads)
        tables = HeadTables(heads, self.max_len, kind).requires_grad_(False)
        if kind == RELATIVE:
            means = self.offsets / self.offset_counts.clamp(min=1)
            tables.offsets.copy_(_log_filled(means, self.offset_counts > 0))
            counts = self.sink_counts.clamp(min=1)
            tables.sinks.copy_((self.sinks / counts).clamp(min=TINY).log())
        else:
            means = self.positions / self.position_counts.clamp(min=1)
            tables.table.copy_(means.clamp(min=TINY).log())
        return tables


def measure_averages(hook: Hook, batches: Iterable[Batch], max_len: int) -> list[Average]:
    """Average the attention of every layer over the texts."""
    averages = [Average(layer, max_len) for layer in hook.layers]
    hook.read(batches, lambda layer, weights, seen: averages[layer].add(weights, seen))
    return averages


@dataclass(frozen=True)
class Explained:
    """How much of a head's variance around uniform attention each kind of table explains."""

    kind: str  # uniform, sink, positional or content
    by_sinks: float  # a share; below 0 where the table is worse than uniform
    by_offset: float  # sinks and distance together
    by_position: float
    spread: float  # of the weights around uniform, as a share of their square: 0 is uniform


def explain(hook: Hook, batches: Iterable[Batch], averages: list[Average]) -> list[list[Explained]]:
    """Say of each head, by layer, what its attention depends on."""
    tables = [(a.tables("relative"), _sinks_only(a), a.tables("random")) for a in averages]
    sums = [torch.zeros(5, a.layer.num_heads, dtype=torch.float64) for a in averages]

    def look(layer: int, weights: Tensor, visible: Tensor) -> None:
        causal = averages[layer].layer.causal
        seen = visible & visible[:, 0].any(-2)[:, None, :, None]
        uniform = masked_softmax(torch.zeros(()).expand(weights.shape[-2:])[None, None], seen)
        sums[layer][0] += _squares(weights, uniform * 0, seen)
        sums[layer][1] += _squares(weights, uniform, seen)
        slots = sink_slots(seen)
        for row, table in enumerate(tables[layer], start=2):
            size = weights.shape[-1]
            logits = table.logits(size, size, *slots, has_last=not causal)
            sums[layer][row] += _squares(weights, masked_softmax(logits, seen), seen)

    hook.read(batches, look)
    return [[_explained(*column) for column in total.T.tolist()] for total in sums]


def _explained(
    square: float, around: float, offset: float, sinks: float, position: float
) -> Explained:
    """Around: squared distances from uniform; the others: from each table."""
    around = max(around, 1e-12)
    by_sinks, by_offset, by_position = (1 - left / around for left in (sinks, offset, position))
    spread = around / max(square, 1e-12)
    best = max(by_offset, by_position)
    if spread < 0.1:
        kind = UNIFORM
    elif best < 0.5:
        kind = CONTENT
    else:
        kind = SINK if by_sinks > 0.5 * best else POSITIONAL
    return Explained(kind, by_sinks, by_offset, by_position, spread)


def _squares(weights: Tensor, predicted: Tensor, seen: Tensor) -> Tensor:
    return (((weights - predicted) * seen) ** 2).sum((0, 2, 3)).double()


def _sinks_only(average: Average) -> HeadTables:
    """A table that knows the sinks and is uniform elsewhere."""
    tables = average.tables("relative")
    others = average.offsets.sum(1) / average.offset_counts.sum().clamp(min=1)
    tables.offsets.copy_(others.clamp(min=TINY).log()[:, None].expand_as(tables.offsets))
    return tables


def _log_filled(means: Tensor, seen: Tensor) -> Tensor:
    """Logarithms; what no text has shown is read from its seen neighbours."""
    logs = means.clamp(min=TINY).log()
    if bool(seen.all()) or not bool(seen.any()):
        return logs
    places = np.arange(len(seen))
    known = places[seen.numpy()]
    rows = [np.interp(places, known, row[seen].numpy()) for row in logs]
    return torch.from_numpy(np.stack(rows)).to(logs)
