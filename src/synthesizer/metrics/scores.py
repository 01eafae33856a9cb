"""Which function turns a metric's summed statistics into its score."""

from collections.abc import Callable

import numpy as np

from synthesizer.errors import UserError
from synthesizer.metrics.bleu import bleu_from_statistics, chrf_from_statistics
from synthesizer.metrics.classification import (
    f1_from_statistics,
    macro_f1_from_statistics,
    matthews_from_statistics,
)
from synthesizer.metrics.correlation import correlation_from_statistics
from synthesizer.metrics.embedding import EMBEDDING
from synthesizer.metrics.language_model import (
    bits_per_byte_from_statistics,
    perplexity_from_statistics,
    word_perplexity_from_statistics,
)
from synthesizer.metrics.per_example import (
    Statistics,
    Total,
    percent_from_statistics,
    require_examples,
)
from synthesizer.metrics.rouge import ROUGE

SCORES: dict[str, Callable[[Total], float]] = {
    "bleu": bleu_from_statistics,
    "bleu1": bleu_from_statistics,
    "bleu4": bleu_from_statistics,
    "chrf": chrf_from_statistics,
    "perplexity": perplexity_from_statistics,
    "word_perplexity": word_perplexity_from_statistics,
    "bits_per_byte": bits_per_byte_from_statistics,
    **dict.fromkeys(ROUGE, percent_from_statistics),
    "meteor15_no_wordnet": percent_from_statistics,
    "cider": percent_from_statistics,
    EMBEDDING: percent_from_statistics,
    "accuracy": percent_from_statistics,
    "accuracy_matched": percent_from_statistics,
    "accuracy_mismatched": percent_from_statistics,
    "token_accuracy": percent_from_statistics,
    "exact_match": percent_from_statistics,
    "token_f1": percent_from_statistics,
    "matthews": matthews_from_statistics,
    "f1": f1_from_statistics,
    "f1a": f1_from_statistics,
    "macro_f1": macro_f1_from_statistics,
    "pearson": correlation_from_statistics,
    "spearman": correlation_from_statistics,
}


def base_metric(name: str) -> str:
    """What scores a metric of a mixture: 'glue_cola_matthews' is scored as 'matthews'."""
    return name if name in SCORES else name.split("_", 2)[-1]


def score(name: str, statistics: Statistics) -> float:
    """The metric called name over all rows of its statistics."""
    if name not in SCORES:
        raise UserError(f"unknown metric '{name}'; choose from {', '.join(SCORES)}")
    require_examples(len(statistics))
    return SCORES[name](statistics.sum(axis=0, dtype=np.float64))  # a file's are float32
