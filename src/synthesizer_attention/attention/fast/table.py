"""Attention whose logits have no batch: the same weights for the values of every example.

One softmax serves all examples. Their values stand side by side, (H, S, B K), so that each head is
one matrix product. Rows go in blocks: keys that causality or a window hides from a whole block are
neither read nor multiplied. Backward finds the blocks' probabilities kept, together at most one
(H, T, S), or makes them again where that is long. With a mask m of real tokens, P = softmax over
all that causality allows and

    Y = (P (m V)) / (P m),

exact unless what an example sees of a row is a vanishing part of it: then None is returned.
Letters as in synthesis.py.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from synthesizer_attention.attention.fast.operator import block_attention, gradients, written_out
from synthesizer_attention.attention.hook import kernels, uses_kernel
from synthesizer_attention.attention.masks import FEWEST_ROWS, NUM_BLOCKS, KeySpan, Visibility
from synthesizer_attention.attention.terms import Terms, add_diagonals, lay_out

LONG = 2048  # from here on keeping (H, T, S) probabilities costs more than making them again


def table_attention(
    terms: Terms, visibility: Visibility, num_queries: int, dropout: float
) -> Tensor:
    """Every example's values by the same weights: (B, T, H, K); the visibility is shared."""
    assert terms.values is not None
    values = terms.values.transpose(0, 1)  # (B, H, S, K)
    if dropout > 0.0:
        weights = probabilities(terms, visibility, num_queries)
        return apart(torch.bmm(_drop(weights, dropout).to(values.dtype), beside(values)), values)
    if num_queries == 1 and not torch.is_grad_enabled():
        return one_row(values, probabilities(terms, visibility, num_queries))
    if uses_kernel(values, num_queries):
        return block_attention(terms, visibility, num_queries)
    if torch.compiler.is_compiling() or values.is_cuda:  # no blocks of rows: their ends are numbers
        weights = probabilities(terms, visibility, num_queries).to(values.dtype)
        return apart(torch.bmm(weights, beside(values)), values)
    low_rank = [None if part is None else part[:, 0] for part in (terms.queries, terms.keys)]
    logits_of = (terms.weighted_table(), *low_rank, terms.distances)
    output = _TableAttention.apply(visibility, num_queries, beside(values), *logits_of)
    return apart(output, values)


def masked_table_attention(
    terms: Terms, shared: Visibility, num_queries: int, dropout: float, mask: Tensor,
    visibility: Visibility,
) -> Tensor | None:  # fmt: skip
    """The same behind a mask (B, S), (B, T, D); None where a share of a row vanishes.

    shared is what is seen without the mask, visibility what is seen with it.
    """
    assert terms.values is not None
    values, slots = terms.values, mask
    mask = mask.sort(-1, descending=True)[0]  # the real tokens in front
    real = mask[:, :, None].to(values.dtype).expand(len(values), -1, -1, -1)  # (H, B, S, 1)
    if dropout > 0.0:
        weights = probabilities(terms, shared, num_queries)
        weights, batch_first = weights.to(values.dtype), real.transpose(0, 1)
        share = apart(torch.bmm(weights, beside(batch_first)), batch_first)
        shown = (values * real).transpose(0, 1)
        output = apart(torch.bmm(_drop(weights, dropout), beside(shown)), shown)
    else:
        terms.values = torch.cat([values * real, real], -1)
        both = table_attention(terms, shared, num_queries, 0.0)
        output, share = both.split([values.shape[-1], 1], -1)
        terms.values = values
    # a mask that hides only the end leaves the first token to every row, or nothing to any
    least = torch.finfo(share.dtype).tiny ** 0.5
    if bool(((share < least) & mask[:, :1, None, None]).any()):
        return None
    output = output / torch.where(share > 0, share, 1.0)
    return visibility.at_positions(output.flatten(-2), slots)


def frozen_attention(
    values: Tensor, weights: Tensor, visibility: Visibility, num_queries: int
) -> Tensor:
    """Every example's values (B, H, S, K) by the (H, N, N) weights that were held: (B, T, H, K)."""
    num_keys = values.shape[2]
    weights = weights[:, num_keys - num_queries : num_keys, :num_keys]
    if num_queries == 1:
        return one_row(values, weights)
    fits = weights.dtype == values.dtype == torch.float32 and values.stride(-1) == 1
    if fits and uses_kernel(values, num_queries):
        terms = Terms(values.transpose(0, 1), table=weights)
        output = values.new_empty(len(values), num_queries, values.shape[1], values.shape[3])
        kernels().attend(terms, visibility, output.permute(2, 0, 1, 3), ready=True)
        return output
    side_by_side = beside(values)
    output = values.new_empty(values.shape[1], num_queries, side_by_side.shape[2])
    for rows, span in _row_blocks(num_queries, num_keys, visibility):
        keys = slice(span.first, span.last)
        block = weights[:, rows, keys].to(values.dtype)
        torch.bmm(block, side_by_side[:, keys], out=output[:, rows])
    return apart(output, values)


def probabilities(terms: Terms, visibility: Visibility, num_queries: int) -> Tensor:
    """The softmax of all terms, (H, T, S), by operations that autograd knows."""
    whole = terms.logits(num_queries)[0]
    if visibility.stops is not None:
        whole, num_keys = whole.clone(), whole.shape[2]
        span = KeySpan(0, num_keys, 0, num_keys)  # compare every row with every key
        visibility.hide(whole, slice(None), span, slice(None))
    return whole.softmax(-1)


def one_row(values: Tensor, weights: Tensor) -> Tensor:
    """A single query, (H, 1, S), as in decoding: the values stay as they are."""
    weights = weights.to(values.dtype).expand(len(values), -1, -1, -1)
    output = torch.bmm(weights.flatten(0, 1), values.flatten(0, 1))
    return output.view(len(values), 1, values.shape[1], values.shape[3])


class _TableAttention(torch.autograd.Function):
    """Short tables keep their probabilities; long ones make them again, a head at a time."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        visibility: Visibility,
        num_queries: int,
        values: Tensor,
        *logits_of: Tensor | None,
    ) -> Tensor:
        output = values.new_empty(values.shape[0], num_queries, values.shape[2])
        blocks, kept = _row_blocks(num_queries, values.shape[1], visibility), []
        ctx.keeps = num_queries < LONG
        heads = [slice(None)] if ctx.keeps else _each(len(values))
        for head, (here, span) in product(heads, blocks):
            keys = slice(span.first, span.last)
            weights = _block_weights(logits_of, visibility, num_queries, head, here, span)
            weights = weights.to(values.dtype)
            torch.bmm(weights, values[head, keys], out=output[head, here])
            if any(ctx.needs_input_grad) and ctx.keeps:
                kept.append(weights)
        ctx.save_for_backward(values, *logits_of, *kept)
        ctx.blocks, ctx.visibility, ctx.num_queries = blocks, visibility, num_queries
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        values, table, rows, columns, distances, *kept = ctx.saved_tensors
        if torch.is_grad_enabled():
            tensors = (values, table, rows, columns, distances)
            return None, None, *_gradients_to_differentiate(ctx, tensors, grad)
        wants_values, *wanted = ctx.needs_input_grad[2:]
        grad_values = torch.zeros_like(values) if wants_values else None
        grad_table = grad_rows = grad_columns = None
        grad_distances = torch.zeros_like(distances) if wanted[3] else None
        if wanted[0]:
            grad_table = table.new_zeros(table.shape)
        if wanted[1] or wanted[2]:
            grad_rows, grad_columns = torch.zeros_like(rows), torch.zeros_like(columns)
        heads = [slice(None)] if ctx.keeps else _each(len(values))
        for index, (head, (here, span)) in enumerate(product(heads, ctx.blocks)):
            keys = slice(span.first, span.last)
            if ctx.keeps:
                weights = kept[index]
            else:
                logits_of = (table, rows, columns, distances)
                given = (logits_of, ctx.visibility, ctx.num_queries)
                weights = _block_weights(*given, head, here, span)
                weights = weights.to(values.dtype)
            if grad_values is not None:
                grad_values[head, keys].baddbmm_(weights.mT, grad[head, here])
            if not any(wanted):
                continue
            down = torch.bmm(grad[head, here], values[head, keys].mT)
            down = torch._softmax_backward_data(down, weights, -1, weights.dtype)
            if grad_table is not None:
                grad_table[head, here, keys] = down
            if grad_distances is not None:
                add_diagonals(grad_distances[head], down, ctx.num_queries, here, keys)
            if grad_rows is not None and grad_columns is not None:
                down = down.to(grad_rows.dtype)
                grad_rows[head, here] = torch.bmm(down, columns[head, keys])
                grad_columns[head, keys] += torch.bmm(down.mT, rows[head, here])
        return None, None, grad_values, grad_table, grad_rows, grad_columns, grad_distances


def _gradients_to_differentiate(
    ctx: Any, tensors: Sequence[Tensor | None], grad: Tensor  # noqa: ANN401
) -> list[Tensor | None]:  # fmt: skip
    """What backward gives, by autograd's own: examples side by side are one of great width."""

    def attention(values: Tensor, table: Tensor | None, *others: Tensor | None) -> Tensor:
        rows, columns = [None if part is None else part[:, None] for part in others[:2]]
        terms = Terms(values[:, None], rows, columns, table, distances=others[2])
        return written_out(terms, ctx.visibility, ctx.num_queries)[0].transpose(0, 1)

    return gradients(attention, tensors, ctx.needs_input_grad[2:], grad)


def _block_weights(
    logits_of: Sequence[Tensor | None],
    visibility: Visibility,
    num_queries: int,
    head: slice,
    here: slice,
    span: KeySpan,
) -> Tensor:
    """The probabilities of some heads and rows, (heads, rows, keys).

    logits_of  table + rows columns^T + what distances say, each None where it is not in the sum
    """
    table, rows, columns, distances = logits_of
    keys = slice(span.first, span.last)
    each = []
    if rows is not None and columns is not None:
        each.append(torch.bmm(rows[head, here], columns[head, keys].mT))
    if distances is not None:
        written = lay_out(distances[head], num_queries, here, keys)
        each.append(written.clone(memory_format=torch.contiguous_format))  # of one row, a view
    if table is not None:
        own = table[head, here, keys]
        each.append(own if each else own.clone(memory_format=torch.contiguous_format))
    logits = each[0]
    for part in each[1:]:
        logits += part
    visibility.hide(logits, here, span, slice(None))
    return torch.softmax(logits, -1, out=logits)


def _each(count: int) -> list[slice]:
    return [slice(at, at + 1) for at in range(count)]


def _row_blocks(
    num_queries: int, num_keys: int, visibility: Visibility
) -> list[tuple[slice, KeySpan]]:
    """Rows in blocks whose probabilities stay near the core, and the keys that each sees."""
    most_rows = max(FEWEST_ROWS, -(-num_queries // NUM_BLOCKS))
    blocks = visibility.row_blocks(num_queries, num_keys, most_rows)
    return [(rows, spans[0]) for rows, spans in blocks]


def _drop(weights: Tensor, rate: float) -> Tensor:
    """Drop weights; one draw serves the whole batch, as on the plain path."""
    return weights * F.dropout(torch.ones_like(weights), rate)


def beside(values: Tensor) -> Tensor:
    """(B, H, S, K) -> (H, S, B K): the examples side by side."""
    return values.permute(1, 2, 0, 3).flatten(2)


def apart(output: Tensor, values: Tensor) -> Tensor:
    """(H, T, B K) -> (B, T, H, K), for values (B, ...)."""
    return output.unflatten(-1, (len(values), -1)).permute(2, 1, 0, 3)
