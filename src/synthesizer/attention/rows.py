"""A few rows times a weight, as in decoding.

Such a product reads every weight once, so that memory decides. For nn.Linear's layout and up to
eight rows torch's BLAS needs up to twice the time that reading takes, and for a weight of every
head, (H, D, K), a copy besides. The compiled kernel (fast/rows.c) reads either as it lies; where
it is not there, or a gradient is wanted, torch does it. Letters as in synthesis.py.
"""

import ctypes
import os

import torch
from torch import Tensor

from synthesizer.attention.masks import is_transformed

FEW = 8  # rows, up to which reading the weight takes longer than multiplying
LARGE = 2**16  # numbers of a weight, from which on a call of the kernel pays
LANES = 16  # of the kernel's vectors


class RowsCall(ctypes.Structure):
    """What rows.c calls Rows."""

    _fields_ = (
        ("runtime", ctypes.c_void_p * 4),
        *[(name, ctypes.c_int64) for name in ("threads", "rows", "inputs", "outputs", "heads")],
        *[(name, ctypes.c_void_p) for name in ("x", "weight", "bias", "y")],
    )


def few_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """x (..., D) by a weight (N, D), or (H, D, K) side by side; None where torch has to do it."""
    if (
        weight.numel() < LARGE
        or torch.compiler.is_compiling()
        or x.numel() > FEW * x.shape[-1]
        or (weight.dim() == 3 and weight.shape[-1] % LANES)
        or torch.is_grad_enabled()
        or is_transformed()
        or torch.jit.is_tracing()  # type: ignore[attr-defined]
        or torch.is_autocast_enabled("cpu")
        or any(
            part is not None and (part.dtype != torch.float32 or part.device.type != "cpu")
            for part in (x, weight, bias)
        )
        or type(x) is not Tensor
        or not weight.is_contiguous()
    ):
        return None
    from synthesizer.attention.fast.kernel import HOME, loaded

    kernel = loaded(os.environ.get(HOME))
    if kernel is None:
        return None
    x, heads = x.contiguous(), weight.shape[0] if weight.dim() == 3 else 0
    outputs = weight.shape[-1 if heads else 0]
    y = x.new_empty(*x.shape[:-1], outputs * max(1, heads))
    threads = torch.get_num_threads() if kernel.runtime[0] else 1
    sizes = (threads, x.numel() // x.shape[-1], x.shape[-1], outputs, heads)
    data = (x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr())
    kernel.library.project(ctypes.byref(RowsCall(kernel.runtime, *sizes, *data, y.data_ptr())))
    return y
