"""The lines of metrics.jsonl in an experiment tracker, by option, through accelerate's trackers."""

import hashlib
from collections.abc import Mapping
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import LoggerType

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe import Recipe, leaves
from synthesizer_attention.run.run import Run

TENSORBOARD = "tensorboard"
PROJECT = "synthesizer"


def tracker_options(name: str | None, run: Run) -> dict[str, Any]:
    """The tracker argument of an Accelerator; the tracker's files go into the run directory."""
    if name is None:
        return {}
    if name not in LOGGER_TYPE_TO_CLASS:
        known = ", ".join(sorted(LOGGER_TYPE_TO_CLASS))
        raise UserError(f"--track is {name!r}; choose from {known}")
    if name in LoggerType.list() and name not in map(str, get_available_trackers()):
        raise UserError(f"--track needs {name}, which is not installed; run pip install {name}")
    folder = run.path if name == TENSORBOARD else run.path / "tracking"
    return {"log_with": name, "project_dir": str(folder)}


def start_tracking(
    accelerator: Accelerator, name: str, recipe: Recipe, run: Run, step: int
) -> None:
    """Open a run of a tracker; a resumed run goes on where its metrics.jsonl does."""
    title = str(run.path)
    same = {"name": title, "id": hashlib.sha256(str(run.path.resolve()).encode()).hexdigest()[:16]}
    options = {
        TENSORBOARD: {"purge_step": step + 1},
        "wandb": {**same, "resume": "allow", "dir": str(run.path)},
        "trackio": {"name": title, "resume": "allow"},
        "mlflow": {"run_name": title},
    }
    config = None if name == TENSORBOARD else dict(leaves(recipe.model_dump()))
    project = TENSORBOARD if name == TENSORBOARD else PROJECT  # whose folder has its name
    accelerator.init_trackers(project, config, {name: options.get(name, {})})


def track(accelerator: Accelerator, step: int, values: Mapping[str, Any]) -> None:
    """Log one line of metrics.jsonl."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}/{inner}": number for inner, number in value.items()}
        else:
            flat[f"train/{name}"] = value
    accelerator.log(flat, step=step)
