"""Several sequences in one row, as training without padding packs them.

Positions that start again at 0 say where a sequence begins; cu_seq_lens_q, its ends in a row, says
the same. Each sequence goes through the layers in a row of its own, and its states return to where
it lay: tables, causality, windows and convolutions need to know nothing of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from synthesizer_attention.attention.masks import is_readable, is_transformed, locate
from synthesizer_attention.errors import UserError

CUMULATIVE = ("cu_seq_lens_q", "cu_seq_lens_k")
NAMES = (*CUMULATIVE, "max_length_q", "max_length_k", "seq_idx")
"""What Hugging Face's and TRL's collators call sequences that share a row."""

ADVICE = "give each sequence a row of its own (packing=False, padding_free=False)"


@dataclass(frozen=True)
class Packing:
    """Where the N sequences of a batch (B, S) lie, one behind the other."""

    starts: Tensor  # (B, S), True where a sequence begins
    taken: Tensor  # (N, longest), False behind the end of a sequence
    mask: Tensor  # the same, False also at tokens that attention_mask hides

    def split(self, x: Tensor) -> Tensor:
        """(B, S, D) -> (N, longest, D), each sequence in a row of its own."""
        rows = x.new_zeros(*self.taken.shape, x.shape[-1])
        rows[self.taken] = x.flatten(0, 1)
        return rows

    def join(self, rows: Tensor) -> Tensor:
        """(N, longest, D) -> (B, S, D)."""
        return rows[self.taken].unflatten(0, self.starts.shape)


def find_packing(
    position_ids: Tensor, attention_mask: Tensor | None, batch: int, length: int
) -> Packing | None:
    """How rows are packed; None where each is one sequence, or positions are not 0, 1, 2, ..."""
    if length < 2 or position_ids.shape[-1] != length:
        return None
    if attention_mask is not None and attention_mask.shape != (batch, length):
        return None  # it counts cached tokens, too, or will be refused
    positions = position_ids.expand(batch, length)
    starts = positions == 0
    if not is_readable(position_ids):
        _assert_whole(starts, attention_mask)
        return None
    follows = positions[:, 1:] == positions[:, :-1] + 1
    if not bool(starts[:, 1:].any() & (starts[:, 1:] | follows).all()):
        return None
    real = torch.ones_like(starts) if attention_mask is None else attention_mask.bool()
    counted = locate(attention_mask, None, length, positions.device)
    if bool(((positions == counted) | ~real).all()):  # padding alone is at position 0 again
        return None
    if not bool(starts[:, 0].all()):
        raise UserError(
            f"position_ids begin at {int(positions[:, 0].max())} and start again at 0 within a "
            "row; have each sequence of it begin at 0"
        )
    begins = starts.flatten().nonzero()[:, 0]
    lengths = begins.diff(append=begins.new_tensor([starts.numel()]))
    slots = torch.arange(int(lengths.max()), device=lengths.device)
    taken = slots < lengths[:, None]
    mask = taken.clone()
    mask[taken] = real.flatten()
    return Packing(starts, taken, mask)


def _assert_whole(starts: Tensor, attention_mask: Tensor | None) -> None:
    """Have a compiled graph refuse what it cannot split: its shapes do not depend on values."""
    if torch.compiler.is_exporting() or starts.is_meta or is_transformed():
        return
    again = starts[:, 1:]
    if attention_mask is not None:
        again = again & attention_mask[:, 1:].bool() & attention_mask[:, :-1].bool()
    torch._assert_async(
        ~again.any(),
        f"position_ids start again within a row: a compiled model takes no packed ones; {ADVICE}",
    )


def packed_positions(
    options: Mapping[str, object], position_ids: Tensor | None, batch: int, length: int
) -> Tensor | None:
    """Take from a call's options what says how a row is packed, as position_ids (1, S)."""
    given = cast(dict[str, Any], options)
    said = {name: given.pop(name, None) for name in NAMES}
    ends, key_ends = (said[name] for name in CUMULATIVE)
    names = [name for name in NAMES if said[name] is not None]
    if not names or (position_ids is not None and ends is None):
        return position_ids
    if ends is None:
        raise UserError(
            f"{names[0]} says that a row holds several sequences, and not where they begin; give "
            "cu_seq_lens_q, or position_ids that start again at 0"
        )
    if key_ends is not None and not (isinstance(key_ends, Tensor) and torch.equal(ends, key_ends)):
        raise UserError(
            "cu_seq_lens_q and cu_seq_lens_k differ, as for keys of a cache in pages, which a "
            f"Synthesizer does not have; {ADVICE}"
        )
    rising = bool((ends.diff() > 0).all())
    if batch != 1 or not rising or (int(ends[0]), int(ends[-1])) != (0, length):
        raise UserError(
            f"cu_seq_lens_q runs from {int(ends[0])} to {int(ends[-1])} over {batch} rows of "
            f"{length} tokens; expected one row, and numbers that rise from 0 to its length"
        )
    slots = torch.arange(length, device=ends.device)
    positions = (slots - ends[:-1].repeat_interleave(ends.diff()))[None]
    if position_ids is not None and not torch.equal(position_ids.expand(1, length), positions):
        raise UserError("position_ids and cu_seq_lens_q disagree; leave one of them out")
    return positions


def refuse_packed(options: Mapping[str, object]) -> None:
    """Refuse several sequences in one row, where they would see each other."""
    for name in NAMES:
        if options.get(name) is not None:
            raise UserError(
                f"{name} says that a row holds several packed sequences, which only a causal "
                f"language model keeps apart; {ADVICE}"
            )
