"""Corpora that need no download: each makes its own train, validation and test rows."""

from collections.abc import Callable

from synthesizer_attention.data.corpora import (
    distance_copying,
    listops,
    multi_query_recall,
    python_docs,
    recall,
    selective_copying,
    shift,
)
from synthesizer_attention.data.corpora.drawing import DRAW, Splits
from synthesizer_attention.data.corpora.grammar_ende import sentences

CORPORA: dict[str, Callable[..., Splits]] = {
    "python-docs": python_docs.splits,
    "grammar-ende": sentences.splits,
    "listops": listops.splits,
    "listops-short": listops.short_splits,
    "shift": shift.splits,
    "recall": recall.splits,
    "multi-query-recall": multi_query_recall.splits,
    "noisy-recall": multi_query_recall.noisy_splits,
    "selective-copying": selective_copying.splits,
    "distance-copying": distance_copying.splits,
}
GRADED = ("multi-query-recall", "noisy-recall", "selective-copying", "distance-copying")
"""Corpora that have a difficulty."""
DRAWN = tuple(name for name in CORPORA if name != "python-docs")
"""Corpora that are drawn by chance: another draw has other examples in every split."""


def describe_corpus(name: str, difficulty: int | None = None) -> str:
    """A corpus as records name it, with its draw and difficulty: 'recall, draw 1'."""
    drawn = [f"draw {DRAW}"] if name in DRAWN else []
    graded = [f"difficulty {difficulty}"] if difficulty is not None else []
    return ", ".join([name, *drawn, *graded])
