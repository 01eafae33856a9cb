"""Attention of any sum of terms and its gradient, for eager calls and, as operators, for compiled.

It is computed by the compiled kernel, by Triton's on a GPU, or in torch's blocks. torch.compile and
torch.export see two opaque operators, synthesizer::attend and synthesizer::attend_back: no graph
break, any length, and no (B, H, T, S) when compiled either. Letters as in terms.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from synthesizer_attention.attention import hook
from synthesizer_attention.attention.fast.blocks import Workspace, columns_of, sdpa_forward
from synthesizer_attention.attention.hook import kernels, uses_kernel
from synthesizer_attention.attention.masks import Visibility, masked_softmax
from synthesizer_attention.attention.terms import Terms

NUM_TERMS = len(vars(Terms()))
MULTIPLIED = ("values", "queries", "keys", "other_queries", "other_keys")
RANGES = "Tensor? starts, Tensor? stops, Tensor? table_rows, bool grows, bool is_shared"
TERMS = f"Tensor {', Tensor? '.join(vars(Terms()))}, {RANGES}"


def block_attention(terms: Terms, visibility: Visibility, num_queries: int) -> Tensor:
    """softmax(sum of terms over what is seen) values: (B, T, H, K); what sees nothing is zero."""
    assert terms.values is not None
    with_kernel = uses_kernel(terms.values, num_queries)
    if not with_kernel:
        terms.write_out(num_queries)
    tensors, dtype = [], terms.values.dtype
    for name, tensor in vars(terms).items():
        if tensor is not None:
            # of bfloat16 the kernel takes products alone: all else is added in float32
            is_added = with_kernel and name not in MULTIPLIED
            tensor = tensor.to(torch.float32 if is_added else dtype)
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
    if values.device.type in hook.GPUS and kernels().takes_on_gpu(terms):
        return kernels().attend_on_gpu(terms, visibility, num_queries)
    output = values.new_empty(batch, num_queries, num_heads, width)
    by_head, nothing = output.permute(2, 0, 1, 3), values.new_empty(0, dtype=torch.float32)
    if uses_kernel(values, num_queries):
        kernels().attend(terms, visibility, by_head)
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
    if terms.values.device.type in hook.GPUS and kernels().takes_on_gpu(terms):
        assert output is not None
        return kernels().attend_back_on_gpu(terms, visibility, output, kept, grad, wanted)
    with_kernel = uses_kernel(terms.values, num_queries)
    # the kernel adds to the table's gradient and writes all others, if there is an example
    make = torch.empty_like if with_kernel and grad.numel() else torch.zeros_like
    grads = Terms(
        *[
            make(tensor) if want and tensor is not None else None
            for tensor, want in zip(vars(terms).values(), wanted, strict=True)
        ]
    )
    if with_kernel:
        if grads.table is not None:
            grads.table.zero_()
        by_head = by_head if by_head.stride(-1) == 1 else by_head.contiguous()
        kernels().attend(terms, visibility, by_head, grads=grads)
        return grads
    workspace = Workspace(terms, visibility, num_queries)
    grads.values, grads.keys = columns_of(grads.values), columns_of(grads.keys)
    for block in workspace.blocks():
        workspace.add_gradients(block, by_head, grads)
    return grads


def gradients(
    attention: Callable[..., Tensor],
    tensors: Sequence[Tensor | None],
    wanted: Sequence[bool],
    grad: Tensor,
) -> list[Tensor | None]:
    """The gradients of attention(*tensors) that are wanted, each with a graph of its own.

    A fast gradient has no graph. Where one is asked for (create_graph=True), backward writes the
    attention out and has autograd differentiate that.
    """
    # as views, so that no tensor's gradient runs on into another that it was made of
    own = [None if tensor is None else tensor.view_as(tensor) for tensor in tensors]
    pairs = zip(own, wanted, strict=True)
    chosen = [tensor for tensor, want in pairs if want and tensor is not None]
    given = {"create_graph": True, "allow_unused": True}
    found = iter(torch.autograd.grad(attention(*own), chosen, grad, **given))
    return [next(found) if want else None for want in wanted]


def gradients_of_terms(
    tensors: Sequence[Tensor | None], visibility: Visibility, grad: Tensor, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """The same of a sum of terms, given the gradient (B, T, H, K) of what written_out says."""

    def attention(*each: Tensor | None) -> Tensor:
        return written_out(Terms(*each), visibility, grad.shape[1])

    return gradients(attention, tensors, wanted, grad)


def written_out(terms: Terms, visibility: Visibility, num_queries: int) -> Tensor:
    """softmax(sum of terms over what is seen) values: (B, T, H, K); what sees nothing is zero."""
    values, rows = terms.values, visibility.table_rows
    assert values is not None
    terms.write_out(num_queries)
    if terms.table is not None and rows is not None:
        terms.table = terms.table[:, rows]
    num_keys = values.shape[2]
    visible = None
    if visibility.stops is not None:
        columns = torch.arange(num_keys, device=values.device)
        visible = columns < visibility.stops[..., None]  # (B or 1, T, S)
        if visibility.starts is not None:
            visible = visible & (columns >= visibility.starts[..., None])
        visible = visible[:, None]
    weights = masked_softmax(terms.logits(num_queries, num_keys), visible)
    return torch.einsum("bhts,hbsk->bthk", weights.to(values.dtype), values)


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
    on_gpu = values.device.type in hook.GPUS and kernels().takes_on_gpu(terms)
    kept = [batch, num_heads, num_queries] if on_gpu else [0]
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
