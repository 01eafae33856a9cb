"""METEOR 1.5 for English (Denkowski and Lavie 2014) without WordNet: exact and stem matches.

Synonyms and paraphrases need files that are not shipped here.

    P = sum of w over matched words of the hypothesis / sum over all of them; R: of the reference
        a content word counts DELTA, a function word 1 - DELTA; a stem match STEM times that
    F = P R / (ALPHA P + (1 - ALPHA) R)
    score = F (1 - GAMMA (chunks / matches)^BETA)     no penalty where both texts are the same
"""

from collections.abc import Sequence
from typing import NamedTuple

from synthesizer_attention.metrics.per_example import Statistics, mean_statistics
from synthesizer_attention.metrics.tokens import Reference, pair, words

ALPHA, BETA, GAMMA, DELTA, STEM = 0.85, 0.2, 0.6, 0.75, 0.6  # METEOR 1.5, English, ranking
BEAM = 40  # alignments kept while one is searched

_CLOSED = """a an the this that these those i me my mine you your yours he him his she her hers it
its we us our ours they them their theirs who whom whose which what when where why how there here
and or but nor so if because as than while though although unless until since whether
of to in on at by for from with about into over under after before between through during
against among up down out off is am are was were be been being do does did done doing
have has had having will would shall should can could may might must not no
all any some each every both other such more most much many also too very just then now
. , ; : ? ! ' " ( ) -"""
FUNCTION_WORDS = frozenset(_CLOSED.split())
"""English words of closed classes, and punctuation: our list, not the one of the original."""


def meteor15_no_wordnet_statistics(
    hypotheses: Sequence[str], references: Sequence[Reference]
) -> Statistics:
    """The score of version 1.5, columns (score, 1); of several references the best counts."""
    return mean_statistics(
        [
            max(_meteor15(words(hypothesis), words(text)) for text in texts)
            for hypothesis, texts in pair(hypotheses, references)
        ]
    )


def meteor15_no_wordnet_signature() -> str:
    """What a METEOR 1.5 figure needs to be repeated."""
    from importlib.metadata import version

    return (
        f"1.5 en rank, exact+snowball, no synonyms, no paraphrases|alpha:{ALPHA}|beta:{BETA}"
        f"|gamma:{GAMMA}|delta:{DELTA}|stem:{STEM}|function words:ours"
        f"|version:nltk-{version('nltk')}"
    )


def _meteor15(hypothesis: list[str], reference: list[str]) -> float:
    found = _align(hypothesis, reference)
    if not found.matches:
        return 0.0
    whole = len(found.matches) == len(hypothesis) == len(reference) and found.chunks == 1
    penalty = 0.0 if whole else GAMMA * (found.chunks / len(found.matches)) ** BETA
    weight = [1.0 if hypothesis[i] == reference[j] else STEM for i, j in found.matches]
    p, r = (
        sum(w * _worth(side[match[at]]) for w, match in zip(weight, found.matches, strict=True))
        / sum(map(_worth, side))
        for at, side in enumerate((hypothesis, reference))
    )
    return p * r / (ALPHA * p + (1 - ALPHA) * r) * (1 - penalty)


def _worth(word: str) -> float:
    return 1 - DELTA if word in FUNCTION_WORDS else DELTA


class _Alignment(NamedTuple):
    """Words matched so far, as (hypothesis, reference) indices in order."""

    matches: tuple[tuple[int, int], ...] = ()
    credit: float = 0.0  # 1 for an exact match, 0.5 for a stem
    chunks: int = 0  # runs of matches that follow each other in both texts
    distance: int = 0

    def add(self, i: int, j: int, credit: float) -> "_Alignment":
        follows = self.matches[-1:] == ((i - 1, j - 1),)
        return _Alignment(
            (*self.matches, (i, j)),
            self.credit + credit,
            self.chunks + (not follows),
            self.distance + abs(i - j),
        )


def _align(hypothesis: list[str], reference: list[str]) -> _Alignment:
    """The alignment of most credit, then of fewest chunks, then of least distance; by beam."""
    from nltk.stem.snowball import EnglishStemmer

    stem = EnglishStemmer().stem
    stems, beam = [stem(word) for word in reference], [_Alignment()]
    for i, word in enumerate(hypothesis):
        own = stem(word)
        candidates = [
            (j, 1.0 if word == reference[j] else 0.5)
            for j in range(len(reference))
            if own == stems[j] or word == reference[j]
        ]
        grown = [
            alignment.add(i, j, credit)
            for alignment in beam
            for j, credit in candidates
            if all(j != taken for _, taken in alignment.matches)
        ]
        beam = sorted(beam + grown, key=lambda a: (-a.credit, a.chunks, a.distance))[:BEAM]
    return beam[0]
