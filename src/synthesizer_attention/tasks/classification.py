"""Text classification: topics, sentiment, and the answers of ListOps."""

import functools
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from synthesizer_attention.data.batch import Batch, label_batch
from synthesizer_attention.data.columns import infer_labels, label_number, label_of, text_of
from synthesizer_attention.data.encoded_cache import Entry
from synthesizer_attention.data.files import Row
from synthesizer_attention.data.prepare import Columns, Examples, Fitter, Limit, tokenizer_texts
from synthesizer_attention.data.sources import SPLITS, Source
from synthesizer_attention.data.spill import Fields
from synthesizer_attention.data.tokenizer import CLS, Template, train_tokenizer
from synthesizer_attention.metrics import (
    DOCUMENTS,
    accuracy_statistics,
    confusion_statistics,
    macro_f1_from_statistics,
    score,
)
from synthesizer_attention.run.recipe import Recipe
from synthesizer_attention.tasks.bag_of_words import BagOfWords
from synthesizer_attention.tasks.task import SHOWN, Built, ListTask, Outputs, Scores, load_ragged

Array = NDArray[Any]


class Classification(ListTask):
    """A text to one of a few labels."""

    kind = "encoder"
    main_metric = "accuracy"
    decodes = False
    sides = ("text",)

    def __init__(self, recipe: Recipe, tokenizer_dir: str | Path | None = None) -> None:
        super().__init__(recipe, tokenizer_dir)
        self._labels: list[str] = self._meta["labels"]
        self.labels = self._labels

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
            "loss": outputs.loss,
        }
        shown = zip(self._meta["shown"][split], targets, predictions, strict=False)
        samples = [
            {"source": text, "reference": self._labels[target], "output": self._labels[prediction]}
            for text, target, prediction in shown
        ][: self._recipe.evaluate.samples]
        statistics = {"accuracy": accuracy, DOCUMENTS: np.arange(len(targets))}
        return Scores(metrics, {}, statistics, samples)

    def _batch(self, split: str, lists: list[list[Array]], indices: Array) -> Batch:
        labels = self._arrays[f"{split}.labels"][indices]
        return label_batch(lists[0], labels, indices=indices, pad=self.tokenizer.pad_token_id)

    def _build(self, source: Source, given: PreTrainedTokenizerFast | None) -> Built:
        recipe, labels = self._recipe, self._recipe.data.labels

        def read(row: Row, columns: Columns) -> list[Fields]:
            text, label = text_of(row, columns["text"]), label_of(row, columns["label"])
            if labels:  # unknown only while train is read for them
                label_number(label, labels, columns["label"])
            return [(text, label)]

        examples = Examples(recipe.data, source, ("text", "label"), read)
        train, column = examples.split("train"), examples.columns["label"]
        labels = labels or infer_labels(examples.whole_column(1), column)
        tokenizer = given or train_tokenizer(
            recipe.text,
            tokenizer_texts(recipe.text, train, [0], examples.report),
            Template(opening=CLS, closing=""),
        )
        limit = Limit(recipe.model.max_len, "model.max_len")
        fitter = Fitter(tokenizer, [limit], recipe.data, closed=False)
        arrays: dict[str, Array] = {}
        shown: dict[str, list[str]] = {}
        for split in SPLITS:
            lists, kept = fitter.encode(split, examples.split(split))
            self._store(arrays, split, lists)
            number = functools.cache(partial(label_number, labels=labels, column=column))
            arrays[f"{split}.labels"] = np.fromiter(map(number, kept.column(1)), np.int64)
            shown[split] = list(islice(kept.column(0), SHOWN))
        report = {
            **examples.report,
            "labels": list(labels),
            "majority": _majority(arrays),
            "bag_of_words": _bag_of_words(arrays, len(tokenizer), len(labels)),
            "overlong": fitter.report,
            "longest": fitter.longest,
            "vocab_size": len(tokenizer),
        }
        meta = {"labels": list(labels), "shown": shown, "report": report}
        return tokenizer, Entry(arrays, meta)


def _majority(arrays: dict[str, Array]) -> dict[str, float]:
    """Accuracy of always answering the commonest label of train, in percent."""
    commonest = np.bincount(arrays["train.labels"]).argmax()
    return {
        split: round(100 * float((arrays[f"{split}.labels"] == commonest).mean()), 2)
        for split in ("validation", "test")
    }


def _bag_of_words(arrays: dict[str, Array], vocab_size: int, num_labels: int) -> dict[str, float]:
    """Accuracy of logistic regression on the set of a text's tokens, in percent."""
    model = BagOfWords(vocab_size, num_labels)
    model.fit(load_ragged(arrays, "train.text"), arrays["train.labels"])
    found = {}
    for split in ("validation", "test"):
        right = model.predict(load_ragged(arrays, f"{split}.text")) == arrays[f"{split}.labels"]
        found[split] = round(100 * float(right.mean()), 2)
    return found


build = Classification
