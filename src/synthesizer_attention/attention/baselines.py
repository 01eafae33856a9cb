"""The token mixers that the paper compares with, one class each.

A convolution makes Y[i] = sum_j w[i,j] X[i+j] with X = GLU(x W), then one projection. It runs over
the real tokens in their order and skips padding. A sequence is padded with zeros at both ends, and
the kernel is not renormalized there. Letters as in synthesis.py; W kernel width, P padded length,
R the k of Linformer.
"""

from contextlib import nullcontext
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from synthesizer_attention.attention.layer import SyntheticAttention, ValueCache
from synthesizer_attention.attention.masks import Window, hides_only_the_end, is_transformed
from synthesizer_attention.attention.mixers import (
    MIXERS,
    Mixer,
    build_registered,
    register_mixer,
)
from synthesizer_attention.attention.registry import spec_of
from synthesizer_attention.attention.synthesis import Size, draw_weight, resized
from synthesizer_attention.errors import UserError
from synthesizer_attention.spec import RotaryOptions, parse_spec, require_positive, term_of

BASELINES = MIXERS  # its older name
SHIFTED = 5  # up to this width, shifting and adding is the cheapest form
BLOCK = 16  # rows of a band matrix that are multiplied at once


class SharedKernel(nn.Module):
    """The logits of one kernel per head, the same at every token: (1, 1, H, W)."""

    tables = ("table",)

    def __init__(self, size: Size, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.table = nn.Parameter(torch.empty(size.num_heads, kernel))  # (H, W)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start near zero: a kernel begins as the mean of its window, as Random does."""
        nn.init.normal_(self.table, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return self.table[None, None]


class OwnKernel(nn.Module):
    """The logits of the kernel that each token writes: (B, T, H, W)."""

    def __init__(self, size: Size, kernel: int) -> None:
        super().__init__()
        self.kernel, self.num_heads = kernel, size.num_heads
        self.write = nn.Linear(size.d_model, size.num_heads * kernel, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.write(x).unflatten(-1, (self.num_heads, self.kernel))


class Convolution(Mixer):
    """A gated depthwise convolution; `synthesis` says where its kernels come from."""

    takes_causal = takes_padding = keeps_state = True
    any_length = None
    made_by: ClassVar[type[SharedKernel | OwnKernel]]

    def __init__(
        self, size: Size, causal: bool = False, dropout: float = 0.0, *, kernel: int = 31
    ) -> None:
        super().__init__(size, causal, dropout)
        require_positive(self.name, kernel=kernel)
        self.kernel, self.synthesis = kernel, self.made_by(size, kernel)
        self.before = kernel - 1 if causal else (kernel - 1) // 2
        self.after = kernel - 1 - self.before
        self.value = nn.Linear(size.d_model, 2 * size.d_model, bias=False)
        self.output = nn.Linear(size.d_model, size.d_model, bias=False)

    def mix(
        self, x: Tensor, real: Tensor | None, positions: Tensor, cache: ValueCache | None
    ) -> Tensor:
        queue = move_to_front(F.glu(self.value(x)), real)
        held = None if cache is None else cache.values
        if held is None:  # the inputs of all kernel windows: (B, before + T + after, D)
            window = F.pad(queue.x, (0, 0, self.before, self.after))
        else:
            window = torch.cat([held, queue.x], dim=1)
        if cache is not None:
            cache.keep(None, _last(window, queue, self.before), x.shape[1])
        weights = self._drop(self.synthesis(queue.x).softmax(-1), x.shape[1])
        return self.output(move_back(convolve(window, weights), queue))

    def _drop(self, weights: Tensor, length: int) -> Tensor:
        """DropConnect: drop weights at every token; one draw for shared kernels."""
        if not self.training or self.dropout == 0.0:
            return weights
        return F.dropout(weights.expand(-1, length, -1, -1), self.dropout)


@register_mixer("lightconv")
class LightConv(Convolution):
    """Y[i] = sum_j softmax(w)[j] X[i+j], X gated, w learned per head."""

    made_by = SharedKernel


@register_mixer("dynamicconv")
class DynamicConv(Convolution):
    """Y[i] = sum_j softmax(W X[i])[j] X[i+j], X gated."""

    made_by = OwnKernel


class Queue(NamedTuple):
    """The real tokens of each example first, in their order, then zeros."""

    x: Tensor  # (B, T, D)
    real: Tensor | None  # (B, T), by slot; None where all are
    places: Tensor | None  # (B, T), by slot: where its token stands now; None where none has moved


def move_to_front(x: Tensor, attention_mask: Tensor | None) -> Queue:
    """Move the real tokens of x (B, T, D), zero elsewhere, together."""
    if attention_mask is None:
        return Queue(x, None, None)
    real = attention_mask.bool()
    if hides_only_the_end(real):
        return Queue(x, real, None)
    # counted, not sorted: ONNX has no stable sort
    number = real.cumsum(1)
    places = torch.where(real, number, number[:, -1:] + (~real).cumsum(1)) - 1
    moved = torch.zeros_like(x).scatter(1, places[..., None].expand_as(x), x)
    return Queue(moved, real, places)


def move_back(y: Tensor, queue: Queue) -> Tensor:
    """Move outputs (B, T, D) back to the slots of their tokens; padding gets zeros."""
    if queue.places is not None:
        y = y.gather(1, queue.places[..., None].expand_as(y))
    return y if queue.real is None else y.masked_fill(~queue.real[..., None], 0.0)


def convolve(x: Tensor, weights: Tensor) -> Tensor:
    """Sum x (B, T + W - 1, D) by weights (1 or B, 1 or T, H, W) around each token: (B, T, D).

    A narrow kernel is shifted and added; a wide one becomes a band matrix, multiplied in blocks.
    Blocks depend on the length: an exported program, for every length, shifts and adds.
    """
    weights = weights.to(x.dtype)
    width = weights.shape[-1]
    x = x.unflatten(-1, (weights.shape[2], -1))  # (B, P, H, K)
    length = x.shape[1] - width + 1
    if width <= SHIFTED or torch.compiler.is_exporting():
        return _shift_and_add(x, weights, length).flatten(-2)
    block = max(BLOCK, width - 1)
    if length <= block:
        weights = weights.expand(-1, length, -1, -1).transpose(1, 2)
        return (band(weights) @ x.transpose(1, 2)).transpose(1, 2).flatten(-2)
    return _multiply_blocks(x, weights, length, block).flatten(-2)


def band(weights: Tensor) -> Tensor:
    """Write the kernels (..., n, W) of n tokens as a matrix (..., n, n + W - 1), row i moved by i.

    A row padded by n and read in lines one element shorter moves by one at every line.
    """
    rows, width = weights.shape[-2:]
    padded = F.pad(weights, (0, rows)).flatten(-2)
    return padded[..., : rows * (rows + width - 1)].unflatten(-1, (rows, rows + width - 1))


def _shift_and_add(x: Tensor, weights: Tensor, length: int) -> Tensor:
    y = weights[..., :1] * x[:, :length]
    for j in range(1, weights.shape[-1]):
        y = torch.addcmul(y, weights[..., j : j + 1], x[:, j : j + length])
    return y


def _multiply_blocks(x: Tensor, weights: Tensor, length: int, block: int) -> Tensor:
    """The band matrix holds zeros far from its diagonal: multiply block by block along it."""
    width, count = weights.shape[-1], -(-length // block)
    x = F.pad(x, (0, 0, 0, 0, 0, (count + 1) * block - x.shape[1]))
    x = x.unflatten(1, (count + 1, block)).transpose(2, 3)  # (B, count + 1, H, block, K)
    windows = torch.cat([x[:, :-1], x[:, 1:, :, : width - 1]], dim=3)
    if weights.shape[1] == 1:
        weights = weights.expand(-1, block, -1, -1)[:, None]
    else:
        weights = F.pad(weights, (0, 0, 0, 0, 0, count * block - length))
        weights = weights.unflatten(1, (count, block))
    y = band(weights.transpose(2, 3)) @ windows  # (B, count, H, block, K)
    return y.transpose(2, 3).flatten(1, 2)[:, :length]


def _last(window: Tensor, queue: Queue, width: int) -> Tensor:
    """The last real inputs of each example, zeros before the first: (B, width, D)."""
    if queue.real is None:
        return window[:, window.shape[1] - width :]
    slots = queue.real.sum(1)[:, None] + torch.arange(width, device=window.device)
    return window.take_along_dim(slots[..., None], dim=1)


@register_mixer("linformer")
class Linformer(Mixer):
    """Y = softmax(Q (E^T K)^T / sqrt(d)) F^T V, E and F learned (N, k)."""

    weights = ("project_key", "project_value")
    takes_padding = True
    depends_on_pairs = True

    def __init__(
        self,
        size: Size,
        causal: bool = False,
        dropout: float = 0.0,
        *,
        k: int = 32,
        share_heads: bool = True,
        share_kv: bool = False,
    ) -> None:
        super().__init__(size, causal, dropout)
        require_positive(self.name, k=k)
        self.k, self.share_heads, self.share_kv = k, share_heads, share_kv
        groups = 1 if share_heads else size.num_heads
        self.query = nn.Linear(size.d_model, size.d_model, bias=False)
        self.key = nn.Linear(size.d_model, size.d_model, bias=False)
        self.value = nn.Linear(size.d_model, size.d_model, bias=False)
        self.output = nn.Linear(size.d_model, size.d_model, bias=False)
        self.project_key = nn.Parameter(torch.empty(groups, size.max_len, k))  # (1 or H, N, R)
        self.project_value = None if share_kv else nn.Parameter(self.project_key.detach().clone())
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the length projections so that a full sequence keeps its variance."""
        for projection in (self.project_key, self.project_value):
            if projection is not None:
                draw_weight(projection)

    def mix(
        self, x: Tensor, real: Tensor | None, positions: Tensor, cache: ValueCache | None
    ) -> Tensor:
        """Project keys and values to k rows, padding left out, and attend to those."""
        project_value = self.project_key if self.project_value is None else self.project_value
        keys = self._shorten(x, self.key, self.project_key, positions)
        values = self._shorten(x, self.value, project_value, positions)
        queries = self.query(x).unflatten(-1, (self.size.num_heads, -1)).transpose(1, 2)
        rate = self.dropout if self.training else 0.0
        plain = sdpa_kernel(SDPBackend.MATH) if is_transformed() else nullcontext()
        with plain:
            y = F.scaled_dot_product_attention(queries, keys, values, dropout_p=rate)
        return self.output(y.transpose(1, 2).flatten(-2))

    def resize(self, max_len: int) -> None:
        self.size = Size(self.size.d_model, self.size.num_heads, max_len)
        self.project_key = nn.Parameter(resized(self.project_key, (1,), max_len, draw_weight))
        if self.project_value is not None:
            project_value = resized(self.project_value, (1,), max_len, draw_weight)
            self.project_value = nn.Parameter(project_value)

    def _shorten(
        self, x: Tensor, linear: nn.Linear, projection: Tensor, positions: Tensor
    ) -> Tensor:
        """Map x (B, S, D) and project its length: (B, H, R, K).

        One projection for all heads commutes with the map and goes first: R tokens are mapped
        then, not S.
        """
        picked = projection[:, positions]  # (1 or H, S, R), or (1 or H, B, S, R)
        rows = "hsr" if positions.dim() == 1 else "hbsr"
        x = x if self.share_heads else linear(x)
        groups = x.unflatten(-1, (projection.shape[0], -1))  # (B, S, 1 or H, D or K)
        short = torch.einsum(f"{rows},bshk->brhk", picked, groups).flatten(-2)
        short = linear(short) if self.share_heads else short
        return short.unflatten(-1, (self.size.num_heads, -1)).transpose(1, 2)


def build_mixer(
    spec: str,
    size: Size,
    *,
    causal: bool = False,
    window: Window = None,
    equal_qk_init: bool = False,
    rotary: RotaryOptions | None = None,
    dropout: float = 0.0,
) -> SyntheticAttention | Mixer:
    """Turn a spec into the token mixer of one layer.

    Args:
        spec: Such as "random+dot", "dynamicconv:kernel=7" or "linformer:k=64".
        size: Width, number of heads and longest sequence of the layer.
        causal: Hide later tokens.
        window: Tokens that a query sees, as SyntheticAttention has it.
        equal_qk_init: Start the dot products of a synthesis with Wk = Wq.
        rotary: If given, how the dot products of a synthesis turn with positions.
        dropout: Dropout rate of the attention weights.
    """
    term = parse_spec(spec)[0]
    if term.name not in MIXERS:
        return SyntheticAttention(
            size.d_model,
            size.num_heads,
            size.max_len,
            spec,
            causal=causal,
            window=window,
            equal_qk_init=equal_qk_init,
            rotary=rotary,
            dropout=dropout,
        )
    if window is not None:
        raise UserError(
            f"window={window} with {term.name!r}, which has no attention weights to limit; "
            "leave window out, or choose a synthesizing function"
        )
    return build_registered(term, size, causal, dropout)


def spec_of_mixer(mixer: SyntheticAttention | Mixer) -> str:
    """Write the spec that builds this mixer, with the options that differ from their defaults."""
    if isinstance(mixer, SyntheticAttention):
        return spec_of(mixer.synthesis)
    return str(term_of(mixer.name, mixer))
