"""Reach into any Hugging Face model whose attention goes through transformers' interface, or ours.

    with Hook(model) as hook:
        hook.discover(inputs)          which calls are self-attention, and how many heads they have
        hook.read(batches, look)       look(layer, weights, visible) sees every attention
        hook.tables = {3: tables}      these heads of layer 3 attend by a table
        model(**inputs)

One registered function serves all architectures. It calls the model's own eager attention, which
knows its biases, windows, soft caps and sinks; so a hooked model with nothing replaced is the
model. A layer is a call: a model that shares one attention among its layers has all of them.

Models of this package compute attention in modules of their own, which are opened one by one:
those whose heads are dot products. Where nothing is observed or replaced, they run as ever.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from synthesizer_attention.attention.baselines import spec_of_mixer
from synthesizer_attention.attention.hook import linear
from synthesizer_attention.attention.layer import SyntheticAttention
from synthesizer_attention.attention.masks import visible_keys, without_hidden
from synthesizer_attention.attention.synthesis import DotProduct
from synthesizer_attention.audit.converted import (
    Layer,
    attend,
    converted_weights,
    head_runs,
    is_own,
    replaced_before,
    stacks_of,
)
from synthesizer_attention.audit.projections import whole_norms
from synthesizer_attention.audit.tables import HeadTables, seen_through
from synthesizer_attention.errors import UserError
from synthesizer_attention.spec import NONE

NAME = "synthesizer_audit"
CROSS = ("EncDecAttention", "crossattention", "encoder_attn", "cross_attn")  # to a memory
Observe = Callable[[int, Tensor, Tensor], None]


class Hook:
    """The attention of one model, opened: a context manager that leaves the model as it was."""

    active: ClassVar["Hook | None"] = None

    def __init__(self, model: PreTrainedModel) -> None:
        self._own = reachable(model)
        self.model = model
        self.layers: list[Layer] = []
        self.tables: Mapping[int, HeadTables] = {}
        self.observe: Observe | None = None
        self.calls = 0  # of attention, begun in this pass
        self._index: dict[int, int] = {}  # call -> layer
        self._found: list[Layer | None] | None = None

    def __enter__(self) -> Self:
        if Hook.active is not None:
            raise UserError("one model is being audited already; close its hook first")
        Hook.active, self._was = self, self.model.config._attn_implementation
        self._handle = self.model.register_forward_pre_hook(self._restart)
        for name, module in self._own.items():
            module.forward = partial(self._attend_own, name, module)  # type: ignore[method-assign]
        if not self._own:
            self.model.set_attn_implementation(NAME)
        return self

    def __exit__(self, *error: object) -> None:
        Hook.active = None
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
        self, module: Any, query: Tensor, key: Tensor, value: Tensor,  # noqa: ANN401
        attention_mask: Tensor | None, **options: Any,  # noqa: ANN401  as this architecture passes
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """The model's own attention, then what is replaced in it."""
        call, self.calls = self.calls, self.calls + 1
        mask, num_queries, num_keys = attention_mask, query.shape[2], key.shape[2]
        visible = query.new_ones(1, 1, num_queries, num_keys, dtype=torch.bool)
        if mask is not None:
            visible = seen_through(mask)[..., :num_keys].expand(-1, -1, num_queries, -1)
        if hasattr(module, "tables") or hasattr(module, "synthesized"):  # by a conversion
            shown = None if mask is None else visible
            output, weights = attend(module, query, key, value, shown, **options)
        else:
            output, weights = own_attention(module)(module, query, key, value, mask, **options)
        if self._found is not None:
            self._found.append(self._describe(call, module, query, key, value, visible))
        layer = self._index.get(call)
        if layer is None:
            return output, weights
        if self.observe is not None:
            if hasattr(module, "tables"):
                causal = self.layers[layer].causal
                weights = converted_weights(
                    module, query, key, visible, causal=causal, options=options
                )
            assert weights is not None
            self.observe(layer, weights, visible)
        if layer in self.tables:
            output = self._replace(layer, output, value, visible)
        return output, weights

    def _attend_own(
        self, name: str, module: Any, x: Tensor, **inputs: Any,  # noqa: ANN401
    ) -> Tensor:  # fmt: skip
        """Attend in a layer of ours, and project; nothing was cached before."""
        call, self.calls = self.calls, self.calls + 1
        num_heads, size = module.size.num_heads, x.shape[1]
        if self._found is not None:
            facts = num_heads, num_heads, module.size.d_head, module.causal, module.window
            self._found.append(Layer(call, name, *facts, other_heads(module)))
        layer = self._index.get(call)
        if layer is None or (self.observe is None and layer not in self.tables):
            plain: Tensor = type(module).forward(module, x, **inputs)
            return plain
        mask, weights = inputs["attention_mask"], module.weights(x, **inputs)
        assert weights.shape[-1] == size
        values = linear(module.value, without_hidden(x, mask))
        values = values.unflatten(-1, (num_heads, -1)).transpose(1, 2)
        visible = visible_keys(mask, module.causal, size, size, x.device, module.window)
        if visible is None:
            visible = x.new_ones(1, 1, 1, size, dtype=torch.bool)
        visible = visible.expand(-1, -1, size, -1)
        if self.observe is not None:
            self.observe(layer, weights, visible)
        output = (weights @ values).transpose(1, 2)
        if layer in self.tables:
            output = self._replace(layer, output, values, visible)
        projected: Tensor = module.output(output.flatten(2))
        return projected

    def _replace(self, layer: int, output: Tensor, value: Tensor, visible: Tensor) -> Tensor:
        """Heads (B, T, H, K) with those that attend by a table; they may share values."""
        tables, causal = self.tables[layer], self.layers[layer].causal
        heads = torch.tensor(tables.heads, device=value.device)
        mine = value[:, heads // (output.shape[2] // value.shape[1])]
        replaced = tables(mine, visible, num_queries=output.shape[1], causal=causal)
        return output.index_copy(2, heads, replaced.transpose(1, 2).to(output.dtype))

    def _describe(
        self, call: int, module: Any, query: Tensor, key: Tensor, value: Tensor,  # noqa: ANN401
        visible: Tensor,
    ) -> Layer | None:  # fmt: skip
        """The facts of a call; None where it reads a memory, or logits are synthesized."""
        name = next((name for name, m in self.model.named_modules() if m is module), "")
        apart = query.shape[2] != key.shape[2] or is_cross(name, module)
        if apart or hasattr(module, "synthesized"):
            return None
        causal = not bool(visible.triu(1).any())  # nothing sees ahead
        window = getattr(module, "sliding_window", None)
        num_heads, replaced = query.shape[1], list[int]()
        if hasattr(module, "tables"):
            replaced = list(module.tables.heads)
            num_heads = len(module.dot_heads) + len(replaced)
        normed = bool(whole_norms(module, query.shape[3]))
        sizes = num_heads, value.shape[1], query.shape[3]
        return Layer(call, name, *sizes, causal, window, replaced, normed)

    def _restart(self, *_: object) -> None:
        self.calls = 0


def tables_before(layers: Sequence[Layer]) -> int:
    """How many heads were tables before anything was replaced."""
    return sum(len(layer.tables) for layer in layers)


def cause(error: Exception) -> str:
    """The message of an error in one line."""
    return " ".join(str(error).split())[:200] or repr(error)


def reachable(model: PreTrainedModel) -> dict[str, SyntheticAttention]:
    """The layers of a model of ours that have heads of dot products, by name; none of another's.

    A model whose attention cannot be reached is refused.
    """
    if not is_own(model):
        if not model._can_set_attn_implementation():
            raise UserError(
                f"{type(model).__name__} computes attention in its own code, not through "
                "transformers' attention interface, so its heads cannot be reached; choose "
                "another architecture"
            )
        return {}
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
    runs = head_runs(attention)
    return [h for run in runs if not isinstance(run.part, DotProduct) for h in run.heads]


def other_layers(model: PreTrainedModel) -> dict[str, str]:
    """The layers that are no dot product, by name, and their specs: they stay as they are."""
    if not is_own(model):
        before = replaced_before(model).items()
        return {name: str(facts["spec"]) for name, facts in before if "spec" in facts}
    found = {}
    for name, stack in stacks_of(model).items():
        for index, layer in enumerate(stack.layers):
            spec = NONE if layer.attention is None else spec_of_mixer(layer.attention)
            if "dot" not in [group.partition("@")[0] for group in spec.split("|")]:
                found[f"{name}.layers.{index}"] = spec
    return found


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


def _attend(*args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:  # noqa: ANN401
    if Hook.active is None:
        raise UserError(f"attention {NAME!r} works inside an audit only; load the model again")
    return Hook.active.attend(*args, **options)


AttentionInterface.register(NAME, _attend)
AttentionMaskInterface.register(NAME, eager_mask)
