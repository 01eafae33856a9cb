"""Abstractive summarization: ROUGE-1, -2, -L and -Lsum."""

from pathlib import Path

from synthesizer.experiment.recipe import Recipe
from synthesizer.metrics import ROUGE, rouge_signature, rouge_statistics
from synthesizer.tasks.pairs import Form, Judgement, Pairs, Vectors


def build(recipe: Recipe, tokenizer_dir: str | Path | None = None) -> Pairs:
    """A long text to a short one."""
    return Pairs(recipe, tokenizer_dir, Form(_judge, "rougeL"))


def _judge(outputs: list[str], references: list[str], vectors: Vectors) -> Judgement:
    statistics = rouge_statistics(outputs, references)
    return Judgement(statistics, dict.fromkeys(ROUGE, rouge_signature()))
