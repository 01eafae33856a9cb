"""The processes and devices that a training was launched on."""

import os

import torch
from accelerate import Accelerator

from synthesizer.errors import UserError
from synthesizer.recipe import Recipe


def open_accelerator(recipe: Recipe) -> Accelerator:
    """Processes and devices as they were launched; the precision is the recipe's alone."""
    return Accelerator(mixed_precision=_precision(recipe), cpu=not torch.accelerator.is_available())


def is_alone_by_mistake(accelerator: Accelerator) -> bool:
    """Whether accelerate's launcher named a meeting place but, without MPI, started no others."""
    launched = "MASTER_ADDR" in os.environ and "ACCELERATE_MIXED_PRECISION" in os.environ
    return launched and "WORLD_SIZE" not in os.environ and accelerator.num_processes == 1


def _precision(recipe: Recipe) -> str:
    if recipe.train.precision == "float32":
        return "no"
    if torch.cuda.is_available() and not torch.cuda.is_bf16_supported():
        raise UserError("train.precision is bfloat16, which this GPU lacks; use float32")
    return "bf16"
