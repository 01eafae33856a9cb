"""What the contract tests run over: every synthesizing function, and mixtures of them."""

import pytest
import torch
from torch import nn

from synthesizer_attention.attention.registry import SYNTHESES
from synthesizer_attention.attention.synthesis import Size

SIZE = Size(d_model=12, num_heads=3, max_len=7)
MIXTURES = ["random+dot", "dense+dot", "random+dense", "factorized_random+factorized_dense+dot+dot"]
GROUPS = ["random@2|dot@1", "dense@1|relative@1|random+dot@1", "random@1|relative@2"]  # of 3 heads
EVERY = [*SYNTHESES, *MIXTURES, "factorized_random:k=3", "factorized_dense:a=2:b=4"]
TABLES = ["random", "fixed_random", "factorized_random", "relative", "random+fixed_random"]

every_synthesis = pytest.mark.parametrize("spec", EVERY)


def redrawn(module: nn.Module, seed: int = 0) -> nn.Module:
    """Replace every parameter and buffer by N(0, 1) in float64: near-zero tables hide bugs."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double()
    for tensor in [*module.parameters(), *module.buffers()]:
        draw = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        tensor.data.copy_(draw)
    return module


def tokens(*shape: int, seed: int = 1) -> torch.Tensor:
    """Activations in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)
