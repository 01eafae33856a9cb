"""Text to text: what translation, summaries and replies share."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from synthesizer_attention.data.batch import Batch, Ragged, pair_batch
from synthesizer_attention.data.columns import text_of
from synthesizer_attention.data.encoded_cache import Entry
from synthesizer_attention.data.files import Row
from synthesizer_attention.data.prepare import Columns, Examples, Fitter, Limit, tokenizer_texts
from synthesizer_attention.data.sources import SPLITS, Source
from synthesizer_attention.data.spill import Fields
from synthesizer_attention.data.tokenizer import train_tokenizer
from synthesizer_attention.metrics import DOCUMENTS, score, train_vectors
from synthesizer_attention.run.recipe import Recipe
from synthesizer_attention.tasks.task import SHOWN, Built, ListTask, Outputs, Scores

Array = NDArray[Any]
Vectors = Mapping[str, Array]
Baseline = Callable[[Iterable[Fields], list[str]], list[str]]


@dataclass(frozen=True)
class Judgement:
    """Per-example statistics of each metric, and the signatures they need."""

    statistics: dict[str, Array]
    signatures: dict[str, str]


def read_pair(row: Row, columns: Columns) -> list[Fields]:
    """The one example of a row that has a source and a target."""
    return [(text_of(row, columns["source"]), text_of(row, columns["target"]))]


@dataclass(frozen=True)
class Form:
    """What tells one text-to-text task from another."""

    judge: Callable[[list[str], list[str], Vectors], Judgement]  # outputs, references, vectors
    main_metric: str
    roles: Fields | Callable[[list[Row]], Fields] = ("source", "target")
    read: Callable[[Row, Columns], list[Fields]] = read_pair
    baseline: Baseline | None = None  # train, sources: what can be written without a network
    baseline_name: str = ""  # its key in the report of the data
    keep_end: bool = False  # of a source that is too long
    needs_vectors: bool = False
    turn: str | None = None  # what joins the turns of a conversation


class PairTask(ListTask):
    """Lists of source and target tokens for an encoder-decoder."""

    kind = "encoder_decoder"
    generates = True
    sides = ("source", "target")

    def _decode(self, lists: Ragged, limit: int | None = None) -> list[str]:
        """The texts of token lists, without special tokens."""
        count = len(lists) if limit is None else min(limit, len(lists))
        rows = [lists[index].tolist() for index in range(count)]
        texts: list[str] = self.tokenizer.batch_decode(rows, skip_special_tokens=True)
        return texts

    def _batch(self, split: str, lists: list[list[Array]], indices: Array) -> Batch:
        sources, targets = lists
        return pair_batch(sources, targets, indices=indices, pad=self.tokenizer.pad_token_id)


class Pairs(PairTask):
    """Source and target texts, in a form."""

    def __init__(self, recipe: Recipe, tokenizer_dir: str | Path | None, form: Form) -> None:
        self._form, self.main_metric = form, form.main_metric
        super().__init__(recipe, tokenizer_dir)

    def score(self, split: str, outputs: Outputs) -> Scores:
        """The form's metrics of the generated texts, and the perplexity of the references."""
        texts = list(outputs.texts)
        sources, references = self._texts(split)
        vectors = dict(zip(self._meta["words"], self._arrays["vectors"], strict=True))
        judgement = self._form.judge(texts, references, vectors)
        rows = {**judgement.statistics, "perplexity": outputs.perplexity_statistics()}
        metrics = {name: score(name, each) for name, each in rows.items()}
        metrics["loss"] = outputs.loss
        shown = zip(sources, references, texts, strict=False)
        samples = [dict(zip(("source", "reference", "output"), s, strict=True)) for s in shown]
        samples = samples[: self._recipe.evaluate.samples]
        single = np.arange(len(references))  # train: documents are for verdicts
        documents = self._arrays.get(f"{split}.documents", single)[: len(references)]
        return Scores(metrics, judgement.signatures, {**rows, DOCUMENTS: documents}, samples)

    def _texts(self, split: str) -> tuple[list[str], list[str]]:
        """The first sources of a split, and all its references.

        Train's texts are not kept, because of their size: they are decoded from their tokens.
        """
        if split != "train":
            references = self._meta["references"][split][: self._limit(split)]
            return self._meta["sources"][split], references
        sources, targets = self._lists(split)
        return self._decode(sources, SHOWN), self._decode(targets)

    def _build(self, source: Source, given: PreTrainedTokenizerFast | None) -> Built:
        recipe, form, prefix = self._recipe, self._form, self._recipe.data.prefix

        def read(row: Row, columns: Columns) -> list[Fields]:
            return [(prefix + source, *rest) for source, *rest in form.read(row, columns)]

        examples = Examples(recipe.data, source, form.roles, read)
        train = examples.split("train")
        tokenizer = given or train_tokenizer(
            recipe.text, tokenizer_texts(recipe.text, train, [0, 1], examples.report)
        )
        limits = pair_limits(recipe, keep_end=form.keep_end)
        fitter = Fitter(tokenizer, limits, recipe.data, closed=True)
        arrays: dict[str, Array] = {"vectors": np.empty((0, 0))}
        meta: dict[str, Any] = {"references": {}, "sources": {}, "words": []}
        for split in SPLITS:
            lists, kept = fitter.encode(split, examples.split(split))
            self._store(arrays, split, lists)
            if split != "train":
                arrays[f"{split}.documents"] = conversations([*kept.column(0)], form.turn)
                meta["references"][split] = [*kept.column(1)]
                meta["sources"][split] = [*kept.column(0)][:SHOWN]
            elif form.needs_vectors:
                vectors = train_vectors([*kept.column(1)])
                meta["words"], arrays["vectors"] = [*vectors], np.stack([*vectors.values()])
        report = {
            **examples.report,
            "overlong": fitter.report,
            "longest": fitter.longest,
            "vocab_size": len(tokenizer),
        }
        if form.baseline:
            vectors = dict(zip(meta["words"], arrays["vectors"], strict=True))
            floor = self._judge_baseline(examples, form.baseline, vectors)
            report[form.baseline_name] = floor
        return tokenizer, Entry(arrays, {**meta, "report": report})

    def _judge_baseline(
        self, examples: Examples, write: Baseline, vectors: Vectors
    ) -> dict[str, float]:
        """The main metric of what can be written without a network."""
        held_out = ("validation", "test")
        texts = {n: [list(examples.split(n).column(side)) for side in (0, 1)] for n in held_out}
        chunks = examples.split("train").chunks()
        train = (pair for chunk in chunks for pair in chunk)  # which may be millions
        written = iter(write(train, [source for n in held_out for source in texts[n][0]]))
        metric, found = self.main_metric, {}
        for split, (sources, references) in texts.items():
            outputs = list(islice(written, len(sources)))
            rows = self._form.judge(outputs, references, vectors).statistics[metric]
            found[split] = score(metric, rows)
        return found


def conversations(sources: list[str], turn: str | None) -> Array:
    """A number per example; one whose source goes on from the one before shares its number."""
    pairs = pairwise(sources)
    goes_on = [turn is not None and source.startswith(last + turn) for last, source in pairs]
    return np.cumsum([0, *(not same for same in goes_on)])


def pair_limits(recipe: Recipe, *, keep_end: bool = False) -> list[Limit]:
    """How long a source and a target may be."""
    target = recipe.model.decoder_max_len
    assert target is not None
    return [
        Limit(recipe.model.max_len, "model.max_len", keep_end),
        Limit(target, "model.decoder_max_len"),
    ]
