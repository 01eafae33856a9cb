"""A token through layers, as decode.c takes it: its records, and how an attention fills them.

Nothing is held from token to token: addresses are asked anew, so that new weights are read at once.
Whatever the kernel does not compute, or may not pass over, such as hooks, raises Unfit. Letters as
in synthesis.py.
"""

import ctypes
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from synthesizer.attention.fast.kernel import RUNTIME
from synthesizer.attention.relative import Relative
from synthesizer.attention.synthesis import (
    Dense,
    DotProduct,
    FactorizedDense,
    FactorizedRandom,
    FixedRandom,
    Mixture,
    Random,
    Synthesis,
)

if TYPE_CHECKING:
    from synthesizer.attention.layer import SyntheticAttention

MOST_PARTS = 4
TABLE, LOW_RANK, RELATIVE, DOT, DENSE, OUTER = range(6)
TENSORS = (nn.Parameter, Tensor)


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
    call: LayerCall, attention: "SyntheticAttention", num_keys: int, is_padded: bool
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


def _table(part: Random, attention: "SyntheticAttention", num_keys: int, from_key: int) -> PartCall:
    table = part.table
    n = _at_least(table.shape[-1], num_keys)
    return PartCall(TABLE, n, 0, 0, address(table, attention.size.num_heads, n, n))


def _low_rank(
    part: FactorizedRandom, attention: "SyntheticAttention", num_keys: int, from_key: int
) -> PartCall:
    n, k = _at_least(part.rows.shape[1], num_keys), part.k
    shape = (attention.size.num_heads, n, k)
    rows, columns = address(part.rows, *shape), address(part.columns, *shape)
    return PartCall(LOW_RANK, k, n, 0, rows, None, columns)


def _relative(
    part: Relative, attention: "SyntheticAttention", num_keys: int, from_key: int
) -> PartCall:
    heads, count = attention.size.num_heads, part.offsets.shape[-1]
    offsets, first = address(part.offsets, heads, count), address(part.first, heads, 1)
    return PartCall(RELATIVE, count // 2 + 1, 0, 0, offsets, None, first)


def _dot(
    part: DotProduct, attention: "SyntheticAttention", num_keys: int, from_key: int
) -> PartCall:
    size = attention.size
    shape = (size.num_heads, size.d_model, size.d_head)
    return PartCall(DOT, 0, 0, from_key, address(part.wq, *shape), None, address(part.wk, *shape))


def _dense(part: Dense, attention: "SyntheticAttention", num_keys: int, from_key: int) -> PartCall:
    n, (heads, k) = _at_least(part.b2.shape[-1], num_keys), part.b1.shape
    w2, b2 = address(part.w2, heads, k, n), address(part.b2, heads, n)
    return PartCall(DENSE, n, 0, 0, *_hidden(part, attention), w2, b2)


def _outer(
    part: FactorizedDense, attention: "SyntheticAttention", num_keys: int, from_key: int
) -> PartCall:
    a, b, (heads, k) = part.a, part.b, part.b1.shape
    _at_least(a * b, num_keys)
    first = address(part.wa, heads, k, a), address(part.ba, heads, a)
    second = address(part.wb, heads, k, b), address(part.bb, heads, b)
    return PartCall(OUTER, a, b, 0, *_hidden(part, attention), *first, *second)


def _hidden(part: Dense | FactorizedDense, attention: "SyntheticAttention") -> tuple[int, int]:
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
