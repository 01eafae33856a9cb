"""Put synthesized attention into a model that somebody else built: replace_attention.

    nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, and what holds
    them. A replacement keeps the call of nn.MultiheadAttention: batch_first both ways,
    key_padding_mask True where a token is NOT real, attn_mask boolean (True: may not look) or added
    to the logits.

    Hugging Face models. Where a spec holds `dot`, the architecture's queries, keys, rotary
    positions, biases and soft caps stay, and the other parts are added; where it does not, the
    projections of queries and keys are left out. The model becomes its converted twin
    (converted.py), so that it saves and loads as one.

        B = alpha_1 S_1 + ... + n alpha_n (the model's own dot product)      of n parts

Self-attention is replaced; attention to a memory stays. This file needs torch alone.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from synthesizer_attention.attention.masks import masked_softmax, too_long, visible_keys
from synthesizer_attention.attention.registry import build_synthesis
from synthesizer_attention.attention.synthesis import (
    DotProduct,
    Grouped,
    Mixture,
    Size,
    Synthesis,
    joint_length,
)
from synthesizer_attention.audit.tables import sink_slots
from synthesizer_attention.errors import UserError
from synthesizer_attention.spec import parse_spec, split_groups


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
        groups = head_groups(self.synthesis, old.num_heads)
        self.dot_heads = [h for g, at in groups if g.d_keys for h in range(at.start, at.stop)]
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
        visible, added = _as_visible(attn_mask, key_padding_mask, x)
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

    Args:
        model: Any model whose self-attention is known, as those of BERT, GPT-2 or Llama.
        spec: A mixture with a dot product starts exactly at the old function: the dot product
            takes the old weights, the other parts start at zero, and the mixture's weights are
            made up for; of groups of heads, those with a dot product do.
        max_len: Longest sequence that the tables of the new layers serve.
        layers: Which ones, counted from 0 in the order of the model; by default all.
        fresh: Draw every parameter anew.
    """
    transformers = sys.modules.get("transformers")
    if transformers is not None and isinstance(model, transformers.PreTrainedModel):
        return _replace_in_pretrained(model, spec, max_len, layers, fresh=fresh)
    found = {
        f"{name}.{attribute}".lstrip("."): (holder, attribute)
        for name, holder in model.named_modules()
        for attribute, child in holder.named_children()
        if isinstance(child, nn.MultiheadAttention)
        and (attribute == "self_attn" or not isinstance(holder, nn.TransformerDecoderLayer))
    }
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
            f"{model} holds no nn.MultiheadAttention that attends to itself, and no such layer of "
            "a Hugging Face model; give a model that does"
        )
    chosen = range(len(found)) if layers is None else list(layers)
    if bad := [place for place in chosen if not 0 <= place < len(found)]:
        raise UserError(
            f"layers names {bad[0]}; the model has {len(found)}: give 0 to {len(found) - 1}"
        )
    return [found[place] for place in chosen]


@torch.no_grad()
def silence(parts: Iterable[Synthesis], spec: str) -> None:
    """Set to zero what makes the logits of parts; what it is multiplied by still learns."""
    for part in parts:
        if not part.zeroed:
            raise UserError(
                f"{type(part).__name__} in synthesis {spec!r} cannot start at zero, so that the "
                "old function cannot be kept; give fresh=True"
            )
        for name in part.zeroed:
            getattr(part, name).zero_()


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
        for group, at in head_groups(new.synthesis, new.num_heads)
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
    silence((part for part in parts if part is not dots[0]), spec)
    dots[0].wq.copy_(wq * scale)
    dots[0].wk.copy_(wk * scale)
    return torch.full((len(wq),), scale)


def head_groups(synthesis: Synthesis, num_heads: int) -> list[tuple[Synthesis, slice]]:
    """Each group of heads that are made in the same way, and which ones they are."""
    if not isinstance(synthesis, Grouped):
        return [(synthesis, slice(0, num_heads))]
    ends = pairwise([0, *accumulate(synthesis.heads)])
    return [(group, slice(*at)) for group, at in zip(synthesis.groups, ends, strict=True)]


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether these are one tensor, or views of the same part of one."""
    if one is other or torch.compiler.is_compiling():
        return True
    return one.shape == other.shape and one.data_ptr() == other.data_ptr()


def _as_visible(
    attn_mask: Tensor | None, padding: Tensor | None, x: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The visible keys, and a term of the logits, from torch's masks: True hides in both."""
    found: list[Tensor] = []
    for name, mask in (("attn_mask", attn_mask), ("key_padding_mask", padding)):
        if mask is None:
            continue
        added = mask
        if mask.dtype == torch.bool:
            added = x.new_zeros(mask.shape).masked_fill(mask, -torch.inf)
        elif not mask.is_floating_point():
            raise UserError(
                f"{name} holds {mask.dtype}; give booleans, True where nobody may look, or floats "
                "that are added to logits"
            )
        if name == "key_padding_mask":  # (B, S), or (S,) of one text
            added = added.reshape(-1, 1, 1, mask.shape[-1])
        elif mask.dim() == 3:  # (B H, T, S)
            added = added.unflatten(0, (len(x), -1))
        found.append(added)
    if not found:
        return None, None
    total = sum(found[1:], start=found[0])
    return total > -torch.inf, total.clamp(min=-1e30)


class SynthesizedLogits(nn.Module):
    """The parts of one layer's logits, its own dot product among them where the spec says dot."""

    parts: Iterable[Synthesis]

    def __init__(self, facts: Mapping[str, Any]) -> None:
        super().__init__()
        spec = facts["spec"]
        size = Size(facts["d_model"], facts["num_heads"], facts["max_len"], facts["d_head"])
        terms = parse_spec(spec)
        dots = sum(term.name == "dot" for term in terms)
        if split_groups(spec) or dots > 1:
            raise UserError(
                f"synthesis {spec!r}: a Hugging Face model takes one mixture for all heads of a "
                "layer, such as random+dot; tables for some heads are what convert makes"
            )
        parts = [build_synthesis(str(term), size) for term in terms if term.name != "dot"]
        if any(part.has_last for part in parts):
            raise UserError(f"synthesis {spec!r} has a logit for the last token; use relative")
        if not all(part.biased for part in parts):
            raise UserError(
                f"synthesis {spec!r} asks for no bias, and this model's own is added to all heads; "
                "use relative"
            )
        self.parts = nn.ModuleList(parts)  # type: ignore[assignment]
        self.has_dot, self.size = bool(dots), size
        self.any_length = joint_length(parts) if parts else True
        self.mix = nn.Parameter(torch.zeros(size.num_heads, len(terms)))  # (H, parts), dot last
        self.x: Tensor | None = None  # (B, T, D), the layer's input during a call

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        causal: bool,
        options: Mapping[str, Any],
    ) -> tuple[Tensor, Tensor]:
        """Attention (B, T, H, K) and its weights."""
        num_queries, num_keys, device = query.shape[2], value.shape[2], value.device
        if mask is not None and mask.dtype != torch.bool:
            raise UserError(
                f"a mask of shape {tuple(mask.shape)} holds {mask.dtype}; replaced attention takes "
                "booleans, True where a query may look, or an attention_mask of shape (B, S)"
            )
        visible = mask
        if visible is None:
            visible = visible_keys(None, causal, num_queries, num_keys, device)
        keys_at = self._positions(mask, num_keys, device)
        at = keys_at[..., num_keys - num_queries :]
        alphas = (self.mix.softmax(-1) * self.mix.shape[1]).unbind(-1)
        x, self.x = self.x, None
        assert x is not None
        each: list[Tensor] = [
            alpha[:, None, None] * part(x, None, at, keys_at) / self.mix.shape[1]
            for alpha, part in zip(alphas, self.parts, strict=False)
        ]
        if self.has_dot:
            keys = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
            each.append(alphas[-1][:, None, None] * dot_logits(query, keys, options))
        logits = sum(each[1:], start=each[0])
        if options.get("position_bias") is not None:
            logits = logits + options["position_bias"]
        weights = masked_softmax(logits.float(), visible).to(value.dtype)
        weights = weights.expand(len(value), -1, -1, -1)
        dropped = nn.functional.dropout(weights, options.get("dropout") or 0.0, self.training)
        values = value.repeat_interleave(self.size.num_heads // value.shape[1], 1)
        return (dropped @ values).transpose(1, 2).contiguous(), weights

    def _positions(self, mask: Tensor | None, num_keys: int, device: torch.device) -> Tensor:
        """The position of each key, (S,) or (B, S), counted from where its text begins."""
        slots = torch.arange(num_keys, device=device)
        first = None if mask is None else sink_slots(mask)[0]
        positions = slots if first is None else (slots - first[:, None]).clamp(min=0)
        if not self.any_length and int(positions[..., -1].max()) >= self.size.max_len:
            raise too_long(int(positions[..., -1].max()) + 1, self.size.max_len)
        return positions


def dot_logits(query: Tensor, key: Tensor, options: Mapping[str, Any]) -> Tensor:
    """The dot products of an architecture whose keys are laid out one for one."""
    scaling, softcap = options.get("scaling"), options.get("softcap")
    logits = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    return logits if softcap is None else (logits / softcap).tanh() * softcap


def self_attentions(model: Any) -> list[str]:  # noqa: ANN401
    """The names, in the base of a Hugging Face model, of what attends to itself."""
    from synthesizer_attention.audit.hook import is_cross, reachable
    from synthesizer_attention.audit.projections import layout_of

    reachable(model)
    return [
        name
        for name, module in model.base_model.named_modules()
        if layout_of(module) and not is_cross(name, module)
    ]


def _replace_in_pretrained(
    model: Any, spec: str, max_len: int, layers: Iterable[int] | None, *, fresh: bool  # noqa: ANN401
) -> list[str]:  # fmt: skip
    from synthesizer_attention.audit import converted, projections  # which need transformers

    base, found = model.base_model, self_attentions(model)
    names = choose_layers(found, layers, type(model).__name__)
    before = converted.replaced_before(model)
    for place, name in enumerate(found):
        if name in before and name in names:
            held = before[name].get("spec", f"tables in {len(before[name]['heads'])} heads")
            raise UserError(
                f"layer {place} of this model was replaced before ({held}); name others with "
                "layers=[...], or begin with the model that it was made of"
            )
    has_dot = any(term.name == "dot" for term in parse_spec(spec))
    replaced = dict[str, dict[str, Any]]()
    for name in names:
        sizes = projections.head_facts(base.get_submodule(name))
        heads = [] if has_dot else list(range(sizes["num_heads"]))
        replaced[name] = {"spec": spec, "heads": heads, **sizes, "max_len": max_len}
    for name, facts in replaced.items():
        if has_dot and not fresh:  # refuses, before anything changes, what cannot start at zero
            silence(SynthesizedLogits(facts).parts, spec)
        attention = base.get_submodule(name)
        weight = next(attention.parameters())
        state = {f"{name}.{key}": value for key, value in attention.state_dict().items()}
        state = projections.narrowed_state(state, base, "", {name: facts}, {})
        projections.narrow_attention(attention, facts)
        attention.load_state_dict(
            {key.removeprefix(f"{name}."): value for key, value in state.items()}, strict=False
        )
        if fresh:
            attention.apply(model._init_weights)
        elif has_dot:
            silence(attention.synthesized.parts, spec)
        attention.to(device=weight.device, dtype=weight.dtype)
    config = model.config
    if not before:
        twin = converted.converted_model(type(model))
        config.original_model_type, config.replaced = config.model_type, {}
        config.__class__, model.__class__ = twin.config_class, twin
    config.replaced = {**config.replaced, **replaced}
    model.set_attn_implementation(converted.NAME)
    return names
