"""METEOR by nltk without WordNet: exact and stem matches, no synonyms."""

from collections.abc import Sequence

from synthesizer.metrics.per_example import Statistics, mean_statistics
from synthesizer.metrics.tokens import Reference, pair, words


class _NoWordNet:
    """Stands where nltk asks for synonyms, so that nothing is looked up or downloaded."""

    def synsets(self, word: str) -> list[str]:
        return []


def meteor_no_wordnet_statistics(
    hypotheses: Sequence[str], references: Sequence[Reference]
) -> Statistics:
    """F (9 : 1 for recall) times 1 - 0.5 (chunks / matches)^3, columns (score, 1).

    Of several references the best counts. Scores are below those of METEOR with synonyms.
    """
    from nltk.translate.meteor_score import meteor_score

    synonyms = _NoWordNet()
    return mean_statistics(
        [
            meteor_score([words(text) for text in texts], words(hypothesis), wordnet=synonyms)
            for hypothesis, texts in pair(hypotheses, references)
        ]
    )


def meteor_no_wordnet_signature() -> str:
    """What a METEOR figure needs to be repeated."""
    from importlib.metadata import version

    return f"exact+porter, no synonyms|alpha:0.9|beta:3|gamma:0.5|version:nltk-{version('nltk')}"
