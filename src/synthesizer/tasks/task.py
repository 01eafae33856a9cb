"""What the loop and the evaluation ask of a task, and what they hand back to it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from synthesizer.data.batch import Batch

Array = NDArray[Any]


@dataclass(frozen=True)
class Outputs:
    """What a model did on one split, one entry per example in the order of `Task.batches`.

    The first three come from the logits of `model(**batch.inputs)` and exist for every task.
    """

    losses: Array  # (examples,) summed negative log-likelihood of the scored targets, in nats
    counts: Array  # (examples,) scored targets (an encoder's label counts as one)
    correct: Array  # (examples,) scored targets that were the most likely
    predictions: Array | None = None  # (examples,) most likely label, of an encoder
    texts: tuple[str, ...] = ()  # generated and decoded answers, where `task.generates`


@dataclass(frozen=True)
class Scores:
    """A split's metrics, and per example what recomputes the main one."""

    metrics: dict[str, float]
    signatures: dict[str, str] = field(default_factory=dict)
    statistics: dict[str, Array] = field(default_factory=dict)
    samples: list[dict[str, str]] = field(default_factory=list)


class Task(Protocol):
    """Examples as batches, and the score of what a model made of them.

    Splits are "train", "validation" and "test".
    """

    kind: str  # of the model it needs: "decoder", "encoder_decoder" or "encoder"
    tokenizer: PreTrainedTokenizerFast  # saved with the model
    labels: list[str] | None  # of a classifier, in order of their numbers
    num_labels: int | None
    report: dict[str, Any]  # what was read, inferred, cut, skipped and truncated; JSON-able
    main_metric: str  # the key of Scores.metrics and Scores.statistics that decides
    higher_is_better: bool
    generates: bool  # whether `score` needs Outputs.texts
    decodes: bool  # whether its models write text, token by token

    def train_batches(self, start: int = 0, *, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Endless batches from the `start`-th on (steps times train.accumulate); a pure function.

        Ranks share every global batch without overlap and take the same number of batches.
        """
        ...

    def batches(self, split: str) -> Iterator[Batch]:
        """Each example of a split exactly once, in order."""
        ...

    def score(self, split: str, outputs: Outputs) -> Scores:
        """The metrics of a split from a model's outputs on all of `batches(split)`."""
        ...
