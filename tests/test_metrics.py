"""What every metric keeps, whatever it measures: rows add up to the score of their examples.

A new metric of labels needs rows of five examples in STATISTICS; all, an oracle in
test_metrics_values.py.
"""

import subprocess
import sys

import numpy as np
import pytest

from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics import glue, labels, language_model, text
from synthesizer_attention.metrics.scores import METRICS, of_task, score

HYPOTHESES = ["the cat sat on the mat.", "a dog barks!", "", "Größe zählt", "yes: a b c d. no."]
REFERENCES = ["the cat is on a mat.", "dogs bark.", "quiet", "Größe zählt nicht", "a b c d. So?"]
VECTORS = text.train_vectors(HYPOTHESES + REFERENCES, size=3)
NUMBERS = [0.5, 2.0, 2.0, 3.5, 1.0], [1.0, 0.5, 2.5, 4.0, 4.0]
LABELS = [1, 0, 2, -1, 1], [1, 1, 2, 0, 0]
BINARY = [1, 0, 1, -1, 1], [1, 1, 1, 0, 0]
WINDOWS = [3.0, 5.5, 0.5, 2.0, 7.25], [4, 6, 1, 3, 9], [2, 3, 1, 2, 5], [9, 14, 2, 7, 20]
TEXTS = HYPOTHESES, REFERENCES


def of(make, columns, **options):
    return lambda at: make(*([column[i] for i in at] for column in columns), **options)


def record(name):
    return of(lambda *texts: glue.record_statistics(*texts)[name], TEXTS)


def tokens(at):
    rows = np.array([[1, 2, 3], [4, 5, 6], [1, 1, 1], [2, 2, 2], [7, 8, 9]])[list(at)]
    wanted = np.array([[1, 2, 4], [4, -100, -100], [1, 0, 1], [2, 2, 2], [0, 0, 9]])[list(at)]
    scored = wanted != -100
    return np.column_stack([((rows == wanted) & scored).sum(1), scored.sum(1)]).astype(float)


WRITTEN = {
    name: of(lambda *texts, metric=metric: metric.measure(*texts, VECTORS), TEXTS)
    for task in ("translation", "summarization", "dialogue")
    for name, metric in of_task(task).items()
}
STATISTICS = {
    **WRITTEN,
    **dict.fromkeys(
        ("perplexity", "word_perplexity", "bits_per_byte"),
        of(language_model.language_model_statistics, WINDOWS),
    ),
    **dict.fromkeys(
        ("accuracy", "accuracy_matched", "accuracy_mismatched"),
        of(labels.accuracy_statistics, LABELS),
    ),
    **dict.fromkeys(
        ("matthews", "macro_f1"), of(labels.confusion_statistics, LABELS, num_labels=3)
    ),
    **dict.fromkeys(("f1", "f1a"), of(labels.confusion_statistics, BINARY, num_labels=2)),
    "token_accuracy": tokens,
    "exact_match": record("exact_match"),
    "token_f1": record("token_f1"),
    "pearson": of(labels.pearson_statistics, NUMBERS),
    "meteor15_no_wordnet": lambda at: text.mean_statistics([float(i) for i in at]),  # older runs
    "spearman": of(labels.spearman_statistics, NUMBERS),
}


@pytest.mark.parametrize("name", METRICS)
def test_rows_of_examples_add_up_to_their_score(name):
    rows = STATISTICS[name](range(5))
    assert len(rows) == 5
    whole = score(name, rows)
    assert np.isfinite(whole)
    assert score(name, np.concatenate([rows[::-1], rows])) == pytest.approx(whole)
    many = np.tile(rows, (1000, 1))
    kept = labels.in_single_precision({name: many})[name]
    assert kept.nbytes < many.nbytes or rows.dtype != np.float64
    assert score(name, kept) == pytest.approx(score(name, many), rel=1e-6), "as a run keeps them"
    if name not in ("cider", "spearman"):  # which keep frequencies and ranks of the whole set
        drawn = [4, 1, 1, 0, 3]
        assert score(name, rows[drawn]) == pytest.approx(
            score(name, STATISTICS[name](drawn)), abs=1e-9
        )
    nothing = pytest.raises(UserError, match="no examples to score; expected at least one")
    if name != "token_accuracy":  # whose rows the tasks count themselves
        with nothing:
            STATISTICS[name]([])
    with nothing:
        score(name, rows[:0])


def test_what_does_not_pair_is_named():
    message = "2 predictions and 1 targets; they must pair one to one"
    for make in (labels.accuracy_statistics, labels.pearson_statistics, text.bleu_statistics):
        with pytest.raises(UserError, match=message):
            make(["1", "0"], ["1"])
    with pytest.raises(UserError, match="2 predictions and 1 targets"):
        language_model.language_model_statistics([1.0, 2.0], [1], [1, 1], [1, 1])
    with pytest.raises(UserError, match="example 1 has no reference; give each example at least"):
        text.rouge_statistics("rougeL", ["a", "b"], [["a"], []])
    with pytest.raises(UserError, match="unknown metric 'blue'; choose from bleu, bleu1"):
        score("blue", np.ones((1, 2)))
    with pytest.raises(UserError, match="nothing was scored: the count is 0"):
        score("token_accuracy", np.zeros((1, 2)))


def test_every_official_metric_can_be_scored():
    official = {
        name for suite in glue.SUITES.values() for names in suite.values() for name in names
    }
    assert official <= METRICS.keys()


def test_importing_metrics_imports_no_heavy_library():
    code = "import sys, synthesizer_attention.metrics.scores; print(*sys.modules)"
    path = f"import sys; sys.path[:0] = {sys.path!r}; "
    run = subprocess.run([sys.executable, "-c", path + code], capture_output=True, text=True)
    heavy = {"torch", "nltk", "sacrebleu", "rouge_score", "scipy", "sklearn", "transformers"}
    assert run.returncode == 0, run.stderr
    assert not heavy & set(run.stdout.split())
