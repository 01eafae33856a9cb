"""The user's rows, and what a pretrained model makes of them.

metric      rows                      what is measured per example
loss        texts, or pairs for an    the model's own loss: masked, next or answer token, in
            encoder-decoder           nats a token
accuracy    texts or pairs, a label   whether the class is right, in percent
spearman    pairs and a score         cosine of the mean embeddings, ranked as the scores are
agreement   texts                     cosine of the output and the original's, in percent
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from synthesizer.audit.load import decoder_start, is_causal, reads_targets
from synthesizer.data.columns import NAMES, BadRow, check_utf8
from synthesizer.data.files import File, Row
from synthesizer.data.sources import data_folder
from synthesizer.errors import UserError
from synthesizer.metrics.correlation import correlation_from_statistics, spearman_statistics
from synthesizer.metrics.per_example import Statistics, Total, percent_from_statistics
from synthesizer.untrusted import listed

METRICS = ("loss", "accuracy", "spearman", "agreement")
IGNORED = -100
_SCORE_NAMES = ("score", "similarity", "similarity_score", "label")


@dataclass(frozen=True)
class Example:
    """One row: a text or a pair, and what is right; or a file, with its name as the text."""

    texts: tuple[str, ...]
    target: Any = None
    file: Path | bytes | None = None


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples encoded for one model and one metric."""

    metric: str
    batches: Sequence[tuple[list[int], dict[str, Tensor]]]  # which examples, and the model's inputs
    targets: list[Any]
    num_cut: int  # texts cut at max_len
    texts: list[tuple[str, ...]]
    drawn_from: int = 0  # rows or windows that there were to draw from

    @property
    def higher_is_better(self) -> bool:
        return self.metric != "loss"

    def __len__(self) -> int:
        return sum(len(chosen) for chosen, _ in self.batches) // (1 + (self.metric == "spearman"))

    def tensors(self) -> Iterator[Tensor]:
        """All that the model reads, and what it is measured by."""
        for _, inputs in self.batches:
            yield from inputs.values()
        if self.metric in ("accuracy", "spearman"):
            yield torch.tensor(self.targets)

    def inputs(self, model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
        """What the model reads, batch by batch; its decoder, if it has one, reads the labels."""
        for _, inputs in self.batches:
            yield _readable(model, inputs)

    def probe(self, model: PreTrainedModel) -> dict[str, Tensor]:
        """One batch whose encoder and decoder lengths differ."""
        _, inputs = self.batches[-1]
        width = inputs["input_ids"].shape[1] if "input_ids" in inputs else 0
        if "labels" in inputs and inputs["labels"].shape[1] == width and width > 1:
            inputs = inputs | {"labels": inputs["labels"][:, 1:].contiguous()}
        return _readable(model, inputs)

    def value(self, total: Total) -> float:
        """The metric from the sum of per-example statistics."""
        if self.metric == "loss":
            return float(total[0] / total[1])
        if self.metric == "spearman":
            return correlation_from_statistics(total)
        return percent_from_statistics(total)

    def shown(self, outcome: "Outcome", place: int) -> float:
        """What a reader compares of one example: its cosine, class, loss or agreement."""
        if self.metric == "spearman":
            pair = outcome.outputs[2 * place : 2 * place + 2]
            return float(torch.cosine_similarity(pair[0], pair[1], dim=0))
        if self.metric == "accuracy":
            return int(outcome.outputs[place].argmax())
        return float(outcome.statistics[place, 0] / outcome.statistics[place, 1])


@dataclass(frozen=True)
class Outcome:
    """What a model made of the examples."""

    statistics: Statistics  # (examples, columns)
    outputs: Tensor  # (examples, width): compared to see how far they moved

    def moved_from(self, original: "Outcome", metric: str) -> NDArray[np.float64]:
        """How far each example moved: nats a token, Kullback-Leibler of classes, or 1 - cosine."""
        if metric == "loss":
            ours, theirs = (o.statistics[:, 0] / o.statistics[:, 1] for o in (self, original))
            return np.asarray(ours - theirs)
        if metric == "accuracy":
            now, then = self.outputs.log_softmax(-1), original.outputs.log_softmax(-1)
            return (then.exp() * (then - now)).sum(-1).double().numpy()
        return (1 - torch.cosine_similarity(self.outputs, original.outputs)).double().numpy()


def draw(count: int, limit: int | None, seed: int) -> list[int]:
    """Which of so many are taken: all in their order, or some at random; fewer are among more."""
    if limit is None or limit >= count:
        return list(range(count))
    return random.Random(seed).sample(range(count), count)[:limit]


def found_path(path: Path, what: str) -> Path:
    """A path as it is, or below the folder of local data."""
    local = data_folder()
    if not path.exists() and local is not None and (local / path).exists():
        path = local / path
    if not path.exists():
        raise UserError(f"{path} does not exist; give {what}")
    return path


def read_examples(path: Path, metric: str) -> list[Example]:
    """The rows of a file that the metric can use."""
    path = found_path(path, "a file of texts")
    rows = [row for row in File(path).rows(None) if not row.fault]
    if not rows:
        raise UserError(f"{path} holds no rows; expected texts, one a line or row")
    texts, target = _columns(rows[:100], metric, path)
    for row in rows:
        try:
            for name in texts:
                check_utf8(str(row.fields.get(name)), name)
        except BadRow as error:
            raise UserError(f"{path}, row {row.number}: {error}; save the file as UTF-8") from None
    return [
        Example(tuple(str(row.fields[name]) for name in texts), row.fields.get(target))
        for row in rows
        if all(str(row.fields.get(name) or "").strip() for name in texts)
    ]


def _columns(rows: Sequence[Row], metric: str, path: Path) -> tuple[list[str], str]:
    """The columns of texts, and of what is right."""
    names = list(rows[0].fields)
    if metric == "loss":  # a column named target is a text here, and no label
        sides = [
            next((name for name in names if name.lower() in NAMES[side]), "")
            for side in ("source", "target")
        ]
        if all(sides):
            return sides, ""
    known = _SCORE_NAMES if metric == "spearman" else NAMES["label"]
    target = next((name for name in names if name.lower() in known), "")
    texts = [
        name
        for name in names
        if name != target
        and all(isinstance(row.fields.get(name), str) for row in rows)
        and not all(is_number(row.fields[name]) for row in rows)
    ]
    if metric in ("accuracy", "spearman") and not target:
        raise UserError(
            f"--metric {metric} needs a column named {', '.join(known[:3])} or the like, and "
            f"{path} has {listed(names)}; rename the column, or choose another metric"
        )
    needed = 2 if metric == "spearman" else 1
    if len(texts) < needed:
        raise UserError(
            f"--metric {metric} needs {needed} column{'s' * (needed > 1)} of text, and {path} has "
            f"{len(texts)} among {listed(names)}; give such a file, or choose another metric"
        )
    return texts[:2], target


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


@torch.no_grad()
def run(model: PreTrainedModel, examples: Examples) -> Outcome:
    """Let the model read every example."""
    read: dict[str, Callable[[Any, dict[str, Tensor]], Tensor]] = {
        "loss": partial(_token_losses, causal=is_causal(model)),
        "accuracy": lambda output, _: output.logits,
    }
    parts: dict[int, Tensor] = {}
    for chosen, inputs in examples.batches:
        output = read.get(examples.metric, _pooled)(model(**_readable(model, inputs)), inputs)
        parts.update(zip(chosen, output.float(), strict=True))
    outputs = torch.stack([parts[place] for place in range(len(parts))])
    return Outcome(_statistics(outputs, examples), outputs)


def _readable(model: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inputs of a forward pass: an encoder-decoder needs tokens on both sides."""
    if not reads_targets(model):
        return {key: value for key, value in inputs.items() if key != "labels"}
    if "labels" in inputs:
        return inputs
    shape = len(inputs[model.main_input_name]), 1
    return inputs | {"decoder_input_ids": torch.full(shape, decoder_start(model))}


def _token_losses(
    output: Any, inputs: dict[str, Tensor], *, causal: bool  # noqa: ANN401
) -> Tensor:  # fmt: skip
    """(B, 2): the summed loss of an example's tokens, and how many they are."""
    labels = inputs["labels"]
    if causal:  # labels move to their queries, not logits: cutting these would copy them all
        labels = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    losses = torch.nn.functional.cross_entropy(
        output.logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED,
        reduction="none",
    ).view_as(labels)  # fmt: skip
    return torch.stack([losses.sum(1), (labels != IGNORED).sum(1).float()], 1)


def _pooled(output: Any, inputs: dict[str, Tensor]) -> Tensor:  # noqa: ANN401
    """The mean of the last hidden states, or the logits, over real tokens."""
    states = getattr(output, "last_hidden_state", None)
    states = output.logits if states is None else states
    mask = inputs.get("attention_mask")
    if states.dim() == 2:
        return states
    if mask is None or mask.shape[1] != states.shape[1]:  # of images, sounds and one first token
        return states.flatten(1, -2).mean(1)
    return torch.einsum("btd,bt->bd", states, mask.to(states.dtype)) / mask.sum(1, keepdim=True)


def _statistics(outputs: Tensor, examples: Examples) -> Statistics:
    if examples.metric == "loss":
        return outputs.double().numpy()
    if examples.metric == "spearman":
        first, second = outputs[0::2], outputs[1::2]
        cosines = torch.cosine_similarity(first, second).tolist()
        return spearman_statistics(cosines, examples.targets)
    if examples.metric == "accuracy":
        right = outputs.argmax(-1) == torch.tensor(examples.targets)
        return np.column_stack([right.double().numpy(), np.ones(len(right))])
    return np.column_stack([np.ones(len(outputs)), np.ones(len(outputs))])


def agreement_statistics(outcome: Outcome, original: Outcome) -> Statistics:
    """Columns (cosine, 1) of the outputs with the original's."""
    cosines = torch.cosine_similarity(outcome.outputs, original.outputs).double().numpy()
    return np.column_stack([cosines, np.ones(len(cosines))])
