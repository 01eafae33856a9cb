"""Corpora that need no download: each makes its own train, validation and test rows."""

from collections.abc import Callable

from synthesizer.data.corpora import listops, python_docs, recall, shift
from synthesizer.data.corpora.drawing import Splits
from synthesizer.data.corpora.grammar_ende import sentences

CORPORA: dict[str, Callable[..., Splits]] = {
    "python-docs": python_docs.splits,
    "grammar-ende": sentences.splits,
    "listops": listops.splits,
    "listops-short": listops.short_splits,
    "shift": shift.splits,
    "recall": recall.splits,
}
