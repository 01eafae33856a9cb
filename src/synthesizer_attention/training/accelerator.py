"""The processes and devices that a training was launched on."""

import ctypes
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from synthesizer_attention.errors import UserError, is_out_of_memory
from synthesizer_attention.run.recipe import Recipe, differences, dump, parse_recipe

_LOST = re.compile("gloo|nccl|connection (closed|reset|refused)|broken pipe|recv", re.IGNORECASE)
SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Environment variables in which a launcher says how many processes there are."""


def open_accelerator(recipe: Recipe, **options: Any) -> Accelerator:  # noqa: ANN401
    """Processes and devices as they were launched; the precision is not theirs to choose."""
    if _launched_without_mpi():
        raise UserError(
            "accelerate launch --cpu was asked for several processes and, without MPI, started "
            "one; use torchrun --nproc_per_node N -m synthesizer_attention train ..."
        )
    if recipe.train.precision == "bfloat16" and _lacks_bfloat16():
        raise UserError("train.precision is bfloat16, which this GPU lacks; use float32")
    on_cpu = not torch.accelerator.is_available()
    if on_cpu:
        _keep_freed_memory()
    try:
        return Accelerator(mixed_precision="no", cpu=on_cpu, **options)
    except (ValueError, RuntimeError) as error:
        launched = [f"{name}={os.environ[name]}" for name in SIZES if name in os.environ]
        if not launched:
            raise
        cause = str(error).strip().split("\n")[0][:200]
        raise UserError(
            f"{launched[0]} says that this is one of several processes, and they cannot meet "
            f"({cause}); start them with torchrun --nproc_per_node N -m synthesizer_attention "
            f"train ..., or unset {launched[0].partition('=')[0]}"
        ) from None


def compare_recipes(accelerator: Accelerator, recipe: Recipe) -> None:
    """Refuse to train where processes were started with different recipes: each would go on."""
    texts = gather_object([dump(recipe)]) if accelerator.num_processes > 1 else []
    first = parse_recipe(texts[0]) if texts else recipe
    for number, text in enumerate(texts):
        if changed := differences(first, parse_recipe(text)):
            raise UserError(
                f"process {number} was started with another recipe than process 0 "
                f"({'; '.join(changed)}); start all of them with the same command"
            )


def compare_data(accelerator: Accelerator, identity: str) -> None:
    """Refuse to train where processes read different data: each would take its part of its own."""
    read = gather_object([identity]) if accelerator.num_processes > 1 else [identity]
    for number, other in enumerate(read):
        if other != read[0]:
            raise UserError(
                f"process {number} reads other data than process 0; let all of them read the same "
                "files, and nothing write to them"
            )


@contextmanager
def one_line_for_lost_processes(accelerator: Accelerator) -> Iterator[None]:
    """Say what a backend's error means: another process of this training is gone."""
    try:
        yield
    except RuntimeError as error:
        if accelerator.num_processes == 1 or not _LOST.search(str(error)):
            raise
        raise UserError(
            f"process {accelerator.process_index}: another process of this training ended; "
            "see what it said, and run the same command to continue from the last checkpoint"
        ) from None


@contextmanager
def one_line_for_memory(advise: Callable[[], str]) -> Iterator[None]:
    """Say that memory ran out, whoever noticed, and which number to lower."""
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(f"memory ran out{advise()}") from None


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
