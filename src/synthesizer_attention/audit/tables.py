"""Tables in the place of some heads of a pretrained model's attention.

    offsets   (R, 2N - 1)   logits by distance; sinks (R, 2): of the first and the last token
    table     (R, N, N)     logits by position, where every input has the same length

Letters: B batch, R replaced heads, T queries, S keys, K head width, N longest sequence.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from synthesizer_attention.attention.masks import masked_softmax, too_long, visible_keys
from synthesizer_attention.attention.synthesis import relative_logits, stretched

RELATIVE, ABSOLUTE = "relative", "random"
KINDS = (RELATIVE, ABSOLUTE)
_HIDDEN = math.log(torch.finfo(torch.float32).tiny)  # -87.3: below it, exp is no normal number
_SPAN = 60.0  # of logits: float32's exponentials reach from -87 to 88


class HeadTables(nn.Module):
    """Logits that no token changes, in place of the dot product of some heads of one layer."""

    def __init__(self, heads: Sequence[int], max_len: int, kind: str = RELATIVE) -> None:
        super().__init__()
        self.heads, self.max_len, self.kind = tuple(heads), max_len, kind
        count = len(self.heads)
        if kind == RELATIVE:
            self.offsets = nn.Parameter(torch.zeros(count, 2 * max_len - 1))
            self.sinks = nn.Parameter(torch.zeros(count, 2))
        else:
            self.table = nn.Parameter(torch.zeros(count, max_len, max_len))

    def logits(
        self,
        num_queries: int,
        num_keys: int,
        first: Tensor | None,
        last: Tensor | None,
        *,
        has_last: bool,
    ) -> Tensor:
        """(B or 1, R, T, S); first and last are (B,) slots, None where they are slot 0 and S - 1.

        The queries are the last T of the S slots. The last token has a column of its own where a
        query can see it coming: not in causal attention, where it is a different one at each step.
        """
        if self.kind == ABSOLUTE:
            if num_keys > self.max_len:
                raise too_long(num_keys, self.max_len)
            return self.table[None, :, num_keys - num_queries : num_keys, :num_keys]
        slots = torch.arange(num_keys, device=self.offsets.device)
        distance = slots - slots[num_keys - num_queries :, None]
        is_first = slots == (0 if first is None else first[:, None])
        is_last = slots == (num_keys - 1 if last is None else last[:, None]) if has_last else None
        return relative_logits(self.offsets, self.sinks, distance, is_first, is_last)

    def forward(
        self, values: Tensor, visible: Tensor | None, *, num_queries: int, causal: bool
    ) -> Tensor:
        """Attend: values (B, R, S, K) and who may look, (B or 1, 1, T, S), give (B, R, T, K).

        `visible` None: at every key or, where attention is causal, at all but later ones.
        """
        num_keys = values.shape[2]
        if self._is_shared(visible, num_queries, num_keys):
            return self._attend_shared(values, visible, causal=causal)
        if visible is None:
            visible = visible_keys(None, causal, num_queries, num_keys, values.device)
        first, last = (None, None) if visible is None else sink_slots(visible)
        logits = self.logits(num_queries, num_keys, first, last, has_last=not causal)
        weights = masked_softmax(logits.to(values.dtype), visible)
        if weights.shape[0] == 1 and values.shape[0] > 1:  # one product a head for the whole batch
            flat = values.permute(1, 2, 0, 3).flatten(2)  # (R, S, B K)
            mixed = (weights[0] @ flat).unflatten(2, (values.shape[0], -1))
            return mixed.permute(2, 0, 1, 3)
        return weights @ values

    def _is_shared(self, visible: Tensor | None, num_queries: int, num_keys: int) -> bool:
        """Whether one matrix serves the whole batch: no mask, or padding that hides keys from all.

        Logits that span more than float32's exponents could divide zero by zero there.
        """
        if self.kind != RELATIVE or num_queries != num_keys or torch.compiler.is_compiling():
            return False
        alike = visible is None or visible.stride(2) == 0  # one row, expanded
        logits = torch.cat([self.offsets.detach(), self.sinks.detach()], 1)
        return alike and bool((logits.amax(1) - logits.amin(1)).max() < _SPAN)

    def _attend_shared(self, values: Tensor, visible: Tensor | None, *, causal: bool) -> Tensor:
        """Y = (E m V + f v_first + l v_last) / (the same of ones), E[i,j] = exp(r[j - i]).

        E is one (T, S) matrix per head whatever the batch; exponentials are taken of 2N numbers,
        and their diagonals laid out by strides. m hides padding and both sinks.
        """
        batch, _, size, _ = values.shape
        top = torch.maximum(self.offsets.amax(1), self.sinks.amax(1)).detach()[:, None]
        near = (self.offsets - top).exp().to(values.dtype)  # (R, 2N - 1)
        sinks = (self.sinks - top).exp().to(values.dtype)  # (R, 2)
        reach = self.max_len - 1
        near = stretched(near, max(0, size - 1 - reach))
        middle = near.shape[1] // 2
        near = near[:, middle - size + 1 : middle + size]
        matrix = near.unfold(1, size, 1).flip(1)  # (R, T, S): row i begins at distance -i
        plain = values.new_ones(batch, size)
        first, last = values.new_zeros(batch, dtype=torch.long), None
        if visible is not None:
            plain = visible[:, 0, 0].to(values.dtype).expand(batch, -1)
            first = plain.argmax(-1)
        if causal:
            matrix = matrix.tril()
        else:
            last = size - 1 - plain.flip(-1).argmax(-1)
        ones = torch.cat([values, torch.ones_like(values[..., :1])], -1)  # the last column sums
        rows = torch.arange(batch, device=values.device)
        hidden = plain.index_put((rows, first), plain.new_zeros(()))
        if last is not None:
            hidden = hidden.index_put((rows, last), plain.new_zeros(()))
            first = torch.where(first == last, -1, first)  # a text of one token has a last one
        flat = (ones * hidden[:, None, :, None]).permute(1, 2, 0, 3).flatten(2)
        total = (matrix @ flat).unflatten(2, (batch, -1)).permute(2, 0, 1, 3)  # (B, R, T, K + 1)
        for column, slot in enumerate((first, last)):
            if slot is not None:
                term = ones[rows, :, slot] * sinks[:, column, None]  # (B, R, K + 1)
                term = term * (slot >= 0)[:, None, None]
                total = total + term[:, :, None]
        return total[..., :-1] / total[..., -1:]

    def pick(self, heads: Sequence[int]) -> "HeadTables":
        """The tables of some of these heads, sharing no memory."""
        rows = [self.heads.index(head) for head in heads]
        picked = HeadTables(heads, self.max_len, self.kind).requires_grad_(False)
        for ours, theirs in zip(picked.parameters(), self.parameters(), strict=True):
            ours.copy_(theirs.detach()[rows])
        return picked

    def joined(self, other: "HeadTables") -> "HeadTables":
        """These heads' tables and those of others, in the order of heads.

        By distance the shorter ones are stretched, which reads what they read past their ends; by
        position the longer ones are cut: there are no logits past the end of the others.
        """
        assert self.kind == other.kind
        by_distance = self.kind == RELATIVE
        size = (max if by_distance else min)(self.max_len, other.max_len)
        heads = [*self.heads, *other.heads]
        rows = torch.tensor(heads).argsort()
        joined = HeadTables(sorted(heads), size, self.kind).requires_grad_(False)
        for name, ours in joined.named_parameters():
            parts = [each.get_parameter(name).detach() for each in (self, other)]
            if name == "offsets":
                parts = [stretched(part, size - 1 - part.shape[1] // 2) for part in parts]
            elif name == "table":
                parts = [part[:, :size, :size] for part in parts]
            ours.copy_(torch.cat(parts)[rows])
        return joined.requires_grad_(True)

    def extra_repr(self) -> str:
        return f"heads={list(self.heads)}, max_len={self.max_len}, kind={self.kind!r}"


def seen_through(mask: Tensor) -> Tensor:
    """True where a query may look, (B or 1, 1, T, S), from booleans or from what logits are added.

    A key is hidden where every head is added so little that float32's exponentials underflow, as by
    -100, -1e4, -1e9, finfo.min or -inf. A smaller bias, or one of some heads alone, hides nothing.
    """
    seen = mask if mask.dtype == torch.bool else mask > _HIDDEN
    return seen.any(1, keepdim=True)


def sink_slots(visible: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The slots of the first and last real key of each example: (B,) each.

    A key is real where some query sees it. A mask that one of ours built knows better than its
    rows do: a window may hide the first token from all of the queries at hand.
    """
    known: Tensor | None = getattr(visible, "first_slot", None)
    if visible.shape[0] == 1 and known is None and bool(visible[0, 0, -1].all()):
        return None, None
    real = visible[:, 0].any(-2).to(torch.uint8)  # (B, S)
    first = real.argmax(-1) if known is None else known
    return first, real.shape[1] - 1 - real.flip(-1).argmax(-1)
