"""Optimizers, and the learning rate as a pure function of the step."""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn, optim

if TYPE_CHECKING:
    from synthesizer_attention.run.recipe_keys import Train

DECAY = -0.8  # g^2 of step t enters the running means of Adafactor with weight t^DECAY
EPS1 = torch.finfo(torch.float32).eps  # the least sqrt(V)
EPS2 = 1e-3  # the least size of a parameter that is near zero


def parameter_groups(
    model: nn.Module, lr: float, *, table_rate: float = 30.0, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Groups for any optimizer: tables at a rate of their own, what decays, and what does not.

    Example::

        torch.optim.AdamW(parameter_groups(model, lr=3e-4, weight_decay=0.01))

    Tables, norms and biases do not decay. A module names its own tables and biases (its attributes
    `tables` and `biases`). A schedule of torch or Hugging Face multiplies the rate of each group,
    so that their ratio stays.

    Args:
        model: The model whose parameters are grouped.
        lr: Learning rate of everything but tables.
        table_rate: Tables move at this many times `lr`.
        weight_decay: Weight decay of what decays.
    """
    named: dict[str, list[Tensor]] = {"tables": [], "decayed": [], "others": []}
    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad or id(parameter) in seen:
                continue
            seen.add(id(parameter))  # a tied weight counts once
            if name in getattr(module, "tables", ()):
                named["tables"].append(parameter)
            elif parameter.dim() > 1 and name not in getattr(module, "biases", ()):
                named["decayed"].append(parameter)
            else:
                named["others"].append(parameter)
    scales, decays = {"tables": table_rate}, {"decayed": weight_decay}
    return [
        {
            "params": params,
            "lr": lr * scales.get(name, 1.0),
            "scale": scales.get(name, 1.0),
            "weight_decay": decays.get(name, 0.0),
            "name": name,
        }
        for name, params in named.items()
        if params
    ]


def build_optimizer(model: nn.Module, train: "Train") -> optim.Optimizer:
    """Adam, AdamW or Adafactor over the groups of parameters.

    Adafactor has no betas and no eps of the recipe's kind: it keeps its own.
    """
    rates = {"table_rate": train.table_rate, "weight_decay": train.weight_decay}
    groups = parameter_groups(model, train.lr, **rates)
    if train.optimizer == "adafactor":
        return Adafactor(groups, lr=train.lr)
    kind = optim.AdamW if train.optimizer == "adamw" else optim.Adam
    return kind(groups, lr=train.lr, betas=train.betas, eps=train.eps, fused=True)


def learning_rate(step: int, train: "Train") -> float:
    """The rate of a step, the first being 1: a linear warm-up to `lr`, then the schedule."""
    if step < train.warmup:
        return train.lr * step / train.warmup
    left = max(0.0, (train.steps - step) / max(1, train.steps - train.warmup))
    shapes = {
        "inverse_sqrt": math.sqrt(max(1, train.warmup) / max(1, step)),
        "cosine": (1 + math.cos(math.pi * (1 - left))) / 2,
        "linear": left,
        "constant": 1.0,
    }
    return train.lr * shapes[train.schedule]


def set_rate(optimizer: optim.Optimizer, rate: float) -> None:
    """Give every group its multiple of the rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]


class Adafactor(optim.Optimizer):
    """Adafactor as T5 runs it: the recipe's schedule is the rate, at every step and group.

        rate = lr max(eps2, RMS(w))              a step is relative to the size of what it moves
        V = r c^T / mean(r)                      r, c: running row and column means of g^2
        w <- w - rate u / max(1, RMS(u))         u = g / sqrt(V)

    torch.optim.Adafactor takes min(lr, 1 / sqrt(t)) for lr. Late in a long run that is smaller than
    every group's learning rate, so groups with different learning rates would move at the same one.
    Its state has the same names here, so that its checkpoints can be read.
    """

    def __init__(self, params: Any, lr: float, weight_decay: float = 0.0) -> None:  # noqa: ANN401
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # noqa: ANN401
        """Move every parameter that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    _move(w, w.grad, self.state[w], group["lr"], group["weight_decay"])
        return loss


def _move(w: Tensor, g: Tensor, state: dict[str, Tensor], lr: float, weight_decay: float) -> None:
    if not state:  # running means of nothing yet, over the last two axes where there are two
        state["step"] = torch.tensor(0.0)
        if g.dim() > 1:
            state["row_var"] = g.new_zeros((*g.shape[:-1], 1))
            state["col_var"] = g.new_zeros((*g.shape[:-2], 1, g.shape[-1]))
        else:
            state["variance"] = torch.zeros_like(g)
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
