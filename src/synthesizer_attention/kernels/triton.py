"""Launch the fused kernels of triton_kernel.py: any sum of terms on a GPU, no device waited for.

No (B, H, T, S) is written. What a query sees is a range of keys, so causality, padding, windows
and (real tokens moved to the front) holes are one case. Letters as in terms.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from synthesizer_attention.attention.masks import Visibility
from synthesizer_attention.attention.terms import Terms

MOST_WIDTH = 256  # of queries, values, or one side of an outer product: what a tile has room for
TYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass
class FusedTerms:
    """The tensors of one call, or their gradients; None is not in the sum."""

    values: Tensor | None = None  # (B, H, S, K)
    queries: Tensor | None = None  # (B or 1, H, T, W)
    keys: Tensor | None = None  # (B or 1, H, S, W)
    table: Tensor | None = None  # (H, >= T, S)
    weight: Tensor | None = None  # (H,), what the table is multiplied by
    offsets: Tensor | None = None  # (H, S)
    tiled: Tensor | None = None  # (B, H, T, a)
    repeated: Tensor | None = None  # (B, H, T, b), a b >= S

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Them all, in the order of the fields."""
        return (
            *(self.values, self.queries, self.keys, self.table),
            *(self.weight, self.offsets, self.tiled, self.repeated),
        )


@dataclass(frozen=True)
class FusedRange:
    """Which keys each query sees and which row of the table it reads; None: all, and its own."""

    starts: Tensor | None = None  # (B or 1, T), int32, the first key
    stops: Tensor | None = None  # (B or 1, T), int32, behind the last key; <= S
    rows: Tensor | None = None  # (B or 1, T), int32


class Strided(NamedTuple):
    """A tensor and its strides but the last, which is one; an axis of one is shared: 0."""

    pointer: Tensor
    strides: tuple[int, ...]


class Given(NamedTuple):
    """What every kernel reads."""

    value: Strided | None  # the values: Triton's own tuples have a field of that name
    queries: Strided | None
    keys: Strided | None
    table: Strided | None
    weight: Strided | None
    offsets: Strided | None
    tiled: Strided | None
    repeated: Strided | None
    starts: Strided | None
    stops: Strided | None
    rows: Strided | None
    batch: int
    num_heads: int
    num_queries: int
    num_keys: int


class Upstream(NamedTuple):
    """What every backward kernel reads besides."""

    grad: Strided | None
    sums: Tensor  # (B, H, T), the logarithms of the rows' sums
    means: Tensor  # (B, H, T), sum over keys of P dP


class Tile(NamedTuple):
    """What Triton compiles a kernel for: widths, and the powers of two that they are padded to."""

    width: int
    padded_width: int
    value_width: int
    padded_value_width: int
    a: int
    padded_a: int
    b: int
    padded_b: int
    rows: int
    columns: int
    stages: int
    precision: str


@cache
def kernels() -> ModuleType:
    """triton_kernel.py, imported where it is used first: triton is an extra."""
    from synthesizer_attention.kernels import triton_kernel

    return triton_kernel


@cache
def has_triton() -> bool:
    """Whether triton is installed; it is not imported to find out."""
    return find_spec("triton") is not None


def takes(terms: Terms) -> bool:
    """Whether the fused kernels are installed and take these terms, which lie on a GPU."""
    return has_triton() and fits(_batch_first(terms))


def attend(terms: Terms, visibility: Visibility, num_queries: int) -> tuple[Tensor, Tensor]:
    """softmax(terms over what is seen) values, (B, T, H, K), and what backward wants besides."""
    output, sums = forward(_batch_first(terms), _range_of(visibility), num_queries)
    return output.transpose(1, 2), sums


def attend_back(
    terms: Terms,
    visibility: Visibility,
    output: Tensor,
    sums: Tensor,
    grad: Tensor,
    wanted: Sequence[bool],
) -> Terms:
    """The gradients that are wanted, heads first, given that of the output (B, T, H, K)."""
    output, grad = output.transpose(1, 2), grad.transpose(1, 2)
    seen = _range_of(visibility)
    fused = _batch_first(terms)
    found = backward(fused, seen, output, sums, grad, tuple(wanted)[: len(fused.tensors())])
    return Terms(*[_turned(part) for part in found.tensors()])


def _batch_first(terms: Terms) -> FusedTerms:
    *tensors, _, _, _ = vars(terms).values()  # distances and a second bilinear term: written out
    return FusedTerms(*[_turned(part) for part in tensors])


def _turned(tensor: Tensor | None) -> Tensor | None:
    """(H, B, ...) as (B, H, ...), or back; table, weight and offsets have no batch."""
    return tensor if tensor is None or tensor.dim() < 4 else tensor.transpose(0, 1)


def _range_of(visibility: Visibility) -> FusedRange:
    return FusedRange(visibility.starts, visibility.stops, visibility.table_rows)


def fits(terms: FusedTerms) -> bool:
    """Whether the tiles have room for these widths and Triton multiplies these types."""
    wide = (terms.values, terms.queries, terms.tiled, terms.repeated)
    narrow = all(part is None or part.shape[-1] <= MOST_WIDTH for part in wide)
    return narrow and all(part is None or part.dtype in TYPES for part in terms.tensors())


def forward(terms: FusedTerms, seen: FusedRange, num_queries: int) -> tuple[Tensor, Tensor]:
    """The output (B, H, T, K), zeros where nothing is seen, and what backward wants: (B, H, T)."""
    assert terms.values is not None
    given, tile = _given(terms, seen, num_queries), _tile(terms)
    batch, num_heads, _, width = terms.values.shape
    output = terms.values.new_empty(batch, num_queries, num_heads, width).transpose(1, 2)
    sums = output.new_empty(batch, num_heads, num_queries, dtype=torch.float32)
    if output.numel():
        grid = batch * num_heads * _cdiv(num_queries, tile.rows)
        _launch(kernels().forward_kernel, grid, tile, given, _strided(output), sums)
    return output, sums


def backward(
    terms: FusedTerms,
    seen: FusedRange,
    output: Tensor,
    sums: Tensor,
    grad: Tensor,
    wanted: tuple[bool, ...],
) -> FusedTerms:
    """The gradients that are wanted, in the order of the terms, given that of the output."""
    assert terms.values is not None
    batch, num_heads, num_keys, _ = terms.values.shape
    num_queries = output.shape[2]
    names = [field.name for field in fields(FusedTerms)]
    grads = FusedTerms(
        *[
            _room_for_gradient(name, tensor, batch) if want and tensor is not None else None
            for name, tensor, want in zip(names, terms.tensors(), wanted, strict=True)
        ]
    )
    if grad.numel():
        given, tile = _given(terms, seen, num_queries), _tile(terms)
        means = (grad.float() * output.float()).sum(-1)
        up = Upstream(_strided(grad), sums, means)
        rows, columns = _cdiv(num_queries, tile.rows), _cdiv(num_keys, tile.columns)
        pairs, cells = batch * num_heads, rows * columns
        into = [_strided(part) for part in (grads.queries, grads.tiled, grads.repeated)]
        if any(into):
            kernel = kernels().backward_queries_kernel
            _launch(kernel, pairs * rows, tile, given, up, *into)
        into = [_strided(part) for part in (grads.keys, grads.values)]
        if any(into) or grads.offsets is not None:
            kernel = kernels().backward_keys_kernel
            _launch(kernel, pairs * columns, tile, given, up, *into, grads.offsets)
        if grads.table is not None or grads.weight is not None:
            kernel, into = kernels().backward_table_kernel, [_strided(grads.table)]
            parts = None if grads.weight is None else sums.new_empty(num_heads, cells)
            _launch(kernel, num_heads * cells, tile, given, up, *into, parts)
            grads.weight = None if parts is None else parts.sum(-1)
    return _in_shape(terms, grads)


def _room_for_gradient(name: str, tensor: Tensor, batch: int) -> Tensor:
    """Zeros to write into, for each example its own, even where all examples share the tensor."""
    if name == "table":
        return torch.zeros_like(tensor, dtype=torch.float32)
    if name == "offsets":
        return tensor.new_zeros(batch, *tensor.shape, dtype=torch.float32)
    if name in ("queries", "keys") and tensor.shape[0] < batch:
        return tensor.new_zeros(batch, *tensor.shape[1:], dtype=torch.float32)
    return torch.zeros_like(tensor)


def _in_shape(terms: FusedTerms, grads: FusedTerms) -> FusedTerms:
    """The gradients in the shapes and types of the terms, summed over examples that share one."""
    return FusedTerms(
        *[
            None
            if grad is None or tensor is None
            else grad.sum_to_size(tensor.shape).to(tensor.dtype)
            for tensor, grad in zip(terms.tensors(), grads.tensors(), strict=True)
        ]
    )


def _strided(tensor: Tensor | None) -> Strided | None:
    if tensor is None:
        return None
    tensor = tensor if tensor.stride(-1) == 1 else tensor.contiguous()
    steps = zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True)
    return Strided(tensor, tuple(0 if size == 1 else step for size, step in steps))


def _launch(kernel: Any, num_programs: int, tile: Tile, *given: object) -> None:  # noqa: ANN401
    kernel[(num_programs,)](*given, TILE=tile, num_warps=4, num_stages=tile.stages)


def _given(terms: FusedTerms, seen: FusedRange, num_queries: int) -> Given:
    assert terms.values is not None
    batch, num_heads, num_keys, _ = terms.values.shape
    tensors = [*map(_strided, terms.tensors())]
    ranges = [_strided(numbers) for numbers in (seen.starts, seen.stops, seen.rows)]
    sizes = (batch, num_heads, num_queries, num_keys)
    return Given._make([*tensors, *ranges, *sizes])


def _tile(terms: FusedTerms) -> Tile:
    assert terms.values is not None
    parts = (terms.queries, terms.values, terms.tiled, terms.repeated)
    widths = [0 if part is None else part.shape[-1] for part in parts]
    padded = [max(16, 1 << (width - 1).bit_length()) for width in widths]  # tl.dot wants 16
    # So that a tile of every operand fits the shared memory of a small GPU too, 99 kB: float32
    # products without TF32 want more of it, and one stage of the loop over tiles in flight.
    size = terms.values.element_size()
    side = 64 if size == 2 and max(padded) <= 64 else 32
    side = 16 if size * max(padded) > 512 else side
    exact = torch.get_float32_matmul_precision() == "highest"
    both = [size for pair in zip(widths, padded, strict=True) for size in pair]
    return Tile._make([*both, side, side, 3 - size // 2, "ieee" if exact else "tf32"])


def _cdiv(number: int, divisor: int) -> int:
    return -(-number // divisor)
