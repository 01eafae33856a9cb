"""Read run directories, and study.json where `compare` wrote one (no torch).

run/records.py has the types of both. Runs outside a study are grouped by recipe: those that
differ in anything but synthesis and seed are never put into one table (runs that start from
RUNS/<their synthesis>/seed<their seed> start alike).
"""

import json
import re
import tomllib
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.files import MANIFEST, find_damage, read_regular
from synthesizer_attention.run.recipe import contradicted, leaves
from synthesizer_attention.run.records import PACKED, STUDY, Result, opened, read_arrays
from synthesizer_attention.run.records import Study as StudyRecord
from synthesizer_attention.run.run import RECIPE, RESULT, WEIGHTS, Run
from synthesizer_attention.spec import TABLE_2, normalize_spec
from synthesizer_attention.study.evidence import HOLM, Rule
from synthesizer_attention.study.rows import DOT
from synthesizer_attention.study.stats import Looks, Measured, rule_of

PLOTTED = ("statistics.npz", "attention.npz", "metrics.jsonl", "timing.jsonl", "samples.txt")
OWN_KEYS = ("synthesis", "decoder_synthesis", "seed")  # in which rows of one table may differ
RENAMED = {"worth_of_source": "source_gap"}  # keys of older results
COSTS = {  # where result.json has them; of several stacks the mean
    "parameters": ("parameters", "total"),
    "flops": ("flops_per_token",),
    "training": ("training_tokens_per_second",),
    "decoding": ("decoding_tokens_per_second",),
    "memory": ("training_memory_bytes",),
    "cache": ("cache_bytes_per_token",),
    "process_memory": ("peak_memory_bytes",),  # of older records
    "sharpness": ("sharpness",),
    "source_gap": ("source_gap",),
    "steps_per_token": ("steps_per_token",),
}
SPEEDS = ("training", "decoding")  # which depend on the machine
Damage = (OSError, ValueError, KeyError, TypeError, RecursionError)


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
        return self.told("data", "identity")

    @property
    def state(self) -> str:
        """How far it came."""
        if self.trouble:
            return self.trouble
        if self.result is not None:
            return "finished"
        step = int(self.lines[-1]["step"]) if self.lines else 0
        steps = self.recipe["train"]["steps"]
        return f"stopped at step {step:,} of {steps:,}" if step else "not started"

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """metrics.jsonl."""
        try:
            return Run(self.path).metrics()
        except (OSError, ValueError, RecursionError):
            return []

    def told(self, *keys: str) -> Any:  # noqa: ANN401  whatever a result holds there
        """What its result has at this place, or None."""
        found: Any = self.result
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found

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
        """What samples.txt shows: `name: text`, with more lines up to the next name."""
        names = "(?:source|reference|output): "
        try:
            text = "\n".join(read_regular(self.path / "samples.txt").splitlines())
        except (OSError, ValueError):
            return []
        found: list[dict[str, str]] = []
        for part in re.split(rf"^(?={names})", text, flags=re.MULTILINE)[1:]:
            name, _, words = part.partition(": ")
            if name == "source" or not found:
                found.append({})
            found[-1][name] = words.strip()
        return found


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

    def mean(self, *keys: str) -> float | None:
        """The mean of what its finished runs tell at this place, if one does."""
        return mean_known(run.told(*keys) for run in self.finished)

    def scores(self, metric: str) -> dict[int, float]:
        """A metric by seed, of the finished runs that have it."""
        found = {run.seed: run.told("metrics", metric) for run in self.finished}
        return {seed: value for seed, value in found.items() if value is not None}

    @cached_property
    def _measured(self) -> dict[str, Measured]:
        return {}

    def measured(self, metric: str) -> Measured:
        """Scores and per-example statistics of a metric, read once."""
        if metric not in self._measured:
            runs = {
                run.seed: (run.result or {}, run.arrays("statistics.npz")) for run in self.finished
            }
            self._measured[metric] = Measured.read(self.label, runs, metric)
        return self._measured[metric]

    @cached_property
    def cost(self) -> dict[str, float | None]:
        """Parameters, arithmetic, speed and memory: means over its finished runs."""
        return {name: self.mean(*keys) for name, keys in COSTS.items()}

    def relative_cost(self, base: "Row | None") -> dict[str, float | None]:
        """The same over those of a base; no speed where the machines differ."""
        beside = base.cost if base else {}
        alike = len(machines([*self.finished, *(base.finished if base else ())])) == 1
        return {
            name: own / other
            if own is not None and (other := beside.get(name)) and (alike or name not in SPEEDS)
            else None
            for name, own in self.cost.items()
        }


@dataclass(frozen=True)
class Study:
    """Rows of one table."""

    name: str
    path: Path
    rows: tuple[Row, ...]
    command: str | None = None
    margin: float | None = None
    looks: Looks | None = None
    rule: Rule = HOLM
    facts: dict[str, Any] = field(default_factory=dict)  # match, tune, chosen_for, quick

    @property
    def runs(self) -> list[Record]:
        return [run for row in self.rows for run in row.runs]

    @property
    def finished(self) -> list[Record]:
        return [run for row in self.rows for run in row.finished]

    @property
    def recipe(self) -> dict[str, Any]:
        """What its rows share, from the first run there is."""
        return self.runs[0].recipe if self.runs else {}

    @property
    def chosen(self) -> dict[str, Any]:
        """How the opponent was chosen; empty in older records."""
        return self.facts.get("opponent") or {}

    def opponent(self, varied: tuple[str, ...] | None = None) -> Row | None:
        """The dot product that rows are compared with: as recorded, or the best on validation.

        Studies that recorded none, and those of --vary, have one for each choice of varied values,
        and its controls behind it; where no choice is asked for, that of the first row.
        """
        if varied is None:
            varied = self.rows[0].varied if self.rows else ()
        dots = [row for row in self.rows if row.spec == DOT and row.varied == varied]
        named = [row for row in dots if row.label == self.chosen.get("label")]
        first = next((run for row in dots for run in row.finished), None)
        if first is not None and not named:
            higher = first.told("higher_is_better") is not False
            scores = {
                row.label: score
                for row in dots
                if row.candidate
                and (score := row.mean("validation", first.told("main_metric"))) is not None
            }
            best = (max if higher else min)(scores, key=lambda label: scores[label], default=None)
            named = [row for row in dots if row.label == best]
        return next(iter(named or dots), None)

    def base_of(self, row: Row) -> Row | None:
        """The dot product that a row is compared with, once it is trained."""
        dot = self.opponent(row.varied)
        return dot if dot is not None and dot.finished else None


def plain_change(change: str) -> str:
    """'data.difficulty=4' in words: 'difficulty 4'."""
    return change.rpartition(".")[2].replace("=", " ")


def normalized(spec: str) -> str:
    """A spec in its long names, or as it is where this version does not know it."""
    try:
        return normalize_spec(spec)
    except UserError:
        return spec


def mean_known(values: Iterable[Any]) -> float | None:
    """The mean of the numbers that are known; a dict counts as the mean of its own."""
    own = (mean_known(v.values()) if isinstance(v, dict) else v for v in values)
    known = [value for value in own if value is not None]
    return float(np.mean(known)) if known else None


def machines(runs: Sequence[Record]) -> list[str]:
    """The kinds of machine that runs were made on: what decides how fast they are."""
    kinds: dict[str, None] = {}
    for result in (run.result or {} for run in runs):
        device = " on ".join(str(result[k]) for k in ("device", "processor") if k in result)
        kinds[f"{device or '?'}, threads: {result.get('threads', '?')}"] = None
    return list(kinds)


@contextmanager
def blaming(file: Path) -> Iterator[None]:
    """Name the file in whatever is wrong with its values."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def read_studies(paths: Sequence[Path], *, verify: bool = True) -> list[Study]:
    """Every study and every other group of runs below the paths, each directory once."""
    studies: list[Study] = []
    taken: set[Path] = set()
    loose: list[Record] = []
    packed = (found for path in paths for found in (path, *sorted(path.glob(f"*{PACKED}"))))
    for path in map(opened, packed):
        if not path.is_dir():
            raise UserError(
                f"{path} is not a directory; name run directories, one that contains some, or a "
                "packed study (.zip)"
            )
        for found in sorted(path.rglob(STUDY)):
            if found.parent.resolve() not in taken:
                taken.add(found.parent.resolve())
                studies.append(_read_study(found, verify))
        for found in sorted([*path.rglob(RECIPE), *path.rglob(RESULT), *path.rglob(MANIFEST)]):
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


def read_run(path: Path, *, verify: bool = True) -> Record:
    """A run directory, whatever state it is in; its files are compared with their hashes."""
    recipe: dict[str, Any] = {"name": path.name, "synthesis": "unknown", "seed": 0}
    finished = (path / RESULT).exists() or not any(path.glob("checkpoints/step-*"))
    how: dict[str, Any] = {"hashes": verify, "spared": WEIGHTS}
    damage = find_damage(path / RESULT, PLOTTED, **how) if finished else None
    try:
        stored = tomllib.loads(read_regular(path / RECIPE))
        words = [stored[name] for name in ("name", "task", "synthesis")]
        numbers = [stored["seed"], stored["train"]["steps"]]
        if {*map(type, words)} != {str} or {*map(type, numbers)} != {int}:
            raise TypeError  # no recipe of any version
    except Damage as error:
        damage = damage or f"unreadable recipe.toml ({type(error).__name__})"
        return Record(path, recipe, None, damage)
    recipe |= stored
    result = None
    try:
        result = None if damage else Result.parse(path / RESULT)
    except FileNotFoundError:
        with suppress(OSError):  # which is as good as no file
            try:
                Run(path).metrics()
            except UserError:
                damage = "unreadable metrics.jsonl"
    except Damage as error:
        damage = f"unreadable result.json ({error})"
    if result is not None:
        for name in ("task", *OWN_KEYS):
            if name in result and result[name] != recipe.get(name):
                damage = f"recipe.toml and result.json disagree on {name}"
                break
        result |= {new: result[old] for old, new in RENAMED.items() if old in result}
    return Record(path, recipe, None if damage else result, damage)


def _read_study(file: Path, verify: bool) -> Study:
    home, stored = file.parent, StudyRecord.read(file)
    rows = []
    for place, told in enumerate(stored["rows"]):
        runs = [
            read_run(path, verify=verify)
            for path in (home / run for run in told["runs"])
            if any((path / name).exists() for name in (RECIPE, RESULT, MANIFEST))
        ]
        row = Row(
            told["label"],
            told["spec"],
            tuple(runs),
            **{name: told.get(name) for name in ("error", "note", "left_out")},
            trials=tuple(told.get("trials") or ()),
            varied=tuple(told.get("varied") or ()),
            candidate=told.get("candidate") is True,
        )
        rows.append(row)
        for run in row.runs:
            if wrong := _contradiction(row, told.get("settings", ()), run):
                raise UserError(
                    f"{file}: rows.{place}, {row.label!r}, lists {run.path}, whose recipe.toml "
                    f"has {wrong}; restore the file that was changed"
                )
    with blaming(file):
        rule = rule_of(stored)
        looks = Looks.read(stored["looks"]) if stored.get("looks") else None
    known = {"command", "margin", "rows", "recipe", "looks", "rule"}
    facts = {key: value for key, value in stored.items() if key not in known}
    name = stored.get("recipe") or home.name
    told = (stored.get("command"), stored.get("margin"))
    return Study(name, home, tuple(rows), *told, looks, rule, facts)


def _contradiction(row: Row, settings: Sequence[str], run: Record) -> str | None:
    """What a run's recipe has that is not its row's; a run that cannot be read says nothing."""
    if run.trouble:
        return None
    own = run.recipe["synthesis"]
    if normalized(own) != normalized(row.spec):
        return f"synthesis {own!r} where the row has {row.spec!r}"
    found = next(contradicted(run.recipe, (*row.varied, *settings)), None)
    return found and f"{found[0].partition('=')[0]} {found[1]!r} where the row has {found[0]}"


def _group(records: Sequence[Record]) -> list[Study]:
    """Tables of runs whose recipes differ in OWN_KEYS alone."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        shared = {key: value for key, value in record.recipe.items() if key not in OWN_KEYS}
        shared["train"] = {**shared.get("train", {}), "start_from": _start(record)}
        groups.setdefault(json.dumps(shared, sort_keys=True, default=str), []).append(record)
    studies = []
    for runs in groups.values():
        rows: dict[str, list[Record]] = {}
        for run in sorted(
            runs, key=lambda run: ([*TABLE_2, run.spec].index(run.spec), str(run.path))
        ):
            rows.setdefault(run.spec, []).append(run)
        first, *others = [run.path for run in runs]
        home = (p for p in (first, *first.parents) if all(o.is_relative_to(p) for o in others))
        name = _distinct_name(runs[0], [other[0] for other in groups.values()])
        made = tuple(Row(spec, spec, tuple(found)) for spec, found in rows.items())
        studies.append(Study(name, next(home), made))
    return studies


def _start(record: Record) -> str | None:
    """What a run began with; where runs began with their own pretrained twins, that is the same."""
    start: str | None = record.recipe.get("train", {}).get("start_from")
    if start is None:
        return None
    twin = {
        str(record.recipe["synthesis"]).replace(":", "_"): "{synthesis}",
        f"seed{record.seed}": "seed{seed}",
    }
    return "/".join(twin.get(part, part) for part in Path(start).parts)


def _distinct_name(run: Record, others: Sequence[Record]) -> str:
    """A recipe's name and, where another group shares it, the values in which they differ."""
    name = str(run.recipe["name"])
    namesakes = [dict(leaves(other.recipe)) for other in others if other.recipe["name"] == name]
    own = [
        f"{key}={value}"
        for key, value in leaves(run.recipe)
        if key not in (*OWN_KEYS, "train.start_from")
        and any(other.get(key) != value for other in namesakes)
    ]
    return f"{name} ({', '.join(own)})" if own else name
