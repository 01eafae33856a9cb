"""Reach into any Hugging Face model whose attention goes through transformers' interface, or ours.

    with Hook(model) as hook:
        hook.discover(inputs)          which calls are self-attention, and how many heads they have
        hook.observe = look            look(layer, weights, visible) sees every attention
        hook.tables = {3: tables}      these heads of layer 3 attend by a table
        model(**inputs)

One registered function serves all architectures. It calls the model's own eager attention, which
knows its biases, windows, soft caps and sinks; so a hooked model with nothing replaced is the
model. A layer is a call: a model that shares one attention among its layers has all of them.

This package's own models compute attention in modules of their own, which are opened one by one:
those whose heads are dot products. Where nothing is observed or replaced, they run as ever.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from synthesizer_attention.attention.baselines import spec_of_mixer
from synthesizer_attention.attention.hook import linear
from synthesizer_attention.attention.layer import SyntheticAttention
from synthesizer_attention.attention.masks import visible_keys, without_hidden
from synthesizer_attention.attention.synthesis import DotProduct, Grouped, Synthesis, unwrapped
from synthesizer_attention.audit.converted import attend, converted_weights
from synthesizer_attention.audit.replace import head_groups
from synthesizer_attention.audit.tables import HeadTables, seen_through
from synthesizer_attention.errors import UserError
from synthesizer_attention.models.backbone import SynthesizerPreTrainedModel
from synthesizer_attention.models.layers import Stack
from synthesizer_attention.spec import NONE

NAME = "synthesizer_audit"
CROSS = ("EncDecAttention", "crossattention", "encoder_attn", "cross_attn")  # to a memory
Observe = Callable[[int, Tensor, Tensor], None]


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

    @property
    def dots(self) -> list[int]:
        """The heads that attend by a dot product."""
        return [head for head in range(self.num_heads) if head not in self.tables]


def tables_before(layers: Sequence[Layer]) -> int:
    """How many heads were tables before anything was replaced."""
    return sum(len(layer.tables) for layer in layers)


class Hook:
    """The attention of one model, opened: a context manager that leaves the model as it was."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._own = dot_layers(model) if is_own(model) else {}
        if not self._own:
            require_interface(model)
        self.model = model
        self.layers: list[Layer] = []
        self.tables: Mapping[int, HeadTables] = {}
        self.observe: Observe | None = None
        self._calls = 0
        self._index: dict[int, int] = {}  # call -> layer
        self._found: list[Layer | None] | None = None

    def __enter__(self) -> "Hook":
        global _active
        if _active is not None:
            raise UserError("one model is being audited already; close its hook first")
        _active, self._was = self, self.model.config._attn_implementation
        self._handle = self.model.register_forward_pre_hook(self._restart)
        for name, module in self._own.items():
            module.forward = partial(self._attend_own, name, module)  # type: ignore[method-assign]
        if not self._own:
            self.model.set_attn_implementation(NAME)
        return self

    def __exit__(self, *error: object) -> None:
        global _active
        _active = None
        self._handle.remove()
        for module in self._own.values():
            del module.forward
        if not self._own:
            self.model.set_attn_implementation(self._was)

    @torch.no_grad()
    def discover(self, inputs: Mapping[str, Any]) -> list[Layer]:
        """List the self-attention calls of a pass.

        Cross-attention is recognized by its name, or by keys that are not as many as its queries:
        let encoder and decoder lengths differ where they can.
        """
        self._found = []
        try:
            self.model(**inputs)
        except UserError:
            raise
        except Exception as error:  # texts and images at once, an odd config.json, ...
            raise UserError(
                f"{type(self.model).__name__} cannot be run on {', '.join(inputs)} alone "
                f"({cause(error)}); audit a model that reads one kind of input, and check its "
                "config.json"
            ) from None
        found, self._found = self._found, None
        self.layers = [layer for layer in found if layer is not None]
        self._index = {layer.call: place for place, layer in enumerate(self.layers)}
        if not self.layers:
            raise UserError(
                f"{type(self.model).__name__} did no self-attention through transformers' "
                "attention interface; audit a model that does, such as BERT, GPT-2, Llama or T5"
            )
        if not any(layer.dots for layer in self.layers):
            raise UserError(
                f"all {tables_before(self.layers)} heads of the model are tables already; audit "
                "one that has dot products left"
            )
        return self.layers

    @torch.no_grad()
    def read(self, batches: Iterable[Mapping[str, Any]], look: Observe) -> None:
        """Let the model read batches, and `look` see the attention of every layer."""
        self.observe = look
        try:
            for batch in batches:
                self.model(**batch)
        finally:
            self.observe = None

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
        **options: Any,  # noqa: ANN401  whatever this architecture passes
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """The model's own attention, then what is replaced in it."""
        call, self._calls = self._calls, self._calls + 1
        output, weights = self._plain(module, query, key, value, mask, options)
        if self._found is not None:
            self._found.append(self._describe(call, module, query, key, value, mask))
        layer = self._index.get(call)
        if layer is None:
            return output, weights
        visible = _visible(mask, query, key)
        if self.observe is not None:
            if hasattr(module, "tables"):
                causal = self.layers[layer].causal
                weights = converted_weights(
                    module, query, key, visible, causal=causal, options=options
                )
            self.observe(layer, weights, visible)
        if layer not in self.tables:
            return output, weights
        return self._replace(layer, output, value, visible, output.shape[2]), weights

    def _plain(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
        options: dict[str, Any],
    ) -> tuple[Tensor, Any]:  # fmt: skip
        """What the model itself does; what a conversion changed attends by its own function."""
        if hasattr(module, "tables") or hasattr(module, "synthesized"):
            visible = None if mask is None else _visible(mask, query, key)
            return attend(module, query, key, value, visible, **options)
        return own_attention(module)(module, query, key, value, mask, **options)

    def _attend_own(
        self, name: str, module: Any, x: Tensor, **inputs: Any,  # noqa: ANN401
    ) -> Tensor:  # fmt: skip
        """The same of a layer of ours, projected."""
        call, self._calls = self._calls, self._calls + 1
        if self._found is not None:
            heads, d_head = module.size.num_heads, module.size.d_head
            facts = (heads, heads, d_head, module.causal, module.window, other_heads(module))
            self._found.append(Layer(call, name, *facts))
        layer = self._index.get(call)
        if layer is None or (self.observe is None and layer not in self.tables):
            plain: Tensor = type(module).forward(module, x, **inputs)
            return plain
        weights, values, visible = open_attention(module, x, inputs)
        if self.observe is not None:
            self.observe(layer, weights, visible)
        output = (weights @ values).transpose(1, 2)
        if layer in self.tables:
            output = self._replace(layer, output, values, visible, values.shape[1])
        projected: Tensor = module.output(output.flatten(2))
        return projected

    def _replace(
        self, layer: int, output: Tensor, value: Tensor, visible: Tensor, num_heads: int
    ) -> Tensor:
        """Heads (B, T, H, K) with those that attend by a table."""
        tables = self.tables[layer]
        heads = torch.tensor(tables.heads, device=value.device)
        mine = value[:, heads // (num_heads // value.shape[1])]
        causal = self.layers[layer].causal
        replaced = tables(mine, visible, num_queries=output.shape[1], causal=causal)
        return output.index_copy(2, heads, replaced.transpose(1, 2).to(output.dtype))

    def _describe(
        self, call: int, module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
        mask: Tensor | None,
    ) -> Layer | None:  # fmt: skip
        """What a call of attention is; None where it reads a memory, or logits are synthesized."""
        name = next((name for name, m in self.model.named_modules() if m is module), "")
        apart = query.shape[2] != key.shape[2] or is_cross(name, module)
        if apart or hasattr(module, "synthesized"):
            return None
        causal = not bool(_visible(mask, query, key).triu(1).any())  # nothing sees ahead
        window = getattr(module, "sliding_window", None)
        before: Any = getattr(module, "tables", None)
        num_heads, replaced = query.shape[1], [] if before is None else list(before.heads)
        if before is not None:
            num_heads = len(module.dot_heads) + len(replaced)  # type: ignore[arg-type]
        return Layer(
            call, name, num_heads, value.shape[1], query.shape[3], causal, window, replaced
        )

    def _restart(self, *_: object) -> None:
        self._calls = 0


def attention_length(model: PreTrainedModel, inputs: Mapping[str, Any]) -> int:
    """The most tokens that a self-attention reads in this pass."""
    longest = 0

    def look(_: int, weights: Tensor, __: Tensor) -> None:
        nonlocal longest
        longest = max(longest, weights.shape[-1])

    with Hook(model) as hook:
        hook.discover(inputs)
        hook.read([inputs], look)
    return longest


def cause(error: Exception) -> str:
    """The first line of what an architecture's code says to what it cannot do."""
    return (str(error).strip() or repr(error)).splitlines()[0][:200]


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
        for run in head_runs(attention)
        if not isinstance(run.part, DotProduct)
        for head in run.heads
    ]


def other_layers(model: PreTrainedModel) -> dict[str, str]:
    """The layers that are something else, by name, and their specs: they stay as they are."""
    found = {}
    for name, stack in stacks_of(model).items():
        for index, layer in enumerate(stack.layers):
            spec = NONE if layer.attention is None else spec_of_mixer(layer.attention)
            if "dot" not in [group.partition("@")[0] for group in spec.split("|")]:
                found[f"{name}.layers.{index}"] = spec
    return found


def open_attention(
    attention: SyntheticAttention, x: Tensor, inputs: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (B, H, T, T), values (B, H, T, K) and who may look, (B or 1, 1, T, T).

    Texts are whole: nothing was cached before.
    """
    mask, size = inputs["attention_mask"], x.shape[1]
    weights = attention.weights(x, **inputs)
    assert weights.shape[-1] == size
    values = linear(attention.value, without_hidden(x, mask))
    values = values.unflatten(-1, (attention.size.num_heads, -1)).transpose(1, 2)
    visible = visible_keys(mask, attention.causal, size, size, x.device, attention.window)
    if visible is None:
        visible = x.new_ones(1, 1, 1, size, dtype=torch.bool)
    return weights, values, visible.expand(-1, -1, size, -1)


class HeadRun(NamedTuple):
    """Neighbouring heads of one layer that are made in the same way."""

    spec: str
    heads: list[int]
    part: Synthesis
    at: str  # where its weights are, inside the layer


def head_runs(attention: SyntheticAttention) -> list[HeadRun]:
    """The groups of heads of a layer; one, where all are made in the same way."""
    spec, parts = spec_of_mixer(attention), attention.synthesis
    if not isinstance(parts, Grouped):
        return [HeadRun(spec, list(range(attention.size.num_heads)), parts, "synthesis.")]
    groups = head_groups(parts, attention.size.num_heads)
    names = [group.rpartition("@")[0] for group in spec.split("|")]
    return [
        HeadRun(name, list(range(at.start, at.stop)), unwrapped(group), f"synthesis.groups.{n}.")
        for n, (name, (group, at)) in enumerate(zip(names, groups, strict=True))
    ]


def stacks_of(model: PreTrainedModel) -> dict[str, Stack]:
    """The encoder and the decoder of a model of ours, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Stack)}


def require_interface(model: PreTrainedModel) -> None:
    """Refuse a model whose attention cannot be reached."""
    if not model._can_set_attn_implementation():
        raise UserError(
            f"{type(model).__name__} computes attention in its own code, not through transformers' "
            "attention interface, so its heads cannot be reached; choose another architecture"
        )


def own_attention(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """The eager attention of the file that holds this module's forward."""
    namespace = inspect.unwrap(type(module).forward).__globals__
    own = namespace.get("eager_attention_forward")
    if own is None:
        own = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if own is None:
        raise UserError(
            f"{type(module).__name__} has no eager attention whose weights can be read; "
            "audit another architecture"
        )
    return own


def is_cross(name: str, module: Any) -> bool:  # noqa: ANN401
    """Whether an attention reads a memory, by its name or as its architecture marks it."""
    return any(word in name for word in CROSS) or bool(getattr(module, "is_cross_attention", False))


_active: Hook | None = None


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    **options: Any,  # noqa: ANN401
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    if _active is None:
        raise UserError(f"attention {NAME!r} works inside an audit only; load the model again")
    return _active.attend(module, query, key, value, attention_mask, **options)


def _visible(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """True where a query may look, (B or 1, 1, T, S), from a mask that is added to logits."""
    if mask is None:
        return query.new_ones(1, 1, query.shape[2], key.shape[2], dtype=torch.bool)
    return seen_through(mask)[..., : key.shape[2]].expand(-1, -1, query.shape[2], -1)


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, eager_mask)
