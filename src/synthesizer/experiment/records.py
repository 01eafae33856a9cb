"""The types of what runs and studies leave as JSON, as far as others compute with it (no torch).

A record may come from anybody and any version: keys that are missing or unknown are fine, a value
of another type is not.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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
            place = ".".join(map(str, first["loc"])) or "the record"
            raise ValueError(f"{place}: {first['msg']}") from None


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
    worth_of_source: float | None = None
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
    seed: Count = 0


class Search(_Record):
    """How trials choose: so many of a row, the best, get a second seed. Older studies have none."""

    repeated: Count = 0


class StudyRow(_Record):
    """A row of study.json."""

    label: str
    spec: str
    runs: list[str]
    error: str | None = None
    note: str | None = None
    left_out: str | None = None
    trials: list[Trial] | None = None
    varied: list[Change] | None = None


class Opponent(_Record):
    """The dot product that the rows of a study are compared with."""

    label: str | None
    configured: str
    how: str
    trials: list[Trial]


class Looks(_Record):
    """After how many seeds a study looks at its runs."""

    planned: list[int]
    taken: list[int]


class Pretraining(_Record):
    """What every run of a study starts from."""

    recipe: str
    steps: int


class Study(_Record):
    """study.json."""

    rows: list[StudyRow]
    command: str | None = None
    recipe: str | None = None
    margin: Annotated[float, Field(gt=0)] | None = None
    match: str | None = None
    tune: int | None = None
    search: Search | None = None
    chosen_for: str | None = None
    quick: bool = False
    against: list[str] | None = None
    opponent: Opponent | None = None
    pretrain: Pretraining | None = None
    rerun: dict[str, Any] | None = None
    looks: Looks | None = None
    identity: str | None = None  # of the data; older studies have none
