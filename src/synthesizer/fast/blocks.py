"""Attention of any sum of terms, block by block: no (B, H, T, S) is written, then or for backward.

A block is some heads, some examples and some rows, small enough to stay in the processor's cache.
Its logits are made of the terms, turned to weights, used and forgotten; backward makes them again.
Letters as in terms.py. Tensors stand as (H, B, ...) views; a view need not be contiguous.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from synthesizer.fast.fused import attend_fused, fits
from synthesizer.fast.parts import Parts, View

CACHED = 2**18  # numbers of a block on a CPU: its logits and their gradient stay near the core
ACCELERATED = 2**26  # on an accelerator a block need not fit a cache, and has to fill the device
NUM_BLOCKS, FEWEST_ROWS, MOST_ROWS = 8, 64, 256


@dataclass(frozen=True)
class Block:
    """Some heads, examples and rows, and how many slots they can see."""

    heads: slice
    examples: slice
    rows: slice
    num_seen: int

    @property
    def here(self) -> tuple[slice, slice, slice]:
        """Where its rows stand in (H, B, T, ...)."""
        return self.heads, self.examples, self.rows

    @property
    def there(self) -> tuple[slice, slice, slice]:
        """Where its keys stand in (H, B, S, ...)."""
        return self.heads, self.examples, slice(0, self.num_seen)


def block_attention(parts: Parts, view: View, num_queries: int) -> Tensor:
    """softmax(sum of terms, masked) values: (H, B, T, K).

    A row that may look at nothing looks at everything instead: the caller empties it.
    """
    output: Tensor = _BlockAttention.apply(view, num_queries, *parts.tensors())
    return output


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        view: View,
        num_queries: int,
        *tensors: Tensor | None,
    ) -> Tensor:
        parts = Parts(*tensors)
        ctx.save_for_backward(*tensors)
        ctx.view, ctx.num_queries = view, num_queries
        if fits(parts, view):
            return attend_fused(parts, view, num_queries)
        desk = Desk(parts, view, num_queries)
        output = torch.empty_like(desk.values[:, :, :num_queries])
        for block in desk.blocks():
            desk.look(block, output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        parts = Parts(*ctx.saved_tensors)
        desk = Desk(parts, ctx.view, ctx.num_queries)
        grads = Parts(
            *[
                torch.zeros_like(tensor) if wanted and tensor is not None else None
                for tensor, wanted in zip(parts.tensors(), ctx.needs_input_grad[2:], strict=True)
            ]
        )
        grads.values, grads.keys = _columns(grads.values), _columns(grads.keys)
        for block in desk.blocks():
            desk.look_back(block, grad, grads)
        return None, None, *grads.tensors()


class Desk:
    """Where the blocks of one call are worked on: two sheets of paper, used again and again."""

    def __init__(self, parts: Parts, view: View, num_queries: int) -> None:
        assert parts.values is not None
        self.parts, self.view, self.values = parts, view, parts.values
        self.num_heads, self.batch, self.num_keys, _ = parts.values.shape
        self.num_queries, self.first = num_queries, self.num_keys - num_queries
        self.period = 1 if parts.tiled is None else parts.tiled.shape[-1]
        self.sheets: list[Tensor | None] = [None, None]

    def blocks(self) -> Iterator[Block]:
        """Cut the work so that a block's logits fit the budget, rows of one head first."""
        rows = min(max(FEWEST_ROWS, -(-self.num_queries // NUM_BLOCKS)), MOST_ROWS)
        rows = rows if self.view.causal else MOST_ROWS
        budget = CACHED if self.values.device.type == "cpu" else ACCELERATED
        pairs = max(1, budget // (min(rows, self.num_queries) * self.num_keys))
        heads, examples = max(1, pairs // self.batch), min(pairs, self.batch)
        for head in range(0, self.num_heads, heads):
            for example in range(0, self.batch, examples):
                for row in range(0, self.num_queries, rows):
                    yield self._block(head, heads, example, examples, row, rows)

    def _block(
        self, head: int, heads: int, example: int, examples: int, row: int, rows: int
    ) -> Block:
        stop = min(row + rows, self.num_queries)
        here = slice(example, min(example + examples, self.batch))
        num_seen = self.first + stop if self.view.causal else self.num_keys
        if self.view.lengths is not None:
            num_seen = max(1, min(num_seen, max(self.view.lengths[here])))
        return Block(
            slice(head, min(head + heads, self.num_heads)), here, slice(row, stop), num_seen
        )

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
        down[..., seen:] = 0.0
        _product(here, self.values[block.there].mT, down[..., :seen])
        torch._softmax_backward_data(down, weights, -1, down.dtype, grad_input=down)
        self._bilinear_gradients(block, down[..., :seen], grads)
        if grads.table is not None:
            grads.table[block.heads, block.rows, :seen] += down[..., :seen].sum(1)
        if grads.offsets is not None:
            grads.offsets[block.heads, :seen] += down[..., :seen].sum((1, 2))
        self._outer_gradients(block, down, weights, grads)

    def weights(self, block: Block) -> Tensor:
        """A block's probabilities: (heads, examples, rows, seen and what fills up its period)."""
        logits, seen = self._sheet(0, block), block.num_seen
        self._write_products(block, logits)
        if self.parts.table is not None:
            logits[..., :seen] += self.parts.table[block.heads, None, block.rows, :seen]
        if self.parts.offsets is not None:
            logits[..., :seen] += self.parts.offsets[block.heads, None, None, :seen]
        self._hide(block, logits)
        return torch.softmax(logits, -1, out=logits)

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

    def _hide(self, block: Block, logits: Tensor) -> None:
        lowest, seen = torch.finfo(logits.dtype).min, block.num_seen
        logits[..., seen:] = lowest
        if self.view.mask is not None:
            hidden = ~self.view.mask[block.examples, None, :seen]
            logits[..., :seen].masked_fill_(hidden, lowest)
        start = self.first + block.rows.start
        if self.view.causal and start < seen:
            num_rows = block.rows.stop - block.rows.start
            future = torch.ones(num_rows, seen - start, dtype=torch.bool, device=logits.device)
            logits[..., start:seen].masked_fill_(future.triu(1), lowest)

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


def _product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Write matrices times matrices, over two leading axes of which one may be expanded."""
    torch.bmm(left.flatten(0, 1), right.flatten(0, 1), out=out.flatten(0, 1))


def _add_transposed(target: Tensor, rows: Tensor, weights: Tensor) -> None:
    """Add weights^T rows, with the long axis last: a third sooner than the other way round."""
    target.mT.flatten(0, 1).baddbmm_(rows.mT.flatten(0, 1), weights.flatten(0, 1))


def _columns(zeros: Tensor | None) -> Tensor | None:
    """The same zeros with each key or value running down a column, as _add_transposed wants it."""
    return None if zeros is None else zeros.view(*zeros.shape[:-2], *zeros.shape[:-3:-1]).mT
