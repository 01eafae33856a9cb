"""From a recipe's rows to encoded splits: what every task shares before its batches."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from transformers import PreTrainedTokenizerFast

from synthesizer.data.batch import Ragged
from synthesizer.data.columns import Faults, cut_splits, hash_text, infer_columns, read_rows
from synthesizer.data.encoded_cache import Entry, cache_folder, cache_key, fetch
from synthesizer.data.sources import SPLITS, Row, Source, data_folder, open_source
from synthesizer.data.tokenizer import encode, fingerprint, load_tokenizer, wrap
from synthesizer.errors import UserError
from synthesizer.experiment.recipe import Data, Recipe

T = TypeVar("T")

Fields = tuple[str, ...]  # of one example; the first is its input
Columns = dict[str, str]  # role -> column

CHUNK = 4096


class Examples:
    """The examples of each split, read as often as asked; `report` says what was met.

    `read` makes the examples of one row; rows are cut into missing splits by their inputs.
    """

    def __init__(
        self,
        data: Data,
        source: Source,
        roles: Fields,
        read: Callable[[Row, Columns], list[Fields]],
    ) -> None:
        self._data, self._source, self._read = data, source, read
        self.columns = infer_columns(source.splits["train"](), roles, data.columns)
        self.report: dict[str, Any] = {"origin": source.origin, "columns": self.columns}
        self.report |= {"examples": {}, "bad_rows": {}}
        self._missing = [split for split in SPLITS if split not in source.splits]
        self._cut: dict[bytes, str] = {}
        if self._missing:
            keys = (_key(examples) for examples in self._rows("train", Faults(data.skip_bad)))
            self._cut = cut_splits(keys, self._missing, data.holdout)
            self.report["cut_from_train"] = {
                "splits": self._missing,
                "share": data.holdout,
                "by": "hash of the input",
            }

    def split(self, split: str) -> Iterator[Fields]:
        """The examples of one split, in order."""
        faults, count = Faults(self._data.skip_bad), 0
        home = "train" if split in self._missing else split
        for examples in self._rows(home, faults):
            if home != "train" or self._cut.get(hash_text(_key(examples)), "train") == split:
                count += len(examples)
                yield from examples
        if count == 0:
            raise UserError(f"the {split} split has no example; check [data]")
        self.report["examples"][split] = count
        if faults.counts and home == split:
            self.report["bad_rows"][split] = dict(faults.counts)

    def _rows(self, home: str, faults: Faults) -> Iterator[list[Fields]]:
        rows = self._source.splits[home]()
        return read_rows(rows, lambda row: self._read(row, self.columns), faults)


def _key(examples: list[Fields]) -> str:
    return "\0".join(fields[0] for fields in examples)


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

    def encode(self, split: str, examples: Iterable[Fields]) -> tuple[list[Ragged], list[Fields]]:
        """Token numbers of the first fields, one Ragged each, and the examples kept."""
        counts: Counter[str] = Counter()
        sides: list[list[list[int]]] = [[] for _ in self._limits]
        kept: list[Fields] = []
        for chunk in chunked(examples, CHUNK):
            encoded = [
                encode(self._tokenizer, [fields[side] for fields in chunk], closed=self._closed)
                for side in range(len(self._limits))
            ]
            for fields, *ids in zip(chunk, *encoded, strict=True):
                fitted = self._fit(split, fields, ids, counts)
                if fitted is not None:
                    kept.append(fields)
                    for side, tokens in zip(sides, fitted, strict=True):
                        side.append(tokens)
        if not kept:
            raise UserError(f"no example of {split} is left; see data.overlong and model.max_len")
        if counts:
            self.report[split] = dict(counts)
        return [Ragged.of(side) for side in sides], kept

    def _fit(
        self, split: str, fields: Fields, ids: list[list[int]], counts: Counter[str]
    ) -> list[list[int]] | None:
        long = [
            (limit, tokens)
            for limit, tokens in zip(self._limits, ids, strict=True)
            if len(tokens) > limit.length
        ]
        if not long:
            return ids
        limit, tokens = long[0]
        if self._policy == "error":
            raise UserError(
                f"an example of {split} has {len(tokens)} tokens where {limit.key}={limit.length} "
                f"('{fields[0][:40]}...'); raise {limit.key}, or set data.overlong to truncate or "
                "drop"
            )
        if self._policy == "drop" and split == "train":
            counts["dropped"] += 1
            return None
        counts["truncated"] += 1
        return [
            truncate(tokens, limit, self._tokenizer.eos_token_id)
            for limit, tokens in zip(self._limits, ids, strict=True)
        ]


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


def side_of(examples: Iterable[Fields], side: int) -> Iterator[str]:
    """One field of each example."""
    return (fields[side] for fields in examples)


def chunked(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items, the last maybe shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
