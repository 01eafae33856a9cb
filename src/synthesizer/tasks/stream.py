"""Documents as one stream of tokens, each document after an end-of-text token.

    </s> first document </s> second document </s>

Train may be read block by block instead of at once: then block b takes the place of epoch b.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from synthesizer.data.batch import num_windows
from synthesizer.data.columns import text_of
from synthesizer.data.encoded_cache import Entry, cache_folder, cache_key, fetch
from synthesizer.data.prepare import Columns, Examples, Fields, chunked, prepare
from synthesizer.data.sampler import Order
from synthesizer.data.sources import SPLITS, Row, Source, data_folder, open_source
from synthesizer.data.tokenizer import Template, encode_documents, fingerprint, train_tokenizer
from synthesizer.errors import UserError
from synthesizer.experiment.recipe import Recipe
from synthesizer.metrics import bigram_statistics, fit_bigram, score

Array = NDArray[Any]

BLOCK = 4096  # documents that a streamed train split is read, shuffled and forgotten by


class Stream:
    """The token streams of a recipe's splits, cut into windows `stride` tokens apart."""

    def __init__(
        self,
        recipe: Recipe,
        tokenizer_dir: str | Path | None,
        *,
        stride: int,
        template: Template,
    ) -> None:
        self._recipe, self._stride, self._template = recipe, stride, template
        self._source = open_source(recipe.data, data_folder())
        self.tokenizer, entry = prepare(recipe, tokenizer_dir, self._build, source=self._source)
        self._arrays, self.report = entry.arrays, entry.meta["report"]
        self.shown: dict[str, list[str]] = entry.meta["shown"]

    def train(self, start: int, cost: int) -> Iterator[tuple[int, Array, Array]]:
        """Epoch, stream and windows of every batch from the start-th; a window costs `cost`."""
        if self._recipe.data.streaming:
            return self._train_by_blocks(start, cost)
        stream = self._arrays["train"]
        batches = self._order(len(stream), cost).batches(start)
        return ((epoch, stream, windows) for epoch, windows in batches)

    def split(self, split: str) -> tuple[Array, Array]:
        """The stream of a split and its windows; of validation the first evaluate.limit."""
        stream = self._arrays[split]
        limit = self._recipe.evaluate.limit if split == "validation" else None
        return stream, np.arange(num_windows(len(stream), self._stride))[:limit]

    def spelled(self, split: str, windows: Array) -> tuple[list[int], list[int]]:
        """Words and bytes that the targets of each window spell."""
        sums = self._arrays[f"{split}.spelled"]  # (2, tokens) up to and with each token
        last = sums.shape[1] - 1
        ends = np.minimum((windows + 1) * self._stride, last)
        words, size = sums[:, ends] - sums[:, windows * self._stride]
        return words.tolist(), size.tolist()

    def _order(self, tokens: int, cost: int) -> Order:
        lengths = np.full((num_windows(tokens, self._stride), 1), cost)
        train = self._recipe.train
        return Order(lengths, batch_tokens=train.batch_tokens, seed=self._recipe.seed)

    def _train_by_blocks(self, start: int, cost: int) -> Iterator[tuple[int, Array, Array]]:
        """Blocks before the start are passed over by their known sizes, not encoded again."""
        for block, documents in self._blocks():
            encoded: list[Array] = []
            order = self._order(self._block_size(block, documents, encoded), cost)
            if start >= order.batches_per_epoch:
                start -= order.batches_per_epoch
                continue
            stream = encoded[0] if encoded else self._encode(documents)
            for windows in order.epoch(block)[start:]:
                yield block, stream, windows
            start = 0

    def _blocks(self) -> Iterator[tuple[int, list[str]]]:
        """Blocks of documents without end: after the last document comes the first."""
        numbers = count()
        while True:
            examples = Examples(self._recipe.data, self._source, ("text",), self._read)
            for block in chunked((text for (text,) in examples.split("train")), BLOCK):
                yield next(numbers), block

    def _block_size(self, block: int, documents: list[str], encoded: list[Array]) -> int:
        def measure() -> Entry:
            encoded.append(self._encode(documents))
            return Entry({}, {"tokens": len(encoded[0])})

        words = [self._source.fingerprint, self._recipe.data.model_dump_json()]
        key = cache_key("block", str(block), *words, fingerprint(self.tokenizer))
        return int(fetch(cache_folder(), key, measure).meta["tokens"])

    def _encode(self, documents: list[str]) -> Array:
        return join_documents(self.tokenizer, documents)

    def _read(self, row: Row, columns: Columns) -> list[Fields]:
        return [(text_of(row, columns["text"], blank=self._recipe.data.keep_blank),)]

    def _build(
        self, source: Source, given: PreTrainedTokenizerFast | None
    ) -> tuple[PreTrainedTokenizerFast, Entry]:
        recipe = self._recipe
        if recipe.data.streaming:
            source = first_block(source)
        examples = Examples(recipe.data, source, ("text",), self._read)
        tokenizer = given or train_tokenizer(
            recipe.text, [_documents(examples, "train")], self._template
        )
        arrays: dict[str, Array] = {}
        shown: dict[str, list[str]] = {}
        if not recipe.data.streaming:
            arrays["train"] = join_documents(tokenizer, _documents(examples, "train"))
        for split in ("validation", "test"):
            documents = [*_documents(examples, split)]
            arrays[split] = join_documents(tokenizer, documents)
            arrays[f"{split}.spelled"] = measure_documents(tokenizer, documents)
            shown[split] = documents[:1]
        report = {**examples.report, "vocab_size": len(tokenizer)}
        report["tokens"] = {split: len(arrays[split]) - 1 for split in SPLITS if split in arrays}
        if recipe.data.streaming:
            report["streaming"] = f"tokenizer and held-out splits: first {BLOCK} documents of each"
        if recipe.text.kind == "byte":
            report["bigram"] = _bigram(examples)
        return tokenizer, Entry(arrays, {"report": report, "shown": shown})


def _documents(examples: Examples, split: str) -> Iterator[str]:
    return (text for (text,) in examples.split(split))


def first_block(source: Source) -> Source:
    """The beginning of each split of a source that is too large to be read at once."""
    missing = [split for split in SPLITS if split not in source.splits]
    if missing:
        raise UserError(
            f"data.streaming reads train bit by bit and cannot cut {' and '.join(missing)} from "
            f"it; set data.splits.{missing[0]} or data.{missing[0]}"
        )
    return Source(
        source.origin,
        source.fingerprint,
        {split: partial(_begin, rows) for split, rows in source.splits.items()},
    )


def _begin(rows: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    return islice(rows(), BLOCK)


def join_documents(tokenizer: PreTrainedTokenizerFast, documents: Iterable[str]) -> Array:
    """The stream of documents, an end of text before and after each."""
    eos = np.array([tokenizer.eos_token_id], dtype=np.int32)
    parts = [eos]
    for chunk in chunked(documents, 256):
        for tokens, _ in encode_documents(tokenizer, chunk):
            parts += [np.array(tokens, dtype=np.int32), eos]
    return np.concatenate(parts)


def measure_documents(tokenizer: PreTrainedTokenizerFast, documents: list[str]) -> Array:
    """(2, tokens): words and bytes spelled up to and with each token of the stream.

    An end of text counts as a word and as no byte.
    """
    end = np.array([[1], [0]])
    parts = [np.zeros((2, 1), dtype=np.int64)]
    for chunk in chunked(documents, 256):
        for text, (_, starts) in zip(chunk, encode_documents(tokenizer, chunk), strict=True):
            parts += [measure_tokens(text, starts), end]
    return np.cumsum(np.concatenate(parts, axis=1), axis=1)


def measure_tokens(text: str, starts: list[int]) -> Array:
    """(2, tokens): words that begin in, and bytes of, the text from one token's start to the next.

    Tokens of one character's bytes share their start: the last of them gets it all.
    """
    if not starts:
        return np.zeros((2, 0), dtype=np.int64)
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    widths = 1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000)
    inside = np.array([not character.isspace() for character in text])
    begins = inside & ~np.concatenate([[False], inside[:-1]])
    edges = np.array([0, *starts[1:], len(text)])
    sums = np.cumsum(np.stack([begins, widths]), axis=1)
    return np.diff(np.concatenate([[[0], [0]], sums], axis=1)[:, edges], axis=1)


def _bigram(examples: Examples) -> dict[str, float]:
    """Bits per byte of an interpolated bigram model of train: what a model must beat."""
    table = fit_bigram([text.encode() for text in _documents(examples, "train")])
    return {
        split: score(
            "bits_per_byte",
            bigram_statistics(table, [text.encode() for text in _documents(examples, split)]),
        )
        for split in ("validation", "test")
    }
