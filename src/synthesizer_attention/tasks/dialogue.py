"""Dialogue: what was said so far to the reply; BLEU-1/4, ROUGE-L, METEOR, CIDEr, similarity.

A row holds a whole conversation (`dialog`, a list of turns), which gives one example per reply, or
one `history` with its `reply`. A `persona` describes the second speaker, as in PersonaChat, so that
only this speaker's replies are examples: what the first one says has nothing to do with it.
"""

from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from synthesizer_attention.data.columns import NAMES, BadRow, text_of, texts_of
from synthesizer_attention.data.files import Row
from synthesizer_attention.data.prepare import Columns
from synthesizer_attention.data.spill import Fields
from synthesizer_attention.metrics import (
    EMBEDDING,
    bleu_signature,
    bleu_statistics,
    cider_signature,
    cider_statistics,
    embedding_statistics,
    meteor15_no_wordnet_signature,
    meteor15_no_wordnet_statistics,
    rouge_signature,
    rouge_statistics,
    vectors_signature,
)
from synthesizer_attention.run.recipe import Recipe
from synthesizer_attention.tasks.pairs import Form, Judgement, Pairs, Vectors

TURN = " || "  # between turns


def build(recipe: Recipe, tokenizer_dir: str | Path | None = None) -> Pairs:
    """The turns so far to the next one; of a history that is too long the end is kept."""
    form = Form(
        _judge,
        "bleu4",
        roles=partial(_roles, tuple(recipe.data.columns)),
        read=_read,
        baseline=_commonest_reply,
        baseline_name="commonest_reply",
        keep_end=True,
        needs_vectors=True,
        turn=TURN,
    )
    return Pairs(recipe, tokenizer_dir, form)


def _commonest_reply(train: Iterable[Fields], sources: list[str]) -> list[str]:
    """The reply that train has most often, to whatever was said; of several the first."""
    replies = Counter(reply for _, reply in train)
    return [max(replies, key=lambda reply: replies[reply])] * len(sources)


def _roles(given: Fields, sample: list[Row]) -> Fields:
    """Conversations where a column is named so or holds lists, else histories and replies."""
    names = {name.lower() for row in sample for name in row.fields}
    lists = any(isinstance(value, list) for row in sample for value in row.fields.values())
    if "dialog" in given or (lists and names & set(NAMES["dialog"])):
        persona = "persona" in given or names & set(NAMES["persona"])
        return ("dialog", "persona") if persona else ("dialog",)
    return ("history", "reply")


def _read(row: Row, columns: Columns) -> list[Fields]:
    if "dialog" not in columns:
        return [(text_of(row, columns["history"]), text_of(row, columns["reply"]))]
    persona = texts_of(row, columns["persona"]) if "persona" in columns else []
    turns = texts_of(row, columns["dialog"])
    if len(turns) < 2:
        raise BadRow(f"column '{columns['dialog']}' has {len(turns)} turns; a reply needs two")
    replies = range(1, len(turns), 2 if persona else 1)  # the persona is the second speaker's
    return [(TURN.join([*persona, *turns[:n]]), turns[n]) for n in replies]


def _judge(outputs: list[str], references: list[str], vectors: Vectors) -> Judgement:
    return Judgement(
        {
            "bleu1": bleu_statistics(outputs, references, max_order=1),
            "bleu4": bleu_statistics(outputs, references),
            "rougeL": rouge_statistics(outputs, references)["rougeL"],
            "meteor15_no_wordnet": meteor15_no_wordnet_statistics(outputs, references),
            "cider": cider_statistics(outputs, references),
            EMBEDDING: embedding_statistics(outputs, references, vectors),
        },
        {
            "bleu1": bleu_signature(references, max_order=1),
            "bleu4": bleu_signature(references),
            "rougeL": rouge_signature(),
            "meteor15_no_wordnet": meteor15_no_wordnet_signature(),
            "cider": cider_signature(),
            EMBEDDING: vectors_signature(vectors),
        },
    )
