"""From a recipe's rows to encoded splits: what every task shares before its batches."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from synthesizer.data.batch import Ragged
from synthesizer.data.columns import (
    SAMPLE,
    Faults,
    cut_splits,
    hash_text,
    infer_columns,
    read_rows,
)
from synthesizer.data.encoded_cache import Entry, cache_folder, cache_key, fetch
from synthesizer.data.sources import SPLITS, Row, Source, data_folder, open_source
from synthesizer.data.tokenizer import encode, fingerprint, load_tokenizer, wrap
from synthesizer.errors import UserError
from synthesizer.experiment.recipe import Data, Recipe

T = TypeVar("T")

Array = NDArray[Any]
Fields = tuple[str, ...]  # of one example; the first is its input
Columns = dict[str, str]  # role -> column

CHUNK = 4096


class Table:
    """Examples by column, packed: Python's own strings take 50 bytes beside their characters."""

    def __init__(self, columns: list[pa.ChunkedArray]) -> None:
        self._columns = columns

    @classmethod
    def of(cls, examples: Iterable[Fields]) -> "Table":
        """Pack examples, a chunk at a time."""
        packed: list[list[pa.Array]] = []
        for chunk in chunked(examples, CHUNK):
            fields = zip(*chunk, strict=True)
            packed.append([pa.array(column, pa.large_string()) for column in fields])
        return cls([pa.chunked_array(chunks) for chunks in zip(*packed, strict=True)])

    def __len__(self) -> int:
        return len(self._columns[0]) if self._columns else 0

    def column(self, index: int) -> Iterator[str]:
        """One field of each example."""
        for chunk in self._columns[index].chunks:
            yield from chunk.to_pylist()

    def chunks(self) -> Iterator[list[Fields]]:
        """All examples, some thousand at a time."""
        for begin in range(0, len(self), CHUNK):
            columns = (column.slice(begin, CHUNK).to_pylist() for column in self._columns)
            yield list(zip(*columns, strict=True))

    def take(self, chosen: Array) -> "Table":
        """Those where `chosen` is true."""
        mask = pa.array(chosen)
        return Table([column.filter(mask) for column in self._columns])


class Examples:
    """The examples of each split, read once; `report` says what was found.

    `read` makes the examples of one row; a missing split is cut from train by the hash of the
    inputs. Train is read at once, the other files when they are asked for.
    """

    def __init__(
        self,
        data: Data,
        source: Source,
        roles: Fields | Callable[[list[Row]], Fields],
        read: Callable[[Row, Columns], list[Fields]],
    ) -> None:
        self._data, self._source, self._read = data, source, read
        rows = source.splits["train"]()
        sample = list(islice(rows, SAMPLE))
        named = roles(sample) if callable(roles) else roles
        self.columns = infer_columns(sample, named, data.columns)
        self.report: dict[str, Any] = {"origin": source.origin, "columns": self.columns}
        self.report |= {"examples": {}, "bad_rows": {}}
        self._tables: dict[str, Table] = {}
        missing = [split for split in SPLITS if split not in source.splits]
        if not missing:
            self._tables["train"] = Table.of(self._examples("train", chain(sample, rows)))
            return
        hashes: list[bytes] = []
        whole = Table.of(self._examples("train", chain(sample, rows), hashes))
        cut = cut_splits(hashes, missing, data.holdout)
        homes = np.array([cut.get(value, "train") for value in hashes])
        self._tables = {split: whole.take(homes == split) for split in ("train", *missing)}
        by = {"splits": missing, "share": data.holdout, "by": "hash of the input"}
        self.report["cut_from_train"] = by

    def split(self, split: str) -> Table:
        """The examples of one split, in order."""
        if split not in self._tables:
            self._tables[split] = Table.of(self._examples(split, self._source.splits[split]()))
        table = self._tables[split]
        if not len(table):
            raise UserError(f"the {split} split has no example; check [data]")
        self.report["examples"][split] = len(table)
        return table

    def whole_column(self, index: int) -> Iterator[str]:
        """One field of every example of the train files, those of splits cut from it included."""
        cut = self.report.get("cut_from_train", {"splits": []})["splits"]
        return chain.from_iterable(self._tables[s].column(index) for s in ("train", *cut))

    def _examples(
        self, split: str, rows: Iterable[Row], hashes: list[bytes] | None = None
    ) -> Iterator[Fields]:
        """Those of every good row; `hashes` gets one of each example, of all its row's inputs."""
        faults = Faults(self._data.skip_bad)
        for examples in read_rows(rows, lambda row: self._read(row, self.columns), faults):
            if hashes is not None:
                key = "\0".join(fields[0] for fields in examples)
                hashes += [hash_text(key)] * len(examples)
            yield from examples
        if faults.counts:
            self.report["bad_rows"][split] = dict(faults.counts)


@dataclass(frozen=True)
class Limit:
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
        self._closed = closed  # by the end of text, whatever the tokenizer does
        self.report: dict[str, dict[str, int]] = {}

    def encode(self, split: str, examples: Table) -> tuple[list[Ragged], Table]:
        """Token numbers of the first fields, one Ragged each, and the examples kept."""
        counts: Counter[str] = Counter()
        parts: list[list[Ragged]] = []
        kept: list[bool] = []
        for chunk in examples.chunks():
            encoded = [
                encode(self._tokenizer, [fields[side] for fields in chunk], closed=self._closed)
                for side in range(len(self._limits))
            ]
            dropped = self._fit(split, chunk, encoded, counts)
            kept += [index not in dropped for index in range(len(chunk))]
            if len(dropped) < len(chunk):
                parts.append([Ragged.of(side) for side in _without(encoded, dropped)])
        if not any(kept):
            raise UserError(f"no example of {split} is left; see data.overlong and model.max_len")
        if counts:
            self.report[split] = dict(counts)
        sides = [Ragged.join(side) for side in zip(*parts, strict=True)]
        return sides, examples if all(kept) else examples.take(np.array(kept))

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


def _without(encoded: list[list[list[int]]], dropped: set[int]) -> list[list[list[int]]]:
    if not dropped:
        return encoded
    return [[ids for i, ids in enumerate(side) if i not in dropped] for side in encoded]


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

    `build` gets the tokenizer to use, or None to train one.
    """
    source = source or open_source(recipe.data, data_folder())
    given = given_tokenizer(recipe, tokenizer_dir)
    settings = recipe.model_dump_json(include={"task", "data", "text"})
    lengths = f"{recipe.model.max_len} {recipe.model.decoder_max_len}"
    words = [settings, lengths, source.fingerprint, fingerprint(given) if given else ""]
    trained = given

    def encoded() -> Entry:
        nonlocal trained
        trained, entry = build(source, given)
        text = None if given else trained.backend_tokenizer.to_str()
        entry.meta["report"]["unknown_tokens"] = _count_unknown(entry, trained.unk_token_id)
        return Entry(entry.arrays, {**entry.meta, "tokenizer": text})

    entry = fetch(cache_folder(), cache_key(*words), encoded)
    return trained or load_text(entry.meta["tokenizer"]), entry


def _count_unknown(entry: Entry, unknown: int | None) -> dict[str, int]:
    """How many tokens of each list a tokenizer of words did not know."""
    ids = {name: array for name, array in entry.arrays.items() if array.dtype == np.int32}
    counts = {
        name.removesuffix(".flat"): int((array == unknown).sum()) for name, array in ids.items()
    }
    return {name: count for name, count in counts.items() if count}


def given_tokenizer(
    recipe: Recipe, tokenizer_dir: str | Path | None
) -> PreTrainedTokenizerFast | None:
    """The tokenizer of a folder: as asked, as the recipe names it, or of the run it starts from."""
    start = Path(recipe.train.start_from) / "model" if recipe.train.start_from else None
    folder = tokenizer_dir or recipe.text.tokenizer or start
    return load_tokenizer(folder) if folder else None


def load_text(text: str) -> PreTrainedTokenizerFast:
    """A tokenizer from its JSON."""
    from tokenizers import Tokenizer

    return wrap(Tokenizer.from_str(text))


def chunked(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items, the last maybe shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
