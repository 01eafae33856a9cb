"""From a recipe's rows to encoded splits: what every task shares before its batches."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from synthesizer_attention.data.batch import Ragged
from synthesizer_attention.data.cache import (
    Entry,
    Fields,
    RaggedWriter,
    Table,
    cache_folder,
    cache_key,
    fetch,
)
from synthesizer_attention.data.columns import (
    SAMPLE,
    Faults,
    cut_splits,
    draw,
    hash_text,
    infer_columns,
    rank_hashes,
    read_rows,
)
from synthesizer_attention.data.files import Row
from synthesizer_attention.data.sources import SPLITS, Source, data_folder, open_source
from synthesizer_attention.data.tokenizer import Encoder, fingerprint, load_tokenizer, wrap
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe import Recipe
from synthesizer_attention.run.recipe_keys import Data, Text

Array = NDArray[Any]
Columns = dict[str, str]  # role -> column

MOST_PIECES = 20_000_000  # bytes of training text that the pieces of BPE are learned from, or:
PER_PIECE = 2_500  # bytes for each of them, where that is more


class Examples:
    """The examples of each split, read once; `report` says what was found.

    `read` makes the examples of one row; a missing split is cut from train by the hash of the
    inputs. Train is read at once, the other files when they are asked for.
    """

    def __init__(
        self,
        data: Data,
        source: Source,
        roles: Fields | Callable[[list[Row], Mapping[str, str]], Fields],
        read: Callable[[Row, Columns], list[Fields]],
    ) -> None:
        self._data, self._source, self._read = data, source, read
        rows = source.splits["train"]()
        whole = data.train and not data.streaming  # a user's file may be sorted
        sample, _ = draw(rows if whole else islice(rows, SAMPLE), SAMPLE)
        rows = source.splits["train"]()
        named = roles(sample, data.columns) if callable(roles) else roles
        self.columns = infer_columns(sample, named, data.columns)
        self.report: dict[str, Any] = {"origin": source.origin, "columns": self.columns}
        self.report |= {"examples": {}, "bad_rows": {}}
        self._tables: dict[str, Table] = {}
        missing = [split for split in SPLITS if split not in source.splits]
        if not missing:
            self._tables["train"] = Table.of(self._examples("train", rows))
            return
        hashes = bytearray()
        table = Table.of(self._examples("train", rows, hashes))
        homes = cut_splits(hashes, missing, data.holdout)
        self._tables = {
            split: table.take(homes == number) for number, split in enumerate(("train", *missing))
        }
        if isinstance(data.holdout, dict):  # the first of them are a sample of a sorted file
            ranks = rank_hashes(hashes)
            for number, split in enumerate(missing, start=1):
                cut = [fields for chunk in self._tables[split].chunks() for fields in chunk]
                order = np.argsort(ranks[homes == number], kind="stable")
                self._tables[split] = Table.of(cut[place] for place in order)
        by = {"splits": missing, "share": data.holdout, "by": "hash of the input"}
        self.report["cut_from_train"] = by

    def split(self, split: str) -> Table:
        """The examples of one split, in order."""
        if split not in self._tables:
            self._tables[split] = Table.of(self._of_parts(split))
        table = self._tables[split]
        if not len(table):
            raise UserError(f"the {split} split has no example; check [data]")
        self.report["examples"][split] = len(table)
        return table

    def _of_parts(self, split: str) -> Iterator[Fields]:
        """The examples of a split; where it has parts the report has the number of each."""
        parts = self._source.parts.get(split) or {split: self._source.splits[split]}
        counts: Counter[str] = Counter()
        for name, read in parts.items():
            for fields in self._examples(split, read()):
                counts[name] += 1
                yield fields
        if len(parts) > 1:
            self.report.setdefault("parts", {})[split] = dict(counts)

    def whole_column(self, index: int) -> Iterator[str]:
        """One field of every example of the train files, those of splits cut from it included."""
        cut = self.report.get("cut_from_train", {"splits": []})["splits"]
        return chain.from_iterable(self._tables[s].column(index) for s in ("train", *cut))

    def _examples(
        self, split: str, rows: Iterable[Row], hashes: bytearray | None = None
    ) -> Iterator[Fields]:
        """Those of every good row; `hashes` gets one of each example, of all its row's inputs."""
        faults = Faults(self._data.skip_bad)
        for examples in read_rows(rows, lambda row: self._read(row, self.columns), faults):
            if hashes is not None:
                key = "\0".join([fields[0] for fields in examples])
                hashes += hash_text(key) * len(examples)
            yield from examples
        if faults.counts:
            before = Counter(self.report["bad_rows"].get(split, {}))  # of other parts
            self.report["bad_rows"][split] = dict(before + faults.counts)


def tokenizer_texts(
    text: Text, train: Table, columns: list[int], report: dict[str, Any]
) -> list[Iterator[str]]:
    """What a tokenizer is learned from: columns of train, or every so-manieth text of large ones.

    Only the pieces of BPE, which take longest, are learned from a sample, and the report says so.
    """
    size = sum(train.num_bytes(column) for column in columns)
    most = max(MOST_PIECES, PER_PIECE * text.vocab_size)
    step = max(1, -(-size // most)) if text.kind == "bpe" else 1
    if step > 1:
        much = f"{size / 1e6:,.0f} million bytes"
        report["tokenizer_sample"] = f"1 of {step} training texts ({much} in all)"
    return [train.column(column, step) for column in columns]


class Limit(NamedTuple):
    """How long one field may be, which key says so, and which end is kept."""

    length: int
    key: str
    keep_end: bool = False


class Fitter:
    """Encode examples within limits, counting what was truncated or dropped.

    Only train loses examples: an over-long one of validation or test is truncated, so that every
    method is scored on the same examples.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, limits: list[Limit], data: Data, *, closed: bool
    ) -> None:
        self._tokenizer, self._limits, self._policy = tokenizer, limits, data.overlong
        self._encode = Encoder(tokenizer, closed=closed)
        self.report: dict[str, dict[str, int]] = {}
        self.longest: dict[str, int] = {}  # 99 of 100 examples of a split have up to so many tokens

    def encode(self, split: str, examples: Table) -> tuple[list[Ragged], Table]:
        """Token numbers of the first fields, one Ragged each, and the examples kept."""
        counts: Counter[str] = Counter()
        sides = [RaggedWriter() for _ in self._limits]
        kept = np.ones(len(examples), dtype=bool)
        lengths = np.zeros(len(examples), dtype=np.int32)
        begin = 0
        for chunk in examples.chunks():
            encoded = [
                self._encode([fields[side] for fields in chunk])
                for side in range(len(self._limits))
            ]
            longer = [max(map(len, lists)) for lists in zip(*encoded, strict=True)]
            lengths[begin : begin + len(chunk)] = longer
            dropped = self._fit(split, chunk, encoded, counts)
            kept[[begin + index for index in dropped]] = False
            begin += len(chunk)
            for side, lists in zip(sides, encoded, strict=True):
                side.append([ids for i, ids in enumerate(lists) if i not in dropped])
        if not kept.any():
            raise UserError(f"no example of {split} is left; see data.overlong and model.max_len")
        if counts:
            self.report[split] = dict(counts)
        self.longest[split] = int(np.quantile(lengths, 0.99, method="higher"))
        return [s.ragged() for s in sides], examples if kept.all() else examples.take(kept)

    def _fit(
        self, split: str, chunk: list[Fields], encoded: list[list[list[int]]], counts: Counter[str]
    ) -> set[int]:
        """Cut what is too long in place; return the indices of examples to drop."""
        dropped: set[int] = set()
        too_long: dict[int, tuple[Limit, int]] = {}  # the first field of an example that is
        for limit, side in zip(self._limits, encoded, strict=True):
            for index, tokens in enumerate(side):
                if len(tokens) > limit.length:
                    too_long.setdefault(index, (limit, len(tokens)))
        for index, (limit, length) in too_long.items():
            if self._policy == "error":
                raise UserError(
                    f"an example of {split} has {length} tokens where {limit.key}={limit.length} "
                    f"('{chunk[index][0][:40]}...'); raise {limit.key}, or set data.overlong to "
                    "truncate or drop"
                )
            if self._policy == "drop" and split == "train":
                dropped.add(index)
                continue
            for limit, side in zip(self._limits, encoded, strict=True):
                side[index] = truncate(side[index], limit, self._tokenizer.eos_token_id)
        if too_long:
            counts["dropped" if dropped else "truncated"] += len(too_long)
        return dropped


def truncate(tokens: list[int], limit: Limit, eos: int) -> list[int]:
    """Cut to the limit, keeping the closing token if there is one, and the end where asked."""
    closing = tokens[-1:] if tokens[-1] == eos else []
    room = limit.length - len(closing)
    body = tokens[: len(tokens) - len(closing)]
    if len(body) <= room:
        return tokens
    return (body[-room:] if limit.keep_end else body[:room]) + closing


def prepare(
    recipe: Recipe,
    tokenizer_dir: str | Path | None,
    build: Callable[
        [Source, PreTrainedTokenizerFast | None], tuple[PreTrainedTokenizerFast, Entry]
    ],
    *,
    source: Source | None = None,
) -> tuple[PreTrainedTokenizerFast, Entry]:
    """Build a recipe's tokenizer and encoded data, or take both from the cache.

    `build` gets the tokenizer to use, or None to train one: that of the folder asked for, that the
    recipe names, or that of the run it starts from.
    """
    source = source or open_source(recipe.data, data_folder())
    start = Path(recipe.train.start_from) / "model" if recipe.train.start_from else None
    folder = tokenizer_dir or recipe.text.tokenizer or start
    given = trained = load_tokenizer(folder) if folder else None
    settings = recipe.model_dump_json(include={"task", "data", "text"})
    lengths = f"{recipe.model.max_len} {recipe.model.decoder_max_len}"
    words = [settings, lengths, source.fingerprint, fingerprint(given) if given else ""]

    def encoded() -> Entry:
        nonlocal trained
        trained, entry = build(source, given)
        text = None if given else trained.backend_tokenizer.to_str()
        if not recipe.data.streaming:
            source.check_unchanged()
        counts = {  # of tokens that a tokenizer of words did not know, of each list
            name.removesuffix(".flat"): sum(
                int(np.count_nonzero(ids[begin : begin + 2**20] == trained.unk_token_id))
                for begin in range(0, len(ids), 2**20)
            )
            for name, ids in entry.arrays.items()
            if ids.dtype == np.int32
        }
        report = {"unknown_tokens": {name: count for name, count in counts.items() if count}}
        entry.meta["report"] |= report | {"identity": source.identity}
        return Entry(entry.arrays, {**entry.meta, "tokenizer": text})

    entry = fetch(cache_folder(), cache_key(*words), encoded)
    return trained or wrap(Tokenizer.from_str(entry.meta["tokenizer"])), entry
