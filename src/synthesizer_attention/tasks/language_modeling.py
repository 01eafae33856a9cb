"""Language modelling: the next token of a stream; perplexity per token and word, bits per byte."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synthesizer_attention.data.batch import Batch, window, window_batch
from synthesizer_attention.data.tokenizer import EOS, Template
from synthesizer_attention.metrics import DOCUMENTS, language_model_statistics, score
from synthesizer_attention.run.recipe import Recipe
from synthesizer_attention.tasks.stream import StreamTask
from synthesizer_attention.tasks.task import Outputs, Scores

Array = NDArray[Any]


class LanguageModeling(StreamTask):
    """Each token from those before it in its window."""

    kind = "decoder"

    def __init__(self, recipe: Recipe, tokenizer_dir: str | Path | None = None) -> None:
        length, template = recipe.model.max_len, Template(opening=EOS, closing="")
        super().__init__(recipe, tokenizer_dir, stride=length - 1, cost=length, template=template)
        self.main_metric = "bits_per_byte" if recipe.text.kind == "byte" else "perplexity"

    def score(self, split: str, outputs: Outputs) -> Scores:
        """Perplexities and bits per byte, from one row of statistics per window."""
        words, size = self._spelled(split)
        rows = language_model_statistics(
            outputs.losses.tolist(), outputs.counts.tolist(), words, size
        )
        names = ("perplexity", "word_perplexity", "bits_per_byte")
        metrics = {name: score(name, rows) for name in names}
        statistics = {self.main_metric: rows, DOCUMENTS: self.documents(split)}
        return Scores({**metrics, "loss": outputs.loss}, {}, statistics)

    def _spelled(self, split: str) -> tuple[list[int], list[int]]:
        """Words and bytes that the targets of each window spell."""
        sums = self.spelled(split)
        begins = self.split(split)[1] * self._stride
        ends = np.minimum(begins + self._stride, sums.shape[1] - 1)
        words, size = sums[:, ends] - sums[:, begins]
        return words.tolist(), size.tolist()

    def _batch(self, stream: Array, epoch: int | None, windows: Array) -> Batch:
        rows = [window(stream, int(i), length=self._cost, stride=self._stride) for i in windows]
        return window_batch(rows, indices=windows, pad=self.tokenizer.pad_token_id)


build = LanguageModeling
