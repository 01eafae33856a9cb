"""One more token of a few sequences through a stack, by one call of the compiled kernel.

The same as Stack.forward, where that is nothing but equations: float32 on a CPU, no gradient, a
cache, at most eight sequences, and modules as this package builds them, without hooks. Elsewhere
None is returned, and the stack must be called. Letters as in synthesis.py.
"""

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook

from synthesizer.attention.fast.decoding import (
    KeptCall,
    LayerCall,
    NormCall,
    StepCall,
    Unfit,
    address,
    check,
    fill_attention,
    linear_call,
    norm_call,
)
from synthesizer.attention.fast.kernel import HOME, Kernel, loaded
from synthesizer.attention.layer import SyntheticAttention
from synthesizer.attention.masks import is_transformed
from synthesizer.attention.rows import FEW, LARGE
from synthesizer.models.cache import ValueLayer
from synthesizer.models.layers import FeedForward, Layer, Positions, Stack, first_angles

NONE, SINUSOIDAL, LEARNED = range(3)
ACTIVATIONS = (F.relu, F.gelu)


def decode_token(
    stack: nn.Module,
    x: Tensor,
    caches: Sequence[Any],
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
) -> Tensor | None:
    """The states (B, 1, D) of embeddings x, which are overwritten; None: the stack must do it."""
    if (
        torch.compiler.is_compiling()
        or x.shape[1] != 1
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
    kernel = loaded(os.environ.get(HOME))
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
