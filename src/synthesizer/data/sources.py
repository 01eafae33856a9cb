"""Where rows come from: files of the user, built-in corpora, local copies, then the hub.

A row that cannot be read is still a row, with a fault: columns.Faults decides what follows.
"""

import csv
import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from synthesizer.errors import UserError
from synthesizer.experiment.recipe import Data

SPLITS = ("train", "validation", "test")

_DATA_SUFFIXES = (".parquet", ".jsonl", ".csv", ".tsv")
_HEADER_CELL = re.compile(r"[^\W\d][\w-]*( [\w-]+){0,2}")


@dataclass(frozen=True)
class Row:
    """One record, and where it stands for the error that may name it."""

    file: str
    number: int  # line of a text file, else record, from 1
    fields: dict[str, Any]
    fault: str | None = None


@dataclass(frozen=True)
class Source:
    """The splits of one data set: each can be read again and again."""

    origin: str  # in the words of the report
    fingerprint: str  # changes with the content
    splits: dict[str, Callable[[], Iterator[Row]]] = field(repr=False)


def open_source(data: Data, folder: Path | None) -> Source:
    """Find the rows a recipe names; `folder` holds local copies of the hub's sets."""
    if data.train or data.validation or data.test:
        return _from_files(data)
    if data.builtin:
        return _from_corpus(data.builtin)
    local = _find_local(data, folder)
    if local is not None:
        return local
    if data.hub:
        return _from_hub(data, folder)
    raise UserError(
        "the recipe names no data; set data.train to a file "
        f"({', '.join(_DATA_SUFFIXES)}, .txt or a folder of text), or data.hub to a data set"
    )


def data_folder() -> Path | None:
    """The folder of local copies, from SYNTHESIZER_DATA."""
    name = os.environ.get("SYNTHESIZER_DATA")
    if name and not Path(name).is_dir():
        raise UserError(f"SYNTHESIZER_DATA is {name}, which is no folder; correct or unset it")
    return Path(name) if name else None


def _from_files(data: Data) -> Source:
    named = {"train": data.train, "validation": data.validation, "test": data.test}
    paths = {
        split: tuple(Path(name) for name in ((files,) if isinstance(files, str) else files))
        for split, files in named.items()
        if files
    }
    if "train" not in paths:
        raise UserError(f"data.{next(iter(paths))} is given without data.train; give data.train")
    return Source(
        origin="files " + ", ".join(str(path) for group in paths.values() for path in group),
        fingerprint=_digest(path for group in paths.values() for path in group),
        splits={
            split: partial(read_files, group, header=data.header) for split, group in paths.items()
        },
    )


def read_files(paths: tuple[Path, ...], *, header: bool | None = None) -> Iterator[Row]:
    """Rows of one file or folder, or of plain text files that pair line by line."""
    for path in paths:
        if not path.exists():
            raise UserError(f"{path} does not exist; check data.train, data.validation, data.test")
    if len(paths) > 1:
        return _parallel(paths)
    (path,) = paths
    if path.is_dir():
        return _text_folder(path)
    if path.suffix == ".parquet":
        return _parquet(path)
    if path.suffix == ".jsonl":
        return _jsonl(path)
    if path.suffix in (".csv", ".tsv"):
        return _delimited(path, header)
    if path.suffix in (".txt", ".text", ".md", ""):
        return _text(path)
    raise UserError(
        f"cannot read {path}; expected {', '.join(_DATA_SUFFIXES)}, .txt, a folder of text files, "
        "or several plain text files that pair line by line"
    )


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        numbers = itertools.count(1)
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for fields in batch.to_pylist():
                    yield Row(str(path), next(numbers), fields)
    except pa.ArrowException as error:
        raise UserError(f"{path} is no readable parquet file: {error}; write it again") from None


def _lines(path: Path) -> Iterator[str]:
    """Lines ended by newline alone; bytes that are not UTF-8 arrive as lone surrogates."""
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
            for line in file:
                yield line.removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; check the file") from None


def _jsonl(path: Path) -> Iterator[Row]:
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError:
            yield Row(str(path), number, {}, "not valid JSON")
            continue
        fault = None if isinstance(fields, dict) else "not a JSON object"
        yield Row(str(path), number, {} if fault else fields, fault)


def _delimited(path: Path, header: bool | None) -> Iterator[Row]:
    """Csv with its quotes, or tsv, where a quote is a character like any other."""
    csv.field_size_limit(2**31 - 1)
    quoting = csv.QUOTE_NONE if path.suffix == ".tsv" else csv.QUOTE_MINIMAL
    delimiter = "\t" if path.suffix == ".tsv" else ","
    lines = (f"{line}\n" for line in _lines(path))
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting)  # type: ignore[arg-type]
    first = next(_parsed(reader, path), None)
    if first is None:
        raise UserError(f"{path} is empty; expected rows")
    named = looks_like_header(first) if header is None else header
    names = first if named else [str(number) for number in range(1, len(first) + 1)]
    rows = reader if named else itertools.chain([first], reader)
    for cells in _parsed(rows, path):
        if not cells:
            continue
        number = max(reader.line_num, 1)
        fault = None
        if len(cells) != len(names):
            fault = f"{len(cells)} fields where {len(names)} are expected"
        yield Row(str(path), number, dict(zip(names, cells, strict=False)), fault)


def _parsed(rows: Iterable[list[str]], path: Path) -> Iterator[list[str]]:
    try:
        yield from rows
    except csv.Error as error:
        raise UserError(f"{path} is no readable table ({error}); check its format") from None


def looks_like_header(cells: list[str]) -> bool:
    """Whether a first row reads like names: distinct, up to three plain words each."""
    plain = all(_HEADER_CELL.fullmatch(cell.strip()) for cell in cells)
    return plain and len(set(cells)) == len(cells) and all(len(cell) <= 40 for cell in cells)


def _parallel(paths: tuple[Path, ...]) -> Iterator[Row]:
    names = [path.suffix.removeprefix(".") or path.name for path in paths]
    if len(set(names)) < len(names):
        names = ["source", "target", *(f"text{n}" for n in range(3, len(names) + 1))]
    for number, lines in enumerate(itertools.zip_longest(*map(_lines, paths)), start=1):
        fields = {name: line for name, line in zip(names, lines, strict=True) if line is not None}
        longer = next(path for path, line in zip(paths, lines, strict=True) if line is not None)
        shorter = next((path for path, line in zip(paths, lines, strict=True) if line is None), "")
        fault = f"{shorter} has no such line; the files must pair line by line" if shorter else None
        yield Row(str(longer), number, fields, fault)


def _text(path: Path) -> Iterator[Row]:
    """Paragraphs between blank lines; in a file without blank lines, lines."""
    if all(line.strip() for line in _lines(path)):
        for number, line in enumerate(_lines(path), start=1):
            yield Row(str(path), number, {"text": line})
        return
    numbered = enumerate(_lines(path), start=1)
    for filled, group in itertools.groupby(numbered, key=lambda item: bool(item[1].strip())):
        if filled:
            lines = list(group)
            yield Row(str(path), lines[0][0], {"text": "\n".join(line for _, line in lines)})


def _text_folder(folder: Path) -> Iterator[Row]:
    """Every file below a folder is one document, hidden ones aside."""
    for path in _files_below(folder):
        yield Row(str(path), 1, {"text": "\n".join(_lines(path))})


def _files_below(folder: Path) -> list[Path]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [path for path in files if not path.relative_to(folder).as_posix().startswith(".")]


def _from_corpus(name: str) -> Source:
    from synthesizer.data.corpora.corpus_list import CORPORA

    if name not in CORPORA:
        raise UserError(f"unknown corpus '{name}'; choose data.builtin from {', '.join(CORPORA)}")
    made: dict[str, list[dict[str, str]]] = {}

    def rows(split: str) -> Iterator[Row]:
        made.update(made or CORPORA[name]())
        for number, fields in enumerate(made[split], start=1):
            yield Row(f"{name} {split}", number, fields)

    return Source(
        origin=f"built-in {name}",
        fingerprint=_digest([], name, sys.version),  # the code is in every key of the cache
        splits={split: partial(rows, split) for split in SPLITS},
    )


def _find_local(data: Data, folder: Path | None) -> Source | None:
    """The first copy under SYNTHESIZER_DATA that has a train split, if there is one."""
    for place in local_folders(data, folder):
        if not place.is_dir():
            continue
        found = {split: _split_files(place, data.splits.get(split, split)) for split in SPLITS}
        present = {split: paths for split, paths in found.items() if paths}
        if "train" in present:
            return Source(
                origin=f"local copy {place.name}",  # a record names no folder of one machine
                fingerprint=_digest(path for paths in present.values() for path in paths),
                splits={
                    split: partial(_read_each, paths, data.header)
                    for split, paths in present.items()
                },
            )
    if data.local and not data.hub:
        raise UserError(
            f"data.local is {data.local!r}, and no such folder with a train split is in "
            f"SYNTHESIZER_DATA ({folder or 'not set'}); correct either, or set data.train=FILE"
        )
    return None


def _read_each(paths: list[Path], header: bool | None) -> Iterator[Row]:
    for path in paths:
        yield from read_files((path,), header=header)


def local_folders(data: Data, folder: Path | None) -> list[Path]:
    """Where a local copy may be: data.local, else the hub's own name and configuration."""
    own = "_".join([*(data.hub or "").split("/")[-1:], *filter(None, [data.config])])
    local = data.local or own
    names = (local,) if isinstance(local, str) else local
    near = [Path(name) for name in names if name and data.local and Path(name).is_dir()]
    return near + [folder / name for name in names if folder and name]


def _split_files(place: Path, split: str) -> list[Path]:
    files = [path for path in sorted(place.iterdir()) if path.suffix in _DATA_SUFFIXES]
    return [path for path in files if re.fullmatch(rf"{re.escape(split)}(-\d[\w-]*)?", path.stem)]


def _from_hub(data: Data, folder: Path | None) -> Source:
    import datasets

    name = " ".join(filter(None, [data.hub, data.config]))
    try:
        loaded = datasets.load_dataset(data.hub, data.config, streaming=data.streaming)
    except (OSError, ValueError, RuntimeError) as error:
        cause = str(error).strip().splitlines()[0][:200] if str(error).strip() else repr(error)
        wanted = dict.fromkeys(data.splits.get(split, split) for split in SPLITS)
        place = local_folders(data, folder or Path("$SYNTHESIZER_DATA"))[-1]
        raise UserError(
            f"cannot load {name} from the hub ({cause}); these files would serve instead: "
            f"{place}/{{{','.join(wanted)}}}.parquet (SYNTHESIZER_DATA names the folder of such "
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
        origin=f"hub {name}",
        fingerprint=_digest([], name, *(_hub_version(loaded[key]) for key in loaded)),
        splits={split: partial(rows, key) for split, key in theirs.items() if key in loaded},
    )


def _hub_version(split: Any) -> str:  # noqa: ANN401  a Dataset or an IterableDataset
    import datasets

    files = split.cache_files if isinstance(split, datasets.Dataset) else ()
    return f"{split.info.version} {split.info.splits} {[file['filename'] for file in files]}"


def _digest(paths: Iterable[Path], *words: str) -> str:
    """SHA-256 of the content of files and of every file below folders."""
    total = hashlib.sha256("\0".join(words).encode())
    for path in paths:
        for file in _files_below(path) if path.is_dir() else [path]:
            if not file.exists():
                raise UserError(f"{file} does not exist; check the paths in [data]")
            with file.open("rb") as stream:
                total.update(file.name.encode() + hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()
