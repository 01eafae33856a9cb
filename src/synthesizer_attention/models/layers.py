"""Everything around the attention: positions, feed-forward, layers and stacks of layers.

Letters as in synthesis.py.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer

from synthesizer_attention.attention.baselines import build_mixer
from synthesizer_attention.attention.hook import linear
from synthesizer_attention.attention.layer import CrossAttention, Inputs, ValueCache
from synthesizer_attention.attention.synthesis import Size, resized
from synthesizer_attention.errors import UserError
from synthesizer_attention.spec import NONE, has_logits, parse_positions

NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}
NORM_POSITIONS = ("pre", "post")
HOOK = "_hf_hook"
"""What accelerate adds to a module whose weights it may keep on disk until the module is called."""


@dataclass(frozen=True)
class Shape:
    """What every layer of one stack is built from."""

    d_model: int
    num_heads: int
    d_ff: int
    max_len: int
    causal: bool
    window: int | str | None = None
    equal_qk_init: bool = False
    cross: bool = False
    norm: str = "layer"
    norm_position: str = "pre"
    activation: str = "relu"
    positions: str = "sinusoidal"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    universal: bool = False  # one layer's weights at every depth
    halt_at: float | None = None  # where they are shared: a token stops at this probability

    @property
    def bias(self) -> bool:
        """Models with RMSNorm carry no biases outside the synthesis, as T5."""
        return self.norm == "layer"


class FeedForward(nn.Module):
    """W2 act(W1 x): each token on its own."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.widen = nn.Linear(shape.d_model, shape.d_ff, bias=shape.bias)
        self.narrow = nn.Linear(shape.d_ff, shape.d_model, bias=shape.bias)
        self.activation = ACTIVATIONS[shape.activation]
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(self.activation(linear(self.widen, x)))
        return linear(self.narrow, hidden)


class RelativeBias(nn.Module):
    """T5's bias: one learned number per head and bucket of distances, the same in every layer."""

    tables = ("table",)

    def __init__(
        self, num_heads: int, *, causal: bool, num_buckets: int = 32, max_distance: int = 128
    ) -> None:
        super().__init__()
        self.causal, self.num_buckets, self.max_distance = causal, num_buckets, max_distance
        self.table = nn.Parameter(torch.empty(num_heads, num_buckets))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start near zero, as the tables do."""
        nn.init.normal_(self.table, std=0.02)

    def forward(self, positions: Tensor, key_positions: Tensor) -> Tensor:
        """The bias between (T,) or (B, T) and (S,) or (B, S) positions: (1 or B, H, T, S)."""
        distance = key_positions[..., None, :] - positions[..., :, None]
        buckets = bucket(distance, self.causal, self.num_buckets, self.max_distance)
        bias = self.table[:, buckets].movedim(0, -3)
        return bias if bias.dim() == 4 else bias[None]


def bucket(distance: Tensor, causal: bool, num_buckets: int, max_distance: int) -> Tensor:
    """Near distances one by one, far ones in logarithmic steps; the future has its own."""
    buckets = num_buckets if causal else num_buckets // 2
    offset = (distance > 0).long() * (0 if causal else buckets)
    distance = (-distance).clamp(min=0) if causal else distance.abs()
    near = buckets // 2
    ratio = (distance.clamp(min=1) / near).log() / math.log(max_distance / near)
    far = (near + (ratio * (buckets - near)).long()).clamp(max=buckets - 1)
    return offset + torch.where(distance < near, distance, far)


class Alibi(nn.Module):
    """-m |i - j|, a fixed slope m = 2^(-8 h / H) for head h = 1..H: ALiBi (Press et al. 2021)."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads

    def forward(self, positions: Tensor, key_positions: Tensor, dtype: torch.dtype) -> Tensor:
        """The bias between (T,) or (B, T) and (S,) or (B, S) positions: (1 or B, H, T, S)."""
        distance = (key_positions[..., None, :] - positions[..., :, None]).abs().to(dtype)
        heads = torch.arange(1, self.num_heads + 1, device=distance.device, dtype=dtype)
        slopes = 2 ** (-8 * heads / self.num_heads)
        bias = -slopes[:, None, None] * distance[..., None, :, :]
        return bias if bias.dim() == 4 else bias[None]


class Positions(nn.Module):
    """Positional encodings, added to the embeddings."""

    def __init__(self, kind: str, max_len: int, d_model: int) -> None:
        super().__init__()
        self.kind, self.d_model = kind, d_model
        self.table = nn.Embedding(max_len, d_model) if kind == "learned" else None

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Add to x (B, T, D) what belongs to positions (T,) or (B, T)."""
        if self.table is not None:
            return x + self.table(positions)
        if self.kind == "sinusoidal":
            return x + sinusoids(positions, self.d_model).to(x.dtype)
        return x

    def resize(self, max_len: int) -> None:
        """Keep the learned positions that both lengths share."""
        if self.table is not None:
            draw = partial(nn.init.normal_, std=0.02)
            fresh = resized(self.table.weight, (0,), max_len, draw)
            self.table = nn.Embedding.from_pretrained(fresh, freeze=False)


@dataclass(frozen=True)
class Context:
    """What all layers of one call share."""

    inputs: Inputs  # of every token mixer; position_ids only where the mask does not tell them
    positions: Tensor  # (S,) or (B, S)
    memory: Tensor | None = None  # (B, S of the memory, D): what an encoder made
    memory_mask: Tensor | None = None  # (B, S of the memory)
    memory_cache: EncoderDecoderCache | None = None  # keys and values of it, by layer
    keep_weights: bool = False
    caches: Sequence[ValueCache] | None = None  # one per layer, or per step of a universal model


class Layer(GradientCheckpointingLayer):
    """Attention, attention to a memory where there is one, feed-forward; each with its residual."""

    def __init__(self, shape: Shape, synthesis: str) -> None:
        super().__init__()
        self.pre_norm = shape.norm_position == "pre"
        norm = NORMS[shape.norm]
        self.attention, self.attention_norm, self.cross, self.cross_norm = None, None, None, None
        self.has_logits = has_logits(synthesis)
        if synthesis != NONE:
            self.attention = build_mixer(
                synthesis,
                Size(shape.d_model, shape.num_heads, shape.max_len),
                causal=shape.causal,
                window=shape.window,
                equal_qk_init=shape.equal_qk_init,
                rotary=parse_positions(shape.positions).rotary,
                dropout=shape.attention_dropout,
            )
            self.attention_norm = norm(shape.d_model)
        if shape.cross:
            self.cross = CrossAttention(
                shape.d_model, shape.num_heads, dropout=shape.attention_dropout
            )
            self.cross_norm = norm(shape.d_model)
        self.feed_forward = FeedForward(shape)
        self.feed_forward_norm = norm(shape.d_model)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(
        self,
        x: Tensor,
        context: Context,
        cache: ValueCache | None = None,
        bias: Tensor | None = None,
        memory: Tensor | None = None,
        index: int = 0,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The states, and the weights of both attentions where they were asked for.

        Tensors with a gradient are arguments of their own: reentrant checkpoints need that.
        """
        if HOOK in vars(self) or HOOK in vars(self.attention or self):
            refuse_offloaded(self)
        weights = cross_weights = None
        if self.attention is not None:
            given = {
                "attention_mask": context.inputs.attention_mask,
                "position_ids": context.inputs.position_ids,
                "bias": bias if self.has_logits else None,
                "cache": cache,
            }
            y = self._enter(x, self.attention_norm)
            if context.keep_weights:
                y, weights = self.attention.attend(y, **given)
            else:
                y = self.attention(y, **given)
            x = self._leave(x, y, self.attention_norm)
        elif cache is not None:
            cache.update(None, x[:, None, :, :0])  # of no width: it keeps the length alone
        if self.cross is not None and memory is not None:
            mask = context.memory_mask
            kept = remember(context.memory_cache, index, self.cross, memory, mask)
            y = self._enter(x, self.cross_norm)
            if context.keep_weights:
                y, cross_weights = self.cross.attend(y, *kept, attention_mask=mask)
            else:
                y = self.cross(y, *kept, attention_mask=mask)
            x = self._leave(x, y, self.cross_norm)
        y = self.feed_forward(self._enter(x, self.feed_forward_norm))
        return self._leave(x, y, self.feed_forward_norm), weights, cross_weights

    def _enter(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        return norm(x) if norm is not None and self.pre_norm else x

    def _leave(self, x: Tensor, y: Tensor, norm: nn.Module | None) -> Tensor:
        x = x + self.dropout(y)
        return norm(x) if norm is not None and not self.pre_norm else x


@dataclass
class StackOutput:
    """What a stack gives: its last states, and states and weights per layer where asked for."""

    x: Tensor
    states: list[Tensor] = field(default_factory=list)
    weights: list[Tensor | None] = field(default_factory=list)
    cross_weights: list[Tensor | None] = field(default_factory=list)
    num_steps: Tensor | None = None  # (B,), where tokens choose how deep they go
    ponder_cost: Tensor | None = None  # (B,)


class Stack(nn.Module):
    """Positions, layers, and the last norm of a pre-norm stack."""

    layers: Sequence[Layer]

    def __init__(self, shape: Shape, specs: Sequence[str]) -> None:
        super().__init__()
        self.shape = shape
        kinds = parse_positions(shape.positions)
        self.positions = Positions(kinds.added, shape.max_len, shape.d_model)
        self.relative, self.alibi = None, None
        if kinds.relative and any(map(has_logits, specs)):
            self.relative = RelativeBias(shape.num_heads, causal=shape.causal)
        if kinds.alibi and any(map(has_logits, specs)):
            self.alibi = Alibi(shape.num_heads)
        layers = nn.ModuleList(Layer(shape, spec) for spec in specs)
        self.layers = layers  # type: ignore[assignment]
        mixers = [layer.attention for layer in self.layers if layer.attention is not None]
        said = {mixer.any_length for mixer in mixers}
        self.any_length = said <= {True, None} and True in said and kinds.added != "learned"
        if self.any_length:  # a dot product has no limit of its own: it follows the others
            for mixer in mixers:
                mixer.any_length = True
        last = NORMS[shape.norm] if shape.norm_position == "pre" else None
        self.norm = nn.Identity() if last is None else last(shape.d_model)
        self.dropout = nn.Dropout(shape.dropout)

    @property
    def num_steps(self) -> int:
        """How many layers a token goes through."""
        return len(self.layers)

    def forward(self, x: Tensor, context: Context) -> StackOutput:
        """Run embeddings x (B, T, D) through the layers; context.positions are of all S keys."""
        here, context = self.locate(x, context)
        x = self.dropout(self.positions(x, here))
        output = StackOutput(x)
        for index in range(len(self.layers)):
            output.states.append(x)
            x = self.run_layer(index, x, context, output)
        output.x = self.norm(x)
        output.states.append(output.x)
        return output

    def run_layer(
        self, index: int, x: Tensor, context: Context, output: StackOutput, step: int | None = None
    ) -> Tensor:
        """Run one layer with its memory and the cache of its step; weights go to output."""
        caches = context.caches
        x, weights, cross_weights = self.layers[index](
            x,
            context,
            None if caches is None else caches[index if step is None else step],
            context.inputs.bias,
            context.memory,
            index,
        )
        output.weights.append(weights)
        output.cross_weights.append(cross_weights)
        return x

    def locate(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """The positions of x, and the context with the relative bias."""
        here = context.positions[..., context.positions.shape[-1] - x.shape[1] :]
        biases = [] if self.relative is None else [self.relative(here, context.positions)]
        if self.alibi is not None:
            biases.append(self.alibi(here, context.positions, x.dtype))
        if biases:
            bias = sum(biases[1:], start=biases[0])
            context = replace(context, inputs=replace(context.inputs, bias=bias))
        return here, context

    def resize(self, max_len: int) -> None:
        """Grow or crop every table of positions, keeping what was learned."""
        self.shape = replace(self.shape, max_len=max_len)
        self.positions.resize(max_len)
        for layer in self.layers:
            if layer.attention is not None:
                layer.attention.resize(max_len)


def remember(
    cache: EncoderDecoderCache | None,
    index: int,
    cross: CrossAttention,
    memory: Tensor,
    attention_mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Keys and values of a memory for one layer, projected once per cache."""
    if cache is None:
        return cross.project(memory, attention_mask)
    if not cache.is_updated.get(index, False):
        cache.cross_attention_cache.update(*cross.project(memory, attention_mask), index)
        cache.is_updated[index] = True
    kept = cache.cross_attention_cache.layers[index]
    return kept.keys, kept.values


def refuse_offloaded(layer: Layer) -> None:
    """Attention reads weights of its parts without calling them: they must be in memory."""
    if any(parameter.is_meta for parameter in layer.parameters()):
        raise UserError(
            "weights of a layer are offloaded, and its attention reads them together; load the "
            "model without offloading, or by accelerate's "
            "load_checkpoint_and_dispatch(..., preload_module_classes=['Layer'])"
        )


def sinusoids(positions: Tensor, d_model: int) -> Tensor:
    """sin(p / 10000^(2i/D)) and cos of the same, side by side: (..., D)."""
    angles = positions[..., None] * first_angles(d_model, positions.device)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :d_model]


def first_angles(d_model: int, device: torch.device) -> Tensor:
    """1 / 10000^(2i/D), the angles of position 1: (D / 2)."""
    half = torch.arange((d_model + 1) // 2, device=device, dtype=torch.float32)
    return torch.exp(half * (-2 * math.log(10_000.0) / d_model))
