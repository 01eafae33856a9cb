"""Span corruption: T5's pretraining, which fills in what was cut out of a text."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synthesizer_attention.data.batch import (
    Batch,
    corrupt,
    corrupted_lengths,
    pair_batch,
    uncorrupted_length,
    window,
)
from synthesizer_attention.data.tokenizer import NUM_SENTINELS, Template, sentinel
from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics import DOCUMENTS, score
from synthesizer_attention.run.recipe import Recipe
from synthesizer_attention.tasks.stream import StreamTask
from synthesizer_attention.tasks.task import Outputs, Scores

Array = NDArray[Any]

_HELD_OUT = (0, 0)  # seed and epoch of splits that every run corrupts alike


class SpanCorruption(StreamTask):
    """A window with random spans replaced by sentinels, to those spans; anew each epoch."""

    kind = "encoder_decoder"
    main_metric = "perplexity"

    def __init__(self, recipe: Recipe, tokenizer_dir: str | Path | None = None) -> None:
        assert recipe.model.decoder_max_len is not None
        length = uncorrupted_length(recipe.model.max_len, recipe.model.decoder_max_len)
        cost, template = sum(corrupted_lengths(length)), Template(sentinels=NUM_SENTINELS)
        super().__init__(recipe, tokenizer_dir, stride=length, cost=cost, template=template)
        self._sentinels = self._find_sentinels()

    def score(self, split: str, outputs: Outputs) -> Scores:
        """Perplexity of the targets, sentinels and end included."""
        rows = outputs.perplexity_statistics()
        metrics = {"perplexity": score("perplexity", rows), "loss": outputs.loss}
        metrics["token_accuracy"] = float(100 * outputs.correct.sum() / outputs.counts.sum())
        return Scores(metrics, {}, {"perplexity": rows, DOCUMENTS: self.documents(split)})

    def _batch(self, stream: Array, epoch: int | None, windows: Array) -> Batch:
        draw = _HELD_OUT if epoch is None else (self._recipe.seed + 1, epoch)
        pairs = [
            corrupt(
                window(stream, int(i), length=self._stride, stride=self._stride),
                np.random.default_rng([*draw, int(i)]),
                sentinels=self._sentinels,
                eos=self.tokenizer.eos_token_id,
            )
            for i in windows
        ]
        sources, targets = zip(*pairs, strict=True)
        return pair_batch(sources, targets, indices=windows, pad=self.tokenizer.pad_token_id)

    def _find_sentinels(self) -> Array:
        vocabulary = self.tokenizer.get_vocab()
        names = [sentinel(number) for number in range(NUM_SENTINELS)]
        found = [vocabulary[name] for name in names if name in vocabulary]
        needed = (self._cost - self._stride - 2) // 2  # spans
        if len(found) < needed:
            raise UserError(
                f"the tokenizer has {len(found)} tokens {sentinel(0)} ...; windows of "
                f"{self._stride} tokens need {needed}: use another text.tokenizer or lower "
                "model.max_len"
            )
        return np.array(found)


build = SpanCorruption
