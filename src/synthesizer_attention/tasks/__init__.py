"""One file per task: examples to text pairs, windows or labels, and its metrics."""

from synthesizer_attention.tasks.build import build_task, prompt
from synthesizer_attention.tasks.task import Outputs, Scores, Task

__all__ = ["Outputs", "Scores", "Task", "build_task", "prompt"]
