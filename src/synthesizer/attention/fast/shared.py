"""Attention whose logits have no example in them: one softmax for all of them.

With a mask m of real tokens, P = softmax over all that causality allows and
    Y = (P (m V)) / (P m),
exact while what an example sees of a row is no vanishing part of it: the caller is told otherwise.
Letters as in synthesis.py.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from synthesizer.attention.fast.blocks import block_attention, compiled
from synthesizer.attention.fast.kernel import kernel_for
from synthesizer.attention.fast.table import (
    TableLogits,
    apart,
    attend_by_table,
    beside,
    probabilities,
    row_blocks,
)
from synthesizer.attention.fast.tensors import Parts
from synthesizer.attention.fast.visibility import Sight, sight_of


def shared_attention(
    values: Tensor, logits: TableLogits, causal: bool, dropout: float = 0.0
) -> Tensor:
    """Every example's values (B, H, S, K) by the same weights: (B, T, H, K)."""
    num_queries = logits.shape[0]
    if dropout > 0.0:
        weights = _drop(probabilities(logits, causal), dropout).to(values.dtype)
        return apart(torch.bmm(weights, beside(values)), len(values))
    if num_queries == 1 and not torch.is_grad_enabled():
        return one_row(values, probabilities(logits, causal))
    rows, columns = (None if part is None else part[:, None] for part in logits[1:])
    parts = Parts(values.transpose(0, 1), rows, columns, logits.table)
    if compiled(parts, num_queries) is None:
        return attend_by_table(values, logits, causal)
    sight = sight_of(None, causal, num_queries, values)
    return block_attention(parts, sight, num_queries).permute(1, 2, 0, 3)


def masked_attention(
    values: Tensor, logits: TableLogits, causal: bool, dropout: float, mask: Tensor
) -> Tensor | None:
    """The same where (B, S) mask hides the last keys; None where a share of a row vanishes."""
    real = mask[:, None, :, None].to(values.dtype).expand(-1, values.shape[1], -1, -1)
    if dropout > 0.0:
        weights = probabilities(logits, causal).to(values.dtype)
        share = apart(torch.bmm(weights, beside(real)), len(mask))
        output = apart(torch.bmm(_drop(weights, dropout), beside(values * real)), len(mask))
    else:
        both = shared_attention(torch.cat([values * real, real], -1), logits, causal)
        output, share = both.split([values.shape[-1], 1], -1)
    if _vanishes(share, mask):
        return None
    return output / torch.where(share > 0, share, 1.0)


def frozen_attention(values: Tensor, weights: Tensor, num_queries: int, causal: bool) -> Tensor:
    """Every example's values (B, H, S, K) by the (H, N, N) weights that were held: (B, T, H, K)."""
    num_keys = values.shape[2]
    weights = weights[:, num_keys - num_queries : num_keys, :num_keys]
    if num_queries == 1:
        return one_row(values, weights)
    kernel = kernel_for(values)
    if kernel is not None and weights.dtype == values.dtype and values.stride(-1) == 1:
        parts = Parts(values.transpose(0, 1), table=weights)
        sight = sight_of(None, causal, num_queries, values) if causal else Sight()
        return kernel.attend(parts, sight, num_queries, ready=True).permute(1, 2, 0, 3)
    side_by_side = beside(values)
    output = values.new_empty(values.shape[1], num_queries, side_by_side.shape[2])
    for rows, seen in row_blocks(num_queries, num_keys, causal):
        torch.bmm(weights[:, rows, :seen], side_by_side[:, :seen], out=output[:, rows])
    return apart(output, len(values))


def one_row(values: Tensor, weights: Tensor) -> Tensor:
    """A single query, (H, 1, S), as in decoding: the values stay as they are."""
    weights = weights.to(values.dtype).expand(len(values), -1, -1, -1)
    output = torch.bmm(weights.flatten(0, 1), values.flatten(0, 1))
    return output.view(len(values), 1, values.shape[1], values.shape[3])


def _drop(weights: Tensor, rate: float) -> Tensor:
    """Drop weights; one draw serves the whole batch, as on the plain path."""
    return weights * F.dropout(torch.ones_like(weights), rate)


def _vanishes(share: Tensor, mask: Tensor) -> bool:
    """Whether a row's weights on what an example sees, (B, T, H, 1), are too small to divide by.

    A mask that hides only the end leaves the first token to every row, or nothing to any.
    """
    least = torch.finfo(share.dtype).tiny ** 0.5
    return bool(((share < least) & mask[:, :1, None, None]).any())
