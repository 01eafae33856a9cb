"""Attention whose logits have no batch in them: one softmax for all examples, one product per head.

The values of all examples stand side by side, (H, S, B K), so that each head is one matrix product.
Rows go in blocks: under causality a block ends at its own last row, and what lies beyond is neither
read nor multiplied. Backward finds the blocks' probabilities kept: together at most one (H, T, S).

With a mask m of real tokens, P = softmax over all that causality allows and
    Y = (P (m V)) / (P m),
exact while what an example sees of a row is no vanishing part of it: the caller is told otherwise.
Letters as in synthesis.py.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from synthesizer.fast.kernel import Rows
from synthesizer.fast.softmax import Added, soften, soften_back

NUM_BLOCKS = 8
FEWEST_ROWS = 64


class TableLogits(NamedTuple):
    """table + rows columns^T; what is None is not in the sum."""

    table: Tensor | None  # (H, T, S)
    rows: Tensor | None  # (H, T, R)
    columns: Tensor | None  # (H, S, R)

    @property
    def shape(self) -> tuple[int, int]:
        """T and S."""
        if self.table is not None:
            return self.table.shape[1], self.table.shape[2]
        assert self.rows is not None
        assert self.columns is not None
        return self.rows.shape[1], self.columns.shape[1]

    def products(self, rows: slice, seen: int) -> Tensor | None:
        """Some rows, up to a key, of what is not written out: (H, rows, seen)."""
        if self.rows is None or self.columns is None:
            return None
        return torch.bmm(self.rows[:, rows], self.columns[:, :seen].mT)


def attend_by_table(
    values: Tensor, logits: TableLogits, causal: bool, dropout: float = 0.0
) -> Tensor:
    """Every example's values (B, H, S, K) by the same weights: (B, T, H K)."""
    if dropout > 0.0:
        weights = _drop(probabilities(logits, causal), dropout).to(values.dtype)
        return _apart(torch.bmm(weights, _beside(values)), values.shape[0]).flatten(-2)
    if logits.shape[0] == 1 and not torch.is_grad_enabled():
        return one_row(values, probabilities(logits, causal))
    output = _TableAttention.apply(causal, _beside(values), *logits)
    return _apart(output, values.shape[0]).flatten(-2)


def attend_by_masked_table(
    values: Tensor, logits: TableLogits, causal: bool, dropout: float, mask: Tensor
) -> Tensor | None:
    """The same where (B, S) mask hides the last keys; None where a share of a row vanishes."""
    real = mask[:, None, :, None].to(values.dtype).expand(-1, values.shape[1], -1, -1)
    if dropout > 0.0:
        weights = probabilities(logits, causal).to(values.dtype)
        share = _apart(torch.bmm(weights, _beside(real)), len(mask))
        output = _apart(torch.bmm(_drop(weights, dropout), _beside(values * real)), len(mask))
    else:
        shown = _beside(torch.cat([values * real, real], -1))
        both = _apart(_TableAttention.apply(causal, shown, *logits), len(mask))
        output, share = both.split([values.shape[-1], 1], -1)
    if _vanishes(share, mask):
        return None
    return (output / torch.where(share > 0, share, 1.0)).flatten(-2)


def probabilities(logits: TableLogits, causal: bool) -> Tensor:
    """All weights at once, (H, T, S), by operations that autograd knows."""
    num_queries, num_keys = logits.shape
    whole = logits.products(slice(0, num_queries), num_keys)
    if whole is None or logits.table is not None:
        assert logits.table is not None
        whole = logits.table if whole is None else logits.table + whole
    if causal and num_queries > 1:
        whole = whole.masked_fill(_future(whole), -torch.inf)
    return whole.softmax(-1)


def frozen_attention(values: Tensor, weights: Tensor, num_queries: int, causal: bool) -> Tensor:
    """Every example's values (B, H, S, K) by the (H, N, N) weights that were held: (B, T, H K)."""
    num_keys = values.shape[2]
    weights = weights[:, num_keys - num_queries : num_keys, :num_keys]
    if num_queries == 1:
        return one_row(values, weights)
    beside = _beside(values)
    output = values.new_empty(values.shape[1], num_queries, beside.shape[2])
    for rows, seen in row_blocks(num_queries, num_keys, causal):
        torch.bmm(weights[:, rows, :seen], beside[:, :seen], out=output[:, rows])
    return _apart(output, values.shape[0]).flatten(-2)


def one_row(values: Tensor, weights: Tensor) -> Tensor:
    """A single query, (H, 1, S), as in decoding: the values stay as they are."""
    batch, num_heads = values.shape[:2]
    weights = weights.to(values.dtype).expand(batch, -1, -1, -1).flatten(0, 1)
    return torch.bmm(weights, values.flatten(0, 1)).view(batch, 1, num_heads * values.shape[3])


def row_blocks(num_queries: int, num_keys: int, causal: bool) -> list[tuple[slice, int]]:
    """Cut T queries, the last of S slots, into rows and how many slots they see."""
    size = max(FEWEST_ROWS, -(-num_queries // NUM_BLOCKS))
    first = num_keys - num_queries
    rows = [slice(at, min(at + size, num_queries)) for at in range(0, num_queries, size)]
    return [(block, first + block.stop if causal else num_keys) for block in rows]


def corner(table: Tensor, num_queries: int, num_keys: int) -> Tensor:
    """The part of a table that the last T of S slots read: (H, T, S)."""
    if table.shape[1:] == (num_queries, num_keys):
        return table
    if not (table.requires_grad and torch.is_grad_enabled()):
        return table[:, num_keys - num_queries : num_keys, :num_keys]
    part: Tensor = _Corner.apply(table, num_keys - num_queries, num_keys)
    return part


class _TableAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        causal: bool,
        values: Tensor,
        *tensors: Tensor | None,
    ) -> Tensor:
        logits = TableLogits(*tensors)
        num_queries, num_keys = logits.shape
        output = values.new_empty(values.shape[0], num_queries, values.shape[2])
        kept = []
        for rows, seen in row_blocks(num_queries, num_keys, causal):
            weights = _block_weights(logits, rows, seen, causal).to(values.dtype)
            torch.bmm(weights, values[:, :seen], out=output[:, rows])
            if any(ctx.needs_input_grad):
                kept.append(weights)
        ctx.save_for_backward(values, *tensors, *kept)
        ctx.causal = causal
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        values, *tensors = ctx.saved_tensors[:4]
        logits = TableLogits(*tensors)
        grads = [
            torch.zeros_like(tensor) if wanted else None
            for tensor, wanted in zip((values, *tensors), ctx.needs_input_grad[1:], strict=True)
        ]
        blocks = row_blocks(*logits.shape, ctx.causal)
        for (rows, seen), weights in zip(blocks, ctx.saved_tensors[4:], strict=True):
            here = grad[:, rows]
            if grads[0] is not None:
                grads[0][:, :seen].baddbmm_(weights.mT, here)
            if any(ctx.needs_input_grad[2:]):
                down = torch.bmm(here, values[:, :seen].mT)
                added = Added(None if grads[1] is None else grads[1][:, rows])
                soften_back(down[:, None], weights[:, None], added, _rows(rows, seen, ctx.causal, down))
                _add_gradients(logits, down, rows, seen, *grads[2:])
        return None, *grads


def _add_gradients(
    logits: TableLogits,
    down: Tensor,
    rows: slice,
    seen: int,
    grad_rows: Tensor | None,
    grad_columns: Tensor | None,
) -> None:
    """Say what the gradient of a block's logits means to the factors of a table."""
    if grad_rows is not None and logits.columns is not None:
        grad_rows[:, rows] = torch.bmm(down.to(grad_rows.dtype), logits.columns[:, :seen])
    if grad_columns is not None and logits.rows is not None:
        grad_columns[:, :seen] += torch.bmm(down.mT.to(grad_columns.dtype), logits.rows[:, rows])


class _Corner(torch.autograd.Function):
    """table[:, start:stop, :stop], whose backward writes the table's gradient once."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, start: int, stop: int) -> Tensor:  # noqa: ANN401
        ctx.shape, ctx.start, ctx.stop = table.shape, start, stop
        return table[:, start:stop, :stop]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        whole = grad.new_zeros(ctx.shape)
        whole[:, ctx.start : ctx.stop, : ctx.stop] = grad
        return whole, None, None


def _block_weights(logits: TableLogits, rows: slice, seen: int, causal: bool) -> Tensor:
    """The probabilities of a block: (H, rows, seen)."""
    block = logits.products(rows, seen)
    added = Added(None if logits.table is None else logits.table[:, rows])
    if fresh := block is None:
        assert logits.table is not None
        block = logits.table.new_empty(len(logits.table), rows.stop - rows.start, seen)
    soften(block[:, None], added, _rows(rows, seen, causal, block), fresh)
    return block


def _rows(rows: slice, seen: int, causal: bool, block: Tensor) -> Rows:
    """How far rows see of which the last one sees so many keys."""
    if not causal:
        return Rows(seen, seen)
    fewest = seen - (rows.stop - rows.start) + 1
    counts = torch.arange(fewest, seen + 1, dtype=torch.int32, device=block.device)
    return Rows(fewest, seen, counts[None])


def _future(block: Tensor) -> Tensor:
    """True where the last rows of a causal block must not look: (rows, columns)."""
    num_rows, num_columns = block.shape[-2:]
    ones = torch.ones(num_rows, num_columns, dtype=torch.bool, device=block.device)
    return ones.triu(num_columns - num_rows + 1)


def _drop(weights: Tensor, rate: float) -> Tensor:
    """Drop weights; one draw serves the whole batch, as on the plain path."""
    return weights * F.dropout(torch.ones_like(weights), rate)


def _beside(values: Tensor) -> Tensor:
    """(B, H, S, K) -> (H, S, B K): the examples side by side."""
    return values.permute(1, 2, 0, 3).flatten(2)


def _apart(output: Tensor, batch: int) -> Tensor:
    """(H, T, B K) -> (B, T, H, K)."""
    return output.unflatten(-1, (batch, -1)).permute(2, 1, 0, 3)


def _vanishes(share: Tensor, mask: Tensor) -> bool:
    """Whether a row's weights on what an example sees, (B, T, H, 1), are too small to divide by.

    What hides only the end hides something of every row or nothing: who has a real token sees it.
    """
    least = torch.finfo(share.dtype).tiny ** 0.5
    return bool(((share < least) & mask[:, :1, None, None]).any())
