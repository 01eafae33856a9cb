"""Probes: sequences with a known answer at each scored position, `_` elsewhere."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from synthesizer_attention.data.batch import IGNORED, Batch, Ragged, probe_batch
from synthesizer_attention.data.cache import Entry, Fields
from synthesizer_attention.data.columns import BadRow, text_of
from synthesizer_attention.data.files import Row
from synthesizer_attention.data.prepare import Columns, Examples, Fitter, Limit
from synthesizer_attention.data.sources import SPLITS, Source
from synthesizer_attention.data.tokenizer import train_tokenizer
from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.labels import DOCUMENTS
from synthesizer_attention.metrics.scores import score
from synthesizer_attention.tasks.task import (
    HELD_OUT,
    Built,
    ListTask,
    Outputs,
    Scores,
    load_ragged,
    store_ragged,
)

Array = NDArray[Any]

BLANK = "_"


class Probe(ListTask):
    """Output i of a decoder is asked for target[i]."""

    kind = "decoder"
    main_metric = "token_accuracy"
    decodes = False
    sides = ("input",)

    def score(self, split: str, outputs: Outputs) -> Scores:
        """The share of scored positions that were answered right."""
        rows = np.column_stack([outputs.correct, outputs.counts]).astype(np.float64)
        metrics = {"token_accuracy": score("token_accuracy", rows), "loss": outputs.loss}
        return Scores(metrics, {}, {"token_accuracy": rows, DOCUMENTS: np.arange(len(rows))})

    def _batch(self, split: str, lists: list[list[Array]], indices: Array) -> Batch:
        targets = load_ragged(self._arrays, f"{split}.target")
        asked = [targets[i] for i in indices]
        return probe_batch(lists[0], asked, indices=indices, pad=self.tokenizer.pad_token_id)

    def _build(self, source: Source, given: PreTrainedTokenizerFast | None) -> Built:
        recipe = self._recipe
        if recipe.text.kind != "word":
            raise UserError(f"text.kind is '{recipe.text.kind}'; a probe needs 'word'")
        examples = Examples(recipe.data, source, ("input", "target"), _read)
        train = examples.split("train")
        texts = (" ".join(fields) for chunk in train.chunks() for fields in chunk)
        tokenizer = given or train_tokenizer(recipe.text, [texts])
        limit = Limit(recipe.model.max_len, "model.max_len")
        fitter = Fitter(tokenizer, [limit], recipe.data, closed=True)
        numbers = {**tokenizer.get_vocab(), BLANK: IGNORED}
        arrays: dict[str, Array] = {}
        for split in SPLITS:
            (inputs,), kept = fitter.encode(split, examples.split(split))
            targets = Ragged.of([numbers[word] for word in t.split()] for t in kept.column(1))
            if (inputs.lengths != targets.lengths + 1).any():
                raise UserError(
                    "a probe is longer than the model; model.max_len must be the number of its "
                    f"tokens and one more, and is {recipe.model.max_len}"
                )
            self._store(arrays, split, [inputs])
            store_ragged(arrays, f"{split}.target", targets)
        report = {**examples.report, "vocab_size": len(tokenizer)}
        asked = {split: arrays[f"{split}.target.flat"] for split in SPLITS}
        scored = {split: answers[answers != IGNORED] for split, answers in asked.items()}
        commonest = np.bincount(scored["train"]).argmax()
        report["commonest_answer"] = {
            split: float(100 * (scored[split] == commonest).mean()) for split in HELD_OUT
        }
        return tokenizer, Entry(arrays, {"report": report})


def _read(row: Row, columns: Columns) -> list[Fields]:
    given, target = text_of(row, columns["input"]), text_of(row, columns["target"])
    if len(given.split()) != len(target.split()):
        raise BadRow(
            f"{len(given.split())} inputs and {len(target.split())} targets, which must pair"
        )
    return [(given, target)]


build = Probe
