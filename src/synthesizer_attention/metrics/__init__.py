"""Every score of the paper's tasks, as plain functions on numbers and texts (no torch).

A metric is a pair: `*_statistics` makes one row of numbers per example, `*_from_statistics`
turns the sum of rows into the score. scores.py says which function reads which metric's rows.
Shares, correlations and similarities are in percent, as papers print them.
"""

from synthesizer_attention.metrics.bleu import (
    bleu_signature,
    bleu_statistics,
    chrf_signature,
    chrf_statistics,
)
from synthesizer_attention.metrics.cider import cider_signature, cider_statistics
from synthesizer_attention.metrics.classification import (
    NO_LABEL,
    accuracy_statistics,
    confusion_statistics,
    macro_f1_from_statistics,
)
from synthesizer_attention.metrics.correlation import pearson_statistics, spearman_statistics
from synthesizer_attention.metrics.embedding import (
    EMBEDDING,
    embedding_statistics,
    train_vectors,
    vectors_signature,
)
from synthesizer_attention.metrics.glue import (
    GLUE,
    SUPERGLUE,
    glue_average,
    multirc_statistics,
    record_statistics,
    superglue_average,
)
from synthesizer_attention.metrics.language_model import (
    bigram_statistics,
    fit_bigram,
    language_model_statistics,
    token_bigram_perplexity,
)
from synthesizer_attention.metrics.meteor import (
    meteor15_no_wordnet_signature,
    meteor15_no_wordnet_statistics,
)
from synthesizer_attention.metrics.per_example import (
    DOCUMENTS,
    Statistics,
    Total,
    in_single_precision,
    percent_from_statistics,
)
from synthesizer_attention.metrics.rouge import ROUGE, rouge_signature, rouge_statistics
from synthesizer_attention.metrics.scores import METRICS, Metric, base_metric, score, shown

__all__ = [
    "DOCUMENTS",
    "EMBEDDING",
    "GLUE",
    "METRICS",
    "NO_LABEL",
    "ROUGE",
    "SUPERGLUE",
    "Metric",
    "Statistics",
    "Total",
    "accuracy_statistics",
    "base_metric",
    "bigram_statistics",
    "bleu_signature",
    "bleu_statistics",
    "chrf_signature",
    "chrf_statistics",
    "cider_signature",
    "cider_statistics",
    "confusion_statistics",
    "embedding_statistics",
    "fit_bigram",
    "glue_average",
    "in_single_precision",
    "language_model_statistics",
    "macro_f1_from_statistics",
    "meteor15_no_wordnet_signature",
    "meteor15_no_wordnet_statistics",
    "multirc_statistics",
    "pearson_statistics",
    "percent_from_statistics",
    "record_statistics",
    "rouge_signature",
    "rouge_statistics",
    "score",
    "shown",
    "spearman_statistics",
    "superglue_average",
    "token_bigram_perplexity",
    "train_vectors",
    "vectors_signature",
]
