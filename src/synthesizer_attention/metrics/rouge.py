"""ROUGE by rouge_score, Porter stemmer on, F measure, averaged over examples."""

import re
from collections.abc import Sequence

from synthesizer_attention.metrics.per_example import Statistics, mean_statistics
from synthesizer_attention.metrics.tokens import Reference, pair

ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")

_SENTENCE_END = re.compile(r"""([.!?]["'\u201d\u2019)\]]*)\s+""")


def rouge_statistics(
    hypotheses: Sequence[str], references: Sequence[Reference]
) -> dict[str, Statistics]:
    """F of each ROUGE, columns (F, 1); of several references the best counts."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(ROUGE), use_stemmer=True)
    scores = [
        scorer.score_multi([split_sentences(text) for text in texts], split_sentences(hypothesis))
        for hypothesis, texts in pair(hypotheses, references)
    ]
    return {name: mean_statistics([score[name].fmeasure for score in scores]) for name in ROUGE}


def rouge_signature() -> str:
    """What a ROUGE figure needs to be repeated."""
    from importlib.metadata import version

    return f"F|stem:porter|sentences:newline or [.!?]|version:rouge_score-{version('rouge_score')}"


def split_sentences(text: str) -> str:
    """Put each sentence on its own line; only ROUGE-Lsum reads lines."""
    return _SENTENCE_END.sub(r"\1\n", text)
