"""From kernels to outputs: Y[i] = sum_j w[i,j] X[i+j] with X = GLU(x W), then one projection.

The only place with a window, the gates, a softmax over a kernel and DropConnect.
A convolution runs over the real tokens in their order and skips padding, so padding changes no real
token's output. A sequence is padded with zeros at both ends, and the kernel is not renormalized
there. Positions do not matter. Letters as in baselines.py; P the padded length.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from synthesizer_attention.attention.baselines import DynamicConv, LightConv, Weightless
from synthesizer_attention.attention.cache import Cache
from synthesizer_attention.attention.layer import Inputs
from synthesizer_attention.attention.masks import (
    check_inputs,
    check_tokens,
    hides_only_the_end,
    without_hidden,
)
from synthesizer_attention.attention.synthesis import Size

SHIFTED = 5  # up to this width, shifting and adding is the cheapest form
BLOCK = 16  # rows of a band matrix that are multiplied at once


class Convolution(Weightless):
    """A gated depthwise convolution; `synthesis` says where its kernels come from."""

    def __init__(
        self,
        size: Size,
        synthesis: LightConv | DynamicConv,
        *,
        causal: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.size, self.synthesis, self.causal, self.dropout = size, synthesis, causal, dropout
        self.name = synthesis.name
        self.before = synthesis.kernel - 1 if causal else (synthesis.kernel - 1) // 2
        self.after = synthesis.kernel - 1 - self.before
        self.value = nn.Linear(size.d_model, 2 * size.d_model, bias=False)
        self.output = nn.Linear(size.d_model, size.d_model, bias=False)

    def mix(self, x: Tensor, inputs: Inputs) -> Tensor:
        self._check(inputs)
        attention_mask, cache = inputs.attention_mask, inputs.cache
        check_tokens(x, self.size.d_model, self.value)
        past = 0 if cache is None else cache.get_seq_length()
        check_inputs(x, None, past + x.shape[1], attention_mask, None)
        attention_mask = None if attention_mask is None else attention_mask[:, past:]
        queue = move_to_front(F.glu(self.value(without_hidden(x, attention_mask))), attention_mask)
        window = self._window(queue, cache)
        weights = self._drop(self.synthesis(queue.x).softmax(-1), x.shape[1])
        return self.output(move_back(convolve(window, weights), queue))

    def resize(self, max_len: int) -> None:
        """No parameter depends on the length."""
        self.size = Size(self.size.d_model, self.size.num_heads, max_len)

    def extra_repr(self) -> str:
        return f"{self.size}, causal={self.causal}, dropout={self.dropout}"

    def _window(self, queue: "Queue", cache: Cache | None) -> Tensor:
        """The inputs of all kernel windows: (B, before + T + after, D)."""
        held = None if cache is None else cache.values
        if held is None:
            window = F.pad(queue.x, (0, 0, self.before, self.after))
        else:
            window = torch.cat([held, queue.x], dim=1)
        if cache is not None:
            cache.keep(None, _last(window, queue, self.before), queue.x.shape[1])
        return window

    def _drop(self, weights: Tensor, length: int) -> Tensor:
        """DropConnect: drop weights at every token; one draw for shared kernels."""
        if not self.training or self.dropout == 0.0:
            return weights
        return F.dropout(weights.expand(-1, length, -1, -1), self.dropout)


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
