"""Train the runs of a study, and show how far they are (no torch).

Progress is read from run directories and shown as a live table on a terminal, elsewhere as lines.
"""

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from synthesizer_attention.errors import OtherDataError, UserError, listed, printable
from synthesizer_attention.run.progress import clock
from synthesizer_attention.run.recipe import Recipe, dump
from synthesizer_attention.run.run import Run
from synthesizer_attention.study.plan import Plan
from synthesizer_attention.study.workers import Say, Task, WorkerPool, ask, parse_jobs

BACKWARD = 3.0  # a training token costs this many forward ones
SETTLING = 3.0  # seconds that a run takes beside its steps and evaluations
STAGES = {"validation": "for these trials", "test": "for these runs"}  # by their split
WHOLE = {"validation": "for these trials", "test": "in all"}  # what is left, by what is measured
LONG = 36_000.0  # seconds, from which on they are shown in hours
MARGIN = 3  # free at the right: what a terminal echoes there must not start a line
WIDTHS = {"state": 9, "runs": 5, "step": 0, "loss": 7, "metric": 7, "tokens/s": 8, "left": 7}
"""Of the columns; that of a step depends on how many there are."""


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
    """All runs, or those that they start from."""
    return [
        Job(
            plan.rows.index(row),
            plan.recipe(row, seed, pretraining=pretraining),
            plan.path(row, seed, pretraining=pretraining),
        )
        for row, seed in plan.runs
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
    coming = coming or {}
    finished: dict[int, list[float]] = {job.row: [] for job in jobs}
    left = []
    for job in jobs:
        run = Run(job.path)
        run.claim(job.recipe, record=True)
        if run.is_finished:
            result = run.result()
            plan.meet(job.recipe, result.get("data", {}).get("identity"), job.path)
            finished[job.row].append(main_metric(result, job.split)[1])
        else:
            left.append(job)
    split = jobs[0].split if jobs else "test"
    if len(left) < len(jobs):
        number, all_jobs = len(jobs) - len(left), _count(len(jobs), "run")
        trials = f"{number} of {_count(len(jobs), 'trial')} finished before and not trained again"
        say(f"{number} of {all_jobs} finished already" if split == "test" else trials)
    if not left:
        plan.write()
        return
    size = min(parse_jobs(plan.asked.jobs).workers or pool.capacity, len(left))
    pool.grow(size)
    recipe = left[0].recipe
    found = ask(pool, "prepare", recipe=dump(recipe))
    plan.meet(recipe, found["report"]["identity"])
    plan.metric = found["metric"]
    seconds = _announce(found, recipe, say)
    more = len(left) + sum(coming.values())
    runs, workers = _count(more, "run"), _count(size, "worker")
    whole = f"{clock(seconds * math.ceil(more / size))} {STAGES[split]}"
    say(f"about {whole} ({runs} left, {workers} {pool.place}); runs go to {plan.out}")
    plan.write()
    rows = {  # those of other rungs, or searched at another time, are not shown
        number: RowStatus(
            row.label,
            sum(job.row == number for job in jobs) + coming.get(number, 0),
            seconds,
            finished.get(number, []),
        )
        for number, row in enumerate(plan.rows)
        if number in finished or (row.left_out is not None and not row.rung)
    }
    shows = LiveTable if sys.stdout.isatty() and not plain else StatusLines
    status = shows([*rows.values()], size, recipe.train.steps, split)
    try:
        _follow(plan, left, pool, status, [*rows], found["metric"])
    finally:
        status.close()


def _follow(
    plan: Plan,
    jobs: Sequence[Job],
    pool: WorkerPool,
    status: "StatusLines",
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
        plan.meet(job.recipe, result.get("data", {}).get("identity"), job.path)
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
    step, (seconds, writing) = found["seconds_per_step"], run_seconds(found, recipe)
    more = f", up to {clock(writing)} of it for generation" if writing else ""
    say(f"each run: {train.steps} steps of {step * 1000:.0f} ms, about {clock(seconds)}{more}")
    return seconds


def run_seconds(found: dict[str, Any], recipe: Recipe) -> tuple[float, float]:
    """How long a run takes by what a worker timed, and how much of it generates texts."""
    train, step, counts = recipe.train, found["seconds_per_step"], found["examples"]
    per_token = step / (train.batch_tokens * train.accumulate * BACKWARD)
    looks = math.ceil(train.steps / recipe.evaluate.every)
    tokens = looks * found["tokens"]["validation"] + found["tokens"]["test"]
    writing = (looks * counts["validation"] + counts["test"]) * found["seconds_per_answer"]
    return float(step * train.steps + tokens * per_token + writing + SETTLING), float(writing)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def main_metric(result: dict[str, Any], split: str) -> tuple[str, float]:
    """The name and value of what a run is measured by."""
    name = str(result["main_metric"])
    return name, float(result["metrics" if split == "test" else split][name])


@dataclass
class RunStatus:
    """A run in progress, as its directory tells."""

    began: float
    step: int = 0
    steps: int = 0
    loss: float | None = None
    metric: float | None = None
    rate: float | None = None
    left: float | None = None


@dataclass
class RowStatus:
    """One row of the study, over all its runs."""

    label: str
    runs: int
    expected: float  # seconds of a run; 0 before one was timed
    done: list[float] = field(default_factory=list)  # the metric of each finished run
    errors: int = 0
    running: dict[str, RunStatus] = field(default_factory=dict)  # by seed, or trial

    @property
    def state(self) -> str:
        """In a word; of the first run in progress where there are several."""
        if run := next(iter(self.running.values()), None):
            return "measuring" if run.steps and run.step == run.steps else "training"
        if self.errors:
            return "failed"
        if not self.runs:
            return "left out"
        return "done" if len(self.done) == self.runs else "waiting"

    def seconds_left(self, now: float, usual: float) -> float | None:
        """Of one worker doing it all; `usual` is a run of the other rows. None: not known yet."""
        each = self.expected or usual
        waiting = self.runs - len(self.done) - self.errors - len(self.running)
        if not each and (waiting or any(run.left is None for run in self.running.values())):
            return None
        at_work = [
            max(0.0, each - (now - run.began)) if run.left is None else run.left
            for run in self.running.values()
        ]
        return waiting * each + sum(at_work)


class StatusLines:
    """The progress of a study as plain lines."""

    def __init__(
        self, rows: Sequence[RowStatus], jobs: int, steps: int, split: str = "test"
    ) -> None:
        self.rows, self.jobs, self.steps, self.split = list(rows), jobs, steps, split
        self.metric = ""  # its name, once it is known

    def receive(self, row: int, name: str, event: dict[str, Any]) -> None:
        """An event of one run; `name` is its seed, or trial."""
        status, kind = self.rows[row], event["event"]
        run = status.running.get(name)
        self.metric = event.get("metric", self.metric)
        if kind == "start":
            status.running[name] = RunStatus(time.monotonic())
            place = f" on {event['host']}" if event.get("host") else ""
            self._progress(f"{self._count()} {status.label} {name}: training{place}")
        elif run is None:  # its worker was lost, and this was logged before
            return
        elif kind == "show":
            for key in ("step", "steps", "loss", "rate", "left"):
                setattr(run, key, event[key])
            metric = "" if run.metric is None else f"  validation {run.metric:.4f}"
            self._progress(
                f"{self._count()} {status.label} {name}: step {run.step}/{run.steps}  "
                f"loss {event['loss']:.4f}{metric}  {event['rate']:,.0f} tokens/s  "
                f"{clock(event['left'])} left, {self._left()} {WHOLE[self.split]}"
            )
        elif kind == "measure":
            run.metric = event["value"]
        else:
            del status.running[name]
            if not status.done:
                status.expected = max(status.expected, time.monotonic() - run.began)
            text = f"{name} failed: {event.get('error')}"
            if kind == "done":
                status.done.append(event["value"])
                text = f"{name}: {self.split} {self.metric} {event['value']:.4f}"
            elif kind == "failed":
                status.errors += 1
            else:
                text += "; trying again"
            self.say(f"{self._count()} {status.label} {text}")

    def say(self, text: str) -> None:
        """A line that stays."""
        sys.stdout.write(printable(text) + "\n")
        sys.stdout.flush()

    def refresh(self) -> None:
        """A moment passed."""

    def close(self) -> None:
        """Nothing more will be shown."""

    def _progress(self, text: str) -> None:
        self.say(text)

    def _usual(self) -> float:
        """Seconds of a run of an average row; 0 before one was timed."""
        timed = [status.expected for status in self.rows if status.expected]
        return fmean(timed) if timed else 0.0

    def _left(self) -> str:
        """The time that all runs still take."""
        now, usual = time.monotonic(), self._usual()
        found = [status.seconds_left(now, usual) for status in self.rows]
        each = [seconds for seconds in found if seconds is not None]
        if len(each) < len(found):
            return "unknown time"
        return clock(max(sum(each) / self.jobs, *each) if self.jobs > 1 else sum(each))

    def _count(self) -> str:
        over = sum(len(status.done) + status.errors for status in self.rows)
        return f"[{over}/{sum(status.runs for status in self.rows)}]"


class LiveTable(StatusLines):
    """The same as a table that stays in place, with messages above it."""

    def __init__(
        self, rows: Sequence[RowStatus], jobs: int, steps: int, split: str = "test"
    ) -> None:
        super().__init__(rows, jobs, steps, split)
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def say(self, text: str) -> None:
        self._console.print(printable(text), markup=False, highlight=False)
        self.refresh()

    def refresh(self) -> None:
        self._live.update(self._table(), refresh=True)

    def close(self) -> None:
        self._live.stop()

    def _progress(self, text: str) -> None:
        self.refresh()

    def _table(self) -> Table:
        """Columns of a fixed width, so that nothing moves but the numbers."""
        done = ", once done on test" if self.split == "test" else ""
        metric = f"{escape(printable(self.metric))} " if self.metric else ""
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0))
        table.caption_justify = "left"
        table.caption = (
            f"{self._count()} runs, {self._left()} left {WHOLE[self.split]}\n"
            f"metric: {metric}on validation{done}"
        )
        longest = max(len(status.label) for status in self.rows)
        widths = {**WIDTHS, "step": 2 * len(str(self.steps)) + 1}
        room = self._console.width - MARGIN - sum(widths.values()) - len(widths)
        table.add_column("row", width=max(10, min(longest, room)), overflow="fold")
        for name, width in widths.items():
            side: Literal["left", "right"] = "left" if name == "state" else "right"
            table.add_column(name, width=width, justify=side, no_wrap=True)
        now, usual = time.monotonic(), self._usual()
        for status in self.rows:
            left = status.seconds_left(now, usual) if status.runs else None
            run = next(iter(status.running.values()), None) or RunStatus(now)
            mean = fmean(status.done) if status.done else None
            cells = {
                "state": status.state,
                "runs": f"{len(status.done)}/{status.runs}" if status.runs else "",
                "step": f"{run.step}/{self.steps}" if status.running else "",
                "loss": _short(run.loss),
                "metric": _short(mean if run.metric is None else run.metric),
                "tokens/s": "" if run.rate is None else f"{run.rate:,.0f}",
                "left": "" if left is None else _span(left),
            }
            table.add_row(escape(printable(status.label)), *cells.values())
        return table


def _span(seconds: float) -> str:
    return clock(seconds) if seconds < LONG else f"{seconds / 3600:.0f} h"


def _short(value: float | None) -> str:
    """With as many digits as a column holds."""
    return "" if value is None else f"{value:.4f}"[:7].removesuffix(".")


class RunLog:
    """What a run's directory says of its progress, from now on."""

    def __init__(self, path: Path, recipe: Recipe, metric: str) -> None:
        self._train, self._metric = recipe.train, metric
        self._files = [LogFile(path / name) for name in ("metrics.jsonl", "timing.jsonl")]
        self._losses: dict[int, float] = {}
        self._first: tuple[float, int] | None = None  # when it began, and after which step

    def read(self) -> list[dict[str, Any]]:
        """Events "show" and "measure" of what was logged since the last call, by step."""
        measured, timed = (list(file.read()) for file in self._files)
        self._losses |= {line["step"]: line["loss"] for line in measured if "loss" in line}
        events = [
            self._show(line["step"], line["tokens"], line["seconds"])
            for line in timed
            if line["step"] in self._losses and "seconds" in line
        ]
        events += [
            {"event": "measure", "step": line["step"], "metric": self._metric, "value": value}
            for line in measured
            if (value := line.get("validation", {}).get(self._metric)) is not None
        ]
        return sorted(events, key=lambda event: int(event["step"]))

    def _show(self, step: int, tokens: int, seconds: float) -> dict[str, Any]:
        now, steps = time.monotonic(), self._train.steps
        self._first = self._first or (now - seconds, max(0, step - self._train.log_every))
        began, first = self._first
        return {
            "event": "show",
            "step": step,
            "steps": steps,
            "loss": self._losses.pop(step),
            "rate": tokens / max(seconds, 1e-9),
            "left": (now - began) / (step - first) * (steps - step),
        }


class LogFile:
    """The lines that are added to a .jsonl file from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file, self._place = self._state()

    def read(self) -> Iterator[dict[str, Any]]:
        """Those since the last call; a file that took another's place was cut, and has no news."""
        file, size = self._state()
        if file != self._file:
            self._place = 0 if self._file is None else size
            self._file = file
        if file is None or size <= self._place:
            return
        with self._path.open("rb") as lines:
            lines.seek(self._place)
            for line in lines:
                if line.endswith(b"\n"):  # else it is still written
                    self._place += len(line)
                    with suppress(ValueError):  # a damaged one is named by whoever reads the run
                        yield json.loads(line)

    def _state(self) -> tuple[int | None, int]:
        try:
            found = self._path.stat()
        except OSError:
            return None, 0
        return found.st_ino, found.st_size
