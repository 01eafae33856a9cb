"""Where a study stands: a live table on a terminal, plain lines elsewhere (no torch)."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from synthesizer.experiment.progress import clock

LONG = 36_000.0  # seconds, from which on they are told in hours
MARGIN = 3  # free at the right: what a terminal echoes there must not start a line
COLUMNS = (  # and widths; that of a step depends on how many there are
    ("state", 9),
    ("runs", 5),
    ("step", 0),
    ("loss", 7),
    ("metric", 7),
    ("tokens/s", 8),
    ("left", 7),
)


@dataclass
class Running:
    """One run at work, as far as its worker told."""

    name: str  # of its seed, or trial
    began: float
    step: int = 0
    steps: int = 0
    loss: float | None = None
    metric: float | None = None
    rate: float | None = None
    left: float | None = None

    @property
    def state(self) -> str:
        """In a word."""
        return "measuring" if self.steps and self.step == self.steps else "training"


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
        """In a word, of the first run at work where there are several."""
        if self.running:
            return next(iter(self.running.values())).state
        if self.errors:
            return "failed"
        if not self.runs:
            return "left out"
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

    def __init__(
        self, standings: Sequence[Standing], jobs: int, steps: int, split: str = "test"
    ) -> None:
        self.standings, self.jobs, self.steps, self.split = list(standings), jobs, steps, split
        self.metric = ""  # its name, once it is known

    def start(self, row: int, key: str, name: str) -> None:
        """A run began, or went on."""
        self.standings[row].running[key] = Running(name, time.monotonic())
        self._begin(row, name)

    def show(self, row: int, key: str, event: dict[str, Any]) -> None:
        """A worker told how its run goes."""
        run = self.standings[row].running[key]
        for name in ("step", "steps", "loss", "rate", "left"):
            setattr(run, name, event[name])
        self._tell(row, run)

    def measure(self, row: int, key: str, metric: str, value: float) -> None:
        """The main metric on validation, so far."""
        self.metric = metric
        self.standings[row].running[key].metric = value

    def finish(self, row: int, key: str, metric: str, value: float) -> None:
        """A run is done; `value` is its metric on the split that counts."""
        self.metric = metric
        standing = self.standings[row]
        name = self._retire(row, key)
        standing.done.append(value)
        told = f"{self.split} {metric} {value:.4f}"
        self.say(f"{self._count()} {standing.label} {name}: {told}")

    def fail(self, row: int, key: str, error: str) -> None:
        """A run failed; the others go on."""
        name = self._retire(row, key)
        self.standings[row].errors += 1
        self.say(f"{self._count()} {self.standings[row].label} {name} failed: {error}")

    def say(self, text: str) -> None:
        """A line that stays."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def refresh(self) -> None:
        """A moment passed."""

    def close(self) -> None:
        """Nothing more will be told."""

    def _begin(self, row: int, name: str) -> None:
        self.say(f"{self._count()} {self.standings[row].label} {name}: training")

    def _tell(self, row: int, run: Running) -> None:
        metric = "" if run.metric is None else f"  validation {run.metric:.4f}"
        self.say(
            f"{self._count()} {self.standings[row].label} {run.name}: step {run.step}/"
            f"{run.steps}  loss {run.loss:.4f}{metric}  {run.rate:,.0f} tokens/s  "
            f"{clock(run.left or 0)} left, {clock(self._left())} in all"
        )

    def _retire(self, row: int, key: str) -> str:
        standing = self.standings[row]
        run = standing.running.pop(key)
        if not standing.done:
            standing.expected = max(standing.expected, time.monotonic() - run.began)
        return run.name

    def _left(self) -> float:
        now = time.monotonic()
        each = [standing.seconds_left(now) for standing in self.standings]
        return max(sum(each) / self.jobs, *each) if self.jobs > 1 else sum(each)

    def _count(self) -> str:
        over = sum(len(standing.done) + standing.errors for standing in self.standings)
        return f"[{over}/{sum(standing.runs for standing in self.standings)}]"


class LiveBoard(Board):
    """The same as a table that stays in place, what is said above it."""

    def __init__(
        self, standings: Sequence[Standing], jobs: int, steps: int, split: str = "test"
    ) -> None:
        super().__init__(standings, jobs, steps, split)
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)
        self.refresh()

    def refresh(self) -> None:
        self._live.update(self._table(), refresh=True)

    def close(self) -> None:
        self._live.stop()

    def _begin(self, row: int, name: str) -> None:
        self.refresh()

    def _tell(self, row: int, run: Running) -> None:
        self.refresh()

    def _table(self) -> Table:
        """Columns of a fixed width, so that nothing moves but the numbers."""
        whole = f"{self._count()} runs, {clock(self._left())} left in all"
        done = ", once done on test" if self.split == "test" else ""
        meaning = " ".join(filter(None, ["metric:", self.metric, f"on validation{done}"]))
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0))
        table.caption, table.caption_justify = f"{whole}\n{meaning}", "left"
        longest = max(len(standing.label) for standing in self.standings)
        widths = {**dict(COLUMNS), "step": 2 * len(str(self.steps)) + 1}
        room = self._console.width - MARGIN - sum(widths.values()) - len(widths)
        table.add_column("row", width=max(10, min(longest, room)), overflow="fold")
        for name, width in widths.items():
            left = name == "state"
            table.add_column(name, width=width, justify="left" if left else "right", no_wrap=True)
        now = time.monotonic()
        for standing in self.standings:
            run = next(iter(standing.running.values()), None)
            metric = _mean(standing.done) if run is None or run.metric is None else run.metric
            table.add_row(
                escape(standing.label),
                standing.state,
                f"{len(standing.done)}/{standing.runs}" if standing.runs else "",
                f"{run.step}/{self.steps}" if run else "",
                _short(run.loss if run else None),
                _short(metric),
                "" if run is None or run.rate is None else f"{run.rate:,.0f}",
                _span(standing.seconds_left(now)) if standing.runs else "",
            )
        return table


def open_board(
    standings: Sequence[Standing], jobs: int, steps: int, split: str, *, plain: bool
) -> Board:
    """A live table where stdout is a terminal, unless plain lines are asked for."""
    live = sys.stdout.isatty() and not plain
    return (LiveBoard if live else Board)(standings, jobs, steps, split)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _span(seconds: float) -> str:
    return clock(seconds) if seconds < LONG else f"{seconds / 3600:.0f} h"


def _short(value: float | None) -> str:
    """With as many digits as a column holds."""
    return "" if value is None else f"{value:.4f}"[:7].removesuffix(".")
