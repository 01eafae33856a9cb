"""Abstractive summarization: ROUGE-1, -2, -L and -Lsum."""

import re
from collections.abc import Iterable
from pathlib import Path

from synthesizer_attention.data.spill import Fields
from synthesizer_attention.metrics import ROUGE, rouge_signature, rouge_statistics
from synthesizer_attention.run.recipe import Recipe
from synthesizer_attention.tasks.pairs import Form, Judgement, Pairs, Vectors

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n")


def build(recipe: Recipe, tokenizer_dir: str | Path | None = None) -> Pairs:
    """A long text to a short one."""
    form = Form(judge, "rougeL", baseline=first_sentences, baseline_name="first_sentence")
    return Pairs(recipe, tokenizer_dir, form)


def first_sentences(train: Iterable[Fields], sources: list[str]) -> list[str]:
    """What every source begins with, up to the end of its first sentence."""
    return [SENTENCE_END.split(source.strip(), maxsplit=1)[0] for source in sources]


def judge(outputs: list[str], references: list[str], vectors: Vectors) -> Judgement:
    """All forms of ROUGE."""
    statistics = rouge_statistics(outputs, references)
    return Judgement(statistics, dict.fromkeys(ROUGE, rouge_signature()))
