"""What an audit writes, and how it is read again.

audit.json           what was measured: heads, ranking, curve, answer
tables.safetensors   each head's average attention, as logits
report.html          the same as a page
measured.jsonl       of an unfinished audit: one line of what was asked, of which model and texts,
                     then one line for every head and every number of heads; the same command goes
                     on behind it, and it goes when audit.json is written
"""

import json
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, TypeAdapter, ValidationError, model_validator
from torch import Tensor

from synthesizer_attention.audit.converted import Layer
from synthesizer_attention.audit.examples import METRICS
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.files import (
    append_line,
    find_damage,
    read_regular,
    remedy,
    sha256,
    write_text,
)
from synthesizer_attention.run.records import Record

RECORD, TABLES, PAGE = "audit.json", "tables.safetensors", "report.html"
MEASURED = "measured.jsonl"
SAID_EVERY = 60  # seconds
T = TypeVar("T")
Say = Callable[[str], None]


@dataclass(frozen=True)
class HeadCost:
    """What replacing one head alone does, on the examples that rank."""

    layer: int
    head: int
    moved: float  # how far the outputs move: what heads are ranked by
    moved_low: float
    moved_high: float
    cost: float  # in the metric
    cost_low: float
    cost_high: float


@dataclass(frozen=True)
class Point:
    """A number of heads replaced, and the metric there on the examples that judge."""

    replaced: int
    value: float
    cost: float
    low: float
    high: float
    order: str = "measured"  # or random: the control


class Audit(Record):
    """The types of audit.json, as far as `convert` relies on them."""

    what = "the record of an audit"
    remedy = "run synthesizer audit again"

    model: str
    metric: str
    table: Literal["relative", "random"]
    max_len: int
    layers: list[Layer]
    order: list[tuple[int, int]]
    curve: list[Point]
    value: float
    data: str
    num_judge: int
    reads: Literal["texts", "images", "sounds"] = "texts"
    path: str = ""  # absolute, where the model is on this disk
    weights: dict[str, str] = Field({})  # sha256 of each file; records of older versions have none
    readers: dict[str, str] = Field({})  # sha256 of each file beside the weights that is read
    tables_sha256: str = ""  # of TABLES, in records of older versions

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.metric not in METRICS:
            raise ValueError(f"metric: Input should be {', '.join(map(repr, METRICS))}")
        if not all(
            0 <= layer < len(self.layers) and 0 <= head < self.layers[layer].num_heads
            for layer, head in self.order
        ):
            raise ValueError("order names a head that no layer has")
        return self


def read_audit(path: Path) -> dict[str, Any]:
    """The record of a finished audit."""
    try:
        return Audit.read(path / RECORD)
    except FileNotFoundError:
        raise UserError(
            f"{path} holds no {RECORD}, so it is not an audit; "
            f"run synthesizer audit --out {path} first"
        ) from None


def check_tables(path: Path, record: dict[str, Any]) -> None:
    """Refuse tables that are not as the audit wrote them; older versions knew no sha256."""
    if not (path / TABLES).is_file():
        return
    known, damage = record.get("tables_sha256"), find_damage(path / RECORD, (TABLES,))
    if known and sha256(path / TABLES) != known:
        damage = f"{TABLES} is damaged (its sha256 is not the one in {RECORD})"
    if damage:
        raise UserError(f"{path}: {damage}; {remedy(damage, Audit.remedy)}")


def model_path(record: dict[str, Any]) -> str:
    """What to load the audited model from: where it was or, once that is gone, as it was named."""
    path = record.get("path", "")
    return str(path if path and Path(path).exists() else record["model"])


def model_name(record: dict[str, Any]) -> str:
    """The audited model's name, as short as it says something: a folder may be called model."""
    return "/".join(Path(record["model"]).parts[-3 if record.get("run") else -2 :])


class Measured:
    """Measurements by name; those that a stopped audit left are not made again."""

    def __init__(self, folder: Path | None = None, facts: Mapping[str, Any] | None = None) -> None:
        self.path = None if folder is None else folder / MEASURED
        self._known: dict[str, Any] = {}
        if self.path is not None:
            facts = json.loads(json.dumps(facts))  # as it is read again
            if self.path.exists():
                self._known = _read(self.path, facts)
            lines = [{"facts": facts}, *map(_line, self._known, self._known.values())]
            write_text(self.path, "".join(json.dumps(line) + "\n" for line in lines))
        self.num_known = len(self._known)

    def __call__(self, name: str, measure: Callable[[], T], kind: type[T]) -> T:
        """What is known by this name, else what measure returns; written down."""
        if name in self._known:
            try:
                return TypeAdapter(kind).validate_json(json.dumps(self._known[name]), strict=True)
            except ValidationError:
                raise _damaged(self.path, f"what it says of {name} is no {kind.__name__}") from None
        found = measure()
        self._known[name] = asdict(found)  # type: ignore[call-overload]
        if self.path is not None:
            append_line(self.path, _line(name, self._known[name]))
        return found

    def all(
        self, measures: Mapping[str, Callable[[], T]], kind: type[T], say: Say, what: str
    ) -> list[T]:
        """Every measurement in turn; what takes long says how much time is left."""
        found: list[T] = []
        spent, fresh, said = 0.0, 0, time.monotonic()
        for number, (name, measure) in enumerate(measures.items()):
            if fresh and time.monotonic() - said > SAID_EVERY:
                said, left = time.monotonic(), spent / fresh * (len(measures) - number)
                say(f"{number} of {len(measures)} {what} measured, {left / 60:.0f} minutes to go")
            fresh += name not in self._known
            begun = time.monotonic()
            found.append(self(name, measure, kind))
            spent += time.monotonic() - begun
        return found

    def finish(self) -> None:
        """Forget the file: the record holds all of it."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def fingerprint(tensors: Iterable[Tensor]) -> int:
    """A number that another model or other texts would hardly have."""
    number = 0
    for tensor in tensors:
        number = zlib.crc32(tensor.detach().contiguous().numpy().tobytes(), number)
    return number


def _line(name: str, found: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "found": found, "checksum": _checksum(name, found)}


def _checksum(name: str, found: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps([name, found]).encode())


def _damaged(path: Path | None, why: str) -> UserError:
    return UserError(f"{path} is damaged ({why}); delete it to measure from the beginning")


def _read(path: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The measurements in a file that began with the same facts; a cut last line is left out."""
    try:
        whole, _, _ = read_regular(path).rpartition("\n")
        lines = [json.loads(line) for line in whole.split("\n") if line]
        known = {line["name"]: line["found"] for line in lines[1:]}
        for line in lines[1:]:  # an older version wrote none
            if line.get("checksum", 0) not in (0, _checksum(line["name"], line["found"])):
                raise ValueError(f"the checksum of {line['name']} is another")
        before = lines[0]["facts"] if lines else facts
        other = [name for name in facts if before.get(name) != facts[name]]
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from None
    if other:
        name = other[0]
        raise UserError(
            f"{path} is of an unfinished audit whose {name} was {before.get(name)}, and now it is "
            f"{facts[name]}; repeat that command, name another --out, or delete the file"
        )
    return known
