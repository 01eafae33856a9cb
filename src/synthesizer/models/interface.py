"""transformers' attention interface: the function of converted models, and its mask twin.

A layer without tables attends as its architecture does. One with tables has queries and keys of its
dot heads alone, and values of all.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from synthesizer.errors import UserError
from synthesizer.models.tables import past, seen_through, sink_slots, visible_softmax

NAME = "synthesizer"


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,  # noqa: ANN401  whatever this architecture passes
) -> tuple[Tensor, Tensor | None]:
    """(B, T, H, K) from queries and keys of dot heads, and values of all."""
    tables = getattr(module, "tables", None)
    causal = options.get("is_causal")
    causal = bool(getattr(module, "is_causal", True)) if causal is None else causal
    synthesized = getattr(module, "synthesized", None)
    if synthesized is not None:
        dropout = options.pop("dropout", None) or 0.0
        facts = {"causal": causal, "dropout": dropout, "options": options}
        return cast(
            "tuple[Tensor, Tensor]", synthesized(query, key, value, attention_mask, **facts)
        )
    if tables is None:
        if options.get("softcap") is None:
            return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        mask = _added(attention_mask, query, key, causal)
        return own_attention(module)(module, query, key, value, mask, **options)
    dot_heads, dot_keys = cast("list[int]", module.dot_heads), cast("list[int]", module.dot_keys)
    num_heads = len(dot_heads) + len(tables.heads)
    num_queries, num_keys = query.shape[2], value.shape[2]
    visible, bias = attention_mask, options.get("position_bias")
    if visible is not None and visible.dtype != torch.bool:
        bias = visible if bias is None else bias + visible
        visible = seen_through(visible)
    group = num_heads // value.shape[1]
    replaced = _heads(value, [head // group for head in tables.heads])
    parts = [tables(replaced, visible, num_queries=num_queries, causal=causal)]
    if dot_heads:
        if visible is None and causal and num_queries > 1:
            visible = past(num_queries, num_keys, query.device)
        keys = _heads(key, dot_keys)
        values = _heads(value, [head // group for head in dot_heads])
        bias = None if bias is None else bias.expand(-1, num_heads, -1, -1)[:, dot_heads]
        queries = query[:, : len(dot_heads)]  # zeros may fill up their number
        parts.insert(0, _dot(queries, keys, values, visible, bias, options))
    return torch.cat(parts, 1)[:, _order(module)].transpose(1, 2), None


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


def _dot(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, bias: Tensor | None,
    options: dict[str, Any],
) -> Tensor:  # fmt: skip
    """Dot-product attention of heads whose keys and values are laid out one for one."""
    scaling, dropout = options.get("scaling"), options.get("dropout") or 0.0
    softcap = options.get("softcap")
    mask = visible
    if bias is not None:
        mask = bias if visible is None else bias.masked_fill(~visible, torch.finfo(bias.dtype).min)
    if softcap is None:
        return nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling
        )
    weights = dot_weights(query, key, visible, bias, options)
    return nn.functional.dropout(weights, dropout) @ value


def dot_weights(
    query: Tensor, key: Tensor, visible: Tensor | None, bias: Tensor | None,
    options: dict[str, Any],
) -> Tensor:  # fmt: skip
    """(B, H, T, S) of heads whose keys are laid out one for one."""
    scaling, softcap = options.get("scaling"), options.get("softcap")
    logits = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    logits = logits if softcap is None else (logits / softcap).tanh() * softcap
    logits = logits if bias is None else logits + bias
    if visible is not None:
        logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)
    return logits.softmax(-1)


def converted_weights(
    module: Any, query: Tensor, key: Tensor, visible: Tensor, *, causal: bool,  # noqa: ANN401
    options: dict[str, Any],
) -> Tensor:  # fmt: skip
    """(B, H, T, S) of all heads of a converted layer, dot products and tables alike."""
    tables, batch, size = module.tables, len(query), visible.shape[2:]
    logits = tables.logits(*size, *sink_slots(visible), has_last=not causal)
    parts = [visible_softmax(logits, visible).expand(batch, -1, -1, -1)]
    if module.dot_heads:
        bias = options.get("position_bias")
        bias = None if bias is None else bias[:, module.dot_heads]
        queries, keys = query[:, : len(module.dot_heads)], _heads(key, module.dot_keys)
        parts.insert(0, dot_weights(queries, keys, visible, bias, options))
    return torch.cat(parts, 1)[:, _order(module)]


def _order(module: Any) -> Tensor:  # noqa: ANN401
    """Where each head of a layer stands behind its dot heads and its tables, side by side."""
    return torch.tensor([*module.dot_heads, *module.tables.heads]).argsort()


def _heads(states: Tensor, heads: list[int]) -> Tensor:
    return states if heads == list(range(states.shape[1])) else states[:, heads]


def _added(visible: Tensor | None, query: Tensor, key: Tensor, causal: bool) -> Tensor | None:
    """The mask as a number to add to logits."""
    if visible is None and causal and query.shape[2] > 1:
        visible = past(query.shape[2], key.shape[2], query.device)
    if visible is None or visible.dtype != torch.bool:
        return visible
    zero = torch.zeros((), dtype=query.dtype, device=query.device)
    return torch.where(visible, zero, torch.finfo(query.dtype).min)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, mask_of)
