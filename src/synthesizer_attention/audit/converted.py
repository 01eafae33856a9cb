"""Models in which tables replace the dot product of some heads.

    ConvertedBertModel(ConvertedBertConfig)     BertModel, but for its replaced heads

A converted class is made for any architecture on demand: the original builds itself, then the
query and key projections of replaced heads are left out of its attention and tables are put there.
`config.replaced` names both:

    {"encoder.layer.0.attention.self": {"heads": [0, 5], "num_heads": 12, "num_key_heads": 12,
     "d_head": 32, "max_len": 128, "kind": "relative"}}

Query heads may share key heads; a key head goes when all its query heads have gone. projections.py
knows how an architecture lays out its projections. A layer attends by a function of transformers'
attention interface: `attend`. A model of this package becomes an ordinary Synthesizer instead.
"""

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from synthesizer_attention.attention.baselines import spec_of_mixer
from synthesizer_attention.attention.layer import SyntheticAttention
from synthesizer_attention.attention.masks import masked_softmax, real_tokens, visible_keys
from synthesizer_attention.attention.synthesis import (
    DotProduct,
    Grouped,
    Synthesis,
    stretched,
    unwrapped,
)
from synthesizer_attention.audit.projections import (
    Facts,
    Padded,
    check_convertible,
    narrow_attention,
    narrowed_state,
)
from synthesizer_attention.audit.replace import dot_logits, head_groups
from synthesizer_attention.audit.tables import (
    KINDS,
    RELATIVE,
    HeadTables,
    seen_through,
    sink_slots,
)
from synthesizer_attention.errors import UserError
from synthesizer_attention.models.backbone import Kept, SynthesizerPreTrainedModel
from synthesizer_attention.models.config import CONVERTED
from synthesizer_attention.models.generation import ValueLayer
from synthesizer_attention.models.layers import Stack
from synthesizer_attention.spec import expand_layers

NAME = "synthesizer"  # of the attention function, and of its mask twin
OPENED = "synthesizer: import synthesizer_attention.models and open this folder by an Auto class"


@dataclass(frozen=True)
class Layer:
    """One call of self-attention in a forward pass."""

    call: int  # among all attention calls of a pass, cross-attention included
    name: str  # of its module in the model
    num_heads: int
    num_key_heads: int  # fewer than heads where queries share keys
    d_head: int
    causal: bool
    window: int | None
    tables: list[int] = field(default_factory=list)  # heads that a conversion replaced before
    normed: bool = False  # queries and keys over all heads, so that one needs what made the others

    @property
    def dots(self) -> list[int]:
        """The heads that attend by a dot product."""
        return [head for head in range(self.num_heads) if head not in self.tables]


# the converted twin of an architecture


class Converted(Kept):
    """The methods that are added to an architecture's own class."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        if config._attn_implementation not in (None, NAME):
            raise UserError(
                f"attn_implementation={config._attn_implementation!r} would need the queries and "
                "keys that were left out of a converted model; leave it out, too"
            )
        config._attn_implementation = NAME
        super().__init__(config, *args, **kwargs)
        for name, facts in config.replaced.items():
            attention = self.base_model.get_submodule(name)
            _check_facts(name, attention, facts)
            narrow_attention(attention, facts)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Call forward with sound masks: transformers reads every other number as True."""
        names = list(inspect.signature(self.forward).parameters) if len(args) > 1 else []
        for name, mask in [*zip(names, args, strict=False), *kwargs.items()]:
            if name.endswith("attention_mask") and isinstance(mask, Tensor) and mask.dim() == 2:
                real_tokens(mask)
        return super().__call__(*args, **kwargs)

    def _prepare_cache_for_generation(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Let layers cache no key that none of their dot heads reads, as keys alone or as zeros."""
        super()._prepare_cache_for_generation(*args, **kwargs)
        model_kwargs = kwargs.get("model_kwargs", args[1] if len(args) > 1 else {})
        cache = model_kwargs.get("past_key_values")
        cache = getattr(cache, "self_attention_cache", cache)
        for module in self.modules() if isinstance(cache, Cache) else ():
            index, heads = getattr(module, "layer_idx", None), getattr(module, "dot_heads", None)
            if heads is None or index is None or index >= len(cache.layers):
                continue
            if type(cache.layers[index]) is not DynamicLayer:
                continue
            if not heads:
                cache.layers[index] = TableLayer()
            elif any(isinstance(child, Padded) for child in module.children()):
                cache.layers[index] = FewKeysLayer(len(set(module.dot_keys)))


class TableLayer(ValueLayer):
    """A layer whose heads are all tables: it keeps values alone."""

    def update(
        self, keys: Tensor | None, values: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor | None, Tensor]:
        _, kept = super().update(None, values)
        return keys, kept


class FewKeysLayer(DynamicLayer):
    """A layer that is given keys of all heads, and keeps those of its dot heads: the first ones."""

    def __init__(self, num_keys: int) -> None:
        super().__init__()
        self.num_keys = num_keys

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any  # noqa: ANN401
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        kept = key_states[:, : self.num_keys]
        found: tuple[Tensor, Tensor] = super().update(kept, value_states, *args, **kwargs)
        return found


def _check_facts(name: str, attention: nn.Module, facts: Facts) -> None:
    """Refuse facts of a config.json that do not fit the layer: heads are counted one by one."""
    sizes = [facts[key] for key in ("num_heads", "num_key_heads", "d_head", "max_len")]
    if not all(type(size) is int and size > 0 for size in sizes):
        raise UserError(f"replaced.{name} in config.json has sizes {sizes}; expected counts")
    num_heads, num_key_heads, d_head, _ = sizes
    wide = [m for m in attention.modules() if getattr(m, "weight", None) is not None]
    widest = max((max(m.weight.shape) for m in wide), default=0)  # type: ignore[arg-type]
    if num_heads * d_head > widest or num_heads % num_key_heads:
        raise UserError(
            f"replaced.{name} in config.json has {num_heads} heads of {d_head} that share "
            f"{num_key_heads} keys, which a {type(attention).__name__} of its size has not"
        )
    heads = facts["heads"]
    if not (isinstance(heads, list) and all(type(h) is int and 0 <= h < num_heads for h in heads)):
        raise UserError(f"replaced.{name}.heads in config.json is {heads!r:.100}; expected numbers")
    if "spec" not in facts and facts["kind"] not in KINDS:
        raise UserError(f"replaced.{name}.kind in config.json is {facts['kind']!r:.100}")


def replaced_before(model: PreTrainedModel) -> dict[str, Facts]:
    """The facts of replaced layers in a converted model's config, by name in its base model."""
    return dict(model.config.replaced) if isinstance(model, Converted) else {}


def read_config(facts: dict[str, Any], **options: Any) -> Any:  # noqa: ANN401
    """The config of a converted folder: of the architecture's own class, but for its name."""
    original = facts.get("original_model_type")
    if original not in CONFIG_MAPPING:
        raise UserError(
            f"the converted model was a {original!r}, which this version of transformers does "
            "not know; install the version that its config.json names"
        )
    return converted_config(CONFIG_MAPPING[original]).from_dict(facts, **options)


class _OpenedByAuto:
    """A config whose file lets the original's own class refuse the folder, and say what opens it.

    That class would draw the weights of replaced heads anew. It reads which attention to use.
    """

    def to_diff_dict(self) -> dict[str, Any]:
        written: dict[str, Any] = super().to_diff_dict()  # type: ignore[misc]
        return written | {"attn_implementation": OPENED}

    @classmethod
    def from_dict(cls, facts: dict[str, Any], **options: Any) -> Any:  # noqa: ANN401
        read = {k: v for k, v in facts.items() if (k, v) != ("attn_implementation", OPENED)}
        return super().from_dict(read, **options)  # type: ignore[misc]


@cache
def converted_config(original: Any) -> Any:  # noqa: ANN401  a class of configs and its twin
    """The converted twin of a config class; its models are registered with it."""
    if getattr(original, "model_type", "") == CONVERTED:
        return original
    body = {"model_type": CONVERTED, "__module__": __name__}
    twin = type(f"Converted{original.__name__}", (_OpenedByAuto, original), body)
    for name, auto in vars(modeling_auto).items():
        if not (isinstance(auto, type) and name.startswith("AutoModel")):
            continue
        known: Any = auto._model_mapping  # type: ignore[attr-defined]
        if original in known:
            model = known[original][0] if isinstance(known[original], tuple) else known[original]
            auto.register(twin, _converted_model(model, twin), exist_ok=True)  # type: ignore[attr-defined]
    return twin


def converted_model(original: Any) -> Any:  # noqa: ANN401  a class of models and its twin
    """The converted twin of a model class; a converted one is its own."""
    if issubclass(original, Converted):
        return original
    return _converted_model(original, converted_config(original.config_class))


@cache
def _converted_model(original: Any, config_class: Any) -> Any:  # noqa: ANN401
    config_class.needs_masks = not original._supports_sdpa  # its layers may not say what is causal
    body = {"config_class": config_class, "__module__": __name__}
    return type(f"Converted{original.__name__}", (Converted, original), body)


# attention


def attend(
    module: Any,  # noqa: ANN401
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,  # noqa: ANN401  whatever this architecture passes
) -> tuple[Tensor, Tensor | None]:
    """(B, T, H, K) from values of all heads, and queries and keys of those that are dot products.

    A layer that nothing was replaced in attends as its architecture does.
    """
    tables, synthesized = getattr(module, "tables", None), getattr(module, "synthesized", None)
    causal = options.get("is_causal")
    causal = bool(getattr(module, "is_causal", True)) if causal is None else causal
    if synthesized is not None:
        found: tuple[Tensor, Tensor] = synthesized(
            query, key, value, attention_mask, causal=causal, options=options
        )
        return found
    plain = options.get("softcap") is None and options.get("s_aux") is None
    if tables is None and plain:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    replaced = [] if tables is None else list(tables.heads)
    dots = list(range(query.shape[1])) if tables is None else module.dot_heads
    num_heads, num_queries = len(dots) + len(replaced), query.shape[2]
    group = num_heads // value.shape[1]
    visible, bias = attention_mask, options.get("position_bias")
    if visible is not None and visible.dtype != torch.bool:
        bias = visible if bias is None else bias + visible
        visible = seen_through(visible)
    parts = []
    if tables is not None:
        values = _heads(value, [head // group for head in replaced])
        parts.append(tables(values, visible, num_queries=num_queries, causal=causal))
    if dots:
        if visible is None:
            visible = visible_keys(None, causal, num_queries, value.shape[2], query.device)
        keys = _heads(key, [head // group for head in dots] if tables is None else module.dot_keys)
        values = _heads(value, [head // group for head in dots])
        bias = None if bias is None else bias.expand(-1, num_heads, -1, -1)[:, dots]
        queries, dropout = query[:, : len(dots)], options.get("dropout") or 0.0  # behind: zeros
        if not plain:
            weights = _dot_weights(queries, keys, visible, bias, dots, options)
            parts.append(nn.functional.dropout(weights, dropout) @ values)
        else:
            mask = bias if visible is None or bias is None else _hidden(bias, visible)
            parts.append(
                nn.functional.scaled_dot_product_attention(
                    queries, keys, values, attn_mask=visible if mask is None else mask,
                    dropout_p=dropout, scale=options.get("scaling"),
                )
            )  # fmt: skip
    order = torch.tensor([*replaced, *dots]).argsort()
    return torch.cat(parts, 1)[:, order].transpose(1, 2).contiguous(), None


def mask_of(
    *args: Any,  # noqa: ANN401  transformers' own, by name
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    **options: Any,  # noqa: ANN401
) -> Tensor | None:
    """True where a query may attend, or None; it carries the slot at which each text begins.

    A window may have dropped the first token: then its slot is negative, and no key is the first.
    """
    skip = allow_is_causal_skip and not (isinstance(kv_offset, int) and kv_offset > 0)
    skip = skip and not getattr(options.get("config"), "needs_masks", False)
    mask: Tensor | None = sdpa_mask(
        *args, kv_offset=kv_offset, attention_mask=attention_mask, allow_is_causal_skip=skip,
        **options,
    )  # fmt: skip
    if mask is not None:
        begins = mask.new_zeros(mask.shape[0], dtype=torch.long)  # len() fixes an export
        if attention_mask is not None and attention_mask.dim() == 2:
            begins = attention_mask.to(torch.uint8).argmax(-1)
        mask.first_slot = begins - kv_offset  # type: ignore[attr-defined]
    return mask


def converted_weights(
    module: Any, query: Tensor, key: Tensor, visible: Tensor, *, causal: bool,  # noqa: ANN401
    options: dict[str, Any],
) -> Tensor:  # fmt: skip
    """(B, H, T, S) of all heads of a converted layer, dot products and tables alike."""
    tables, dots = module.tables, module.dot_heads
    logits = tables.logits(*visible.shape[2:], *sink_slots(visible), has_last=not causal)
    parts = [masked_softmax(logits, visible).expand(len(query), -1, -1, -1)]
    if dots:
        bias = options.get("position_bias")
        bias = None if bias is None else bias[:, dots]
        keys = _heads(key, module.dot_keys)
        parts.append(_dot_weights(query[:, : len(dots)], keys, visible, bias, dots, options))
    return torch.cat(parts, 1)[:, torch.tensor([*tables.heads, *dots]).argsort()]


def _dot_weights(
    query: Tensor,
    key: Tensor,
    visible: Tensor | None,
    bias: Tensor | None,
    heads: list[int],
    options: Facts,
) -> Tensor:
    """(B, H, T, S) of heads whose keys are laid out one for one.

    Where an architecture has sinks, s_aux, each head's takes its share beside the keys.
    """
    logits = dot_logits(query, key, options)
    logits = logits if bias is None else logits + bias
    logits = logits if visible is None else _hidden(logits, visible)
    sinks = options.get("s_aux")
    if sinks is not None:
        sinks = sinks[heads].to(logits).view(-1, 1, 1).expand(*logits.shape[:-1], 1)
        logits = torch.cat([logits, sinks], -1)
    weights = logits.softmax(-1, dtype=torch.float32).to(query.dtype)
    return weights if sinks is None else weights[..., :-1]


def _hidden(logits: Tensor, visible: Tensor) -> Tensor:
    return logits.masked_fill(~visible, torch.finfo(logits.dtype).min)


def _heads(states: Tensor, heads: list[int]) -> Tensor:
    return states if heads == list(range(states.shape[1])) else states[:, heads]


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, mask_of)


# from a model and tables to the converted model


def build_converted(
    model: PreTrainedModel,
    layers: Sequence[Layer],
    tables: Mapping[int, HeadTables],
    *,
    share: bool = False,
) -> PreTrainedModel:
    """A copy of this model whose named heads, by layer, are replaced by tables.

    share   let it use the memory of all weights that stay as they are: to measure, not to train
    """
    for place in tables:
        if sum(other.name == layers[place].name for other in layers) > 1:
            raise UserError(
                f"{type(model).__name__} calls one attention more than once (in several layers, as "
                "ALBERT does, or twice in a layer, as DiffLlama does), so that a head cannot be "
                "left out of one call; audit works, convert does not"
            )
    if is_own(model):
        converted, state = _build_own(model, {layers[n].name: t for n, t in tables.items()})
    else:
        converted, state = _build_twin(model, layers, tables)
    missing, unexpected = converted.load_state_dict(state, strict=False, assign=share)
    assert not set(missing) - set(converted.all_tied_weights_keys), missing
    assert not unexpected, unexpected
    converted.tie_weights()
    converted.generation_config = copy.deepcopy(getattr(model, "generation_config", None))
    filled: PreTrainedModel = converted.to(model.dtype).eval()
    return filled


def _build_twin(
    model: PreTrainedModel, layers: Sequence[Layer], tables: Mapping[int, HeadTables]
) -> tuple[Any, dict[str, Tensor]]:
    base = model.base_model
    prefix = next((f"{name}." for name, m in model.named_modules() if m is base and name), "")
    before, replaced = replaced_before(model), dict[str, dict[str, Any]]()
    state = dict(model.state_dict())
    for place, new in sorted(tables.items()):
        layer = layers[place]
        name = layer.name.removeprefix(prefix)
        attention: Any = base.get_submodule(name)
        check_convertible(attention)
        table = attention.tables.joined(new) if name in before else new
        replaced[name] = {
            "heads": list(table.heads),
            **{key: getattr(layer, key) for key in ("num_heads", "num_key_heads", "d_head")},
            "max_len": table.max_len,
            "kind": table.kind,
        }
        for key, value in table.state_dict().items():
            state[f"{layer.name}.tables.{key}"] = value
    state = narrowed_state(state, base, prefix, replaced, before)
    facts = copy.deepcopy(model.config).to_dict()
    facts.setdefault("original_model_type", facts.pop("model_type"))
    facts["replaced"] = {**before, **replaced}
    own: Any = type(model.config)
    config = converted_config(own).from_dict(facts)
    return converted_model(type(model))(config), state


# models of this package


def is_own(model: PreTrainedModel) -> bool:
    """Whether this is a model of this package."""
    return isinstance(model, SynthesizerPreTrainedModel)


def stacks_of(model: PreTrainedModel) -> dict[str, Stack]:
    """The encoder and the decoder of a model of ours, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Stack)}


class HeadRun(NamedTuple):
    """Neighbouring heads of one layer that are made in the same way."""

    spec: str
    heads: range
    part: Synthesis
    at: str  # where its weights are, inside the layer


def head_runs(attention: SyntheticAttention) -> list[HeadRun]:
    """The groups of heads of a layer; one, where all are made in the same way."""
    spec, parts = spec_of_mixer(attention), attention.synthesis
    if not isinstance(parts, Grouped):
        return [HeadRun(spec, range(attention.size.num_heads), parts, "synthesis.")]
    groups = head_groups(parts, attention.size.num_heads)
    names = [group.rpartition("@")[0] for group in spec.split("|")]
    return [
        HeadRun(name, range(at.start, at.stop), unwrapped(group), f"synthesis.groups.{n}.")
        for n, (name, (group, at)) in enumerate(zip(names, groups, strict=True))
    ]


def _build_own(model: Any, tables: Mapping[str, HeadTables]) -> tuple[Any, dict[str, Tensor]]:  # noqa: ANN401
    """An ordinary Synthesizer, whose spec says which heads are tables.

    dot  ->  relative@1|dot@3       head 0 of a causal layer of four attends by distance
    """
    shortest = min((t.max_len for t in tables.values() if t.kind != RELATIVE), default=None)
    if shortest is not None and shortest < max(model.config.max_len, model.config.decoder_max_len):
        model = copy.deepcopy(model)  # tables by position end where they were measured
        lengths = model.config.max_len, model.config.decoder_max_len
        model.resize(*(min(length, shortest) for length in lengths))
    config = copy.deepcopy(model.config)
    facts, state = config.to_dict(), dict(model.state_dict())
    for name, stack in stacks_of(model).items():
        key = "decoder_synthesis" if stack.shape.cross else "synthesis"
        specs = expand_layers(getattr(config, key), len(stack.layers))
        for index in range(len(specs)):
            place = f"{name}.layers.{index}.attention"
            if place in tables:
                attention = model.get_submodule(place)
                specs[index] = _put(state, place, attention, stack, tables[place])
        facts[key] = specs[0] if len(set(specs)) == 1 else ",".join(specs)
    return type(model)(type(config).from_dict(facts)), state


def _put(
    state: dict[str, Tensor], name: str, attention: Any, stack: Stack, tables: HeadTables  # noqa: ANN401
) -> str:  # fmt: skip
    """Change the weights of one layer to those with tables; its spec is returned.

    Dot products and tables are split and joined head by head; groups of any other kind stay whole.
    """
    term, new = _term(stack, tables)
    groups: list[tuple[str, list[dict[str, Tensor]], int]] = []  # spec, weights to join, heads
    for run in head_runs(attention):
        keys = [key for key in state if key.startswith(f"{name}.{run.at}")]
        old = {key.removeprefix(f"{name}.{run.at}"): state.pop(key) for key in keys}
        if not isinstance(run.part, DotProduct) and run.spec != term:
            groups.append((run.spec, [old], len(run.heads)))
            continue
        for row, head in enumerate(run.heads):
            spec, rows, at = run.spec, old, row
            if head in tables.heads:
                spec, rows, at = term, new, tables.heads.index(head)
            one = {key: value[at : at + 1] for key, value in rows.items()}
            if groups and groups[-1][0] == spec:
                groups[-1] = (spec, [*groups[-1][1], one], groups[-1][2] + 1)
            else:
                groups.append((spec, [one], 1))
    for number, (_, parts, _) in enumerate(groups):
        inside = "synthesis." if len(groups) == 1 else f"synthesis.groups.{number}."
        for key in parts[0]:
            state[f"{name}.{inside}{key}"] = torch.cat([part[key] for part in parts])
    specs = [f"{spec}@{count}" for spec, _, count in groups]
    return term if len(groups) == 1 else "|".join(specs)


def _term(stack: Stack, tables: HeadTables) -> tuple[str, dict[str, Tensor]]:
    """The spec of tables in a layer of this stack, and their weights up to its longest sequence."""
    size = stack.shape.max_len
    if tables.kind == RELATIVE:
        offsets, sinks = tables.offsets.detach(), tables.sinks.detach()
        weights = {"offsets": stretched(offsets, size - tables.max_len), "first": sinks[:, :1]}
        spec = "relative"
        if not stack.shape.causal:
            spec, weights["last"] = "relative:sinks=2", sinks[:, 1:]
        has_bias = stack.relative is not None or stack.alibi is not None
        return f"{spec}{':biased=0' * has_bias}", weights
    at = torch.arange(size, device=tables.table.device)
    logits = tables.table.detach()[:, :size, :size].clone()
    biases = (
        None if stack.relative is None else stack.relative(at, at),
        None if stack.alibi is None else stack.alibi(at, at, logits.dtype),
    )
    for bias in biases:  # the stack will add it again
        logits -= 0 if bias is None else bias.detach()[0, list(tables.heads)]
    return "random", {"table": logits}
