"""One more token of every sequence through a stack, by one call of decode.c.

The same as Stack.forward, where that is nothing but equations: float32 on a CPU, no gradient, a
cache, and modules as this package builds them, without hooks. Elsewhere None is returned, and the
stack must be called. Nothing is held from token to token: addresses are
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
from transformers.cache_utils import EncoderDecoderCache

from synthesizer_attention.attention.hook import LARGE
from synthesizer_attention.attention.layer import CrossAttention, SyntheticAttention
from synthesizer_attention.attention.masks import is_transformed, visible_range
from synthesizer_attention.attention.synthesis import DotProduct, Mixture, Rotary, Synthesis
from synthesizer_attention.kernels.cpu import RUNTIME, Kernel, in_use
from synthesizer_attention.models.generation import ValueLayer
from synthesizer_attention.models.layers import (
    Alibi,
    FeedForward,
    Layer,
    Positions,
    RelativeBias,
    Stack,
    bucket,
    first_angles,
)
from synthesizer_attention.spec import RotaryOptions

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
Kept = _structure("Kept", (["data"], _POINTER), (("example", "head", "row", "slots"), _NUMBER))
Part = _structure("Part", ((*"NWMab", "from_key", "turns"), _NUMBER), (list(AXES), _POINTER))
LayerCall = _structure(
    "Layer",
    (("before", "before_memory", "between"), Norm),
    (("value", "output", "memory_output", "widen", "narrow"), Linear),
    (("inner", "is_gelu", "num_parts", "is_shared"), _NUMBER),
    (["parts"], Part * MOST_PARTS),
    (("mix", "ready"), _POINTER),
    (("num_ready", "is_biased"), _NUMBER),
    (["seen"], _POINTER),
    (("keys", "values"), Kept),
    (["memory_query"], _POINTER),
    (("memory_keys", "memory_values"), Kept),
)
Step = _structure(
    "Step",
    (RUNTIME, _POINTER),
    (("threads", "batch", "width", "heads", "head_width", "num_keys", "num_layers"), _NUMBER),
    (("norms_first", "positions"), _NUMBER),
    (("places", "starts", "layers", "bias"), _POINTER),
    (["bias_row"], _NUMBER),
    (["angles"], _POINTER),
    (("num_angles", "memory"), _NUMBER),
    (["memory_mask"], _POINTER),
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
    cache: Any,  # noqa: ANN401
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    memory_mask: Tensor | None,
) -> Tensor | None:
    """The states (B, 1, D) of embeddings x, which are overwritten; None: the stack must do it."""
    if (
        x.shape[1] != 1
        or x.shape[0] == 0
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
        return _decode_token(kernel, stack, x, cache, attention_mask, position_ids, memory_mask)
    except Unfit:
        return None


def _decode_token(
    kernel: Kernel,
    stack: Stack,
    x: Tensor,
    cache: Any,  # noqa: ANN401
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    memory_mask: Tensor | None,
) -> Tensor:
    batch, _, width = x.shape
    check(stack, Stack)
    layers, heads, memories = list(stack.layers), stack.shape.num_heads, None
    if isinstance(cache, EncoderDecoderCache):
        memories, cache = cache, cache.self_attention_cache
    caches = cache.layers
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
    bias = _bias(stack, heads, num_keys)
    calls, rotary = (LayerCall * len(layers))(), set[RotaryOptions]()
    windows, seen = list[int | str | None](), dict[int | str, Tensor]()
    for index, (call, layer) in enumerate(zip(calls, layers, strict=True)):
        attention, d_keys = _fill_layer(call, layer, width, heads, num_keys, rotary)
        window = attention.window
        held = min(num_keys, window) if isinstance(window, int) else num_keys
        shape = (batch, heads, min(held, num_keys - 1))
        _check_cache(caches[index], shape, num_keys - 1, width // heads, d_keys)
        if bias is not None and not attention.unbiased:
            call.is_biased, call.ready = True, None
        if window is not None and (held < num_keys or isinstance(window, str)):
            if window not in seen:
                seen[window] = _seen(attention_mask, batch, num_keys, window)
            call.seen = seen[window].data_ptr()
        windows.append(window)
        if layer.cross is not None:
            _fill_memory(call, layer.cross, memories, index, (batch, heads), width)
    if len(rotary) > 1:
        raise Unfit
    step = Step(*kernel.runtime)
    many = batch * width * width >= 8 * LARGE or width * width >= LARGE
    step.threads = torch.get_num_threads() if kernel.runtime[0] and many else 1
    step.batch, step.width, step.heads, step.head_width = batch, width, heads, width // heads
    step.num_keys, step.num_layers, step.layers = num_keys, len(layers), ctypes.addressof(calls)
    step.positions, step.places = _places(stack, width, num_keys)
    step.starts = None if starts is None else ctypes.addressof(starts)
    if bias is not None:
        step.bias, step.bias_row = bias.data_ptr(), bias.stride(0)
    for options in rotary:
        angles = _rotary_angles(options, width // heads)
        step.angles, step.num_angles = angles.data_ptr(), len(angles)
    step.memory = calls[0].memory_keys.slots
    if any(call.memory_keys.slots != step.memory for call in calls):
        raise Unfit
    if memory_mask is not None:
        _check_memory_mask(memory_mask, batch, step.memory)
        memory_mask = memory_mask.contiguous()
        step.memory_mask = memory_mask.data_ptr()
    step.norms_first = stack.shape.norm_position == "pre"
    _fill_norms(step, calls, stack, width)
    step.x = address(x, batch, 1, width)
    room = x.new_empty(kernel.library.decode_workspace(ctypes.byref(step)))
    step.room = room.data_ptr()
    for call, window, kept in zip(calls, windows, caches, strict=True):
        keys, values = kept.extend(window if isinstance(window, int) else None)
        call.values = _kept(values)
        if keys is not None:
            call.keys = _kept(keys)
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
    rotary: set[RotaryOptions],
) -> tuple[SyntheticAttention, int]:
    """Describe a layer but for norms, caches and memory; its attention, the width of its keys."""
    check(layer, Layer)
    attention, feed_forward = layer.attention, layer.feed_forward
    check(attention, SyntheticAttention)
    check(feed_forward, FeedForward)
    check(layer.dropout, nn.Dropout)
    check(feed_forward.dropout, nn.Dropout)
    assert isinstance(attention, SyntheticAttention)
    fits = attention.size.d_model == width and attention.size.num_heads == heads
    if not fits or attention.path == "plain" or feed_forward.activation not in ACTIVATIONS:
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
        if attention.turns and type(part) is DotProduct and part.rotary is not None:
            call.parts[index].turns = True
            rotary.add(part.rotary.options)
        d_keys += part.d_keys
    call.num_parts, call.is_shared = len(parts), not synthesis.depends_on_input
    ready = attention.frozen
    if ready is not None and attention.causal and num_keys <= ready.shape[-1]:
        call.num_ready = ready.shape[-1]
        call.ready = address(ready, heads, call.num_ready, call.num_ready)
    return attention, d_keys


def _fill_memory(
    call: Any,  # noqa: ANN401
    cross: CrossAttention,
    memories: EncoderDecoderCache | None,
    index: int,
    shape: tuple[int, int],
    width: int,
) -> None:
    """Describe the attention to a memory, whose keys and values must be cached."""
    check(cross, CrossAttention)
    check(cross.synthesis, DotProduct)
    if memories is None or not memories.is_updated.get(index, False):
        raise Unfit
    (batch, heads), head_width = shape, width // shape[1]
    call.memory_query = address(cross.synthesis.wq, heads, width, head_width)
    call.memory_output = _linear(cross.output, width, width)
    kept: Any = memories.cross_attention_cache.layers[index]
    wanted = (batch, heads, kept.keys.shape[2], head_width)
    for name, tokens in (("memory_keys", kept.keys), ("memory_values", kept.values)):
        fits = tokens.shape == wanted and tokens.stride(3) == 1 and type(tokens) is Tensor
        if not (fits and tokens.dtype == torch.float32 and tokens.is_cpu):
            raise Unfit
        setattr(call, name, _kept(tokens))


def _kept(tokens: Tensor) -> Any:  # noqa: ANN401
    return Kept(tokens.data_ptr(), *tokens.stride()[:3], tokens.shape[2])


def _check_memory_mask(mask: Tensor, batch: int, num_slots: int) -> None:
    if mask.shape != (batch, num_slots) or mask.dtype != torch.bool or not mask.is_cpu:
        raise Unfit


def _fill_norms(step: Any, calls: Any, stack: Stack, width: int) -> None:  # noqa: ANN401
    """Norms in their order; where they come last, each stands before what follows it."""
    names, norms = [], []
    for call, layer in zip(calls, stack.layers, strict=True):
        names += [(call, "before"), (call, "before_memory"), (call, "between")]
        norms += [layer.attention_norm, layer.cross_norm, layer.feed_forward_norm]
    norms.append(stack.norm)
    made = [_norm(norm, width) for norm in norms if norm is not None]
    made = made if step.norms_first else [Norm(), *made[:-1]]
    used = [name for name, norm in zip(names, norms, strict=False) if norm is not None]
    for (part, name), norm in zip([*used, (step, "last")], made, strict=True):
        setattr(part, name, norm)


def _check_cache(
    kept: ValueLayer, shape: tuple[int, int, int], num_tokens: int, width: int, d_keys: int
) -> None:
    """Refuse a cache of other tokens."""
    keys, values = kept.keys, kept.values
    fits = values is not None and values.shape == (*shape, width)
    fits = fits and kept.num_tokens == num_tokens and (keys is not None) == bool(d_keys)
    fits = fits and (keys is None or keys.shape == (*shape, d_keys))
    for tokens in (keys, values):
        fits = fits and (tokens is None or (tokens.dtype == torch.float32 and tokens.is_cpu))
    if not fits:
        raise Unfit


def _seen(mask: Tensor | None, batch: int, num_keys: int, window: int | str) -> Tensor:
    """The first position that each new token sees, and the end of those: (B, 2)."""
    mask = None if mask is None else mask.bool()
    _, start, stop = visible_range(mask, 1, num_keys, True, window, torch.device("cpu"))
    assert start is not None
    both = torch.cat(torch.broadcast_tensors(start, stop), -1)
    return both.expand(batch, 2).contiguous()


def _bias(stack: Stack, heads: int, num_keys: int) -> Tensor | None:
    """What is added to logits by distance alone: (H, S), the last of distance 0."""
    bias, length = None, 1 << num_keys.bit_length()  # what depends on no weight is kept
    if stack.relative is not None:
        check(stack.relative, RelativeBias)
        relative = stack.relative
        _address(relative.table)
        sizes = (relative.num_buckets, relative.max_distance)
        bias = relative.table[:, _buckets(length, relative.causal, *sizes)[-num_keys:]]
    if stack.alibi is not None:
        check(stack.alibi, Alibi)
        slopes = _slopes(heads, length)[:, -num_keys:]
        bias = slopes if bias is None else bias + slopes
    return bias


@lru_cache(maxsize=64)
def _buckets(length: int, causal: bool, num_buckets: int, max_distance: int) -> Tensor:
    return bucket(torch.arange(1 - length, 1), causal, num_buckets, max_distance)


@lru_cache(maxsize=64)
def _slopes(heads: int, length: int) -> Tensor:
    positions = torch.arange(length)
    return Alibi(heads)(positions[-1:], positions, torch.float32)[0, :, 0]


@lru_cache(maxsize=64)
def _rotary_angles(options: RotaryOptions, d_head: int) -> Tensor:
    return Rotary(options, d_head).angles(torch.device("cpu"), torch.float32)


def _places(stack: Stack, width: int, num_keys: int) -> tuple[int, int | None]:
    """What is added to the embeddings, and where its numbers lie."""
    check(stack.dropout, nn.Dropout)
    positions = stack.positions
    check(positions, Positions)
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
