"""Where rows come from: files of the user, built-in corpora, local copies, then the hub.

A row that cannot be read is still a row, with a fault: columns.Faults decides what follows.
"""

import csv
import hashlib
import io
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from synthesizer.errors import UserError
from synthesizer.experiment.recipe import Data
from synthesizer.untrusted import check_expansion, check_regular_file, expansion_limit, printable

SPLITS = ("train", "validation", "test")

MAX_FILES = 100_000  # below a directory of text
_DATA_SUFFIXES = (".parquet", ".jsonl", ".csv", ".tsv")
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

    def digest(self) -> bytes:
        """The name and the SHA-256 of the content, of every file below a directory."""
        if self.path.is_dir():
            return b"".join(File(path).digest() for path in _files_below(self.path))
        with self.opened() as stream:
            name = self.path.name.encode()
            return name + hashlib.file_digest(stream, "sha256").digest()

    def lines(self) -> Iterator[str]:
        """Lines up to each newline alone; bytes that are not UTF-8 arrive as lone surrogates."""
        with self.opened() as stream:
            text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="\n")
            try:
                head = text.readline()
                if head.startswith(_UTF_16):
                    raise UserError(f"{self.path} is UTF-16; save it as UTF-8")
                for line in itertools.chain([head] if head else [], text):
                    plain = "\r" not in line[-2:]
                    yield line if plain else line.removesuffix("\n").removesuffix("\r") + "\n"
            finally:
                text.detach()  # or it would close the handle

    def rows(self, header: bool | None = None) -> Iterator[Row]:
        """What a file holds, by its suffix."""
        if self.path.is_dir():
            return _text_folder(self.path)
        suffix = self.path.suffix
        if suffix in (".csv", ".tsv"):
            return _delimited(self, header)
        readers = {".parquet": _parquet, ".jsonl": _jsonl}
        reader = readers.get(suffix, _text if suffix in (".txt", ".text", ".md", "") else None)
        if reader is None:
            raise UserError(
                f"cannot read {self.path}; expected {', '.join(_DATA_SUFFIXES)}, .txt, a directory "
                "of text files, or several plain text files that pair line by line"
            )
        return reader(self)


class Source:
    """The splits of one data set: each can be read again and again."""

    def __init__(
        self,
        origin: str,  # in the words of the report
        splits: Mapping[str, Callable[[], Iterator[Row]]],
        *,
        files: Sequence[File] = (),
        version: str = "",
        streams: Mapping[str, Any] | None = None,  # of a hub's set that is streamed, by split
    ) -> None:
        self.origin, self.splits, self.streams = origin, splits, streams or {}
        self._files, self._version = files, version

    @cached_property
    def fingerprint(self) -> str:
        """What changes with the content."""
        content = [file.digest() for file in self._files]
        return hashlib.sha256(b"".join([self._version.encode(), *content])).hexdigest()

    def with_splits(self, splits: Mapping[str, Callable[[], Iterator[Row]]]) -> "Source":
        """The same content, read in another way."""
        return Source(self.origin, splits, files=self._files, version=self._version)


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
        f"({', '.join(_DATA_SUFFIXES)}, .txt or a directory of text), or data.hub to a data set"
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


def _rows_at_once(path: Path, metadata: Any) -> int:  # noqa: ANN401  pyarrow's FileMetaData
    """How many rows of a parquet file are decoded together, once its own directory is believable.

    A dictionary stores a long text once and a row that repeats it in a few bits, which no size in
    the directory tells: so few rows at once where a column holds much, and far too much for its
    size on disk.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    unpacked = sum(group.total_byte_size for group in groups)
    check_expansion(path, max(unpacked, 8 * metadata.num_rows * metadata.num_columns))
    chunks = [group.column(place) for group in groups for place in range(group.num_columns)]
    largest = max((chunk.total_uncompressed_size for chunk in chunks), default=1)
    packed = any(c.total_uncompressed_size > 20 * c.total_compressed_size for c in chunks)
    fits = expansion_limit(path) // 4 // max(1, largest)
    return max(1 if packed else 128, min(1024, fits))


def _parquet(file: File) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    name, numbers = str(file.path), itertools.count(1)
    try:
        with file.opened() as stream:
            content, total = pq.ParquetFile(stream), 0
            for batch in content.iter_batches(_rows_at_once(file.path, content.metadata)):
                total += batch.nbytes
                check_expansion(file.path, total)
                for fields in batch.to_pylist():
                    yield Row(name, next(numbers), fields)
    except pa.ArrowException as error:
        raise UserError(f"{name} is not a readable parquet file: {error}; write it again") from None


def _jsonl(file: File) -> Iterator[Row]:
    name = str(file.path)
    for number, line in enumerate(file.lines(), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            yield Row(name, number, {}, "not valid JSON")
            continue
        fault = None if isinstance(fields, dict) else "not a JSON object"
        yield Row(name, number, {} if fault else fields, fault)


def _delimited(file: File, header: bool | None) -> Iterator[Row]:
    """Csv with its quotes, or tsv, where a quote is a character like any other."""
    csv.field_size_limit(2**31 - 1)
    name, is_tsv = str(file.path), file.path.suffix == ".tsv"
    lines = file.lines()
    head = list(itertools.islice(lines, 1))
    lines = itertools.chain(head, lines)
    reader = (
        csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        if is_tsv
        else csv.reader(lines, delimiter=_delimiter("".join(head)))
    )
    try:
        first = next(reader, None)
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
        raise UserError(f"{name} is not a readable table ({error}); check its format") from None


def _delimiter(first: str) -> str:
    """The semicolon where names of columns are between some, as spreadsheets write in Europe."""
    names = first.strip().split(";")
    return ";" if "," not in first and len(names) > 1 and looks_like_header(names) else ","


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
    for path in _files_below(folder):
        yield Row(str(path), 1, {"text": "".join(File(path).lines()).removesuffix("\n")})


def _files_below(folder: Path) -> list[Path]:
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


def _from_corpus(name: str, difficulty: int | None) -> Source:
    from synthesizer.data.corpora.corpus_list import CORPORA, GRADED, describe_corpus

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
        found = {split: _split_files(place, data.splits.get(split, split)) for split in SPLITS}
        if found["train"]:
            return Source(
                f"local copy {place.name}",  # a record names no path of one machine
                {split: partial(_read_each, f, data.header) for split, f in found.items() if f},
                files=[file for files in found.values() for file in files],
            )
    if data.local and not data.hub:
        raise UserError(
            f"data.local is {data.local!r}, and no such directory with a train split is in "
            f"SYNTHESIZER_DATA ({folder or 'not set'}); fix either, or set data.train=FILE"
        )
    return None


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
    files = [path for path in sorted(place.iterdir()) if path.suffix in _DATA_SUFFIXES]
    return [File(path) for path in files if name.fullmatch(path.stem)]


def _from_hub(data: Data, folder: Path | None) -> Source:
    import datasets

    name = " ".join(filter(None, [data.hub, data.config]))
    try:
        loaded = datasets.load_dataset(
            data.hub, data.config, revision=data.revision, streaming=data.streaming
        )
    except (OSError, ValueError, RuntimeError) as error:
        cause = str(error).strip().splitlines()[0][:200] if str(error).strip() else repr(error)
        wanted = dict.fromkeys(data.splits.get(split, split) for split in SPLITS)
        place = local_folders(data, folder or Path("$SYNTHESIZER_DATA"))[-1]
        raise UserError(
            f"cannot load {name} from the hub ({cause}); these files would serve instead: "
            f"{place}/{{{','.join(wanted)}}}.parquet (SYNTHESIZER_DATA names the directory of such "
            "copies), or data.train=FILE"
        ) from None

    def rows(theirs: str) -> Iterator[Row]:
        for number, fields in enumerate(loaded[theirs], start=1):
            yield Row(f"{name} {theirs}", number, fields)

    theirs = {split: data.splits.get(split, split) for split in SPLITS}
    if theirs["train"] not in loaded:
        raise UserError(
            f"{name} has the splits {', '.join(loaded)} and no '{theirs['train']}'; "
            "set data.splits.train"
        )
    return Source(
        f"hub {name}",
        {split: partial(rows, key) for split, key in theirs.items() if key in loaded},
        version="\0".join(
            [name, data.revision or "", *(_hub_version(loaded[key]) for key in loaded)]
        ),
        streams={split: loaded[key] for split, key in theirs.items() if key in loaded}
        if data.streaming
        else None,
    )


def _hub_version(split: Any) -> str:  # noqa: ANN401  a Dataset or an IterableDataset
    import datasets

    files = split.cache_files if isinstance(split, datasets.Dataset) else ()
    return f"{split.info.version} {split.info.splits} {[file['filename'] for file in files]}"
