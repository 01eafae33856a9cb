"""Where tokens stand and which are real; what is wrong with a call is said here, before it runs.

Letters as in synthesis.py.
"""

import torch
from torch import Tensor

from synthesizer.errors import UserError

STANDINGS = IN_SLOTS, COUNTED, TOLD = "in slots", "counted by the mask", "told"


def locate(
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    num_keys: int,
    device: torch.device,
) -> Tensor:
    """Where every token looked at stands: as told, or by counting the real tokens before it.

    A hidden token keeps its slot's number: nobody looks at it, and right padding moves nobody.
    """
    if position_ids is not None:
        return position_ids
    slots = torch.arange(num_keys, device=device)
    if attention_mask is None or hides_only_the_end(attention_mask):
        return slots
    real = attention_mask.bool()
    return torch.where(real, real.cumsum(-1) - 1, slots)


def standing(attention_mask: Tensor | None, position_ids: Tensor | None, num_keys: int) -> str:
    """How tokens come to their positions; TOLD where it may not be asked."""
    if position_ids is None:
        in_order = attention_mask is None or hides_only_the_end(attention_mask)
        return IN_SLOTS if in_order else COUNTED
    if torch.compiler.is_compiling() or position_ids.is_meta:
        return TOLD
    slots = torch.arange(num_keys, device=position_ids.device)
    return IN_SLOTS if bool((position_ids == slots).all()) else TOLD


def visible_keys(
    attention_mask: Tensor | None,
    causal: bool,
    num_queries: int,
    num_keys: int,
    device: torch.device,
) -> Tensor | None:
    """True where a query may look, (1 or B, 1, T or 1, S); None where it may look everywhere."""
    visible = None if attention_mask is None else attention_mask.bool()[:, None, None]
    if causal:
        slots = torch.arange(num_keys, device=device)
        past = slots <= slots[num_keys - num_queries :, None]  # (T, S)
        visible = past[None, None] if visible is None else visible & past
    return visible


def too_long(length: int, max_len: int) -> UserError:
    """The error for a sequence that no table has positions for."""
    return UserError(
        f"a sequence of {length} tokens met a model built for max_len={max_len}; "
        "truncate the data, raise max_len, or resize the model"
    )


def check_tokens(x: Tensor, d_model: int) -> None:
    """Refuse what is no batch of sequences of this width."""
    if x.dim() != 3 or x.shape[2] != d_model:
        raise UserError(f"x has shape {tuple(x.shape)}; expected (batch, length, {d_model})")
    if x.shape[1] == 0:
        raise UserError("x has no tokens; give each sequence at least one")


def check_mask(attention_mask: Tensor, batch: int, num_keys: int) -> None:
    """Refuse a mask that does not say of each token whether it is real."""
    if attention_mask.shape != (batch, num_keys):
        raise UserError(
            f"attention_mask has shape {tuple(attention_mask.shape)}; "
            f"expected ({batch}, {num_keys}), True where a token is real, cached tokens included"
        )


def check_positions(position_ids: Tensor, batch: int, num_keys: int, max_len: int) -> None:
    """Refuse positions of the wrong shape, or (where values can be read) outside the tables."""
    if position_ids.shape not in ((num_keys,), (1, num_keys), (batch, num_keys)):
        raise UserError(
            f"position_ids has shape {tuple(position_ids.shape)}; "
            f"expected ({num_keys},) or ({batch}, {num_keys})"
        )
    if torch.compiler.is_compiling() or position_ids.is_meta or position_ids.numel() == 0:
        return
    low, high = int(position_ids.min()), int(position_ids.max())
    if low < 0 or high >= max_len:
        raise UserError(
            f"position_ids run from {low} to {high} in a model built for max_len={max_len}; "
            f"keep them between 0 and {max_len - 1}"
        )


def hides_only_the_end(attention_mask: Tensor) -> bool:
    """Whether this is plain right padding, where it may be asked: then positions are shared."""
    if torch.compiler.is_compiling() or attention_mask.is_meta:
        return False
    real = attention_mask.bool()
    return bool((real[:, 1:] <= real[:, :-1]).all())
