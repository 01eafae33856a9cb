"""Where rows come from: files of the user, built-in corpora, local copies, then the hub."""

import copy
import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from synthesizer_attention.data.files import DATA_SUFFIXES, File, Row, read_files, split_name
from synthesizer_attention.errors import UserError, listed
from synthesizer_attention.run.recipe_keys import Data

State = dict[str, Any]  # of a stream of rows; JSON-able

Reader = Callable[[], Iterator[Row]]

SPLITS = ("train", "validation", "test")
REACH = 10.0  # seconds that the hub may take to answer


class Source:
    """The splits of one data set: each can be read again and again."""

    def __init__(
        self,
        origin: str,  # in the words of the report
        splits: Mapping[str, Reader],
        *,
        files: Sequence[File] = (),
        version: str = "",
        streams: Mapping[str, Any] | None = None,  # of a hub's set that is streamed, by split
        parts: Mapping[str, Mapping[str, Reader]] | None = None,
    ) -> None:
        self.origin, self.splits, self.streams = origin, splits, streams or {}
        self.parts = parts or {}  # of a split that is several of the set's own, in their order
        self._files, self._version = files, version
        self.has_files = bool(files)

    @cached_property
    def fingerprint(self) -> str:
        """What changes with the content, and may change where the content does not."""
        content = [path.name.encode() + digest for path, digest in self._hashes]
        return hashlib.sha256(b"".join([self._version.encode(), *content])).hexdigest()

    @cached_property
    def identity(self) -> str:
        """What is equal wherever the content is: the bytes of files, or else the rows.

        Of a hub's stream, which nobody reads to its end, it is what the hub says of it.
        """
        if self.streams:
            return self.fingerprint
        digest = hashlib.sha256()
        for path, content in self._hashes:
            digest.update(path.suffix.encode() + content)
        for split, read in () if self.has_files else self.splits.items():
            digest.update(split.encode())
            for row in read():
                text = json.dumps(
                    row.fields, sort_keys=True, default=lambda value: repr(type(value))
                )
                digest.update(text.encode() + b"\n")
        return digest.hexdigest()

    @cached_property
    def _hashes(self) -> list[tuple[Path, bytes]]:
        return self._hash_files()

    def _hash_files(self) -> list[tuple[Path, bytes]]:
        return [found for file in self._files for found in file.hashes()]

    def check_unchanged(self) -> None:
        """Refuse files that were written to since they were hashed: what was read may be mixed."""
        if self._hash_files() != self._hashes:
            raise UserError(
                f"{self.origin} changed while being read; run the same command again once "
                "nothing writes to them"
            )

    def with_splits(self, splits: Mapping[str, Reader]) -> "Source":
        """The same content, read in another way."""
        return Source(self.origin, splits, files=self._files, version=self._version)


class Mixture(Source):
    """Several sources, each read by itself, as one."""

    def __init__(self, parts: Mapping[str, Source]) -> None:
        prints = (f"{name} {source.fingerprint}" for name, source in parts.items())
        super().__init__("mixture", {}, version=" ".join(prints))
        self._parts = parts

    @cached_property
    def identity(self) -> str:
        """What changes with the identity of any part."""
        parts = " ".join(f"{name} {source.identity}" for name, source in self._parts.items())
        return hashlib.sha256(parts.encode()).hexdigest()

    def check_unchanged(self) -> None:
        """Refuse a part that was written to since it was hashed."""
        for source in self._parts.values():
            source.check_unchanged()


class RowStream:
    """The rows of a split from the first, or from behind those that a state has passed.

    A hub's stream keeps its own state (shard and row), so that nothing is read twice. Of files the
    rows before are read again, but not encoded.
    """

    def __init__(self, source: Source, split: str, state: State | None = None) -> None:
        self._source, self._split = source, split
        self._number: int = state["number"] if state else 0
        self._hub = copy.deepcopy(source.streams.get(split))
        if self._hub is not None and state:
            self._hub.load_state_dict(state["hub"])

    def __iter__(self) -> Iterator[Row]:
        rows: Iterator[Row]
        if self._hub is None:
            rows = itertools.islice(self._source.splits[self._split](), self._number, None)
        else:
            rows = (
                Row(f"{self._source.origin} {self._split}", number, fields)
                for number, fields in enumerate(self._hub, start=self._number + 1)
            )
        for row in rows:
            self._number += 1
            yield row

    def state(self) -> State:
        """What takes up the stream behind the rows given so far."""
        hub = None if self._hub is None else self._hub.state_dict()
        return {"number": self._number, "hub": hub}


def open_source(data: Data, folder: Path | None) -> Source:
    """Find the rows a recipe names; `folder` is the directory of local copies of the hub's sets."""
    if data.train or data.validation or data.test:
        return _from_files(data)
    if data.builtin:
        return _from_corpus(data.builtin, data.difficulty)
    local = _find_local(data, folder)
    if local is not None:
        return local
    if data.hub:
        return _from_hub(data, folder)
    raise UserError(
        "the recipe names no data; set data.train to a file "
        f"({', '.join(DATA_SUFFIXES)}, .txt or a directory of text), or data.hub to a data set"
    )


def data_folder() -> Path | None:
    """The directory of local copies, from SYNTHESIZER_DATA."""
    name = os.environ.get("SYNTHESIZER_DATA")
    if name and not Path(name).is_dir():
        raise UserError(f"SYNTHESIZER_DATA is {name}, which is not a directory; fix or unset it")
    return Path(name) if name else None


def _from_files(data: Data) -> Source:
    named = {"train": data.train, "validation": data.validation, "test": data.test}
    files = {
        split: [File(Path(name)) for name in ((names,) if isinstance(names, str) else names)]
        for split, names in named.items()
        if names
    }
    if "train" not in files:
        raise UserError(f"data.{next(iter(files))} is given without data.train; give data.train")
    every = [file for group in files.values() for file in group]
    return Source(
        "files " + ", ".join(str(file.path) for file in every),
        {split: partial(read_files, group, header=data.header) for split, group in files.items()},
        files=every,
    )


def _from_corpus(name: str, difficulty: int | None) -> Source:
    from synthesizer_attention.data.corpora import CORPORA, GRADED, describe_corpus

    if name not in CORPORA:
        raise UserError(f"unknown corpus '{name}'; choose data.builtin from {', '.join(CORPORA)}")
    if difficulty is not None and name not in GRADED:
        raise UserError(
            f"data.difficulty is {difficulty}, and '{name}' has none; drop it, or choose "
            f"data.builtin from {', '.join(GRADED)}"
        )
    options = {} if difficulty is None else {"difficulty": difficulty}
    made: dict[str, list[dict[str, str]]] = {}

    def rows(split: str) -> Iterator[Row]:
        made.update(made or CORPORA[name](**options))
        for number, fields in enumerate(made[split], start=1):
            yield Row(f"{name} {split}", number, fields)

    splits = {split: partial(rows, split) for split in SPLITS}
    corpus = describe_corpus(name, difficulty)
    # The corpus's own code is in every key of the cache.
    return Source(f"built-in {corpus}", splits, version=f"{corpus} {sys.version}")


def _find_local(data: Data, folder: Path | None) -> Source | None:
    """The first copy under SYNTHESIZER_DATA that has a train split, if there is one."""
    for place in local_folders(data, folder):
        if not place.is_dir():
            continue
        named = {s: {name: _split_files(place, name) for name in _own(data, s)} for s in SPLITS}
        found = {split: [f for files in parts.values() for f in files] for split, parts in
                 named.items()}  # fmt: skip
        if found["train"]:
            reader = partial(partial, _read_each, header=data.header)
            return Source(
                f"local copy {place.name}",  # a record names no path of one machine
                {split: reader(files) for split, files in found.items() if files},
                files=[file for files in found.values() for file in files],
                parts=_several(
                    {s: {n: reader(f) for n, f in parts.items() if f} for s, parts in named.items()}
                ),
            )
    if data.local and not data.hub:
        raise UserError(
            f"data.local is {data.local!r}, and no such directory with a train split is in "
            f"SYNTHESIZER_DATA ({folder or 'not set'}); fix either, or set data.train=FILE"
        )
    return None


def _own(data: Data, split: str) -> tuple[str, ...]:
    """The names of a set's own splits that make up one of ours."""
    own = data.splits.get(split, split)
    return (own,) if isinstance(own, str) else own


def _several(parts: dict[str, dict[str, Reader]]) -> dict[str, dict[str, Reader]]:
    return {split: named for split, named in parts.items() if len(named) > 1}


def _read_each(files: Sequence[File], header: bool | None) -> Iterator[Row]:
    return itertools.chain.from_iterable(file.rows(header) for file in files)


def local_folders(data: Data, folder: Path | None) -> list[Path]:
    """Where a local copy may be: data.local, else the hub's own name and configuration."""
    own = "_".join([*(data.hub or "").split("/")[-1:], *filter(None, [data.config])])
    local = data.local or own
    names = (local,) if isinstance(local, str) else local
    near = [Path(name) for name in names if name and data.local and Path(name).is_dir()]
    return near + [folder / name for name in names if folder and name]


def _split_files(place: Path, split: str) -> list[File]:
    name = re.compile(rf"{re.escape(split)}(-\d[\w-]*)?")
    files = [(path, *split_name(path)) for path in sorted(place.iterdir())]
    return [
        File(p) for p, stem, suffix in files if suffix in DATA_SUFFIXES and name.fullmatch(stem)
    ]


def _from_hub(data: Data, folder: Path | None) -> Source:
    import datasets

    name = " ".join(filter(None, [data.hub, data.config]))
    try:
        with _offline_unless_reached(data.hub or ""):
            loaded = datasets.load_dataset(
                data.hub, data.config, revision=data.revision, streaming=data.streaming
            )
    except (OSError, ValueError, RuntimeError) as error:
        cause = str(error).strip().splitlines()[0][:200] if str(error).strip() else repr(error)
        if "OfflineModeIsEnabled" in cause:
            cause = "it does not answer, and nothing of it was downloaded before"
        wanted = dict.fromkeys(name for split in SPLITS for name in _own(data, split))
        place = local_folders(data, folder or Path("$SYNTHESIZER_DATA"))[-1]
        raise UserError(
            f"cannot load {name} from the hub ({cause}); these files would do instead: "
            f"{place}/{{{','.join(wanted)}}}.parquet (SYNTHESIZER_DATA names the directory of such "
            "copies), or data.train=FILE"
        ) from None

    def rows(theirs: Sequence[str]) -> Iterator[Row]:
        for key in theirs:
            for number, fields in enumerate(loaded[key], start=1):
                yield Row(f"{name} {key}", number, fields)

    theirs = {split: [key for key in _own(data, split) if key in loaded] for split in SPLITS}
    if not theirs["train"]:
        raise UserError(
            f"{name} has the splits {listed(loaded)} and no '{_own(data, 'train')[0]}'; "
            "set data.splits.train"
        )
    return Source(
        f"hub {name}",
        {split: partial(rows, keys) for split, keys in theirs.items() if keys},
        version="\0".join(
            [name, data.revision or "", *(_hub_version(loaded[key]) for key in loaded)]
        ),
        streams={split: loaded[keys[0]] for split, keys in theirs.items() if keys}
        if data.streaming
        else None,
        parts=_several({s: {k: partial(rows, [k]) for k in keys} for s, keys in theirs.items()}),
    )


@contextmanager
def _offline_unless_reached(name: str) -> Iterator[None]:
    """Where the hub does not answer, read what was downloaded before instead of trying for long."""
    import datasets
    from huggingface_hub import HfApi, constants

    before = constants.HF_HUB_OFFLINE
    try:
        HfApi().dataset_info(name, timeout=REACH)
    except Exception as error:  # the client's own errors changed with its versions
        constants.HF_HUB_OFFLINE = before or getattr(error, "response", None) is None
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = before


def _hub_version(split: Any) -> str:  # noqa: ANN401  a Dataset or an IterableDataset
    import datasets

    files = split.cache_files if isinstance(split, datasets.Dataset) else ()
    return f"{split.info.version} {split.info.splits} {[file['filename'] for file in files]}"
