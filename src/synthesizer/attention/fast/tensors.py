"""The tensors of one call, terms and values, heads first. Letters as in terms.py."""

from dataclasses import dataclass, fields

from torch import Tensor


@dataclass
class Parts:
    """The terms of one call and the values, or their gradients."""

    values: Tensor | None = None  # (H, B, S, K)
    queries: Tensor | None = None  # (H, B or 1, T, W)
    keys: Tensor | None = None  # (H, B or 1, S, W)
    table: Tensor | None = None  # (H, T, S)
    weight: Tensor | None = None  # (H,), what the table is multiplied by
    offsets: Tensor | None = None  # (H, S)
    tiled: Tensor | None = None  # (H, B, T, a)
    repeated: Tensor | None = None  # (H, B, T, b)

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Them all, in the order of the fields."""
        return tuple(getattr(self, field.name) for field in fields(self))
