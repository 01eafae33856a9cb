"""What is too large for memory, on disk as it comes and read back through a memory map.

The files are nameless and lie where the cache does: whatever ends the process removes them.
"""

import mmap
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import IO, Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from synthesizer_attention.data.batch import Ragged
from synthesizer_attention.data.encoded_cache import cannot_spill, scratch_folder

T = TypeVar("T")

Array = NDArray[Any]
Fields = tuple[str, ...]  # of one example; the first is its input

CHUNK = 4096


def chunked(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items, the last maybe shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


class Numbers:
    """An array that grows on disk."""

    _file: IO[bytes] | None = None

    def __init__(self, dtype: DTypeLike) -> None:
        self._dtype, self._length = np.dtype(dtype), 0
        self._file = _scratch()

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def append(self, values: Array) -> None:
        """Write more numbers behind those there are."""
        assert self._file is not None
        with _writing():
            self._file.write(np.ascontiguousarray(values, dtype=self._dtype).data)
        self._length += len(values)

    def array(self) -> Array:
        """All of them, read from disk as they are used."""
        assert self._file is not None
        if not self._length:
            return np.empty(0, self._dtype)
        return np.frombuffer(_map(self._file), self._dtype)  # the map outlives its file's handle


class RaggedWriter:
    """Lists of token numbers, end to end on disk."""

    def __init__(self) -> None:
        self._flat, self._offsets = Numbers(np.int32), Numbers(np.int64)
        self._offsets.append(np.zeros(1))
        self._total = 0

    def append(self, lists: list[list[int]]) -> None:
        """Write more lists."""
        part = Ragged.of(lists)
        self._flat.append(part.flat)
        self._offsets.append(part.offsets[1:] + self._total)
        self._total += len(part.flat)

    def ragged(self) -> Ragged:
        """All of them."""
        return Ragged(self._flat.array(), self._offsets.array())


class Table:
    """Examples by column, as Arrow strings on disk."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = _spill(batches)

    @classmethod
    def of(cls, examples: Iterable[Fields]) -> "Table":
        """Pack examples, a chunk at a time."""
        return cls(_pack(chunk) for chunk in chunked(examples, CHUNK))

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


def _pack(chunk: list[Fields]) -> pa.RecordBatch:
    columns = [pa.array(column, pa.large_string()) for column in zip(*chunk, strict=True)]
    return pa.record_batch(columns, names=[str(number) for number in range(len(columns))])


def _spill(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The same batches, written to disk and mapped; the empty ones are left out."""
    filled = (batch for batch in batches if len(batch))
    first = next(filled, None)
    if first is None:
        return []
    with _scratch() as file:
        with _writing():
            writer = pa.ipc.new_file(pa.PythonFile(file, "w"), first.schema)
        for batch in chain([first], filled):  # reading them fails in its own words
            with _writing():
                writer.write_batch(batch)
        with _writing():
            writer.close()
        content = pa.ipc.open_file(pa.py_buffer(_map(file)))
    return [content.get_batch(number) for number in range(content.num_record_batches)]


def _scratch() -> IO[bytes]:
    with _writing():
        return tempfile.TemporaryFile(dir=scratch_folder())


def _map(file: IO[bytes]) -> mmap.mmap:
    with _writing():
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_spill(error) from None
