"""How architectures lay out the projections of their heads, and projections to fewer of them.

LAYOUTS alone knows the names. Kept heads come first in a narrow projection; where code splits by a
count of its own, zeros fill the rest.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from synthesizer_attention.audit.replace import SynthesizedLogits
from synthesizer_attention.audit.tables import HeadTables
from synthesizer_attention.errors import UserError, listed

Facts = Mapping[str, Any]  # of one layer, as config.replaced holds them
Replaced = Mapping[str, Facts]  # by the layer's name in its base model


def dot_heads(facts: Facts) -> list[int]:
    """The heads that keep their dot product."""
    return [head for head in range(facts["num_heads"]) if head not in facts["heads"]]


def kept_keys(facts: Facts) -> list[int]:
    """The key heads that some query head still needs."""
    return sorted(
        {head * facts["num_key_heads"] // facts["num_heads"] for head in dot_heads(facts)}
    )


class Projection(NamedTuple):
    """The parts that a projection makes, in its order: all heads of each, or all of each head."""

    parts: str
    by_head: bool = False


_Q, _K, _QKV = Projection("q"), Projection("k"), Projection("qkv")
LAYOUTS: tuple[dict[str, Projection], ...] = (  # the first whose names a module holds
    {"c_attn": _QKV},  # GPT-2, GPTBigCode
    {"qkv_proj": _QKV},  # Phi-3
    {"Wqkv": _QKV},  # ModernBERT, DBRX
    {"qkv": _QKV},  # the towers of BLIP-2 and Qwen2-VL
    {"query_key_value": Projection("qkv", by_head=True)},  # GPT-NeoX, Persimmon
    {"q_proj": _Q, "k_proj": _K},
    {"query": _Q, "key": _K},
    {"q": _Q, "k": _K},
    {"q_lin": _Q, "k_lin": _K},
    {"Wq": _Q, "Wk": _K},
)
_KEPT: dict[str, Callable[[Facts], Sequence[int]]] = {  # the heads that each part keeps
    "q": dot_heads,
    "k": kept_keys,
    "v": lambda facts: range(facts["num_key_heads"]),
}
_COUNTED = re.compile(
    r"(?:view|reshape|shape)\w*\s*(?:=|\()[^\n]*self\.(?:num_heads|num_attention_heads|n_heads)\b"
)


def layout_of(attention: nn.Module) -> dict[str, Projection]:
    """The projections of queries and keys that a module holds, by name."""
    kinds = nn.Linear, Conv1D, NoProjection
    names = {name for name, child in attention.named_children() if isinstance(child, kinds)}
    layout = next((layout for layout in LAYOUTS if layout.keys() <= names), {})
    if getattr(attention, "multi_query", True):
        return layout
    return {name: Projection(parts, by_head=True) for name, (parts, _) in layout.items()}


def check_convertible(attention: nn.Module) -> dict[str, Projection]:
    """The layout of an attention; one that is not known here is refused."""
    layout = layout_of(attention)
    if not layout:
        raise UserError(
            f"{type(attention).__name__} has {listed(dict(attention.named_children()))} and no "
            "projections of queries and keys that heads are known to be left out of; audit "
            "works, convert does not"
        )
    return layout


def whole_norms(attention: nn.Module, d_head: int) -> dict[str, str]:
    """The norms over the queries or keys of all heads, as OLMo 2 has them, by their projections."""
    found = {}
    for name in layout_of(attention):
        weight = getattr(getattr(attention, f"{name[0]}_norm", None), "weight", None)
        if weight is not None and weight.numel() > d_head:
            found[name] = f"{name[0]}_norm"
    return found


def head_facts(attention: Any) -> dict[str, int]:  # noqa: ANN401
    """How many heads of which width an attention has, as its projections show."""
    layout = check_convertible(attention)
    if getattr(attention, "sinks", None) is not None:
        raise UserError(
            f"{type(attention).__name__} has a sink beside its keys, which a mixture has no place "
            "for; give a model without, or replace heads by tables with synthesizer convert"
        )
    keys = ("head_dim", "attention_head_size", "key_value_proj_dim", "head_size")
    d_head = next(int(n) for key in keys if isinstance(n := getattr(attention, key, None), int))
    wide, d_model = dict[str, int](), 0
    for name, (parts, _) in layout.items():
        old = getattr(attention, name)
        d_model, width = old.weight.shape if isinstance(old, Conv1D) else old.weight.shape[::-1]
        heads, shared = width // d_head, getattr(attention, "num_key_value_groups", 1)
        if len(parts) > 1:
            wide = {"k": (few := heads // (shared + 2)), "q": few * shared}
        else:
            wide[parts] = heads
    return {"num_heads": wide["q"], "num_key_heads": wide["k"], "d_head": d_head,
            "d_model": d_model}  # fmt: skip


def narrowed_state(
    state: Mapping[str, Tensor], base: nn.Module, prefix: str, replaced: Replaced, before: Replaced
) -> dict[str, Tensor]:
    """Weights without those of replaced heads; `prefix` is the base model's.

    before   what had been replaced already when these weights were saved
    """
    kept = dict(state)
    for name, facts in replaced.items():
        attention = base.get_submodule(name)
        norms = whole_norms(attention, facts["d_head"])
        layout = layout_of(attention) if facts["heads"] else {}
        for projection, (parts, by_head) in layout.items():
            old, width = before.get(name, {**facts, "heads": []}), facts["d_head"]
            keys = [f"{prefix}{name}.{projection}.{end}" for end in ("weight", "bias")]
            if projection in norms:
                keys += [f"{prefix}{name}.{norms[projection]}.weight"]
                if _KEPT[parts](facts):
                    continue  # all rows are normalized together
            had = [(part, head) for part in parts for head in _KEPT[part](old)]
            if by_head and name not in before:  # stored in the order of parts once heads are gone
                had.sort(key=lambda place: place[1])
            rows = [
                had.index((part, head)) * width + k
                for part in parts
                for head in _KEPT[part](facts)
                for k in range(width)
            ]
            axis = int(isinstance(getattr(attention, projection), Conv1D))
            for key in keys:
                tensor = kept.pop(key, None)
                if tensor is not None and rows:
                    kept[key] = tensor.index_select(min(axis, tensor.dim() - 1), torch.tensor(rows))
    return kept


class NoProjection(nn.Module):
    """In the place of a projection that no head is left for: zeros, stored nowhere.

    The architecture's code splits what it gets into heads, so there must be something to split.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(*x.shape[:-1], self.width)


class Padded:
    """A projection to fewer heads, for code that splits by its own count: zeros fill the rest.

    Its rows are in the order of parts, kept heads first; they leave as the original's did.
    """

    sizes: Sequence[int]  # of the parts
    wholes: Sequence[int]  # of the parts, zeros included
    num_heads: int | None = None  # where all parts of a head are neighbours

    def forward(self, x: Tensor) -> Tensor:
        split: Sequence[Tensor] = super().forward(x).split(self.sizes, -1)  # type: ignore[misc]
        parts = [
            nn.functional.pad(part, (0, whole - part.shape[-1]))
            for part, whole in zip(split, self.wholes, strict=True)
        ]
        if self.num_heads is not None:
            apart = [part.unflatten(-1, (self.num_heads, -1)) for part in parts]
            return torch.cat(apart, -1).flatten(-2)
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]


class PaddedLinear(Padded, nn.Linear):
    """Of most architectures."""


class PaddedConv1D(Padded, Conv1D):
    """Of GPT-2."""


def narrow_attention(attention: Any, facts: Facts) -> None:  # noqa: ANN401
    """Leave out the projections of replaced heads, and put tables there; weights are not kept.

    Where the facts hold a spec, the layer's logits are synthesized.
    """
    attention.dot_heads, keys = dot_heads(facts), kept_keys(facts)
    layout = check_convertible(attention) if facts["heads"] else {}
    width, padded = facts["d_head"], _splits_by_count(type(attention).forward)
    norms = whole_norms(attention, width)
    for name, (parts, by_head) in layout.items():
        old = getattr(attention, name)
        sizes = [len(_KEPT[part](facts)) * width for part in parts]
        wholes = [len(_KEPT[part]({**facts, "heads": []})) * width for part in parts]
        if name in norms and any(sizes):
            pick = partial(_pick, [head * width for head in _KEPT[parts](facts)], width)
            attention.get_submodule(norms[name]).register_forward_hook(pick)
            continue
        if name in norms:
            setattr(attention, norms[name], nn.Identity())
        new: Any = NoProjection(wholes[0] if padded else width)
        if isinstance(old, Conv1D):
            new = PaddedConv1D(sum(sizes), old.weight.shape[0])
        elif any(sizes):
            whole = len(parts) == 1 and not padded
            kind = nn.Linear if whole else PaddedLinear
            new = kind(old.in_features, sum(sizes), bias=old.bias is not None)
        if isinstance(new, Padded):
            new.sizes, new.wholes = sizes, wholes
            new.num_heads = facts["num_heads"] if by_head else None
        setattr(attention, name, new)
    if "spec" in facts:
        attention.synthesized = SynthesizedLogits(facts)
        attention.register_forward_pre_hook(_keep_input, with_kwargs=True)
        return
    attention.tables = HeadTables(facts["heads"], facts["max_len"], facts["kind"])
    group = facts["num_heads"] // facts["num_key_heads"]
    attention.dot_keys = [keys.index(head // group) for head in attention.dot_heads]


def _pick(starts: list[int], width: int, _: nn.Module, args: object, whole: Tensor) -> Tensor:
    """The heads that are left of what was normalized over all of them."""
    return torch.cat([whole[..., start : start + width] for start in starts], -1)


def _keep_input(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ANN401
    module.synthesized.x = args[0] if args else kwargs["hidden_states"]


@cache
def _splits_by_count(forward: Callable[..., Any]) -> bool:
    """Whether an attention splits projections into as many heads as it had, as Whisper and OPT do.

    Most split by a head's width. Nothing but its source tells: a wrong count can fit by chance.
    """
    return _COUNTED.search(inspect.getsource(inspect.unwrap(forward))) is not None
