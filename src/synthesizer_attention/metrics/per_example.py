"""Per-example numbers whose sums are all that a score needs.

A `*_statistics` function returns (examples, columns); the sum of any choice of its rows, with
repetition, goes into the matching `*_from_statistics`. So a bootstrap never sees a text again.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synthesizer_attention.errors import UserError

Statistics = NDArray[Any]  # (examples, columns)
Total = NDArray[Any]  # (columns,), the sum over examples

DOCUMENTS = "documents"  # in statistics.npz: (examples,), which examples belong to one document


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


def require_examples(count: int) -> None:
    """Refuse to score nothing."""
    if count == 0:
        raise UserError("no examples to score; expected at least one; check the split's data")


def require_equal(predictions: int, targets: int) -> None:
    """Refuse predictions that do not pair with their targets, and refuse none at all."""
    if predictions != targets:
        raise UserError(
            f"{predictions:,} predictions and {targets:,} targets; they must pair one to one"
        )
    require_examples(targets)
