"""compare: many runs of one recipe, fairly.

Variants share data order, token budget, schedule and stopping, because all that differs between
their recipes is the synthesis (and the width or learning rates that --match and --tune set), and
the initial value of a parameter is drawn from the seed and its role.
"""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.progress import Interrupted
from synthesizer_attention.run.recipe import dump
from synthesizer_attention.run.records import read_arrays
from synthesizer_attention.run.run import Run
from synthesizer_attention.study.budget import fit_budget, say_power, settled_copy
from synthesizer_attention.study.live import Job, jobs_of, perform
from synthesizer_attention.study.plan import Plan, draw_up
from synthesizer_attention.study.rows import AGAIN, Asked, Row
from synthesizer_attention.study.search import (
    choose_positions,
    fit_length,
    fit_precision,
    fit_to_data,
    search,
    settle,
)
from synthesizer_attention.study.stats import Measured, is_open, judge
from synthesizer_attention.study.workers import Say, WorkerPool, ask, open_pool, parse_jobs


def compare(asked: Asked, say: Say, *, plain: bool) -> Plan:
    """Run every row of a comparison that is not finished, and record it in study.json."""
    plan = draw_up(asked)
    for line in plan.words:
        say(line)
    with open_pool(plan.out, parse_jobs(asked.jobs), say) as pool:
        return conduct(plan, pool, say, plain=plain)


def conduct(plan: Plan, pool: WorkerPool, say: Say, *, plain: bool) -> Plan:
    """Run what a plan says in a worker pool; return the plan with what was found on the way."""
    try:
        say("starting workers, reading the data and timing a step ...")
        fit_budget(plan, pool, say)
        fit_to_data(plan, pool, say, plain)
        fit_widths(plan, pool, say)
        search(plan, pool, say, plain)
        choose_positions(plan, say)
        fit_widths(plan, pool, say)
        search(plan, pool, say, plain, following=True)
        settle(plan, say)
        fit_widths(plan, pool, say)
        if any(row.trials for row in plan.rows):
            say_power(plan, say)  # again, by the spread of seeds that the search saw
        while True:
            if plan.asked.pretrain:
                say(f"pretraining every variant by {plan.asked.pretrain}")
                perform(plan, jobs_of(plan, pretraining=True), pool, say, plain)
            stages: dict[str | None, list[Job]] = {}  # a ladder's rungs, the smallest first
            for job in jobs_of(plan):
                rung = plan.rows[job.row].rung.get("train.data_share")
                stages.setdefault(rung, []).append(job)
            for jobs in list(stages.values())[::-1] or [[]]:
                perform(plan, jobs, pool, say, plain)
            if not look_further(plan, say):
                return plan
    except Interrupted:
        runs = [Run(job.path) for job in jobs_of(plan)]
        raise Interrupted(
            f"interrupted with {sum(run.is_finished for run in runs)} of {len(runs)} runs "
            f"finished; run the same command to continue ({plan.out})"
        ) from None


def check_plan(asked: Asked, say: Say) -> None:
    """Say what a comparison would do, decide and take; run and write nothing."""
    plan = draw_up(asked)
    for line in plan.words:
        say(line)
    with (
        TemporaryDirectory() as folder,
        open_pool(Path(folder), parse_jobs(asked.jobs), lambda line: None) as pool,
    ):
        fit_budget(plan, pool, say)
    planned = settled_copy(plan)
    rows = "; ".join(f"{row.label} {len(planned.seeds_of(row))}" for row in planned.rows)
    say(f"rows and their seeds: {rows}")
    if plan.asked.trials:
        say(f"search: {plan.asked.trials} trials of each row and kind of positions")


def list_commands(asked: Asked, say: Say) -> list[str]:
    """The single runs of a comparison as commands; study.json is written for their report."""
    asked = replace(asked, lists_commands=True)
    jobs = parse_jobs(asked.jobs)
    if jobs.ray:
        raise UserError("--plan runs nothing on a cluster; leave --plan or --jobs out")
    if asked.trials:
        raise UserError(
            "--plan cannot list the runs of --tune, whose learning rates are not chosen yet; "
            "leave one of them out, or use --jobs"
        )
    plan = draw_up(asked)
    for line in plan.words:
        say(line)
    with open_pool(plan.out, jobs, say) as pool:
        fit_length(plan, pool, say)
        fit_precision(plan, pool, say)
        fit_to_data(plan, pool, say, plain=True)
        settle(plan, say)
        fit_widths(plan, pool, say)
    plan.write()
    return [
        plan.command(row, seed, pretraining=stage)
        for stage in ((True, False) if asked.pretrain else (False,))
        for row, seed in plan.runs
    ]


def fit_widths(plan: Plan, pool: WorkerPool, say: Say) -> None:
    """Give each row the feed-forward width that meets its budget; refuse what cannot be built."""
    plan.rows = tuple(_fit_width(plan, row, pool, say) for row in plan.rows)


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
    size = f"d_ff {found['d_ff']}: as large as {row.like} ({found['off']:+,.0f} {measure})"
    say(f"{row.label}: {size}")
    note = "; ".join(filter(None, [row.note, size]))
    return row.with_settings({"model.d_ff": str(found["d_ff"])}, note=note)


def look_further(plan: Plan, say: Say) -> bool:
    """Take the next planned look where a row is undecided; return whether seeds were added.

    A row that is decided keeps its word and is trained no further.
    """
    label = (plan.opponent or {}).get("label")
    if plan.looks is None or label is None:
        return False
    rows, result = {}, {}
    for row in plan.rows:
        runs = [(seed, Run(plan.path(row, seed))) for seed in plan.seeds_of(row)]
        done = {seed: (run.result(), run) for seed, run in runs if run.is_finished}
        if row.left_out is None and done:
            result = next(iter(done.values()))[0]
            read = {
                s: (r, read_arrays(run.path / "statistics.npz")) for s, (r, run) in done.items()
            }
            rows[row.label] = Measured.read(row.label, read, result["main_metric"])
    if label not in rows:
        return False
    found = judge(
        rows[label],
        [row for name, row in rows.items() if row.scores and name not in (label, AGAIN)],
        metric=result["main_metric"],
        higher_is_better=result["higher_is_better"],
        margin=plan.asked.margin,
        looks=plan.looks,
        rule=plan.rule,
        primary=plan.primary,
        again=rows.get(AGAIN) if plan.rule.most_dot_seeds > 1 else None,
    )
    undecided = [one.label for one in found if is_open(one.word)]
    say(f"{len(plan.seeds)} seeds: {len(found) - len(undecided)} of {len(found)} rows are decided")
    looks = plan.looks.after(one.word for one in found)
    if looks is None:
        return False
    going_on = (label, AGAIN, *undecided)
    plan.rows = tuple(
        row if row.label in going_on else replace(row, num_seeds=row.num_seeds or len(plan.seeds))
        for row in plan.rows
    )
    plan.looks, first = looks, plan.seeds[0]
    plan.seeds = tuple(range(first, first + looks.taken[-1]))
    return True
