"""What logits are: a sum of tables, products and outer products, said once by every variant.

    logits[b,h,i,j] = weight[h] table[h,i,j] + queries[b,h,i]·keys[b,h,j] + offsets[h,j]
                      + other_queries[b,h,i]·other_keys[b,h,j]
                      + tiled[b,h,i,j mod a] repeated[b,h,i,j div a] + distances[h, T - i + j]

The plain path writes this out (`Terms.logits`); the fast paths and the kernels read the terms, and
write nothing of (B, H, T, S). Letters as in synthesis.py; W is the width of what a product
compares, a b that of an outer product.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Places:
    """Where the rows and columns of tables are read: in slots, or at positions of any kind."""

    rows: Tensor | slice  # of the queries: a slice, (T,) or (B, T)
    columns: Tensor | slice  # of the keys: a slice, (S,) or (B, S)
    turns: Tensor | None = None  # (T,) or (B, T), the rotary positions of queries
    is_last: Tensor | None = None  # (S,) or (B, S), True at the last real token, where asked for

    @classmethod
    def slots(cls, num_queries: int, num_keys: int, *given: Tensor | None) -> "Places":
        """Positions are slots: T queries are the last of S keys."""
        return cls(slice(num_keys - num_queries, num_keys), slice(0, num_keys), *given)

    def positions(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Rows and columns as tensors."""
        rows, columns = self.rows, self.columns
        if isinstance(rows, Tensor) and isinstance(columns, Tensor):
            return rows, columns
        assert isinstance(rows, slice)
        columns = torch.arange(rows.stop, device=device)
        return columns[rows], columns

    def pairs(self, table: Tensor) -> Tensor:
        """Rows and columns of a table (H, N, N): (H, T, S) or (H, B, T, S)."""
        rows, columns = self.rows, self.columns
        if isinstance(rows, Tensor) and isinstance(columns, Tensor):
            return table[:, rows[..., :, None], columns[..., None, :]]
        assert isinstance(rows, slice)
        if table.shape[1:] == (rows.stop - rows.start, rows.stop):
            return table
        learns = table.requires_grad and torch.is_grad_enabled()
        if learns and not torch.compiler.is_compiling():  # which joins the two slices itself
            corner: Tensor = _Corner.apply(table, rows.start, rows.stop)
            return corner
        return table[:, rows, columns]


def read(table: Tensor, at: Tensor | slice) -> Tensor:
    """Read the last axis of (H, W, N), as the sides of a product stand: (H, 1 or B, S, W)."""
    picked = table[..., at]  # (H, W, S) or (H, W, B, S)
    return picked.mT[:, None] if picked.dim() == 3 else picked.permute(0, 2, 3, 1)


def scaled(weight: Tensor, scale: Tensor | None) -> Tensor:
    """Multiply what is linear in the logits, (H, ...), by a part's weight in a mixture."""
    return weight if scale is None else weight * scale.view(-1, *[1] * (weight.dim() - 1))


@dataclass
class Terms:
    """The tensors of a sum of terms, and the values, heads first; or the gradients of them all.

    Where examples have positions of their own, table and offsets have a batch as well: then
    logits() alone reads them.
    """

    values: Tensor | None = None  # (H, B, S, K)
    queries: Tensor | None = None  # (H, B or 1, T, W)
    keys: Tensor | None = None  # (H, B or 1, S, W)
    table: Tensor | None = None  # (H, T, S)
    weight: Tensor | None = None  # (H,), what the table is multiplied by
    offsets: Tensor | None = None  # (H, S)
    tiled: Tensor | None = None  # (H, B, T, a)
    repeated: Tensor | None = None  # (H, B, T, b)
    distances: Tensor | None = None  # (H, T + S), of which key 0 reads the first: lay_out
    other_queries: Tensor | None = None  # (H, B or 1, T, W), of a second product
    other_keys: Tensor | None = None  # (H, B or 1, S, W)

    def logits(self, num_queries: int = 0, num_keys: int = 0) -> Tensor:
        """Write the sum out: (B or 1, H, T, S); what was read in slots asks for T and S."""
        self.write_out(num_queries)
        each = []
        if self.queries is not None and self.keys is not None:
            each.append(torch.einsum("hbtw,hbsw->bhts", self.queries, self.keys))
        if self.other_queries is not None and self.other_keys is not None:
            each.append(torch.einsum("hbtw,hbsw->bhts", self.other_queries, self.other_keys))
        if self.table is not None:
            table = self.table
            each.append(table[None] if table.dim() == 3 else table.transpose(0, 1))
        if self.offsets is not None:
            batched = self.offsets if self.offsets.dim() == 3 else self.offsets[:, None]
            each.append(batched.transpose(0, 1)[:, :, None])
        if self.tiled is not None and self.repeated is not None:
            j = torch.arange(num_keys, device=self.tiled.device)
            each.append(outer_product(self.tiled, self.repeated, j).transpose(0, 1))
        return sum(each[1:], start=each[0])

    def join(self) -> None:
        """Make one product of two, of the joint width; the compiled kernel takes two."""
        if self.queries is None or self.keys is None:
            return
        if self.other_queries is not None and self.other_keys is not None:
            self.queries, self.keys = _joined(
                [self.queries, self.other_queries], [self.keys, self.other_keys]
            )
            self.other_queries = self.other_keys = None

    def weighted_table(self) -> Tensor | None:
        """The table times its weight, written out."""
        if self.table is None or self.weight is None:
            return self.table
        return scaled(self.table, self.weight)

    def write_out(self, num_queries: int) -> None:
        """Make one table of the table, its weight and the distances."""
        table, distances = self.weighted_table(), self.distances
        if distances is not None:
            rows, keys = slice(0, num_queries), slice(0, distances.shape[1] - num_queries)
            written = lay_out(distances, num_queries, rows, keys)
            table = written if table is None else table + written
        self.table, self.weight, self.distances = table, None, None

    def add_bias(self, bias: Tensor, num_heads: int, num_queries: int, num_keys: int) -> None:
        """Add what all examples have in common, (1, H or 1, T or 1, S)."""
        bias = bias[0].expand(num_heads, num_queries, num_keys)
        table = self.weighted_table()
        self.table, self.weight = bias.contiguous() if table is None else table + bias, None

    def as_table(self) -> "Terms":
        """The same as one table, where all is a product that no token has a say in."""
        assert self.queries is not None
        assert self.keys is not None
        product = self.queries @ self.keys.mT
        return Terms(table=product[:, 0] if product.shape[1] == 1 else product)


def add(each: Sequence[Terms]) -> Terms:
    """Add sums of terms, of which at most one has an outer product."""
    tables = [part for part in each if part.table is not None]
    queries = [part.queries for part in each if part.queries is not None]
    keys = [part.keys for part in each if part.keys is not None]
    offsets = [part.offsets for part in each if part.offsets is not None]
    distances = [part.distances for part in each if part.distances is not None]
    total = next((part for part in each if part.tiled is not None), Terms())
    if len(tables) == 1:  # the weight stays apart: the compiled kernel applies it on the way
        total.table, total.weight = tables[0].table, tables[0].weight
    elif tables:
        total.table = _sum([part.weighted_table() for part in tables])
    if queries:
        total.queries, total.keys = queries[0], keys[0]
    if len(queries) == 2:
        total.other_queries, total.other_keys = queries[1], keys[1]
    elif len(queries) > 2:
        total.other_queries, total.other_keys = _joined(queries[1:], keys[1:])
    if offsets:
        total.offsets = _sum(offsets)
    if distances:
        total.distances = _sum(distances)
    return total


def _sum(tensors: Sequence[Tensor | None]) -> Tensor:
    """Add tensors, of which some may have no batch."""
    found = [tensor for tensor in tensors if tensor is not None]
    most = max(tensor.dim() for tensor in found)
    alike = [tensor if tensor.dim() == most else tensor[:, None] for tensor in found]
    return torch.stack(torch.broadcast_tensors(*alike)).sum(0)


def _joined(queries: list[Tensor], keys: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Products side by side, as one of the joint width."""
    batch = max(part.shape[1] for part in (*queries, *keys))
    both = [[part.expand(-1, batch, -1, -1) for part in side] for side in (queries, keys)]
    return torch.cat(both[0], -1), torch.cat(both[1], -1)


def outer_product(tiled: Tensor, repeated: Tensor, j: Tensor) -> Tensor:
    """tiled[..., j mod a] repeated[..., j div a], heads first, for columns j (S,) or (B, S)."""
    a = tiled.shape[-1]
    if j.dim() == 1:
        return tiled[..., j % a] * repeated[..., j // a]
    shape = (*tiled.shape[:-1], j.shape[-1])
    j = j[:, None].expand(shape)
    return tiled.gather(-1, j % a) * repeated.gather(-1, j // a)


class _Corner(torch.autograd.Function):
    """table[:, start:stop, :stop]; two slices would fill a whole gradient with zeros twice."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, start: int, stop: int) -> Tensor:  # noqa: ANN401
        ctx.shape, ctx.start, ctx.stop = table.shape, start, stop
        return table[:, start:stop, :stop]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        whole = grad.new_zeros(ctx.shape)
        whole[:, ctx.start : ctx.stop, : ctx.stop] = grad
        return whole, None, None


def lay_out(numbers: Tensor, num_queries: int, rows: slice, keys: slice) -> Tensor:
    """The logits of some rows and keys, (H, rows, keys), of distances (H, T + S).

    Row i is numbers[T - i :] but for key 0, which has numbers[0]. By strides alone: repeat what
    these read, rows + keys numbers, and cut it anew one number shorter: from row to row it then
    begins one number later.
    """
    height, width = rows.stop - rows.start, keys.stop - keys.start
    start = num_queries - rows.stop + keys.start
    repeated = numbers[:, None, start : start + height + width].expand(-1, height, -1).flatten(1)
    logits = repeated[:, height:].unflatten(1, (height, height + width - 1))[..., :width]
    if keys.start > 0:
        return logits
    return torch.cat([numbers[:, :1, None].expand(-1, height, -1), logits[..., 1:]], -1)


def add_diagonals(total: Tensor, grad: Tensor, num_queries: int, rows: slice, keys: slice) -> None:
    """Add the gradient of lay_out's logits, (H, rows, keys), to that of its numbers."""
    num_heads, height, width = grad.shape
    shifted = grad.new_zeros(num_heads, height * (height + width))
    logits = shifted[:, height:].unflatten(1, (height, height + width - 1))[..., :width]
    logits.copy_(grad)
    if keys.start == 0:
        total[:, 0] += grad[..., 0].sum(1)
        logits[..., 0] = 0.0
    start = num_queries - rows.stop + keys.start
    total[:, start : start + height + width] += shifted.view(num_heads, height, -1).sum(1)
