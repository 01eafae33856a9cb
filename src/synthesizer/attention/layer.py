"""From logits to outputs: Y = softmax(S(X) + mask) G(X), heads concatenated, then one projection.

The plain path, and the only place with a mask, a softmax, a dropout of weights and a use of values.

    x               (B, T, D)                the tokens that look
    attention_mask  (B, S)                   True or 1 where a token is real
    position_ids    (S,) or (B, S)           where the tokens stand; by default the mask is counted
    bias            broadcast to (B, H, T, S)  added to the logits with weight one
    cache           what earlier calls saw: S is then the cached tokens and x's T, in this order

Causality compares slots, tables compare positions: so a padded or cached sequence gets the logits
of the same sequence alone. Letters as in synthesis.py.
"""

from collections.abc import Callable
from typing import Any, Protocol, Self, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from synthesizer.attention import fast
from synthesizer.attention.masks import (
    check_mask,
    check_positions,
    check_tokens,
    locate,
    standing,
    too_long,
    visible_keys,
)
from synthesizer.attention.synthesis import DotProduct, Size, build_synthesis
from synthesizer.errors import UserError


class Cache(Protocol):
    """What decoding remembers of one layer."""

    def update(self, keys: Tensor | None, values: Tensor) -> tuple[Tensor | None, Tensor]:
        """Append keys (B, H, T, d_keys), if there are any, and values (B, H, T, K); return all."""
        ...

    def window(self) -> Tensor | None:
        """What slide kept last, if anything."""
        ...

    def slide(self, window: Tensor, num_tokens: int) -> None:
        """Keep this window (B, W, D) alone, now that num_tokens more tokens have passed."""
        ...

    def get_seq_length(self) -> int:
        """How many tokens have passed."""
        ...


class ValueCache:
    """Values, and keys only where a dot product needs them; or the window of a convolution."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.slid = 0

    def update(self, keys: Tensor | None, values: Tensor) -> tuple[Tensor | None, Tensor]:
        self.keys = append(self.keys, keys)
        self.values = values = append(self.values, values)
        return self.keys, values

    def window(self) -> Tensor | None:
        return self.values

    def slide(self, window: Tensor, num_tokens: int) -> None:
        self.values, self.slid = window, self.slid + num_tokens

    def get_seq_length(self) -> int:
        return self.slid or (0 if self.values is None else self.values.shape[-2])


class SyntheticAttention(nn.Module):
    """Self-attention whose logits are synthesized as the spec says."""

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        max_len: int,
        synthesis: str = "random+dot",
        *,
        causal: bool = False,
        dropout: float = 0.0,
        path: str = "auto",
    ) -> None:
        super().__init__()
        if path not in fast.PATHS:
            raise UserError(f"path={path!r}; choose from {', '.join(fast.PATHS)}")
        self.size = Size(d_model, num_heads, max_len)
        self.synthesis = build_synthesis(synthesis, self.size)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)
        self.causal = causal
        self.dropout = dropout
        self.path = path
        self.frozen: Tensor | None = None

    def forward(
        self,
        x: Tensor,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        bias: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        keys, values = self._remember(x, cache)
        self._check(x.shape[0], values.shape[-2], attention_mask, position_ids)
        call = fast.Call(
            x,
            keys,
            values,
            causal=self.causal,
            mask=None if attention_mask is None else attention_mask.bool(),
            bias=bias,
            dropout=self.dropout if self.training else 0.0,
            standing=standing(attention_mask, position_ids, values.shape[-2]),
            frozen=self.frozen,
        )
        y = fast.attend(self.synthesis, call, self.path)
        if y is not None:
            return self.output(y)
        return self._attend(x, keys, values, attention_mask, position_ids, bias)[0]

    def attend(
        self,
        x: Tensor,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        bias: Tensor | None = None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The output (B, T, D) and the weights (B or 1, H, T, S) behind it, before dropout."""
        keys, values = self._remember(x, cache)
        return self._attend(x, keys, values, attention_mask, position_ids, bias)

    def _remember(self, x: Tensor, cache: Cache | None) -> tuple[Tensor | None, Tensor]:
        """Keys, if any, and values of all tokens that x may look at."""
        check_tokens(x, self.size.d_model)
        keys, values = self.synthesis.keys(x), split_heads(self.value(x), self.size.num_heads)
        return (keys, values) if cache is None else cache.update(keys, values)

    def _attend(
        self,
        x: Tensor,
        keys: Tensor | None,
        values: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        bias: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        weights = self._weights(x, keys, values.shape[-2], attention_mask, position_ids, bias)
        shared = not self.synthesis.depends_on_input
        dropped = drop_weights(weights, self.dropout if self.training else 0.0, shared)
        return self.output(look(dropped, values)), weights

    def weights(
        self,
        x: Tensor,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """How much each token looks at each other: (B, H, T, S), rows sum to one, no dropout."""
        check_tokens(x, self.size.d_model)
        keys = self.synthesis.keys(x)
        weights = self._weights(x, keys, x.shape[1], attention_mask, position_ids, bias)
        return weights.expand(x.shape[0], -1, -1, -1)

    def logits(self, x: Tensor, *, position_ids: Tensor | None = None) -> Tensor:
        """The synthesized logits alone, before bias, mask and softmax: (B or 1, H, T, S)."""
        check_tokens(x, self.size.d_model)
        num_keys = x.shape[1]
        self._check(x.shape[0], num_keys, None, position_ids)
        positions = locate(None, position_ids, num_keys, x.device)
        return self.synthesis(x, self.synthesis.keys(x), positions, positions)

    def freeze(self, length: int | None = None) -> None:
        """Hold the softmax of a table for inference, until train(), resize() or another checkpoint.

        A causal one serves every length up to this one, any other this very length (by default
        max_len). Where the tokens have a say there is nothing to hold. Writing into a table through
        `.data` leaves what is held stale: freeze again.
        """
        if self.training:
            raise UserError("freeze() is for inference and the attention is training; call eval()")
        self.frozen = fast.freeze(self.synthesis, length or self.size.max_len, self.causal)

    def train(self, mode: bool = True) -> Self:
        if mode:
            self.frozen = None
        return super().train(mode)

    def resize(self, max_len: int) -> None:
        """Grow or crop to another longest sequence, keeping what was learned."""
        self.frozen = None
        self.size = Size(self.size.d_model, self.size.num_heads, max_len)
        self.synthesis.resize(max_len)

    def extra_repr(self) -> str:
        return f"{self.size}, causal={self.causal}, dropout={self.dropout}, path={self.path}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.frozen = None
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        self.frozen = None
        super()._load_from_state_dict(*args, **kwargs)

    def _weights(
        self,
        x: Tensor,
        keys: Tensor | None,
        num_keys: int,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        self._check(x.shape[0], num_keys, attention_mask, position_ids)
        num_queries = x.shape[1]
        key_positions = locate(attention_mask, position_ids, num_keys, x.device)
        positions = key_positions[..., num_keys - num_queries :]
        logits = self.synthesis(x, keys, positions, key_positions)  # (B or 1, H, T, S)
        if bias is not None:
            logits = logits + bias
        return masked_softmax(
            logits, visible_keys(attention_mask, self.causal, num_queries, num_keys, x.device)
        )

    def _check(
        self,
        batch: int,
        num_keys: int,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
    ) -> None:
        if num_keys > self.size.max_len:
            raise too_long(num_keys, self.size.max_len)
        if attention_mask is not None:
            check_mask(attention_mask, batch, num_keys)
        if position_ids is not None:
            check_positions(position_ids, batch, num_keys, self.size.max_len)


class CrossAttention(nn.Module):
    """Dot-product attention from one sequence to another: the paper never synthesizes this one."""

    def __init__(self, d_model: int, num_heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.size = Size(d_model, num_heads, max_len=1)
        self.synthesis = DotProduct(self.size)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)
        self.dropout = dropout

    def project(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """What is looked at, computed once per memory (B, S, D): keys and values (B, H, S, K)."""
        values = split_heads(self.value(memory), self.size.num_heads)
        return self.synthesis.keys(memory), values

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, *, attention_mask: Tensor | None = None
    ) -> Tensor:
        if self.dropout and self.training:
            return self.attend(x, keys, values, attention_mask=attention_mask)[0]
        visible = self._visible(x, keys, attention_mask)
        return self.output(fast.attend_across(self.synthesis, x, keys, values, visible))

    def attend(
        self, x: Tensor, keys: Tensor, values: Tensor, *, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The output (B, T, D) and the weights (B, H, T, S) behind it, before dropout."""
        visible = self._visible(x, keys, attention_mask)
        weights = masked_softmax(self.synthesis(x, keys, None, None), visible)
        dropped = drop_weights(weights, self.dropout if self.training else 0.0, shared=False)
        return self.output(look(dropped, values)), weights

    def _visible(self, x: Tensor, keys: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        if attention_mask is not None:
            check_mask(attention_mask, x.shape[0], keys.shape[-2])
        return visible_keys(attention_mask, False, x.shape[1], keys.shape[-2], x.device)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, S, D) -> (B, H, S, K)."""
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def masked_softmax(logits: Tensor, visible: Tensor | None) -> Tensor:
    """Softmax over the visible keys; hidden keys get exactly zero, so a row with none is zero."""
    if visible is None:
        return logits.softmax(-1)
    lowest = torch.finfo(logits.dtype).min
    return logits.masked_fill(~visible, lowest).softmax(-1).masked_fill(~visible, 0.0)


def drop_weights(weights: Tensor, rate: float, shared: bool) -> Tensor:
    """Drop weights at random; where the tokens have no say, one draw serves the whole batch."""
    if rate == 0.0:
        return weights
    if not shared:
        return F.dropout(weights, rate)
    return weights * F.dropout(torch.ones_like(weights[:1]), rate)


def look(weights: Tensor, values: Tensor) -> Tensor:
    """Sum the values by their weights, heads side by side: (B, T, D)."""
    return torch.einsum("bhts,bhsk->bthk", weights.to(values.dtype), values).flatten(-2)


@overload
def append(old: Tensor | None, new: Tensor) -> Tensor: ...
@overload
def append(old: Tensor | None, new: None) -> None: ...
def append(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    """What a cache of (B, H, S, n) holds after new tokens; nothing stays nothing."""
    return new if old is None or new is None else torch.cat([old, new], dim=-2)
