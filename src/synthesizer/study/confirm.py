"""--confirm 3x: the rows that still come closer to dot, again with more steps (no torch)."""

import re
from collections.abc import Collection
from dataclasses import replace

from synthesizer.errors import UserError
from synthesizer.study.compare import open_workers
from synthesizer.study.perform import Say, jobs_of, perform
from synthesizer.study.plan import Plan, refuse_to_mix
from synthesizer.study.rows import Row


def parse_times(text: str) -> int:
    """'3x' -> 3."""
    found = re.fullmatch("([0-9]{1,3})x", text)
    if found is None or int(found[1]) < 2:
        raise UserError(f"--confirm is {text!r}; expected how many times the steps, as in 3x")
    return int(found[1])


def confirm(
    plan: Plan,
    dots: Collection[str],
    closing: Collection[str],
    times: int,
    say: Say,
    *,
    plain: bool,
) -> Plan | None:
    """Train closing rows and their dots with so many times the steps, as a study of its own.

    It lies within the directory of the study that it confirms; rates and positions stay as chosen.
    """
    if not closing:
        say("nothing to confirm: no decided row still comes closer to dot")
        return None
    longer = lengthen(plan, {*dots, *closing}, times)
    refuse_to_mix(longer)
    say(f"confirming {', '.join(closing)} with {times} times the steps")
    with open_workers(longer, say) as pool:
        perform(longer, jobs_of(longer), pool, say, plain)
    return longer


def lengthen(plan: Plan, labels: Collection[str], times: int) -> Plan:
    """The rows of these labels with so many times the steps, in a directory below the plan's."""
    rows = [row for row in plan.rows if row.label in labels]
    train, every = plan.shared.train, plan.shared.evaluate.every
    shared = plan.shared.model_copy(
        update={
            "name": f"{plan.shared.name} with {times} times the steps",
            "train": train.model_copy(update={"steps": train.steps * times}),
            "evaluate": plan.shared.evaluate.model_copy(update={"every": every * times}),
        }
    )
    longer = [replace(row, changes=(*row.changes, *_more(plan, row, times))) for row in rows]
    out = plan.out / f"confirm-{times}x"
    return replace(plan, shared=shared, rows=tuple(longer), out=out, looks=None, errors={})


def _more(plan: Plan, row: Row, times: int) -> tuple[str, ...]:
    recipe = plan.recipe(row, plan.seeds[0])
    steps, every = recipe.train.steps * times, recipe.evaluate.every * times
    return f"train.steps={steps}", f"evaluate.every={every}"
