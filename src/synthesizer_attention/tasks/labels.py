"""Text classification: topics, sentiment, pairs of texts, and the answers of ListOps."""

import functools
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from synthesizer_attention.data.batch import Batch, Ragged, label_batch
from synthesizer_attention.data.cache import Entry, Fields
from synthesizer_attention.data.columns import BadRow, infer_labels, label_number, label_of, text_of
from synthesizer_attention.data.files import Row
from synthesizer_attention.data.prepare import Columns, Examples, Fitter, Limit, tokenizer_texts
from synthesizer_attention.data.sources import SPLITS, Source
from synthesizer_attention.data.tokenizer import CLS, Template, train_tokenizer
from synthesizer_attention.errors import listed
from synthesizer_attention.metrics.labels import DOCUMENTS
from synthesizer_attention.metrics.scores import of_task, score
from synthesizer_attention.run.recipe import Recipe
from synthesizer_attention.tasks.task import (
    HELD_OUT,
    SHOWN,
    Built,
    ListTask,
    Outputs,
    Scores,
    load_ragged,
)

Array = NDArray[Any]

PAIR = " || "  # between two texts that have one label
BATCH, RATE, DECAY = 128, 0.3, 1e-5
EPOCHS, FEWEST_STEPS = 4, 400  # whichever is longer
MOST = 20_000  # training examples; a floor need not see more


class Classification(ListTask):
    """A text, or two with PAIR between them, to one of a few labels."""

    kind = "encoder"
    main_metric = "accuracy"
    decodes = False
    sides = ("text",)

    def __init__(self, recipe: Recipe, tokenizer_dir: str | Path | None = None) -> None:
        super().__init__(recipe, tokenizer_dir)
        self.labels: list[str] = self._meta["labels"]

    def score(self, split: str, outputs: Outputs) -> Scores:
        """The task's metrics; the rows of the main one alone are kept."""
        assert outputs.predictions is not None
        predictions = outputs.predictions.tolist()
        targets = self._arrays[f"{split}.labels"][: len(predictions)].tolist()
        rows = {
            name: metric.measure(predictions, targets, len(self.labels))
            for name, metric in of_task(self._recipe.task).items()
        }
        metrics = {name: score(name, each) for name, each in rows.items()}
        metrics |= self._score_parts(split, rows[self.main_metric])
        shown = zip(self._meta["shown"][split], targets, predictions, strict=False)
        samples = [
            {"source": text, "reference": self.labels[target], "output": self.labels[prediction]}
            for text, target, prediction in islice(shown, self._recipe.evaluate.samples)
        ]
        kept = {self.main_metric: rows[self.main_metric], DOCUMENTS: np.arange(len(targets))}
        return Scores({**metrics, "loss": outputs.loss}, {}, kept, samples)

    def _batch(self, split: str, lists: list[list[Array]], indices: Array) -> Batch:
        labels = self._arrays[f"{split}.labels"][indices]
        return label_batch(lists[0], labels, indices=indices, pad=self.tokenizer.pad_token_id)

    def _build(self, source: Source, given: PreTrainedTokenizerFast | None) -> Built:
        recipe, labels = self._recipe, self._recipe.data.labels
        pair = ("text_pair",) if "text_pair" in recipe.data.columns else ()

        def read(row: Row, columns: Columns) -> list[Fields]:
            label = label_of(row, columns["label"])
            names = [columns[role] for role in ("text", *pair)]
            parts = [text_of(row, name, blank=bool(pair)) for name in names]
            if not any(map(str.strip, parts)):
                raise BadRow(f"columns {listed(names)} are empty")
            text = PAIR.join(parts)
            if labels:  # unknown only while train is read for them
                label_number(label, labels, columns["label"])
            return [(text, label)]

        examples = Examples(recipe.data, source, ("text", *pair, "label"), read)
        train, column = examples.split("train"), examples.columns["label"]
        labels = labels or infer_labels(examples.whole_column(1), column)
        tokenizer = given or train_tokenizer(
            recipe.text,
            tokenizer_texts(recipe.text, train, [0], examples.report),
            Template(opening=CLS, closing=""),
        )
        limit = Limit(recipe.model.max_len, "model.max_len")
        fitter = Fitter(tokenizer, [limit], recipe.data, closed=False)
        number = functools.cache(lambda label: label_number(label, labels, column))
        arrays: dict[str, Array] = {}
        shown: dict[str, list[str]] = {}
        for split in SPLITS:
            lists, kept = fitter.encode(split, examples.split(split))
            self._store(arrays, split, lists)
            arrays[f"{split}.labels"] = np.fromiter(map(number, kept.column(1)), np.int64)
            shown[split] = list(islice(kept.column(0), SHOWN))
        bag = BagOfWords(len(tokenizer), len(labels))
        bag.fit(load_ragged(arrays, "train.text"), arrays["train.labels"])
        commonest = np.bincount(arrays["train.labels"]).argmax()
        majority, by_words = {}, {}  # accuracy in percent
        for split in HELD_OUT:
            true, said = arrays[f"{split}.labels"], load_ragged(arrays, f"{split}.text")
            majority[split] = round(100 * float((true == commonest).mean()), 2)
            by_words[split] = round(100 * float((bag.predict(said) == true).mean()), 2)
        report = {
            **examples.report,
            "labels": list(labels),
            "majority": majority,
            "bag_of_words": by_words,
            "overlong": fitter.report,
            "longest": fitter.longest,
            "vocab_size": len(tokenizer),
        }
        return tokenizer, Entry(arrays, {"labels": list(labels), "shown": shown, "report": report})


class BagOfWords:
    """p = softmax(W b + c), b the set of a text's tokens divided by the root of its size.

    A floor: trained by Adagrad on the cross-entropy with a little weight decay.
    """

    def __init__(self, vocab_size: int, num_labels: int) -> None:
        self.weights = np.zeros((vocab_size, num_labels))
        self.bias = np.zeros(num_labels)

    def fit(self, texts: Ragged, labels: Array) -> None:
        """Learn from texts and their labels; the order is drawn from a fixed seed."""
        rng = np.random.default_rng(0)
        chosen = rng.permutation(len(labels))[:MOST]
        square, square_bias = np.full_like(self.weights, 1e-8), np.full_like(self.bias, 1e-8)
        num_batches = -(-len(chosen) // BATCH)
        for _ in range(max(EPOCHS, -(-FEWEST_STEPS // num_batches))):
            for indices in np.array_split(rng.permutation(chosen), num_batches):
                rows, tokens, values = self._bags(texts, indices)
                scores = self._scores(len(indices), rows, tokens, values)
                powers = np.exp(scores - scores.max(1, keepdims=True))
                error = powers / powers.sum(1, keepdims=True)
                error[np.arange(len(indices)), labels[indices]] -= 1
                gradient = DECAY * self.weights
                np.add.at(gradient, tokens, values * error[rows] / len(indices))
                square += gradient**2
                self.weights -= RATE * gradient / np.sqrt(square)
                gradient_bias = error.mean(0)
                square_bias += gradient_bias**2
                self.bias -= RATE * gradient_bias / np.sqrt(square_bias)

    def predict(self, texts: Ragged) -> Array:
        """The likeliest label of each text."""
        count = len(texts)
        parts = np.array_split(np.arange(count), -(-count // BATCH)) if count else []
        scores = [self._scores(len(part), *self._bags(texts, part)) for part in parts]
        return np.concatenate(scores).argmax(1) if scores else np.empty(0, dtype=np.int64)

    def _scores(self, count: int, rows: Array, tokens: Array, values: Array) -> Array:
        scores = np.tile(self.bias, (count, 1))
        np.add.at(scores, rows, values * self.weights[tokens])
        return scores

    def _bags(self, texts: Ragged, indices: Array) -> tuple[Array, Array, Array]:
        """Row, token and value (entries, 1) of what is not zero in the bags of some texts."""
        begins, ends = texts.offsets[indices], texts.offsets[indices + 1]
        flat = np.concatenate([texts.flat[b:e] for b, e in zip(begins, ends, strict=True)])
        places = np.repeat(np.arange(len(indices)), ends - begins) * len(self.weights) + flat
        rows, tokens = np.divmod(np.unique(places), len(self.weights))  # each token once a text
        sizes = np.bincount(rows, minlength=len(indices))
        return rows, tokens, sizes[rows, None] ** -0.5


build = Classification
