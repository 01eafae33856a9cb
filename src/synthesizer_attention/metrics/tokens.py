"""Texts as metrics see them: hypotheses paired with their references, cut into words."""

import re
from collections.abc import Sequence

from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.per_example import require_equal

Reference = str | Sequence[str]  # one text, or several that are equally right

_WORD = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")


def words(text: str) -> list[str]:
    """Cut a lower-cased text into words (inner apostrophes kept) and single punctuation marks."""
    return _WORD.findall(text.lower())


def pair(hypotheses: Sequence[str], references: Sequence[Reference]) -> list[tuple[str, list[str]]]:
    """Pair each hypothesis with the list of its references."""
    require_equal(len(hypotheses), len(references))
    pairs = [
        (hypothesis, [reference] if isinstance(reference, str) else list(reference))
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    for index, (_, alternatives) in enumerate(pairs):
        if not alternatives:
            raise UserError(f"example {index} has no reference; give each example at least one")
    return pairs
