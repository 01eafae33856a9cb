"""One more token of a few sequences through a stack, by one call of decode.c.

The same as Stack.forward, where that is nothing but equations: float32 on a CPU, no gradient, a
cache, at most eight sequences, and modules as this package builds them, without hooks. Elsewhere
None is returned, and the stack must be called. Nothing is held from token to token: addresses are
asked anew, so that new weights are read at once. Letters as in synthesis.py.
"""

import ctypes
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook

from synthesizer_attention.attention.hook import FEW, LARGE
from synthesizer_attention.attention.layer import SyntheticAttention
from synthesizer_attention.attention.masks import is_transformed
from synthesizer_attention.attention.synthesis import Mixture, Synthesis
from synthesizer_attention.kernels.cpu import RUNTIME, Kernel, in_use
from synthesizer_attention.models.generation import ValueLayer
from synthesizer_attention.models.layers import FeedForward, Layer, Positions, Stack, first_angles

MOST_PARTS = 4
NONE, SINUSOIDAL, LEARNED = range(3)
ACTIVATIONS = (F.relu, F.gelu)
AXES = {
    "table": "HNN", "queries": "HNW", "keys": "HNW", "offsets": "HN",
    "distances": "HM", "first": "H1", "query": "HDK", "key": "HDK",
    "hidden": "HDK", "hidden_bias": "HK", "columns": "HKN",
    "tiled": "HKa", "tiled_bias": "Ha", "repeated": "HKb", "repeated_bias": "Hb",
}  # fmt: skip
"""The terms that decode.c adds and the axes of each; Synthesis.decoded names a class's own."""


class Unfit(Exception):  # noqa: N818
    """This call is not the kernel's."""


def _structure(name: str, *fields: tuple[Sequence[str], Any]) -> Any:  # noqa: ANN401
    """A structure of decode.c, of the same name there."""
    named = [(field, kind) for names, kind in fields for field in names]
    return type(name, (ctypes.Structure,), {"_fields_": named})


_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64
_WEIGHTS = (("weight", "bias"), _POINTER)
Norm = _structure("Norm", _WEIGHTS, (["eps"], ctypes.c_double), (["has_mean"], _NUMBER))
Linear = _structure("Linear", _WEIGHTS)
Kept = _structure("Kept", (["data"], _POINTER), (("example", "head", "row"), _NUMBER))
Part = _structure("Part", ((*"NWMab", "from_key"), _NUMBER), (list(AXES), _POINTER))
LayerCall = _structure(
    "Layer",
    (("before", "between"), Norm),
    (("value", "output", "widen", "narrow"), Linear),
    (("inner", "is_gelu", "num_parts", "is_shared"), _NUMBER),
    (["parts"], Part * MOST_PARTS),
    (("mix", "ready"), _POINTER),
    (["num_ready"], _NUMBER),
    (("keys", "values"), Kept),
)
Step = _structure(
    "Step",
    (RUNTIME, _POINTER),
    (("threads", "batch", "width", "heads", "head_width", "num_keys", "num_layers"), _NUMBER),
    (("norms_first", "positions"), _NUMBER),
    (("places", "starts", "layers"), _POINTER),
    (["last"], Norm),
    (("x", "room"), _POINTER),
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
    if tensor.shape != shape:
        raise Unfit
    return _address(tensor)


def _address(tensor: Tensor) -> int:
    if (
        type(tensor) not in (nn.Parameter, Tensor)
        or tensor.dtype is not torch.float32
        or not (tensor.is_cpu and tensor.is_contiguous())
    ):
        raise Unfit
    return tensor.data_ptr()


def _linear(layer: Any, inputs: int, outputs: int) -> Any:  # noqa: ANN401
    check(layer, nn.Linear)
    bias = None if layer.bias is None else address(layer.bias, outputs)
    return Linear(address(layer.weight, outputs, inputs), bias)


def _norm(norm: Any, width: int) -> Any:  # noqa: ANN401
    if type(norm) is nn.Identity:
        check(norm, nn.Identity)
        return Norm()
    has_mean = type(norm) is nn.LayerNorm
    check(norm, nn.LayerNorm if has_mean else nn.RMSNorm)
    if norm.weight is None:
        raise Unfit
    bias = address(norm.bias, width) if has_mean and norm.bias is not None else None
    eps = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    return Norm(address(norm.weight, width), bias, eps, has_mean)


def _part(part: Any, heads: int, width: int, num_keys: int, from_key: int) -> Any:  # noqa: ANN401
    """The terms that a synthesizing function says it adds."""
    if not isinstance(part, Synthesis) or not part.decoded or part.has_last:
        raise Unfit
    check(part, type(part))
    tensors = [getattr(part, name) for _, name in part.decoded]
    sides = _sides(part.decoded, tuple([tensor.shape for tensor in tensors]), heads, width)
    if sides is None or 0 < sides[0] < num_keys or 0 < sides[3] * sides[4] < num_keys:
        raise Unfit
    call = Part(*sides, from_key)
    for (term, _), tensor in zip(part.decoded, tensors, strict=True):
        setattr(call, term, _address(tensor))
    return call


@lru_cache(maxsize=256)
def _sides(
    decoded: tuple[tuple[str, str], ...], shapes: tuple[torch.Size, ...], heads: int, width: int
) -> list[int] | None:
    """The sides of these terms, as decode.c's Part has them; None: their shapes do not agree."""
    known = {"H": heads, "D": width, "K": width // heads, "1": 1}
    for (term, _), shape in zip(decoded, shapes, strict=True):
        axes = AXES[term]
        agree = [known.setdefault(axis, size) for axis, size in zip(axes, shape, strict=False)]
        if len(axes) != len(shape) or agree != list(shape):
            return None
    return [known.get(axis, 0) for axis in "NWMab"]


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
    layers, heads = list(stack.layers), stack.shape.num_heads
    if len(caches) != len(layers) or any(type(kept) is not ValueLayer for kept in caches):
        raise Unfit
    num_keys = caches[0].num_tokens + 1
    if num_keys > stack.shape.max_len and not stack.any_length:
        raise Unfit
    starts = _starts(kernel, attention_mask, batch, num_keys)
    if position_ids is not None:  # they must be the counted ones
        counted = [num_keys - 1 - start for start in starts or [0] * batch]
        if (
            position_ids.shape not in ((batch, 1), (1, 1))
            or position_ids.expand(batch, 1).flatten().tolist() != counted
        ):
            raise Unfit
    pairs = [(layer.attention_norm, layer.feed_forward_norm) for layer in layers]
    norms = [_norm(norm, width) for pair in (*pairs, (stack.norm,)) for norm in pair]
    norms_first = stack.shape.norm_position == "pre"
    norms = norms if norms_first else [Norm(), *norms[:-1]]
    calls = (LayerCall * len(layers))()
    for index, (call, layer) in enumerate(zip(calls, layers, strict=True)):
        call.before, call.between = norms[2 * index], norms[2 * index + 1]
        d_keys = _fill_layer(call, layer, width, heads, num_keys, starts is not None)
        _check_cache(caches[index], (batch, heads, num_keys - 1), width // heads, d_keys)
    places, where = _places(stack, width, num_keys)
    threads = torch.get_num_threads() if kernel.runtime[0] and width * width >= LARGE else 1
    sizes = (threads, batch, width, heads, width // heads, num_keys, len(layers))
    step = Step(*kernel.runtime, *sizes, norms_first, places, where, last=norms[-1])
    step.starts = None if starts is None else ctypes.addressof(starts)
    step.x, step.layers = address(x, batch, 1, width), ctypes.addressof(calls)
    room = x.new_empty(kernel.library.decode_workspace(ctypes.byref(step)))
    step.room = room.data_ptr()
    for call, kept in zip(calls, caches, strict=True):
        keys, values = kept.extend()
        call.values = Kept(values.data_ptr(), *values.stride()[:3])
        if keys is not None:
            call.keys = Kept(keys.data_ptr(), *keys.stride()[:3])
    kernel.library.decode(ctypes.byref(step))
    return x


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


def _fill_layer(
    call: Any,  # noqa: ANN401
    layer: Layer,
    width: int,
    heads: int,
    num_keys: int,
    is_padded: bool,
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
    fits = fits and layer.cross is None and feed_forward.activation in ACTIVATIONS
    if not fits or attention.path == "plain" or attention.window is not None or attention.turns:
        raise Unfit
    call.inner = feed_forward.widen.out_features
    call.is_gelu = feed_forward.activation is F.gelu
    call.widen = _linear(feed_forward.widen, width, call.inner)
    call.narrow = _linear(feed_forward.narrow, call.inner, width)
    call.value = _linear(attention.value, width, width)
    call.output = _linear(attention.output, width, width)
    synthesis: Any = attention.synthesis
    parts = [synthesis]
    if type(synthesis) is Mixture:
        check(synthesis, Mixture)
        parts = list(synthesis.parts)
        call.mix = address(synthesis.mix, heads, len(parts))
    if len(parts) > MOST_PARTS:
        raise Unfit
    d_keys = 0
    for index, part in enumerate(parts):
        call.parts[index] = _part(part, heads, width, num_keys, d_keys)
        d_keys += part.d_keys
    call.num_parts, call.is_shared = len(parts), not synthesis.depends_on_input
    ready = attention.frozen
    if ready is not None and attention.causal and not is_padded and num_keys <= ready.shape[-1]:
        call.num_ready = ready.shape[-1]
        call.ready = address(ready, heads, call.num_ready, call.num_ready)
    return d_keys


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
