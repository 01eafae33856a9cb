"""Every score of the paper's tasks, as plain functions on numbers and texts (no torch).

A metric is a pair: `*_statistics` makes one row of numbers per example, `*_from_statistics`
turns the sum of rows into the score. SCORES says which function reads which metric's rows.
Shares, correlations and similarities are in percent, as papers print them.
"""

from collections.abc import Callable

from synthesizer.errors import UserError
from synthesizer.metrics.bleu import (
    bleu_from_statistics,
    bleu_signature,
    bleu_statistics,
    chrf_from_statistics,
    chrf_signature,
    chrf_statistics,
)
from synthesizer.metrics.cider import cider_signature, cider_statistics
from synthesizer.metrics.classification import (
    NO_LABEL,
    accuracy_statistics,
    confusion_statistics,
    f1_from_statistics,
    macro_f1_from_statistics,
    matthews_from_statistics,
    token_accuracy_statistics,
)
from synthesizer.metrics.correlation import (
    correlation_from_statistics,
    pearson_statistics,
    spearman_statistics,
)
from synthesizer.metrics.embedding import (
    EMBEDDING,
    embedding_statistics,
    train_vectors,
    vectors_signature,
)
from synthesizer.metrics.glue import (
    GLUE,
    SUPERGLUE,
    Average,
    glue_average,
    multirc_statistics,
    normalize_answer,
    record_statistics,
    superglue_average,
)
from synthesizer.metrics.language_model import (
    bigram_statistics,
    bits_per_byte_from_statistics,
    fit_bigram,
    interpolation_weights,
    language_model_statistics,
    perplexity_from_statistics,
    word_perplexity_from_statistics,
)
from synthesizer.metrics.meteor import meteor_no_wordnet_signature, meteor_no_wordnet_statistics
from synthesizer.metrics.per_example import (
    Statistics,
    Total,
    mean_statistics,
    percent_from_statistics,
    require_examples,
)
from synthesizer.metrics.rouge import ROUGE, rouge_signature, rouge_statistics, split_sentences
from synthesizer.metrics.tokens import Reference, words

SCORES: dict[str, Callable[[Total], float]] = {
    "bleu": bleu_from_statistics,
    "bleu1": bleu_from_statistics,
    "bleu4": bleu_from_statistics,
    "chrf": chrf_from_statistics,
    "perplexity": perplexity_from_statistics,
    "word_perplexity": word_perplexity_from_statistics,
    "bits_per_byte": bits_per_byte_from_statistics,
    **dict.fromkeys(ROUGE, percent_from_statistics),
    "meteor_no_wordnet": percent_from_statistics,
    "cider": percent_from_statistics,
    **dict.fromkeys(EMBEDDING, percent_from_statistics),
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


def score(name: str, statistics: Statistics) -> float:
    """The metric called name over all rows of its statistics."""
    if name not in SCORES:
        raise UserError(f"unknown metric '{name}'; choose from {', '.join(SCORES)}")
    require_examples(len(statistics))
    return SCORES[name](statistics.sum(axis=0))


__all__ = [
    "EMBEDDING",
    "GLUE",
    "NO_LABEL",
    "ROUGE",
    "SCORES",
    "SUPERGLUE",
    "Average",
    "Reference",
    "Statistics",
    "Total",
    "accuracy_statistics",
    "bigram_statistics",
    "bits_per_byte_from_statistics",
    "bleu_from_statistics",
    "bleu_signature",
    "bleu_statistics",
    "chrf_from_statistics",
    "chrf_signature",
    "chrf_statistics",
    "cider_signature",
    "cider_statistics",
    "confusion_statistics",
    "correlation_from_statistics",
    "embedding_statistics",
    "f1_from_statistics",
    "fit_bigram",
    "glue_average",
    "interpolation_weights",
    "language_model_statistics",
    "macro_f1_from_statistics",
    "matthews_from_statistics",
    "mean_statistics",
    "meteor_no_wordnet_signature",
    "meteor_no_wordnet_statistics",
    "multirc_statistics",
    "normalize_answer",
    "pearson_statistics",
    "percent_from_statistics",
    "perplexity_from_statistics",
    "record_statistics",
    "rouge_signature",
    "rouge_statistics",
    "score",
    "spearman_statistics",
    "split_sentences",
    "superglue_average",
    "token_accuracy_statistics",
    "train_vectors",
    "vectors_signature",
    "word_perplexity_from_statistics",
    "words",
]
