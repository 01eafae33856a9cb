"""Weights and optimizer of a model as flat tensors: plain, or gathered from its shards."""

from typing import Any

from torch import Tensor, nn, optim
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from synthesizer.training.checkpoint import OPTIMIZER, WEIGHTS, Checkpoint

FIRST = StateDictOptions(full_state_dict=True, cpu_offload=True, strict=False)
EVERY = StateDictOptions(full_state_dict=True)


def take_weights(model: nn.Module, *, on_every_process: bool = False) -> dict[str, Tensor]:
    """Every weight; where it is sharded, on the first process alone unless asked otherwise."""
    state: dict[str, Any] = get_model_state_dict(
        model, options=EVERY if on_every_process else FIRST
    )
    return state


def take_optimizer(model: nn.Module, optimizer: optim.Optimizer) -> dict[str, Tensor]:
    """What an optimizer remembers of each weight, under 'optimizer/<weight>/<key>'."""
    state: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=FIRST)
    return {
        f"{OPTIMIZER}{name}/{key}": tensor
        for name, kept in state.get("state", {}).items()
        for key, tensor in kept.items()
    }


def restore(model: nn.Module, optimizer: optim.Optimizer, checkpoint: Checkpoint) -> None:
    """Put a checkpoint's weights and optimizer back, sharded as they are now."""
    weights: dict[str, Any] = dict(checkpoint.part(WEIGHTS))
    set_model_state_dict(model, weights, options=FIRST)
    remembered: dict[str, Any] = {}
    for path, tensor in checkpoint.part(OPTIMIZER).items():
        name, _, key = path.rpartition("/")
        remembered.setdefault(name, {})[key] = tensor
    groups: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=EVERY)
    groups["state"] = remembered
    set_optimizer_state_dict(model, optimizer, groups, options=FIRST)
