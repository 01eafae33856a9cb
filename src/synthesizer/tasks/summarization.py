"""Abstractive summarization: ROUGE-1, -2, -L and -Lsum."""

from pathlib import Path

from synthesizer.experiment.recipe import Recipe
from synthesizer.metrics import ROUGE, rouge_signature, rouge_statistics
from synthesizer.tasks.pairs import Form, Judgement, Pairs, Vectors
from synthesizer.tasks.translation import read_pair


def build(recipe: Recipe, tokenizer_dir: str | Path | None = None) -> Pairs:
    """A long text to a short one."""
    form = Form(
        roles=lambda source: ("source", "target"),
        read=read_pair,
        judge=_judge,
        main_metric="rougeL",
    )
    return Pairs(recipe, tokenizer_dir, form)


def _judge(outputs: list[str], references: list[str], vectors: Vectors) -> Judgement:
    statistics = rouge_statistics(outputs, references)
    return Judgement(statistics, dict.fromkeys(ROUGE, rouge_signature()))
