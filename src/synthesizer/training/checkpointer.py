"""What a training keeps on disk: the checkpoints that it resumes from, and its best weights."""

from typing import Any

from accelerate import Accelerator
from torch import Tensor, nn, optim

from synthesizer.experiment.progress import Progress
from synthesizer.experiment.recipe import Train
from synthesizer.experiment.run import Run
from synthesizer.training.checkpoint import (
    WEIGHTS,
    Checkpoint,
    checkpoint_path,
    newest_checkpoint,
    numbered,
    prune,
    write_checkpoint,
)
from synthesizer.training.finish import regular_steps
from synthesizer.training.state_dict import restore, take_optimizer, take_weights


class Keeper:
    """Writes from the first process what all hold, and reads it back on each."""

    def __init__(
        self,
        run: Run,
        train: Train,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: optim.Optimizer,
        names: list[str],
    ) -> None:
        self.run, self.train, self.accelerator = run, train, accelerator
        self.model, self.optimizer = model, optimizer
        self.names = names  # of every weight once
        self.saved_step = 0

    def resume(self, progress: Progress) -> dict[str, Any]:
        """Put the newest whole checkpoint back and return its record; nothing where none is."""
        checkpoint = newest_checkpoint(self.run.checkpoints, progress.say)
        meta = {} if checkpoint is None else checkpoint.meta
        if checkpoint is not None:
            self.saved_step = meta["step"]
            restore(self.model, self.optimizer, checkpoint)
            progress.say(f"resuming {self.run.path} at step {self.saved_step}")
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            self.run.rewind(self.saved_step)
        return meta

    def save(self, meta: dict[str, Any]) -> None:
        """Write a checkpoint of this step, if it is new, and drop those no longer needed."""
        step, folder = meta["step"], self.run.checkpoints
        if self.saved_step == step:
            return
        tensors = self._weights() | take_optimizer(self.model, self.optimizer)
        if self.accelerator.is_main_process:
            write_checkpoint(checkpoint_path(folder, "step", step), Checkpoint(tensors, meta))
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
        state = take_weights(self.model)
        return {f"{WEIGHTS}{name}": state[name] for name in self.names if name in state}
