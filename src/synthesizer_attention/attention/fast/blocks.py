"""Attention of any sum of terms, block by block: no (B, H, T, S) is written, then or for backward.

A block is some heads, some examples and some rows, small enough to stay in the processor's cache,
and the keys that these rows see: what causality or a window hides from all of them is skipped.
Its logits are made of the terms, turned to weights, used and forgotten; backward makes them again.
Letters as in terms.py. Tensors stand as (H, B, ...) views; a view need not be contiguous.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from synthesizer_attention.attention.masks import KeySpan, Visibility
from synthesizer_attention.attention.terms import Terms

CACHED = 2**18  # numbers of a block on a CPU: its logits and their gradient stay near the core
ACCELERATED = 2**26  # on an accelerator a block need not fit a cache, and has to fill the device
MOST_ROWS = 256


class Block(NamedTuple):
    """Some heads, examples and rows, and the keys that one of these rows sees."""

    heads: slice
    examples: slice
    rows: slice
    span: KeySpan

    @property
    def width(self) -> int:
        """How many keys it reads."""
        return self.span.last - self.span.first

    @property
    def here(self) -> tuple[slice, slice, slice]:
        """Where its rows stand in (H, B, T, ...)."""
        return self.heads, self.examples, self.rows

    @property
    def there(self) -> tuple[slice, slice, slice]:
        """Where its keys stand in (H, B, S, ...)."""
        return self.heads, self.examples, slice(self.span.first, self.span.last)


def sdpa_forward(terms: Terms, visibility: Visibility, output: Tensor) -> None:
    """Write softmax(queries keys^T + table + offsets) values, (H, B, T, K), by PyTorch's kernel.

    The kernel takes a bias, but has no gradient for it and, given one, no causality: so it is
    called for forward alone, in blocks of rows, the hidden keys of a block cut off.
    """
    values, queries, keys = terms.values, terms.queries, terms.keys
    assert values is not None
    assert queries is not None
    assert keys is not None
    num_heads, batch, num_keys, _ = values.shape
    num_queries, keys = output.shape[2], keys.expand(-1, batch, -1, -1)
    for block, (span,) in visibility.row_blocks(num_queries, num_keys, num_queries):
        seen = slice(span.first, span.last)
        shape = (num_heads, block.stop - block.start, span.last - span.first)
        # detached: a bias that might want a gradient sends the whole call off the fused path
        bias = None if terms.table is None else terms.table[:, block, seen].detach()
        if terms.offsets is not None:
            offsets = terms.offsets[:, None, seen].detach()
            bias = offsets if bias is None else bias + offsets
        if visibility.stops is not None:
            bias = values.new_zeros(1, *shape[1:]) if bias is None else bias.expand(shape).clone()
            visibility.hide(bias, block, span, slice(None))
        output[:, :, block] = F.scaled_dot_product_attention(
            queries[:, :, block].transpose(0, 1),
            keys[:, :, seen].transpose(0, 1),
            values[:, :, seen].transpose(0, 1),
            attn_mask=None if bias is None else bias.expand(batch, *shape),
            scale=1.0,
        ).transpose(0, 1)


class Workspace:
    """Two reusable scratch buffers, in which the blocks of one call are computed in turn."""

    def __init__(self, terms: Terms, visibility: Visibility, num_queries: int) -> None:
        assert terms.values is not None
        self.terms, self.visibility, self.values = terms, visibility, terms.values
        self.num_queries = num_queries
        self.period = 1 if terms.tiled is None else terms.tiled.shape[-1]
        self.buffers: list[Tensor | None] = [None, None]

    def blocks(self) -> Iterator[Block]:
        """Cut the work so that a block's logits fit the budget, rows of one head first."""
        num_heads, batch, num_keys, _ = self.values.shape
        row_blocks = self.visibility.row_blocks(self.num_queries, num_keys, MOST_ROWS)
        width = max(span.last - span.first for _, spans in row_blocks for span in spans)
        budget = CACHED if self.values.device.type == "cpu" else ACCELERATED
        pairs = max(1, budget // (row_blocks[0][0].stop * max(1, width)))
        for heads in _slices(num_heads, max(1, pairs // batch)):
            for examples in _slices(batch, min(pairs, batch)):
                for row, each in row_blocks:
                    some = each[examples] if len(each) > 1 else each
                    first, full_from, full_to, last = zip(*some, strict=True)
                    start = min(first) // self.period * self.period  # an outer product's tile
                    stop = max(max(last), start + 1)  # at least one key is computed
                    span = KeySpan(start, max(full_from), min(full_to), stop)
                    yield Block(heads, examples, row, span)

    def write_output(self, block: Block, output: Tensor) -> None:
        """Write the outputs of a block's rows."""
        weights = self.weights(block)[..., : block.width]  # (heads, examples, rows, keys)
        _product(weights, self.values[block.there], output[block.here])

    def weights(self, block: Block) -> Tensor:
        """softmax(sum of terms) over the keys that a row sees, 0 elsewhere, in place.

        (heads, examples, rows, columns): the keys of the block's span, and more where they fill up
        the period of an outer product.
        """
        terms, visibility, rows = self.terms, self.visibility, block.rows
        queries, keys, tiled = terms.queries, terms.keys, terms.tiled
        logits = self._buffer(0, block)
        seen = logits[..., : block.width]
        if queries is not None and keys is not None:
            if keys.shape[1] == 1:  # keys of all examples: their rows are one long matrix
                shared = keys[block.heads, 0, block.there[2]].mT
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
        if queries is None and tiled is None:
            logits.zero_()
        if terms.table is not None:
            table = terms.table[block.heads, :, block.there[2]]
            at = visibility.table_rows
            seen += table[:, None, rows] if at is None else table[:, at[block.examples, rows]]
        if terms.offsets is not None:
            seen += terms.offsets[block.heads, None, None, block.there[2]]
        logits[..., block.width :] = -torch.inf
        visibility.hide(seen, rows, block.span, block.examples)
        torch.softmax(logits, -1, out=logits)
        stops = visibility.stops
        if stops is not None and block.span.full_to == 0:  # some row sees no key: not NaN but 0
            stops = stops[block.examples if len(stops) > 1 else slice(0, 1), rows]
            logits.masked_fill_((stops == 0)[..., None], 0.0)
        return logits

    def add_gradients(self, block: Block, grad: Tensor, grads: Terms) -> None:
        """Add what a block's rows contribute to every gradient that is wanted.

        d logits = weights (d weights - sum over keys of weights d weights)
        """
        weights, here, keys = self.weights(block), grad[block.here], block.there[2]
        if grads.values is not None:
            _add_transposed(grads.values[block.there], here, weights[..., : block.width])
        down = self._buffer(1, block)
        seen = down[..., : block.width]
        _product(here, self.values[block.there].mT, seen)
        down[..., block.width :] = 0.0
        torch._softmax_backward_data(down, weights, -1, down.dtype, grad_input=down)
        if grads.table is not None:
            table, at = grads.table[block.heads, :, keys], self.visibility.table_rows
            if at is not None:
                at = at[block.examples, block.rows].flatten()
                table.index_add_(1, at, seen.flatten(1, 2))
            else:
                for example in seen.unbind(1):  # twice as fast as one sum over the examples
                    table[:, block.rows] += example
        if grads.offsets is not None:
            grads.offsets[block.heads, keys] += seen.sum((1, 2))
        self._bilinear_gradients(block, seen, grads)
        self._outer_gradients(block, down, weights, grads)

    def _outer(self, block: Block, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Both factors of an outer product, (..., 1, a) and (..., b, 1)."""
        assert self.terms.tiled is not None
        assert self.terms.repeated is not None
        first = block.span.first // self.period
        tiles = slice(first, first + logits.shape[-1] // self.period)
        left = self.terms.tiled[block.here][..., None, :]
        return left, self.terms.repeated[block.here][..., tiles, None]

    def _bilinear_gradients(self, block: Block, down: Tensor, grads: Terms) -> None:
        queries, keys = self.terms.queries, self.terms.keys
        if queries is None or keys is None:
            return
        shared, seen = keys.shape[1] == 1, block.there[2]
        if grads.queries is not None:
            them = keys[block.heads, :1, seen] if shared else keys[block.there]
            _product(down, them.expand(-1, down.shape[1], -1, -1), grads.queries[block.here])
        if grads.keys is not None and shared:
            joined = queries[block.here].flatten(1, 2)  # (heads, examples rows, W)
            grads.keys[block.heads, 0, seen].mT.baddbmm_(joined.mT, down.flatten(1, 2))
        elif grads.keys is not None:
            _add_transposed(grads.keys[block.there], queries[block.here], down)

    def _outer_gradients(self, block: Block, down: Tensor, spare: Tensor, grads: Terms) -> None:
        if self.terms.tiled is None:
            return
        left, right = self._outer(block, down)
        first, down = block.span.first // self.period, down.unflatten(-1, (-1, self.period))
        product = spare.unflatten(-1, (-1, self.period))
        if grads.tiled is not None:
            grads.tiled[block.here] = torch.mul(down, right, out=product).sum(-2)
        if grads.repeated is not None:
            part = torch.mul(down, left, out=product).sum(-1)
            grads.repeated[block.here][..., first : first + part.shape[-1]] = part

    def _buffer(self, index: int, block: Block) -> Tensor:
        """Room for a block's logits: (heads, examples, rows, keys rounded up to the period)."""
        shape = [part.stop - part.start for part in block.here]
        shape.append(-(-block.width // self.period) * self.period)
        size = shape[0] * shape[1] * shape[2] * shape[3]
        buffer = self.buffers[index]
        if buffer is None or buffer.numel() < size:
            buffer = self.buffers[index] = self.values.new_empty(size)
        return buffer[:size].view(shape)


def _slices(length: int, size: int) -> Iterator[slice]:
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def _product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Write matrices times matrices, over two leading axes of which one may be expanded."""
    torch.bmm(left.flatten(0, 1), right.flatten(0, 1), out=out.flatten(0, 1))


def _add_transposed(target: Tensor, rows: Tensor, weights: Tensor) -> None:
    """Add weights^T rows, with the long axis last: a third faster than the other way round."""
    target.mT.flatten(0, 1).baddbmm_(rows.mT.flatten(0, 1), weights.flatten(0, 1))


def columns_of(zeros: Tensor | None) -> Tensor | None:
    """The same zeros with each key or value running down a column, as _add_transposed wants it."""
    return None if zeros is None else zeros.view(*zeros.shape[:-2], *zeros.shape[:-3:-1]).mT
