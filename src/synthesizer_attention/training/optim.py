"""Optimizers, and the learning rate as a pure function of the step."""

import math

from torch import Tensor, nn, optim

from synthesizer_attention.run.recipe_keys import Train
from synthesizer_attention.training.adafactor import Adafactor


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
    """Tables at `table_rate` times the learning rate; no decay of tables, norms and biases.

    A module names its own tables and biases (its attributes `tables` and `biases`).
    """
    groups: dict[str, list[Tensor]] = {"tables": [], "decayed": [], "others": []}
    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad or id(parameter) in seen:
                continue
            seen.add(id(parameter))  # a tied weight counts once
            if name in getattr(module, "tables", ()):
                groups["tables"].append(parameter)
            elif parameter.dim() > 1 and name not in getattr(module, "biases", ()):
                groups["decayed"].append(parameter)
            else:
                groups["others"].append(parameter)
    scales = {"tables": train.table_rate, "decayed": 1.0, "others": 1.0}
    decays = {"tables": 0.0, "decayed": train.weight_decay, "others": 0.0}
    return [
        {"params": params, "scale": scales[name], "weight_decay": decays[name], "name": name}
        for name, params in groups.items()
        if params
    ]


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
