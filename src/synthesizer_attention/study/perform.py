"""Train the runs of a study that are not finished, in a worker pool, and show how far they are."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synthesizer_attention.errors import OtherDataError, UserError
from synthesizer_attention.run.progress import clock
from synthesizer_attention.run.recipe import Recipe, dump
from synthesizer_attention.run.run import Run
from synthesizer_attention.study.asked import parse_jobs
from synthesizer_attention.study.live import RowStatus, RunLog, StatusLines, open_status
from synthesizer_attention.study.plan import Plan
from synthesizer_attention.study.workers import Task, WorkerPool, ask
from synthesizer_attention.untrusted import listed

BACKWARD = 3.0  # a training token costs this many forward ones
SETTLING = 3.0  # seconds that a run takes beside its steps and evaluations
STAGES = {"validation": "for these trials", "test": "for these runs"}  # by their split

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
        name = self.path.name.replace("seed", "seed ").replace("trial", "trial ")
        return name.replace("-again", " again")


def jobs_of(plan: Plan, *, pretraining: bool = False) -> list[Job]:
    """All runs, seed by seed, so that whole tables come early; or those that they start from."""
    recipe = plan.pretraining if pretraining else plan.recipe
    return [
        Job(number, recipe(row, seed), plan.path(row, seed, pretraining=pretraining))
        for seed in plan.seeds
        for number, row in enumerate(plan.rows)
        if row.left_out is None and seed in plan.seeds_of(row)
    ]


def perform(
    plan: Plan,
    jobs: Sequence[Job],
    pool: WorkerPool,
    say: Say,
    plain: bool,
    coming: Mapping[int, int] | None = None,
) -> None:
    """Train what is not finished, showing progress; nothing is written if the data is bad.

    `coming` says how many more runs will follow from these, by the number of their row.
    """
    for job in jobs:
        Run(job.path).claim(job.recipe, record=True)
        if Run(job.path).is_finished:
            plan.meet(job.recipe, _identity(Run(job.path).result()), job.path)
    left = [job for job in jobs if not Run(job.path).is_finished]
    if len(left) < len(jobs):
        say(_say_finished(len(jobs) - len(left), len(jobs), jobs[0].split))
    if not left:
        plan.write()
        return
    size = min(parse_jobs(plan.asked.jobs).workers or pool.capacity, len(left))
    pool.grow(size)
    recipe = left[0].recipe
    found = ask(pool, "prepare", recipe=dump(recipe))
    plan.meet(recipe, found["report"]["identity"])
    seconds = _announce(found, recipe, say)
    more = len(left) + sum((coming or {}).values())
    runs, workers = _count(more, "run"), _count(size, "worker")
    steps, split = recipe.train.steps, jobs[0].split
    whole = f"{clock(seconds * math.ceil(more / size))} {STAGES[split]}"
    say(f"about {whole} ({runs} left, {workers} {pool.place}); runs go to {plan.out}")
    plan.write()
    rows = _row_status(plan, jobs, seconds, coming or {})
    status = open_status([*rows.values()], size, steps, split, plain=plain)
    try:
        _follow(plan, left, pool, status, [*rows], found["metric"])
    finally:
        status.close()


def _follow(
    plan: Plan,
    jobs: Sequence[Job],
    pool: WorkerPool,
    status: StatusLines,
    shown: Sequence[int],
    metric: str,
) -> None:
    """Train runs; show what their directories say of them, and `metric` on validation."""
    tasks = {
        pool.submit(
            "train",
            recipe=dump(job.recipe),
            path=str(job.path),
            split=job.split,
            tracker=plan.asked.track,
            data=plan.identities.get(job.recipe.data.model_dump_json()),
        ): (job, RunLog(job.path, job.recipe, metric))
        for job in jobs
    }
    while tasks:
        done = pool.wait(tasks)
        while pool.notices:
            status.say(pool.notices.popleft())
        for task, (job, log) in list(tasks.items()):
            events = [*task.notes, *(log.read() if task.running() or task in done else ())]
            task.notes.clear()
            if task in done:
                del tasks[task]
                events.append(_ending(plan, job, task))
            for event in events:
                status.receive(shown.index(job.row), job.name, event)
        status.refresh()


def _ending(plan: Plan, job: Job, task: Task) -> dict[str, Any]:
    """How a run ended; what ends the whole study is raised."""
    error = task.exception()
    if error is None:
        result = task.result()["result"]
        plan.meet(job.recipe, _identity(result), job.path)
        metric, value = main_metric(result, job.split)
        return {"event": "done", "metric": metric, "value": value}
    if isinstance(error, OtherDataError) or not isinstance(error, UserError):
        raise error
    plan.errors.setdefault(plan.rows[job.row].label, f"{job.name}: {error}")
    plan.write()
    return {"event": "failed", "error": str(error)}


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
            causes = listed(f"{count:,} {cause}" for cause, count in counts.items())
            say(f"{words}: {causes} in {split}")
    if "tokenizer_sample" in report:
        say(f"tokenizer: learned from {report['tokenizer_sample']}")
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


def _identity(result: dict[str, Any]) -> str | None:
    """Of the data that a run read; runs of older versions have none."""
    identity: str | None = result.get("data", {}).get("identity")
    return identity


def _row_status(
    plan: Plan, jobs: Sequence[Job], seconds: float, coming: Mapping[int, int]
) -> dict[int, RowStatus]:
    """By the row's number; rows of other rungs have none."""
    rows = {}
    for number, row in enumerate(plan.rows):
        own = [job for job in jobs if job.row == number]
        if row.rung and not own:
            continue
        finished = [(Run(job.path), job.split) for job in own if Run(job.path).is_finished]
        done = [main_metric(run.result(), split)[1] for run, split in finished]
        rows[number] = RowStatus(row.label, len(own) + coming.get(number, 0), seconds, done)
    return rows


def _say_finished(number: int, jobs: int, split: str) -> str:
    if split == "test":
        return f"{number} of {_count(jobs, 'run')} finished already"
    return f"{number} of {_count(jobs, 'trial')} finished before and not trained again"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def main_metric(result: dict[str, Any], split: str) -> tuple[str, float]:
    """The name and value of what a run is measured by."""
    name = str(result["main_metric"])
    return name, float(result["metrics" if split == "test" else split][name])
