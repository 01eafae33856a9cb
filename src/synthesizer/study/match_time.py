"""--match time: every row trains for as many seconds as its dot product (no torch).

A step of each row is timed in one worker, by the clock that a run reports its speed by, and the
number of steps follows from it. It is written to study.json before anything is trained: the same
command reads it there again, so that a study is repeated and continued to the bit.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from synthesizer.experiment.recipe import dump
from synthesizer.experiment.run import STUDY
from synthesizer.study.plan import Plan
from synthesizer.study.pool import WorkerPool
from synthesizer.study.rows import DOT, Row
from synthesizer.untrusted import read_regular

STEPS, EVERY = "train.steps=", "evaluate.every="


def fit_steps(plan: Plan, pool: WorkerPool, say: Callable[[str], None]) -> Plan:
    """Give each row the steps that take as long as those of the dot product beside it."""
    if plan.asked.match != "time":
        return plan
    recorded = _recorded(plan)
    seconds: dict[str, float] = {}

    def timed(row: Row) -> float:
        if row.label not in seconds:
            order = {"do": "time", "recipe": dump(plan.recipe(row, plan.seeds[0]))}
            seconds[row.label] = float(pool.ask(order)["seconds_per_step"])
        return seconds[row.label]

    rows = []
    for row in plan.rows:
        base = _base(plan, row)
        if row.left_out is not None or base is None or _same_model(row, base):
            rows.append(row)
            continue
        settings, note = recorded.get(row.label) or _equal(plan, row, timed(row), timed(base))
        say(f"{row.label}: {note}")
        rows.append(replace(row, changes=(*row.changes, *settings), note=note))
    plan = plan.with_rows(rows)
    plan.write()
    return plan


def _equal(plan: Plan, row: Row, own: float, dots: float) -> tuple[tuple[str, ...], str]:
    """The settings that make a row train as long as dot, and words for them."""
    recipe = plan.recipe(row, plan.seeds[0])
    before = recipe.train.steps
    steps = max(1, round(before * dots / own))
    every = max(1, round(recipe.evaluate.every * steps / before))
    note = (
        f"{steps:,} steps of {own * 1000:.3g} ms, as long as {before:,} of dot's "
        f"{dots * 1000:.3g} ms"
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
    rows: list[dict[str, Any]] = json.loads(read_regular(path))["rows"]  # checked by the plan
    found = {
        row["label"]: tuple(t for t in row["settings"] if t.startswith((STEPS, EVERY)))
        for row in rows
    }
    notes = {row["label"]: str(row["note"]) for row in rows}
    return {label: (own[-2:], notes[label]) for label, own in found.items() if len(own) >= 2}
