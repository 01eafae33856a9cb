"""What the verbs of the command line share: options with one meaning, and printing (no torch)."""

import os
import shutil
import sys
from textwrap import fill
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from synthesizer_attention.errors import UserError
from synthesizer_attention.untrusted import printable

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a key of the recipe: train.steps=100. May be repeated."),
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import", help="Module or .py file that registers your own functions. May be repeated."
    ),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify/--no-verify", help="Compare the run's files with the sha256 in manifest.json."
    ),
]
Track = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Also log to a tracker: tensorboard, wandb, mlflow, ..."),
]
Plain = Annotated[bool, typer.Option("--plain", help="Print plain lines, no progress bar.")]

MOST = 2**31 - 1  # of what is counted: torch and Python's own functions take no larger numbers


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


def check_choice(option: str, value: str | None, allowed: tuple[str | None, ...]) -> None:
    """Refuse a value that is not among the allowed ones."""
    if value not in allowed:
        names = ", ".join(name for name in allowed if name)
        raise UserError(f"{option} is {value!r}; choose from {names}")


def silence_libraries() -> None:
    """Keep the libraries' own progress bars and advice off the screen."""
    # Read when torch is imported: its threads write warnings of the profiler past Python's filters.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
