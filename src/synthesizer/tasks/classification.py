"""Text classification: topics, sentiment, and the answers of ListOps."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from synthesizer.data.batch import Batch, label_batch, own_part
from synthesizer.data.columns import infer_labels, label_number, label_of, text_of
from synthesizer.data.encoded_cache import Entry
from synthesizer.data.prepare import Columns, Examples, Fields, Fitter, Limit, prepare
from synthesizer.data.sampler import Order, in_order
from synthesizer.data.sources import SPLITS, Row, Source
from synthesizer.data.tokenizer import CLS, Template, train_tokenizer
from synthesizer.experiment.recipe import Recipe
from synthesizer.metrics import (
    accuracy_statistics,
    confusion_statistics,
    macro_f1_from_statistics,
    score,
)
from synthesizer.tasks.pairs import SHOWN, load_ragged, store_ragged
from synthesizer.tasks.task import Outputs, Scores

Array = NDArray[Any]


class Classification:
    """A text to one of a few labels."""

    kind = "encoder"
    main_metric = "accuracy"
    higher_is_better = True
    generates = False
    decodes = False

    def __init__(self, recipe: Recipe, tokenizer_dir: str | Path | None = None) -> None:
        self._recipe = recipe
        self.tokenizer, entry = prepare(recipe, tokenizer_dir, self._build)
        self._arrays, self._shown = entry.arrays, entry.meta["shown"]
        self._labels: list[str] = entry.meta["labels"]
        self.labels: list[str] | None = self._labels
        self.num_labels: int | None = len(self._labels)
        self.report: dict[str, Any] = entry.meta["report"]

    def train_batches(self, start: int = 0, *, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Endless batches of similar lengths."""
        lengths = load_ragged(self._arrays, "train.text").lengths[:, None]
        budget, seed = self._recipe.train.batch_tokens, self._recipe.seed
        for _, batch in Order(lengths, batch_tokens=budget, seed=seed).batches(start):
            yield own_part(batch, partial(self._batch, "train"), rank, world)

    def batches(self, split: str) -> Iterator[Batch]:
        """Each example once, in order."""
        limit = self._recipe.evaluate.limit if split == "validation" else None
        lengths = load_ragged(self._arrays, f"{split}.text", limit).lengths[:, None]
        for indices in in_order(lengths, self._recipe.evaluate.batch_tokens):
            yield self._batch(split, indices)

    def score(self, split: str, outputs: Outputs) -> Scores:
        """Accuracy and macro-averaged F1."""
        assert outputs.predictions is not None
        predictions = outputs.predictions.tolist()
        targets = self._arrays[f"{split}.labels"][: len(predictions)].tolist()
        accuracy = accuracy_statistics(predictions, targets)
        confusion = confusion_statistics(predictions, targets, num_labels=len(self._labels))
        metrics = {
            "accuracy": score("accuracy", accuracy),
            "macro_f1": macro_f1_from_statistics(confusion.sum(axis=0)),
            "loss": float(outputs.losses.sum() / outputs.counts.sum()),
        }
        shown = zip(self._shown[split], targets, predictions, strict=False)
        samples = [
            {"source": text, "reference": self._labels[target], "output": self._labels[prediction]}
            for text, target, prediction in shown
        ][: self._recipe.evaluate.samples]
        return Scores(metrics, {}, {"accuracy": accuracy}, samples)

    def _batch(self, split: str, indices: Array) -> Batch:
        texts, labels = load_ragged(self._arrays, f"{split}.text"), self._arrays[f"{split}.labels"]
        return label_batch(
            [texts[i] for i in indices],
            labels[indices],
            indices=indices,
            pad=self.tokenizer.pad_token_id,
        )

    def _build(
        self, source: Source, given: PreTrainedTokenizerFast | None
    ) -> tuple[PreTrainedTokenizerFast, Entry]:
        recipe = self._recipe
        roles = ("text", "label")
        plain = Examples(recipe.data, source, roles, _read)
        labels = recipe.data.labels or infer_labels(
            (label for _, label in plain.split("train")), plain.columns["label"]
        )

        def read(row: Row, columns: Columns) -> list[Fields]:
            ((text, label),) = _read(row, columns)
            return [(text, str(label_number(label, labels, columns["label"])))]

        examples = Examples(recipe.data, source, roles, read)
        tokenizer = given or train_tokenizer(
            recipe.text,
            [(text for text, _ in examples.split("train"))],
            Template(opening=CLS, closing=""),
        )
        limit = Limit(recipe.model.max_len, "model.max_len")
        fitter = Fitter(tokenizer, [limit], recipe.data, closed=False)
        arrays: dict[str, Array] = {}
        shown: dict[str, list[str]] = {}
        for split in SPLITS:
            (texts,), kept = fitter.encode(split, examples.split(split))
            store_ragged(arrays, f"{split}.text", texts)
            arrays[f"{split}.labels"] = np.array([int(label) for _, label in kept])
            shown[split] = [text for text, _ in kept[:SHOWN]]
        report = {
            **examples.report,
            "labels": list(labels),
            "majority": _majority(arrays),
            "overlong": fitter.report,
            "vocab_size": len(tokenizer),
        }
        meta = {"labels": list(labels), "shown": shown, "report": report}
        return tokenizer, Entry(arrays, meta)


def _read(row: Row, columns: Columns) -> list[Fields]:
    return [(text_of(row, columns["text"]), label_of(row, columns["label"]))]


def _majority(arrays: dict[str, Array]) -> dict[str, float]:
    """Accuracy of always answering the commonest label of train, in percent."""
    commonest = np.bincount(arrays["train.labels"]).argmax()
    return {
        split: round(100 * float((arrays[f"{split}.labels"] == commonest).mean()), 2)
        for split in ("validation", "test")
    }


build = Classification
