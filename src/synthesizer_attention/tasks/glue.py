"""GLUE and SuperGLUE as text to text, in our wording or in T5's (`data.wording`).

cola sentence: The cat sat.   ->  acceptable

Ours puts what is asked before what may be long, so that truncation leaves it whole, and WSC and
WiC are answered by yes or no. T5's has its order of columns and its labels, WSC and DPR answered
by the noun that the marked pronoun refers to, and SQuAD; T5's mixture also has a share of C4.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from synthesizer_attention.data.columns import BadRow, label_of, text_of, texts_of, value_of
from synthesizer_attention.data.files import Row
from synthesizer_attention.run.recipe_keys import Data

NLI = ("entailment", "not entailment")
NO_NUMBER = -1.0  # below every similarity, as in T5's evaluation

_HUBS = {
    "glue": "nyu-mll/glue",
    "superglue": "aps/super_glue",
    "qa_squad": "rajpurkar/squad",
    "coref_dpr": "community-datasets/definite_pronoun_resolution",
}
_DETERMINERS = frozenset(  # T5's list: without "its" and "any"
    {"a", "an", "the", "this", "that", "these", "those", "my", "your", "his", "her", "our", "their"}
    | {"some", "each", "every", "many", "much", "few", "which", "whose"}
)


@dataclass(frozen=True)
class Member:
    """One task: which columns are shown in which order, and the words for its labels."""

    suite: str  # "glue" or "superglue"; "qa" and "coref" are in no average
    name: str  # as in the metrics and in the prompt
    shown: tuple[str, ...]
    answers: tuple[str, ...] = ()  # empty: the answer is a number (stsb) or a text
    held_out: tuple[str, ...] = ("validation",)  # what the paper reports on

    @property
    def metric(self) -> str:
        """What its metrics are called."""
        return f"{self.suite}_{self.name}"

    @property
    def names_referents(self) -> bool:
        """Whether the answer is a noun, judged by its words, and the label says if it is meant."""
        return self.name == "wsc" and not self.answers

    def data(self, data: Data, held_out: str) -> Data:
        """Where its rows are; test is the development set, whose labels are public."""
        hub = _HUBS.get(self.metric) or _HUBS[self.suite]
        config = self.name if self.suite in _HUBS else None
        config = "wsc.fixed" if config == "wsc" else config
        splits = {"train": "train", "validation": held_out, "test": held_out}
        origin = {"hub": hub, "config": config, "local": self.metric, "splits": splits}
        return data.model_copy(update=origin)

    def prompt(self, row: Row) -> str:
        """The name of the task, then each column after its name."""
        if self.name == "dpr":  # stars around the first such pronoun, in T5's sense of a word
            word = rf" ({re.escape(text_of(row, 'pronoun'))})([ .,])"
            return "wsc: " + re.sub(word, r" *\1*\2", text_of(row, "sentence"), count=1)
        if self.names_referents:
            return f"wsc: {_marked(row)}"  # the same for both, so that they learn from each other
        parts = [f"{column}: {self._shown(row, column)}" for column in self.shown]
        return " ".join([*([] if self.suite == "qa" else [self.name]), *parts])

    def references(self, row: Row) -> list[str]:
        """The right answers; all but ReCoRD and SQuAD have one."""
        if self.name == "record":
            return list(dict.fromkeys(texts_of(row, "answers")))
        if self.name == "squad":
            texts = (_spaced(str(text)) for text in value_of(row, "answers")["text"])
            return list(dict.fromkeys(texts))
        if self.name == "stsb":
            return [f"{round(5 * float(value_of(row, 'label'))) / 5:.1f}"]
        if self.name == "dpr":
            return [texts_of(row, "candidates")[int(label_of(row, "label"))]]
        if self.names_referents:
            return [text_of(row, "span1_text")]
        label = label_of(row, "label")
        if not label.isdecimal() or int(label) >= len(self.answers):
            raise BadRow(f"unknown label '{label}' in column 'label'")
        return [self.answers[int(label)]]

    def trains_on(self, row: Row) -> bool:
        """Whether a row of train is an example: where nouns are named, those that are meant."""
        return not self.names_referents or label_of(row, "label") == "1"

    def group(self, row: Row) -> str:
        """What the judge must know: the question of a MultiRC answer, the label of a WSC noun."""
        if self.names_referents:
            return label_of(row, "label")
        if self.name != "multirc":
            return ""
        index = row.fields.get("idx")
        if isinstance(index, Mapping):
            return f"{index['paragraph']} {index['question']}"
        return f"{value_of(row, 'idx_paragraph')} {value_of(row, 'idx_question')}"

    def _shown(self, row: Row, column: str) -> str:
        """A column as text; without MultiRC's HTML and ReCoRD's marks between sentences."""
        value: Any = value_of(row, column)
        if isinstance(value, list):
            return ", ".join(texts_of(row, column))
        if self.name == "wsc" and column == "text":
            return _marked(row)
        text = text_of(row, column)
        if self.name == "multirc":
            return re.sub(r"</?b>", "", text.replace("<br>", " "))
        if self.name == "record":
            text = re.sub(r"""([.?!"'])\n@highlight\n""", r"\1 ", text)
            return text.replace("\n@highlight\n", ". ")
        return _spaced(text) if self.name == "squad" else text


def number_of(text: str) -> float:
    """The number an answer spells; NO_NUMBER where it spells none, or none that is finite."""
    try:
        number = float(text)
    except ValueError:
        return NO_NUMBER
    return number if math.isfinite(number) else NO_NUMBER


def same_referent(answer: str, noun: str) -> bool:
    """Whether an answer names a noun: without determiners, one's words are among the other's."""
    first, second = (
        {word for word in text.lower().split() if word not in _DETERMINERS}
        for text in (answer, noun)
    )
    if not first or not second or ("'" in answer) != ("'" in noun):
        return False
    return first <= second or second <= first


def _spaced(text: str) -> str:
    """SQuAD as T5 shows it: spaces around whatever is no ASCII letter, digit or underscore."""
    return " ".join(re.sub(r"(\W)", r" \1 ", text, flags=re.ASCII).split())


def _marked(row: Row) -> str:
    """The text of WSC with stars around the one pronoun that is asked about.

    The row says at which word it is; a few are off by a word or two, so the nearest serves.
    """
    words = text_of(row, "text").split(" ")
    pronoun = text_of(row, "span2_text").strip()
    found = [
        index
        for index, word in enumerate(words)
        if word.strip(".,;:!?\"'()").lower() == pronoun.lower()
    ]
    if not found:
        raise BadRow(f"the pronoun '{pronoun}' is not in the text")
    expected = int(value_of(row, "span2_index"))
    at = min(found, key=lambda index: abs(index - expected))
    bare = re.escape(pronoun)
    words[at] = re.sub(f"({bare})", r"*\1*", words[at], count=1, flags=re.IGNORECASE)
    return " ".join(words)


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
            "superglue", "cb", ("hypothesis", "premise"), ("entailment", "contradiction", "neutral")
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


_BOOLEAN = ("False", "True")
_T5_NLI = ("entailment", "not_entailment")
_T5: dict[str, dict[str, Any]] = {
    "glue_mrpc": {"answers": ("not_equivalent", "equivalent")},
    "glue_qqp": {"answers": ("not_duplicate", "duplicate")},
    "glue_qnli": {"answers": _T5_NLI},
    "glue_rte": {"answers": _T5_NLI, "shown": ("sentence1", "sentence2")},
    "glue_wnli": {"answers": ("not_entailment", "entailment")},
    "superglue_boolq": {"answers": _BOOLEAN, "shown": ("passage", "question")},
    "superglue_copa": {
        "answers": ("choice1", "choice2"),
        "shown": ("choice1", "choice2", "premise", "question"),
    },
    "superglue_multirc": {"answers": _BOOLEAN},
    "superglue_rte": {"answers": _T5_NLI},
    "superglue_wic": {"answers": _BOOLEAN, "shown": ("sentence1", "sentence2", "word")},
    "superglue_wsc": {"answers": ()},
}
"""What T5's wording changes: labels, and the order of columns."""

T5_MEMBERS = {
    **{name: replace(member, **_T5.get(name, {})) for name, member in MEMBERS.items()},
    "coref_dpr": Member("coref", "dpr", ("sentence",), held_out=("test",)),
    "qa_squad": Member("qa", "squad", ("question", "context")),
}
WORDINGS = {"ours": MEMBERS, "t5": T5_MEMBERS}
