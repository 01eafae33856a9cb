"""Rows of numbers per example, and the scores of labels and of numbers made from them.

A `*_statistics` function returns (examples, columns); the sum of any choice of its rows, with
repetition, goes into the matching `*_from_statistics`. So a bootstrap never sees a text again.

Confusion columns: (labels, labels + 1) flattened, rows the target, columns the prediction; the last
column counts answers that name no label (prediction -1), which are always wrong. Correlation
columns: 1, x, y, x^2, y^2, xy, with x and y moved to zero mean and unit spread.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synthesizer_attention.errors import UserError

Statistics = NDArray[Any]  # (examples, columns)
Total = NDArray[Any]  # (columns,), the sum over examples

DOCUMENTS = "documents"  # in statistics.npz: (examples,), which examples belong to one document
NO_LABEL = -1
_CONSTANT = 1e-12  # of a spread of 1: what rounding leaves of none


def require_equal(predictions: int, targets: int) -> None:
    """Refuse predictions that do not pair with their targets, and refuse none at all."""
    if predictions != targets:
        raise UserError(
            f"{predictions:,} predictions and {targets:,} targets; they must pair one to one"
        )
    require_examples(targets)


def require_examples(count: int) -> None:
    """Refuse to score nothing."""
    if count == 0:
        raise UserError("no examples to score; expected at least one; check the split's data")


def mean_statistics(scores: Sequence[float]) -> Statistics:
    """Columns (score, 1): a score that is averaged over examples."""
    require_examples(len(scores))
    return np.column_stack([np.asarray(scores, dtype=np.float64), np.ones(len(scores))])


def percent_from_statistics(total: Total) -> float:
    """100 * total[0] / total[1]: a mean or a share, in percent."""
    if total[1] == 0:
        raise UserError("nothing was scored: the count is 0; give at least one scored example")
    return float(100 * total[0] / total[1])


def in_single_precision(arrays: Mapping[str, Statistics]) -> dict[str, Statistics]:
    """The same with float32 for float64, as statistics.npz keeps them: half the size."""
    return {
        name: array.astype(np.float32) if array.dtype == np.float64 else array
        for name, array in arrays.items()
    }


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
    for role, given, low in (("target", target, 0), ("prediction", predicted, NO_LABEL)):
        wrong = given[(given < low) | (given >= num_labels)]
        if len(wrong):
            raise UserError(
                f"{role} {wrong[0]} is not a label; expected {low} to {num_labels - 1} "
                f"for {num_labels} labels"
            )
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


def pearson_statistics(predictions: Sequence[float], targets: Sequence[float]) -> Statistics:
    """Moments of the values."""
    require_equal(len(predictions), len(targets))
    return _moments(_finite(predictions), _finite(targets))


def spearman_statistics(predictions: Sequence[float], targets: Sequence[float]) -> Statistics:
    """Moments of the ranks, ties sharing their mean rank; a bootstrap keeps these ranks."""
    require_equal(len(predictions), len(targets))
    return _moments(_ranks(_finite(predictions)), _ranks(_finite(targets)))


def correlation_from_statistics(total: Total) -> float:
    """100 times the correlation; 0 where one side is constant, which leaves it undefined."""
    count, x, y, xx, yy, xy = (float(value) for value in total)
    spread_x, spread_y = xx / count - (x / count) ** 2, yy / count - (y / count) ** 2
    if min(spread_x, spread_y) <= _CONSTANT:
        return 0.0
    return 100 * (xy / count - x * y / count**2) / math.sqrt(spread_x * spread_y)


def _moments(x: Statistics, y: Statistics) -> Statistics:
    x, y = _standardize(x), _standardize(y)
    return np.column_stack([np.ones(len(x)), x, y, x * x, y * y, x * y])


def _standardize(x: Statistics) -> Statistics:
    if np.ptp(x) == 0:
        return np.zeros_like(x)
    centred = (x - x.mean()) / np.abs(x - x.mean()).max()
    return np.asarray(centred / centred.std())


def _ranks(x: Statistics) -> Statistics:
    _, group, sizes = np.unique(x, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(sizes) - (sizes - 1) / 2)[group])


def _finite(values: Sequence[float]) -> Statistics:
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        index = int(np.flatnonzero(~np.isfinite(array))[0])
        raise UserError(
            f"example {index} has the value {array[index]}; correlations need finite numbers"
        )
    return array
