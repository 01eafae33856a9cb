"""Language modelling: the next token of a stream; perplexity per token and word, bits per byte."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synthesizer.data.batch import Batch, own_part, window, window_batch
from synthesizer.data.tokenizer import EOS, Template
from synthesizer.experiment.recipe import Recipe
from synthesizer.metrics import language_model_statistics, score
from synthesizer.tasks.stream import Stream
from synthesizer.tasks.task import Outputs, Scores

Array = NDArray[Any]


class LanguageModeling:
    """Each token from those before it in its window."""

    kind = "decoder"
    labels: list[str] | None = None
    num_labels: int | None = None
    higher_is_better = False
    generates = False
    decodes = True

    def __init__(self, recipe: Recipe, tokenizer_dir: str | Path | None = None) -> None:
        self._recipe, self._length = recipe, recipe.model.max_len
        template = Template(opening=EOS, closing="")
        self._stream = Stream(recipe, tokenizer_dir, stride=self._length - 1, template=template)
        self.tokenizer, self.report = self._stream.tokenizer, self._stream.report
        self.main_metric = "bits_per_byte" if recipe.text.kind == "byte" else "perplexity"

    def train_batches(self, start: int = 0, *, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Endless batches of windows in random order."""
        for _, stream, windows in self._stream.train(start, self._length):
            yield own_part(windows, partial(self._batch, stream), rank, world)

    def batches(self, split: str) -> Iterator[Batch]:
        """Each window once, in order."""
        stream, windows = self._stream.split(split)
        rows = max(1, self._recipe.evaluate.batch_tokens // self._length)
        for begin in range(0, len(windows), rows):
            yield self._batch(stream, windows[begin : begin + rows])

    def score(self, split: str, outputs: Outputs) -> Scores:
        """Perplexities and bits per byte, from one row of statistics per window."""
        words, size = self._stream.spelled(split, self._stream.split(split)[1])
        rows = language_model_statistics(
            outputs.losses.tolist(), outputs.counts.tolist(), words, size
        )
        names = ("perplexity", "word_perplexity", "bits_per_byte")
        metrics = {name: score(name, rows) for name in names}
        metrics["loss"] = float(outputs.losses.sum() / outputs.counts.sum())
        return Scores(metrics, {}, {self.main_metric: rows})

    def _batch(self, stream: Array, windows: Array) -> Batch:
        length = self._length
        rows = [window(stream, int(i), length=length, stride=length - 1) for i in windows]
        return window_batch(rows, indices=np.asarray(windows), pad=self.tokenizer.pad_token_id)


build = LanguageModeling
