"""What each query may look at, as one number: how many of the real tokens, taken in order.

Move the real tokens of each example to the front and keep their order. Then causality, padding on
either side and holes say the same thing: query i of example b sees exactly the first

    counts[b,i] = how many real tokens stand at or before its slot     (causal)
                  how many real tokens there are                       (otherwise)

keys, and the keys stand at positions 0, 1, 2, ..., so that tables are read in order. Which row of a
table a query reads is its position, as places.py counts it. Letters as in synthesis.py.
"""

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from synthesizer.attention.masks import locate

T = TypeVar("T", Tensor, Tensor | None)


@dataclass(frozen=True)
class Sight:
    """How far the queries of each example see."""

    counts: Tensor | None = None  # (B or 1, T), int32; None where all see all S keys
    causal: bool = False  # whether counts say causality and nothing else
    grows: bool = False  # whether later rows see more
    order: Tensor | None = None  # (B, S), the slots of the real tokens first; None: as they are
    places: Tensor | None = None  # (B, T), int32, the row of a table to read; None: its own

    @property
    def is_shared(self) -> bool:
        """Whether every example sees the same."""
        return self.places is None and (self.counts is None or len(self.counts) == 1)

    def packed(self, tokens: T) -> T:
        """Keys or values (B, H, S, n), if any, with the real ones in front."""
        if self.order is None or tokens is None:
            return tokens
        return tokens.gather(2, self.order[:, None, :, None].expand_as(tokens))

    def by_position(self, mask: Tensor) -> bool:
        """Whether a query's position tells how far it sees: not in a hole that others see past."""
        if self.places is None or self.counts is None:
            return True
        num_real = mask.sum(-1, keepdim=True)
        return not bool((~mask & (self.counts > 0) & (self.counts < num_real)).any())

    def at_places(self, output: Tensor) -> Tensor:
        """What the rows of positions, (B, S, D), give to the queries that stand there."""
        if self.places is None or self.counts is None:
            return output
        rows = self.places.long()[..., None].expand(-1, -1, output.shape[-1])
        return output.gather(1, rows).masked_fill((self.counts == 0)[..., None], 0.0)


def sight_of(mask: Tensor | None, causal: bool, num_queries: int, values: Tensor) -> Sight:
    """What a mask (B, S) of real tokens lets the last T slots see, where it hides only the end."""
    if mask is None and (num_queries == 1 or not causal):
        return Sight()
    first = values.shape[2] - num_queries
    counts = torch.arange(first + 1, values.shape[2] + 1, device=values.device)[None]
    if mask is not None:
        num_real = mask.sum(-1, keepdim=True)
        counts = counts.minimum(num_real) if causal else num_real.expand(-1, num_queries)
    return Sight(counts.int().contiguous(), causal and mask is None, causal)


def packed_sight(mask: Tensor, causal: bool) -> Sight:
    """What any mask (B, S) lets all S slots see, once the real tokens are in front."""
    seen = mask.cumsum(-1) if causal else mask.sum(-1, keepdim=True).expand(mask.shape)
    order = (~mask).int().argsort(dim=-1, stable=True)
    places = locate(mask, None, mask.shape[1], mask.device).expand(mask.shape)
    return Sight(seen.int().contiguous(), False, causal, order, places.int().contiguous())
