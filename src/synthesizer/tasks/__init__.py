"""One file per task: examples to text pairs, windows or labels, and its metrics."""

from synthesizer.tasks.build import TASKS, build_task, prompt
from synthesizer.tasks.task import Outputs, Scores, Task

__all__ = ["TASKS", "Outputs", "Scores", "Task", "build_task", "prompt"]
