"""Rotary positions: queries and keys are turned by angles that grow with their position.

    q[i]·k[j]  ->  (R_i q[i])·(R_j k[j]) = q[i]·(R_(j-i) k[j])

R_p turns feature n together with feature n + W/2 by the angle p base^(-2n/W), for the first W
features of a head. Keys are turned once, before they are cached, and queries before any path sees
them: so every path, fast or plain, computes a plain dot product. Only dot products are turned; the
other parts of a mixture have no queries and keys. Letters as in synthesis.py.
"""

import torch
from torch import Tensor

from synthesizer_attention.errors import UserError
from synthesizer_attention.sizes import RotaryOptions


class Rotary:
    """R_p, for heads of one width."""

    def __init__(self, options: RotaryOptions, d_head: int) -> None:
        self.options = options
        self.width = 2 * int(d_head * options.share / 2)  # W
        if self.width == 0:
            raise UserError(
                f"rotary positions with share={options.share:g} turn no pair of features in heads "
                f"of width {d_head}; use fewer heads or a larger share"
            )

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """R_p x for features x (..., K) and positions that broadcast to all axes before the last.

        Angles are computed in float32 at least: in half precision far positions would coincide.
        """
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        n = torch.arange(0, self.width, 2, device=x.device, dtype=dtype)
        angles = positions[..., None].to(dtype) * self.options.base ** (-n / self.width)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        half = self.width // 2
        first, second, rest = x.split([half, half, x.shape[-1] - self.width], dim=-1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos, rest], dim=-1)
