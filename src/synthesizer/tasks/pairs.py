"""Text to text: the batches and scores that translation, summaries and replies share."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from synthesizer.data.batch import Batch, Ragged, own_part, pair_batch
from synthesizer.data.encoded_cache import Entry
from synthesizer.data.prepare import Columns, Examples, Fields, Fitter, Limit, prepare, side_of
from synthesizer.data.sampler import Order, in_order
from synthesizer.data.sources import SPLITS, Row, Source
from synthesizer.data.tokenizer import train_tokenizer
from synthesizer.experiment.recipe import Recipe
from synthesizer.metrics import score, train_vectors
from synthesizer.tasks.task import Outputs, Scores

Array = NDArray[Any]
Vectors = Mapping[str, Array]

SHOWN = 50  # sources kept for samples


@dataclass(frozen=True)
class Judgement:
    """Per-example statistics of each metric, and the signatures they need."""

    statistics: dict[str, Array]
    signatures: dict[str, str]


@dataclass(frozen=True)
class Form:
    """What tells one text-to-text task from another."""

    roles: Callable[[Source], Fields]
    read: Callable[[Row, Columns], list[Fields]]
    judge: Callable[[list[str], list[str], Vectors], Judgement]  # outputs, references, vectors
    main_metric: str
    dictionary: Callable[[list[Fields], list[str]], list[str]] | None = None  # train, sources
    keep_end: bool = False  # of a source that is too long
    needs_vectors: bool = False


class Pairs:
    """Source and target texts for an encoder-decoder, in a form."""

    kind = "encoder_decoder"
    labels: list[str] | None = None
    num_labels: int | None = None
    higher_is_better = True
    generates = True
    decodes = True

    def __init__(self, recipe: Recipe, tokenizer_dir: str | Path | None, form: Form) -> None:
        self._recipe, self._form, self.main_metric = recipe, form, form.main_metric
        self.tokenizer, entry = prepare(recipe, tokenizer_dir, self._build)
        self._arrays, self._meta = entry.arrays, entry.meta
        self.report: dict[str, Any] = entry.meta["report"]

    def train_batches(self, start: int = 0, *, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Endless batches of similar lengths."""
        sources, targets = self._sides("train")
        lengths = np.column_stack([sources.lengths, targets.lengths])
        budget = self._recipe.train.batch_tokens
        order = Order(lengths, batch_tokens=budget, seed=self._recipe.seed)
        return share_pairs(order, sources, targets, self.tokenizer, start, rank, world)

    def batches(self, split: str) -> Iterator[Batch]:
        """Each example once, in order."""
        sources, targets = self._sides(split)
        yield from pairs_in_order(
            sources, targets, self.tokenizer, self._recipe.evaluate.batch_tokens
        )

    def score(self, split: str, outputs: Outputs) -> Scores:
        """The form's metrics of the generated texts, and the loss on the references."""
        texts = list(outputs.texts)
        references = self._meta["references"][split][: len(self._sides(split)[0])]
        vectors = dict(zip(self._meta["words"], self._arrays["vectors"], strict=True))
        judgement = self._form.judge(texts, references, vectors)
        metrics = {name: score(name, rows) for name, rows in judgement.statistics.items()}
        metrics["loss"] = float(outputs.losses.sum() / outputs.counts.sum())
        shown = zip(self._meta["sources"][split], references, texts, strict=False)
        samples = [dict(zip(("source", "reference", "output"), s, strict=True)) for s in shown]
        return Scores(
            metrics,
            judgement.signatures,
            judgement.statistics,
            samples[: self._recipe.evaluate.samples],
        )

    def _sides(self, split: str) -> tuple[Ragged, Ragged]:
        limit = self._recipe.evaluate.limit if split == "validation" else None
        return load_ragged(self._arrays, f"{split}.source", limit), load_ragged(
            self._arrays, f"{split}.target", limit
        )

    def _build(
        self, source: Source, given: PreTrainedTokenizerFast | None
    ) -> tuple[PreTrainedTokenizerFast, Entry]:
        recipe, prefix = self._recipe, self._recipe.data.prefix

        def read(row: Row, columns: Columns) -> list[Fields]:
            return [(prefix + source, *rest) for source, *rest in self._form.read(row, columns)]

        examples = Examples(recipe.data, source, self._form.roles(source), read)
        tokenizer = given or train_tokenizer(
            recipe.text,
            [side_of(examples.split("train"), side) for side in range(2)],
        )
        limits = pair_limits(recipe, keep_end=self._form.keep_end)
        fitter = Fitter(tokenizer, limits, recipe.data, closed=True)
        arrays: dict[str, Array] = {"vectors": np.empty((0, 0))}
        meta: dict[str, Any] = {"references": {}, "sources": {}, "words": []}
        for split in SPLITS:
            (sources, targets), kept = fitter.encode(split, examples.split(split))
            store_ragged(arrays, f"{split}.source", sources)
            store_ragged(arrays, f"{split}.target", targets)
            if split != "train":
                meta["references"][split] = [fields[1] for fields in kept]
                meta["sources"][split] = [fields[0] for fields in kept[:SHOWN]]
            elif self._form.needs_vectors:
                vectors = train_vectors([fields[1] for fields in kept])
                meta["words"], arrays["vectors"] = [*vectors], np.stack([*vectors.values()])
        report = {**examples.report, "overlong": fitter.report, "vocab_size": len(tokenizer)}
        if self._form.dictionary:
            report["dictionary"] = self._judge_dictionary(examples, self._form.dictionary)
        return tokenizer, Entry(arrays, {**meta, "report": report})

    def _judge_dictionary(
        self, examples: Examples, translate: Callable[[list[Fields], list[str]], list[str]]
    ) -> dict[str, float]:
        """The main metric of translating word by word."""
        train, metric, found = [*examples.split("train")], self.main_metric, {}
        for split in ("validation", "test"):
            sources, references = (list(side) for side in zip(*examples.split(split), strict=True))
            rows = self._form.judge(translate(train, sources), references, {}).statistics[metric]
            found[split] = score(metric, rows)
        return found


def pair_limits(recipe: Recipe, *, keep_end: bool = False) -> list[Limit]:
    """How long a source and a target may be."""
    target = recipe.model.decoder_max_len
    assert target is not None
    return [
        Limit(recipe.model.max_len, "model.max_len", keep_end),
        Limit(target, "model.decoder_max_len"),
    ]


def share_pairs(
    order: Order,
    sources: Ragged,
    targets: Ragged,
    tokenizer: PreTrainedTokenizerFast,
    start: int,
    rank: int,
    world: int,
) -> Iterator[Batch]:
    """This rank's part of every batch of an order."""
    for _, batch in order.batches(start):
        yield own_part(batch, partial(_pair_batch, sources, targets, tokenizer), rank, world)


def pairs_in_order(
    sources: Ragged, targets: Ragged, tokenizer: PreTrainedTokenizerFast, batch_tokens: int
) -> Iterator[Batch]:
    """Every pair once, in order."""
    lengths = np.column_stack([sources.lengths, targets.lengths])
    for indices in in_order(lengths, batch_tokens):
        yield _pair_batch(sources, targets, tokenizer, indices)


def _pair_batch(
    sources: Ragged, targets: Ragged, tokenizer: PreTrainedTokenizerFast, indices: Array
) -> Batch:
    return pair_batch(
        [sources[i] for i in indices],
        [targets[i] for i in indices],
        indices=indices,
        pad=tokenizer.pad_token_id,
    )


def store_ragged(arrays: dict[str, Array], name: str, ragged: Ragged) -> None:
    """Put lists among the arrays of a cache entry."""
    arrays[f"{name}.flat"], arrays[f"{name}.offsets"] = ragged.flat, ragged.offsets


def load_ragged(arrays: dict[str, Array], name: str, limit: int | None = None) -> Ragged:
    """Take lists out again, only the first `limit` where one is given."""
    offsets = arrays[f"{name}.offsets"]
    return Ragged(arrays[f"{name}.flat"], offsets if limit is None else offsets[: limit + 1])
