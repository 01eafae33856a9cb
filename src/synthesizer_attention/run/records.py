"""The types of what runs and studies leave as JSON, as far as others compute with it (no torch).

A record may come from anybody and any version: keys that are missing or unknown are fine, a value
of another type is not.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from synthesizer_attention.errors import UserError
from synthesizer_attention.untrusted import path_inside, read_regular

Match = Literal["none", "params", "flops", "time"]  # what all variants of a study have alike
Numbers = dict[str, float | None]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Change = Annotated[str, Field(pattern="=")]  # key=value


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    @classmethod
    def check(cls, value: object) -> None:
        """ValueError, with the place, where a value has another type."""
        try:
            cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            said = first["msg"].removeprefix("Value error, ")
            raise ValueError(f"{place}: {said}" if place else said) from None


class Read(_Record):
    """The data of a run."""

    identity: str | None = None  # older runs have none


class Result(_Record):
    """result.json."""

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


class Logged(_Record):
    """A line of metrics.jsonl or timing.jsonl."""

    step: int
    loss: float | None = None
    validation: Numbers = {}
    seconds: float = 0
    tokens: float = 0
    memory_bytes: float = 0


class Trial(_Record):
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


class Choice(_Record):
    """A setting of all rows that trials on validation chose."""

    choice: str
    row: str
    trials: list[Trial]
    chosen: list[Change]


class Search(_Record):
    """How trials choose: so many of a row, the best, get a second seed. Older studies have none."""

    repeated: Count = 0
    seeds: list[Count] = []


class StudyRow(_Record):
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


class Opponent(_Record):
    """The dot product that the rows of a study are compared with."""

    label: str | None
    configured: str
    how: str
    trials: list[DotTrial]


class Looks(_Record):
    """After how many seeds a study looks at its runs."""

    planned: list[Count]
    taken: list[Count]
    unplanned: list[Count] = []


class Pretraining(_Record):
    """What every run of a study starts from."""

    recipe: str
    steps: Count
    folder: str = ""


class Rerun(_Record):
    """A run that was repeated after code had changed, and whether its bits agree."""

    row: str
    seed: Count
    equal: bool


class Study(_Record):
    """study.json."""

    rows: list[StudyRow]
    command: str | None = None
    recipe: str | None = None
    rule: str | None = None  # that its verdicts follow; older studies have none
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
        return self


def read_study(path: Path) -> dict[str, Any]:
    """A study.json as it is stored, once all of it is known to be one."""
    try:
        stored: dict[str, Any] = json.loads(read_regular(path))
        Study.check(stored)
        for run in (run for row in stored["rows"] for run in row["runs"]):
            path_inside(path.parent, run)
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"{path} is not the record of a comparison ({why}); restore it, or name another "
            "directory (`synthesizer report` takes single runs, too)"
        ) from None
    return stored
