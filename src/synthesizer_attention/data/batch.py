"""Batch: the inputs of one forward pass, and which examples make which.

This is the only code that pads, packs, shifts or corrupts.

Letters: B batch, T tokens. Targets that are not scored are -100.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
Tokens = TypeVar("Tokens", Array, list[int])

IGNORED = -100
NOISE_DENSITY = 0.15
MEAN_SPAN = 3
_BUCKET = 8  # lengths are rounded up to it


@dataclass(frozen=True)
class Batch:
    """Inputs of one forward pass, and what they amount to."""

    inputs: dict[str, Tensor]  # the model's keyword arguments: input_ids, attention_mask, labels
    num_targets: int  # that count in the loss: what it is divided by, summed over processes
    num_tokens: int  # real ones, of inputs and targets
    indices: tuple[int, ...]  # which examples or windows of the split, in order


@dataclass(frozen=True)
class Ragged:
    """Many lists of numbers, end to end."""

    flat: Array
    offsets: Array  # (lists + 1,)

    @classmethod
    def of(cls, lists: Iterable[Sequence[int]]) -> "Ragged":
        """Put lists end to end."""
        lists = list(lists)
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        flat = np.fromiter(itertools.chain.from_iterable(lists), np.int32, int(lengths.sum()))
        return cls(flat, np.concatenate([[0], np.cumsum(lengths)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Array:
        return self.flat[self.offsets[index] : self.offsets[index + 1]]

    def take(self, indices: Sequence[int]) -> "Ragged":
        """Some of the lists, in the order asked."""
        return Ragged.of([self[index].tolist() for index in indices])

    @property
    def lengths(self) -> Array:
        """How long each list is."""
        return np.diff(self.offsets)


def pair_batch(
    sources: Sequence[Array], targets: Sequence[Array], *, indices: Array, pad: int
) -> Batch:
    """Source and target texts for an encoder-decoder; the model itself shifts the targets."""
    ids, labels = pad_rows(sources, pad), pad_rows(targets, IGNORED)
    inputs = {"input_ids": ids, "attention_mask": real_tokens(sources), "labels": labels}
    return _batch(inputs, _total(sources) + _total(targets), indices)


def label_batch(texts: Sequence[Array], labels: Array, *, indices: Array, pad: int) -> Batch:
    """Texts and the number of their class."""
    inputs = {
        "input_ids": pad_rows(texts, pad),
        "attention_mask": real_tokens(texts),
        "labels": torch.from_numpy(labels.astype(np.int64)),
    }
    return _batch(inputs, _total(texts), indices)


def window_batch(windows: Sequence[Array], *, indices: Array, pad: int) -> Batch:
    """Windows of a stream; the model compares the output at i with label i + 1."""
    labels = pad_rows(windows, IGNORED)
    labels[:, 0] = IGNORED  # compared with nothing, and counted as nothing
    return _decoder_batch(windows, labels, indices, pad)


def probe_batch(
    inputs: Sequence[Array], targets: Sequence[Array], *, indices: Array, pad: int
) -> Batch:
    """Sequences whose output i is asked for target[i]: labels are shifted by one.

    inputs (T + 1,) end in one token beyond the last question; targets (T,).
    """
    shifted = [np.concatenate([[IGNORED], target]) for target in targets]
    return _decoder_batch(inputs, pad_rows(shifted, IGNORED), indices, pad)


def own_part(examples: Array, make: Callable[[Array], Batch], rank: int, world: int) -> Batch:
    """The batch of one of `world` processes: every world-th example of a global batch.

    Parts may differ in size by one. A process that is left without an example computes the first
    with no target, so that all take the same steps.
    """
    mine = examples[rank::world]
    if len(mine):
        return make(mine)
    idle = make(examples[:1])
    inputs = {**idle.inputs, "labels": torch.full_like(idle.inputs["labels"], IGNORED)}
    return replace(idle, inputs=inputs, num_targets=0, num_tokens=0, indices=())


def num_windows(tokens: int, stride: int) -> int:
    """How many windows show a stream of so many tokens; one left-over token makes none."""
    return -(-(tokens - 1) // stride)


def window(stream: Array, index: int, *, length: int, stride: int) -> Array:
    """The index-th window. With a stride of length - 1 it begins with the last token of the one
    before, so that each token of the stream but the first is predicted exactly once.
    """
    return stream[index * stride : index * stride + length]


def corrupted_lengths(tokens: int) -> tuple[int, int]:
    """How long source and target are once spans of so many tokens are replaced, with their ends."""
    noise, spans = _noise(tokens)
    return tokens - noise + spans + 1, noise + spans + 1


def uncorrupted_length(max_len: int, decoder_max_len: int) -> int:
    """The most tokens whose corrupted source and target fit."""
    tokens = 2
    while True:
        source, target = corrupted_lengths(tokens + 1)
        if source > max_len or target > decoder_max_len:
            return tokens
        tokens += 1


def corrupt(
    tokens: Array, rng: np.random.Generator, *, sentinels: Array, eos: int
) -> tuple[Array, Array]:
    """Replace random spans by sentinels; the target has each sentinel and the tokens it replaced.

    a b c d e f g h  ->  source a b <0> e f g <1> </s>,  target <0> c d <1> h </s>
    """
    noise, spans = _noise(len(tokens))
    kept = _split_randomly(len(tokens) - noise, spans, rng)
    lost = _split_randomly(noise, spans, rng)
    edges = np.cumsum(np.column_stack([kept, lost]).ravel())[:-1]
    pieces = np.split(tokens, edges)
    marks = [sentinels[number : number + 1] for number in range(spans)]
    source = [piece for pair in zip(pieces[::2], marks, strict=True) for piece in pair]
    target = [piece for pair in zip(marks, pieces[1::2], strict=True) for piece in pair]
    return np.concatenate([*source, [eos]]), np.concatenate([*target, [eos]])


def _noise(tokens: int) -> tuple[int, int]:
    """How many tokens are lost, and in how many spans; something is always kept."""
    noise = min(max(round(tokens * NOISE_DENSITY), 1), tokens - 1)
    return noise, min(max(round(noise / MEAN_SPAN), 1), tokens - noise)


def _split_randomly(total: int, parts: int, rng: np.random.Generator) -> Array:
    """Sizes of `parts` stretches, each of at least one, that sum to total."""
    edges = np.sort(rng.choice(total - 1, size=parts - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], edges, [total]]))


def _decoder_batch(rows: Sequence[Array], labels: Tensor, indices: Array, pad: int) -> Batch:
    """A mask only where something is padded: full windows take the path without one."""
    inputs = {"input_ids": pad_rows(rows, pad), "labels": labels}
    if len({len(row) for row in rows}) > 1:
        inputs["attention_mask"] = real_tokens(rows)
    return _batch(inputs, _total(rows), indices)


def _batch(inputs: dict[str, Tensor], num_tokens: int, indices: Array) -> Batch:
    num_targets = int((inputs["labels"] != IGNORED).sum())
    return Batch(inputs, num_targets, num_tokens, tuple(int(index) for index in indices))


def pad_rows(rows: Sequence[Tokens], value: int, *, left: bool = False) -> Tensor:
    """(B, T), filled up on the right, or on the left for a decoder that goes on writing."""
    width = max(len(row) for row in rows)
    padded = np.full((len(rows), width), value, dtype=np.int64)
    for index, row in enumerate(rows):
        begin = width - len(row) if left else 0
        padded[index, begin : begin + len(row)] = row
    return torch.from_numpy(padded)


def real_tokens(rows: Sequence[Tokens], *, left: bool = False) -> Tensor:
    """(B, T), True where a token is real."""
    lengths = torch.tensor([len(row) for row in rows])
    columns = torch.arange(int(lengths.max()))
    return (columns.flip(0) if left else columns) < lengths[:, None]


def _total(rows: Sequence[Array]) -> int:
    return sum(len(row) for row in rows)


class Order:
    """Endless batches of similar lengths, each of at most `batch_tokens` padded tokens.

    A pure function of lengths (examples, sides), seed and epoch. Lengths are rounded up to a bucket
    and sorted, equal ones in a new random order each epoch. The sorted buckets never change, so
    neither do the cuts: every epoch has the same number of batches, and the batch at any step is
    found without walking through those before it. A batch costs rows times the sum of its longest
    sides; an example that costs more than the budget is a batch of its own. Where `groups` are
    given, an epoch takes at most `cap` examples of each group, new ones each time:
    examples-proportional mixing.
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
