"""Translation word by word: the baseline that ignores order and agreement."""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import islice, product

from synthesizer_attention.data.corpora.drawing import Row

_WORD = re.compile(r"\w+")
_ENOUGH_ROWS = 5_000


def dictionary_baseline(
    rows: Iterable[Row], sources: Iterable[str], *, source: str = "en", target: str = "de"
) -> list[str]:
    """Each source word becomes the one target word it keeps company with in the training rows."""
    dictionary = _dictionary(rows, source, target)
    return [_WORD.sub(lambda word: dictionary.get(word[0], word[0]), text) for text in sources]


def _dictionary(rows: Iterable[Row], source: str, target: str) -> dict[str, str]:
    """Link the pair with the greatest Dice coefficient, then the next; no word is linked twice."""
    here: Counter[str] = Counter()
    there: Counter[str] = Counter()
    together: Counter[tuple[str, str]] = Counter()
    for row in islice(rows, _ENOUGH_ROWS):
        ours, theirs = set(_WORD.findall(row[source])), set(_WORD.findall(row[target]))
        here.update(ours)
        there.update(theirs)
        together.update(product(ours, theirs))
    dice = {pair: count / (here[pair[0]] + there[pair[1]]) for pair, count in together.items()}
    linked: dict[str, str] = {}
    taken: set[str] = set()
    for word, translation in sorted(dice, key=lambda pair: (-dice[pair], pair)):
        if word not in linked and translation not in taken:
            linked[word] = translation
            taken.add(translation)
    return linked
