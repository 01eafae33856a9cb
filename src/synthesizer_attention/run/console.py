"""Printing for the command line (no torch)."""

import os
import shutil
import sys
from textwrap import fill

from rich.console import Console
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
