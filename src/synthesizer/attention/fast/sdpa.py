"""The forward pass of bilinear terms plus a table by PyTorch's fused kernel, in blocks of rows.

The kernel takes a bias, but has no gradient for it and, given one, no causality: so it is called
for forward alone, a causal block's keys cut off at its last row. Letters as in terms.py.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from synthesizer.attention.fast.table import row_blocks
from synthesizer.attention.fast.tensors import Parts
from synthesizer.attention.fast.visibility import Sight


def fits(parts: Parts, sight: Sight) -> bool:
    """Whether the kernel computes this: it wants one width, and a bias that no example owns."""
    if parts.queries is None or parts.values is None or parts.tiled is not None:
        return False
    same_width = parts.queries.shape[-1] == parts.values.shape[-1]
    shared = sight.causal or sight.counts is None
    return same_width and shared and parts.values.device.type == "cpu"


def attend_fused(parts: Parts, sight: Sight, num_queries: int) -> Tensor:
    """softmax(queries keys^T + table + offsets) values: (H, B, T, K)."""
    values, queries, keys = parts.values, parts.queries, parts.keys
    assert values is not None
    assert queries is not None
    assert keys is not None
    num_heads, batch, num_keys, _ = values.shape
    output = torch.empty_like(values[:, :, :num_queries])
    keys = keys.expand(-1, batch, -1, -1)
    blocks = [(slice(0, num_queries), num_keys)]
    if sight.causal:
        blocks = row_blocks(num_queries, num_keys, causal=True)
    for rows, seen in blocks:
        num_rows = rows.stop - rows.start
        bias = _bias(parts, sight.causal, rows, seen)
        output[:, :, rows] = F.scaled_dot_product_attention(
            queries[:, :, rows].transpose(0, 1),
            keys[:, :, :seen].transpose(0, 1),
            values[:, :, :seen].transpose(0, 1),
            attn_mask=None if bias is None else bias.expand(batch, num_heads, num_rows, seen),
            scale=1.0,
        ).transpose(0, 1)
    return output


def _bias(parts: Parts, causal: bool, rows: slice, seen: int) -> Tensor | None:
    """What is added to the products of a block: (H, rows or 1, seen).

    Detached: a bias that might want a gradient sends the whole call off the fused path.
    """
    bias = None if parts.table is None else parts.table[:, rows, :seen].detach()
    if parts.offsets is not None:
        offsets = parts.offsets[:, None, :seen].detach()
        bias = offsets if bias is None else bias + offsets
    if not causal:
        return bias
    num_rows, values = rows.stop - rows.start, parts.values
    assert values is not None
    future = torch.ones(num_rows, seen, dtype=torch.bool, device=values.device)
    future = future.triu(seen - num_rows + 1)
    if bias is None:
        bias = values.new_zeros(1, 1, 1)
    return bias.masked_fill(future, -torch.inf)
