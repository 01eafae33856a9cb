"""The processes and devices that a training was launched on."""

import ctypes
import os
import platform

import torch
from accelerate import Accelerator

from synthesizer.errors import UserError
from synthesizer.experiment.recipe import Recipe

SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Environment variables in which a launcher says how many processes there are."""


def open_accelerator(recipe: Recipe) -> Accelerator:
    """Processes and devices as they were launched; the precision is not theirs to choose."""
    if _launched_without_mpi():
        raise UserError(
            "accelerate launch --cpu was asked for several processes and, without MPI, started "
            "one; use torchrun --nproc_per_node N -m synthesizer train ..."
        )
    if recipe.train.precision == "bfloat16" and _lacks_bfloat16():
        raise UserError("train.precision is bfloat16, which this GPU lacks; use float32")
    on_cpu = not torch.accelerator.is_available()
    if on_cpu:
        _keep_freed_memory()
    return Accelerator(mixed_precision="no", cpu=on_cpu)


def autocast(recipe: Recipe, device: torch.device) -> torch.autocast:
    """The precision of a training step: weights stay float32, and so does all evaluation."""
    lower = recipe.train.precision == "bfloat16"
    return torch.autocast(device.type, torch.bfloat16, enabled=lower)


def _launched_without_mpi() -> bool:
    """Whether `accelerate launch --cpu` set an address to meet at, and started no other process."""
    launched = "MASTER_ADDR" in os.environ and "ACCELERATE_MIXED_PRECISION" in os.environ
    return launched and not any(size in os.environ for size in SIZES)


def _keep_freed_memory() -> None:
    """Let blocks of up to 32 MB be used again: glibc returns each, and pays to fetch the next."""
    if platform.libc_ver()[0] != "glibc":
        return
    mmap_threshold, trim_threshold = -3, -1  # as malloc.h numbers them
    libc = ctypes.CDLL(None)
    libc.mallopt(mmap_threshold, 2**25)
    libc.mallopt(trim_threshold, 2**30)


def _lacks_bfloat16() -> bool:
    return torch.cuda.is_available() and not torch.cuda.is_bf16_supported()
