"""Short sequences in torch: every pair at once, and the probabilities kept for backward.

    P = softmax(addend + queries keys^T + left right),  output = P values
    dP = d output values^T,  dS = P (dP - sum over keys of P dP)

The addend needs no token: the weighted table, the offsets, and -inf where a query may not look. It
is made once for all examples (for each of them, where they see different keys); products start from
it and become probabilities in place. Under causality rows go in blocks, so that the first of them
are multiplied with the keys that they see alone. Left and right are the sides of an outer product,
written out. Letters as in terms.py; the matrices of all heads and examples lie one after the other,
(H B, n, w).
"""

from typing import Any

import torch
from torch import Tensor

from synthesizer_attention.attention.fast.operator import gradients_of_terms
from synthesizer_attention.attention.masks import KeySpan, Visibility
from synthesizer_attention.attention.terms import Terms

LONGEST = 128  # rows, up to which it pays to keep the probabilities, and they take little memory
NUM_TERMS = len(vars(Terms()))
MOST_BLOCKS, FEWEST_ROWS = 4, 32  # more blocks, or smaller ones, cost more than they skip


class ShortAttention(torch.autograd.Function):
    """softmax(sum of terms over what is seen) values: (B, T, H, K); what sees nothing is zero."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        visibility: Visibility,
        num_queries: int,
        causal: bool,
        *tensors: Tensor | None,
    ) -> Tensor:
        terms = Terms(*tensors)
        assert terms.values is not None
        num_heads, batch, num_keys, width = terms.values.shape
        values, queries, keys = [
            None if part is None else part.expand(-1, batch, -1, -1).flatten(0, 1)
            for part in (terms.values, terms.queries, terms.keys)
        ]
        assert values is not None
        left = right = None
        if terms.tiled is not None and terms.repeated is not None:
            by_left, by_right = _columns(terms.tiled, terms.repeated, num_keys)
            left = terms.tiled.flatten(0, 1) @ by_left.mT
            right = terms.repeated.flatten(0, 1) @ by_right.mT
        addend, blind = _addend(terms, visibility, num_queries)
        output, kept = values.new_empty(batch, num_queries, num_heads, width), []
        by_head = output.permute(2, 0, 1, 3)
        size = max(FEWEST_ROWS, -(-num_queries // MOST_BLOCKS)) if causal else num_queries
        for first in range(0, num_queries, size):
            rows = slice(first, min(first + size, num_queries))
            seen = slice(0, num_keys - num_queries + rows.stop)
            p = values.new_empty(num_heads, batch, rows.stop - first, seen.stop)
            p = p.copy_(addend[:, :, rows, seen]).flatten(0, 1)
            if queries is not None and keys is not None:
                p.baddbmm_(queries[:, rows], keys[:, seen].mT)
            if left is not None and right is not None:
                p.addcmul_(left[:, rows, seen], right[:, rows, seen])
            torch.softmax(p, -1, out=p)
            by_head[:, :, rows] = torch.bmm(p, values[:, seen]).unflatten(0, (num_heads, batch))
            kept.append(p)
        if blind is not None:
            output.masked_fill_(blind, 0.0)
        ctx.save_for_backward(*tensors, values, queries, keys, left, right, blind, *kept)
        ctx.size, ctx.visibility = size, visibility
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        saved = ctx.saved_tensors  # asked once: a checkpoint gives them no second time
        tensors, others = saved[:NUM_TERMS], saved[NUM_TERMS:]
        if torch.is_grad_enabled():
            asked = (grad, ctx.needs_input_grad[3:])
            return None, None, None, *gradients_of_terms(tensors, ctx.visibility, *asked)
        values, queries, keys, left, right, blind, *kept = others
        grads, wanted, given = Terms(), Terms(*ctx.needs_input_grad[3:]), Terms(*tensors)
        batch, num_queries, num_heads, _ = grad.shape
        both = (num_heads, batch)
        grad = grad if blind is None else grad.masked_fill(blind, 0.0)
        above = grad.permute(2, 0, 1, 3).flatten(0, 1)
        total = None  # dS over all examples: what table, weight and offsets ask for
        if wanted.table or wanted.weight or wanted.offsets:
            total = above.new_zeros(num_heads, num_queries, values.shape[1])
        d_values = d_keys = None
        for name in ("queries", "tiled", "repeated"):
            tensor = getattr(given, name)
            if tensor is not None:  # in memory (B, T, H, w), so that projections go on from it
                room = above.new_empty(batch, num_queries, num_heads, tensor.shape[-1])
                setattr(grads, name, room.permute(2, 0, 1, 3))
        if grads.tiled is not None and grads.repeated is not None:
            by_left, by_right = _columns(grads.tiled, grads.repeated, values.shape[1])
        for first in reversed(range(0, num_queries, ctx.size)):  # the last block sees every key
            p = kept[first // ctx.size]
            rows, seen = slice(first, first + p.shape[1]), slice(0, p.shape[2])
            d_values = _added(d_values, torch.bmm(p.mT, above[:, rows]))
            ds = torch.bmm(above[:, rows], values[:, seen].mT)
            torch._softmax_backward_data(ds, p, -1, ds.dtype, grad_input=ds)
            if grads.queries is not None:
                grads.queries[:, :, rows] = torch.bmm(ds, keys[:, seen]).unflatten(0, both)
                d_keys = _added(d_keys, torch.bmm(ds.mT, queries[:, rows]))
            if grads.tiled is not None and grads.repeated is not None:
                to_left, to_right = ds * right[:, rows, seen], ds * left[:, rows, seen]
                grads.tiled[:, :, rows] = _summed(to_left, by_left[seen]).unflatten(0, both)
                grads.repeated[:, :, rows] = _summed(to_right, by_right[seen]).unflatten(0, both)
            if total is not None:
                _add_examples(total, rows, ds.unflatten(0, both), ctx.visibility.table_rows)
        grads.values = None if d_values is None else d_values.unflatten(0, both)
        if d_keys is not None and given.keys is not None:
            grads.keys = d_keys.unflatten(0, both).sum_to_size(given.keys.shape)
        if total is not None:
            grads.offsets = total.sum(1) if wanted.offsets else None
            if wanted.weight and given.table is not None:
                grads.weight = (total * given.table).sum((1, 2))
            if wanted.table:
                scale = given.weight
                grads.table = total if scale is None else total * scale[:, None, None]
        return None, None, None, *vars(grads).values()


def _addend(terms: Terms, visibility: Visibility, num_queries: int) -> tuple[Tensor, Tensor | None]:
    """What the logits start from, (H or 1, B or 1, T, S), and which queries see nothing.

    A softmax of nothing would be NaN: these queries get finite logits, and zeros afterwards.
    """
    assert terms.values is not None
    num_keys, rows, stops = terms.values.shape[2], visibility.table_rows, visibility.stops
    addend = terms.values.new_zeros(1 if stops is None else len(stops), num_queries, num_keys)
    blind = None
    visibility.hide(addend, slice(None), KeySpan(0, num_keys, 0, num_keys), slice(None))
    if stops is not None and not visibility.is_shared:
        blind = (stops == 0)[..., None, None]
        addend.masked_fill_(blind[..., 0], 0.0)
    if terms.offsets is not None:
        addend = addend + terms.offsets[:, None, None]
    table = terms.weighted_table()
    if table is not None:
        addend = addend + (table[:, None] if rows is None else table[:, rows])
    return addend if addend.dim() == 4 else addend[None], blind


def _columns(tiled: Tensor, repeated: Tensor, num_keys: int) -> tuple[Tensor, Tensor]:
    """Which number of either side of an outer product a key reads, as zeros and ones: (S, a or b).

    A product with them is faster than reading the numbers one by one.
    """
    a, b = tiled.shape[-1], repeated.shape[-1]
    left = torch.eye(a, dtype=tiled.dtype).repeat(b, 1)[:num_keys]
    return left, torch.eye(b, dtype=tiled.dtype).repeat_interleave(a, 0)[:num_keys]


def _summed(ds: Tensor, columns: Tensor) -> Tensor:
    """The sums over keys that read one number, (H B, rows, a or b), the long axis last: faster."""
    return (columns.mT @ ds.flatten(0, 1).mT).mT.unflatten(0, ds.shape[:2])


def _added(total: Tensor | None, part: Tensor) -> Tensor:
    """Add what a block says of the first keys to what a later block says of more of them."""
    if total is None:
        return part
    total[:, : part.shape[1]] += part
    return total


def _add_examples(total: Tensor, rows: slice, ds: Tensor, table_rows: Tensor | None) -> None:
    """Add dS (H, B, rows, keys) to (H, T, S), at the rows of the table that its rows read."""
    num_heads, batch, num_rows, num_keys = ds.shape
    if table_rows is not None:
        total[..., :num_keys].index_add_(1, table_rows[:, rows].flatten(), ds.flatten(1, 2))
        return
    summed = ds.new_ones(1, batch) @ ds.view(num_heads, batch, -1)  # half the time of ds.sum(1)
    total[:, rows, :num_keys] = summed.view(num_heads, num_rows, num_keys)
