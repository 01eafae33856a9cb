"""Adafactor as T5 runs it: the recipe's schedule is the rate, at every step and for every group.

    rate = lr max(eps2, RMS(w))              a step is relative to the size of what it moves
    V = r c^T / mean(r)                      r, c: running row and column means of g^2
    w <- w - rate u / max(1, RMS(u))         u = g / sqrt(V)

torch.optim.Adafactor takes min(lr, 1 / sqrt(t)) for lr. Late in a long run that is smaller than
every group's learning rate, so groups with different learning rates would move at the same one.
Its state has the same names here, so that its checkpoints can be read.
"""

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

DECAY = -0.8  # g^2 of step t enters the running means with weight t^DECAY
EPS1 = torch.finfo(torch.float32).eps  # the least sqrt(V)
EPS2 = 1e-3  # the least size of a parameter that is near zero


class Adafactor(Optimizer):
    """Adafactor without momentum and without a bound on the learning rate."""

    def __init__(self, params: Any, lr: float, weight_decay: float = 0.0) -> None:  # noqa: ANN401
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    state = self.state[w]
                    if not state:
                        _start(state, w.grad)
                    _move(w, w.grad, state, group["lr"], group["weight_decay"])
        return loss


def _start(state: dict[str, Tensor], g: Tensor) -> None:
    """Running means of nothing yet, over the last two axes where there are two."""
    state["step"] = torch.tensor(0.0)
    if g.dim() > 1:
        state["row_var"] = g.new_zeros((*g.shape[:-1], 1))
        state["col_var"] = g.new_zeros((*g.shape[:-2], 1, g.shape[-1]))
    else:
        state["variance"] = torch.zeros_like(g)


def _move(w: Tensor, g: Tensor, state: dict[str, Tensor], lr: float, weight_decay: float) -> None:
    state["step"] += 1
    new = state["step"].item() ** DECAY
    if g.dim() > 1:
        r = state["row_var"].lerp_(g.square().mean(-1, keepdim=True), new)
        c = state["col_var"].lerp_(g.square().mean(-2, keepdim=True), new)
        v = r @ c / r.mean(-2, keepdim=True).clamp(min=EPS1)
    else:
        v = state["variance"].lerp_(g.square(), new)
    u = g * v.clamp(min=EPS1**2).rsqrt()
    rate = lr * _rms(w).clamp(min=EPS2)
    w.mul_(1 - lr * weight_decay)
    w.sub_(u * (rate / _rms(u).clamp(min=1)))


def _rms(x: Tensor) -> Tensor:
    return x.norm() / x.numel() ** 0.5
