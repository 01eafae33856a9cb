"""Read run directories, and study.json where `compare` wrote one (no torch).

run/records.py has the types of both. Runs outside a study are grouped by recipe: those that
differ in anything but synthesis and seed are never put into one table (runs that start from
RUNS/<their synthesis>/seed<their seed> start alike).
"""

import json
import tomllib
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from numpy.typing import NDArray

from synthesizer_attention.errors import UserError
from synthesizer_attention.manifest import MANIFEST, WEIGHTS, find_damage
from synthesizer_attention.run.packed import SUFFIX, opened
from synthesizer_attention.run.recipe import contradicted, leaves
from synthesizer_attention.run.records import read_study
from synthesizer_attention.run.run import STUDY, Run, parse_result, read_arrays
from synthesizer_attention.spec import TABLE_2, normalize_spec
from synthesizer_attention.study.stats import Looks
from synthesizer_attention.untrusted import read_regular

RECIPE, RESULT = "recipe.toml", "result.json"
PLOTTED = ("statistics.npz", "attention.npz", "metrics.jsonl", "timing.jsonl", "samples.txt")
OWN_KEYS = ("synthesis", "decoder_synthesis", "seed")  # in which rows of one table may differ


@dataclass(frozen=True)
class Record:
    """One run directory, finished or not."""

    path: Path
    recipe: dict[str, Any]
    result: dict[str, Any] | None
    trouble: str | None = None  # why it cannot be read

    @property
    def seed(self) -> int:
        return int(self.recipe["seed"])

    @property
    def spec(self) -> str:
        """What makes its attention; encoder and decoder apart where they differ."""
        own, decoder = self.recipe["synthesis"], self.recipe.get("decoder_synthesis")
        return normalized(own) + (f" / {normalized(decoder)}" if decoder else "")

    @property
    def data(self) -> str:
        """The settings of its data."""
        return json.dumps(self.recipe.get("data"), sort_keys=True, default=str)

    @property
    def identity(self) -> str | None:
        """Of the data that it read; runs of older versions have none."""
        found: str | None = (self.result or {}).get("data", {}).get("identity")
        return found

    @property
    def state(self) -> str:
        """How far it came."""
        if self.trouble:
            return self.trouble
        if self.result is not None:
            return "finished"
        step, steps = self.last_step, self.recipe["train"]["steps"]
        return f"stopped at step {step:,} of {steps:,}" if step else "not started"

    @property
    def last_step(self) -> int:
        return int(self.lines[-1]["step"]) if self.lines else 0

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """metrics.jsonl."""
        try:
            return Run(self.path).metrics()
        except (OSError, ValueError, RecursionError):
            return []

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """An .npz of the run; empty where there is none that can be read."""
        try:
            found = read_arrays(self.path / name)
        except (OSError, ValueError, EOFError, BadZipFile, zlib.error):
            return {}
        return {
            key: array for key, array in found.items() if array.ndim and array.dtype.kind in "biuf"
        }

    def samples(self) -> list[dict[str, str]]:
        """What samples.txt shows."""
        try:
            return _parse_samples(read_regular(self.path / "samples.txt"))
        except (OSError, ValueError):
            return []


@dataclass(frozen=True)
class Row:
    """The runs of one synthesis."""

    label: str
    spec: str
    runs: tuple[Record, ...]
    error: str | None = None
    note: str | None = None
    left_out: str | None = None  # because
    trials: tuple[dict[str, Any], ...] = ()
    varied: tuple[str, ...] = ()  # "key=value" that --vary gave it
    candidate: bool = False  # a dot product that others may be compared with

    @property
    def name(self) -> str:
        """Its label without the values that --vary gave it."""
        return self.label.removesuffix("".join(f", {plain_change(one)}" for one in self.varied))

    @property
    def finished(self) -> tuple[Record, ...]:
        return tuple(run for run in self.runs if run.result is not None)


def plain_change(change: str) -> str:
    """'data.difficulty=4' in words: 'difficulty 4'."""
    return change.rpartition(".")[2].replace("=", " ")


@dataclass(frozen=True)
class Study:
    """Rows of one table."""

    name: str
    path: Path
    rows: tuple[Row, ...]
    command: str | None = None
    margin: float | None = None
    looks: Looks | None = None
    facts: dict[str, Any] = field(default_factory=dict)  # match, tune, chosen_for, quick

    @property
    def runs(self) -> list[Record]:
        return [run for row in self.rows for run in row.runs]

    @property
    def recipe(self) -> dict[str, Any]:
        """What its rows share, from the first run there is."""
        return self.runs[0].recipe if self.runs else {}


def normalized(spec: str) -> str:
    """A spec in its long names, or as it is where this version does not know it."""
    try:
        return normalize_spec(spec)
    except UserError:
        return spec


def read_studies(paths: Sequence[Path], *, verify: bool = True) -> list[Study]:
    """Every study and every other group of runs below the paths, each directory once."""
    studies: list[Study] = []
    taken: set[Path] = set()
    loose: list[Record] = []
    for path in map(opened, _with_packed(paths)):
        if not path.is_dir():
            raise UserError(
                f"{path} is not a directory; name run directories, one that contains some, or a "
                "packed study (.zip)"
            )
        for found in sorted(path.rglob(STUDY)):
            if found.parent.resolve() not in taken:
                taken.add(found.parent.resolve())
                studies.append(_read_study(found, verify))
        for found in sorted([*path.rglob(RECIPE), *path.rglob(MANIFEST)]):
            place = found.parent.resolve()
            if place not in taken and not any(parent in taken for parent in place.parents):
                taken.add(place)
                loose.append(read_run(found.parent, verify=verify))
    studies += _group(loose)
    if not studies:
        raise UserError(
            f"no run below {', '.join(map(str, paths))}; a run directory holds a recipe.toml"
        )
    return [_without_other_data(study) for study in studies]


def _without_other_data(study: Study) -> Study:
    """A study whose runs of one [data] table read the same data; others are left out and named.

    Which are its own, study.json says; where it does not, those that most of the runs read.
    """
    read: dict[str, Counter[str]] = {}
    for run in study.runs:
        if run.identity:
            read.setdefault(run.data, Counter())[run.identity] += 1
    said: str = study.facts.get("identity") or ""
    own = {
        data: said if said in counts else counts.most_common(1)[0][0]
        for data, counts in read.items()
    }

    def check(run: Record) -> Record:
        if run.identity is None or run.identity == own[run.data]:
            return run
        other = f"identity {run.identity[:12]}, not {own[run.data][:12]}"
        return replace(run, result=None, trouble=f"trained on other data than the rest ({other})")

    rows = [replace(row, runs=tuple(map(check, row.runs))) for row in study.rows]
    return replace(study, rows=tuple(rows))


def _with_packed(paths: Sequence[Path]) -> Iterator[Path]:
    """The paths, each directory followed by the studies that are packed in it."""
    for path in paths:
        yield path
        yield from sorted(path.glob(f"*{SUFFIX}"))


def read_run(path: Path, *, verify: bool = True) -> Record:
    """A run directory, whatever state it is in; its files are compared with its manifest."""
    recipe: dict[str, Any] = {"name": path.name, "synthesis": "unknown", "seed": 0}
    finished = (path / RESULT).exists() or not any(path.glob("checkpoints/step-*"))
    damage = find_damage(path, PLOTTED, hashes=verify, spared=WEIGHTS) if finished else None
    try:
        stored = tomllib.loads(read_regular(path / RECIPE))
        _check_recipe(stored)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        damage = damage or f"unreadable recipe.toml ({type(error).__name__})"
        return Record(path, recipe, None, damage)
    recipe |= stored
    try:
        result = None if damage else parse_result(read_regular(path / RESULT))
        if result is not None:
            damage = _disagreement(recipe, result)
    except FileNotFoundError:
        result = None
        with suppress(OSError):  # which is as good as no file
            damage = _damaged_lines(path)
    except UserError as error:
        return Record(path, recipe, None, f"unreadable result.json ({error})")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return Record(path, recipe, None, f"unreadable result.json ({type(error).__name__})")
    return Record(path, recipe, None if damage else result, damage)


def _check_recipe(stored: dict[str, Any]) -> None:
    """A recipe as `dump` writes it, of whatever version: what a report needs of it is there."""
    for name in ("name", "task", "synthesis"):
        if not isinstance(stored[name], str):
            raise TypeError(name)
    for number in (stored["seed"], stored["train"]["steps"]):
        if not isinstance(number, int):
            raise TypeError("seed or steps")


def _disagreement(recipe: dict[str, Any], result: dict[str, Any]) -> str | None:
    """What recipe.toml and result.json do not agree on, where one of them was damaged."""
    for name in ("task", "synthesis", "decoder_synthesis", "seed"):
        if name in result and result[name] != recipe.get(name):
            return f"recipe.toml and result.json disagree on {name}"
    return None


def _damaged_lines(path: Path) -> str | None:
    try:
        Run(path).metrics()
    except UserError:
        return "unreadable metrics.jsonl"
    return None


def _read_study(file: Path, verify: bool) -> Study:
    home, stored = file.parent, read_study(file)
    rows = tuple(_read_row(home, row, verify) for row in stored["rows"])
    for place, (row, told) in enumerate(zip(rows, stored["rows"], strict=True)):
        for run in row.runs:
            if wrong := _contradiction(row, told.get("settings", ()), run):
                raise UserError(
                    f"{file}: rows.{place}, {row.label!r}, lists {run.path}, whose recipe.toml "
                    f"has {wrong}; restore the file that was changed"
                )
    name = stored.get("recipe") or home.name
    known = {"command", "margin", "rows", "recipe", "looks"}
    facts = {key: value for key, value in stored.items() if key not in known}
    looks = _read_looks(file, stored["looks"]) if stored.get("looks") else None
    return Study(name, home, rows, stored.get("command"), stored.get("margin"), looks, facts)


def _read_looks(file: Path, looks: dict[str, Any]) -> Looks:
    try:
        return Looks.read(looks)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def _contradiction(row: Row, settings: Sequence[str], run: Record) -> str | None:
    """What a run's recipe has that is not its row's; a run that cannot be read says nothing."""
    if run.trouble:
        return None
    own = run.recipe["synthesis"]
    if normalized(own) != normalized(row.spec):
        return f"synthesis {own!r} where the row has {row.spec!r}"
    found = next(contradicted(run.recipe, (*row.varied, *settings)), None)
    return found and f"{found[0].partition('=')[0]} {found[1]!r} where the row has {found[0]}"


def _read_row(home: Path, row: dict[str, Any], verify: bool) -> Row:
    runs = [
        read_run(path, verify=verify)
        for path in (home / run for run in row["runs"])
        if any((path / name).exists() for name in (RECIPE, RESULT, MANIFEST))
    ]
    remarks = {name: row.get(name) for name in ("error", "note", "left_out")}
    trials, varied = tuple(row.get("trials") or ()), tuple(row.get("varied") or ())
    return Row(
        row["label"],
        row["spec"],
        tuple(runs),
        trials=trials,
        varied=varied,
        candidate=row.get("candidate") is True,
        **remarks,
    )


def _group(records: Sequence[Record]) -> list[Study]:
    """Tables of runs whose recipes differ in OWN_KEYS alone."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        shared = {key: value for key, value in record.recipe.items() if key not in OWN_KEYS}
        shared["train"] = {**shared.get("train", {}), "start_from": _start(record)}
        groups.setdefault(json.dumps(shared, sort_keys=True, default=str), []).append(record)
    return [
        _study_of(runs, _distinct_name(runs[0], [other[0] for other in groups.values()]))
        for runs in groups.values()
    ]


def _start(record: Record) -> str | None:
    """What a run began with; where runs began with their own pretrained twins, that is the same."""
    start: str | None = record.recipe.get("train", {}).get("start_from")
    if start is None:
        return None
    own = str(record.recipe["synthesis"]).replace(":", "_")
    parts = ["{synthesis}" if part == own else part for part in Path(start).parts]
    return "/".join("seed{seed}" if part == f"seed{record.seed}" else part for part in parts)


def _distinct_name(run: Record, others: Sequence[Record]) -> str:
    """A recipe's name and, where another group shares it, the values in which they differ."""
    name = str(run.recipe["name"])
    namesakes = [dict(leaves(other.recipe)) for other in others if other.recipe["name"] == name]
    mine = [(key, value) for key, value in leaves(run.recipe) if key not in OWN_KEYS]
    own = [
        f"{k}={v}"
        for k, v in mine
        if k != "train.start_from" and any(other.get(k) != v for other in namesakes)
    ]
    return f"{name} ({', '.join(own)})" if own else name


def _study_of(runs: Sequence[Record], name: str) -> Study:
    rows: dict[str, list[Record]] = {}
    for run in sorted(runs, key=lambda run: (_rank(run.spec), str(run.path))):
        rows.setdefault(run.spec, []).append(run)
    made = tuple(Row(spec, spec, tuple(found)) for spec, found in rows.items())
    return Study(name, _common(runs), made)


def _rank(spec: str) -> int:
    return TABLE_2.index(spec) if spec in TABLE_2 else len(TABLE_2)


def _common(runs: Sequence[Record]) -> Path:
    first, *others = [run.path for run in runs]
    return next(p for p in (first, *first.parents) if all(o.is_relative_to(p) for o in others))


def _parse_samples(text: str) -> list[dict[str, str]]:
    """Blocks of `name: text`; a line without a known name goes on with the text before it."""
    samples: list[dict[str, str]] = []
    last = ""
    for line in text.splitlines():
        name, colon, rest = line.partition(": ")
        if colon and name in ("source", "reference", "output"):
            if name == "source" or not samples:
                samples.append({})
            samples[-1][name], last = rest, name
        elif samples and last:
            samples[-1][last] += f"\n{line}"
    return [{name: value.strip() for name, value in sample.items()} for sample in samples]
