"""The same weights for the values of every example: one softmax, one product per head, in torch.

The values of all examples stand side by side, (H, S, B K), so that each head is one matrix product.
Rows go in blocks: under causality a block ends at its own last row, and what lies beyond is neither
read nor multiplied. Backward finds the blocks' probabilities kept: together at most one (H, T, S).
Letters as in synthesis.py.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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

    def block(self, rows: slice, seen: int) -> Tensor:
        """Some rows, up to a key: (H, rows, seen), a tensor of its own."""
        if self.rows is None or self.columns is None:
            assert self.table is not None
            return self.table[:, rows, :seen].clone(memory_format=torch.contiguous_format)
        logits = torch.bmm(self.rows[:, rows], self.columns[:, :seen].mT)
        return logits if self.table is None else logits + self.table[:, rows, :seen]


def attend_by_table(values: Tensor, logits: TableLogits, causal: bool) -> Tensor:
    """Every example's values (B, H, S, K) by the same weights: (B, T, H, K)."""
    return apart(_TableAttention.apply(causal, beside(values), *logits), len(values))


def probabilities(logits: TableLogits, causal: bool) -> Tensor:
    """All weights at once, (H, T, S), by operations that autograd knows."""
    num_queries, num_keys = logits.shape
    whole = logits.block(slice(0, num_queries), num_keys)
    if causal and num_queries > 1:
        whole = whole.masked_fill(_future(whole), -torch.inf)
    return whole.softmax(-1)


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
                down = torch._softmax_backward_data(down, weights, -1, weights.dtype)
                _add_gradients(logits, down, rows, seen, *grads[1:])
        return None, *grads


def _add_gradients(
    logits: TableLogits,
    down: Tensor,
    rows: slice,
    seen: int,
    grad_table: Tensor | None,
    grad_rows: Tensor | None,
    grad_columns: Tensor | None,
) -> None:
    """Say what the gradient of a block's logits means to what they are made of."""
    if grad_table is not None:
        grad_table[:, rows, :seen] = down
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
    block = logits.block(rows, seen)
    if causal:
        last = block[..., seen - block.shape[1] :]
        last.masked_fill_(_future(last), -torch.inf)
    return torch.softmax(block, -1, out=block)


def _future(block: Tensor) -> Tensor:
    """True where the last rows of a causal block must not look: (rows, columns)."""
    num_rows, num_columns = block.shape[-2:]
    ones = torch.ones(num_rows, num_columns, dtype=torch.bool, device=block.device)
    return ones.triu(num_columns - num_rows + 1)


def beside(values: Tensor) -> Tensor:
    """(B, H, S, K) -> (H, S, B K): the examples side by side."""
    return values.permute(1, 2, 0, 3).flatten(2)


def apart(output: Tensor, batch: int) -> Tensor:
    """(H, T, B K) -> (B, T, H, K)."""
    return output.unflatten(-1, (batch, -1)).permute(2, 1, 0, 3)
