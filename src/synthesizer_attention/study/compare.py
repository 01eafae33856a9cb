"""compare: many runs of one recipe, fairly.

Variants share data order, token budget, schedule and stopping, because all that differs between
their recipes is the synthesis (and the width or learning rates that --match and --tune set), and
the initial value of a parameter is drawn from the seed and its role.
"""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.interruption import Interrupted
from synthesizer_attention.run.recipe import dump
from synthesizer_attention.run.run import Run, read_arrays
from synthesizer_attention.study.asked import Asked, parse_jobs
from synthesizer_attention.study.cluster import open_cluster
from synthesizer_attention.study.perform import Job, Say, jobs_of, perform
from synthesizer_attention.study.plan import Plan, draw_up
from synthesizer_attention.study.rows import AGAIN, Row
from synthesizer_attention.study.search import fit_to_data, search, settle
from synthesizer_attention.study.stats import (
    FEWEST_SEEDS,
    Measured,
    is_open,
    judge,
    power_sentence,
)
from synthesizer_attention.study.workers import WorkerPool, ask, open_pool


def compare(asked: Asked, say: Say, *, plain: bool) -> Plan:
    """Run every row of a comparison that is not finished, and record it in study.json."""
    plan = draw_up(asked)
    for line in plan.words:
        say(line)
    with open_workers(plan, say) as pool:
        return conduct(plan, pool, say, plain=plain)


def open_workers(plan: Plan, say: Say) -> AbstractContextManager[WorkerPool]:
    """Workers on this machine, or on a cluster where one was asked for."""
    jobs = parse_jobs(plan.asked.jobs)
    if jobs.ray is None:
        return open_pool(plan.out, say)
    return open_cluster(plan.out, jobs.ray, jobs.gpus, say)


def conduct(plan: Plan, pool: WorkerPool, say: Say, *, plain: bool) -> Plan:
    """Run what a plan says in a worker pool; return the plan with what was found on the way."""
    try:
        say("starting workers, reading the data and timing a step ...")
        plan = fit_to_data(plan, pool, say, plain)
        plan = search(fit_widths(plan, pool, say), pool, say, plain)
        plan = fit_widths(settle(plan, say), pool, say)
        _say_power(plan, say)
        while True:
            if plan.asked.pretrain:
                say(f"pretraining every variant by {plan.asked.pretrain}")
                perform(plan, jobs_of(plan, pretraining=True), pool, say, plain)
            for jobs in _stages(plan):
                perform(plan, jobs, pool, say, plain)
            longer = next_plan(plan, say)
            if longer is None:
                break
            plan = longer
    except Interrupted:
        runs = [Run(job.path) for job in jobs_of(plan)]
        raise Interrupted(
            f"interrupted with {sum(run.is_finished for run in runs)} of {len(runs)} runs "
            f"finished; run the same command to continue ({plan.out})"
        ) from None
    return plan


def _say_power(plan: Plan, say: Say) -> None:
    """What so many seeds can be expected to decide, before they are run."""
    judged = [row for row in plan.rows if row.left_out is None and row.label != AGAIN]
    tables = len({tuple(row.varied.items()) for row in judged}) or 1
    seeds = sorted({len(plan.seeds), *(plan.looks.planned if plan.looks else ())})
    if len(plan.seeds) >= FEWEST_SEEDS and len(judged) > tables:
        rows = round(len(judged) / tables) - 1
        say(power_sentence(seeds, sd=None, margin=1.0, rows=max(rows, 1)))


def list_commands(asked: Asked, say: Say) -> list[str]:
    """The single runs of a comparison as commands; study.json is written for their report."""
    asked = replace(asked, lists_commands=True)
    if parse_jobs(asked.jobs).ray:
        raise UserError("--plan runs nothing on a cluster; leave --plan or --jobs out")
    if asked.trials:
        raise UserError(
            "--plan cannot list the runs of --tune, whose learning rates are not chosen yet; "
            "leave one of them out, or use --jobs"
        )
    plan = draw_up(asked)
    for line in plan.words:
        say(line)
    with open_pool(plan.out, say) as pool:
        plan = fit_to_data(plan, pool, say, plain=True)
        plan = fit_widths(settle(plan, say), pool, say)
    plan.write()
    return [
        plan.command(row, seed, pretraining=stage)
        for stage in ((True, False) if asked.pretrain else (False,))
        for seed in plan.seeds
        for row in plan.rows
        if row.left_out is None and seed in plan.seeds_of(row)
    ]


def fit_widths(plan: Plan, pool: WorkerPool, say: Say) -> Plan:
    """Give each row the feed-forward width that meets its budget; refuse what cannot be built."""
    return plan.with_rows([_fit_width(plan, row, pool, say) for row in plan.rows])


def _fit_width(plan: Plan, row: Row, pool: WorkerPool, say: Say) -> Row:
    finished = all(Run(plan.path(row, seed)).is_finished for seed in plan.seeds_of(row))
    if row.left_out is not None or row.sized or (row.like is None and finished):
        return row
    measure = "flops" if plan.asked.match == "flops" else "params"
    recipe = plan.recipe(row, plan.seeds[0])
    other = Row("", row.like or "", "", settings=row.rung or row.varied)
    like = dump(plan.recipe(other, plan.seeds[0])) if row.like else None
    try:
        found = ask(pool, "size", recipe=dump(recipe), like=like, measure=measure)
    except UserError as error:
        if not row.offered:
            raise
        say(f"{row.label} is left out: {error}")
        return replace(row, left_out=str(error))
    row = replace(row, sized=True)
    if like is None:
        return row
    note = f"d_ff {found['d_ff']}: as large as {row.like} ({found['off']:+,.0f} {measure})"
    say(f"{row.label}: {note}")
    return row.with_settings({"model.d_ff": str(found["d_ff"])}, note=note)


def _stages(plan: Plan) -> list[list[Job]]:
    """All runs at once, or a ladder's rung by rung from the smallest, each with its own time."""
    rungs: dict[str | None, list[Job]] = {}
    for job in jobs_of(plan):
        rungs.setdefault(plan.rows[job.row].rung.get("train.data_share"), []).append(job)
    return list(rungs.values())[::-1] or [[]]


def next_plan(plan: Plan, say: Say) -> Plan | None:
    """The plan with the seeds of the next planned look; None where every row is decided.

    A row that is decided keeps its word and is trained no further.
    """
    label = (plan.opponent or {}).get("label")
    rows = {row.label: _measured(plan, row) for row in plan.rows if row.left_out is None}
    dot = rows.pop(label, None) if label else None
    if plan.looks is None or dot is None or not dot[0].scores:
        return None
    others = [one for name, (one, _) in rows.items() if one.scores and name != AGAIN]
    result = dot[1]
    found = judge(
        dot[0],
        others,
        metric=result["main_metric"],
        higher_is_better=result["higher_is_better"],
        margin=plan.asked.margin,
        looks=plan.looks,
    )
    words = {one.label: one.word for one in found}
    looks = plan.looks.after(words.values())
    undecided = [name for name, word in words.items() if is_open(word)]
    say(f"{len(plan.seeds)} seeds: {len(words) - len(undecided)} of {len(words)} rows are decided")
    if looks is None:
        return None
    first, count = plan.seeds[0], looks.taken[-1]
    kept = [
        row
        if row.label in (label, AGAIN, *undecided)
        else replace(row, num_seeds=row.num_seeds or len(plan.seeds))
        for row in plan.rows
    ]
    return replace(plan, looks=looks, seeds=tuple(range(first, first + count)), rows=tuple(kept))


def _measured(plan: Plan, row: Row) -> tuple[Measured, dict[str, Any]]:
    """A row's finished runs as the verdict reads them, and the result of one of them."""
    runs = [(seed, Run(plan.path(row, seed))) for seed in plan.seeds_of(row)]
    done = {
        seed: (run.result(), read_arrays(run.path / "statistics.npz"))
        for seed, run in runs
        if run.is_finished
    }
    result = next((found for found, _ in done.values()), {})
    return Measured.read(row.label, done, result.get("main_metric", "")), result
