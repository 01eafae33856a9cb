"""Machine translation: BLEU and chrF by sacrebleu, with their signatures."""

from collections.abc import Iterable
from pathlib import Path

from synthesizer_attention.data.corpora.dictionary import dictionary_baseline
from synthesizer_attention.data.spill import Fields
from synthesizer_attention.metrics import (
    bleu_signature,
    bleu_statistics,
    chrf_signature,
    chrf_statistics,
)
from synthesizer_attention.run.recipe import Recipe
from synthesizer_attention.tasks.pairs import Form, Judgement, Pairs, Vectors


def build(recipe: Recipe, tokenizer_dir: str | Path | None = None) -> Pairs:
    """One text in one language to one in another."""
    form = Form(_judge, "bleu", baseline=_by_dictionary, baseline_name="dictionary")
    return Pairs(recipe, tokenizer_dir, form)


def _by_dictionary(train: Iterable[Fields], sources: list[str]) -> list[str]:
    """Translation word by word, the baseline that ignores order and agreement."""
    rows = ({"en": source, "de": target} for source, target in train)
    return dictionary_baseline(rows, sources)


def _judge(outputs: list[str], references: list[str], vectors: Vectors) -> Judgement:
    return Judgement(
        {
            "bleu": bleu_statistics(outputs, references),
            "chrf": chrf_statistics(outputs, references),
        },
        {"bleu": bleu_signature(references), "chrf": chrf_signature(references)},
    )
