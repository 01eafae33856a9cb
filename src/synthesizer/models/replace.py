"""replace_attention for Hugging Face models: synthesized logits in an architecture's own layers.

    B = alpha_1 S_1 + ... + n alpha_n (the model's own dot product)      of n parts

Where a spec holds `dot`, the architecture's queries, keys, rotary positions, biases and soft caps
stay; the other parts are added, and n makes up for the alphas, which begin at 1/n. Where it does
not, the projections of queries and keys are left out. The model becomes its converted twin
(converted.py), so that it saves and loads as one.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from synthesizer.attention.masks import too_long
from synthesizer.attention.registry import build_synthesis
from synthesizer.attention.replace import choose_layers, silence
from synthesizer.attention.synthesis import Size, Synthesis, joint_length
from synthesizer.errors import UserError
from synthesizer.models.interface import NAME, require_interface
from synthesizer.models.tables import past, sink_slots, visible_softmax
from synthesizer.spec import parse_spec, split_groups

CROSS = ("EncDecAttention", "crossattention", "encoder_attn", "cross_attn")  # to a memory


class SynthesizedLogits(nn.Module):
    """The parts of one layer's logits, its own dot product among them where the spec says dot."""

    parts: Iterable[Synthesis]

    def __init__(self, spec: str, size: Size) -> None:
        super().__init__()
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
        dropout: float,
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
        if visible is None and causal and num_queries > 1:
            visible = past(num_queries, num_keys, device)
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
            each.append(alphas[-1][:, None, None] * _own_dot(query, key, options))
        logits = sum(each[1:], start=each[0])
        if options.get("position_bias") is not None:
            logits = logits + options["position_bias"]
        weights = visible_softmax(logits.float(), visible).to(value.dtype)
        weights = weights.expand(len(value), -1, -1, -1)
        dropped = nn.functional.dropout(weights, dropout, self.training)
        values = value.repeat_interleave(self.size.num_heads // value.shape[1], 1)
        return (dropped @ values).transpose(1, 2), weights

    def _positions(self, mask: Tensor | None, num_keys: int, device: torch.device) -> Tensor:
        """The position of each key, (S,) or (B, S), counted from where its text begins."""
        slots = torch.arange(num_keys, device=device)
        first = None if mask is None else sink_slots(mask)[0]
        positions = slots if first is None else (slots - first[:, None]).clamp(min=0)
        if not self.any_length and int(positions[..., -1].max()) >= self.size.max_len:
            raise too_long(int(positions[..., -1].max()) + 1, self.size.max_len)
        return positions


def _own_dot(query: Tensor, key: Tensor, options: Mapping[str, Any]) -> Tensor:
    scaling, softcap = options.get("scaling"), options.get("softcap")
    keys = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    logits = query @ keys.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    return logits if softcap is None else (logits / softcap).tanh() * softcap


def put_logits(attention: Any, facts: Mapping[str, Any]) -> None:  # noqa: ANN401
    """Give one attention module the logits that its facts name."""
    attention.synthesized = _logits(facts)

    def keep(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ANN401
        module.synthesized.x = args[0] if args else kwargs["hidden_states"]

    attention.register_forward_pre_hook(keep, with_kwargs=True)


def _logits(facts: Mapping[str, Any]) -> SynthesizedLogits:
    size = Size(facts["d_model"], facts["num_heads"], facts["max_len"], facts["d_head"])
    return SynthesizedLogits(facts["spec"], size)


def _silence(logits: SynthesizedLogits, spec: str) -> None:
    """Where the layer keeps its dot product, let the other parts start at zero."""
    for part in logits.parts if logits.has_dot else ():
        silence(part, spec)


def replace_in_pretrained(
    model: nn.Module, spec: str, max_len: int, layers: Iterable[int] | None, *, fresh: bool
) -> list[str] | None:
    """The names of what was replaced; None where this is not a Hugging Face model."""
    from synthesizer.models import converted  # which builds layers with what is defined here

    if not isinstance(model, PreTrainedModel):
        return None
    require_interface(model)
    base: Any = model.base_model
    found = [
        name
        for name, module in base.named_modules()
        if converted.has_projections(module) and not is_cross(name, module)
    ]
    names = choose_layers(found, layers, type(model).__name__)
    before = converted.replaced_before(model)
    for place, name in enumerate(found):
        if name in before and name in names:
            held = before[name].get("spec", f"tables in {len(before[name]['heads'])} heads")
            raise UserError(
                f"layer {place} of this model was replaced before ({held}); name others with "
                "layers=[...], or begin with the model that it was made of"
            )
    for name in names:
        converted.check_convertible(base.get_submodule(name))
    replaced = {name: _facts(base.get_submodule(name), spec, max_len) for name in names}
    for name, facts in replaced.items():
        if not fresh:  # what cannot start at the old function is refused before anything changes
            _silence(_logits(facts), spec)
        attention: Any = base.get_submodule(name)
        weight = next(attention.parameters())
        state = {f"own.{key}": value for key, value in attention.state_dict().items()}
        state = converted.narrowed_state(state, "", {"own": replaced[name]})
        converted.narrow_attention(attention, replaced[name])
        attention.load_state_dict(
            {key.removeprefix("own."): value for key, value in state.items()}, strict=False
        )
        if fresh:
            attention.apply(model._init_weights)
        else:
            _silence(attention.synthesized, spec)
        attention.to(device=weight.device, dtype=weight.dtype)
    converted.become_converted(model, replaced)
    model.set_attn_implementation(NAME)
    return names


def is_cross(name: str, module: Any) -> bool:  # noqa: ANN401
    """Whether an attention reads a memory, by its name or as its architecture marks it."""
    return any(word in name for word in CROSS) or bool(getattr(module, "is_cross_attention", False))


def _facts(attention: Any, spec: str, max_len: int) -> dict[str, Any]:  # noqa: ANN401
    """What config.json says of a layer with synthesized logits."""
    keys = ("head_dim", "attention_head_size", "key_value_proj_dim")
    d_head = next(int(n) for key in keys if isinstance(n := getattr(attention, key, None), int))
    children = dict(attention.named_children())
    if "c_attn" in children:
        d_model = children["c_attn"].weight.shape[0]
        queries = kept = children["c_attn"].weight.shape[1] // 3
    else:
        from synthesizer.models.converted import SEPARATE

        pair = next(pair for pair in SEPARATE if set(pair) <= set(children))
        (queries, d_model), kept = (
            children[pair[0]].weight.shape,
            children[pair[1]].weight.shape[0],
        )
    has_dot = any(term.name == "dot" for term in parse_spec(spec))
    num_heads = queries // d_head
    return {
        "spec": spec,
        "heads": [] if has_dot else list(range(num_heads)),
        "num_heads": num_heads,
        "num_key_heads": kept // d_head,
        "d_head": d_head,
        "d_model": d_model,
        "max_len": max_len,
    }
