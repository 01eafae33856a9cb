"""From logits to outputs: Y = softmax(S(X) + mask) G(X), heads concatenated, then one projection.

The plain path, and the only place with a softmax, a dropout of weights and a use of values.

    x               (B, T, D)                the query tokens
    attention_mask  (B, S)                   True or 1 where a token is real
    position_ids    (S,) or (B, S)           by default the real tokens are counted
    bias            broadcast to (B, H, T, S)  added to the logits with weight one
    cache           keys and values of earlier calls: S is the cached tokens and x's T, in order

Causality and windows compare slots, tables compare positions: so a padded or cached sequence gets
the logits of the same sequence alone. Letters as in synthesis.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from synthesizer_attention.attention.fast import dispatch as fast
from synthesizer_attention.attention.hook import linear
from synthesizer_attention.attention.masks import (
    EXPLICIT,
    SLOT,
    Window,
    check_inputs,
    check_mask,
    is_transformed,
    last_real,
    locate,
    mask_kind,
    masked_softmax,
    position_source,
    visible_keys,
    without_hidden,
)
from synthesizer_attention.attention.registry import build_synthesis
from synthesizer_attention.attention.synthesis import (
    DotProduct,
    Grouped,
    Rotary,
    Size,
    Synthesis,
    keys_at,
    logits_of,
    unwrapped,
)
from synthesizer_attention.errors import UserError
from synthesizer_attention.spec import RotaryOptions


class ValueCache:
    """Values, and keys only where a dot product needs them; or the last inputs of a convolution.

    Pass one cache per layer to each call of a causal layer, and only the new tokens.
    """

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.num_tokens = 0  # that have passed, kept or not
        self.is_window = False  # whether only the last of them are kept
        # tensors with room for more tokens, and the values in them that were kept last
        self.room: tuple[Tensor | None, Tensor, Tensor] | None = None

    def update(self, keys: Tensor | None, values: Tensor) -> tuple[Tensor | None, Tensor]:
        """Append keys (B, H, T, d_keys), if there are any, and values (B, H, T, K); return all."""
        self.num_tokens += values.shape[-2]
        if self.values is not None:
            values = torch.cat([self.values, values], dim=-2)
            keys = None if keys is None or self.keys is None else torch.cat([self.keys, keys], -2)
        self.keys, self.values, self.room = keys, values, None
        return keys, values

    def keep(self, keys: Tensor | None, values: Tensor, num_new: int = 0) -> None:
        """Hold these alone from now on; num_new tokens have passed without update."""
        self.keys, self.values, self.is_window, self.room = keys, values, True, None
        self.num_tokens += num_new

    def extend(self, window: int | None = None) -> tuple[Tensor | None, Tensor]:
        """Keep one more token, which the caller writes, and as many before it as a window sees.

        Returns all keys and values that are kept, for no gradient.
        """
        assert self.values is not None
        length, (keys, values, kept) = self.values.shape[2], self.room or (None, self.values, None)
        end = length + (self.values.storage_offset() - values.storage_offset()) // values.stride(2)
        # Whatever has put other values here, or a copy of this cache that grew, has its own room.
        if kept is not self.values or values.shape[2] == end:
            more, end = (0, 0, 0, max(64, length // 4)), length
            keys = None if self.keys is None else F.pad(self.keys, more)
            values = F.pad(self.values, more)
        start = end - length + max(0, length + 1 - (window or length + 1))
        self.is_window |= start > end - length
        self.keys = None if keys is None else keys[:, :, start : end + 1]
        self.values = values[:, :, start : end + 1]
        self.room = (keys, values, self.values)
        self.num_tokens += 1
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """How many tokens have passed."""
        return self.num_tokens


@dataclass(frozen=True)
class Inputs:
    """What every token mixer is called with, beside its tokens."""

    attention_mask: Tensor | None = None
    position_ids: Tensor | None = None
    bias: Tensor | None = None
    cache: ValueCache | None = None


TORCHS = {
    "key_padding_mask": "give attention_mask=~key_padding_mask: True where a token is real",
    "attn_mask": "the layer is built with causal=True or window=, and bias= is added to its logits",
    "is_causal": "the layer is built with causal=True",
    "need_weights": "attention.attend(x) gives the output and the weights of every head",
    "average_attn_weights": "attention.attend(x)[1].mean(1) are the weights, averaged over heads",
}
"""What nn.MultiheadAttention is called with, and what does it here."""


class TokenMixer(nn.Module):
    """What stands in a layer: SyntheticAttention, or a Mixer (mixers.py)."""

    def forward(
        self,
        x: Tensor,
        *others: object,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        bias: Tensor | None = None,
        cache: ValueCache | None = None,
        **foreign: object,
    ) -> Tensor:
        """Mix tokens (B, T, D) into outputs (B, T, D).

        Args:
            x: Tokens (B, T, D).
            others: None: all else is given by name.
            attention_mask: (B, S), True or 1 where a token is real.
            position_ids: Positions (S,) or (B, S); by default the real tokens are counted.
            bias: Added to the logits with weight one; broadcast to (B, H, T, S).
            cache: Keys and values of earlier calls: S is the cached tokens and x's T, in order.
            foreign: None: an argument of nn.MultiheadAttention is refused with its name here.
        """
        for name in foreign:
            if name not in TORCHS:
                kind = type(self).__name__
                raise TypeError(f"{kind}.forward() got an unexpected keyword argument {name!r}")
            raise UserError(
                f"attention got {name}=, which is nn.MultiheadAttention's; here {TORCHS[name]}"
            )
        if others:
            raise UserError(
                f"attention was called with {1 + len(others)} arguments by position; it takes the "
                "tokens once, not as query, key and value, and all else by name: "
                "attention(x, attention_mask=mask)"
            )
        return self.run(x, Inputs(attention_mask, position_ids, bias, cache))

    any_length: bool | None = False  # as Synthesis has it

    def run(self, x: Tensor, inputs: Inputs) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        raise NotImplementedError

    def attend(self, x: Tensor, **inputs: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """The output (B, T, D) and the weights (B, H, T, S) behind it, before dropout.

        The output is made of these very weights, so that gradients reach them.
        """
        raise NotImplementedError

    def resize(self, max_len: int) -> None:
        """Grow or crop to another max_len, keeping what was learned."""
        raise NotImplementedError


class SyntheticAttention(TokenMixer):
    """Self-attention whose logits are synthesized as the spec says.

    Args:
        d_model: Width D of the tokens.
        num_heads: Number of heads H, a divisor of `d_model`.
        max_len: Longest sequence N; a table has N rows and columns.
        synthesis: Spec of the logits: "dot", "random", "dense", "random+dot", "random@2|dot@2".
        causal: Hide later tokens.
        window: If given, a query sees itself and the window - 1 real tokens before it and, unless
            causal, as many after it; or a registered kind of mask: "chunk:size=64".
        rotary: If given, how the queries and keys of a dot product turn with their positions.
        equal_qk_init: Start dot products with Wk = Wq, so that a token first attends to tokens
            like itself.
        dropout: Dropout rate of the attention weights.
        path: "auto", "fast" (wherever it is exact) or "plain": all give the same result.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        max_len: int,
        synthesis: str = "random+dot",
        *,
        causal: bool = False,
        window: Window = None,
        rotary: RotaryOptions | None = None,
        equal_qk_init: bool = False,
        dropout: float = 0.0,
        path: str = "auto",
    ) -> None:
        super().__init__()
        if path not in fast.PATHS:
            raise UserError(f"path={path!r}; choose from {', '.join(fast.PATHS)}")
        if window is not None:
            mask_kind(window)  # refuses what is none
        self.size = Size(d_model, num_heads, max_len)
        self.synthesis = build_synthesis(synthesis, self.size)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)
        dots = [part for part in self.synthesis.modules() if isinstance(part, DotProduct)]
        for dot in dots:
            if rotary is not None:
                dot.rotary = Rotary(rotary, self.size.d_head)
            if equal_qk_init:
                dot.starts_equal = True
                dot.reset_parameters()
        self.turns = bool(dots) and rotary is not None
        self.any_length = self.synthesis.any_length
        groups, heads = [self.synthesis], [num_heads]
        if isinstance(self.synthesis, Grouped):
            groups, heads = list(self.synthesis.groups), self.synthesis.heads
        biased = [g.biased for g, count in zip(groups, heads, strict=True) for _ in range(count)]
        self.unbiased = [head for head in range(num_heads) if not biased[head]]
        if causal and self.synthesis.has_last:
            raise UserError(
                f"synthesis {synthesis!r} gives the last token a logit of its own, and causal "
                "attention has another last token at each step; use relative"
            )
        self.causal = causal
        self.window = window
        self.dropout = dropout
        self.path = path
        self.frozen: Tensor | None = None

    def run(self, x: Tensor, inputs: Inputs) -> Tensor:
        call = self._call(x, inputs)
        y = fast.attend(self.synthesis, call, self.path)
        return self._sum(call, self._weights(call)) if y is None else linear(self.output, y)

    def attend(self, x: Tensor, **inputs: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """The output (B, T, D) and the weights (B, H, T, S) behind it, before dropout.

        Behind a window, a cache holds fewer than S keys: the weights are those of the held ones.
        """
        call = self._call(x, Inputs(**inputs))
        weights = self._weights(call).expand(x.shape[0], -1, -1, -1)
        return self._sum(call, weights), weights

    def weights(self, x: Tensor, **inputs: Any) -> Tensor:  # noqa: ANN401
        """Attention weights (B, H, T, S): rows sum to one, no dropout."""
        weights = self._weights(self._call(x, Inputs(**inputs)))
        return weights.expand(x.shape[0], -1, -1, -1)

    def logits(self, x: Tensor, *, position_ids: Tensor | None = None) -> Tensor:
        """The synthesized logits alone, before bias, mask and softmax: (B or 1, H, T, S)."""
        call = self._call(x, Inputs(position_ids=position_ids))
        positions = locate(None, position_ids, x.shape[1], x.device)
        return logits_of(self.synthesis, x, call.keys, positions, positions, call.is_last)

    def _call(self, x: Tensor, inputs: Inputs) -> fast.Call:
        """Keys and values of all tokens that x may attend to, with their mask and positions."""
        mask, positions, bias = inputs.attention_mask, inputs.position_ids, inputs.bias
        size, cache, source = self.size, inputs.cache, SLOT
        past = 0 if cache is None else cache.get_seq_length()
        limit = None if self.any_length else size.max_len
        num_keys = check_inputs(x, size.d_model, self.value, limit, past, mask, positions)
        here = is_last = None
        if mask is not None:
            mask, x = mask.bool(), without_hidden(x, mask)
        if mask is not None or positions is not None:
            source = position_source(mask, positions, num_keys)
        synthesis: nn.Module = self.synthesis
        if not isinstance(synthesis, Synthesis):  # an adapter stands for it
            synthesis = unwrapped(synthesis)
        values = linear(self.value, x).unflatten(-1, (size.num_heads, -1)).transpose(1, 2)
        if self.turns:
            here = locate(mask, positions, num_keys, x.device)[..., num_keys - x.shape[1] :]
        keys = synthesis.keys(x) if here is None else keys_at(synthesis, x, here)
        if cache is not None:
            keys, values = cache.update(keys, values)
            if values.shape[2] < num_keys:
                mask, positions, bias = _of_held(inputs, num_keys, values.shape[2], x)
                source = EXPLICIT
            if isinstance(self.window, int) and values.shape[2] > self.window:
                # a later query's window reaches the last real tokens alone
                slots = last_real(mask, values.shape[2], self.window, x.device)[:, None, :, None]
                held = None if keys is None else keys.take_along_dim(slots, dim=2)
                cache.keep(held, values.take_along_dim(slots, dim=2))
        if self.unbiased and bias is not None:
            index = torch.tensor(self.unbiased, device=x.device)
            bias = bias.expand(-1, size.num_heads, -1, -1).index_fill(1, index, 0.0)
            bias = None if len(index) == size.num_heads else bias
        if synthesis.has_last and mask is None:
            num_keys = values.shape[2]
            is_last = torch.arange(num_keys, device=x.device) == num_keys - 1
        elif synthesis.has_last and mask is not None:
            number = mask.cumsum(-1)  # counted, not sorted: ONNX has no stable sort
            is_last, source = mask & (number == number[:, -1:]), EXPLICIT
        return fast.Call(
            x,
            keys,
            values,
            mask=mask,
            positions=positions,
            source=source,
            bias=bias,
            query_positions=here,
            is_last=is_last,
            causal=self.causal,
            window=self.window,
            dropout=self.dropout if self.training else 0.0,
            frozen=self.frozen,
        )

    def _sum(self, call: fast.Call, weights: Tensor) -> Tensor:
        shared = not unwrapped(self.synthesis).depends_on_input
        dropped = drop_weights(weights, call.dropout, shared)
        return linear(self.output, weighted_sum(dropped, call.values))

    def _weights(self, call: fast.Call) -> Tensor:
        num_queries, num_keys, device = call.num_queries, call.num_keys, call.x.device
        key_positions = locate(call.mask, call.positions, num_keys, device)
        positions = key_positions[..., num_keys - num_queries :]
        given = (call.x, call.keys, positions, key_positions, call.is_last)
        logits = logits_of(self.synthesis, *given)  # (B or 1, H, T, S)
        if call.bias is not None:
            logits = logits + call.bias
        return masked_softmax(
            logits, visible_keys(call.mask, self.causal, num_queries, num_keys, device, self.window)
        )

    def freeze(self, length: int | None = None) -> None:
        """Hold the softmax of a table for inference, until train(), resize() or another checkpoint.

        A causal one serves every length up to this one, any other this very length (by default
        max_len). Nothing is held where the logits depend on the input. Writing into a table through
        `.data` leaves what is held stale: freeze again.
        """
        if self.training:
            raise UserError("freeze() is for inference and the attention is training; call eval()")
        length = length or self.size.max_len
        self.frozen = fast.freeze(self.synthesis, length, self.causal, self.window)

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
        window = "" if self.window is None else f", window={self.window}"
        facts = f"causal={self.causal}{window}, dropout={self.dropout}, path={self.path}"
        return f"{self.size}, {facts}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.frozen = None
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        self.frozen = None
        super()._load_from_state_dict(*args, **kwargs)


class CrossAttention(nn.Module):
    """Dot-product attention from one sequence to another, which the paper never synthesizes.

    Args:
        d_model: Width D of the tokens of both sequences.
        num_heads: Number of heads H, a divisor of `d_model`.
        dropout: Dropout rate of the attention weights.
    """

    def __init__(self, d_model: int, num_heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.size = Size(d_model, num_heads, max_len=1)
        self.synthesis = DotProduct(self.size)
        self.value = nn.Linear(d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, d_model, bias=False)
        self.dropout = dropout

    def project(
        self, memory: Tensor, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, S, K) of a memory (B, S, D), to be computed once."""
        if attention_mask is not None:
            check_mask(attention_mask, *memory.shape[:2])
        memory = without_hidden(memory, attention_mask)
        values = self.value(memory).unflatten(-1, (self.size.num_heads, -1)).transpose(1, 2)
        return self.synthesis.keys(memory), values

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, *, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Let tokens attend to a memory that project() has read.

        Args:
            x: Query tokens (B, T, D).
            keys: Keys (B, H, S, K) of the memory.
            values: Values (B, H, S, K) of the memory.
            attention_mask: (B, S), True or 1 where a token of the memory is real.
        """
        if (self.dropout and self.training) or is_transformed():
            return self.attend(x, keys, values, attention_mask=attention_mask)[0]
        visible = self._visible(x, keys, attention_mask)
        return self.output(fast.fused(self.synthesis, x, keys, values, attn_mask=visible))

    def attend(
        self, x: Tensor, keys: Tensor, values: Tensor, *, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The output (B, T, D) and the weights (B, H, T, S) behind it, before dropout."""
        visible = self._visible(x, keys, attention_mask)
        weights = masked_softmax(self.synthesis(x, keys, None, None), visible)
        dropped = drop_weights(weights, self.dropout if self.training else 0.0, shared=False)
        return self.output(weighted_sum(dropped, values)), weights

    def _visible(self, x: Tensor, keys: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        if attention_mask is not None:
            check_mask(attention_mask, x.shape[0], keys.shape[-2])
        return visible_keys(attention_mask, False, x.shape[1], keys.shape[-2], x.device)


def drop_weights(weights: Tensor, rate: float, shared: bool) -> Tensor:
    """Drop weights at random; weights of a table are dropped alike in the whole batch."""
    if rate == 0.0:
        return weights
    if not shared:
        return F.dropout(weights, rate)
    return weights * F.dropout(torch.ones_like(weights[:1]), rate)


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Sum the values by their weights, heads side by side: (B, T, D)."""
    return torch.einsum("bhts,bhsk->bthk", weights.to(values.dtype), values).flatten(-2)


def _of_held(
    inputs: Inputs, num_keys: int, num_held: int, x: Tensor
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Mask, positions and bias of the keys that a window's cache still holds, and of x."""
    mask, num_new = inputs.attention_mask, x.shape[1]
    past = None if mask is None else mask[:, : num_keys - num_new].bool()
    held = last_real(past, num_keys - num_new, num_held - num_new, x.device)
    new = torch.arange(num_keys - num_new, num_keys, device=x.device)
    slots = torch.cat([held, new.expand(len(held), -1)], dim=1)  # (1 or B, S held)
    positions = locate(mask, inputs.position_ids, num_keys, x.device)
    positions = positions.view(-1, num_keys).take_along_dim(slots, dim=1)
    bias = inputs.bias
    if bias is not None:
        bias = bias.take_along_dim(slots[:, None, None], dim=-1)
    return None if mask is None else mask.bool().take_along_dim(slots, dim=1), positions, bias
