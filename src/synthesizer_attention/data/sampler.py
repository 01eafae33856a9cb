"""Which examples make which batch: a pure function of lengths, seed and epoch.

Lengths are rounded up to a bucket and sorted, equal ones in a new random order each epoch. The
sorted buckets never change, so neither do the cuts: every epoch has the same number
of batches, and the batch at any step is found without walking through those before it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_BUCKET = 8


class Order:
    """Endless batches of similar lengths, each of at most `batch_tokens` padded tokens.

    lengths (examples, sides); a batch costs rows times the sum of its longest sides. An example
    that costs more than the budget is a batch of its own. Where `groups` are given, an epoch takes
    at most `cap` examples of each group, new ones each time: examples-proportional mixing.
    """

    def __init__(
        self,
        lengths: Array,
        *,
        batch_tokens: int,
        seed: int,
        groups: Array | None = None,
        cap: int | None = None,
    ) -> None:
        assert len(lengths), "no examples"
        buckets = np.minimum(-(-lengths // _BUCKET) * _BUCKET, lengths.max(axis=0))
        groups = np.zeros(len(lengths), dtype=np.int64) if groups is None else groups
        self._seed = seed
        self._ranked = np.lexsort((*buckets.T, groups))
        self._first, self._size = _pools(groups[self._ranked], cap)
        sizes = np.maximum.reduceat(buckets[self._ranked], self._first, axis=0)
        slots = np.lexsort(tuple(sizes.T))
        self._first, self._size, sizes = self._first[slots], self._size[slots], sizes[slots]
        self._bucket = np.cumsum(np.any(np.diff(sizes, axis=0, prepend=sizes[:1]) != 0, axis=1))
        self._cuts = _cut(sizes, batch_tokens)

    @property
    def batches_per_epoch(self) -> int:
        """How many batches show an epoch's examples once."""
        return len(self._cuts) + 1

    def epoch(self, epoch: int) -> list[Array]:
        """The batches of one epoch, in their order."""
        rng = np.random.default_rng([self._seed, epoch])
        drawn = self._first + rng.integers(self._size)
        mixed = np.lexsort((rng.random(len(drawn)), self._bucket))
        batches = np.split(self._ranked[drawn[mixed]], self._cuts)
        return [batches[index] for index in rng.permutation(len(batches))]

    def batches(self, start: int = 0) -> Iterator[tuple[int, Array]]:
        """Epoch and examples of every batch from the start-th on, without end."""
        epoch, offset = divmod(start, self.batches_per_epoch)
        while True:
            for batch in self.epoch(epoch)[offset:]:
                yield epoch, batch
            epoch, offset = epoch + 1, 0


def fixed_part(count: int, share: float) -> Array:
    """Which of some examples a share of them is, in order; a larger share holds the smaller."""
    if share == 1:
        return np.arange(count)
    drawn = np.random.default_rng(0).permutation(count)  # files may be sorted, by label say
    return np.sort(drawn[: max(1, round(share * count))])


def in_order(lengths: Array, batch_tokens: int) -> list[Array]:
    """Every example once, in order, cut where the next would exceed the budget."""
    return np.split(np.arange(len(lengths)), _cut(lengths, batch_tokens))


def _pools(groups: Array, cap: int | None) -> tuple[Array, Array]:
    """First index and size of the stretch of ranked examples that each slot of an epoch draws from.

    A group within its cap has one slot per example; a larger one `cap` stretches of like lengths.
    """
    firsts, sizes = [], []
    _, starts, counts = np.unique(groups, return_index=True, return_counts=True)
    for start, count in zip(starts, counts, strict=True):
        slots = min(count, cap or count)
        edges = start + np.arange(slots + 1) * count // slots
        firsts.append(edges[:-1])
        sizes.append(np.diff(edges))
    return np.concatenate(firsts), np.concatenate(sizes)


def _cut(lengths: Array, batch_tokens: int) -> list[int]:
    """Where batches begin, the first aside, so that none costs more than the budget."""
    cuts: list[int] = []
    begin = 0
    while True:
        most = max(1, batch_tokens // max(1, int(lengths[begin].sum())))
        longest = np.maximum.accumulate(lengths[begin : begin + most + 1]).sum(axis=1)
        costs = longest * np.arange(1, len(longest) + 1)
        begin += max(1, int(np.searchsorted(costs, batch_tokens, side="right")))
        if begin >= len(lengths):
            return cuts
        cuts.append(begin)
