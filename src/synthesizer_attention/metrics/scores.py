"""Every metric by name: the function that scores it, its name in reports and its margin."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.bleu import bleu_from_statistics, chrf_from_statistics
from synthesizer_attention.metrics.classification import (
    f1_from_statistics,
    macro_f1_from_statistics,
    matthews_from_statistics,
)
from synthesizer_attention.metrics.correlation import correlation_from_statistics
from synthesizer_attention.metrics.embedding import EMBEDDING
from synthesizer_attention.metrics.language_model import (
    bits_per_byte_from_statistics,
    perplexity_from_statistics,
    word_perplexity_from_statistics,
)
from synthesizer_attention.metrics.per_example import (
    Statistics,
    Total,
    percent_from_statistics,
    require_examples,
)
from synthesizer_attention.metrics.rouge import ROUGE


class Metric(NamedTuple):
    """What is known of a metric by its name."""

    score: Callable[[Total], float]  # of its statistics, summed over examples
    shown: str = ""  # as papers write it; by default its name with spaces
    margin: float = 1.0  # points that still count as no worse; at most 2 % of dot's value
    higher_is_better: bool = True


def _percent(shown: str = "", margin: float = 1.0) -> Metric:
    return Metric(percent_from_statistics, shown, margin)


def _loss(score: Callable[[Total], float]) -> Metric:
    return Metric(score, higher_is_better=False)


METRICS = {
    "bleu": Metric(bleu_from_statistics, "BLEU", 0.5),
    "bleu1": Metric(bleu_from_statistics, "BLEU-1", 0.5),
    "bleu4": Metric(bleu_from_statistics, "BLEU-4", 0.5),
    "chrf": Metric(chrf_from_statistics, "chrF", 0.5),
    "perplexity": _loss(perplexity_from_statistics),
    "word_perplexity": _loss(word_perplexity_from_statistics),
    "bits_per_byte": _loss(bits_per_byte_from_statistics),
    **{name: _percent(margin=0.5) for name in ROUGE},
    "rougeL": _percent("ROUGE-L", 0.5),
    "meteor15_no_wordnet": _percent(margin=0.5),
    "cider": _percent(),
    EMBEDDING: _percent(),
    "accuracy": _percent("accuracy, %"),
    "accuracy_matched": _percent(),
    "accuracy_mismatched": _percent(),
    "token_accuracy": _percent("token accuracy, %"),
    "exact_match": _percent(),
    "token_f1": _percent(),
    "matthews": Metric(matthews_from_statistics),
    "f1": Metric(f1_from_statistics),
    "f1a": Metric(f1_from_statistics),
    "macro_f1": Metric(macro_f1_from_statistics),
    "pearson": Metric(correlation_from_statistics),
    "spearman": Metric(correlation_from_statistics),
}
"""Every metric: its score, its name in reports, its default margin. Add your own here."""


def shown(name: str) -> str:
    """A metric as a report writes it."""
    found = METRICS.get(name)
    return found.shown if found and found.shown else name.replace("_", " ")


def base_metric(name: str) -> str:
    """What scores a metric of a mixture: 'glue_cola_matthews' is scored as 'matthews'."""
    return name if name in METRICS else name.split("_", 2)[-1]


def score(name: str, statistics: Statistics) -> float:
    """The metric called name over all rows of its statistics."""
    if name not in METRICS:
        raise UserError(f"unknown metric '{name}'; choose from {', '.join(METRICS)}")
    require_examples(len(statistics))
    return METRICS[name].score(statistics.sum(axis=0, dtype=np.float64))  # a file's are float32
