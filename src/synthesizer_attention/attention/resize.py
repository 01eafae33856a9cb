"""Resize a tensor with one axis per position to another max_len."""

from collections.abc import Callable

from torch import Tensor


def resized(
    old: Tensor, axes: tuple[int, ...], length: int, draw: Callable[[Tensor], object]
) -> Tensor:
    """A new tensor of another length along axes, with the overlap copied from old."""
    fresh = old.detach().new_empty([length if i in axes else n for i, n in enumerate(old.shape)])
    draw(fresh)
    corner = tuple(slice(min(pair)) for pair in zip(fresh.shape, old.shape, strict=True))
    fresh[corner] = old.detach()[corner]
    return fresh
