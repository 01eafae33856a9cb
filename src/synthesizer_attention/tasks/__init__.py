"""One file per shape of examples: text pairs, a mixture, streams, probes and labels."""

from synthesizer_attention.tasks.task import Outputs, Scores, Task, build_task, prompt

__all__ = ["Outputs", "Scores", "Task", "build_task", "prompt"]
