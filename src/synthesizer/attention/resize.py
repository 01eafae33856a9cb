"""How a tensor with a side per position follows another longest sequence."""

from collections.abc import Callable

from torch import Tensor


def resized(
    old: Tensor, axes: tuple[int, ...], length: int, draw: Callable[[Tensor], object]
) -> Tensor:
    """Draw a tensor of another length along axes, and keep old in the corner that both share."""
    fresh = old.detach().new_empty([length if i in axes else n for i, n in enumerate(old.shape)])
    draw(fresh)
    corner = tuple(slice(min(pair)) for pair in zip(fresh.shape, old.shape, strict=True))
    fresh[corner] = old.detach()[corner]
    return fresh
