"""Span corruption: T5's pretraining, which fills in what was cut out of a text."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synthesizer.data.batch import (
    Batch,
    corrupt,
    corrupted_lengths,
    own_part,
    pair_batch,
    uncorrupted_length,
    window,
)
from synthesizer.data.tokenizer import NUM_SENTINELS, Template, sentinel
from synthesizer.errors import UserError
from synthesizer.experiment.recipe import Recipe
from synthesizer.metrics import language_model_statistics, score
from synthesizer.tasks.stream import Stream
from synthesizer.tasks.task import Outputs, Scores

Array = NDArray[Any]

_HELD_OUT = (0, 0)  # seed and epoch of splits that every run corrupts alike


class SpanCorruption:
    """A window with random spans replaced by sentinels, to those spans."""

    kind = "encoder_decoder"
    labels: list[str] | None = None
    num_labels: int | None = None
    main_metric = "perplexity"
    higher_is_better = False
    generates = False
    decodes = True

    def __init__(self, recipe: Recipe, tokenizer_dir: str | Path | None = None) -> None:
        self._recipe = recipe
        assert recipe.model.decoder_max_len is not None
        self._length = uncorrupted_length(recipe.model.max_len, recipe.model.decoder_max_len)
        template = Template(sentinels=NUM_SENTINELS)
        self._stream = Stream(recipe, tokenizer_dir, stride=self._length, template=template)
        self.tokenizer, self.report = self._stream.tokenizer, self._stream.report
        self._sentinels = self._find_sentinels()

    def train_batches(self, start: int = 0, *, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Endless batches of windows in random order, corrupted anew each epoch."""
        cost = sum(corrupted_lengths(self._length))
        for epoch, stream, windows in self._stream.train(start, cost):
            make = partial(self._batch, stream, draw=(self._recipe.seed + 1, epoch))
            yield own_part(windows, make, rank, world)

    def batches(self, split: str) -> Iterator[Batch]:
        """Each window once, in order."""
        stream, windows = self._stream.split(split)
        cost = sum(corrupted_lengths(self._length))
        rows = max(1, self._recipe.evaluate.batch_tokens // cost)
        for begin in range(0, len(windows), rows):
            yield self._batch(stream, windows[begin : begin + rows], _HELD_OUT)

    def score(self, split: str, outputs: Outputs) -> Scores:
        """Perplexity of the targets, sentinels and end included."""
        nothing = [0] * len(outputs.losses)
        rows = language_model_statistics(
            outputs.losses.tolist(), outputs.counts.tolist(), nothing, nothing
        )
        log_perplexity = float(outputs.losses.sum() / outputs.counts.sum())
        metrics = {"perplexity": score("perplexity", rows), "loss": log_perplexity}
        metrics["token_accuracy"] = float(100 * outputs.correct.sum() / outputs.counts.sum())
        return Scores(metrics, {}, {"perplexity": rows})

    def _batch(self, stream: Array, windows: Array, draw: tuple[int, int]) -> Batch:
        pairs = [
            corrupt(
                window(stream, int(i), length=self._length, stride=self._length),
                np.random.default_rng([*draw, int(i)]),
                sentinels=self._sentinels,
                eos=self.tokenizer.eos_token_id,
            )
            for i in windows
        ]
        sources, targets = zip(*pairs, strict=True)
        pad = self.tokenizer.pad_token_id
        return pair_batch(sources, targets, indices=np.asarray(windows), pad=pad)

    def _find_sentinels(self) -> Array:
        vocabulary = self.tokenizer.get_vocab()
        names = [sentinel(number) for number in range(NUM_SENTINELS)]
        found = [vocabulary[name] for name in names if name in vocabulary]
        needed = (sum(corrupted_lengths(self._length)) - self._length - 2) // 2  # spans
        if len(found) < needed:
            raise UserError(
                f"the tokenizer has {len(found)} tokens {sentinel(0)} ...; windows of "
                f"{self._length} tokens need {needed}: use another text.tokenizer or lower "
                "model.max_len"
            )
        return np.array(found)


build = SpanCorruption
