"""What decoding keeps of one layer. Letters as in synthesis.py."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from synthesizer_attention.attention.masks import last_real


class Cache(Protocol):
    """What decoding keeps of one layer."""

    values: Tensor | None

    def update(self, keys: Tensor | None, values: Tensor) -> tuple[Tensor | None, Tensor]:
        """Append keys (B, H, T, d_keys), if there are any, and values (B, H, T, K); return all."""
        ...

    def keep(self, keys: Tensor | None, values: Tensor, num_new: int = 0) -> None:
        """Hold these alone from now on; num_new tokens have passed without update."""
        ...

    def get_seq_length(self) -> int:
        """How many tokens have passed."""
        ...


@dataclass
class Room:
    """Tensors longer than what is kept, so that a token is added without a copy of all others."""

    keys: Tensor | None
    values: Tensor
    kept: Tensor  # the values that were kept last: no other tensor may grow into the rest


class ValueCache:
    """Values, and keys only where a dot product needs them; or the last inputs of a convolution."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.num_tokens = 0  # that have passed, kept or not
        self.is_window = False  # whether only the last of them are kept
        self.room: Room | None = None

    def update(self, keys: Tensor | None, values: Tensor) -> tuple[Tensor | None, Tensor]:
        self.num_tokens += values.shape[-2]
        if self.values is not None:
            values = torch.cat([self.values, values], dim=-2)
            keys = None if keys is None or self.keys is None else torch.cat([self.keys, keys], -2)
        self.keys, self.values, self.room = keys, values, None
        return keys, values

    def keep(self, keys: Tensor | None, values: Tensor, num_new: int = 0) -> None:
        self.keys, self.values, self.is_window, self.room = keys, values, True, None
        self.num_tokens += num_new

    def extend(self) -> tuple[Tensor | None, Tensor]:
        """Keep one more token, which the caller writes: all keys and values, for no gradient."""
        assert self.values is not None
        length, room = self.values.shape[2], self.room
        # Whatever has put other values here, or a copy of this cache that grew, has its own room.
        if room is None or room.kept is not self.values or room.values.shape[2] == length:
            more = max(64, length // 4)
            keys = None if self.keys is None else lengthened(self.keys, more)
            room = self.room = Room(keys, lengthened(self.values, more), self.values)
        self.keys = None if room.keys is None else room.keys[:, :, : length + 1]
        self.values = room.kept = room.values[:, :, : length + 1]
        self.num_tokens += 1
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.num_tokens


def lengthened(tokens: Tensor, more: int) -> Tensor:
    """Keys or values (B, H, S, n), and room for more of them."""
    batch, heads, length, width = tokens.shape
    longer = tokens.new_empty(batch, heads, length + more, width)
    longer[:, :, :length] = tokens
    return longer


def trim(
    cache: Cache, mask: Tensor | None, keys: Tensor | None, values: Tensor, count: int
) -> None:
    """Keep of a cache what a later query's window can reach: the last real tokens."""
    slots = last_real(mask, values.shape[2], count, values.device)[:, None, :, None]
    cache.keep(
        None if keys is None else keys.take_along_dim(slots, dim=2),
        values.take_along_dim(slots, dim=2),
    )
