"""One more token of a few sequences through a stack, by one call of decode.c.

The same as Stack.forward, where that is nothing but equations: float32 on a CPU, no gradient, a
cache, at most eight sequences, and modules as this package builds them, without hooks. Elsewhere
None is returned, and the stack must be called. Nothing is held from token to token: addresses are
asked anew, so that new weights are read at once. Letters as in synthesis.py.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook

from synthesizer_attention.attention.hook import FEW, LARGE
from synthesizer_attention.attention.layer import SyntheticAttention
from synthesizer_attention.attention.masks import is_transformed
from synthesizer_attention.attention.synthesis import (
    Dense,
    DotProduct,
    FactorizedDense,
    FactorizedRandom,
    FixedRandom,
    Mixture,
    Random,
    Relative,
    Synthesis,
)
from synthesizer_attention.kernels.cpu import RUNTIME, Kernel, in_use
from synthesizer_attention.models.generation import ValueLayer
from synthesizer_attention.models.layers import FeedForward, Layer, Positions, Stack, first_angles

MOST_PARTS = 4
TABLE, LOW_RANK, RELATIVE, DOT, DENSE, OUTER = range(6)
TENSORS = (nn.Parameter, Tensor)
NONE, SINUSOIDAL, LEARNED = range(3)
ACTIVATIONS = (F.relu, F.gelu)


class Unfit(Exception):  # noqa: N818
    """This call is not the kernel's."""


def _pointers(*names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_void_p) for name in names]


def _numbers(*names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_int64) for name in names]


class NormCall(ctypes.Structure):
    """What decode.c calls a Norm."""

    _fields_ = (
        *_pointers("weight", "bias"),
        ("eps", ctypes.c_double),
        *_numbers("has_mean"),
    )


class LinearCall(ctypes.Structure):
    """What decode.c calls Linear."""

    _fields_ = tuple(_pointers("weight", "bias"))


class KeptCall(ctypes.Structure):
    """What decode.c calls Kept: (B, H, S, width), the last without gaps."""

    _fields_ = (*_pointers("data"), *_numbers("example", "head", "row"))


class PartCall(ctypes.Structure):
    """What decode.c calls a Part."""

    _fields_ = (
        *_numbers("kind", "n", "b", "from_key"),
        *_pointers("w1", "b1", "w2", "b2", "w3", "b3"),
    )


class LayerCall(ctypes.Structure):
    """What decode.c calls a Layer."""

    _fields_ = (
        *[(name, NormCall) for name in ("before", "between")],
        *[(name, LinearCall) for name in ("value", "output", "widen", "narrow")],
        *_numbers("inner", "is_gelu", "num_parts", "is_shared"),
        ("parts", PartCall * MOST_PARTS),
        *_pointers("mix", "ready"),
        *_numbers("num_ready"),
        *[(name, KeptCall) for name in ("keys", "values")],
    )


class StepCall(ctypes.Structure):
    """What decode.c calls a Step."""

    _fields_ = (
        *_pointers(*RUNTIME),
        *_numbers("threads", "batch", "width", "heads", "head_width", "num_keys", "num_layers"),
        *_numbers("norms_first", "positions"),
        *_pointers("places", "starts", "layers"),
        ("last", NormCall),
        *_pointers("x", "room"),
    )


def check(module: Any, kind: type[nn.Module]) -> None:  # noqa: ANN401
    """Refuse another module than this, one that trains, or one whose call does more."""
    if (
        type(module) is not kind
        or module.training
        or module._forward_hooks
        or module._forward_pre_hooks
        or "forward" in vars(module)
    ):
        raise Unfit


def address(tensor: Tensor, *shape: int) -> int:
    """Where the numbers of a float32 tensor on the CPU lie, of this shape and without gaps."""
    if (
        type(tensor) not in TENSORS
        or tensor.dtype is not torch.float32
        or tensor.shape != shape
        or not (tensor.is_cpu and tensor.is_contiguous())
    ):
        raise Unfit
    return tensor.data_ptr()


def linear_call(layer: Any, inputs: int, outputs: int) -> LinearCall:  # noqa: ANN401
    """Describe an nn.Linear."""
    check(layer, nn.Linear)
    bias = None if layer.bias is None else address(layer.bias, outputs)
    return LinearCall(address(layer.weight, outputs, inputs), bias)


def norm_call(norm: Any, width: int) -> NormCall:  # noqa: ANN401
    """Describe a norm, or none."""
    if type(norm) is nn.Identity:
        check(norm, nn.Identity)
        return NormCall()
    has_mean = type(norm) is nn.LayerNorm
    check(norm, nn.LayerNorm if has_mean else nn.RMSNorm)
    if norm.weight is None:
        raise Unfit
    bias = address(norm.bias, width) if has_mean and norm.bias is not None else None
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    return NormCall(address(norm.weight, width), bias, eps, has_mean)


def fill_attention(
    call: LayerCall, attention: SyntheticAttention, num_keys: int, is_padded: bool
) -> int:
    """Describe an attention whose query is the last of so many tokens; the width of its keys."""
    size, frozen = attention.size, attention.frozen
    if attention.path == "plain" or attention.window is not None or attention.turns:
        raise Unfit
    call.value = linear_call(attention.value, size.d_model, size.d_model)
    call.output = linear_call(attention.output, size.d_model, size.d_model)
    synthesis: Any = attention.synthesis
    parts = [synthesis]
    if type(synthesis) is Mixture:
        check(synthesis, Mixture)
        parts = list(synthesis.parts)
        call.mix = address(synthesis.mix, size.num_heads, len(parts))
    if len(parts) > MOST_PARTS:
        raise Unfit
    d_keys = 0
    for index, part in enumerate(parts):
        describe = _PARTS.get(type(part))
        if describe is None or part.has_last:
            raise Unfit
        check(part, type(part))
        call.parts[index] = describe(part, attention, num_keys, d_keys)
        d_keys += part.d_keys
    call.num_parts, call.is_shared = len(parts), not synthesis.depends_on_input
    if frozen is not None and attention.causal and not is_padded and num_keys <= frozen.shape[-1]:
        call.num_ready = frozen.shape[-1]
        call.ready = address(frozen, size.num_heads, call.num_ready, call.num_ready)
    return d_keys


def _table(part: Random, attention: SyntheticAttention, num_keys: int, from_key: int) -> PartCall:
    table = part.table
    n = _at_least(table.shape[-1], num_keys)
    return PartCall(TABLE, n, 0, 0, address(table, attention.size.num_heads, n, n))


def _low_rank(
    part: FactorizedRandom, attention: SyntheticAttention, num_keys: int, from_key: int
) -> PartCall:
    n, k = _at_least(part.rows.shape[1], num_keys), part.k
    shape = (attention.size.num_heads, n, k)
    rows, columns = address(part.rows, *shape), address(part.columns, *shape)
    return PartCall(LOW_RANK, k, n, 0, rows, None, columns)


def _relative(
    part: Relative, attention: SyntheticAttention, num_keys: int, from_key: int
) -> PartCall:
    heads, count = attention.size.num_heads, part.offsets.shape[-1]
    offsets, first = address(part.offsets, heads, count), address(part.first, heads, 1)
    return PartCall(RELATIVE, count // 2 + 1, 0, 0, offsets, None, first)


def _dot(part: DotProduct, attention: SyntheticAttention, num_keys: int, from_key: int) -> PartCall:
    size = attention.size
    shape = (size.num_heads, size.d_model, size.d_head)
    return PartCall(DOT, 0, 0, from_key, address(part.wq, *shape), None, address(part.wk, *shape))


def _dense(part: Dense, attention: SyntheticAttention, num_keys: int, from_key: int) -> PartCall:
    n, (heads, k) = _at_least(part.b2.shape[-1], num_keys), part.b1.shape
    w2, b2 = address(part.w2, heads, k, n), address(part.b2, heads, n)
    return PartCall(DENSE, n, 0, 0, *_hidden(part, attention), w2, b2)


def _outer(
    part: FactorizedDense, attention: SyntheticAttention, num_keys: int, from_key: int
) -> PartCall:
    a, b, (heads, k) = part.a, part.b, part.b1.shape
    _at_least(a * b, num_keys)
    first = address(part.wa, heads, k, a), address(part.ba, heads, a)
    second = address(part.wb, heads, k, b), address(part.bb, heads, b)
    return PartCall(OUTER, a, b, 0, *_hidden(part, attention), *first, *second)


def _hidden(part: Dense | FactorizedDense, attention: SyntheticAttention) -> tuple[int, int]:
    heads, width, k = attention.size.num_heads, attention.size.d_model, attention.size.d_head
    return address(part.w1, heads, width, k), address(part.b1, heads, k)


def _at_least(length: int, num_keys: int) -> int:
    if length < num_keys:
        raise Unfit
    return length


_PARTS: dict[type[Synthesis], Any] = {
    Random: _table,
    FixedRandom: _table,
    FactorizedRandom: _low_rank,
    Relative: _relative,
    DotProduct: _dot,
    Dense: _dense,
    FactorizedDense: _outer,
}


def decode_token(
    stack: nn.Module,
    x: Tensor,
    caches: Sequence[Any],
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
) -> Tensor | None:
    """The states (B, 1, D) of embeddings x, which are overwritten; None: the stack must do it."""
    if (
        x.shape[1] != 1
        or not 0 < x.shape[0] <= FEW
        or torch.is_grad_enabled()
        or is_transformed()
        or type(stack) is not Stack
        or torch.is_autocast_enabled("cpu")
        or torch.jit.is_tracing()  # type: ignore[attr-defined]
        or _has_any_global_hook()
        or type(x) is not Tensor
    ):
        return None
    kernel = in_use()
    if kernel is None:
        return None
    try:
        return _decode_token(kernel, stack, x, caches, attention_mask, position_ids)
    except Unfit:
        return None


def _decode_token(
    kernel: Kernel,
    stack: Stack,
    x: Tensor,
    caches: Sequence[Any],
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
) -> Tensor:
    batch, _, width = x.shape
    check(stack, Stack)
    layers, num_layers = list(stack.layers), len(stack.layers)
    num_keys = _num_keys(stack, caches)
    starts = _starts(kernel, attention_mask, batch, num_keys)
    if position_ids is not None:
        _check_positions(position_ids, starts, batch, num_keys)
    calls, heads = (LayerCall * num_layers)(), stack.shape.num_heads
    norms = _norms(stack, layers, width)
    for index, (call, layer) in enumerate(zip(calls, layers, strict=True)):
        call.before, call.between = norms[2 * index], norms[2 * index + 1]
        d_keys = _fill_layer(call, layer, width, heads, num_keys, starts is not None)
        _check_cache(caches[index], (batch, heads, num_keys - 1), width // heads, d_keys)
    places, where = _places(stack, width, num_keys)
    threads = torch.get_num_threads() if kernel.runtime[0] and width * width >= LARGE else 1
    sizes = (threads, batch, width, heads, width // heads, num_keys, num_layers)
    first = stack.shape.norm_position == "pre"
    step = StepCall(*kernel.runtime, *sizes, first, places, where, last=norms[-1])
    step.starts = None if starts is None else ctypes.addressof(starts)
    step.x, step.layers = address(x, batch, 1, width), ctypes.addressof(calls)
    room = x.new_empty(kernel.library.decode_workspace(ctypes.byref(step)))
    step.room = room.data_ptr()
    for call, kept in zip(calls, caches, strict=True):
        keys, values = kept.extend()
        call.values = _kept_call(values)
        if keys is not None:
            call.keys = _kept_call(keys)
    kernel.library.decode(ctypes.byref(step))
    return x


def _num_keys(stack: Stack, caches: Sequence[Any]) -> int:
    """The tokens that have passed, and this one, where all layers have seen them."""
    if len(caches) != len(stack.layers) or any(type(kept) is not ValueLayer for kept in caches):
        raise Unfit
    num_keys: int = caches[0].num_tokens + 1
    if num_keys > stack.shape.max_len and not stack.any_length:
        raise Unfit
    return num_keys


def _starts(kernel: Kernel, mask: Tensor | None, batch: int, num_keys: int) -> Any:  # noqa: ANN401
    """The slot where each sequence begins, an array of B; None where no slot is padding."""
    if mask is None:
        return None
    if (
        mask.shape != (batch, num_keys)
        or mask.dtype not in (torch.bool, torch.int64)
        or not mask.is_cpu
        or type(mask) is not Tensor
    ):
        raise Unfit
    mask, starts = mask.contiguous(), (ctypes.c_int64 * batch)()
    given = (ctypes.c_int64(part) for part in (mask.dtype == torch.bool, batch, num_keys))
    if kernel.library.left_padding(ctypes.c_void_p(mask.data_ptr()), *given, starts):
        raise Unfit
    return starts if any(starts) else None


def _check_positions(position_ids: Tensor, starts: Any, batch: int, num_keys: int) -> None:  # noqa: ANN401
    """Refuse positions that are not the counted ones."""
    if position_ids.shape not in ((batch, 1), (1, 1)):
        raise Unfit
    counted = [num_keys - 1 - start for start in starts or [0] * batch]
    if position_ids.expand(batch, 1).flatten().tolist() != counted:
        raise Unfit


def _norms(stack: Stack, layers: Sequence[Layer], width: int) -> list[NormCall]:
    """What normalizes x before each attention, behind it, and at last."""
    each = [
        norm_call(norm, width)
        for layer in layers
        for norm in (layer.attention_norm, layer.feed_forward_norm)
    ]
    last = norm_call(stack.norm, width)
    return [*each, last] if stack.shape.norm_position == "pre" else [NormCall(), *each]


def _fill_layer(
    call: LayerCall, layer: Layer, width: int, heads: int, num_keys: int, is_padded: bool
) -> int:
    """Describe a layer but for its norms and its cache; the width of its keys."""
    check(layer, Layer)
    attention, feed_forward = layer.attention, layer.feed_forward
    check(attention, SyntheticAttention)
    check(feed_forward, FeedForward)
    check(layer.dropout, nn.Dropout)
    check(feed_forward.dropout, nn.Dropout)
    assert isinstance(attention, SyntheticAttention)
    fits = attention.size.d_model == width and attention.size.num_heads == heads
    if not fits or layer.cross is not None or feed_forward.activation not in ACTIVATIONS:
        raise Unfit
    call.inner = feed_forward.widen.out_features
    call.is_gelu = feed_forward.activation is F.gelu
    call.widen = linear_call(feed_forward.widen, width, call.inner)
    call.narrow = linear_call(feed_forward.narrow, call.inner, width)
    return fill_attention(call, attention, num_keys, is_padded)


def _check_cache(kept: ValueLayer, shape: tuple[int, int, int], width: int, d_keys: int) -> None:
    """Refuse a cache of other tokens, or one that keeps its last ones alone."""
    keys, values = kept.keys, kept.values
    fits = values is not None and values.shape == (*shape, width) and not kept.is_window
    fits = fits and kept.num_tokens == shape[-1] and (keys is not None) == bool(d_keys)
    fits = fits and (keys is None or keys.shape == (*shape, d_keys))
    for tokens in (keys, values):
        fits = fits and (tokens is None or (tokens.dtype == torch.float32 and tokens.is_cpu))
    if not fits:
        raise Unfit


def _places(stack: Stack, width: int, num_keys: int) -> tuple[int, int | None]:
    """What is added to the embeddings, and where its numbers lie."""
    check(stack.dropout, nn.Dropout)
    positions = stack.positions
    check(positions, Positions)
    if stack.relative is not None or stack.alibi is not None:
        raise Unfit
    table = positions.table
    if table is not None:
        check(table, nn.Embedding)
        length = table.weight.shape[0]
        if table.max_norm is not None or length < num_keys:
            raise Unfit
        return LEARNED, address(table.weight, length, width)
    if positions.kind != "sinusoidal":
        return NONE, None
    return SINUSOIDAL, _angles(width).data_ptr()


@cache
def _angles(width: int) -> Tensor:
    return first_angles(width, torch.device("cpu"))


def _kept_call(tokens: Tensor) -> KeptCall:
    example, head, row, _ = tokens.stride()
    return KeptCall(tokens.data_ptr(), example, head, row)
