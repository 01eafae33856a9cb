"""Scores of labels and numbers against scikit-learn and scipy, and the benchmarks' averages."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.glue import (
    GLUE,
    SUITES,
    SUPERGLUE,
    multirc_statistics,
    normalize_answer,
    record_statistics,
    suite_average,
)
from synthesizer_attention.metrics.labels import (
    NO_LABEL,
    accuracy_statistics,
    confusion_statistics,
    pearson_statistics,
    spearman_statistics,
)
from synthesizer_attention.metrics.scores import METRICS, score

few = settings(max_examples=100, deadline=None, derandomize=True)


def labelled(num_labels):
    """Lists of (prediction, target), where a prediction may name no label."""
    label = st.integers(0, num_labels - 1)
    pairs = st.lists(st.tuples(st.integers(-1, num_labels - 1), label), min_size=1, max_size=20)
    return pairs.map(lambda pairs: tuple(map(list, zip(*pairs, strict=True))))


@few
@given(labelled(4))
def test_accuracy_matthews_and_macro_f1_are_those_of_scikit_learn(pairs):
    predictions, targets = pairs
    confusion = confusion_statistics(predictions, targets, num_labels=4)
    right = accuracy_statistics(predictions, targets)
    present = sorted({*predictions, *targets} - {NO_LABEL})
    f1 = f1_score(targets, predictions, labels=present, average="macro", zero_division=0)
    assert score("accuracy", right) == pytest.approx(100 * accuracy_score(targets, predictions))
    assert score("macro_f1", confusion) == pytest.approx(100 * f1)
    if len({*targets}) > 1 or len({*predictions}) > 1:
        matthews = matthews_corrcoef(targets, predictions)
        assert score("matthews", confusion) == pytest.approx(100 * matthews)


@few
@given(labelled(2))
def test_f1_is_that_of_scikit_learn_with_invalid_answers_wrong(pairs):
    predictions, targets = pairs
    confusion = confusion_statistics(predictions, targets, num_labels=2)
    judged = [1 - t if p == -1 else p for p, t in zip(predictions, targets, strict=True)]
    expected = f1_score(targets, judged, zero_division=0)
    assert score("f1", confusion) == pytest.approx(100 * expected)


@pytest.mark.parametrize(
    ("predictions", "targets"), [([1, 1, 1], [0, 1, 0]), ([0, 1, 0], [1, 1, 1]), ([0], [0])]
)
def test_matthews_of_a_constant_side_is_zero(predictions, targets):
    confusion = confusion_statistics(predictions, targets, num_labels=2)
    assert score("matthews", confusion) == 0


def test_f1_without_any_positive_is_zero():
    assert score("f1", confusion_statistics([0, -1], [0, 0], num_labels=2)) == 0


def test_rubbish_in_place_of_every_no_does_not_score_100():
    targets = [1, 0, 1, 0]
    answers = [1, NO_LABEL, 1, NO_LABEL]  # yes where it is right, else rubbish
    confusion = confusion_statistics(answers, targets, num_labels=2)
    assert score("f1", confusion) == pytest.approx(200 / 3)  # as if always yes
    rows = multirc_statistics(answers, targets, ["a", "a", "b", "b"])
    assert score("f1a", rows["f1a"]) == pytest.approx(200 / 3)
    assert score("exact_match", rows["exact_match"]) == 0


def test_f1_of_three_labels_is_an_error():
    with pytest.raises(UserError, match="f1 is for 2 labels and got 3; use macro_f1"):
        score("f1", confusion_statistics([2], [2], num_labels=3))


def test_a_number_that_is_no_label_is_named():
    with pytest.raises(UserError, match="target -1 is not a label; expected 0 to 2 for 3 labels"):
        confusion_statistics([0], [-1], num_labels=3)
    with pytest.raises(
        UserError, match="prediction 3 is not a label; expected -1 to 2 for 3 labels"
    ):
        confusion_statistics([3], [0], num_labels=3)


def test_token_accuracy_of_nothing_scored_is_an_error():
    with pytest.raises(UserError, match="nothing was scored: the count is 0"):
        score("token_accuracy", np.zeros((1, 2)))


@few
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 5)), min_size=2, max_size=20))
def test_correlations_with_ties_are_those_of_scipy(pairs):
    x, y = (np.array(side) / 4 for side in zip(*pairs, strict=True))
    pearson = score("pearson", pearson_statistics(x, y))
    spearman = score("spearman", spearman_statistics(x, y))
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert pearson == spearman == 0
        return
    assert pearson == pytest.approx(100 * stats.pearsonr(x, y).statistic, abs=1e-8)
    assert spearman == pytest.approx(100 * stats.spearmanr(x, y).statistic, abs=1e-8)


def test_pearson_survives_a_large_offset_and_any_scale():
    x, noise = np.random.default_rng(0).standard_normal((2, 50))
    expected = 100 * stats.pearsonr(x, x + noise).statistic
    made = pearson_statistics(1e8 + x, 1e-200 * (x + noise))
    assert score("pearson", made) == pytest.approx(expected, rel=1e-6)


def test_a_constant_draw_of_varied_predictions_has_no_correlation():
    """What rounding leaves of a spread must not be divided by."""
    drawn = pearson_statistics([0.1, 0.7, 0.3], [1, 2, 3])[[0] * 7]
    assert score("pearson", drawn) == 0


def test_a_prediction_that_is_no_number_is_named():
    with pytest.raises(UserError, match="example 1 has the value nan; correlations need finite"):
        spearman_statistics([1.0, float("nan")], [1.0, 2.0])


def test_multirc_counts_f1_over_answers_and_exact_match_over_questions():
    draw = np.random.default_rng(0)
    predictions, targets = draw.integers(0, 2, (2, 40)).tolist()
    questions = [("passage", number // 4 % 7) for number in range(40)]
    predictions[:4] = targets[:4]
    made = multirc_statistics(predictions, targets, questions)
    asked = {question: [] for question in questions}
    for question, prediction, target in zip(questions, predictions, targets, strict=True):
        asked[question].append(prediction == target)
    assert len(made["f1a"]) == len(made["exact_match"]) == 7
    assert score("f1a", made["f1a"]) == pytest.approx(100 * f1_score(targets, predictions))
    assert made["exact_match"][:, 0].tolist() == [all(right) for right in asked.values()]


def test_record_takes_the_best_answer_after_normalizing_both():
    predictions = ["The U.S. Army", "an apple", "Paris, France", "", "Müller"]
    answers = [["us army", "army"], "apple tree", ["Lyon", "Paris"], "Rome", ["Mueller", "müller"]]
    made = record_statistics(predictions, answers)
    assert made["exact_match"][:, 0].tolist() == [1, 0, 0, 0, 1]
    np.testing.assert_allclose(made["token_f1"][:, 0], [1, 2 / 3, 2 / 3, 0, 1])


def test_answers_are_normalized_as_for_squad():
    text = " The  Beatles' (1st)—a theft "
    assert normalize_answer(text) == "beatles 1st— theft"


PAPER_GLUE = {
    83.5: (53.1, 92.2, (92.0, 88.7), (89.1, 88.9), (88.2, 91.2), (84.7, 85.0), 91.7, 76.9),
    75.1: (41.2, 91.2, (85.9, 79.4), (74.0, 74.3), (85.5, 89.0), (77.6, 78.1), 87.6, 59.2),
    72.0: (18.9, 89.9, (86.4, 79.4), (75.3, 75.5), (85.2, 88.3), (77.4, 78.1), 86.9, 57.4),
    82.6: (48.6, 92.4, (91.2, 87.7), (88.9, 89.0), (88.6, 91.5), (84.3, 84.8), 91.7, 75.1),
    84.1: (53.3, 92.2, (91.2, 87.7), (89.3, 88.9), (88.6, 91.4), (85.0, 84.6), 92.3, 81.2),
}
PAPER_SUPERGLUE = {
    70.3: (78.2, (72.1, 83.9), 59.0, (73.1, 32.1), (71.1, 70.3), 77.3, 65.8, 80.8),
    61.1: (69.5, (54.6, 73.2), 60.0, (63.0, 15.7), (58.4, 57.4), 67.5, 64.4, 66.3),
    58.5: (69.5, (51.7, 71.4), 51.0, (66.0, 15.8), (54.1, 53.0), 67.5, 65.2, 58.7),
    69.7: (79.3, (74.3, 85.7), 64.0, (73.8, 33.7), (69.9, 69.2), 78.7, 64.3, 68.3),
    72.2: (79.3, (82.7, 91.1), 64.0, (74.3, 34.9), (70.8, 69.9), 82.7, 64.6, 75.0),
}


def named(suite, row):
    """A row of the paper's table as {suite_task_metric: score}; it has no WNLI."""
    columns = [score if isinstance(score, tuple) else (score,) for score in row]
    return {
        f"{suite}_{task}_{name}": score
        for (task, names), scores in zip(SUITES[suite].items(), columns, strict=False)
        for name, score in zip(names, scores, strict=True)
    }


def test_the_average_of_each_printed_row_is_the_printed_one_within_rounding():
    """GLUE's R+V row gives 84.04 for 84.1; its columns are rounded, each by up to 0.05."""
    for printed, row in PAPER_SUPERGLUE.items():
        assert round(suite_average("superglue", named("superglue", row)), 1) == printed
    for printed, row in PAPER_GLUE.items():
        average = suite_average("glue", named("glue", row))
        assert average == pytest.approx(printed, abs=0.05 + (printed == 84.1) * 0.05)


def test_an_average_needs_every_metric():
    scores = named("glue", PAPER_GLUE[83.5])
    del scores["glue_mnli_accuracy_mismatched"]
    assert suite_average("glue", scores) is None


def test_every_official_metric_can_be_scored():
    official = {name for names in (GLUE | SUPERGLUE).values() for name in names}
    assert official <= METRICS.keys()
