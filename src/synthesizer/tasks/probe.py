"""Probes: sequences with a known answer at each scored position, `_` elsewhere."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from synthesizer.data.batch import IGNORED, Batch, Ragged, own_part, probe_batch
from synthesizer.data.columns import BadRow, text_of
from synthesizer.data.encoded_cache import Entry
from synthesizer.data.prepare import Columns, Examples, Fields, Fitter, Limit, prepare
from synthesizer.data.sampler import Order, in_order
from synthesizer.data.sources import SPLITS, Row, Source
from synthesizer.data.tokenizer import train_tokenizer
from synthesizer.errors import UserError
from synthesizer.experiment.recipe import Recipe
from synthesizer.metrics import score
from synthesizer.tasks.pairs import load_ragged, store_ragged
from synthesizer.tasks.task import Outputs, Scores

Array = NDArray[Any]

BLANK = "_"


class Probe:
    """Output i of a decoder is asked for target[i]."""

    kind = "decoder"
    labels: list[str] | None = None
    num_labels: int | None = None
    main_metric = "token_accuracy"
    higher_is_better = True
    generates = False
    decodes = False

    def __init__(self, recipe: Recipe, tokenizer_dir: str | Path | None = None) -> None:
        self._recipe = recipe
        self.tokenizer, entry = prepare(recipe, tokenizer_dir, self._build)
        self._arrays = entry.arrays
        self.report: dict[str, Any] = entry.meta["report"]

    def train_batches(self, start: int = 0, *, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Endless batches of similar lengths."""
        lengths = load_ragged(self._arrays, "train.input").lengths[:, None]
        budget, seed = self._recipe.train.batch_tokens, self._recipe.seed
        for _, batch in Order(lengths, batch_tokens=budget, seed=seed).batches(start):
            yield own_part(batch, partial(self._batch, "train"), rank, world)

    def batches(self, split: str) -> Iterator[Batch]:
        """Each sequence once, in order."""
        limit = self._recipe.evaluate.limit if split == "validation" else None
        lengths = load_ragged(self._arrays, f"{split}.input", limit).lengths[:, None]
        for indices in in_order(lengths, self._recipe.evaluate.batch_tokens):
            yield self._batch(split, indices)

    def score(self, split: str, outputs: Outputs) -> Scores:
        """The share of scored positions that were answered right."""
        rows = np.column_stack([outputs.correct, outputs.counts]).astype(np.float64)
        loss = float(outputs.losses.sum() / outputs.counts.sum())
        metrics = {"token_accuracy": score("token_accuracy", rows), "loss": loss}
        return Scores(metrics, {}, {"token_accuracy": rows})

    def _batch(self, split: str, indices: Array) -> Batch:
        inputs = load_ragged(self._arrays, f"{split}.input")
        targets = load_ragged(self._arrays, f"{split}.target")
        return probe_batch(
            [inputs[i] for i in indices],
            [targets[i] for i in indices],
            indices=indices,
            pad=self.tokenizer.pad_token_id,
        )

    def _build(
        self, source: Source, given: PreTrainedTokenizerFast | None
    ) -> tuple[PreTrainedTokenizerFast, Entry]:
        recipe = self._recipe
        if recipe.text.kind != "word":
            raise UserError(f"text.kind is '{recipe.text.kind}'; a probe needs 'word'")
        examples = Examples(recipe.data, source, ("input", "target"), _read)
        tokenizer = given or train_tokenizer(
            recipe.text, [(" ".join(fields) for fields in examples.split("train"))]
        )
        limit = Limit(recipe.model.max_len, "model.max_len")
        fitter = Fitter(tokenizer, [limit], recipe.data, closed=True)
        numbers = {**tokenizer.get_vocab(), BLANK: IGNORED}
        arrays: dict[str, Array] = {}
        for split in SPLITS:
            (inputs,), kept = fitter.encode(split, examples.split(split))
            targets = Ragged.of([numbers[word] for word in target.split()] for _, target in kept)
            if (inputs.lengths != targets.lengths + 1).any():
                raise UserError(
                    "a probe is longer than the model; model.max_len must be the number of its "
                    f"tokens and one more, and is {recipe.model.max_len}"
                )
            store_ragged(arrays, f"{split}.input", inputs)
            store_ragged(arrays, f"{split}.target", targets)
        return tokenizer, Entry(
            arrays, {"report": {**examples.report, "vocab_size": len(tokenizer)}}
        )


def _read(row: Row, columns: Columns) -> list[Fields]:
    given, target = text_of(row, columns["input"]), text_of(row, columns["target"])
    if len(given.split()) != len(target.split()):
        raise BadRow(
            f"{len(given.split())} inputs and {len(target.split())} targets, which must pair"
        )
    return [(given, target)]


build = Probe
