"""Random without its softmax, as a token mixer: synthesizer compare --import this file."""

import torch
from torch import Tensor, nn

from synthesizer_attention import Mixer, register_mixer
from synthesizer_attention.attention.layer import ValueCache
from synthesizer_attention.attention.synthesis import Size


@register_mixer("linear_random", parameters="H N^2", paper="Tolstikhin et al. 2021")
class LinearRandom(Mixer):
    """Y[i] = sum_j R[i,j] x[j] Wv, R a learned (N, N) table per head: random without softmax."""

    tables = ("table",)
    takes_causal = takes_padding = True
    depends_on_input = False

    def __init__(self, size: Size, causal: bool = False, dropout: float = 0.0) -> None:
        super().__init__(size, causal, dropout)
        self.table = nn.Parameter(torch.empty(size.num_heads, size.max_len, size.max_len))
        self.value = nn.Linear(size.d_model, size.d_model, bias=False)
        self.output = nn.Linear(size.d_model, size.d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw rows that keep the variance of a full sequence."""
        nn.init.normal_(self.table, std=self.size.max_len**-0.5)

    def mix(
        self, x: Tensor, real: Tensor | None, positions: Tensor, cache: ValueCache | None
    ) -> Tensor:
        """Weight the values by the rows of the tokens' positions."""
        values = self.value(x).unflatten(-1, (self.size.num_heads, -1)).transpose(1, 2)
        rows = self.table.tril() if self.causal else self.table
        rows = rows[:, positions[..., :, None], positions[..., None, :]]  # (H, T, T), (H, B, T, T)
        rows = rows if rows.dim() == 3 else rows.transpose(0, 1)
        return self.output((rows @ values).transpose(1, 2).flatten(-2))
