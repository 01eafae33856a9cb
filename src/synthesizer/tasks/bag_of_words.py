"""A floor for classification: logistic regression on which tokens a text has, in whatever order."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from synthesizer.data.batch import Ragged

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
                bags = self._bags(texts, indices)
                error = _softmax(bags @ self.weights + self.bias)
                error[np.arange(len(indices)), labels[indices]] -= 1
                gradient = bags.T @ error / len(indices) + DECAY * self.weights
                square += gradient**2
                self.weights -= RATE * gradient / np.sqrt(square)
                gradient_bias = error.mean(0)
                square_bias += gradient_bias**2
                self.bias -= RATE * gradient_bias / np.sqrt(square_bias)

    def predict(self, texts: Ragged) -> Array:
        """The likeliest label of each text."""
        count = len(texts.lengths)
        parts = np.array_split(np.arange(count), -(-count // BATCH)) if count else []
        scores = [self._bags(texts, indices) @ self.weights + self.bias for indices in parts]
        return np.concatenate(scores).argmax(1) if scores else np.empty(0, dtype=np.int64)

    def _bags(self, texts: Ragged, indices: Array) -> Array:
        bags = np.zeros((len(indices), len(self.weights)))
        for row, index in enumerate(indices):
            tokens = np.unique(texts.flat[texts.offsets[index] : texts.offsets[index + 1]])
            bags[row, tokens] = max(1, len(tokens)) ** -0.5
        return bags


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    found: Array = powers / powers.sum(1, keepdims=True)
    return found
