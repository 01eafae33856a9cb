"""Pearson and Spearman correlation from per-example moments.

Columns: 1, x, y, x^2, y^2, xy, with x and y moved to zero mean and unit spread.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.per_example import Statistics, Total, require_equal

_CONSTANT = 1e-12  # of a spread of 1: what rounding leaves of none


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


def _moments(x: NDArray[np.float64], y: NDArray[np.float64]) -> Statistics:
    x, y = _standardize(x), _standardize(y)
    return np.column_stack([np.ones(len(x)), x, y, x * x, y * y, x * y])


def _standardize(x: NDArray[np.float64]) -> NDArray[np.float64]:
    if np.ptp(x) == 0:
        return np.zeros_like(x)
    centred = (x - x.mean()) / np.abs(x - x.mean()).max()
    return np.asarray(centred / centred.std())


def _ranks(x: NDArray[np.float64]) -> NDArray[np.float64]:
    _, group, sizes = np.unique(x, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(sizes) - (sizes - 1) / 2)[group])


def _finite(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if not np.isfinite(array).all():
        index = int(np.flatnonzero(~np.isfinite(array))[0])
        raise UserError(
            f"example {index} has the value {array[index]}; correlations need finite numbers"
        )
    return array
