"""Where a study stands: a live table on a terminal, plain lines elsewhere (no torch)."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from synthesizer.progress import clock


@dataclass
class Running:
    """One run at work, as far as its worker told."""

    seed: int
    began: float
    step: int = 0
    steps: int = 0
    loss: float | None = None
    metric: float | None = None
    rate: float | None = None
    left: float | None = None

    @property
    def state(self) -> str:
        """In a few words."""
        done = self.steps and self.step == self.steps
        return f"{'measuring' if done else 'training'} seed {self.seed}"


@dataclass
class Standing:
    """One row of the study, over all its runs."""

    label: str
    runs: int
    expected: float  # seconds of a run
    done: list[float] = field(default_factory=list)  # the metric of each finished run
    errors: int = 0
    running: dict[str, Running] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """In a few words."""
        if self.running:
            return ", ".join(run.state for run in self.running.values())
        if self.errors:
            return "failed"
        return "done" if len(self.done) == self.runs else "waiting"

    def seconds_left(self, now: float) -> float:
        """Of one worker doing it all."""
        waiting = self.runs - len(self.done) - self.errors - len(self.running)
        at_work = [
            max(0.0, self.expected - (now - run.began)) if run.left is None else run.left
            for run in self.running.values()
        ]
        return waiting * self.expected + sum(at_work)


class Board:
    """What a study tells; lines here, a table in Live."""

    def __init__(self, standings: Sequence[Standing], jobs: int) -> None:
        self.standings, self.jobs = list(standings), jobs

    def start(self, row: int, key: str, seed: int) -> None:
        """A run began, or went on."""
        self.standings[row].running[key] = Running(seed, time.monotonic())
        self.say(f"{self._count()} {self.standings[row].label} seed {seed}: training")

    def show(self, row: int, key: str, event: dict[str, Any]) -> None:
        """A worker told how its run goes."""
        run = self.standings[row].running[key]
        for name in ("step", "steps", "loss", "rate", "left"):
            setattr(run, name, event[name])
        self._tell(row, run)

    def measure(self, row: int, key: str, value: float) -> None:
        """The main metric on validation, so far."""
        self.standings[row].running[key].metric = value

    def finish(self, row: int, key: str, seed: int, metric: str, value: float) -> None:
        """A run is done; `value` is its metric on test."""
        standing = self.standings[row]
        self._retire(row, key)
        standing.done.append(value)
        self.say(f"{self._count()} {standing.label} seed {seed}: test {metric} {value:.4f}")

    def fail(self, row: int, key: str, seed: int, error: str) -> None:
        """A run failed; the others go on."""
        self._retire(row, key)
        self.standings[row].errors += 1
        self.say(f"{self._count()} {self.standings[row].label} seed {seed} failed: {error}")

    def say(self, text: str) -> None:
        """A line that stays."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def refresh(self) -> None:
        """A moment passed."""

    def close(self) -> None:
        """Nothing more will be told."""

    def _tell(self, row: int, run: Running) -> None:
        metric = "" if run.metric is None else f"  validation {run.metric:.4f}"
        self.say(
            f"{self._count()} {self.standings[row].label} seed {run.seed}: step {run.step}/"
            f"{run.steps}  loss {run.loss:.4f}{metric}  {run.rate:,.0f} tokens/s  "
            f"{clock(run.left or 0)} left, {clock(self._left())} in all"
        )

    def _retire(self, row: int, key: str) -> None:
        standing = self.standings[row]
        run = standing.running.pop(key, None)
        if run is not None and not standing.done:
            standing.expected = max(standing.expected, time.monotonic() - run.began)

    def _left(self) -> float:
        now = time.monotonic()
        each = [standing.seconds_left(now) for standing in self.standings]
        return max(sum(each) / self.jobs, *each) if self.jobs > 1 else sum(each)

    def _count(self) -> str:
        over = sum(len(standing.done) + standing.errors for standing in self.standings)
        return f"[{over}/{sum(standing.runs for standing in self.standings)}]"


class LiveBoard(Board):
    """The same as a table that stays in place, what is said above it."""

    def __init__(self, standings: Sequence[Standing], jobs: int) -> None:
        super().__init__(standings, jobs)
        self._live = Live(console=Console(), auto_refresh=False, transient=True)
        self._live.start()

    def say(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        self.refresh()

    def refresh(self) -> None:
        self._live.update(self._table(), refresh=True)

    def close(self) -> None:
        self._live.stop()

    def _tell(self, row: int, run: Running) -> None:
        self.refresh()

    def _table(self) -> Table:
        names = ("row", "state", "runs", "step", "loss", "metric", "tokens/s", "left")
        table = Table(caption=f"{self._count()} runs, {clock(self._left())} left in all")
        for place, name in enumerate(names):
            table.add_column(name, justify="left" if place < 2 else "right", no_wrap=True)
        now = time.monotonic()
        for standing in self.standings:
            run = next(iter(standing.running.values()), None)
            metric = _mean(standing.done) if run is None or run.metric is None else run.metric
            table.add_row(
                escape(standing.label),
                standing.state,
                f"{len(standing.done)}/{standing.runs}",
                f"{run.step}/{run.steps}" if run and run.steps else "",
                _number(run.loss if run else None, ".4f"),
                _number(metric, ".4f"),
                _number(run.rate if run else None, ",.0f"),
                clock(standing.seconds_left(now)),
            )
        return table


def open_board(standings: Sequence[Standing], jobs: int, *, plain: bool) -> Board:
    """A live table where stdout is a terminal, unless plain lines are asked for."""
    live = sys.stdout.isatty() and not plain
    return LiveBoard(standings, jobs) if live else Board(standings, jobs)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
