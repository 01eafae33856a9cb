"""Attention logits that depend on how far apart two tokens are, with sinks as columns of their own.

Letters: B batch, H heads, T queries, S keys, N longest distance + 1.
"""

import torch
from torch import Tensor, nn

from synthesizer_attention.attention.reading import empty
from synthesizer_attention.attention.synthesis import Size, Synthesis
from synthesizer_attention.attention.terms import Places, Terms, scaled
from synthesizer_attention.errors import UserError


class Relative(Synthesis):
    """B[i,j] = r[j - i], clipped at N - 1, and one logit for the first token: a sink.

    sinks   1, or 2: the last real token has a logit, too (not in causal attention, where every
            step has another last token)
    biased  0: no bias, as that of relative positions, is added to these heads, so that a sink has
            one logit at any distance

    A longer sequence than max_len reads the ends of r.
    """

    tables, zeroed = ("offsets", "first", "last"), ("offsets", "first")
    depends_on_input = False
    any_length = True

    def __init__(
        self, size: Size, *, std: float = 0.02, sinks: int = 1, biased: bool = True
    ) -> None:
        super().__init__()
        if sinks not in (1, 2):
            raise UserError(
                f"relative:sinks={sinks}; choose 1 (the first token) or 2 (the first and the last)"
            )
        self.std, self.sinks, self.has_last, self.biased = std, sinks, sinks == 2, biased
        self.offsets = empty(size.num_heads, 2 * size.max_len - 1)  # (H, 2N - 1), j - i = 1 - N ...
        self.first = empty(size.num_heads, 1)  # (H, 1)
        self.last = empty(size.num_heads, 1) if self.has_last else None  # (H, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start near zero, as Random does."""
        nn.init.normal_(self.offsets, std=self.std)
        nn.init.normal_(self.first, std=self.std)
        if self.last is not None:
            nn.init.normal_(self.last, std=self.std)

    def terms(
        self, x: Tensor, keys: Tensor | None, places: Places, scale: Tensor | None = None
    ) -> Terms:
        if isinstance(places.rows, slice):
            numbers = numbers_by_distance(self, places.num_queries, places.rows.stop)
            return Terms(distances=scaled(numbers, scale))
        assert isinstance(places.columns, Tensor)
        distance = places.columns[..., None, :] - places.rows[..., :, None]
        is_first = places.columns == 0
        logits = relative_logits(self.offsets, self.first, distance, is_first, None)
        return Terms(
            table=logits[0] if distance.dim() == 2 else logits.transpose(0, 1), weight=scale
        )

    def last_column(
        self, x: Tensor, positions: Tensor, key_positions: Tensor, is_last: Tensor
    ) -> Tensor | None:
        """last - B[i,j] where j is the last token, so that it has the logit `last` there."""
        if self.last is None:
            return None
        last = (key_positions * is_last).sum(-1, keepdim=True)  # its position, (1,) or (B, 1)
        distance = (last - positions)[..., None]
        instead = self.last[:, :, None]
        instead = instead - relative_logits(self.offsets, self.first, distance, last == 0, None)
        return torch.where(is_last[:, None, None] if is_last.dim() == 2 else is_last, instead, 0.0)

    def resize(self, max_len: int) -> None:
        """Farther distances begin where the farthest known one is, which they read until now."""
        more = max_len - 1 - self.offsets.shape[1] // 2
        self.offsets = nn.Parameter(stretched(self.offsets.detach(), more))


def relative_logits(
    offsets: Tensor, sinks: Tensor, distance: Tensor, is_first: Tensor, is_last: Tensor | None
) -> Tensor:
    """B[i,j] = sinks[0] where j is the first token, sinks[1] where it is the last, else r[j - i].

    offsets    (H, 2N - 1)           r, from -(N - 1) to N - 1; farther distances read its ends
    sinks      (H, 1 or 2)           the first token's logit and, where it has one, the last's
    distance   (T, S) or (B, T, S)   j - i, in tokens
    is_first   (S,) or (B, S)        True at the first token
    is_last    (S,) or (B, S)        True at the last token; None where it is like any other
    """
    reach = offsets.shape[1] // 2
    logits = offsets[:, distance.clamp(-reach, reach) + reach].movedim(0, -3)  # (B?, H, T, S)
    logits = logits if logits.dim() == 4 else logits[None]
    for column, where in enumerate((is_first, is_last)):
        if where is not None:
            at = where[..., None, None, :] if where.dim() == 2 else where
            logits = torch.where(at, sinks[:, column, None, None], logits)
    return logits


def numbers_by_distance(part: Relative, num_queries: int, num_keys: int) -> Tensor:
    """All that T queries, the last of S tokens, read: (H, T + S), the sink, r[1 - S] to r[T - 1].

    Row i of the logits is numbers[T - i :] but for key 0, which has numbers[0].
    """
    offsets = stretched(part.offsets, num_keys - 1 - part.offsets.shape[1] // 2)
    return torch.cat([part.first, offsets[:, : num_queries + num_keys - 1]], 1)


def stretched(offsets: Tensor, more: int) -> Tensor:
    """Distances up to `more` farther on both sides, which read the ends; or fewer of them."""
    if more <= 0:
        return offsets[:, -more : offsets.shape[1] + more].contiguous()
    left, right = offsets[:, :1].expand(-1, more), offsets[:, -1:].expand(-1, more)
    return torch.cat([left, offsets, right], 1)
