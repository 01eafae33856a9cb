"""Put synthesized attention into a model that somebody else built: replace_attention.

    nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, and what holds
    them. In a decoder layer self-attention is replaced; attention to a memory stays. Hugging Face
    models: synthesizer.models registers how (models/replace.py).

A replacement keeps the call of nn.MultiheadAttention: batch_first both ways, key_padding_mask True
where a token is NOT real, attn_mask boolean (True: may not look) or added to the logits.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from synthesizer.attention.groups import Grouped
from synthesizer.attention.layer import masked_softmax
from synthesizer.attention.registry import build_synthesis
from synthesizer.attention.relative import Relative
from synthesizer.attention.synthesis import (
    Dense,
    DotProduct,
    FactorizedDense,
    FactorizedRandom,
    Mixture,
    Random,
    Size,
    Synthesis,
)
from synthesizer.errors import UserError

REPLACERS: list[Callable[..., list[str] | None]] = []
"""Ways to replace the attention of other kinds of models: each returns names, or None."""

ZEROED: dict[type[Synthesis], tuple[str, ...]] = {  # what makes all logits of a part zero
    Random: ("table",),
    FactorizedRandom: ("rows",),
    Relative: ("offsets", "first"),
    Dense: ("w2", "b2"),
    FactorizedDense: ("wb", "bb"),
}


class ReplacedAttention(nn.Module):
    """Synthesized self-attention behind the call of nn.MultiheadAttention.

    Values and output keep the biases of what was replaced, and its weights. So does a dot product,
    whose queries' bias is a term of its own (one of keys adds the same to a whole row: nothing).
    """

    in_proj_bias = None  # asked for by an encoder layer, whose fused path would pass this by
    in_proj_weight = None
    _qkv_same_embed_dim = False

    def __init__(self, old: nn.MultiheadAttention, spec: str, max_len: int, *, keep: bool) -> None:
        super().__init__()
        has_bias = old.in_proj_bias is not None
        self.embed_dim, self.num_heads = old.embed_dim, old.num_heads
        self.batch_first, self.dropout = old.batch_first, old.dropout
        self.max_len = max_len
        self.synthesis = build_synthesis(spec, Size(old.embed_dim, old.num_heads, max_len))
        if self.synthesis.has_last:
            raise UserError(
                f"synthesis {spec!r} gives the last token a logit of its own, and the masks of "
                "nn.MultiheadAttention do not tell which one that is; use relative"
            )
        self.value = nn.Linear(old.embed_dim, old.embed_dim, bias=has_bias)
        self.out_proj = nn.Linear(old.embed_dim, old.embed_dim, bias=old.out_proj.bias is not None)
        self.dot_heads = _dot_heads(self.synthesis, old.num_heads)
        self.query_bias: nn.Parameter | None = None  # (dot heads, K)
        weight = old.in_proj_weight
        self.to(device=weight.device, dtype=weight.dtype)
        if keep:
            _start_at(self, old, spec)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if not (_same(query, key) and _same(key, value)):
            raise UserError(
                "replaced attention is self-attention, and was called with different query, key "
                "and value; leave such a layer out with layers=..."
            )
        single = query.dim() == 2
        x = query[None] if single else query if self.batch_first else query.transpose(0, 1)
        size = x.shape[1]
        if size > self.max_len and not self.synthesis.any_length:
            raise UserError(
                f"a sequence of {size} tokens met attention built for max_len={self.max_len}; "
                "give replace_attention a larger max_len"
            )
        at = torch.arange(size, device=x.device)
        keys = self.synthesis.keys(x)
        logits = self.synthesis(x, keys, at, at)  # (B or 1, H, T, T)
        if self.query_bias is not None:
            assert keys is not None
            term = torch.einsum("bhsk,hk->bhs", keys, self.query_bias) * keys.shape[-1] ** -0.5
            at_heads = torch.tensor(self.dot_heads, device=x.device)
            wide = term.new_zeros(len(x), self.num_heads, size).index_copy(1, at_heads, term)
            logits = logits + wide[:, :, None]
        visible, added = _as_visible(attn_mask, key_padding_mask, x.shape[0], single=single)
        if added is not None:
            logits = logits + added
        weights = masked_softmax(logits, visible).expand(len(x), -1, -1, -1)
        dropped = nn.functional.dropout(weights, self.dropout, self.training)
        mixed = dropped @ self.value(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        output = self.out_proj(mixed.transpose(1, 2).flatten(2))
        shown = None
        if need_weights:
            shown = weights.mean(1) if average_attn_weights else weights
            shown = shown[0] if single else shown
        output = output[0] if single else output if self.batch_first else output.transpose(0, 1)
        return output, shown


def replace_attention(
    model: nn.Module,
    spec: str = "random+dot",
    *,
    max_len: int,
    layers: Iterable[int] | None = None,
    fresh: bool = False,
) -> list[str]:
    """Replace self-attention in place; the names of what was replaced are returned.

    spec    a mixture with a dot product starts exactly at the old function: the dot product takes
            the old weights, the other parts start at zero, and the mixture's weights are made up
            for; of groups of heads, those with a dot product do
    layers  which ones, counted from 0 in the order of the model; by default all
    fresh   draw every parameter anew
    """
    for replace in REPLACERS:
        if (names := replace(model, spec, max_len, layers, fresh=fresh)) is not None:
            return names
    found = {name: (holder, attribute) for name, holder, attribute in _self_attentions(model)}
    names = choose_layers(list(found), layers, type(model).__name__)
    built = []  # all before the first is put in: an error leaves the model as it was
    for name in names:
        holder, attribute = found[name]
        old = getattr(holder, attribute)
        if old.in_proj_weight is None or old.bias_k is not None or old.add_zero_attn:
            raise UserError(
                f"{name} has keys of another width, bias_k or add_zero_attn, which a synthesized "
                "attention has no place for; leave it out with layers=..."
            )
        built.append((holder, attribute, ReplacedAttention(old, spec, max_len, keep=not fresh)))
    for holder, attribute, new in built:
        setattr(holder, attribute, new)
    return names


def choose_layers(found: Sequence[str], layers: Iterable[int] | None, model: str) -> list[str]:
    """The names of the chosen attentions."""
    if not found:
        raise UserError(
            f"{model} holds no nn.MultiheadAttention that attends to itself; "
            "for a Hugging Face model, import synthesizer.models first"
        )
    chosen = range(len(found)) if layers is None else list(layers)
    if bad := [place for place in chosen if not 0 <= place < len(found)]:
        raise UserError(
            f"layers names {bad[0]}; the model has {len(found)}: give 0 to {len(found) - 1}"
        )
    return [found[place] for place in chosen]


@torch.no_grad()
def silence(part: Synthesis, spec: str) -> None:
    """Set what makes the logits of a part zero; what it is multiplied by still learns."""
    if type(part) not in ZEROED:
        raise UserError(
            f"{type(part).__name__} in synthesis {spec!r} cannot start at zero, so that the old "
            "function cannot be kept; give fresh=True"
        )
    for name in ZEROED[type(part)]:
        getattr(part, name).zero_()


def _self_attentions(model: nn.Module) -> Iterable[tuple[str, nn.Module, str]]:
    """(name, holder, attribute) of every attention but a decoder layer's to its memory."""
    for name, holder in model.named_modules():
        for attribute, child in holder.named_children():
            across = isinstance(holder, nn.TransformerDecoderLayer) and attribute != "self_attn"
            if isinstance(child, nn.MultiheadAttention) and not across:
                yield f"{name}.{attribute}".lstrip("."), holder, attribute


@torch.no_grad()
def _start_at(new: ReplacedAttention, old: nn.MultiheadAttention, spec: str) -> None:
    """Give values and output, and the dot products in the spec, the weights of what is replaced."""
    width, heads = old.embed_dim, (new.num_heads, -1)
    wq, wk, wv = old.in_proj_weight.split(width)
    new.value.weight.copy_(wv)
    new.out_proj.weight.copy_(old.out_proj.weight)
    if old.out_proj.bias is not None:
        new.out_proj.bias.copy_(old.out_proj.bias)
    if old.in_proj_bias is not None:
        new.value.bias.copy_(old.in_proj_bias[2 * width :])
    weights = wq.unflatten(0, heads).mT, wk.unflatten(0, heads).mT  # (H, D, K) each
    scales = torch.cat([
        _start_group(group, weights[0][at], weights[1][at], spec)
        for group, at in _groups(new.synthesis, new.num_heads)
    ])  # fmt: skip
    if old.in_proj_bias is not None and new.dot_heads:
        bias = old.in_proj_bias[:width].unflatten(0, heads)[new.dot_heads]
        new.query_bias = nn.Parameter(bias / scales.to(bias)[:, None])


def _start_group(group: Synthesis, wq: Tensor, wk: Tensor, spec: str) -> Tensor:
    """Start the dot product of some heads; what their keys were multiplied by is returned."""
    parts: list[Synthesis] = list(group.parts) if isinstance(group, Mixture) else [group]
    dots = [part for part in parts if isinstance(part, DotProduct)]
    if not dots:
        return torch.ones(0)
    scale = math.sqrt(len(parts))  # alphas start equal: q and k make up for one share each
    if len(dots) > 1:
        raise UserError(
            f"synthesis {spec!r} holds {len(dots)} dot products in one mixture, and the old "
            "function is one; give fresh=True"
        )
    for part in parts:
        if part is not dots[0]:
            silence(part, spec)
    dots[0].wq.copy_(wq * scale)
    dots[0].wk.copy_(wk * scale)
    return torch.full((len(wq),), scale)


def _groups(synthesis: Synthesis, num_heads: int) -> list[tuple[Synthesis, slice]]:
    """Each group of heads, and which ones they are."""
    if not isinstance(synthesis, Grouped):
        return [(synthesis, slice(0, num_heads))]
    ends = [sum(synthesis.heads[:place]) for place in range(len(synthesis.heads) + 1)]
    slices = [slice(*pair) for pair in pairwise(ends)]
    return list(zip(synthesis.groups, slices, strict=True))


def _dot_heads(synthesis: Synthesis, num_heads: int) -> list[int]:
    """The heads that have keys."""
    groups = _groups(synthesis, num_heads)
    return [h for group, at in groups if group.d_keys for h in range(at.start, at.stop)]


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether these are one tensor, or views of the same part of one."""
    if one is other or torch.compiler.is_compiling():
        return True
    return one.shape == other.shape and one.data_ptr() == other.data_ptr()


def _as_visible(
    attn_mask: Tensor | None, padding: Tensor | None, batch: int, *, single: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Who may look, and what is added to logits, from torch's masks: True hides in both."""
    visible: Any = None
    added: Any = None
    for name, mask in (("attn_mask", attn_mask), ("key_padding_mask", padding)):
        if mask is not None and mask.dtype != torch.bool and not mask.is_floating_point():
            raise UserError(
                f"{name} holds {mask.dtype}; give booleans, True where nobody may look, or floats "
                "that are added to logits"
            )
    if attn_mask is not None:
        if attn_mask.dim() == 3:  # (B H, T, S)
            attn_mask = attn_mask.unflatten(0, (batch, -1))
        if attn_mask.dtype == torch.bool:
            visible = ~attn_mask
        else:
            visible, added = attn_mask > -torch.inf, attn_mask.clamp(min=-1e30)
        if attn_mask.dim() == 2:
            visible = visible[None, None]
    if padding is not None:
        padding = padding[None] if single else padding
        padding = padding[:, None, None]
        real = ~padding if padding.dtype == torch.bool else padding > -torch.inf
        visible = real if visible is None else visible & real
        if padding.dtype != torch.bool:
            padding = padding.clamp(min=-1e30)
            added = padding if added is None else added + padding
    return visible, added
