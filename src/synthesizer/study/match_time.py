"""--match time: every row trains for as many seconds as its dot product (no torch).

The same steps of a row and of its dot product are timed in turns in one worker, by the clock that a
run reports its speed by; the median of their ratios gives the number of steps, and the median over
every other step says how repeatable it is. It is written to study.json before anything is trained:
the same command reads it there again, so that a study is repeated and continued to the bit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from synthesizer.experiment.recipe import dump
from synthesizer.experiment.records import read_study
from synthesizer.experiment.run import STUDY
from synthesizer.study.plan import Plan
from synthesizer.study.pool import WorkerPool
from synthesizer.study.rows import DOT, Row

STEPS, EVERY = "train.steps=", "evaluate.every="


def fit_steps(plan: Plan, pool: WorkerPool, say: Callable[[str], None]) -> Plan:
    """Give each row the steps that take as long as those of the dot product beside it."""
    if plan.asked.match != "time":
        return plan
    recorded = _recorded(plan)
    rows = []
    for row in plan.rows:
        base = _base(plan, row)
        if row.left_out is not None or base is None or _same_model(row, base):
            rows.append(row)
            continue
        settings, note = recorded.get(row.label) or _equal(plan, row, _time(plan, row, base, pool))
        say(f"{row.label}: {note}")
        rows.append(replace(row, changes=(*row.changes, *settings), note=note))
    plan = plan.with_rows(rows)
    plan.write()
    return plan


@dataclass(frozen=True)
class Timing:
    """A step of a row beside dot's."""

    dot: float  # seconds, the median
    ratio: float  # the row's step over dot's, the median
    off: float  # by which part the ratios of every other step differ


def _time(plan: Plan, row: Row, base: Row, pool: WorkerPool) -> Timing:
    own, dots = (dump(plan.recipe(one, plan.seeds[0])) for one in (row, base))
    taken = pool.ask({"do": "time", "recipe": own, "beside": dots})["seconds"]
    ratios = [mine / other for mine, other in taken]
    even, odd = (median(ratios[start::2]) for start in (0, 1))
    return Timing(median(other for _, other in taken), median(ratios), abs(even / odd - 1))


def _equal(plan: Plan, row: Row, timing: Timing) -> tuple[tuple[str, ...], str]:
    """The settings that make a row train as long as dot, and words for them."""
    recipe = plan.recipe(row, plan.seeds[0])
    before = recipe.train.steps
    steps = max(1, round(before / timing.ratio))
    every = max(1, round(recipe.evaluate.every * steps / before))
    note = (
        f"{steps:,} steps of {timing.dot * timing.ratio * 1000:.3g} ms, as long as {before:,} of "
        f"dot's {timing.dot * 1000:.3g} ms (in turns; two halves differ by {timing.off:.1%})"
    )
    return (f"{STEPS}{steps}", f"{EVERY}{every}"), note


def _base(plan: Plan, row: Row) -> Row | None:
    """The dot product that a row is compared with, or will be."""
    label = (plan.opponent or {}).get("label")
    dots = [one for one in plan.rows if one.spec == DOT and one.varied == row.varied]
    return next((one for one in dots if one.label == label), next(iter(dots), None))


def _same_model(row: Row, base: Row) -> bool:
    """Whether only seeds differ: a second timing would make them train unlike."""
    return (row.spec, row.changes) == (base.spec, base.changes)


def _recorded(plan: Plan) -> Mapping[str, tuple[tuple[str, ...], str]]:
    """The steps that an earlier start of the same study settled, by row."""
    path = plan.out / STUDY
    if not path.exists():
        return {}
    rows: list[dict[str, Any]] = read_study(path)["rows"]
    found = {
        row["label"]: tuple(t for t in row.get("settings", ()) if t.startswith((STEPS, EVERY)))
        for row in rows
    }
    notes = {row["label"]: str(row.get("note")) for row in rows}
    return {label: (own[-2:], notes[label]) for label, own in found.items() if len(own) >= 2}
