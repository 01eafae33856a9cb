"""The list of tasks, and how a recipe becomes one."""

from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from synthesizer.data.tokenizer import encode
from synthesizer.errors import UserError
from synthesizer.experiment.recipe import Recipe
from synthesizer.tasks.classification import Classification
from synthesizer.tasks.dialogue import dialogue
from synthesizer.tasks.language_modeling import LanguageModeling
from synthesizer.tasks.probe import Probe
from synthesizer.tasks.span_corruption import SpanCorruption
from synthesizer.tasks.summarization import summarization
from synthesizer.tasks.task import Task
from synthesizer.tasks.text_to_text import TextToText
from synthesizer.tasks.translation import translation

TASKS: dict[str, Callable[..., Task]] = {
    "translation": translation,
    "summarization": summarization,
    "dialogue": dialogue,
    "span_corruption": SpanCorruption,
    "text_to_text": TextToText,
    "language_modeling": LanguageModeling,
    "probe": Probe,
    "classification": Classification,
}


def build_task(recipe: Recipe, *, tokenizer_dir: str | Path | None = None) -> Task:
    """Read, encode and cache the data of a recipe; a tokenizer folder replaces its tokenizer."""
    return TASKS[recipe.task](recipe, tokenizer_dir)


def prompt(recipe: Recipe, tokenizer: PreTrainedTokenizerFast, line: str) -> list[int]:
    """A user's line as the input of a trained model, unpadded; reads no data.

    A decoder's line is a beginning to continue, an encoder's a text to classify, an
    encoder-decoder's a source to answer.
    """
    if not line.strip():
        raise UserError("the line is empty; expected a text")
    prefix = recipe.data.prefix if recipe.task != "text_to_text" else ""
    closed = recipe.model.kind == "encoder_decoder"
    (ids,) = encode(tokenizer, [prefix + line], closed=closed)
    if len(ids) > recipe.model.max_len:
        raise UserError(
            f"the line has {len(ids)} tokens and the model takes {recipe.model.max_len}; shorten it"
        )
    return ids
