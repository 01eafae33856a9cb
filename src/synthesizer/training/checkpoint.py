"""Checkpoints: one safetensors file each, with a checksum of all it holds inside it.

step-500.safetensors      weights, optimizer and state: what a resume needs
best-500.safetensors      the weights of the best evaluation so far
best, last, averaged      the weights that a finished run offers
"""

import errno
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from synthesizer.errors import UserError
from synthesizer.experiment.run import write_atomically

WEIGHTS, OPTIMIZER = "weights/", "optimizer/"


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name, and a JSON-able record."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors under a prefix, without it."""
        return {
            name.removeprefix(prefix): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(prefix)
        }


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint in one move; where the disk is full, the one before it stays."""
    tensors = {name: tensor.cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    meta = json.dumps(checkpoint.meta, sort_keys=True)
    words = {"meta": meta, "checksum": _checksum(tensors, meta)}

    def fill(beside: Path) -> None:
        try:
            save_file(tensors, beside, metadata=words)
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error)) from None

    write_atomically(path, fill)


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Read a checkpoint; None where it is cut off or changed."""
    try:
        with safe_open(path, "pt") as file:
            words = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None
    meta = words.get("meta", "")
    if words.get("checksum") != _checksum(tensors, meta):
        return None
    return Checkpoint(tensors, json.loads(meta))


def read_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint that must be there and whole."""
    checkpoint = read_checkpoint(path)
    if checkpoint is None:
        there = "is damaged" if path.exists() else "is not there"
        raise UserError(f"checkpoint {path} {there}; train the run again, or choose another")
    return checkpoint.part(WEIGHTS)


def newest_checkpoint(folder: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest whole checkpoint to resume from; `say` is told of every damaged one."""
    for _, path in reversed(numbered(folder, "step")):
        checkpoint = read_checkpoint(path)
        if checkpoint is not None:
            return checkpoint
        say(f"checkpoint {path} is damaged; going back to the one before it")
    return None


def numbered(folder: Path, kind: str) -> list[tuple[int, Path]]:
    """The checkpoints 'kind-<step>', oldest first."""
    found = [(path.stem.removeprefix(f"{kind}-"), path) for path in folder.glob(f"{kind}-*")]
    return sorted((int(step), path) for step, path in found if step.isdecimal())


def checkpoint_path(folder: Path, kind: str, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return folder / f"{kind}-{step}.safetensors"


def prune(folder: Path, kind: str, steps: Iterable[int]) -> None:
    """Delete the checkpoints of one kind but for those of these steps."""
    kept = set(steps)
    for step, path in numbered(folder, kind):
        if step not in kept:
            path.unlink()


def average_weights(paths: Iterable[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, summed in double precision."""
    every = [read_weights(path) for path in paths]
    return {name: _mean([weights[name] for weights in every]) for name in every[0]}


def _mean(tensors: list[Tensor]) -> Tensor:
    total = torch.stack([tensor.double() for tensor in tensors]).mean(0)
    return total.to(tensors[0].dtype)


def _checksum(tensors: Mapping[str, Tensor], meta: str) -> str:
    digest = hashlib.sha256(meta.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
