"""GLUE and SuperGLUE: the official metrics of each task, MultiRC and ReCoRD, both averages.

An average is the mean over tasks, a task with two metrics counting with the mean of the two.
From the paper's rounded columns this rule gives its printed averages, but for one row (GLUE of
Random + Vanilla, 84.04 for 84.1) that is off by less than the rounding of the columns.
"""

import re
import string
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from synthesizer_attention.metrics.classification import confusion_statistics
from synthesizer_attention.metrics.per_example import Statistics, mean_statistics, require_equal
from synthesizer_attention.metrics.tokens import Reference, pair

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

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Average(NamedTuple):
    """The score, or None and what it lacks, as 'task metric'."""

    score: float | None
    missing: tuple[str, ...]


def glue_average(scores: Mapping[str, Mapping[str, float]]) -> Average:
    """Mean over the eight tasks of the paper's table: GLUE's without WNLI."""
    return _average({task: names for task, names in GLUE.items() if task != "wnli"}, scores)


def superglue_average(scores: Mapping[str, Mapping[str, float]]) -> Average:
    """Mean over SuperGLUE's eight tasks."""
    return _average(SUPERGLUE, scores)


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


def _average(
    tasks: Mapping[str, tuple[str, ...]], scores: Mapping[str, Mapping[str, float]]
) -> Average:
    missing = tuple(
        f"{task} {name}"
        for task, names in tasks.items()
        for name in names
        if name not in scores.get(task, {})
    )
    if missing:
        return Average(None, missing)
    means = [np.mean([scores[task][name] for name in names]) for task, names in tasks.items()]
    return Average(float(np.mean(means)), ())
