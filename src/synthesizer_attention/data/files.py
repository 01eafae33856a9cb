"""Rows of a user's files: csv, tsv, json, parquet, text, directories of text, parallel text.

All but parquet may be compressed, as reviews.csv.gz. A row that cannot be read is still a row, with
a fault: columns.Faults decides what follows.
"""

import csv
import gzip
import hashlib
import io
import itertools
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from synthesizer_attention.errors import UserError, printable
from synthesizer_attention.run.files import (
    MOST_TEXT,
    check_expansion,
    check_regular_file,
    expansion_limit,
)

DATA_SUFFIXES = (".parquet", ".jsonl", ".json", ".csv", ".tsv")
PACKED = ".gz"
MAX_FILES = 100_000  # below a directory of text
_HEADER_CELL = re.compile(r"[^\W\d][\w-]*( [\w-]+){0,2}")
_UTF_16 = ("\udcff\udcfe", "\udcfe\udcff")  # its byte order marks, as bytes that are not UTF-8
_INDEX = "index"  # the name of a csv's first column where pandas wrote none


class Row(NamedTuple):
    """One record, and where it is in its file for the error that may name it."""

    file: str
    number: int  # line of a text file, else record, from 1
    fields: dict[str, Any]
    fault: str | None = None


class File:
    """A data file, or a directory of text; hashing and reading share one open handle."""

    _idle: io.BufferedReader | None = None

    def __init__(self, path: Path) -> None:
        _check(path)
        self.path = path

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._idle is not None:
            self._idle.close()

    @contextmanager
    def opened(self) -> Iterator[io.BufferedReader]:
        """The content from its beginning; a second reader at the same time gets its own handle."""
        try:
            handle, self._idle = self._idle or self.path.open("rb"), None
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}; check the file") from None
        try:
            handle.seek(0)
            yield handle
        finally:
            self._close()  # where another reader was done first
            self._idle = handle

    def hashes(self) -> list[tuple[Path, bytes]]:
        """The path and the SHA-256 of the content, of every file below a directory."""
        if self.path.is_dir():
            return [found for path in files_below(self.path) for found in File(path).hashes()]
        with self.opened() as stream:
            return [(self.path, hashlib.file_digest(stream, "sha256").digest())]

    def lines(self) -> Iterator[str]:
        """Lines up to each newline alone; bytes that are not UTF-8 arrive as lone surrogates."""
        with self.opened() as stream:
            plain = _Unpacked(self.path, stream) if self.path.suffix == PACKED else stream
            text = io.TextIOWrapper(plain, "utf-8-sig", errors="surrogateescape", newline="\n")
            try:
                head = text.readline()
                if head.startswith(_UTF_16):
                    raise UserError(f"{self.path} is UTF-16; save it as UTF-8")
                for line in itertools.chain([head] if head else [], text):
                    ends = "\r" in line[-2:]
                    yield line.removesuffix("\n").removesuffix("\r") + "\n" if ends else line
            finally:
                text.detach()  # or it would close the handle

    def rows(self, header: bool | None = None) -> Iterator[Row]:
        """What a file holds, by its suffix."""
        if self.path.is_dir():
            return _text_folder(self.path)
        _, suffix = split_name(self.path)
        if suffix in (".csv", ".tsv"):
            return _delimited(self, header)
        readers = {".parquet": _parquet, ".jsonl": _jsonl, ".json": _json}
        reader = readers.get(suffix, _text if suffix in (".txt", ".text", ".md", "") else None)
        if reader is None or (reader is _parquet and self.path.suffix == PACKED):
            raise UserError(
                f"cannot read {self.path}; expected {', '.join(DATA_SUFFIXES)}, .txt, one of the "
                "last five with .gz, a directory of text files, or several plain text files that "
                "pair line by line"
            )
        return reader(self)


class _Unpacked(io.BufferedReader):
    """The content of a gzip file, up to the size that check_expansion allows."""

    def __init__(self, path: Path, stream: io.BufferedReader) -> None:
        self._path, self._total = path, 0
        super().__init__(gzip.GzipFile(fileobj=stream))

    def read1(self, size: int = -1, /) -> bytes:
        """What TextIOWrapper asks for."""
        try:
            found = super().read1(size)
        except (OSError, EOFError, zlib.error) as error:
            cause = printable(str(error))[:200]
            raise UserError(
                f"{self._path} is not a readable gzip file ({cause}); pack it again"
            ) from None
        self._total += len(found)
        check_expansion(self._path, self._total)
        return found


def split_name(path: Path) -> tuple[str, str]:
    """A file's name without suffixes, and what its rows are read by: the suffix before .gz."""
    inner = Path(path.stem) if path.suffix == PACKED else path
    return inner.stem, inner.suffix


def read_files(files: Sequence[File], *, header: bool | None = None) -> Iterator[Row]:
    """Rows of one file or directory, or of plain text files that pair line by line."""
    return _parallel(files) if len(files) > 1 else files[0].rows(header)


def _check(path: Path) -> None:
    """Refuse what is missing, and what is neither a directory nor a file that ends."""
    shown = printable(str(path))[:200]
    try:
        if not path.is_dir():
            check_regular_file(path)
    except FileNotFoundError:
        where = "data.train, data.validation, data.test"
        raise UserError(f"{shown} does not exist; check {where}") from None
    except UserError:
        raise
    except (OSError, ValueError) as error:  # too long, or with a null byte
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"cannot read {shown}: {why}; check the path") from None


def _rows_at_once(path: Path, content: Any) -> int:  # noqa: ANN401  pyarrow's ParquetFile
    """How many rows of a parquet file are decoded together, once its own directory is believable.

    A dictionary stores a long text once and a row that repeats it in a few bits, which no size in
    the directory tells: so few rows at once where a column holds much, and far too much for its
    size on disk.
    """
    metadata = content.metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    unpacked = sum(group.total_byte_size for group in groups)
    check_expansion(path, max(unpacked, 8 * metadata.num_rows * metadata.num_columns))
    for number in range(len(groups)):  # raises on damage that column() would end the process on
        next(content.iter_batches(1, row_groups=[number]), None)
    chunks = [group.column(place) for group in groups for place in range(group.num_columns)]
    largest = max((chunk.total_uncompressed_size for chunk in chunks), default=1)
    packed = any(c.total_uncompressed_size > 20 * c.total_compressed_size for c in chunks)
    fits = expansion_limit(path) // 4 // max(1, largest)
    return max(1 if packed else 128, min(1024, fits))


def _parquet(file: File) -> Iterator[Row]:
    import pyarrow.parquet as pq

    name, number = str(file.path), 0
    try:
        with file.opened() as stream:
            content, total = pq.ParquetFile(stream), 0
            for batch in content.iter_batches(_rows_at_once(file.path, content)):
                total += batch.nbytes
                check_expansion(file.path, total)
                for fields, fault in _records(batch):
                    number += 1
                    yield Row(name, number, fields, fault)
    except UserError:
        raise
    except Exception as error:  # of damage pyarrow says OSError, UnicodeDecodeError, KeyError...
        cause = printable(" ".join(str(error).split()))[:200] or type(error).__name__
        place = f" behind row {number:,}" if number else ""
        raise UserError(
            f"{name} is not a readable parquet file{place}: {cause}; write it again"
        ) from None


def _records(batch: Any) -> Iterator[tuple[dict[str, Any], str | None]]:  # noqa: ANN401  pyarrow's
    """The fields of each row of a batch, and what is wrong with it."""
    try:
        yield from ((fields, None) for fields in batch.to_pylist())
    except (ValueError, OverflowError) as error:  # not UTF-8, or a date that Python has not
        if len(batch) == 1:
            yield {}, f"a field cannot be read ({printable(str(error))[:100]})"
            return
        for place in range(len(batch)):
            yield from _records(batch.slice(place, 1))


def _jsonl(file: File) -> Iterator[Row]:
    for number, line in enumerate(file.lines(), start=1):
        if not line.strip():
            continue
        try:
            yield _object(file, number, json.loads(line))
        except (ValueError, RecursionError):
            yield Row(str(file.path), number, {}, "not valid JSON")


def _object(file: File, number: int, fields: object) -> Row:
    if isinstance(fields, dict):
        return Row(str(file.path), number, fields)
    return Row(str(file.path), number, {}, "not a JSON object")


def _json(file: File) -> Iterator[Row]:
    """An array of objects; or, as many such files are, one object a line."""
    first = next((line for line in file.lines() if line.strip()), "")
    try:
        lines = isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        lines = False
    if lines:
        yield from _jsonl(file)
        return
    parts, size = [], 0
    for line in file.lines():
        parts.append(line)
        if (size := size + len(line)) > MOST_TEXT:
            raise UserError(
                f"{file.path} has more than {MOST_TEXT:,} characters of one array; write one "
                "object a line, as .jsonl"
            )
    try:
        whole = json.loads("".join(parts))
    except (ValueError, RecursionError) as error:
        cause = printable(str(error))[:200]
        raise UserError(f"{file.path} is not valid JSON ({cause}); write it again") from None
    if not isinstance(whole, list):
        raise UserError(
            f"{file.path} is one JSON {type(whole).__name__}; expected an array of objects, or "
            "one object a line"
        )
    for number, fields in enumerate(whole, start=1):
        yield _object(file, number, fields)


def _delimited(file: File, header: bool | None) -> Iterator[Row]:
    """Csv with its quotes, or tsv, where a quote is a character like any other."""
    csv.field_size_limit(2**31 - 1)
    name, is_tsv = str(file.path), split_name(file.path)[1] == ".tsv"
    lines = file.lines()
    head: list[str] = []
    for line in lines:
        head.append(line)
        if line != "\n":  # csv passes over blank lines
            break
    lines = itertools.chain(head, lines)
    first_line = "".join(head[-1:])
    cut = first_line.strip().split(";")  # between names: as spreadsheets write in Europe
    semicolons = "," not in first_line and len(cut) > 1 and looks_like_header(cut)
    reader = (
        csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        if is_tsv
        else csv.reader(lines, delimiter=";" if semicolons else ",")
    )
    try:
        first = next((cells for cells in reader if cells), None)
        if first is None:
            raise UserError(f"{name} is empty; expected rows")
        rows: Iterable[list[str]] = reader
        if looks_like_header(first) if header is None else header:
            names = [first[0] or (_INDEX if _INDEX not in first else "1"), *first[1:]]
        else:
            names = [str(number) for number in range(1, len(first) + 1)]
            rows = itertools.chain([first], reader)
        width = len(names)
        for cells in rows:
            if len(cells) == width:
                yield Row(name, reader.line_num, dict(zip(names, cells)))  # noqa: B905  equal
            elif cells:
                fault = f"{len(cells)} fields where {width} are expected"
                yield Row(name, reader.line_num, dict(zip(names, cells, strict=False)), fault)
    except csv.Error as error:
        raise UserError(
            f"{name} is not a readable table (line {reader.line_num}: {error}); check its format"
        ) from None


def looks_like_header(cells: list[str]) -> bool:
    """Whether a first row reads like names: distinct, up to three plain words each.

    The first may be empty, as pandas leaves the name of an index, where others follow.
    """
    named = cells[1:] if len(cells) > 1 and not cells[0] else cells
    plain = all(_HEADER_CELL.fullmatch(cell.strip()) for cell in named)
    return plain and len(set(cells)) == len(cells) and all(len(cell) <= 40 for cell in cells)


def _parallel(files: Sequence[File]) -> Iterator[Row]:
    paths = [file.path for file in files]
    names = [path.suffix.removeprefix(".") or path.name for path in paths]
    if len(set(names)) < len(names):
        names = ["source", "target", *(f"text{n}" for n in range(3, len(names) + 1))]
    for number, lines in enumerate(itertools.zip_longest(*(f.lines() for f in files)), start=1):
        there = [line is not None for line in lines]
        fields = {
            name: line.removesuffix("\n") for name, line in zip(names, lines, strict=True) if line
        }
        fault = None
        if not all(there):
            shorter = paths[there.index(False)]
            fault = f"{shorter} has no such line; the files must pair line by line"
        yield Row(str(paths[there.index(True)]), number, fields, fault)


def _text(file: File) -> Iterator[Row]:
    """Paragraphs between blank lines; in a file without blank lines, lines."""
    by_line = all(line.strip() for line in file.lines())
    numbered = ((n, line.removesuffix("\n")) for n, line in enumerate(file.lines(), start=1))
    if by_line:
        yield from (Row(str(file.path), number, {"text": line}) for number, line in numbered)
        return
    for filled, group in itertools.groupby(numbered, key=lambda item: bool(item[1].strip())):
        if filled:
            lines = list(group)
            text = "\n".join(line for _, line in lines)
            yield Row(str(file.path), lines[0][0], {"text": text})


def _text_folder(folder: Path) -> Iterator[Row]:
    """Every file below a directory is one document, hidden ones aside."""
    for path in files_below(folder):
        yield Row(str(path), 1, {"text": "".join(File(path).lines()).removesuffix("\n")})


def files_below(folder: Path) -> list[Path]:
    """Every file of a directory and its folders, sorted, hidden ones aside."""
    files: list[Path] = []
    for place, _, names in os.walk(folder):
        files += [Path(place, name) for name in names]
        if len(files) > MAX_FILES:
            raise UserError(
                f"{folder} holds more than {MAX_FILES:,} files; name a directory of text files "
                "alone, or put their texts into one .txt, .jsonl or .parquet file"
            )
    whole = [path for path in sorted(files) if path.is_file()]
    return [path for path in whole if not path.relative_to(folder).as_posix().startswith(".")]
