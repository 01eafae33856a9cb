"""Attention logits that depend on how far apart two tokens are, with sinks as columns of their own.

Letters: B batch, H heads, T queries, S keys, N longest distance + 1.
"""

import torch
from torch import Tensor


def relative_logits(
    offsets: Tensor, sinks: Tensor, distance: Tensor, is_first: Tensor, is_last: Tensor | None
) -> Tensor:
    """B[i,j] = sinks[0] where j is the first token, sinks[1] where it is the last, else r[j - i].

    offsets    (H, 2N - 1)           r, from -(N - 1) to N - 1; farther distances read its ends
    sinks      (H, 1 or 2)           the first token's logit and, where it has one, the last's
    distance   (T, S) or (B, T, S)   j - i, in tokens
    is_first   (S,) or (B, S)        True at the first token
    is_last    (S,) or (B, S)        True at the last token; None where it is like any other
    """
    reach = offsets.shape[1] // 2
    logits = offsets[:, distance.clamp(-reach, reach) + reach].movedim(0, -3)  # (B?, H, T, S)
    logits = logits if logits.dim() == 4 else logits[None]
    for column, where in enumerate((is_first, is_last)):
        if where is not None:
            at = where[..., None, None, :] if where.dim() == 2 else where
            logits = torch.where(at, sinks[:, column, None, None], logits)
    return logits
