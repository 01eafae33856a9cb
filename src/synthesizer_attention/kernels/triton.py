"""Launch the fused kernels of triton_kernel.py: any sum of terms on a GPU, no device waited for.

No (B, H, T, S) is written. What a query sees is a range of keys, so causality, padding, windows
and (real tokens moved to the front) holes are one case. Letters as in terms.py.
"""

from collections.abc import Sequence
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
NAMES = ("values", "queries", "keys", "table", "weight", "offsets", "tiled", "repeated")
"""The terms that the kernels read, in the order of Terms; the others are written out before."""


class Strided(NamedTuple):
    """A tensor and its strides but the last, which is one; an axis of one is shared: 0.

    Of a tensor with a batch: those of examples, heads and rows.
    """

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
    return has_triton() and fits(terms)


def fits(terms: Terms) -> bool:
    """Whether the tiles have room for these widths and Triton multiplies these types."""
    wide = (terms.values, terms.queries, terms.tiled, terms.repeated)
    narrow = all(part is None or part.shape[-1] <= MOST_WIDTH for part in wide)
    return narrow and all(part is None or part.dtype in TYPES for part in vars(terms).values())


def attend(terms: Terms, visibility: Visibility, num_queries: int) -> tuple[Tensor, Tensor]:
    """softmax(terms over what is seen) values, (B, T, H, K), and what backward wants: (B, H, T).

    Zeros where nothing is seen.
    """
    assert terms.values is not None
    given, tile = _given(terms, visibility, num_queries), _tile(terms)
    num_heads, batch, _, width = terms.values.shape
    output = terms.values.new_empty(batch, num_queries, num_heads, width)
    sums = output.new_empty(batch, num_heads, num_queries, dtype=torch.float32)
    if output.numel():
        grid, into = batch * num_heads * _cdiv(num_queries, tile.rows), output.permute(2, 0, 1, 3)
        _launch(kernels().forward_kernel, grid, tile, given, _strided(into), sums)
    return output, sums


def attend_back(
    terms: Terms,
    visibility: Visibility,
    output: Tensor,
    sums: Tensor,
    grad: Tensor,
    wanted: Sequence[bool],
) -> Terms:
    """The gradients that are wanted, in the order of Terms, given that of the output."""
    assert terms.values is not None
    num_heads, batch, num_keys, _ = terms.values.shape
    num_queries, grads = output.shape[1], Terms()
    for name, want in zip(NAMES, wanted, strict=False):
        tensor = getattr(terms, name)
        if want and tensor is not None:
            # Each example has its own, even where all share the tensor; those are added in float32.
            shape, shared = list(tensor.shape), name in ("table", "offsets")
            if name == "offsets":
                shape = [batch, *shape]
            elif name in ("queries", "keys") and shape[1] < batch:
                shape[1], shared = batch, True
            dtype = torch.float32 if shared else tensor.dtype
            setattr(grads, name, tensor.new_zeros(shape, dtype=dtype))
    if grad.numel():
        given, tile = _given(terms, visibility, num_queries), _tile(terms)
        means = (grad.float() * output.float()).sum(-1).transpose(1, 2).contiguous()
        up = Upstream(_strided(grad.permute(2, 0, 1, 3)), sums, means)
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
    for name in NAMES:  # in the shapes and types of the terms, summed where examples share one
        found, tensor = getattr(grads, name), getattr(terms, name)
        if found is not None:
            setattr(grads, name, found.sum_to_size(tensor.shape).to(tensor.dtype))
    return grads


def _strided(tensor: Tensor | None) -> Strided | None:
    if tensor is None:
        return None
    tensor = tensor if tensor.stride(-1) == 1 else tensor.contiguous()
    pairs = zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True)
    steps = [0 if size == 1 else step for size, step in pairs]
    if tensor.dim() == 4:  # (H, B, rows, n)
        steps[:2] = steps[1], steps[0]
    return Strided(tensor, tuple(steps))


def _launch(kernel: Any, num_programs: int, tile: Tile, *given: object) -> None:  # noqa: ANN401
    kernel[(num_programs,)](*given, TILE=tile, num_warps=4, num_stages=tile.stages)


def _given(terms: Terms, visibility: Visibility, num_queries: int) -> Given:
    assert terms.values is not None
    assert terms.distances is None
    assert terms.other_queries is None
    num_heads, batch, num_keys, _ = terms.values.shape
    tensors = [_strided(getattr(terms, name)) for name in NAMES]
    ranges = [
        _strided(numbers)
        for numbers in (visibility.starts, visibility.stops, visibility.table_rows)
    ]
    return Given._make([*tensors, *ranges, batch, num_heads, num_queries, num_keys])


def _tile(terms: Terms) -> Tile:
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
