"""BLEU and chrF, counted and scored by sacrebleu.

BLEU columns: hypothesis length, reference length, matches per order, totals per order.
chrF columns: hypothesis, reference and matching n-grams, three per character order.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from synthesizer_attention.metrics.per_example import Statistics, Total
from synthesizer_attention.metrics.tokens import Reference, pair

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.bleu import BLEU


def bleu_statistics(
    hypotheses: Sequence[str], references: Sequence[Reference], *, max_order: int = 4
) -> Statistics:
    """Count the n-gram matches up to max_order and both lengths: 2 + 2 max_order columns."""
    return _count(_bleu(max_order), hypotheses, references)


def bleu_from_statistics(total: Total) -> float:
    """Corpus BLEU, 0 to 100, of the order that the number of columns tells."""
    from sacrebleu.metrics.bleu import BLEU

    hypothesis_length, reference_length, *counts = (int(count) for count in total)
    order = len(counts) // 2
    return BLEU.compute_bleu(
        counts[:order],
        counts[order:],
        hypothesis_length,
        reference_length,
        smooth_method="exp",
        max_ngram_order=order,
    ).score


def bleu_signature(references: Sequence[Reference], *, max_order: int = 4) -> str:
    """sacrebleu's signature, with the order in front where it is not 4 (sacrebleu omits it)."""
    signature = _sign(_bleu(max_order), references)
    return signature if max_order == 4 else f"order:{max_order}|{signature}"


def chrf_statistics(hypotheses: Sequence[str], references: Sequence[Reference]) -> Statistics:
    """Count character n-grams of orders 1 to 6: 18 columns."""
    from sacrebleu.metrics.chrf import CHRF

    return _count(CHRF(), hypotheses, references)


def chrf_from_statistics(total: Total) -> float:
    """Corpus chrF2, 0 to 100."""
    from sacrebleu.metrics.chrf import CHRF

    return float(CHRF()._compute_score_from_stats([int(count) for count in total]).score)


def chrf_signature(references: Sequence[Reference]) -> str:
    """sacrebleu's signature of chrF."""
    from sacrebleu.metrics.chrf import CHRF

    return _sign(CHRF(), references)


def _bleu(max_order: int) -> "BLEU":
    from sacrebleu.metrics.bleu import BLEU

    # force only silences a warning about texts that end in " .", as dialogue corpora do
    return BLEU(max_ngram_order=max_order, force=True)


def _count(
    metric: "Metric", hypotheses: Sequence[str], references: Sequence[Reference]
) -> Statistics:
    pairs = pair(hypotheses, references)
    streams = list(zip_longest(*(alternatives for _, alternatives in pairs)))
    # the entry that sacrebleu's own bootstrap takes; it has no public one for chrF's counts
    counts = metric._extract_corpus_statistics([hypothesis for hypothesis, _ in pairs], streams)
    return np.array(counts, dtype=np.int64)


def _sign(metric: "Metric", references: Sequence[Reference]) -> str:
    """Sign after scoring a placeholder: a signature depends on the number of references alone."""
    counts = {1 if isinstance(reference, str) else len(reference) for reference in references}
    _count(metric, ["a"] * len(counts), [["a"] * count for count in counts])
    return str(metric.get_signature())
