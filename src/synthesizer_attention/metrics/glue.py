"""GLUE and SuperGLUE: the official metrics of each task, MultiRC and ReCoRD, both averages."""

import re
import string
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from synthesizer_attention.metrics.labels import (
    Statistics,
    confusion_statistics,
    mean_statistics,
    require_equal,
)
from synthesizer_attention.metrics.text import Reference, pair

GLUE = {
    "cola": ("matthews",),
    "sst2": ("accuracy",),
    "mrpc": ("f1", "accuracy"),
    "stsb": ("pearson", "spearman"),
    "qqp": ("f1", "accuracy"),
    "mnli": ("accuracy_matched", "accuracy_mismatched"),
    "qnli": ("accuracy",),
    "rte": ("accuracy",),
    "wnli": ("accuracy",),
}
SUPERGLUE = {
    "boolq": ("accuracy",),
    "cb": ("macro_f1", "accuracy"),
    "copa": ("accuracy",),
    "multirc": ("f1a", "exact_match"),
    "record": ("token_f1", "exact_match"),
    "rte": ("accuracy",),
    "wic": ("accuracy",),
    "wsc": ("accuracy",),
}
SUITES = {"glue": GLUE, "superglue": SUPERGLUE}

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def suite_average(suite: str, scores: Mapping[str, float]) -> float | None:
    """GLUE's or SuperGLUE's mean over tasks from scores like glue_mnli_accuracy_matched.

    A task with two metrics counts with the mean of the two; GLUE's is without WNLI, as in the
    paper's table. None where a score is missing. From the paper's rounded columns this rule gives
    its printed averages, but for one row (GLUE of Random + Vanilla, 84.04 for 84.1) that is off by
    less than the rounding of the columns.
    """
    tasks = [
        [f"{suite}_{task}_{name}" for name in names]
        for task, names in SUITES[suite].items()
        if task != "wnli"
    ]
    if any(name not in scores for names in tasks for name in names):
        return None
    return float(np.mean([np.mean([scores[name] for name in names]) for names in tasks]))


def multirc_statistics(
    predictions: Sequence[int], targets: Sequence[int], questions: Sequence[Hashable]
) -> dict[str, Statistics]:
    """F1 over all answers and exact match of each question's answers; one row per question."""
    require_equal(len(questions), len(targets))
    confusion = confusion_statistics(predictions, targets, num_labels=2)
    number = {question: index for index, question in enumerate(dict.fromkeys(questions))}
    rows = np.array([number[question] for question in questions])
    answers = np.zeros((len(number), confusion.shape[1]))
    np.add.at(answers, rows, confusion)
    wrong = np.bincount(rows, weights=np.asarray(predictions) != np.asarray(targets))
    return {"f1a": answers, "exact_match": mean_statistics((wrong == 0).tolist())}


def record_statistics(
    predictions: Sequence[str], answers: Sequence[Reference]
) -> dict[str, Statistics]:
    """Token F1 and exact match of normalized answers, each the best over the gold answers."""
    pairs = [
        (normalize_answer(prediction), [normalize_answer(answer) for answer in golds])
        for prediction, golds in pair(predictions, answers)
    ]
    return {
        "token_f1": mean_statistics([max(_token_f1(p, gold) for gold in gs) for p, gs in pairs]),
        "exact_match": mean_statistics([prediction in golds for prediction, golds in pairs]),
    }


def normalize_answer(text: str) -> str:
    """Lower-case, without ASCII punctuation, English articles and spare spaces, as for SQuAD."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _token_f1(prediction: str, gold: str) -> float:
    predicted, wanted = prediction.split(), gold.split()
    shared = (Counter(predicted) & Counter(wanted)).total()
    return 2 * shared / (len(predicted) + len(wanted)) if shared else 0.0
