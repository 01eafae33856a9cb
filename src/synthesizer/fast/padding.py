"""What a mask of real tokens means to each example and each row."""

import torch
from torch import Tensor


def sees_something(mask: Tensor, causal: bool, num_queries: int) -> Tensor:
    """Whether each of the last T slots may look at any real token: (B, T)."""
    if not causal:
        return mask.any(-1, keepdim=True).expand(-1, num_queries)
    return mask.cumsum(-1)[:, mask.shape[1] - num_queries :] > 0


def last_real(mask: Tensor) -> tuple[int, ...]:
    """How many slots each example has up to its last real token."""
    slots = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return tuple((mask * slots).amax(-1).tolist())
