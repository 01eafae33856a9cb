"""GLUE and SuperGLUE as text to text: one line per task, in our own wording.

cola sentence: The cat sat.   ->  acceptable

What is asked comes before what may be long, so that truncation leaves it whole.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from synthesizer.data.columns import BadRow, label_of, text_of, texts_of, value_of
from synthesizer.data.sources import Row
from synthesizer.experiment.recipe import Data

NLI = ("entailment", "not entailment")
NO_NUMBER = -1.0  # below every similarity, as in T5's evaluation


@dataclass(frozen=True)
class Member:
    """One task: which columns are shown in which order, and the words for its labels."""

    suite: str  # "glue" or "superglue"
    name: str  # as in the metrics and in the prompt
    shown: tuple[str, ...]
    answers: tuple[str, ...] = ()  # empty: the answer is a number (stsb) or a text (record)
    held_out: tuple[str, ...] = ("validation",)  # what the paper reports on

    @property
    def metric(self) -> str:
        """What its metrics are called."""
        return f"{self.suite}_{self.name}"

    def data(self, data: Data, held_out: str) -> Data:
        """Where its rows are; test is the development set, whose labels are public."""
        hub = {"glue": "nyu-mll/glue", "superglue": "aps/super_glue"}[self.suite]
        origin = {"hub": hub, "config": self.name, "local": self.metric}
        splits = {"train": "train", "validation": held_out, "test": held_out}
        return data.model_copy(update={**origin, "splits": splits})

    def prompt(self, row: Row) -> str:
        """The name of the task, then each column after its name."""
        parts = [f"{column}: {_shown(row, column)}" for column in self.shown]
        return " ".join([self.name, *parts])

    def references(self, row: Row) -> list[str]:
        """The right answers; all but ReCoRD have one."""
        if self.name == "record":
            return list(dict.fromkeys(texts_of(row, "answers")))
        if self.name == "stsb":
            return [f"{round(5 * float(value_of(row, 'label'))) / 5:.1f}"]
        label = label_of(row, "label")
        if not label.isdecimal() or int(label) >= len(self.answers):
            raise BadRow(f"unknown label '{label}' in column 'label'")
        return [self.answers[int(label)]]

    def group(self, row: Row) -> str:
        """Which answers are judged together: those of one question, in MultiRC."""
        if self.name != "multirc":
            return ""
        index = row.fields.get("idx")
        if isinstance(index, Mapping):
            return f"{index['paragraph']} {index['question']}"
        return f"{value_of(row, 'idx_paragraph')} {value_of(row, 'idx_question')}"

    def score_of(self, text: str) -> float:
        """The number an answer spells; NO_NUMBER where it spells none, or none that is finite."""
        try:
            number = float(text)
        except ValueError:
            return NO_NUMBER
        return number if math.isfinite(number) else NO_NUMBER


def _shown(row: Row, column: str) -> str:
    value: Any = value_of(row, column)
    return ", ".join(texts_of(row, column)) if isinstance(value, list) else text_of(row, column)


MEMBERS = {
    member.metric: member
    for member in (
        Member("glue", "cola", ("sentence",), ("unacceptable", "acceptable")),
        Member("glue", "sst2", ("sentence",), ("negative", "positive")),
        Member("glue", "mrpc", ("sentence1", "sentence2"), ("different", "equivalent")),
        Member("glue", "stsb", ("sentence1", "sentence2")),
        Member("glue", "qqp", ("question1", "question2"), ("different", "duplicate")),
        Member(
            "glue",
            "mnli",
            ("hypothesis", "premise"),
            ("entailment", "neutral", "contradiction"),
            ("validation_matched", "validation_mismatched"),
        ),
        Member("glue", "qnli", ("question", "sentence"), NLI),
        Member("glue", "rte", ("sentence2", "sentence1"), NLI),
        Member("glue", "wnli", ("sentence1", "sentence2"), NLI[::-1]),
        Member("superglue", "boolq", ("question", "passage"), ("no", "yes")),
        Member(
            "superglue",
            "cb",
            ("hypothesis", "premise"),
            ("entailment", "contradiction", "neutral"),
        ),
        Member(
            "superglue", "copa", ("premise", "question", "choice1", "choice2"), ("first", "second")
        ),
        Member("superglue", "multirc", ("question", "answer", "paragraph"), ("no", "yes")),
        Member("superglue", "record", ("query", "entities", "passage")),
        Member("superglue", "rte", ("hypothesis", "premise"), NLI),
        Member("superglue", "wic", ("word", "sentence1", "sentence2"), ("no", "yes")),
        Member("superglue", "wsc", ("span1_text", "span2_text", "text"), ("no", "yes")),
    )
}
