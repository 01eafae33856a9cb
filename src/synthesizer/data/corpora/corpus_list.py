"""Corpora that need no download: each makes its own train, validation and test rows."""

from collections.abc import Callable

from synthesizer.data.corpora import (
    grammar_ende,
    listops,
    listops_short,
    python_docs,
    recall,
    shift,
)
from synthesizer.data.corpora.drawing import Splits

CORPORA: dict[str, Callable[..., Splits]] = {
    "python-docs": python_docs.splits,
    "grammar-ende": grammar_ende.splits,
    "listops": listops.splits,
    "listops-short": listops_short.splits,
    "shift": shift.splits,
    "recall": recall.splits,
}
