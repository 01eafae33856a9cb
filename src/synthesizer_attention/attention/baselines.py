"""The token mixers that the paper compares with, one class each.

LightConv and DynamicConv make the logits of convolution kernels and nothing else:

    forward(x) -> logits (B, T, H, W), or (1, 1, H, W) if equal for all tokens

Window, softmax, DropConnect and gates are convolution.py's. Linformer is a whole token mixer.
Letters as in synthesis.py; W kernel width, R the k of Linformer.
"""

from contextlib import nullcontext
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from synthesizer_attention.attention.layer import Inputs, TokenMixer
from synthesizer_attention.attention.masks import (
    check_inputs,
    check_tokens,
    is_transformed,
    locate,
    without_hidden,
)
from synthesizer_attention.attention.resize import resized
from synthesizer_attention.attention.synthesis import Size
from synthesizer_attention.errors import UserError
from synthesizer_attention.spec import require_positive


class LightConv(nn.Module):
    """Y[i] = sum_j softmax(w)[j] X[i+j], X gated, w learned per head."""

    tables = ("table",)
    name = "lightconv"

    def __init__(self, size: Size, *, kernel: int = 31) -> None:
        super().__init__()
        require_positive(self.name, kernel=kernel)
        self.kernel = kernel
        self.table = nn.Parameter(torch.empty(size.num_heads, kernel))  # (H, W)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start near zero: a kernel begins as the mean of its window, as Random does."""
        nn.init.normal_(self.table, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return self.table[None, None]


class DynamicConv(nn.Module):
    """Y[i] = sum_j softmax(W X[i])[j] X[i+j], X gated."""

    name = "dynamicconv"

    def __init__(self, size: Size, *, kernel: int = 31) -> None:
        super().__init__()
        require_positive(self.name, kernel=kernel)
        self.kernel, self.num_heads = kernel, size.num_heads
        self.write = nn.Linear(size.d_model, size.num_heads * kernel, bias=False)

    def reset_parameters(self) -> None:
        """All weights are the linear layer's, which initializes itself."""

    def forward(self, x: Tensor) -> Tensor:
        return self.write(x).unflatten(-1, (self.num_heads, self.kernel))


class Weightless(TokenMixer):
    """A token mixer that has no attention weights between tokens to show."""

    name: str
    causal: bool

    def attend(self, x: Tensor, **inputs: object) -> NoReturn:
        raise UserError(
            f"{self.name!r} has no attention weights between tokens; "
            "leave output_attentions out, or choose a synthesizing function"
        )

    weights = attend

    def _check(self, inputs: Inputs) -> None:
        if inputs.cache is not None and not self.causal:
            raise UserError(
                f"{self.name!r} reads later tokens here, so it cannot use a cache; "
                "leave the cache out"
            )
        if inputs.bias is not None:
            raise UserError(
                f"{self.name!r} has no logits that a bias could be added to; "
                'choose other positions than "relative"'
            )


class Linformer(Weightless):
    """Y = softmax(Q (E^T K)^T / sqrt(d)) F^T V, E and F learned (N, k)."""

    name = "linformer"

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
        super().__init__()
        require_positive(self.name, k=k)
        if causal:
            raise UserError(
                f"linformer:k={k} cannot be causal: each of its {k} keys is a sum over the whole "
                "sequence, the future included; use it in an encoder, and another spec for a "
                "decoder (decoder_synthesis)"
            )
        self.size, self.causal, self.dropout = size, causal, dropout
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
                _draw_projection(projection)

    def mix(self, x: Tensor, inputs: Inputs) -> Tensor:
        """Project keys and values to k rows, padding left out, and attend to those."""
        self._check(inputs)
        attention_mask, position_ids = inputs.attention_mask, inputs.position_ids
        check_tokens(x, self.size.d_model, self.value)
        check_inputs(x, self.size.max_len, x.shape[1], attention_mask, position_ids)
        positions = locate(attention_mask, position_ids, x.shape[1], x.device)
        x = without_hidden(x, attention_mask)
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
        """Grow or crop the length projections."""
        self.size = Size(self.size.d_model, self.size.num_heads, max_len)
        self.project_key = nn.Parameter(resized(self.project_key, (1,), max_len, _draw_projection))
        if self.project_value is not None:
            self.project_value = nn.Parameter(
                resized(self.project_value, (1,), max_len, _draw_projection)
            )

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


def _draw_projection(projection: Tensor) -> None:
    nn.init.normal_(projection, std=projection.shape[-2] ** -0.5)


Baseline = LightConv | DynamicConv | Linformer

BASELINES: dict[str, type[Baseline]] = {
    "lightconv": LightConv,
    "dynamicconv": DynamicConv,
    "linformer": Linformer,
}
