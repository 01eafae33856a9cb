"""Tables in the place of some heads of this package's own models.

Their attention does not go through transformers' interface: it is opened module by module. What
comes of a conversion is an ordinary Synthesizer, whose spec says which heads are tables:

    dot  ->  relative@1|dot@3       head 0 of a causal layer of four attends by distance

Letters: B batch, H heads, T tokens, K head width, N longest sequence.
"""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from synthesizer.attention.groups import Grouped
from synthesizer.attention.hook import linear
from synthesizer.attention.layer import SyntheticAttention
from synthesizer.attention.masks import visible_keys, without_hidden
from synthesizer.attention.mixers import spec_of_mixer
from synthesizer.attention.relative import Relative, stretched
from synthesizer.attention.synthesis import DotProduct, Random, Synthesis, unwrapped
from synthesizer.errors import UserError
from synthesizer.models.backbone import SynthesizerPreTrainedModel
from synthesizer.models.layers import Stack
from synthesizer.models.tables import RELATIVE, HeadTables
from synthesizer.spec import NONE, expand_layers


def is_own(model: PreTrainedModel) -> bool:
    """Whether this is a model of this package."""
    return isinstance(model, SynthesizerPreTrainedModel)


def dot_layers(model: PreTrainedModel) -> dict[str, SyntheticAttention]:
    """The self-attention layers that have heads of dot products, by name."""
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, SyntheticAttention)
        and len(other_heads(module)) < module.size.num_heads
    }
    if not found:
        config: Any = model.config
        specs = dict.fromkeys(filter(None, (config.synthesis, config.decoder_synthesis)))
        raise UserError(
            f"no layer of the model is a dot product alone (its synthesis is {', '.join(specs)}), "
            "so there is no head to replace; give a model with dot layers"
        )
    return found


def other_heads(attention: SyntheticAttention) -> list[int]:
    """The heads of a layer that are no dot product, as those that became tables before."""
    return [
        head
        for run in _runs(attention)
        if not isinstance(run.part, DotProduct)
        for head in run.heads
    ]


def other_layers(model: PreTrainedModel) -> dict[str, str]:
    """The layers that are something else, by name, and their specs: they stay as they are."""
    found = {}
    for name, stack in _stacks(model).items():
        for index, layer in enumerate(stack.layers):
            spec = NONE if layer.attention is None else spec_of_mixer(layer.attention)
            if "dot" not in [group.partition("@")[0] for group in spec.split("|")]:
                found[f"{name}.layers.{index}"] = spec
    return found


class Opened(NamedTuple):
    """The inside of one attention."""

    weights: Tensor  # (B, H, T, T)
    values: Tensor  # (B, H, T, K)
    visible: Tensor  # (B or 1, 1, T, T)


def open_attention(attention: SyntheticAttention, x: Tensor, inputs: Mapping[str, Any]) -> Opened:
    """What a layer attends with, on whole texts: nothing was cached before."""
    mask, size = inputs["attention_mask"], x.shape[1]
    weights = attention.weights(x, **inputs)
    assert weights.shape[-1] == size
    values = linear(attention.value, without_hidden(x, mask))
    visible = visible_keys(mask, attention.causal, size, size, x.device, attention.window)
    if visible is None:
        visible = x.new_ones(1, 1, 1, size, dtype=torch.bool)
    return Opened(
        weights,
        values.unflatten(-1, (attention.size.num_heads, -1)).transpose(1, 2),
        visible.expand(-1, -1, size, -1),
    )


def with_tables(
    model: PreTrainedModel, tables: Mapping[str, HeadTables], *, share: bool = False
) -> SynthesizerPreTrainedModel:
    """A copy of a model of ours whose named layers have tables for some heads.

    share   let it use the memory of all weights that stay as they are: to measure, not to train
    """
    assert isinstance(model, SynthesizerPreTrainedModel)
    shortest = min((t.max_len for t in tables.values() if t.kind != RELATIVE), default=None)
    if shortest is not None and shortest < max(model.config.max_len, model.config.decoder_max_len):
        model = copy.deepcopy(model)  # tables by position end where they were measured
        lengths = model.config.max_len, model.config.decoder_max_len
        model.resize(*(min(length, shortest) for length in lengths))
    config = copy.deepcopy(model.config)
    facts, state = config.to_dict(), dict(model.state_dict())
    for name, stack in _stacks(model).items():
        key = "decoder_synthesis" if stack.shape.cross else "synthesis"
        specs = expand_layers(getattr(config, key), len(stack.layers))
        for index in range(len(specs)):
            place = f"{name}.layers.{index}.attention"
            if place in tables:
                attention = model.get_submodule(place)
                specs[index] = _put(state, place, attention, stack, tables[place])
        facts[key] = specs[0] if len(set(specs)) == 1 else ",".join(specs)
    converted: SynthesizerPreTrainedModel = type(model)(type(config).from_dict(facts))
    converted.load_state_dict(state, assign=share)
    converted.tie_weights()
    converted.generation_config = copy.deepcopy(getattr(model, "generation_config", None))
    return converted.to(model.dtype).eval()


def table_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of all tables, in models of ours and in converted ones."""
    kinds = (HeadTables, Relative, Random)
    tables = [module for module in model.modules() if isinstance(module, kinds)]
    return [parameter for table in tables for parameter in table.parameters(recurse=False)]


class _Run(NamedTuple):
    """Neighbouring heads of one layer that are made in the same way."""

    spec: str
    heads: list[int]
    part: Synthesis
    at: str  # where its weights are, inside the layer


def _runs(attention: SyntheticAttention) -> list[_Run]:
    """The groups of heads of a layer; one, where all are made in the same way."""
    spec, part = spec_of_mixer(attention), attention.synthesis
    if not isinstance(part, Grouped):
        return [_Run(spec, list(range(attention.size.num_heads)), part, "synthesis.")]
    found, first = list[_Run](), 0
    for number, (group, count) in enumerate(zip(part.groups, part.heads, strict=True)):
        name = spec.split("|")[number].rpartition("@")[0]
        heads = list(range(first, first + count))
        found.append(_Run(name, heads, unwrapped(group), f"synthesis.groups.{number}."))
        first += count
    return found


def _put(
    state: dict[str, Tensor], name: str, attention: Any, stack: Stack, tables: HeadTables  # noqa: ANN401
) -> str:  # fmt: skip
    """Change the weights of one layer to those with tables; its spec is returned.

    Dot products and tables are split and joined head by head; groups of any other kind stay whole.
    """
    term, new = _term(stack, tables)
    groups: list[tuple[str, list[dict[str, Tensor]], int]] = []  # spec, weights to join, heads
    for run in _runs(attention):
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
    """The spec of tables in a layer of this stack, and their weights."""
    if tables.kind != RELATIVE:
        return "random", {"table": _by_position(tables, stack)}
    has_bias = stack.relative is not None or stack.alibi is not None
    options = "" if stack.shape.causal else ":sinks=2"
    return f"relative{options}{':biased=0' if has_bias else ''}", _relative(tables, stack)


def _relative(tables: HeadTables, stack: Stack) -> dict[str, Tensor]:
    """Logits by distance for the stack's longest sequence, and those of its sinks."""
    offsets, sinks = tables.offsets.detach(), tables.sinks.detach()
    new = {"offsets": stretched(offsets, stack.shape.max_len - tables.max_len)}
    new["first"] = sinks[:, :1]
    return new if stack.shape.causal else new | {"last": sinks[:, 1:]}


def _by_position(tables: HeadTables, stack: Stack) -> Tensor:
    """Logits (R, N, N) to which the stack will add its bias: it is taken off them."""
    size = stack.shape.max_len
    at = torch.arange(size, device=tables.table.device)
    logits = tables.table.detach()[:, :size, :size].clone()
    for bias in (
        None if stack.relative is None else stack.relative(at, at),
        None if stack.alibi is None else stack.alibi(at, at, logits.dtype),
    ):
        if bias is not None:
            logits -= bias.detach()[0, list(tables.heads)]
    return logits


def _stacks(model: PreTrainedModel) -> dict[str, Stack]:
    return {name: module for name, module in model.named_modules() if isinstance(module, Stack)}
