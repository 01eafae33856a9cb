"""What every metric keeps, whatever it measures: rows add up to the score of their examples."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.glue import record_statistics
from synthesizer_attention.metrics.labels import (
    accuracy_statistics,
    confusion_statistics,
    in_single_precision,
    pearson_statistics,
    spearman_statistics,
)
from synthesizer_attention.metrics.language_model import language_model_statistics
from synthesizer_attention.metrics.scores import METRICS, score
from synthesizer_attention.metrics.text import (
    EMBEDDING,
    ROUGE,
    bleu_statistics,
    chrf_statistics,
    cider_statistics,
    embedding_statistics,
    meteor_statistics,
    rouge_statistics,
    train_vectors,
)

HYPOTHESES = ["the cat sat on the mat.", "a dog barks!", "", "Größe zählt", "yes: a b c d. no."]
REFERENCES = ["the cat is on a mat.", "dogs bark.", "quiet", "Größe zählt nicht", "a b c d. So?"]
VECTORS = train_vectors(HYPOTHESES + REFERENCES, size=3)
NUMBERS = [0.5, 2.0, 2.0, 3.5, 1.0], [1.0, 0.5, 2.5, 4.0, 4.0]
LABELS = [1, 0, 2, -1, 1], [1, 1, 2, 0, 0]
BINARY = [1, 0, 1, -1, 1], [1, 1, 1, 0, 0]
WINDOWS = [3.0, 5.5, 0.5, 2.0, 7.25], [4, 6, 1, 3, 9], [2, 3, 1, 2, 5], [9, 14, 2, 7, 20]


def of_texts(make):
    return lambda at: make([HYPOTHESES[i] for i in at], [REFERENCES[i] for i in at])


def of_pairs(make, pairs, **options):
    return lambda at: make(*([column[i] for i in at] for column in pairs), **options)


def rouge(name):
    return of_texts(partial(rouge_statistics, name))


def record(name):
    return of_texts(lambda *texts: record_statistics(*texts)[name])


def tokens(at):
    rows = np.array([[1, 2, 3], [4, 5, 6], [1, 1, 1], [2, 2, 2], [7, 8, 9]])[list(at)]
    wanted = np.array([[1, 2, 4], [4, -100, -100], [1, 0, 1], [2, 2, 2], [0, 0, 9]])[list(at)]
    scored = wanted != -100
    return np.column_stack([((rows == wanted) & scored).sum(1), scored.sum(1)]).astype(float)


STATISTICS = {
    "bleu": of_texts(bleu_statistics),
    "bleu1": of_texts(lambda *texts: bleu_statistics(*texts, max_order=1)),
    "bleu4": of_texts(bleu_statistics),
    "chrf": of_texts(chrf_statistics),
    **dict.fromkeys(
        ("perplexity", "word_perplexity", "bits_per_byte"),
        of_pairs(language_model_statistics, WINDOWS),
    ),
    **{name: rouge(name) for name in ROUGE},
    "meteor15_no_wordnet": of_texts(meteor_statistics),
    "cider": of_texts(cider_statistics),
    EMBEDDING: of_texts(lambda *texts: embedding_statistics(*texts, VECTORS)),
    **dict.fromkeys(
        ("accuracy", "accuracy_matched", "accuracy_mismatched"),
        of_pairs(accuracy_statistics, LABELS),
    ),
    "token_accuracy": tokens,
    "exact_match": record("exact_match"),
    "token_f1": record("token_f1"),
    "matthews": of_pairs(confusion_statistics, LABELS, num_labels=3),
    "f1": of_pairs(confusion_statistics, BINARY, num_labels=2),
    "f1a": of_pairs(confusion_statistics, BINARY, num_labels=2),
    "macro_f1": of_pairs(confusion_statistics, LABELS, num_labels=3),
    "pearson": of_pairs(pearson_statistics, NUMBERS),
    "spearman": of_pairs(spearman_statistics, NUMBERS),
}
every_metric = pytest.mark.parametrize("name", METRICS)


@every_metric
def test_a_metric_has_one_row_per_example_and_a_finite_score(name):
    statistics = STATISTICS[name](range(5))
    assert len(statistics) == 5
    assert np.isfinite(score(name, statistics))


@every_metric
def test_rows_in_single_precision_as_a_run_keeps_them_score_the_same(name):
    rows = np.tile(STATISTICS[name](range(5)), (1000, 1))
    kept = in_single_precision({name: rows})[name]
    assert kept.nbytes < rows.nbytes or rows.dtype != np.float64
    assert score(name, kept) == pytest.approx(score(name, rows), rel=1e-6)


@every_metric
def test_examples_counted_twice_in_another_order_change_no_score(name):
    statistics = STATISTICS[name](range(5))
    twice = np.concatenate([statistics[::-1], statistics])
    assert score(name, twice) == pytest.approx(score(name, statistics))


@pytest.mark.parametrize("name", sorted(METRICS.keys() - {"cider", "spearman"}))
def test_rows_drawn_with_repetition_score_as_their_examples_do(name):
    """CIDEr keeps the document frequencies, Spearman the ranks of the whole set."""
    drawn = [4, 1, 1, 0, 3]
    rows = STATISTICS[name](range(5))[drawn]
    assert score(name, rows) == pytest.approx(score(name, STATISTICS[name](drawn)), abs=1e-9)


@every_metric
def test_scoring_nothing_is_an_error(name):
    if name != "token_accuracy":  # whose rows the tasks count themselves
        with pytest.raises(UserError, match="no examples to score; expected at least one"):
            STATISTICS[name]([])
    with pytest.raises(UserError, match="no examples to score; expected at least one"):
        score(name, STATISTICS[name](range(5))[:0])


def test_predictions_that_do_not_pair_with_targets_are_counted_in_the_error():
    message = "2 predictions and 1 targets; they must pair one to one"
    for make in (accuracy_statistics, pearson_statistics):
        with pytest.raises(UserError, match=message):
            make([1, 0], [1])
    with pytest.raises(UserError, match=message):
        bleu_statistics(["a", "b"], ["a"])


def test_an_example_without_reference_is_named():
    with pytest.raises(UserError, match="example 1 has no reference; give each example at least"):
        rouge_statistics("rougeL", ["a", "b"], [["a"], []])


def test_an_unknown_metric_lists_the_known_ones():
    with pytest.raises(UserError, match="unknown metric 'blue'; choose from bleu, bleu1"):
        score("blue", np.ones((1, 2)))


def test_importing_metrics_imports_no_heavy_library():
    code = "import sys, synthesizer_attention.metrics; print(*sys.modules)"
    path = f"import sys; sys.path[:0] = {sys.path!r}; "
    run = subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True)
    heavy = {"torch", "nltk", "sacrebleu", "rouge_score", "scipy", "sklearn", "transformers"}
    assert run.returncode == 0, run.stderr
    assert not heavy & set(run.stdout.split())
