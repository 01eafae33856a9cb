"""synthesizer report."""

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.console import (
    Imports,
    Verify,
    print_table,
    say,
    say_aside,
    say_wrapped,
)
from synthesizer_attention.spec import import_modules
from synthesizer_attention.untrusted import printable


def report(
    dirs: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Run, study or audit directories, or packed studies (.zip)."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Output directory; by default the first DIR.")
    ] = None,
    imports: Imports = None,
    verify: Verify = True,
) -> None:
    """Write report.html, report.md and table.csv from run directories.

    Of an audit's directory: draw its report.html again.
    """
    import_modules(imports or ())
    if any((path / "audit.json").exists() for path in dirs):
        _draw_audit(dirs, out)
        return
    print_report(dirs, out, verify=verify)


def _draw_audit(dirs: list[Path], out: Path | None) -> None:
    """Draw the page of an audit again, and print its path."""
    if len(dirs) > 1:
        raise UserError("an audit has a page of its own; name its directory alone")
    from synthesizer_attention.audit.page import draw_again

    say(str(draw_again(dirs[0], out)))


def print_report(dirs: list[Path], out: Path | None = None, *, verify: bool = True) -> None:
    """Write the report of runs; print its tables, answers and path."""
    from synthesizer_attention.report.opponent import DOT
    from synthesizer_attention.report.tables import brief
    from synthesizer_attention.report.write import summarize_all, write

    summaries = summarize_all(dirs, verify=verify)
    for summary in summaries:
        head, rows = brief(summary)
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for index, name in enumerate(head):
            shown = escape(printable(name))
            table.add_column(shown, justify="right" if index else "left", no_wrap=not index)
        for row in rows:
            table.add_row(*(escape(printable(cell, lines=True)) for cell in row))
        print_table(table)
        for line in summary.lines:
            if line.state:
                say_wrapped(f"{line.row.label}: {line.state}")
        meant = "" if summary.dot_name == DOT else f" Here dot is the row {summary.dot_name}."
        say_wrapped(f"{summary.question} {summary.answer}{meant}")
    say_aside("writing the report ...")
    say(str(write(summaries, out or dirs[0])))
