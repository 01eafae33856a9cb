"""Heads of different kinds in one layer."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from synthesizer_attention.attention.synthesis import Synthesis, joint_length, keys_of, unwrapped
from synthesizer_attention.errors import UserError


class Grouped(Synthesis):
    """The logits of each group of heads, made by a synthesis of its own, heads side by side."""

    takes_positions = True
    groups: Sequence[Synthesis]

    def __init__(self, groups: Sequence[Synthesis], heads: Sequence[int]) -> None:
        super().__init__()
        self.groups = nn.ModuleList(groups)  # type: ignore[assignment]
        self.heads = list(heads)
        widths = {group.d_keys for group in groups if group.d_keys}
        if len(widths) > 1:
            raise UserError(
                f"groups of heads keep keys of different widths ({', '.join(map(str, widths))}); "
                "give every group with a dot product as many of them"
            )
        self.d_keys = max(widths, default=0)
        self.depends_on_input = any(group.depends_on_input for group in groups)
        self.depends_on_pairs = any(group.depends_on_pairs for group in groups)
        self.any_length = joint_length(groups)
        self.has_last = any(group.has_last for group in groups)

    def reset_parameters(self) -> None:
        """Every group initializes its own."""

    def keys(self, x: Tensor, positions: Tensor | None = None) -> Tensor | None:
        """Of the heads that need any, (B, some of H, S, d_keys)."""
        each = [keys_of(group, x, positions) for group in self.groups]
        kept = [keys for keys in each if keys is not None]
        return torch.cat(kept, dim=1) if kept else None

    def split_keys(self, keys: Tensor | None) -> list[Tensor | None]:
        """The keys of each group."""
        needs = [bool(unwrapped(group).d_keys) for group in self.groups]
        counts = [n if needed else 0 for needed, n in zip(needs, self.heads, strict=True)]
        each = [None] * len(counts) if keys is None else keys.split(counts, dim=1)
        return [kept if needed else None for needed, kept in zip(needs, each, strict=True)]

    def forward(
        self, x: Tensor, keys: Tensor | None, positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        parts = zip(self.groups, self.split_keys(keys), strict=True)
        each = [group(x, kept, positions, key_positions) for group, kept in parts]
        batch = torch.broadcast_shapes(*(logits.shape[:1] for logits in each))[0]
        return torch.cat([logits.expand(batch, -1, -1, -1) for logits in each], dim=1)

    def last_column(
        self, x: Tensor, positions: Tensor, key_positions: Tensor, is_last: Tensor
    ) -> Tensor:
        given = (x, positions, key_positions, is_last)
        shape = (positions.shape[-1], key_positions.shape[-1])
        each = [
            column if (column := unwrapped(group).last_column(*given)) is not None
            else x.new_zeros(()).expand(1, count, *shape)
            for group, count in zip(self.groups, self.heads, strict=True)
        ]  # fmt: skip
        batch = torch.broadcast_shapes(*(column.shape[:1] for column in each))[0]
        return torch.cat([column.expand(batch, -1, -1, -1) for column in each], dim=1)

    def resize(self, max_len: int) -> None:
        for group in self.groups:
            group.resize(max_len)


def unbiased_heads(synthesis: Synthesis, num_heads: int) -> list[int]:
    """The heads that no bias is added to."""
    if not isinstance(synthesis, Grouped):
        return [] if synthesis.biased else list(range(num_heads))
    groups = zip(synthesis.groups, synthesis.heads, strict=True)
    biased = [group.biased for group, count in groups for _ in range(count)]
    return [head for head in range(num_heads) if not biased[head]]


def without_heads(bias: Tensor, heads: list[int], num_heads: int) -> Tensor | None:
    """The bias (1 or B, 1 or H, T, S) with zeros for some heads; None where those are all."""
    if len(heads) == num_heads:
        return None
    index = torch.tensor(heads, device=bias.device)
    return bias.expand(-1, num_heads, -1, -1).index_fill(1, index, 0.0)
