"""How a recipe becomes a task: each is the file of its name."""

from importlib import import_module
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from synthesizer_attention.data.tokenizer import encode
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe import Recipe
from synthesizer_attention.tasks.task import Task


def build_task(recipe: Recipe, *, tokenizer_dir: str | Path | None = None) -> Task:
    """Read, encode and cache the data of a recipe; a tokenizer directory replaces its tokenizer."""
    task: Task = import_module(f"synthesizer_attention.tasks.{recipe.task}").build(
        recipe, tokenizer_dir
    )
    return task


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
