"""Call kernel.c and rows.c: attention of any sum of terms and its gradient, and a few rows.

The structures are those of the C files. Letters as in attention/terms.py.
"""

import ctypes

import torch
from torch import Tensor

from synthesizer_attention.attention.masks import Visibility, is_transformed
from synthesizer_attention.attention.terms import Terms
from synthesizer_attention.kernels.cpu import RUNTIME, Kernel, in_use

CACHED = 2**17  # numbers of a block's logits: they and their gradient stay in the second cache
FEWEST_ROWS, MOST_ROWS = 64, 256
BESIDE = 2**20  # numbers of the values that stand side by side
SMALL = 256  # keys up to which matrices are so small that kernel.c multiplies them itself
LANES = 16  # of the kernel's vectors


class Strided(ctypes.Structure):
    """What kernel.c calls Strided: (H, B, rows, n), the last without gaps; shared axes step 0."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("head", "example", "row")],
    )


class Numbers(ctypes.Structure):
    """What kernel.c calls Numbers: (B or 1, T), int32, the last without gaps."""

    _fields_ = (("data", ctypes.c_void_p), ("example", ctypes.c_int64))


class KernelCall(ctypes.Structure):
    """What kernel.c calls a Call."""

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("gemm", *RUNTIME)],
        *[(name, ctypes.c_int64) for name in ("threads", "heads", "batch", "beside")],
        *[(name, ctypes.c_int64) for name in ("num_queries", "num_keys", "width", "value_width")],
        *[(name, ctypes.c_int64) for name in ("rows", "a", "b", "ready", "small")],
        ("first_width", ctypes.c_int64),
        *[(name, Strided) for name in vars(Terms())],
        ("output", Strided),
        *[(f"grad_{name}", Strided) for name in vars(Terms())],
        *[(name, Numbers) for name in ("starts", "stops", "table_rows")],
        ("room", ctypes.c_void_p),
    )


def run(
    kernel: Kernel,
    terms: Terms,
    visibility: Visibility,
    output: Tensor,
    *,
    ready: bool = False,
    grads: Terms | None = None,
) -> None:
    """Write softmax(terms over what is seen) values, (H, B, T, K); ready: weights, no terms.

    With grads, output is the output's gradient, and what grads has room for is written; that of
    the table is added.
    """
    assert terms.values is not None
    num_heads, batch, num_queries, value_width = output.shape
    num_keys, queries, tiled = terms.values.shape[2], terms.queries, terms.tiled
    sides = (queries, terms.other_queries, tiled, terms.repeated)
    first, other, a, b = [0 if part is None else part.shape[-1] for part in sides]
    alike = queries is None or (queries.shape[1] == 1 and terms.other_queries is None)
    alike = alike and tiled is None and visibility.is_shared
    beside = min(max(1, batch), max(1, BESIDE // (num_keys * value_width))) if alike else 1
    budget = CACHED // 2 if visibility.grows else CACHED
    rows = min(max(FEWEST_ROWS, budget // num_keys), MOST_ROWS, num_queries)
    threads = torch.get_num_threads() if kernel.runtime[0] else 1
    sizes = (threads, num_heads, batch, beside, num_queries, num_keys, first + other, value_width)
    call = KernelCall(kernel.gemm, *kernel.runtime, *sizes, rows, a, b, ready, SMALL, first)
    given = {"output": output, **vars(terms)}
    if grads is not None:
        given |= {f"grad_{name}": tensor for name, tensor in vars(grads).items()}
    for name, tensor in given.items():
        if tensor is not None:
            (heads, *others), steps = tensor.shape, tensor.stride()  # an axis of one is shared
            example = steps[1] if len(others) == 3 and others[0] > 1 else 0
            row = steps[-2] if len(others) > 1 else 0
            head = steps[0] if heads > 1 else 0
            setattr(call, name, Strided(tensor.data_ptr(), head, example, row))
    for name in ("starts", "stops", "table_rows"):
        numbers = getattr(visibility, name)
        if numbers is not None:
            step = numbers.stride(0) if len(numbers) > 1 else 0
            setattr(call, name, Numbers(numbers.data_ptr(), step))
    library, pointer = kernel.library, ctypes.byref(call)
    room = output.new_empty(threads * library.workspace(pointer))
    call.room = room.data_ptr()
    (library.attend if grads is None else library.attend_back)(pointer)


class RowsCall(ctypes.Structure):
    """What rows.c calls Rows."""

    _fields_ = (
        ("runtime", ctypes.c_void_p * 4),
        *[(name, ctypes.c_int64) for name in ("threads", "rows", "inputs", "outputs", "heads")],
        *[(name, ctypes.c_void_p) for name in ("x", "weight", "bias", "y")],
    )


def few_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """x (..., D) by a weight (N, D), or (H, D, K) side by side; None where torch has to do it."""
    if (
        (weight.dim() == 3 and weight.shape[-1] % LANES)
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
    kernel = in_use()
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
