"""Encoded data on disk: entries kept between runs, and what is too large for memory meanwhile.

An entry is one .npz file per content, safe to delete at any time; its arrays are memory maps of
that file, so that memory does not grow with the data. A directory that others may write is neither
read nor filled: their files would be trained on. Data on their way into an entry lie in nameless
files beside it: whatever ends the process removes them.

Why not the Arrow cache of `datasets`: it notices no damage, its columns come in chunks (a stream of
tokens is one array here), rows are read some thirty times slower, and its import takes a second.
"""

import errno
import functools
import hashlib
import json
import logging
import mmap
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from synthesizer_attention.data.batch import Ragged
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.files import (
    check_regular_file,
    locked,
    who_else_may_write,
    write_atomically,
)
from synthesizer_attention.run.records import read_header

T = TypeVar("T")
Array = NDArray[Any]
Fields = tuple[str, ...]  # of one example; the first is its input

CHUNK = 4096
OWN = "set SYNTHESIZER_CACHE to a directory of your own"
_META = "meta.json"
_PADDING = 0xD935  # the kind of a zip's extra field that other tools align members with
_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Entry:
    """Arrays and a JSON-able record."""

    arrays: dict[str, Array]
    meta: dict[str, Any]


def cache_folder() -> Path:
    """SYNTHESIZER_CACHE, else a directory in the user's cache."""
    named = os.environ.get("SYNTHESIZER_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "synthesizer"


def cache_key(*parts: str) -> str:
    """A name that changes with anything that makes the content, the code included."""
    return hashlib.sha256("\0".join([hash_code(_PACKAGE), *parts]).encode()).hexdigest()[:32]


@functools.cache
def hash_code(package: Path) -> str:
    """What changes with the code and the shipped data that encode examples and score baselines."""
    files = [
        file
        for folder in ("data", "metrics", "tasks")
        for file in sorted((package / folder).rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    ]
    content = (str(file.relative_to(package)).encode() + file.read_bytes() for file in files)
    return hashlib.sha256(b"\0".join(content)).hexdigest()


def fetch(folder: Path, key: str, build: Callable[[], Entry]) -> Entry:
    """The entry of a key, built and stored where it is missing or damaged.

    One process builds it; whoever else asks meanwhile waits, for hours if need be.
    """
    entry = find(folder, key)
    if entry is not None:
        return entry
    if not _is_own(folder):
        return build()
    say, name = logging.getLogger(__name__).info, f".{key}.lock"
    with locked(folder, "encoding data", say, name=name, patience=-1):
        if (entry := find(folder, key)) is None:  # nobody built it meanwhile
            entry = build()
            _store(folder / f"{key}.npz", entry)
            entry = find(folder, key) or entry  # from disk, as every other run has it
        with suppress(OSError):  # of Windows; who waits for it finds the entry
            (folder / name).unlink()
    return entry


def find(folder: Path, key: str) -> Entry | None:
    """The entry of a key, where there is a sound one: each array of an .npz carries a checksum."""
    path = folder / f"{key}.npz"
    if not _is_own(folder):
        return None
    try:
        if who_else_may_write(path) is not None:
            return None
        arrays = _map_arrays(path)
        return Entry(arrays, json.loads(arrays.pop(_META).tobytes()))
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error):
        return None


def check_own(folder: Path) -> None:
    """Refuse a directory that others may write, so that nothing would be kept in it."""
    if (problem := _other_writer(folder)) is not None:
        raise UserError(f"nothing can be prepared: {problem}; {OWN}")


def _other_writer(folder: Path) -> str | None:
    """How somebody else may write the directory, made where missing; None if nobody may."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return who_else_may_write(folder)
    except OSError as error:
        advice = _advice(error)
        raise UserError(f"cannot make the cache {folder} ({error.strerror}); {advice}") from None


@functools.cache
def _is_own(folder: Path) -> bool:
    """Whether nobody else may write the directory; warns if not."""
    problem = _other_writer(folder)
    if problem is not None:
        logging.getLogger(__name__).warning(
            "the cache of encoded data is not used: %s; %s", problem, OWN
        )
    return problem is None


def _advice(error: OSError) -> str:
    space = "free some space, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{space}set SYNTHESIZER_CACHE to a directory that can be written"


def _map_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz of `_store`, read from disk as they are used, once they are sound."""
    check_regular_file(path)
    arrays: dict[str, Array] = {}
    with path.open("rb") as stream, zipfile.ZipFile(stream) as file:
        for member in file.infolist():
            with file.open(member) as content:
                shape, is_fortran, dtype = read_header(content, member)
                begin = content.tell()
                while content.read(2**20):  # to the end, where the checksum is compared
                    pass
            if member.compress_type != zipfile.ZIP_STORED or dtype.hasobject or is_fortran:
                raise ValueError(f"{path}: {member.filename} cannot be mapped")
            stream.seek(member.header_offset + 26)
            name, extra = struct.unpack("<HH", stream.read(4))
            start = member.header_offset + 30 + name + extra + begin
            mapped = np.memmap(path, dtype, "r", start, shape) if 0 not in shape else None
            array = np.empty(shape, dtype) if mapped is None else np.asarray(mapped)
            arrays[member.filename.removesuffix(".npy")] = array
    return arrays


def _store(path: Path, entry: Entry) -> None:
    meta = np.frombuffer(json.dumps(entry.meta).encode(), dtype=np.uint8)

    def fill(beside: Path) -> None:
        with beside.open("wb") as file, zipfile.ZipFile(file, "w") as archive:
            for name, array in {**entry.arrays, _META: meta}.items():
                member = zipfile.ZipInfo(f"{name}.npy")
                # an extra field fills up to where a mapped array is aligned: its header is 64 k
                begin = file.tell() + 30 + len(member.filename.encode()) + 20 + 4
                member.extra = struct.pack("<HH", _PADDING, -begin % 64) + bytes(-begin % 64)
                with archive.open(member, "w", force_zip64=True) as content:
                    np.lib.format.write_array(content, np.ascontiguousarray(array))

    write_atomically(path, fill, _advice)


@contextmanager
def _scratch() -> Iterator[None]:
    """Say in one line why encoded data cannot be written."""
    try:
        yield
    except OSError as error:
        folder = _scratch_folder() or Path(tempfile.gettempdir())
        raise UserError(
            f"cannot write encoded data to {folder} ({error.strerror}); {_advice(error)}"
        ) from None


def _scratch_folder() -> Path | None:
    folder = cache_folder()
    return folder if _is_own(folder) else None


@_scratch()
def _nameless() -> IO[bytes]:
    return tempfile.TemporaryFile(dir=_scratch_folder())


@_scratch()
def _map(file: IO[bytes]) -> mmap.mmap:
    file.flush()
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # outlives its file's handle


class Numbers:
    """An array that grows on disk."""

    _file: IO[bytes] | None = None

    def __init__(self, dtype: DTypeLike) -> None:
        self._dtype, self._length = np.dtype(dtype), 0
        self._file = _nameless()

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    @_scratch()
    def append(self, values: Array) -> None:
        assert self._file is not None
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).data)
        self._length += len(values)

    def array(self) -> Array:
        """All numbers, read from disk as they are used."""
        assert self._file is not None
        if not self._length:
            return np.empty(0, self._dtype)
        return np.frombuffer(_map(self._file), self._dtype)


class RaggedWriter:
    """Lists of token numbers, end to end on disk."""

    def __init__(self) -> None:
        self._flat, self._offsets = Numbers(np.int32), Numbers(np.int64)
        self._offsets.append(np.zeros(1))
        self._total = 0

    def append(self, lists: list[list[int]]) -> None:
        part = Ragged.of(lists)
        self._flat.append(part.flat)
        self._offsets.append(part.offsets[1:] + self._total)
        self._total += len(part.flat)

    def ragged(self) -> Ragged:
        return Ragged(self._flat.array(), self._offsets.array())


class Table:
    """Examples by column, as Arrow strings on disk."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches: list[pa.RecordBatch] = []
        filled = (batch for batch in batches if len(batch))
        first = next(filled, None)
        if first is None:
            return
        with _nameless() as file:
            with _scratch():
                writer = pa.ipc.new_file(pa.PythonFile(file, "w"), first.schema)
            for batch in chain([first], filled):  # reading them fails in its own words
                with _scratch():
                    writer.write_batch(batch)
            with _scratch():
                writer.close()
            content = pa.ipc.open_file(pa.py_buffer(_map(file)))
        self._batches = [content.get_batch(n) for n in range(content.num_record_batches)]

    @classmethod
    def of(cls, examples: Iterable[Fields]) -> "Table":
        """Pack examples, a chunk at a time."""

        def pack(chunk: list[Fields]) -> pa.RecordBatch:
            columns = [pa.array(column, pa.large_string()) for column in zip(*chunk, strict=True)]
            return pa.record_batch(columns, names=[str(number) for number in range(len(columns))])

        return cls(pack(chunk) for chunk in chunked(examples, CHUNK))

    def __len__(self) -> int:
        return sum(map(len, self._batches))

    def column(self, index: int, step: int = 1) -> Iterator[str]:
        """One field of each example, or of every step-th."""
        begin = 0
        for batch in self._batches:
            yield from batch.column(index).to_pylist()[begin::step]
            begin = (begin - len(batch)) % step

    def num_bytes(self, index: int) -> int:
        """How much text a column holds."""
        return sum(int(batch.column(index).nbytes) for batch in self._batches)

    def chunks(self) -> Iterator[list[Fields]]:
        """All examples, some thousand at a time."""
        for batch in self._batches:
            yield list(zip(*(column.to_pylist() for column in batch.columns), strict=True))

    def take(self, chosen: Array) -> "Table":
        """Those where `chosen` is true."""
        edges = np.cumsum([0, *map(len, self._batches)])
        return Table(
            batch.filter(pa.array(chosen[begin : begin + len(batch)]))
            for batch, begin in zip(self._batches, edges, strict=False)
        )


def chunked(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items, the last maybe shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
