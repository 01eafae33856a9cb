"""Optimizers, and the learning rate as a pure function of the step."""

import math

from torch import Tensor, nn, optim

from synthesizer.experiment.recipe import Train
from synthesizer.training.adafactor import Adafactor

TABLES = ("table", "rows", "columns", "mix")
"""What a synthesizing function learns without reading a token: it gets its own step size."""


def build_optimizer(model: nn.Module, train: Train) -> optim.Optimizer:
    """Adam, AdamW or Adafactor over three groups: tables, what decays, and what does not.

    Adafactor has no betas and no eps of the recipe's kind: it keeps its own.
    """
    groups = group_parameters(model, train)
    if train.optimizer == "adafactor":
        return Adafactor(groups, lr=train.lr)
    kind = optim.AdamW if train.optimizer == "adamw" else optim.Adam
    return kind(groups, lr=train.lr, betas=train.betas, eps=train.eps, fused=True)


def group_parameters(model: nn.Module, train: Train) -> list[dict[str, object]]:
    """Tables at `table_rate` times the rate; no decay of tables, norms and biases.

    A T5 relative bias is no table of a synthesis, whatever its name: it is shared by all layers and
    moves at the rate of the model around it, as in T5.
    """
    tables: list[Tensor] = []
    decayed: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if is_table(name):
            tables.append(parameter)
        elif parameter.dim() > 1 and not _is_bias(name):
            decayed.append(parameter)
        else:
            others.append(parameter)
    named = {
        "tables": {"params": tables, "scale": train.table_rate, "weight_decay": 0.0},
        "decayed": {"params": decayed, "scale": 1.0, "weight_decay": train.weight_decay},
        "others": {"params": others, "scale": 1.0, "weight_decay": 0.0},
    }
    return [{**group, "name": name} for name, group in named.items() if group["params"]]


def is_table(name: str) -> bool:
    """Whether a parameter of this name is a table of a synthesizing function."""
    *home, last = name.split(".")
    return "synthesis" in home and last in TABLES


def learning_rate(step: int, train: Train) -> float:
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


def _is_bias(name: str) -> bool:
    """Biases of a synthesis carry a heads axis, so their shape does not tell."""
    return name.rpartition(".")[2] in ("bias", "b1", "b2", "ba", "bb")
