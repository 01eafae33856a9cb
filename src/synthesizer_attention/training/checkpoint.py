"""Checkpoints: one safetensors file each, with a checksum of its content.

step-500.safetensors      weights, optimizer and state: what a resume needs
best-500.safetensors      the weights of the best evaluation so far
best, last, averaged      the weights that a finished run offers

Tensors are whole and on the CPU in every file: gathered from the shards where a model is sharded,
so a run may resume on another number of processes.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn, optim
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from synthesizer_attention.errors import UserError, refuse_other_data
from synthesizer_attention.run.files import check_regular_file, write_atomically
from synthesizer_attention.run.progress import Progress
from synthesizer_attention.run.recipe_keys import Train
from synthesizer_attention.run.run import Run

WEIGHTS, OPTIMIZER = "weights/", "optimizer/"
FIRST = StateDictOptions(full_state_dict=True, cpu_offload=True, strict=False)
EVERY = StateDictOptions(full_state_dict=True)


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name, and a record to be written as JSON."""

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
    write_atomically(path, lambda beside: save_file(tensors, beside, metadata=words))


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Read a checkpoint; None where it is cut off or changed."""
    try:
        check_regular_file(path)
        with safe_open(path, "pt") as file:
            words = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except PermissionError:
        raise
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
    """The newest whole checkpoint to resume from; `say` reports every damaged one."""
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
        if step not in kept and path.is_file():
            path.unlink()


def regular_steps(train: Train, step: int) -> list[int]:
    """The steps up to this one whose checkpoints an average may need."""
    every = range(train.checkpoint_every, step + 1, train.checkpoint_every)
    return list(every)[-train.average :] if train.average else []


def averaged_steps(train: Train, last: int) -> list[int]:
    """The steps whose weights are averaged once training ended at `last`."""
    steps = sorted({*regular_steps(train, last), last})
    return steps[-train.average :] if train.average else []


def average_weights(paths: Iterable[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, summed in double precision."""
    every = [read_weights(path) for path in paths]
    return {
        name: torch.stack([weights[name].double() for weights in every]).mean(0).to(first.dtype)
        for name, first in every[0].items()
    }


def take_optimizer(model: nn.Module, optimizer: optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state of each weight, under 'optimizer/<weight>/<key>'."""
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


class Checkpointer:
    """Writes a training's checkpoints from the first process, and reads them back on each."""

    def __init__(
        self,
        run: Run,
        train: Train,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: optim.Optimizer,
        names: list[str],
        data: str,
    ) -> None:
        self.run, self.train, self.accelerator = run, train, accelerator
        self.model, self.optimizer = model, optimizer
        self.names = names  # of every weight once
        self.data = data  # their identity; checkpoints of older versions have none
        self.saved_step = 0

    def resume(self, progress: Progress) -> dict[str, Any]:
        """Put the newest whole checkpoint back and return its record; nothing where none is."""
        folder = self.run.checkpoints
        checkpoint, lost = newest_checkpoint(folder, progress.say), ""
        if checkpoint is None and (damaged := numbered(folder, "step")):
            lost = f"none of its {len(damaged)} checkpoints can be read"
        elif checkpoint is None and (folder / "last.safetensors").exists():
            lost = (
                "it was trained to its end, but result.json and the checkpoints to resume are gone"
            )
        if lost:
            raise UserError(
                f"{self.run.path}: {lost}; restore them from a copy, or delete the directory to "
                "train again from step 0"
            )
        meta = {} if checkpoint is None else dict(checkpoint.meta)
        refuse_other_data(self.run.path, meta.pop("data", self.data), self.data)
        logged = meta.pop("logged", None)
        if checkpoint is not None:
            self.saved_step = meta["step"]
            restore(self.model, self.optimizer, checkpoint)
            progress.say(f"resuming {self.run.path} at step {self.saved_step}")
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            self.run.rewind(self.saved_step, logged)
        return meta

    def save(self, meta: dict[str, Any]) -> None:
        """Write a checkpoint of this step, if it is new, and drop those no longer needed."""
        step, folder = meta["step"], self.run.checkpoints
        if self.saved_step == step:
            return
        tensors = self._weights() | take_optimizer(self.model, self.optimizer)
        if self.accelerator.is_main_process:
            known = {"data": self.data, "logged": self.run.digest_of_metrics()}
            checkpoint = Checkpoint(tensors, meta | known)
            write_checkpoint(checkpoint_path(folder, "step", step), checkpoint)
            kept = [step for step, _ in numbered(folder, "step")][-self.train.keep :]
            prune(folder, "step", {*kept, *regular_steps(self.train, step)})
            prune(folder, "best", [meta["best_step"]])
        self.saved_step = step

    def save_best(self, step: int, value: float) -> None:
        """Keep the weights of the best evaluation so far."""
        weights = self._weights()
        if self.accelerator.is_main_process:
            path = checkpoint_path(self.run.checkpoints, "best", step)
            write_checkpoint(path, Checkpoint(weights, {"step": step, "value": value}))

    def _weights(self) -> dict[str, Tensor]:
        """Every weight once, gathered from all processes (to the first, where it is sharded)."""
        state: dict[str, Any] = get_model_state_dict(self.model, options=FIRST)
        return {f"{WEIGHTS}{name}": state[name] for name in self.names if name in state}


def _checksum(tensors: Mapping[str, Tensor], meta: str) -> str:
    digest = hashlib.sha256(meta.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
