"""How the synthesizing functions draw their parameters. Letters as in synthesis.py."""

import math

import torch
from torch import Tensor, nn

from synthesizer_attention.errors import UserError
from synthesizer_attention.spec import require_positive


def empty(*shape: int) -> nn.Parameter:
    """A parameter of this shape, to be initialized."""
    return nn.Parameter(torch.empty(*shape))


def draw_weight(weight: Tensor) -> None:
    """Keep the variance of what a (H, in, out) weight multiplies."""
    nn.init.normal_(weight, std=weight.shape[-2] ** -0.5)


def outer_sides(max_len: int, a: int | None, b: int | None) -> tuple[int, int]:
    """The sides of the outer product: as given, or as square as max_len allows."""
    for given in ({"a": a}, {"b": b}):
        require_positive("factorized_dense", **{k: v for k, v in given.items() if v is not None})
    if a is None:
        a = math.isqrt(max_len - 1) + 1 if b is None else -(-max_len // b)
    if b is None:
        b = -(-max_len // a)
    if a * b < max_len:
        raise UserError(
            f"factorized_dense with a={a}, b={b} covers {a * b} positions but max_len={max_len}; "
            f"choose a*b of at least {max_len}"
        )
    return a, b
