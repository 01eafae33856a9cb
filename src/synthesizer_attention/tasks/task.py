"""What the loop and the evaluation ask of a task, and what they hand back to it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from synthesizer_attention.data.batch import Batch, Order, Ragged, fixed_part, in_order, own_part
from synthesizer_attention.data.cache import Entry
from synthesizer_attention.data.prepare import prepare
from synthesizer_attention.data.sources import Source
from synthesizer_attention.data.tokenizer import encode
from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.language_model import language_model_statistics
from synthesizer_attention.metrics.scores import score
from synthesizer_attention.run.recipe import Recipe
from synthesizer_attention.run.recipe_keys import TASKS

Array = NDArray[Any]
Built = tuple[PreTrainedTokenizerFast, Entry]

SHOWN = 50  # texts of a split kept for samples
HELD_OUT = ("validation", "test")


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

    @property
    def loss(self) -> float:
        """Nats per scored target."""
        return float(self.losses.sum() / self.counts.sum())

    def perplexity_statistics(self) -> Array:
        """Rows for the perplexity of the targets; what text they spell is not counted."""
        nothing = [0] * len(self.losses)
        return language_model_statistics(
            self.losses.tolist(), self.counts.tolist(), nothing, nothing
        )


@dataclass(frozen=True)
class Scores:
    """A split's metrics, and per example what recomputes the main one and its document's number."""

    metrics: dict[str, float]
    signatures: dict[str, str] = field(default_factory=dict)
    statistics: dict[str, Array] = field(default_factory=dict)
    samples: list[dict[str, str]] = field(default_factory=list)


class Task:
    """Examples as batches, and the score of what a model made of them.

    Splits are "train", "validation" and "test".
    """

    kind: ClassVar[str]  # of the model it needs: "decoder", "encoder_decoder" or "encoder"
    main_metric: str  # the key of Scores.metrics and Scores.statistics that decides
    higher_is_better: bool = True
    generates: ClassVar[bool] = False  # whether `score` needs Outputs.texts
    decodes: ClassVar[bool] = True  # whether its models write text, token by token
    labels: list[str] | None = None  # of a classifier, in order of their numbers
    tokenizer: PreTrainedTokenizerFast  # saved with the model
    report: dict[str, Any]  # what was read, inferred, cut, skipped and truncated; JSON-able

    def __init__(
        self, recipe: Recipe, tokenizer_dir: str | Path | None = None, source: Source | None = None
    ) -> None:
        self._recipe = recipe
        self.tokenizer, entry = prepare(recipe, tokenizer_dir, self._build, source=source)
        self._arrays, self._meta, self.report = entry.arrays, entry.meta, entry.meta["report"]

    @property
    def identity(self) -> str:
        """Of its data: what runs that are compared, or go on, must share."""
        identity: str = self.report["identity"]
        return identity

    def train_batches(self, start: int = 0, *, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Endless batches from the `start`-th on (steps times train.accumulate); a pure function.

        Ranks share every global batch without overlap and take the same number of batches.
        """
        raise NotImplementedError

    def batches(self, split: str) -> Iterator[Batch]:
        """Each example of a split exactly once, in order."""
        raise NotImplementedError

    def score(self, split: str, outputs: Outputs) -> Scores:
        """The metrics of a split from a model's outputs on all of `batches(split)`."""
        raise NotImplementedError

    def _build(self, source: Source, given: PreTrainedTokenizerFast | None) -> Built:
        """Read and encode all splits, with the given tokenizer or a new one."""
        raise NotImplementedError

    def _score_parts(self, split: str, rows: Array) -> dict[str, float]:
        """The main metric of each part of a split that is scored whole, by name."""
        counts = self.report.get("parts", {}).get(split, {})
        ends = np.cumsum([*counts.values()], dtype=np.int64)
        if not counts or len(rows) != ends[-1]:
            return {}
        parts = zip(counts, np.split(rows, ends[:-1]), strict=True)
        return {f"{self.main_metric}@{name}": score(self.main_metric, part) for name, part in parts}

    def _limit(self, split: str) -> int | None:
        """How many examples of a split are used; test is whole."""
        return self._recipe.evaluate.limit if split == "validation" else None


class ListTask(Task):
    """A task of separate examples, each one or two lists of tokens, batched by similar length."""

    sides: ClassVar[tuple[str, ...]]  # the names of the lists, in the arrays

    def train_batches(self, start: int = 0, *, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Endless batches of similar lengths; where groups are stored, mixed up to data.cap."""
        groups, lists = self._arrays.get("train.groups"), self._lists("train")
        used = fixed_part(len(lists[0]), self._recipe.train.data_share)
        order = Order(
            _lengths(lists)[used],
            batch_tokens=self._recipe.train.batch_tokens,
            seed=self._recipe.seed,
            groups=None if groups is None else groups[used],
            cap=None if groups is None else self._recipe.data.cap,
        )
        for _, batch in order.batches(start):
            yield own_part(used[batch], partial(self._take, "train", lists), rank, world)

    def batches(self, split: str) -> Iterator[Batch]:
        lists = self._lists(split)
        for indices in in_order(_lengths(lists), self._recipe.evaluate.batch_tokens):
            yield self._take(split, lists, indices)

    def _lists(self, split: str) -> list[Ragged]:
        return [
            load_ragged(self._arrays, f"{split}.{side}", self._limit(split)) for side in self.sides
        ]

    def _take(self, split: str, lists: list[Ragged], indices: Array) -> Batch:
        return self._batch(split, [[ragged[i] for i in indices] for ragged in lists], indices)

    def _batch(self, split: str, lists: list[list[Array]], indices: Array) -> Batch:
        """The batch of some examples, given their token lists."""
        raise NotImplementedError

    def _store(self, arrays: dict[str, Array], split: str, lists: list[Ragged]) -> None:
        for side, ragged in zip(self.sides, lists, strict=True):
            store_ragged(arrays, f"{split}.{side}", ragged)


def _lengths(lists: list[Ragged]) -> Array:
    return np.column_stack([ragged.lengths for ragged in lists])


def store_ragged(arrays: dict[str, Array], name: str, ragged: Ragged) -> None:
    """Put lists among the arrays of a cache entry."""
    arrays[f"{name}.flat"], arrays[f"{name}.offsets"] = ragged.flat, ragged.offsets


def load_ragged(arrays: dict[str, Array], name: str, limit: int | None = None) -> Ragged:
    """Take lists out again, only the first `limit` where one is given."""
    offsets = arrays[f"{name}.offsets"]
    return Ragged(arrays[f"{name}.flat"], offsets if limit is None else offsets[: limit + 1])


def build_task(recipe: Recipe, *, tokenizer_dir: str | Path | None = None) -> Task:
    """Read, encode and cache the data of a recipe; a tokenizer directory replaces its tokenizer."""
    shape = import_module(f"synthesizer_attention.tasks.{TASKS[recipe.task].shape}")
    task: Task = shape.build(recipe, tokenizer_dir)
    return task


def prompt(recipe: Recipe, tokenizer: PreTrainedTokenizerFast, line: str) -> list[int]:
    """A user's line as the input of a trained model, unpadded; reads no data.

    A decoder's line is a beginning to continue, an encoder's a text to classify, an
    encoder-decoder's a source to answer.
    """
    if not line.strip():
        raise UserError("the line is empty; expected a text")
    prefix = recipe.data.prefix if recipe.task != "text_to_text" else ""
    closed = recipe.model.kind == "encoder_decoder"
    (ids,) = encode(tokenizer, [prefix + line], closed=closed)
    if len(ids) > recipe.model.max_len:
        raise UserError(
            f"the line has {len(ids)} tokens and the model takes {recipe.model.max_len}; shorten it"
        )
    return ids
