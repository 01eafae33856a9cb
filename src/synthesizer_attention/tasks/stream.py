"""Documents as one stream of tokens, each after an end of text: language models, span corruption.

    </s> first document </s> second document </s>

Train may be read block by block instead of at once: then block b takes the place of epoch b.
"""

import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from synthesizer_attention.data.batch import (
    Batch,
    Order,
    corrupt,
    corrupted_lengths,
    num_windows,
    own_part,
    pair_batch,
    uncorrupted_length,
    window,
    window_batch,
)
from synthesizer_attention.data.cache import (
    Entry,
    Fields,
    Numbers,
    cache_folder,
    cache_key,
    chunked,
    fetch,
    find,
)
from synthesizer_attention.data.columns import SAMPLE, Faults, infer_columns, read_rows, text_of
from synthesizer_attention.data.files import Row
from synthesizer_attention.data.prepare import Columns, Examples, tokenizer_texts
from synthesizer_attention.data.sources import (
    SPLITS,
    RowStream,
    Source,
    State,
    data_folder,
    open_source,
)
from synthesizer_attention.data.tokenizer import (
    EOS,
    NUM_SENTINELS,
    Encoder,
    Template,
    encode_documents,
    fingerprint,
    sentinel,
    train_tokenizer,
)
from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.labels import DOCUMENTS
from synthesizer_attention.metrics.language_model import (
    ENOUGH_TOKENS,
    bigram_statistics,
    fit_bigram,
    language_model_statistics,
    token_bigram_perplexity,
)
from synthesizer_attention.metrics.scores import score
from synthesizer_attention.run.recipe import Recipe
from synthesizer_attention.run.recipe_keys import Data
from synthesizer_attention.tasks.task import HELD_OUT, Built, Outputs, Scores, Task

Array = NDArray[Any]

TENTH = 10  # of a held-out split that is shared: every tenth document validates, the others test
BLOCK = 4096  # documents that a streamed train split is read, shuffled and forgotten by


class StreamTask(Task):
    """Token streams cut into windows `stride` tokens apart; a window costs `cost` tokens."""

    higher_is_better = False

    def __init__(
        self,
        recipe: Recipe,
        tokenizer_dir: str | Path | None,
        *,
        stride: int,
        cost: int,
        template: Template,
    ) -> None:
        self._stride, self._cost, self._template = stride, cost, template
        self._source = open_source(recipe.data, data_folder())
        super().__init__(recipe, tokenizer_dir, self._source)

    def train_batches(self, start: int = 0, *, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Endless batches of windows in random order."""
        if self._recipe.data.streaming:
            batches = self._train_by_blocks(start)
        else:
            stream = self._arrays["train"]
            if self._recipe.train.data_share < 1:  # its beginning: text must stay connected
                stream = stream[: max(2, round(self._recipe.train.data_share * len(stream)))]
            order = self._order(len(stream)).batches(start)
            batches = ((epoch, stream, windows) for epoch, windows in order)
        for epoch, stream, windows in batches:
            yield own_part(windows, partial(self._batch, stream, epoch), rank, world)

    def batches(self, split: str) -> Iterator[Batch]:
        stream, windows = self.split(split)
        rows = max(1, self._recipe.evaluate.batch_tokens // self._cost)
        for begin in range(0, len(windows), rows):
            yield self._batch(stream, None, windows[begin : begin + rows])

    def split(self, split: str) -> tuple[Array, Array]:
        """The stream of a split and its windows; of validation the first evaluate.limit."""
        if split not in self._arrays:
            raise UserError(
                f"data.streaming reads {split} as a stream, without an end; evaluate validation "
                "or test"
            )
        stream = self._arrays[split]
        return stream, np.arange(num_windows(len(stream), self._stride))[: self._limit(split)]

    def documents(self, split: str) -> Array:
        """The document, or article, of each window: the one that most of its targets belong to."""
        stream, windows = self.split(split)
        ends = np.flatnonzero(stream == self.tokenizer.eos_token_id)[1:]
        owners = np.searchsorted(ends, np.arange(1, len(stream)))  # of every target
        if (articles := self._arrays.get(f"{split}.articles")) is not None:
            owners = articles[owners]
        pieces = [owners[i * self._stride : (i + 1) * self._stride] for i in windows]
        return np.array([piece[0] + np.bincount(piece - piece[0]).argmax() for piece in pieces])

    def _batch(self, stream: Array, epoch: int | None, windows: Array) -> Batch:
        """The batch of some windows; the epoch is None where every run must see the same."""
        raise NotImplementedError

    def _order(self, tokens: int) -> Order:
        lengths = np.full((num_windows(tokens, self._stride), 1), self._cost)
        batch_tokens = self._recipe.train.batch_tokens
        return Order(lengths, batch_tokens=batch_tokens, seed=self._recipe.seed)

    def _train_by_blocks(self, start: int) -> Iterator[tuple[int, Array, Array]]:
        """Blocks before the start are passed over by what is known of them.

        That is their size and the state of the stream behind them, so they are not read again.
        """
        first, state = 0, None
        while (known := find(cache_folder(), self._block_key(first))) is not None:
            size = self._order(known.meta["tokens"]).batches_per_epoch
            if start < size or "after" not in known.meta:
                break
            start, first, state = start - size, first + 1, known.meta["after"]
        for block, documents, after in self._blocks(first, state):
            encoded: list[Array] = []
            order = self._order(self._block_size(block, documents, after, encoded))
            if start >= order.batches_per_epoch:
                start -= order.batches_per_epoch
                continue
            stream = encoded[0] if encoded else join_documents(self.tokenizer, documents)
            for windows in order.epoch(block)[start:]:
                yield block, stream, windows
            start = 0

    def _blocks(self, first: int, state: State | None) -> Iterator[tuple[int, list[str], State]]:
        """Blocks of documents from the first-th on, without end, and the stream's state after each.

        After the last document comes the first.
        """
        numbers, data = count(first), self._recipe.data
        sample = list(islice(self._source.splits["train"](), SAMPLE))
        columns = infer_columns(sample, ("text",), data.columns)
        read, faults = partial(self._read, columns=columns), Faults(data.skip_bad, endless=True)
        while True:
            rows = RowStream(self._source, "train", state)
            documents = (text for ((text,),) in read_rows(iter(rows), read, faults))
            for block in chunked(documents, BLOCK):
                yield next(numbers), block, rows.state()
            state = None

    def _block_size(
        self, block: int, documents: list[str], after: State, encoded: list[Array]
    ) -> int:
        def measure() -> Entry:
            encoded.append(join_documents(self.tokenizer, documents))
            return Entry({}, {"tokens": len(encoded[0]), "after": after})

        return int(fetch(cache_folder(), self._block_key(block), measure).meta["tokens"])

    def _block_key(self, block: int) -> str:
        words = [self._source.fingerprint, self._recipe.data.model_dump_json(), str(BLOCK)]
        return cache_key("block", str(block), *words, fingerprint(self.tokenizer))

    def _read(self, row: Row, columns: Columns) -> list[Fields]:
        return [(text_of(row, columns["text"], blank=self._recipe.data.keep_blank),)]

    def _build(self, source: Source, given: PreTrainedTokenizerFast | None) -> Built:
        recipe, streaming = self._recipe, self._recipe.data.streaming
        read = first_documents(source, recipe.data) if streaming else source
        examples = Examples(recipe.data, read, ("text",), self._read)
        train = examples.split("train")
        tokenizer = given or train_tokenizer(
            recipe.text, tokenizer_texts(recipe.text, train, [0], examples.report), self._template
        )
        arrays: dict[str, Array] = {}
        if not streaming:
            arrays["train"] = join_documents(tokenizer, train.column(0))
        for split in HELD_OUT:
            documents = examples.split(split)
            arrays[split] = join_documents(tokenizer, documents.column(0))
            arrays[f"{split}.spelled"] = measure_documents(tokenizer, documents.column(0))
            if recipe.data.article_start:  # an article begins at every document with the pattern
                starts = re.compile(recipe.data.article_start).search
                found = [starts(text) is not None for text in documents.column(0)]
                arrays[f"{split}.articles"] = np.cumsum(found, dtype=np.int64)
        report = {**examples.report, "vocab_size": len(tokenizer)}
        report["tokens"] = {split: len(arrays[split]) - 1 for split in SPLITS if split in arrays}
        if streaming:
            first = f"first {recipe.data.sample} documents of each"
            report["streaming"] = f"tokenizer and held-out splits: {first}"
            if shared := _shared_split(recipe.data):
                report["streaming"] += f"; of {shared} every tenth validates, the others test"
        if recipe.task == "language_modeling" and recipe.text.kind == "byte":  # what to beat
            texts = {s: [t.encode() for t in examples.split(s).column(0)] for s in SPLITS}
            table = fit_bigram(texts["train"])
            report["bigram"] = {
                split: score("bits_per_byte", bigram_statistics(table, texts[split]))
                for split in HELD_OUT
            }
        elif recipe.task == "language_modeling":
            known = join_documents(tokenizer, train.column(0)) if streaming else arrays["train"]
            held_out, vocab = arrays["validation"], len(tokenizer)
            report["bigram"] = {
                s: token_bigram_perplexity(known[:ENOUGH_TOKENS], held_out, arrays[s], vocab)
                for s in HELD_OUT
            }
        return tokenizer, Entry(arrays, {"report": report})


class LanguageModeling(StreamTask):
    """Each token from those before it in its window."""

    kind = "decoder"

    def __init__(self, recipe: Recipe, tokenizer_dir: str | Path | None = None) -> None:
        length, template = recipe.model.max_len, Template(opening=EOS, closing="")
        super().__init__(recipe, tokenizer_dir, stride=length - 1, cost=length, template=template)
        self.main_metric = "bits_per_byte" if recipe.text.kind == "byte" else "perplexity"

    def score(self, split: str, outputs: Outputs) -> Scores:
        """Perplexities and bits per byte; each window has the words and bytes its targets spell."""
        begins = self.split(split)[1] * self._stride
        name = f"{split}.spelled"
        if name not in self._arrays:  # train's
            examples = Examples(self._recipe.data, self._source, ("text",), self._read)
            documents = examples.split(split).column(0)
            self._arrays[name] = measure_documents(self.tokenizer, documents)
        sums = self._arrays[name]
        ends = np.minimum(begins + self._stride, sums.shape[1] - 1)
        words, size = (sums[:, ends] - sums[:, begins]).tolist()
        rows = language_model_statistics(
            outputs.losses.tolist(), outputs.counts.tolist(), words, size
        )
        names = ("perplexity", "word_perplexity", "bits_per_byte")
        metrics = {name: score(name, rows) for name in names}
        statistics = {self.main_metric: rows, DOCUMENTS: self.documents(split)}
        return Scores({**metrics, "loss": outputs.loss}, {}, statistics)

    def _batch(self, stream: Array, epoch: int | None, windows: Array) -> Batch:
        rows = [window(stream, int(i), length=self._cost, stride=self._stride) for i in windows]
        return window_batch(rows, indices=windows, pad=self.tokenizer.pad_token_id)


class SpanCorruption(StreamTask):
    """A window with random spans replaced by sentinels, to those spans; anew each epoch."""

    kind = "encoder_decoder"
    main_metric = "perplexity"

    def __init__(self, recipe: Recipe, tokenizer_dir: str | Path | None = None) -> None:
        assert recipe.model.decoder_max_len is not None
        length = uncorrupted_length(recipe.model.max_len, recipe.model.decoder_max_len)
        cost, template = sum(corrupted_lengths(length)), Template(sentinels=NUM_SENTINELS)
        super().__init__(recipe, tokenizer_dir, stride=length, cost=cost, template=template)
        vocabulary = self.tokenizer.get_vocab()
        names = [sentinel(number) for number in range(NUM_SENTINELS)]
        self._sentinels = np.array([vocabulary[name] for name in names if name in vocabulary])
        needed = (cost - length - 2) // 2  # spans
        if len(self._sentinels) < needed:
            raise UserError(
                f"the tokenizer has {len(self._sentinels)} tokens {sentinel(0)} ...; windows of "
                f"{length} tokens need {needed}: use another text.tokenizer or lower model.max_len"
            )

    def score(self, split: str, outputs: Outputs) -> Scores:
        """Perplexity of the targets, sentinels and end included."""
        rows = outputs.perplexity_statistics()
        metrics = {"perplexity": score("perplexity", rows), "loss": outputs.loss}
        metrics["token_accuracy"] = float(100 * outputs.correct.sum() / outputs.counts.sum())
        return Scores(metrics, {}, {"perplexity": rows, DOCUMENTS: self.documents(split)})

    def _batch(self, stream: Array, epoch: int | None, windows: Array) -> Batch:
        draw = (0, 0) if epoch is None else (self._recipe.seed + 1, epoch)
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


def _shared_split(data: Data) -> str | tuple[str, ...] | None:
    """The one held-out split of a set that has no other, which validation and test both name."""
    names = {data.splits.get(split, split) for split in HELD_OUT}
    return names.pop() if len(names) == 1 else None


def first_documents(source: Source, data: Data) -> Source:
    """The beginning of each split of a source that is too large to be read at once.

    A shared held-out split is divided: what chooses a checkpoint must not be what is reported.
    """
    missing = [split for split in SPLITS if split not in source.splits]
    if missing:
        raise UserError(
            f"data.streaming reads train as a stream and cannot cut {' and '.join(missing)} from "
            f"it; set data.splits.{missing[0]} or data.{missing[0]}"
        )
    is_shared = _shared_split(data) is not None

    def begin(split: str) -> Iterator[Row]:
        for number, row in enumerate(islice(source.splits[split](), data.sample)):
            if split == "train" or not is_shared or (number % TENTH == 0) == (split != "test"):
                yield row

    return source.with_splits({split: partial(begin, split) for split in source.splits})


def join_documents(tokenizer: PreTrainedTokenizerFast, documents: Iterable[str]) -> Array:
    """The stream of documents, an end of text before and after each."""
    eos, encode = tokenizer.eos_token_id, Encoder(tokenizer, bare=True)
    stream = Numbers(np.int32)
    stream.append(np.array([eos]))
    for chunk in chunked(documents, 256):
        for tokens in encode(chunk):
            stream.append(np.array([*tokens, eos]))
    return stream.array()


def measure_documents(tokenizer: PreTrainedTokenizerFast, documents: Iterable[str]) -> Array:
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


def build(recipe: Recipe, tokenizer_dir: str | Path | None = None) -> StreamTask:
    """The task of a recipe."""
    tasks = {"language_modeling": LanguageModeling, "span_corruption": SpanCorruption}
    return tasks[recipe.task](recipe, tokenizer_dir)
