"""A few rows times a weight, as in decoding.

Such a product reads every weight once, so that memory decides. For nn.Linear's layout and up to
eight rows torch's BLAS needs up to twice the time that reading takes, and for a weight of every
head, (H, D, K), a copy besides. The compiled kernel (fast/kernel.c) reads either as it lies; where
it is not there, or a gradient is wanted, torch does it. Letters as in synthesis.py.
"""

import os

import torch
from torch import Tensor

FEW = 8  # rows, up to which reading the weight takes longer than multiplying
LARGE = 2**16  # numbers of a weight, from which on a call of the kernel pays


def few_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """x (..., D) by a weight (N, D), or (H, D, K) side by side; None where torch has to do it."""
    from synthesizer.attention.fast.kernel import HOME, LANES, loaded

    tensors = [x, weight] if bias is None else [x, weight, bias]
    if (
        torch.compiler.is_compiling()
        or x.numel() > FEW * x.shape[-1]
        or weight.numel() < LARGE
        or (weight.dim() == 3 and weight.shape[-1] % LANES)
        or torch.is_grad_enabled()
        or torch.jit.is_tracing()  # type: ignore[attr-defined]
        or torch.is_autocast_enabled("cpu")
        or any(part.dtype != torch.float32 or part.device.type != "cpu" for part in tensors)
        or type(x) is not Tensor
        or not weight.is_contiguous()
    ):
        return None
    kernel = loaded(os.environ.get(HOME))
    return None if kernel is None else kernel.project(x, weight, bias)
