"""Accuracy, Matthews correlation, F1 and macro-F1 from per-example counts.

Confusion columns: (labels, labels + 1) flattened, rows the target, columns the prediction;
the last column counts answers that name no label (prediction -1), which are always wrong.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.per_example import (
    Statistics,
    Total,
    mean_statistics,
    require_equal,
)

NO_LABEL = -1


def accuracy_statistics(predictions: Sequence[int], targets: Sequence[int]) -> Statistics:
    """Columns (right, 1)."""
    require_equal(len(predictions), len(targets))
    return mean_statistics([p == t for p, t in zip(predictions, targets, strict=True)])


def confusion_statistics(
    predictions: Sequence[int], targets: Sequence[int], *, num_labels: int
) -> Statistics:
    """One-hot (target, prediction) per example."""
    require_equal(len(predictions), len(targets))
    predicted, target = np.asarray(predictions), np.asarray(targets)
    _require_labels("target", target, 0, num_labels)
    _require_labels("prediction", predicted, NO_LABEL, num_labels)
    counts = np.zeros((len(target), num_labels, num_labels + 1))
    counts[np.arange(len(target)), target, predicted] = 1  # -1 is the last column
    return counts.reshape(len(target), -1)


def matthews_from_statistics(total: Total) -> float:
    """100 times the Matthews (phi, R_K) correlation; 0 where one side has a single class."""
    confusion = _confusion(total)
    right, count = np.trace(confusion), confusion.sum()
    targets, predictions = np.append(confusion.sum(1), 0), confusion.sum(0)
    spread = (count**2 - predictions @ predictions) * (count**2 - targets @ targets)
    if spread == 0:
        return 0.0
    return float(100 * (right * count - targets @ predictions) / math.sqrt(spread))


def f1_from_statistics(total: Total) -> float:
    """100 times F1 of label 1 of two; 0 where label 1 is neither there nor predicted.

    An answer that names no label counts as the wrong one of the two, as in T5's evaluation:
    otherwise an invalid answer instead of a 0 would cost nothing.
    """
    confusion = _confusion(total)
    if len(confusion) != 2:
        raise UserError(f"f1 is for 2 labels and got {len(confusion)}; use macro_f1")
    judged = confusion.copy()
    judged[[0, 1], [1, 0]] += confusion[:, 2]
    judged[:, 2] = 0
    return float(100 * _f1_per_label(judged)[1])


def macro_f1_from_statistics(total: Total) -> float:
    """100 times the mean F1 over the labels that occur among targets or predictions."""
    confusion = _confusion(total)
    occurs = confusion.sum(1) + confusion.sum(0)[:-1] > 0
    return float(100 * _f1_per_label(confusion)[occurs].mean())


def _f1_per_label(confusion: Total) -> Total:
    """2 hits / (targets + predictions) for each label."""
    hits, ends = np.diagonal(confusion), confusion.sum(1) + confusion.sum(0)[:-1]
    return np.asarray(2 * hits / np.maximum(ends, 1))


def _confusion(total: Total) -> Total:
    num_labels = (math.isqrt(4 * len(total) + 1) - 1) // 2
    return total.reshape(num_labels, num_labels + 1)


def _require_labels(role: str, labels: NDArray[np.int64], low: int, num_labels: int) -> None:
    wrong = labels[(labels < low) | (labels >= num_labels)]
    if len(wrong):
        raise UserError(
            f"{role} {wrong[0]} is not a label; expected {low} to {num_labels - 1} "
            f"for {num_labels} labels"
        )
