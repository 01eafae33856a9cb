"""The softmax of a block of rows and its gradient, in place, in torch.

    weights = softmax(logits + table + offsets) over the first counts[b,i] keys, 0 beyond
    d logits = weights (d weights - sum over keys of weights d weights)

A block is (heads, examples, rows, width), contiguous; table and offsets have no example in them,
and places, if given, say which row of the table each example's row reads. Letters as in terms.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """Some rows of some examples: what they see and which rows of a table they read."""

    fewest: int  # the least that any of them sees
    most: int  # and the greatest
    counts: Tensor | None = None  # (examples or 1, rows), int32; None: all see `most`
    places: Tensor | None = None  # (examples, rows), int32; None: the table's rows are theirs


@dataclass(frozen=True)
class Added:
    """What all examples add to their logits, or the gradients of it."""

    table: Tensor | None = None  # (heads, rows, >= most), or (heads, N, >= most) with places
    offsets: Tensor | None = None  # (heads, >= most)


def soften(logits: Tensor, added: Added, rows: Rows, fresh: bool = False) -> None:
    """Turn a block's logits into weights; a fresh block holds none yet."""
    if fresh:
        logits.zero_()
    if added.table is not None:
        logits[..., : rows.most] += _read(added.table[..., : rows.most], rows.places)
    if added.offsets is not None:
        logits[..., : rows.most] += added.offsets[:, None, None, : rows.most]
    logits[..., rows.most :] = -torch.inf
    if rows.counts is not None:
        logits[..., rows.fewest : rows.most].masked_fill_(_hidden(rows), -torch.inf)
    torch.softmax(logits, -1, out=logits)
    if rows.counts is not None and rows.fewest == 0:
        logits.masked_fill_((rows.counts == 0)[..., None], 0.0)


def soften_back(down: Tensor, weights: Tensor, grads: Added, rows: Rows) -> None:
    """Turn the gradient of weights into that of logits; add it to those of table and offsets."""
    down[..., rows.most :] = 0.0
    torch._softmax_backward_data(down, weights, -1, down.dtype, grad_input=down)
    if grads.table is not None:
        _add(grads.table[..., : rows.most], down[..., : rows.most], rows.places)
    if grads.offsets is not None:
        grads.offsets[:, : rows.most] += down[..., : rows.most].sum((1, 2))


def _hidden(rows: Rows) -> Tensor:
    """True where a row must not look, from the first column that any row must not look at."""
    assert rows.counts is not None
    slots = torch.arange(rows.fewest, rows.most, dtype=torch.int32, device=rows.counts.device)
    return slots >= rows.counts[..., None]


def _read(table: Tensor, places: Tensor | None) -> Tensor:
    """The rows of a table that each example's rows read: (heads, examples or 1, rows, seen)."""
    return table[:, None] if places is None else table[:, places]


def _add(grad: Tensor, down: Tensor, places: Tensor | None) -> None:
    """Add what each example says of the rows that it read."""
    if places is not None:
        grad.index_add_(1, places.flatten(), down.flatten(1, 2))
        return
    for example in down.unbind(1):
        grad += example
