"""Attention of any sum of terms and its gradient, for eager calls and, as operators, for compiled.

It is computed by the compiled kernel, by Triton's on a GPU, or in torch's blocks. torch.compile and
torch.export see two opaque operators, synthesizer::attend and synthesizer::attend_back: no graph
break, any length, and no (B, H, T, S) when compiled either. Letters as in terms.py.
"""

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from synthesizer.attention.fast import gpu
from synthesizer.attention.fast.blocks import Workspace, columns_of, sdpa_forward
from synthesizer.attention.fast.kernel import HOME, RUNTIME, Kernel, loaded
from synthesizer.attention.fast.terms import Terms, uses_kernel
from synthesizer.attention.fast.twice import gradients_of_terms
from synthesizer.attention.masks import Visibility

NUM_TERMS = len(vars(Terms()))
RANGES = "Tensor? starts, Tensor? stops, Tensor? table_rows, bool grows, bool is_shared"
TERMS = f"Tensor {', Tensor? '.join(vars(Terms()))}, {RANGES}"
CACHED = 2**17  # numbers of a block's logits: they and their gradient stay in the second cache
FEWEST_ROWS, MOST_ROWS = 64, 256
BESIDE = 2**20  # numbers of the values that stand side by side
SMALL = 256  # keys up to which matrices are so small that kernel.c multiplies them itself


def block_attention(terms: Terms, visibility: Visibility, num_queries: int) -> Tensor:
    """softmax(sum of terms over what is seen) values: (B, T, H, K); what sees nothing is zero."""
    assert terms.values is not None
    with_kernel = uses_kernel(terms.values, num_queries)
    if not with_kernel:
        terms.write_out(num_queries)
    tensors, dtype = [], terms.values.dtype
    for tensor in vars(terms).values():
        if tensor is not None:
            tensor = tensor.to(dtype)
            if not with_kernel or tensor.stride(-1) != 1:  # the kernel takes strided rows
                tensor = tensor.contiguous()
        tensors.append(tensor)
    if not torch.compiler.is_compiling():
        output: Tensor = _BlockAttention.apply(visibility, num_queries, *tensors)
        return output
    ranges = (visibility.starts, visibility.stops, visibility.table_rows)
    rule = (visibility.grows, visibility.is_shared)
    compiled: Tensor = torch.ops.synthesizer.attend(*tensors, *ranges, *rule, num_queries)[0]
    return compiled


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        visibility: Visibility,
        num_queries: int,
        *tensors: Tensor | None,
    ) -> Tensor:
        output, kept = attend_terms(Terms(*tensors), visibility, num_queries)
        ctx.save_for_backward(*tensors, output if kept.dim() > 1 else None, kept)
        ctx.visibility = visibility
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        *tensors, output, kept = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            return None, None, *gradients_of_terms(tensors, ctx.visibility, grad, wanted)
        grads = attend_back(Terms(*tensors), ctx.visibility, output, kept, grad, wanted)
        return None, None, *vars(grads).values()


def attend_terms(terms: Terms, visibility: Visibility, num_queries: int) -> tuple[Tensor, Tensor]:
    """softmax(terms over what is seen) values, (B, T, H, K), and what backward wants besides."""
    values, queries = terms.values, terms.queries
    assert values is not None
    num_heads, batch, _, width = values.shape
    if values.device.type in gpu.DEVICES and gpu.uses_triton(terms):
        return gpu.attend(terms, visibility, num_queries)
    output = values.new_empty(batch, num_queries, num_heads, width)
    by_head, nothing = output.permute(2, 0, 1, 3), values.new_empty(0, dtype=torch.float32)
    kernel = loaded(os.environ.get(HOME)) if uses_kernel(values, num_queries) else None
    if kernel is not None:
        run_kernel(kernel, terms, visibility, by_head)
        return output, nothing
    # two were left apart for a kernel that was there when the graph was compiled
    assert terms.other_queries is None, "the compiled kernel has gone; compile the model again"
    # PyTorch's own kernel wants one width, and no example with a mask of its own
    same_width = queries is not None and queries.shape[-1] == width
    if same_width and terms.tiled is None and visibility.is_shared and not values.is_cuda:
        sdpa_forward(terms, visibility, by_head)
        return output, nothing
    workspace = Workspace(terms, visibility, num_queries)
    by_head = values.new_empty(num_heads, batch, num_queries, width)  # whose parts are matrices
    for block in workspace.blocks():
        workspace.write_output(block, by_head)
    return by_head.permute(1, 2, 0, 3), nothing


def attend_back(
    terms: Terms,
    visibility: Visibility,
    output: Tensor | None,
    kept: Tensor,
    grad: Tensor,
    wanted: Sequence[bool],
) -> Terms:
    """The gradients that are wanted, given that of the output, (B, T, H, K).

    The output itself is asked for where something was kept of it, on a GPU.
    """
    assert terms.values is not None
    num_queries, by_head = grad.shape[1], grad.permute(2, 0, 1, 3)
    if terms.values.device.type in gpu.DEVICES and gpu.uses_triton(terms):
        assert output is not None
        return gpu.attend_back(terms, visibility, output, kept, grad, wanted)
    kernel = loaded(os.environ.get(HOME)) if uses_kernel(terms.values, num_queries) else None
    # the kernel adds to the table's gradient and writes all others, if there is an example
    make = torch.zeros_like if kernel is None or not grad.numel() else torch.empty_like
    grads = Terms(
        *[
            make(tensor) if want and tensor is not None else None
            for tensor, want in zip(vars(terms).values(), wanted, strict=True)
        ]
    )
    if kernel is not None:
        if grads.table is not None:
            grads.table.zero_()
        by_head = by_head if by_head.stride(-1) == 1 else by_head.contiguous()
        run_kernel(kernel, terms, visibility, by_head, grads=grads)
        return grads
    workspace = Workspace(terms, visibility, num_queries)
    grads.values, grads.keys = columns_of(grads.values), columns_of(grads.keys)
    for block in workspace.blocks():
        workspace.add_gradients(block, by_head, grads)
    return grads


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


def run_kernel(
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


@torch.library.custom_op(
    "synthesizer::attend",
    mutates_args=(),
    schema=f"({TERMS}, SymInt num_queries) -> Tensor[]",
    tags=(torch.Tag.needs_exact_strides,),
)
def _attend(*given: Any) -> list[Tensor]:  # noqa: ANN401
    output, kept = attend_terms(*_unpacked(given[:-1]), given[-1])
    return [output.contiguous(), kept]


@_attend.register_fake
def _(*given: Any) -> list[Tensor]:  # noqa: ANN401
    values, num_queries = given[0], given[-1]
    num_heads, batch, _, width = values.shape
    terms = Terms(*given[:NUM_TERMS])
    with_triton = values.device.type in gpu.DEVICES and gpu.uses_triton(terms)
    kept = [batch, num_heads, num_queries] if with_triton else [0]
    output = values.new_empty(batch, num_queries, num_heads, width)
    return [output, values.new_empty(kept, dtype=torch.float32)]


@torch.library.custom_op(
    "synthesizer::attend_back",
    mutates_args=(),
    schema=f"({TERMS}, Tensor? output, Tensor kept, Tensor grad, bool[] wanted) -> Tensor[]",
    tags=(torch.Tag.needs_exact_strides,),
)
def _attend_back(*given: Any) -> list[Tensor]:  # noqa: ANN401
    """Gradients lie in memory as their tensors do: projections go on from there, uncopied."""
    grads = attend_back(*_unpacked(given[:-4]), *given[-4:])
    both = zip(given[:NUM_TERMS], vars(grads).values(), strict=True)
    return [_laid_as(tensor, grad) for tensor, grad in both if grad is not None]


@_attend_back.register_fake
def _(*given: Any) -> list[Tensor]:  # noqa: ANN401
    tensors, wanted = given[:NUM_TERMS], given[-1]
    return [torch.empty_like(tensor) for tensor, want in zip(tensors, wanted, strict=True) if want]


def _laid_as(tensor: Tensor, grad: Tensor) -> Tensor:
    """The gradient in the strides of torch.empty_like(tensor), which the fake kernel promises."""
    if grad.stride() == torch.empty_like(tensor, device="meta").stride():
        return grad
    return torch.empty_like(tensor).copy_(grad)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:  # noqa: ANN401
    *given, _ = inputs
    ctx.rule = given[-2:]
    made, kept = output
    ctx.save_for_backward(*given[:-2], made if kept.dim() > 1 else None, kept)


def _differentiate(ctx: Any, grads: list[Tensor]) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    *given, output, kept = ctx.saved_tensors
    wanted = [
        want and tensor is not None
        for want, tensor in zip(ctx.needs_input_grad[:NUM_TERMS], given[:NUM_TERMS], strict=True)
    ]
    if torch.is_grad_enabled():
        _, visibility = _unpacked((*given, *ctx.rule))
        each = gradients_of_terms(given[:NUM_TERMS], visibility, grads[0], wanted)
    else:
        arguments = (*given, *ctx.rule, output, kept, grads[0], wanted)
        found = iter(torch.ops.synthesizer.attend_back(*arguments))
        each = [next(found) if want else None for want in wanted]
    return *each, *[None] * (len(given) - NUM_TERMS + 3)


torch.library.register_autograd("synthesizer::attend", _differentiate, setup_context=_keep)


def _unpacked(given: Any) -> tuple[Terms, Visibility]:  # noqa: ANN401
    """Terms and visibility of an operator's arguments."""
    *tensors, starts, stops, table_rows, grows, is_shared = given
    ranges = {"stops": stops, "starts": starts, "table_rows": table_rows}
    return Terms(*tensors), Visibility(**ranges, grows=grows, is_shared=is_shared)
