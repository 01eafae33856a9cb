"""How a study is going: a live table on a terminal, plain lines elsewhere (no torch)."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from synthesizer_attention.run.progress import clock
from synthesizer_attention.run.recipe import Recipe
from synthesizer_attention.untrusted import printable

WHOLE = {"validation": "for these trials", "test": "in all"}  # what is left, by what is measured
LONG = 36_000.0  # seconds, from which on they are shown in hours
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
class RunStatus:
    """A run in progress, as its worker reported it."""

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

    def __str__(self) -> str:
        metric = "" if self.metric is None else f"  validation {self.metric:.4f}"
        return (
            f"step {self.step}/{self.steps}  loss {self.loss:.4f}{metric}  "
            f"{self.rate:,.0f} tokens/s  {clock(self.left or 0)} left"
        )


@dataclass
class RowStatus:
    """One row of the study, over all its runs."""

    label: str
    runs: int
    expected: float  # seconds of a run; 0 before one was timed
    done: list[float] = field(default_factory=list)  # the metric of each finished run
    errors: int = 0
    running: dict[str, RunStatus] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """In a word; of the first run in progress where there are several."""
        if self.running:
            return next(iter(self.running.values())).state
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
        self.metric = event.get("metric", self.metric)
        if kind == "start":
            status.running[name] = RunStatus(name, time.monotonic())
            place = f" on {event['host']}" if event.get("host") else ""
            self._progress(row, f"{name}: training{place}")
        elif kind == "show" and (run := status.running.get(name)):  # else its worker was lost
            for key in ("step", "steps", "loss", "rate", "left"):
                setattr(run, key, event[key])
            self._progress(row, f"{name}: {run}, {self._left()} {WHOLE[self.split]}")
        elif kind == "measure" and name in status.running:
            status.running[name].metric = event["value"]
        elif kind in ("done", "failed", "retry"):
            self._end(status, name, event)

    def _end(self, status: RowStatus, name: str, event: dict[str, Any]) -> None:
        began = status.running.pop(name).began
        if not status.done:
            status.expected = max(status.expected, time.monotonic() - began)
        text = f"{name} failed: {event.get('error')}"
        if event["event"] == "done":
            status.done.append(event["value"])
            text = f"{name}: {self.split} {self.metric} {event['value']:.4f}"
        elif event["event"] == "failed":
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

    def _progress(self, row: int, text: str) -> None:
        self.say(f"{self._count()} {self.rows[row].label} {text}")

    def _usual(self) -> float:
        """Seconds of a run of an average row; 0 before one was timed."""
        return _mean([status.expected for status in self.rows if status.expected]) or 0.0

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

    def _progress(self, row: int, text: str) -> None:
        self.refresh()

    def _table(self) -> Table:
        """Columns of a fixed width, so that nothing moves but the numbers."""
        whole = f"{self._count()} runs, {self._left()} left {WHOLE[self.split]}"
        done = ", once done on test" if self.split == "test" else ""
        meaning = " ".join(
            filter(None, ["metric:", escape(printable(self.metric)), f"on validation{done}"])
        )
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0))
        table.caption, table.caption_justify = f"{whole}\n{meaning}", "left"
        longest = max(len(status.label) for status in self.rows)
        widths = {**dict(COLUMNS), "step": 2 * len(str(self.steps)) + 1}
        room = self._console.width - MARGIN - sum(widths.values()) - len(widths)
        table.add_column("row", width=max(10, min(longest, room)), overflow="fold")
        for name, width in widths.items():
            side: Literal["left", "right"] = "left" if name == "state" else "right"
            table.add_column(name, width=width, justify=side, no_wrap=True)
        now, usual = time.monotonic(), self._usual()
        for status in self.rows:
            left = status.seconds_left(now, usual) if status.runs else None
            run = next(iter(status.running.values()), None)
            metric = _mean(status.done) if run is None or run.metric is None else run.metric
            table.add_row(
                escape(printable(status.label)),
                status.state,
                f"{len(status.done)}/{status.runs}" if status.runs else "",
                f"{run.step}/{self.steps}" if run else "",
                _short(run.loss if run else None),
                _short(metric),
                "" if run is None or run.rate is None else f"{run.rate:,.0f}",
                "" if left is None else _span(left),
            )
        return table


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


def open_status(
    rows: Sequence[RowStatus], jobs: int, steps: int, split: str, *, plain: bool
) -> StatusLines:
    """A live table where stdout is a terminal, unless plain lines are asked for."""
    live = sys.stdout.isatty() and not plain
    return (LiveTable if live else StatusLines)(rows, jobs, steps, split)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _span(seconds: float) -> str:
    return clock(seconds) if seconds < LONG else f"{seconds / 3600:.0f} h"


def _short(value: float | None) -> str:
    """With as many digits as a column holds."""
    return "" if value is None else f"{value:.4f}"[:7].removesuffix(".")
