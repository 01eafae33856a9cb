"""The lines of metrics.jsonl as TensorBoard curves, by option."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from synthesizer.errors import UserError


class Curves:
    """A folder of curves; what was drawn after `step`, before a resume, is dropped."""

    def __init__(self, folder: Path, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError(
                "--tensorboard needs tensorboard, which is not installed; "
                "run pip install 'synthesizer-attention[tensorboard]'"
            ) from None
        self._writer = SummaryWriter(str(folder), purge_step=step + 1)

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Add one line of metrics.jsonl."""
        for name, value in values.items():
            if isinstance(value, Mapping):
                for inner, number in value.items():
                    self._writer.add_scalar(f"{name}/{inner}", number, step)
            else:
                self._writer.add_scalar(f"train/{name}", value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the files."""
        self._writer.close()
