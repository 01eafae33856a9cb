"""compare: many runs of one recipe, fairly.

Variants share data order, token budget, schedule and stopping, because all that differs between
their recipes is the synthesis (and the width or learning rates that --match and --tune set), and
the initial value of a parameter is drawn from the seed and its name.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from synthesizer.errors import UserError
from synthesizer.experiment.interruption import Interrupted
from synthesizer.experiment.progress import clock
from synthesizer.experiment.recipe import Recipe, dump
from synthesizer.experiment.run import Run
from synthesizer.study.cluster import open_cluster
from synthesizer.study.live_table import RowStatus, StatusLines, open_status
from synthesizer.study.plan import Asked, Plan, Row, draw_up
from synthesizer.study.pool import WorkerPool, open_pool

TRIAL_SEED = 0  # of the learning-rate search, so that no reported seed chose its own
LR_RANGE = 4.0  # trials draw lr from the recipe's divided by this to times this
TABLE_RATES = (1.0, 100.0)
BACKWARD = 3.0  # a training token costs this many forward ones
SETTLING = 3.0  # seconds that a run takes beside its steps and evaluations

Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One run of a row."""

    row: int
    recipe: Recipe
    path: Path
    split: str = "test"  # what it is measured on: a trial never sees test

    @property
    def name(self) -> str:
        """What it is called beside its row: the seed, or the trial."""
        return self.path.name.replace("seed", "seed ").replace("trial", "trial ")


def compare(asked: Asked, say: Say, *, plain: bool) -> Plan:
    """Run every row of a comparison that is not finished, and record it in study.json."""
    plan = draw_up(asked)
    for line in plan.words:
        say(line)
    with _open_workers(plan, say) as pool:
        return conduct(plan, pool, say, plain=plain)


def _open_workers(plan: Plan, say: Say) -> AbstractContextManager[WorkerPool]:
    asked = plan.asked
    if asked.cluster is None:
        return open_pool(plan.out, asked.gpus, say)
    return open_cluster(plan.out, asked.cluster, asked.gpus, say)


def conduct(plan: Plan, pool: WorkerPool, say: Say, *, plain: bool) -> Plan:
    """Run what a plan says in a worker pool; return the plan with what was found on the way."""
    try:
        say("starting workers, reading the data and timing a step ...")
        plan = fit_widths(plan, pool, say)
        if plan.asked.pretrain:
            say(f"pretraining every variant by {plan.asked.pretrain}")
            _perform(plan, _jobs(plan, pretraining=True), pool, say, plain)
        if plan.asked.tune:
            plan = _tune(plan, pool, say, plain)
        _perform(plan, _jobs(plan), pool, say, plain)
    except Interrupted:
        runs = [Run(job.path) for job in _jobs(plan)]
        raise Interrupted(
            f"interrupted with {sum(run.is_finished for run in runs)} of {len(runs)} runs "
            f"finished; run the same command to continue ({plan.out})"
        ) from None
    return plan


def list_commands(asked: Asked, say: Say) -> list[str]:
    """The single runs of a comparison as commands; study.json is written for their report."""
    if asked.tune:
        raise UserError(
            "--plan cannot list the runs of --tune, whose learning rates are not chosen yet; "
            "leave one of them out"
        )
    plan = draw_up(asked)
    for line in plan.words:
        say(line)
    with open_pool(plan.out, say=say) as pool:
        plan = fit_widths(plan, pool, say)
    plan.write()
    rows = [row for row in plan.rows if row.left_out is None]
    stages = (True, False) if asked.pretrain else (False,)
    return [
        plan.command(row, seed, pretraining=stage)
        for stage in stages
        for seed in plan.seeds
        for row in rows
    ]


def fit_widths(plan: Plan, pool: WorkerPool, say: Say) -> Plan:
    """Give each row the feed-forward width that meets its budget; refuse what cannot be built."""
    return plan.with_rows([_fit_width(plan, row, pool, say) for row in plan.rows])


def _fit_width(plan: Plan, row: Row, pool: WorkerPool, say: Say) -> Row:
    if row.like is None and all(Run(plan.path(row, seed)).is_finished for seed in plan.seeds):
        return row
    measure = "flops" if plan.asked.match == "flops" else "params"
    recipe = plan.recipe(row, plan.seeds[0])
    other = Row("", row.like or "", "", changes=row.varied)
    like = dump(plan.recipe(other, plan.seeds[0])) if row.like else None
    order = {"do": "size", "recipe": dump(recipe), "like": like, "measure": measure}
    try:
        found = pool.ask(order)
    except UserError as error:
        if not row.offered:
            raise
        say(f"{row.label} is left out: {error}")
        return replace(row, left_out=str(error))
    if like is None:
        return row
    note = f"d_ff {found['d_ff']}: as large as {row.like} ({found['off']:+,.0f} {measure})"
    say(f"{row.label}: {note}")
    return replace(row, changes=(*row.changes, f"model.d_ff={found['d_ff']}"), note=note)


def _jobs(plan: Plan, *, pretraining: bool = False) -> list[Job]:
    """All runs, seed by seed, so that whole tables come early; or those that they start from."""
    recipe = plan.pretraining if pretraining else plan.recipe
    return [
        Job(number, recipe(row, seed), plan.path(row, seed, pretraining=pretraining))
        for seed in plan.seeds
        for number, row in enumerate(plan.rows)
        if row.left_out is None
    ]


def _perform(plan: Plan, jobs: Sequence[Job], pool: WorkerPool, say: Say, plain: bool) -> None:
    """Train what is not finished, showing progress; nothing is written if the data is bad."""
    for job in jobs:
        Run(job.path).claim(job.recipe)
    left = [job for job in jobs if not Run(job.path).is_finished]
    if len(left) < len(jobs):
        say(f"{len(jobs) - len(left)} of {_count(len(jobs), 'run')} finished already")
    if not left:
        plan.write()
        return
    size = min(plan.asked.jobs or pool.capacity, len(left))
    pool.grow(size)
    recipe = left[0].recipe
    seconds = _announce(pool.ask({"do": "prepare", "recipe": dump(recipe)}), recipe, say)
    runs, workers = _count(len(left), "run"), _count(size, "worker")
    whole = clock(seconds * math.ceil(len(left) / size))
    say(f"about {whole} in all ({runs} left, {workers} {pool.place}); runs go to {plan.out}")
    plan.write()
    steps, split = recipe.train.steps, jobs[0].split
    status = open_status(_row_status(plan, jobs, seconds), size, steps, split, plain=plain)
    try:
        _follow(plan, left, pool, status)
    finally:
        status.close()


def _follow(plan: Plan, jobs: Sequence[Job], pool: WorkerPool, status: StatusLines) -> None:
    orders = [
        {"do": "train", "recipe": dump(job.recipe), "path": str(job.path), "split": job.split}
        for job in jobs
    ]
    for index, event in pool.run(orders):
        if event["event"] == "tick":
            status.refresh()
            continue
        if event["event"] == "say" and index < 0:
            status.say(event["text"])
            continue
        job = jobs[index]
        if event["event"] == "done":
            event["metric"], event["value"] = _main_metric(event["result"], job.split)
        status.receive(job.row, job.name, event)
        if event["event"] == "failed":
            label = plan.rows[job.row].label
            plan.errors.setdefault(label, f"{job.name}: {event['error']}")
            plan.write()


def _announce(found: dict[str, Any], recipe: Recipe, say: Say) -> float:
    """Say what the data are and how long it takes; return the seconds of one run."""
    report, train = found["report"], recipe.train
    examples = ", ".join(f"{split} {count:,}" for split, count in report["examples"].items())
    cut = report.get("cut_from_train")
    share = f" ({' and '.join(cut['splits'])} cut from train)" if cut else ""
    origins = report["origin"]  # of a mixture: one for each of its tasks
    origin = origins if isinstance(origins, str) else ", ".join(dict.fromkeys(origins.values()))
    say(f"data: {origin}; examples: {examples}{share}")
    for key, words in (("bad_rows", "skipped rows"), ("overlong", "longer than max_len")):
        for split, counts in (report.get(key) or {}).items():
            causes = ", ".join(f"{count:,} {cause}" for cause, count in counts.items())
            say(f"{words}: {causes} in {split}")
    step = found["seconds_per_step"]
    per_token = step / (train.batch_tokens * train.accumulate * BACKWARD)
    looks = math.ceil(train.steps / recipe.evaluate.every)
    tokens = looks * found["tokens"]["validation"] + found["tokens"]["test"]
    counts = found["examples"]
    writing = (looks * counts["validation"] + counts["test"]) * found["seconds_per_answer"]
    seconds = float(step * train.steps + tokens * per_token + writing + SETTLING)
    more = f", up to {clock(writing)} of it for generation" if writing else ""
    say(f"each run: {train.steps} steps of {step * 1000:.0f} ms, about {clock(seconds)}{more}")
    return seconds


def _row_status(plan: Plan, jobs: Sequence[Job], seconds: float) -> list[RowStatus]:
    rows = []
    for number, row in enumerate(plan.rows):
        own = [job for job in jobs if job.row == number]
        finished = [(Run(job.path), job.split) for job in own if Run(job.path).is_finished]
        done = [_main_metric(run.result(), split)[1] for run, split in finished]
        rows.append(RowStatus(row.label, len(own), seconds, done))
    return rows


def _tune(plan: Plan, pool: WorkerPool, say: Say, plain: bool) -> Plan:
    """Give every row the same number of trials, and the learning rates best on validation."""
    rates = draw_rates(plan.shared, plan.asked.tune)
    jobs = [
        Job(
            number,
            plan.recipe(row, TRIAL_SEED, changes),
            _trial_path(plan, row, trial),
            "validation",
        )
        for trial, changes in enumerate(rates)
        for number, row in enumerate(plan.rows)
        if row.left_out is None
    ]
    say(f"learning-rate search: {len(rates)} trials per variant, chosen on validation")
    _perform(plan, jobs, pool, say, plain)
    plan.errors.clear()  # a trial that fails is a trial that is not chosen
    rows = []
    for row in plan.rows:
        trials = [_record_trial(plan, row, trial, change) for trial, change in enumerate(rates)]
        known = [trial for trial in trials if trial["validation"] is not None]
        if known:
            best = (max if known[0]["higher_is_better"] else min)(
                known, key=lambda trial: trial["validation"]
            )
            row = replace(row, changes=(*row.changes, *best["changes"]), trials=tuple(trials))
            chosen = ", ".join(best["changes"])
            say(f"{row.label}: best with {chosen} (validation {best['validation']:.4f})")
        rows.append(row)
    return plan.with_rows(rows)


def draw_rates(recipe: Recipe, trials: int) -> list[tuple[str, str]]:
    """The recipe's own learning rates, then draws around them: the same for every row."""
    rng, train = random.Random(f"rates of {trials}"), recipe.train
    pairs = [(train.lr, train.table_rate)]
    for _ in range(trials - 1):
        low, high = (math.log(rate) for rate in TABLE_RATES)
        factor = LR_RANGE ** rng.uniform(-1, 1)
        pairs.append((train.lr * factor, math.exp(rng.uniform(low, high))))
    return [(f"train.lr={lr:.3g}", f"train.table_rate={table:.3g}") for lr, table in pairs]


def _record_trial(plan: Plan, row: Row, trial: int, changes: Iterable[str]) -> dict[str, Any]:
    path = _trial_path(plan, row, trial)
    record: dict[str, Any] = {
        "run": str(path.relative_to(plan.out)),
        "changes": list(changes),
        "validation": None,
    }
    if Run(path).is_finished:
        result = Run(path).result()
        record["validation"] = _main_metric(result, "validation")[1]
        record["higher_is_better"] = result["higher_is_better"]
    return record


def _trial_path(plan: Plan, row: Row, trial: int) -> Path:
    return plan.out / "trials" / row.folder / f"trial{trial + 1}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _main_metric(result: dict[str, Any], split: str) -> tuple[str, float]:
    name = str(result["main_metric"])
    return name, float(result["metrics" if split == "test" else split][name])
