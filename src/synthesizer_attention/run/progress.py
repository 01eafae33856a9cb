"""How a long job prints its progress and notes Ctrl-C (no torch)."""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from textwrap import fill
from types import FrameType, TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

from synthesizer_attention.errors import printable


def say(text: str) -> None:
    """A line on stdout, at once."""
    sys.stdout.write(printable(text, lines=True) + "\n")
    sys.stdout.flush()


def say_wrapped(text: str) -> None:
    """A sentence, which a terminal shows without breaking words."""
    text = printable(text)
    if sys.stdout.isatty():
        text = fill(text, shutil.get_terminal_size().columns - 1, break_on_hyphens=False)
    say(text)


def say_aside(text: str) -> None:
    """A line on stderr, so that the output can be piped."""
    sys.stderr.write(printable(text, lines=True) + "\n")


def print_table(table: Table) -> None:
    """A table as wide as the terminal, or wide enough for a file."""
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def silence_libraries() -> None:
    """Keep the libraries' own progress bars and advice off the screen."""
    # Read when torch is imported: its threads write warnings of the profiler past Python's filters.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


class Progress:
    """What the training loop reports: nothing is shown here; subclasses show it."""

    def show(self, step: int, steps: int, loss: float, rate: float, left: float) -> None:
        """Training is at a step: its loss, tokens per second, and seconds left."""

    def measure(self, step: int, metric: str, value: float) -> None:
        """The main metric was measured on validation."""
        self.say(f"step {step}  validation {metric} {value:.4f}")

    def say(self, text: str) -> None:
        """Print a message."""

    def close(self) -> None:
        """Nothing more will be reported."""


class Lines(Progress):
    """One plain line per message."""

    def show(self, step: int, steps: int, loss: float, rate: float, left: float) -> None:
        self.say(f"step {step}/{steps}  loss {loss:.4f}  {rate:,.0f} tokens/s  {clock(left)} left")

    def say(self, text: str) -> None:
        say(text)


class Bar(Progress):
    """A bar that stays at the bottom, with messages above it."""

    def __init__(self) -> None:
        self._bar = RichProgress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("loss {task.fields[loss]}  {task.fields[rate]} tokens/s"),
            TextColumn("{task.fields[left]} left"),
            console=Console(),
        )
        self._task = self._bar.add_task("", total=None, loss="-", rate="-", left="-")

    def show(self, step: int, steps: int, loss: float, rate: float, left: float) -> None:
        self._bar.start()
        self._bar.update(
            self._task,
            completed=step,
            total=steps,
            loss=f"{loss:.4f}",
            rate=f"{rate:,.0f}",
            left=clock(left),
        )

    def say(self, text: str) -> None:
        self._bar.console.print(
            printable(text, lines=True), markup=False, highlight=False, soft_wrap=True
        )

    def close(self) -> None:
        self._bar.stop()


class Pace:
    """Seconds and tokens of training, evaluations and checkpoints aside."""

    def __init__(self, step: int) -> None:
        self._begin, self._first = time.perf_counter(), step
        self._seconds, self._tokens = 0.0, 0

    def add(self, seconds: float, tokens: int) -> None:
        self._seconds += seconds
        self._tokens += tokens

    def lap(self) -> tuple[float, int]:
        """Seconds and tokens since the last lap."""
        lap = self._seconds, self._tokens
        self._seconds, self._tokens = 0.0, 0
        return lap

    def seconds_per_step(self, step: int) -> float:
        """All that was spent, per step taken here."""
        return (time.perf_counter() - self._begin) / max(1, step - self._first)


def open_progress(*, plain: bool) -> Progress:
    """A bar where stdout is a terminal, unless plain lines are asked for."""
    return Lines() if plain or not sys.stdout.isatty() else Bar()


@contextmanager
def open_count(*, plain: bool) -> Iterator[Callable[[int, int, str], None]]:
    """A bar that counts, or a line whenever something else begins."""
    if plain or not sys.stdout.isatty():
        said: list[str] = []

        def tell(done: int, total: int, what: str) -> None:
            if said[-1:] != [what]:
                said.append(what)
                say(f"{done}/{total}  {printable(what)}")

        yield tell
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with RichProgress(*columns, console=Console()) as bar:
        task = bar.add_task("", total=None)

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=printable(what))

        yield show


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss, or m:ss below one hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Interrupted(Exception):  # noqa: N818  no error: the run can be resumed
    """The run stopped because it was asked to, and can be resumed."""


class Interruption:
    """While it lasts, a signal is noted instead of obeyed; a second Ctrl-C stops at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.asked = False
        self.stops_at_once = False

    def __enter__(self) -> "Interruption":
        self._listens = threading.current_thread() is threading.main_thread()
        if self._listens:
            self._before = {number: signal.getsignal(number) for number in self.SIGNALS}
            for number in self.SIGNALS:
                signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._listens:
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.stops_at_once or (self.asked and number == signal.SIGINT):
            raise KeyboardInterrupt
        self.asked = True
