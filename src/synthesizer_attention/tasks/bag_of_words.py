"""A floor for classification: logistic regression on which tokens a text has, in whatever order."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from synthesizer_attention.data.batch import Ragged

Array = NDArray[Any]

BATCH, RATE, DECAY = 128, 0.3, 1e-5
EPOCHS, FEWEST_STEPS = 4, 400  # whichever is longer
MOST = 20_000  # training examples; a floor need not see more


class BagOfWords:
    """p = softmax(W b + c), b the set of a text's tokens divided by the root of its size.

    Trained by Adagrad on the cross-entropy with a little weight decay.
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
                error = _softmax(self._scores(len(indices), rows, tokens, values))
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


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    found: Array = powers / powers.sum(1, keepdims=True)
    return found
