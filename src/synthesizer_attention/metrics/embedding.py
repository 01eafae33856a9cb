"""How alike two texts are by the vectors of their words, and vectors trained for it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.per_example import Statistics, mean_statistics
from synthesizer_attention.metrics.tokens import Reference, pair, words

EMBEDDING = "embedding_average"

Matrix = NDArray[Any]
Vectors = Mapping[str, Matrix]


def embedding_statistics(
    hypotheses: Sequence[str], references: Sequence[Reference], vectors: Vectors
) -> Statistics:
    """Cosine of the mean vectors of two texts, columns (score, 1).

    Words without a vector are passed over; a text without any known word scores 0.
    Of several references the best counts.
    """
    return mean_statistics(
        [
            max(_compare(_mean(hypothesis, vectors), _mean(text, vectors)) for text in texts)
            for hypothesis, texts in pair(hypotheses, references)
        ]
    )


def train_vectors(
    texts: Sequence[str], *, size: int = 64, window: int = 4, max_words: int = 4096
) -> dict[str, Matrix]:
    """Word vectors U sqrt(S) of the positive pointwise mutual information within a window.

    Deterministic. The max_words most frequent words get a vector; no window crosses a text.
    """
    tokens = [words(text) for text in texts]
    frequency = Counter(chain.from_iterable(tokens))
    if not frequency:
        raise UserError("no words to train vectors on; expected training texts that are not empty")
    ranked = sorted(frequency, key=lambda word: (-frequency[word], word))[:max_words]
    number = {word: index for index, word in enumerate(ranked)}
    ids = [[number.get(word, -1) for word in line] + [-1] * window for line in tokens]
    stream = np.fromiter(chain.from_iterable(ids), dtype=np.int64)
    points = _factorize(_pointwise(_together(stream, len(ranked), window)), size)
    return dict(zip(ranked, points, strict=True))


def vectors_signature(vectors: Vectors) -> str:
    """What a similarity by vectors from train_vectors needs to be repeated."""
    size = len(next(iter(vectors.values())))
    return f"ppmi+svd of the training split|words:{len(vectors)}|size:{size}"


def _mean(text: str, vectors: Vectors) -> Matrix | None:
    known = [vectors[word] for word in words(text) if word in vectors]
    return np.mean(known, axis=0) if known else None


def _compare(hypothesis: Matrix | None, reference: Matrix | None) -> float:
    if hypothesis is None or reference is None:
        return 0.0
    norms = np.linalg.norm(hypothesis) * np.linalg.norm(reference)
    return float(hypothesis @ reference / norms) if norms else 0.0


def _together(stream: NDArray[np.int64], size: int, window: int) -> Matrix:
    """How often word i occurs within the window of word j; -1 in the stream is not a word."""
    counts = np.zeros((size, size), dtype=np.float32)
    for distance in range(1, window + 1):
        left, right = stream[:-distance], stream[distance:]
        known = (left >= 0) & (right >= 0)
        np.add.at(counts, (left[known], right[known]), 1)
        np.add.at(counts, (right[known], left[known]), 1)
    return counts


def _pointwise(counts: Matrix) -> Matrix:
    """max(0, log P(i, j) / (P(i) P(j))), and 0 where the two never occur together."""
    left, right = np.nonzero(counts)
    marginal = counts.sum(0, dtype=np.float64)
    ratio = counts[left, right] * marginal.sum() / (marginal[left] * marginal[right])
    information = np.zeros_like(counts)
    information[left, right] = np.maximum(np.log(ratio), 0)
    return information


def _factorize(matrix: Matrix, size: int, *, spare: int = 10, rounds: int = 4) -> Matrix:
    """U sqrt(S) of the largest `size` singular values, by subspace iteration from a fixed seed."""
    width = min(size + spare, len(matrix))
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((len(matrix), width)))[0]
    for _ in range(rounds):
        basis = np.linalg.qr(matrix @ (matrix.T @ basis))[0]
    left, singular, _ = np.linalg.svd(basis.T @ matrix, full_matrices=False)
    return np.asarray((basis @ left * np.sqrt(singular))[:, :size])
