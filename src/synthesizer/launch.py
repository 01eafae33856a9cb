"""The processes and devices that a training was launched on."""

import torch
from accelerate import Accelerator

from synthesizer.errors import UserError
from synthesizer.processes import is_alone_by_mistake
from synthesizer.recipe import Recipe


def open_accelerator(recipe: Recipe) -> Accelerator:
    """Processes and devices as they were launched; the precision is the recipe's alone."""
    if is_alone_by_mistake():
        raise UserError(
            "accelerate launch --cpu was asked for several processes and, without MPI, started "
            "one; use torchrun --nproc_per_node N -m synthesizer train ..."
        )
    return Accelerator(mixed_precision=_precision(recipe), cpu=not torch.accelerator.is_available())


def _precision(recipe: Recipe) -> str:
    if recipe.train.precision == "float32":
        return "no"
    if torch.cuda.is_available() and not torch.cuda.is_bf16_supported():
        raise UserError("train.precision is bfloat16, which this GPU lacks; use float32")
    return "bf16"
