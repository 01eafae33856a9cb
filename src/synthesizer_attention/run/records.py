"""The fields of every record, as far as others compute with them, and the one way to read one.

A record may come from anybody and any version: keys that are missing or unknown are fine, a value
of another type is not. A new field of a result is declared in `Result`. Studies that are packed as
one .zip each (tools/pack.py) are read as the folders they were.
"""

import atexit
import json
import math
import shutil
import tempfile
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from typing import IO, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.files import (
    check_expansion,
    check_regular_file,
    checksum,
    path_inside,
    read_regular,
)

STUDY = "study.json"  # what a comparison leaves beside its runs
PACKED = ".zip"
Match = Literal["none", "params", "flops", "time"]  # what all variants of a study have alike
Numbers = dict[str, float | None]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Change = Annotated[str, Field(pattern="=")]  # key=value


class Part(BaseModel):
    """A part of a record."""

    model_config = ConfigDict(strict=True, extra="ignore")

    @classmethod
    def check(cls, text: str) -> None:
        """ValueError, with the place, where JSON holds a value of another type."""
        try:
            cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            said = first["msg"].removeprefix("Value error, ")
            raise ValueError(f"{place}: {said}" if place else said) from None


class Record(Part):
    """A JSON file that is read again."""

    what: ClassVar[str]
    remedy: ClassVar[str]

    @classmethod
    def read(cls, path: Path) -> dict[str, Any]:
        """As `parse`, with one line that says what is wrong and what to do."""
        try:
            return cls.parse(path)
        except ValueError as error:
            raise UserError(f"{path} is not {cls.what} ({error}); {cls.remedy}") from None

    @classmethod
    def parse(cls, path: Path) -> dict[str, Any]:
        """What is stored, hashes left out; ValueError where it is damaged or no such record."""
        text = read_regular(path)
        try:
            stored: dict[str, Any] = json.loads(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        cls.check(text)
        if (known := stored.get("checksum")) and known != checksum(stored):
            raise ValueError("it was damaged: its checksum is another")
        cls.agree(path, stored)
        return {key: value for key, value in stored.items() if key not in ("files", "checksum")}

    @classmethod
    def agree(cls, path: Path, stored: dict[str, Any]) -> None:
        """ValueError where the values of a record contradict each other."""


class Read(Part):
    """The data of a run."""

    identity: str | None = None  # older runs have none


class Result(Record):
    """result.json."""

    what = "the record of a finished run"
    remedy = "restore it from a copy, or delete the directory and train again"

    main_metric: str
    metrics: Numbers
    higher_is_better: bool = True
    recipe_hash: str = ""
    signatures: dict[str, str] = {}
    validation: Numbers = {}
    parameters: dict[str, Count] = {}
    flops_per_token: float | None = None
    cache_bytes_per_token: float | None = None
    training_seconds: float | None = None
    training_tokens_per_second: float | None = None
    decoding_tokens_per_second: float | None = None
    training_memory_bytes: float | None = None
    steps_per_token: Numbers | None = None
    source_gap: float | None = None
    worth_of_source: float | None = None  # the same in older records
    sharpness: Numbers | None = None
    threads: int | None = None
    data: Read = Read()
    versions: dict[str, str] = {}

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.metrics.get(self.main_metric) is None:
            raise ValueError(f"metrics: {self.main_metric!r}, the main metric, has no value")
        return self


class Logged(Part):
    """A line of metrics.jsonl or timing.jsonl."""

    step: int
    loss: float | None = None
    validation: Numbers = {}
    seconds: float = 0
    tokens: float = 0
    memory_bytes: float = 0


class Trial(Part):
    """A setting that a learning-rate search tried, and what it reached."""

    changes: list[Change]
    validation: float | None
    positions: str = ""
    row: str = ""
    run: str = ""
    seed: Count = 0
    higher_is_better: bool = True
    best_step: Count | None = None


class DotTrial(Trial):
    """A trial of a dot product that others may be compared with."""

    positions: str


class Choice(Part):
    """A setting of all rows that trials on validation chose."""

    choice: str
    row: str
    trials: list[Trial]
    chosen: list[Change]


class Search(Part):
    """How trials choose: so many of a row, the best, get a second seed. Older studies have none."""

    repeated: Count = 0
    seeds: list[Count] = []
    every_row: bool = False  # positions of all rows were searched, not of dot alone


class StudyRow(Part):
    """A row of study.json."""

    label: str
    spec: str
    runs: list[str]
    error: str | None = None
    note: str | None = None
    left_out: str | None = None
    trials: list[Trial] | None = None
    varied: list[Change] = []
    settings: list[Change] = []
    candidate: bool = False

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """What --vary set is among the settings, where these are told."""
        for change in self.varied:
            if self.settings and change not in self.settings:
                raise ValueError(f"varied is {change!r}, which is not among its settings")
        return self


class Opponent(Part):
    """The dot product that the rows of a study are compared with."""

    label: str | None
    configured: str
    how: str
    trials: list[DotTrial]


class Looks(Part):
    """After how many seeds a study looks at its runs."""

    planned: list[Count]
    taken: list[Count]
    unplanned: list[Count] = []


class Pretraining(Part):
    """What every run of a study starts from."""

    recipe: str
    steps: Count
    folder: str = ""


class Rerun(Part):
    """A run that was repeated after code had changed, and whether its bits agree."""

    row: str
    seed: Count
    equal: bool


class Study(Record):
    """study.json."""

    what = "the record of a comparison"
    remedy = "restore it, or name another directory (`synthesizer report` takes single runs, too)"

    rows: list[StudyRow]
    command: str | None = None
    recipe: str | None = None
    rule: str | None = None  # that its verdicts follow; older studies have none
    primary: str | None = None  # label of the row that has most of the level first
    margin: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    match: Match | None = None
    tune: Count | None = None
    search: Search | None = None
    chosen_for: str | None = None
    quick: bool = False
    against: list[str] = []
    ladder: Annotated[int, Field(ge=2)] | None = None
    opponent: Opponent | None = None
    pretrain: Pretraining | None = None
    rerun: Rerun | None = None
    looks: Looks | None = None
    identity: str | None = None  # of the data; older studies have none
    inferred: str | None = None
    measured: list[Choice] = []
    shared: str = ""
    data: str = ""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Rows that contradict each other are no table."""
        labels = [row.label for row in self.rows]
        runs = [run for row in self.rows for run in row.runs]
        for name, each in (("label", labels), ("run", runs)):
            if twice := next((one for one, n in Counter(each).items() if n > 1), None):
                raise ValueError(f"rows: two have the {name} {twice!r}")
        if len({tuple(change.partition("=")[0] for change in r.varied) for r in self.rows}) > 1:
            raise ValueError("rows: not all of them vary the same keys")
        dots = [row.label for row in self.rows if row.spec == "dot"]
        if self.opponent and self.opponent.label not in (None, *dots):
            raise ValueError(f"opponent.label: {self.opponent.label!r} is no row of dot products")
        if self.primary not in (None, *labels):
            raise ValueError(f"primary: {self.primary!r} is no row")
        return self

    @classmethod
    def agree(cls, path: Path, stored: dict[str, Any]) -> None:
        """A study reads no run outside of its directory."""
        for run in (run for row in stored["rows"] for run in row["runs"]):
            path_inside(path.parent, run)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz, once its directory and their headers say that they fit in memory."""
    check_regular_file(path)
    with path.open("rb") as stream:
        with zipfile.ZipFile(stream) as file:
            check_expansion(path, sum(member.file_size for member in file.infolist()))
            for member in file.infolist():
                if member.flag_bits & 1 or member.compress_type not in (0, zipfile.ZIP_DEFLATED):
                    raise ValueError(f"{path}: {member.filename} is encrypted or packed otherwise")
                with file.open(member) as content:
                    read_header(content, member)
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as stored:
            return dict(stored)


def read_header(
    content: IO[bytes], member: zipfile.ZipInfo
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type of an array in an .npz; it must be as large as it says."""
    form = np.lib.format
    first = form.read_magic(content) == (1, 0)
    header = (form.read_array_header_1_0 if first else form.read_array_header_2_0)(content)
    if math.prod(header[0]) * header[2].itemsize > member.file_size:  # it would be allocated
        raise ValueError(f"{member.filename} is shorter than it says")
    return header


_opened: dict[tuple[Path, int], Path] = {}


def opened(path: Path) -> Path:
    """A folder as it is; a .zip as a folder of the same name, removed when the process ends."""
    if path.suffix != PACKED or path.is_dir():
        return path
    try:
        check_regular_file(path)
        key = path, path.stat().st_mtime_ns
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); name a folder or a .zip") from None
    if key not in _opened:
        home = tempfile.mkdtemp(prefix="synthesizer-")
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        _opened[key] = _extract(path, Path(home) / path.stem)
    return _opened[key]


def named(path: Path) -> Path:
    """A path within an opened .zip as it is within the unpacked folder; any other as it is."""
    for (packed, _), home in _opened.items():
        if path.is_relative_to(home):
            return packed.with_suffix("") / path.relative_to(home)
    return path


def unpack(folder: Path) -> bool:
    """Make folder.zip a folder again where there is none; whether that was done."""
    packed = folder.with_name(folder.name + PACKED)
    if folder.exists() or not packed.is_file():
        return False
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _extract(packed, beside / folder.name).rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return True


def _extract(path: Path, home: Path) -> Path:
    """Write every member below `home`; zipfile checks their sums and keeps their names inside."""
    try:
        if path.read_bytes()[-22:-18] != b"PK\5\6":  # or the .npz inside would be taken for it
            raise zipfile.BadZipFile("its end is missing")
        with zipfile.ZipFile(path) as file:
            check_expansion(path, sum(member.file_size for member in file.infolist()))
            home.mkdir()
            file.extractall(home)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise UserError(
            f"{path} is damaged ({type(error).__name__}: {error}); restore it from a copy"
        ) from None
    return home
