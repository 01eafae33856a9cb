"""Pretrained models in which tables replace the dot product of some heads.

    ConvertedBertModel(ConvertedBertConfig)     BertModel, but for its replaced heads

A converted class is its original's, made for any architecture on demand: the original builds
itself, then the query and key projections of replaced heads are left out of its attention and the
tables put there. `config.replaced` names both:

    {"encoder.layer.0.attention.self": {"heads": [0, 5], "num_heads": 12, "num_key_heads": 12,
     "d_head": 32, "max_len": 128, "kind": "relative"}}

Heads of queries may share heads of keys; such a key goes when all its queries have gone. A layer
attends by a function of transformers' attention interface: `attend`.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.pytorch_utils import Conv1D

from synthesizer_attention.attention.masks import masked_softmax, real_tokens, visible_keys
from synthesizer_attention.audit.replace import SynthesizedLogits, dot_logits
from synthesizer_attention.audit.tables import KINDS, HeadTables, seen_through, sink_slots
from synthesizer_attention.errors import UserError
from synthesizer_attention.models.cache import ValueLayer
from synthesizer_attention.models.config import CONVERTED
from synthesizer_attention.models.kept import Kept
from synthesizer_attention.untrusted import listed

NAME = "synthesizer"  # of the attention function, and of its mask twin
SEPARATE = (("q_proj", "k_proj"), ("query", "key"), ("q", "k"), ("q_lin", "k_lin"))
FUSED = "c_attn"  # GPT-2's one projection to queries, keys and values
_COUNTED = re.compile(
    r"(?:view|reshape|shape)\w*\s*(?:=|\()[^\n]*self\.(?:num_heads|num_attention_heads|n_heads)\b"
)

Replaced = Mapping[str, Mapping[str, Any]]


class Converted(Kept):
    """What is added to an architecture's own class."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        if config._attn_implementation not in (None, NAME):
            raise UserError(
                f"attn_implementation={config._attn_implementation!r} would need the queries and "
                "keys that were left out of a converted model; leave it out, too"
            )
        config._attn_implementation = NAME
        super().__init__(config, *args, **kwargs)
        narrow(self, config.replaced)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Call forward with sound masks: transformers reads every other number as True."""
        names = list(inspect.signature(self.forward).parameters) if len(args) > 1 else []
        for name, mask in [*zip(names, args, strict=False), *kwargs.items()]:
            if name.endswith("attention_mask") and isinstance(mask, Tensor) and mask.dim() == 2:
                real_tokens(mask)
        return super().__call__(*args, **kwargs)

    def _prepare_cache_for_generation(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super()._prepare_cache_for_generation(*args, **kwargs)
        model_kwargs = kwargs.get("model_kwargs", args[1] if len(args) > 1 else {})
        cache = model_kwargs.get("past_key_values")
        if isinstance(cache, Cache):
            drop_keys(self, cache)


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


class NoProjection(nn.Module):
    """In the place of a projection that no head is left for: zeros, stored nowhere.

    The architecture's code splits what it gets into heads, so there must be something to split.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(()).expand(*x.shape[:-1], self.width)


class PaddedLinear(nn.Linear):
    """A projection to fewer heads, for code that splits by its own count: zeros fill the rest."""

    def __init__(self, d_in: int, width: int, whole: int, *, bias: bool) -> None:
        super().__init__(d_in, width, bias=bias)
        self.missing = whole - width

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pad(super().forward(x), (0, self.missing))


class NarrowConv1D(Conv1D):
    """GPT-2's projection to fewer queries and keys, and all values; zeros fill the rest."""

    def __init__(self, width: int, d_in: int, missing: int) -> None:
        super().__init__(width, d_in)
        self.missing = missing

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = super().forward(x)
        return nn.functional.pad(projected, (self.missing, 0)) if self.missing else projected


def narrow(model: PreTrainedModel, replaced: Replaced) -> None:
    """Leave out the projections of replaced heads, and put tables there; weights are not kept."""
    base = model.base_model
    for name, facts in replaced.items():
        attention = base.get_submodule(name)
        _check_facts(name, attention, facts)
        narrow_attention(attention, facts)


def _check_facts(name: str, attention: nn.Module, facts: Mapping[str, Any]) -> None:
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


def narrow_attention(attention: Any, facts: Mapping[str, Any]) -> None:  # noqa: ANN401
    """The same of one layer; where its facts hold a spec, its logits are synthesized."""
    if facts["heads"]:
        _narrow_projections(attention, facts)
    attention.dot_heads = dot_heads(facts)
    if "spec" in facts:
        attention.synthesized = SynthesizedLogits(facts)
        attention.register_forward_pre_hook(_keep_input, with_kwargs=True)
        return
    attention.tables = HeadTables(facts["heads"], facts["max_len"], facts["kind"])
    attention.dot_keys = [kept_keys(facts).index(h // _group(facts)) for h in dot_heads(facts)]


def _keep_input(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ANN401
    module.synthesized.x = args[0] if args else kwargs["hidden_states"]


def become_converted(model: PreTrainedModel, replaced: Replaced) -> None:
    """Let a model whose layers were changed in place be its converted twin from now on."""
    config: Any = model.config
    if isinstance(model, Converted):
        config.replaced = {**config.replaced, **replaced}
        return
    twin = converted_model(type(model))
    config.original_model_type, config.replaced = config.model_type, dict(replaced)
    config.__class__ = twin.config_class
    model.__class__ = twin


def narrowed_state(
    state: Mapping[str, Tensor], prefix: str, replaced: Replaced, before: Replaced | None = None
) -> dict[str, Tensor]:
    """Weights without those of replaced heads; `prefix` is the base model's.

    before   what had been replaced already when these weights were saved
    """
    kept = dict(state)
    for name, facts in replaced.items():
        width, at = facts["d_head"], f"{prefix}{name}."
        old = (before or {}).get(name, {**facts, "heads": []})
        rows = {
            which: _rows([had.index(head) for head in heads], width)
            for which, had, heads in (
                ("q", dot_heads(old), dot_heads(facts)),
                ("k", kept_keys(old), kept_keys(facts)),
            )
        }
        fused = f"{at}{FUSED}.weight"
        if fused in kept:
            queries, keys = len(dot_heads(old)) * width, len(kept_keys(old)) * width
            values = torch.arange(queries + keys, kept[fused].shape[1])
            columns = torch.cat([rows["q"], queries + rows["k"], values])
            for part in ("weight", "bias"):
                kept[f"{at}{FUSED}.{part}"] = kept[f"{at}{FUSED}.{part}"][..., columns].clone()
            continue
        for names in SEPARATE:
            for which, projection in zip("qk", names, strict=True):
                for part in ("weight", "bias"):
                    key = f"{at}{projection}.{part}"
                    if key in kept and len(rows[which]):
                        kept[key] = kept[key][rows[which]].clone()
                    else:
                        kept.pop(key, None)
    return kept


def check_convertible(attention: nn.Module) -> None:
    """Refuse an attention whose projections have no layout that is known here."""
    names = dict(attention.named_children())
    if not has_projections(attention) or "sinks" in dict(attention.named_parameters(recurse=False)):
        raise UserError(
            f"{type(attention).__name__} has {listed(names)} and no separate projections of "
            "queries and keys that heads could be left out of; audit works, convert does not"
        )


def head_facts(attention: Any) -> dict[str, int]:  # noqa: ANN401
    """How many heads of which width an attention has, as its projections show."""
    check_convertible(attention)
    keys = ("head_dim", "attention_head_size", "key_value_proj_dim")
    d_head = next(int(n) for key in keys if isinstance(n := getattr(attention, key, None), int))
    children: dict[str, Any] = dict(attention.named_children())
    if FUSED in children:
        d_model, three = children[FUSED].weight.shape
        queries = kept = three // 3
    else:
        pair = next(pair for pair in SEPARATE if set(pair) <= set(children))
        queries, d_model = children[pair[0]].weight.shape
        kept = len(children[pair[1]].weight)
    heads, keys_of = queries // d_head, kept // d_head
    return {"num_heads": heads, "num_key_heads": keys_of, "d_head": d_head, "d_model": d_model}


def replaced_before(model: PreTrainedModel) -> dict[str, Mapping[str, Any]]:
    """What a converted model's config says is replaced, by the layer's name in its base model."""
    return dict(model.config.replaced) if isinstance(model, Converted) else {}


def has_projections(module: nn.Module) -> bool:
    """Whether a module holds projections of queries and keys in a layout that is known here."""
    names = dict(module.named_children())
    return any(set(pair) <= set(names) for pair in SEPARATE) or FUSED in names


def drop_keys(model: PreTrainedModel, cache: Cache) -> None:
    """Let layers cache no key that none of their dot heads reads, as keys alone or as zeros."""
    cache = getattr(cache, "self_attention_cache", cache)
    for module in model.modules():
        index, heads = getattr(module, "layer_idx", None), getattr(module, "dot_heads", None)
        if heads is None or index is None or index >= len(cache.layers):
            continue
        if type(cache.layers[index]) is not DynamicLayer:
            continue
        if not heads:
            cache.layers[index] = TableLayer()
        elif any(isinstance(child, PaddedLinear) for child in module.children()):
            cache.layers[index] = FewKeysLayer(len(set(module.dot_keys)))


def dot_heads(facts: Mapping[str, Any]) -> list[int]:
    """The heads that keep their dot product."""
    return [head for head in range(facts["num_heads"]) if head not in facts["heads"]]


def kept_keys(facts: Mapping[str, Any]) -> list[int]:
    """The heads of keys that some head of queries still needs."""
    return sorted({head // _group(facts) for head in dot_heads(facts)})


def _group(facts: Mapping[str, Any]) -> int:
    return int(facts["num_heads"] // facts["num_key_heads"])


def _rows(heads: list[int], width: int) -> Tensor:
    return torch.tensor(
        [head * width + k for head in heads for k in range(width)], dtype=torch.long
    )


def _narrow_projections(attention: Any, facts: Mapping[str, Any]) -> None:  # noqa: ANN401
    check_convertible(attention)
    width = facts["d_head"]
    queries, keys = len(dot_heads(facts)) * width, len(kept_keys(facts)) * width
    children: dict[str, Any] = dict(attention.named_children())
    if FUSED in children:
        d_in, three = children[FUSED].weight.shape
        missing = 0 if queries else 2 * width
        attention.c_attn = NarrowConv1D(queries + keys + three // 3, d_in, missing)
        attention.split_size = [queries or width, keys or width, three // 3]
        return
    pair = next(pair for pair in SEPARATE if set(pair) <= set(children))
    padded = _splits_by_count(type(attention).forward)
    for name, size in zip(pair, (queries, keys), strict=True):
        old = children[name]
        d_in, whole, bias = old.in_features, old.out_features, old.bias is not None
        new: nn.Module = NoProjection(whole if padded else width)
        if size and padded:
            new = PaddedLinear(d_in, size, whole, bias=bias)
        elif size:
            new = nn.Linear(d_in, size, bias=bias)
        setattr(attention, name, new)


@cache
def _splits_by_count(forward: Callable[..., Any]) -> bool:
    """Whether an attention splits projections into as many heads as it had, as Whisper and OPT do.

    Most split by a head's width. Nothing but its source tells: a wrong count can fit by chance.
    """
    return _COUNTED.search(inspect.getsource(inspect.unwrap(forward))) is not None


def read_config(facts: dict[str, Any], **options: Any) -> Any:  # noqa: ANN401
    """The config of a converted folder: of the architecture's own class, but for its name."""
    original = facts.get("original_model_type")
    if original not in CONFIG_MAPPING:
        raise UserError(
            f"the converted model was a {original!r}, which this version of transformers does "
            "not know; install the version that its config.json names"
        )
    return converted_config(CONFIG_MAPPING[original]).from_dict(facts, **options)


@cache
def converted_config(original: Any) -> Any:  # noqa: ANN401  a class of configs and its twin
    """The converted twin of a config class; its models are registered with it."""
    if getattr(original, "model_type", "") == CONVERTED:
        return original
    name = f"Converted{original.__name__}"
    body = {"model_type": CONVERTED, "__module__": __name__}
    twin = type(name, (original,), body)
    autos: list[Any] = [
        auto
        for name, auto in vars(modeling_auto).items()
        if isinstance(auto, type) and name.startswith("AutoModel")
    ]
    for auto in autos:
        if original not in auto._model_mapping:
            continue
        found = auto._model_mapping[original]
        model = found[0] if isinstance(found, tuple) else found
        auto.register(twin, _converted_model(model, twin), exist_ok=True)
    return twin


def converted_model(original: Any) -> Any:  # noqa: ANN401  a class of models and its twin
    """The converted twin of a model class; a converted one is its own."""
    if issubclass(original, Converted):
        return original
    return _converted_model(original, converted_config(original.config_class))


@cache
def _converted_model(original: Any, config_class: Any) -> Any:  # noqa: ANN401
    body = {"config_class": config_class, "__module__": __name__}
    return type(f"Converted{original.__name__}", (Converted, original), body)


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
    if tables is None and options.get("softcap") is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    replaced = [] if tables is None else list(tables.heads)
    dots = list(range(query.shape[1])) if tables is None else module.dot_heads
    num_heads = len(dots) + len(replaced)
    group = num_heads // value.shape[1]
    num_queries = query.shape[2]
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
        queries = query[:, : len(dots)]  # zeros may fill up their number
        parts.append(_dot(queries, keys, values, visible, bias, options))
    order = torch.tensor([*replaced, *dots]).argsort()
    return torch.cat(parts, 1)[:, order].transpose(1, 2), None


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
    mask: Tensor | None = sdpa_mask(
        *args, kv_offset=kv_offset, attention_mask=attention_mask, allow_is_causal_skip=skip,
        **options,
    )  # fmt: skip
    if mask is not None:
        begins = mask.new_zeros(len(mask), dtype=torch.long)
        if attention_mask is not None and attention_mask.dim() == 2:
            begins = attention_mask.to(torch.uint8).argmax(-1)
        mask.first_slot = begins - kv_offset  # type: ignore[attr-defined]
    return mask


def _dot(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, bias: Tensor | None,
    options: dict[str, Any],
) -> Tensor:  # fmt: skip
    """Dot-product attention of heads whose keys and values are laid out one for one."""
    dropout = options.get("dropout") or 0.0
    if options.get("softcap") is not None:
        weights = _dot_weights(query, key, visible, bias, options)
        return nn.functional.dropout(weights, dropout) @ value
    mask = visible
    if bias is not None:
        mask = bias if visible is None else bias.masked_fill(~visible, torch.finfo(bias.dtype).min)
    return nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, scale=options.get("scaling")
    )


def _dot_weights(
    query: Tensor, key: Tensor, visible: Tensor | None, bias: Tensor | None,
    options: dict[str, Any],
) -> Tensor:  # fmt: skip
    """(B, H, T, S) of heads whose keys are laid out one for one."""
    logits = dot_logits(query, key, options)
    logits = logits if bias is None else logits + bias
    if visible is not None:
        logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)
    return logits.softmax(-1, dtype=torch.float32).to(query.dtype)


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
        parts.append(_dot_weights(query[:, : len(dots)], keys, visible, bias, options))
    return torch.cat(parts, 1)[:, torch.tensor([*tables.heads, *dots]).argsort()]


def _heads(states: Tensor, heads: list[int]) -> Tensor:
    return states if heads == list(range(states.shape[1])) else states[:, heads]


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, mask_of)
