"""CIDEr-D, which is what the COCO evaluation computes under the name CIDEr.

For n = 1 to 4, w(g) = count(g) * log(examples / examples with g in a reference); then
10 * mean over n, mean over references, of exp(-(length difference)^2 / 72)
    * sum_g min(w_hyp(g), w_ref(g)) w_ref(g) / (|w_hyp| |w_ref|).
"""

import math
from collections import Counter
from collections.abc import Sequence

from synthesizer_attention.metrics.per_example import Statistics, mean_statistics
from synthesizer_attention.metrics.tokens import Reference, pair, words

_ORDERS = range(1, 5)
_LENGTH_SPREAD = 6.0

NGrams = Counter[tuple[str, ...]]


def cider_statistics(hypotheses: Sequence[str], references: Sequence[Reference]) -> Statistics:
    """CIDEr-D per example, columns (score, 1).

    The document frequencies are those of all references given here: a bootstrap keeps them.
    """
    pairs = [
        (words(hypothesis), [words(text) for text in texts])
        for hypothesis, texts in pair(hypotheses, references)
    ]
    found_in = Counter(
        gram for _, texts in pairs for gram in set().union(*(_grams(text) for text in texts))
    )
    return mean_statistics(
        [
            sum(_similarity(hypothesis, text, found_in, len(pairs)) for text in texts) / len(texts)
            for hypothesis, texts in pairs
        ]
    )


def cider_signature() -> str:
    """What a CIDEr figure needs to be repeated."""
    return "cider-d|n:4|sigma:6|idf:references of the scored set|words:lower, with punctuation"


def _grams(tokens: list[str], orders: Sequence[int] = _ORDERS) -> NGrams:
    return Counter(
        tuple(tokens[start : start + n]) for n in orders for start in range(len(tokens) - n + 1)
    )


def _similarity(
    hypothesis: list[str], reference: list[str], found_in: NGrams, examples: int
) -> float:
    # the COCO code measures length in bigrams
    difference = max(len(hypothesis) - 1, 0) - max(len(reference) - 1, 0)
    closeness = math.exp(-(difference**2) / (2 * _LENGTH_SPREAD**2))
    cosines = [
        _clipped_cosine(
            _weigh(_grams(hypothesis, [n]), found_in, examples),
            _weigh(_grams(reference, [n]), found_in, examples),
        )
        for n in _ORDERS
    ]
    return 10 * closeness * sum(cosines) / len(_ORDERS)


def _weigh(grams: NGrams, found_in: NGrams, examples: int) -> dict[tuple[str, ...], float]:
    return {
        gram: count * (math.log(examples) - math.log(max(1, found_in[gram])))
        for gram, count in grams.items()
    }


def _clipped_cosine(
    hypothesis: dict[tuple[str, ...], float], reference: dict[tuple[str, ...], float]
) -> float:
    product = sum(
        min(weight, reference[gram]) * reference[gram]
        for gram, weight in hypothesis.items()
        if gram in reference
    )
    norms = math.hypot(*hypothesis.values()) * math.hypot(*reference.values())
    return product / norms if norms else 0.0
