"""The Universal Transformer: one layer's weights at every step, each token halting alone.

At step t every token's state goes through the same layer, a signal of its position and of the step
added before. A halting unit reads the new state x_t:

    p_t = sigmoid(w x_t + b)             a token stops at the first step N where p_1 + ... + p_N
                                         reaches 1 - epsilon, and at the last step at the latest
    y   = sum_t<N p_t x_t + R x_N        R = 1 - (p_1 + ... + p_N-1), the remainder
    cost = N + R                         to be kept small: the ponder cost

At a fixed depth nothing halts: y is the state after the last step.

All steps are always run. A token that has stopped keeps its state, which others still attend to,
and its later weights are zero. So no example depends on its batch, and each step's cache is valid.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from synthesizer_attention.models.layers import Context, Layer, Shape, Stack, StackOutput

FIRST_HALT = 0.1  # of a new model's output, the share that stops before the last step, at most


class Halting(nn.Module):
    """p = sigmoid(w x + b): the probability that a token stops."""

    def __init__(self, d_model: int, num_steps: int) -> None:
        super().__init__()
        self.num_steps = num_steps
        self.weight = nn.Parameter(torch.empty(d_model))
        self.bias = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start with p = FIRST_HALT / steps: nearly all of y is the state after the last step.

        Steps that y hardly weighs hardly learn, so a model that halts early at first never learns
        what its later steps could do, and halts there for good.
        """
        p = FIRST_HALT / self.num_steps
        nn.init.zeros_(self.weight)
        nn.init.constant_(self.bias, math.log(p / (1 - p)))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T)."""
        return ((x * self.weight).sum(-1) + self.bias).sigmoid()


class UniversalStack(nn.Module):
    """One layer, run a fixed number of steps, with a learned signal for each."""

    def __init__(self, shape: Shape, spec: str, *, num_steps: int, halt_at: float | None) -> None:
        super().__init__()
        self.num_steps, self.halt_at = num_steps, halt_at
        self.stack = Stack(shape, [spec])
        self.signals = nn.Embedding(num_steps, shape.d_model)
        self.halting = None if halt_at is None else Halting(shape.d_model, num_steps)

    @property
    def shape(self) -> Shape:
        """What the one layer is built from."""
        return self.stack.shape

    @property
    def any_length(self) -> bool:
        """Whether sequences may be longer than max_len."""
        return self.stack.any_length

    @property
    def layers(self) -> Sequence[Layer]:
        """The one layer."""
        return self.stack.layers

    def forward(self, x: Tensor, context: Context) -> StackOutput:
        """Run embeddings x (B, T, D) through all steps."""
        stack = self.stack
        here, context = stack.locate(x, context)
        x = stack.dropout(x)
        y, output = torch.zeros_like(x), StackOutput(x)
        reached = steps = remainder = x.new_zeros(x.shape[:2])  # sum of p so far, N, R
        running = torch.ones_like(reached, dtype=torch.bool)
        for step in range(self.num_steps):
            output.states.append(x)
            signalled = stack.positions(x, here) + self.signals.weight[step]
            new = stack.run_layer(0, signalled, context, output, step)
            if self.halting is None or self.halt_at is None:
                x = y = new
                continue
            x = torch.where(running[..., None], new, x)
            p, rest = self.halting(x), 1 - reached
            threshold = 0.0 if step == self.num_steps - 1 else self.halt_at
            stops = running & (reached + p >= threshold)
            weights = torch.where(stops, rest, p) * running
            remainder, steps = remainder + rest * stops, steps + running
            reached, running = reached + weights, running & ~stops
            y = y + weights[..., None] * x
        output.x = stack.norm(y)
        output.states.append(output.x)
        if self.halting is None:
            output.num_steps = x.new_full(x.shape[:1], self.num_steps)
            return output
        mask = context.inputs.attention_mask
        output.num_steps = _mean(steps, mask)
        output.ponder_cost = _mean(steps + remainder, mask)
        return output

    def resize(self, max_len: int) -> None:
        """Grow or crop every table of positions, keeping what was learned."""
        self.stack.resize(max_len)


def build_stack(shape: Shape, specs: Sequence[str]) -> Stack | UniversalStack:
    """Layers above each other, or one layer as often where its weights are shared over depth."""
    if not shape.universal:
        return Stack(shape, specs)
    return UniversalStack(shape, specs[0], num_steps=len(specs), halt_at=shape.halt_at)


def _mean(values: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Mean of values (B, T) over each example's real tokens: (B,)."""
    if attention_mask is None:
        return values.mean(1)
    real = attention_mask[:, attention_mask.shape[1] - values.shape[1] :].to(values.dtype)
    return (values * real).sum(1) / real.sum(1).clamp(min=1)
