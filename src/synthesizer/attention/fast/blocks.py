"""Attention of any sum of terms, block by block: no (B, H, T, S) is written, then or for backward.

A block is some heads, some examples and some rows, small enough to stay in the processor's cache.
Its logits are made of the terms, turned to weights, used and forgotten; backward makes them again.
Letters as in terms.py. Tensors stand as (H, B, ...) views; a view need not be contiguous.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from synthesizer.attention.fast.block_softmax import Added, Rows, soften, soften_back
from synthesizer.attention.fast.kernel import Kernel, kernel_for
from synthesizer.attention.fast.sdpa import attend_fused, fits
from synthesizer.attention.fast.tensors import Parts
from synthesizer.attention.fast.visibility import Sight

CACHED = 2**18  # numbers of a block on a CPU: its logits and their gradient stay near the core
ACCELERATED = 2**26  # on an accelerator a block need not fit a cache, and has to fill the device
NUM_BLOCKS, FEWEST_ROWS, MOST_ROWS = 8, 64, 256


@dataclass(frozen=True)
class Block:
    """Some heads, examples and rows, and the fewest and most keys that one of these rows sees."""

    heads: slice
    examples: slice
    rows: slice
    fewest: int
    num_seen: int

    @property
    def here(self) -> tuple[slice, slice, slice]:
        """Where its rows stand in (H, B, T, ...)."""
        return self.heads, self.examples, self.rows

    @property
    def there(self) -> tuple[slice, slice, slice]:
        """Where its keys stand in (H, B, S, ...)."""
        return self.heads, self.examples, slice(0, self.num_seen)


def block_attention(parts: Parts, sight: Sight, num_queries: int) -> Tensor:
    """softmax(sum of terms over what is seen) values: (H, B, T, K); what sees nothing is zero."""
    kernel = compiled(parts, num_queries)
    laid = _laid_out(parts, kernel)
    output: Tensor = _BlockAttention.apply(kernel, sight, num_queries, *laid.tensors())
    return output


def compiled(parts: Parts, num_queries: int) -> Kernel | None:
    """The compiled kernel, where it knows all these terms; a single row is not worth its while."""
    assert parts.values is not None
    alike = {tensor.dtype for tensor in parts.tensors() if tensor is not None}
    known = parts.tiled is None and len(alike) == 1 and num_queries > 1
    return kernel_for(parts.values) if known else None


def _laid_out(parts: Parts, kernel: Kernel | None) -> Parts:
    """The same as who computes it wants it: no gaps, for the kernel in the last axis alone."""
    if kernel is None and parts.table is not None and parts.weight is not None:
        parts = replace(parts, table=parts.table * parts.weight[:, None, None], weight=None)
    return Parts(
        *[
            tensor
            if tensor is None or (kernel is not None and tensor.stride(-1) == 1)
            else tensor.contiguous()
            for tensor in parts.tensors()
        ]
    )


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        kernel: Kernel | None,
        sight: Sight,
        num_queries: int,
        *tensors: Tensor | None,
    ) -> Tensor:
        parts = Parts(*tensors)
        ctx.save_for_backward(*tensors)
        ctx.kernel, ctx.sight, ctx.num_queries = kernel, sight, num_queries
        if kernel is not None:
            return kernel.attend(parts, sight, num_queries)
        if fits(parts, sight):
            return attend_fused(parts, sight, num_queries)
        desk = Desk(parts, sight, num_queries)
        output = torch.empty_like(desk.values[:, :, :num_queries])
        for block in desk.blocks():
            desk.look(block, output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        parts = Parts(*ctx.saved_tensors)
        grads = Parts(
            *[
                torch.zeros_like(tensor) if wanted and tensor is not None else None
                for tensor, wanted in zip(parts.tensors(), ctx.needs_input_grad[3:], strict=True)
            ]
        )
        if ctx.kernel is not None:
            ctx.kernel.attend_back(parts, ctx.sight, grad, grads)
            return None, None, None, *grads.tensors()
        desk = Desk(parts, ctx.sight, ctx.num_queries)
        grads.values, grads.keys = _columns(grads.values), _columns(grads.keys)
        for block in desk.blocks():
            desk.look_back(block, grad, grads)
        return None, None, None, *grads.tensors()


class Desk:
    """Where the blocks of one call are worked on: two sheets of paper, used again and again."""

    def __init__(self, parts: Parts, sight: Sight, num_queries: int) -> None:
        assert parts.values is not None
        self.parts, self.sight, self.values = parts, sight, parts.values
        self.num_heads, self.batch, self.num_keys, _ = parts.values.shape
        self.num_queries = num_queries
        self.period = 1 if parts.tiled is None else parts.tiled.shape[-1]
        self.sheets: list[Tensor | None] = [None, None]

    def blocks(self) -> Iterator[Block]:
        """Cut the work so that a block's logits fit the budget, rows of one head first."""
        size = min(max(FEWEST_ROWS, -(-self.num_queries // NUM_BLOCKS)), MOST_ROWS)
        size = size if self.sight.grows else MOST_ROWS
        budget = CACHED if self.values.device.type == "cpu" else ACCELERATED
        pairs = max(1, budget // (min(size, self.num_queries) * self.num_keys))
        heads, examples = max(1, pairs // self.batch), min(pairs, self.batch)
        rows = list(_slices(self.num_queries, size))
        reaches = self._reaches(rows)
        for head in _slices(self.num_heads, heads):
            for example in _slices(self.batch, examples):
                for row, reach in zip(rows, reaches, strict=True):
                    yield Block(head, example, row, *_range(reach, example))

    def _reaches(self, rows: list[slice]) -> list[list[list[int]]]:
        """For each of these rows and each example, the fewest and most keys seen."""
        counts = self.sight.counts
        if counts is None:
            return [[[self.num_keys, self.num_keys]] for _ in rows]
        each = [torch.stack(counts[:, row].aminmax(dim=1), -1) for row in rows]
        return torch.stack(each).tolist()

    def _rows(self, block: Block) -> Rows:
        counts, places = self.sight.counts, self.sight.places
        if counts is not None:
            counts = counts[block.examples if len(counts) > 1 else slice(0, 1), block.rows]
        if places is not None:
            places = places[block.examples, block.rows]
        return Rows(block.fewest, block.num_seen, counts, places)

    def _added(self, block: Block, parts: Parts) -> Added:
        """What all examples of a block share of terms, or of their gradients."""
        table, offsets = parts.table, parts.offsets
        if table is not None:
            table = table[block.heads, block.rows if self.sight.places is None else slice(None)]
        return Added(table, None if offsets is None else offsets[block.heads])

    def look(self, block: Block, output: Tensor) -> None:
        """Write the outputs of a block's rows."""
        weights = self.weights(block)[..., : block.num_seen]  # (heads, examples, rows, seen)
        _product(weights, self.values[block.there], output[block.here])

    def look_back(self, block: Block, grad: Tensor, grads: Parts) -> None:
        """Add what a block's rows say of every gradient that is wanted."""
        weights, here, seen = self.weights(block), grad[block.here], block.num_seen
        if grads.values is not None:
            _add_transposed(grads.values[block.there], here, weights[..., :seen])
        down = self._sheet(1, block)
        _product(here, self.values[block.there].mT, down[..., :seen])
        soften_back(down, weights, self._added(block, grads), self._rows(block))
        self._bilinear_gradients(block, down[..., :seen], grads)
        self._outer_gradients(block, down, weights, grads)

    def weights(self, block: Block) -> Tensor:
        """A block's probabilities: (heads, examples, rows, seen and what fills up its period)."""
        logits = self._sheet(0, block)
        self._write_products(block, logits)
        fresh = self.parts.queries is None and self.parts.tiled is None
        soften(logits, self._added(block, self.parts), self._rows(block), fresh)
        return logits

    def _write_products(self, block: Block, logits: Tensor) -> None:
        queries, keys, tiled = self.parts.queries, self.parts.keys, self.parts.tiled
        if queries is not None and keys is not None:
            seen = logits[..., : block.num_seen]
            if keys.shape[1] == 1:
                shared = keys[block.heads, 0, : block.num_seen].mT
                torch.bmm(queries[block.here].flatten(1, 2), shared, out=seen.flatten(1, 2))
            else:
                _product(queries[block.here], keys[block.there].mT, seen)
        if tiled is not None:
            left, right = self._outer(block, logits)
            product = logits.unflatten(-1, (-1, self.period))
            if queries is None:
                torch.mul(left, right, out=product)
            else:
                product.addcmul_(left, right)

    def _outer(self, block: Block, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Both factors of an outer product, (..., 1, a) and (..., b, 1)."""
        assert self.parts.tiled is not None
        assert self.parts.repeated is not None
        width = logits.shape[-1] // self.period
        left = self.parts.tiled[block.here][..., None, :]
        return left, self.parts.repeated[block.here][..., :width, None]

    def _bilinear_gradients(self, block: Block, down: Tensor, grads: Parts) -> None:
        queries, keys = self.parts.queries, self.parts.keys
        if queries is None or keys is None:
            return
        shared = keys.shape[1] == 1
        if grads.queries is not None:
            them = keys[block.heads, :1, : block.num_seen] if shared else keys[block.there]
            them = them.expand(-1, down.shape[1], -1, -1)
            _product(down, them, grads.queries[block.here])
        if grads.keys is not None and shared:
            joined = queries[block.here].flatten(1, 2)  # (heads, examples rows, W)
            target = grads.keys[block.heads, 0, : block.num_seen]
            target.mT.baddbmm_(joined.mT, down.flatten(1, 2))
        elif grads.keys is not None:
            _add_transposed(grads.keys[block.there], queries[block.here], down)

    def _outer_gradients(self, block: Block, down: Tensor, spare: Tensor, grads: Parts) -> None:
        if self.parts.tiled is None:
            return
        left, right = self._outer(block, down)
        down = down.unflatten(-1, (-1, self.period))
        product = spare.unflatten(-1, (-1, self.period))
        if grads.tiled is not None:
            grads.tiled[block.here] = torch.mul(down, right, out=product).sum(-2)
        if grads.repeated is not None:
            part = torch.mul(down, left, out=product).sum(-1)
            grads.repeated[block.here][..., : part.shape[-1]] = part

    def _sheet(self, index: int, block: Block) -> Tensor:
        """Room for a block's logits: (heads, examples, rows, seen rounded up to the period)."""
        shape = [part.stop - part.start for part in block.here]
        shape.append(-(-block.num_seen // self.period) * self.period)
        size = shape[0] * shape[1] * shape[2] * shape[3]
        sheet = self.sheets[index]
        if sheet is None or sheet.numel() < size:
            sheet = self.sheets[index] = self.values.new_empty(size)
        return sheet[:size].view(shape)


def _slices(length: int, size: int) -> Iterator[slice]:
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def _range(reach: list[list[int]], examples: slice) -> tuple[int, int]:
    """The fewest and most keys that some examples see; at least one is computed."""
    some = reach[examples] if len(reach) > 1 else reach
    return min(low for low, _ in some), max(1, max(high for _, high in some))


def _product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Write matrices times matrices, over two leading axes of which one may be expanded."""
    torch.bmm(left.flatten(0, 1), right.flatten(0, 1), out=out.flatten(0, 1))


def _add_transposed(target: Tensor, rows: Tensor, weights: Tensor) -> None:
    """Add weights^T rows, with the long axis last: a third sooner than the other way round."""
    target.mT.flatten(0, 1).baddbmm_(rows.mT.flatten(0, 1), weights.flatten(0, 1))


def _columns(zeros: Tensor | None) -> Tensor | None:
    """The same zeros with each key or value running down a column, as _add_transposed wants it."""
    return None if zeros is None else zeros.view(*zeros.shape[:-2], *zeros.shape[:-3:-1]).mT
