"""Encoded data kept between runs: one .npz file per content, safe to delete at any time.

The arrays of an entry are memory maps of its file: memory does not grow with the data.

A directory that others may write is neither read nor filled: their files would be trained on.
"""

import errno
import functools
import hashlib
import json
import logging
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.disk import write_atomically
from synthesizer_attention.run.run import read_header
from synthesizer_attention.untrusted import check_regular_file, who_else_may_write

Array = NDArray[Any]

_META = "meta.json"
_ELSEWHERE = "set SYNTHESIZER_CACHE to a directory that can be written"
_SPACE = f"free some space, or {_ELSEWHERE}"
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
    """The entry of a key, built and stored where it is missing or damaged."""
    path = folder / f"{key}.npz"
    if not _is_own(folder):
        return build()
    entry = _load(path)
    if entry is None:
        entry = build()
        _store(path, entry)
        entry = _load(path) or entry  # from disk, as every other run has it
    return entry


def find(folder: Path, key: str) -> Entry | None:
    """The entry of a key, where there is a sound one."""
    return _load(folder / f"{key}.npz") if _is_own(folder) else None


@functools.cache
def _is_own(folder: Path) -> bool:
    """Whether nobody else may write the directory, made where missing; warns if not."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = who_else_may_write(folder)
    except OSError as error:
        advice = _advice(error)
        raise UserError(f"cannot make the cache {folder} ({error.strerror}); {advice}") from None
    if problem is not None:
        logging.getLogger(__name__).warning(
            "the cache of encoded data is not used: %s; "
            "set SYNTHESIZER_CACHE to a directory of your own",
            problem,
        )
    return problem is None


def _advice(error: OSError) -> str:
    return _SPACE if error.errno in (errno.ENOSPC, errno.EDQUOT) else _ELSEWHERE


def scratch_folder() -> Path | None:
    """Where data that do not fit in memory lie while they are encoded; None: as the system says."""
    folder = cache_folder()
    return folder if _is_own(folder) else None


def cannot_spill(error: OSError) -> UserError:
    """What to say where encoded data cannot be written."""
    folder = scratch_folder() or Path(tempfile.gettempdir())
    return UserError(f"cannot write encoded data to {folder} ({error.strerror}); {_advice(error)}")


def _load(path: Path) -> Entry | None:
    """Every member of an .npz carries a checksum, so damage shows as one of these errors."""
    try:
        if who_else_may_write(path) is not None:
            return None
        arrays = _map_arrays(path)
        return Entry(arrays, json.loads(arrays.pop(_META).tobytes()))
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error):
        return None


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
