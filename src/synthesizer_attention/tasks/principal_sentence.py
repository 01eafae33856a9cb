"""Pretraining for tasks that write: a text to its principal sentence, to be found and copied.

The principal sentence, or turn of a conversation, is the one most like the rest of its text
(ROUGE-1), by which PEGASUS chooses gap sentences. Here it stays in the text: a small model first
has to learn to copy, for which span corruption gives it little reason.
"""

import re
from collections import Counter
from pathlib import Path

from synthesizer_attention.data.columns import text_of, texts_of
from synthesizer_attention.data.files import Row
from synthesizer_attention.data.prepare import Columns
from synthesizer_attention.data.spill import Fields
from synthesizer_attention.run.recipe import Recipe
from synthesizer_attention.tasks.pairs import Form, Pairs
from synthesizer_attention.tasks.summarization import SENTENCE_END, first_sentences, judge

SHORTEST = 4  # words of a sentence that is worth copying
WORD = re.compile(r"\w+")


def build(recipe: Recipe, tokenizer_dir: str | Path | None = None) -> Pairs:
    """A text to the sentence of it that says most of the rest."""
    form = Form(
        judge,
        "rougeL",
        roles=("text",),
        read=_read,
        baseline=first_sentences,
        baseline_name="first_sentence",
    )
    return Pairs(recipe, tokenizer_dir, form)


def _read(row: Row, columns: Columns) -> list[Fields]:
    """No example where a text has no two sentences, or none of them is long enough."""
    column = columns["text"]
    turns = isinstance(row.fields.get(column), list)
    text = "\n".join(texts_of(row, column)) if turns else text_of(row, column)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    chosen = principal_sentence(lines if len(lines) > 1 else SENTENCE_END.split(text.strip()))
    return [] if chosen is None else [(text, chosen)]


def principal_sentence(sentences: list[str]) -> str | None:
    """The sentence whose words are most like those of all others; of several the first."""
    counts = [Counter(WORD.findall(sentence.lower())) for sentence in sentences]
    total = sum(counts, Counter[str]())
    number = total.total()

    def likeness(index: int) -> float:
        """Twice the words shared with the rest over all words: the F1 of ROUGE-1."""
        own = counts[index]
        shared = (own & (total - own)).total()
        return 2 * shared / number

    long_enough = [i for i, words in enumerate(counts) if words.total() >= SHORTEST]
    if len(sentences) < 2 or not long_enough:
        return None
    return sentences[max(long_enough, key=likeness)]
