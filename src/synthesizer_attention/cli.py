"""The command line. Each verb and its options are defined in its folder's command.py, which imports
what it needs when it is called, so that --help, list and recipes start at once.
"""

import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from synthesizer_attention import __version__
from synthesizer_attention.audit.command import audit, convert
from synthesizer_attention.benchmark.command import bench
from synthesizer_attention.errors import UserError, is_out_of_memory
from synthesizer_attention.report.command import report
from synthesizer_attention.run.console import Imports, print_table, say, say_aside
from synthesizer_attention.run.disk import DISK
from synthesizer_attention.run.interruption import Interrupted
from synthesizer_attention.spec import ALIASES, import_modules, variants
from synthesizer_attention.study.command import compare
from synthesizer_attention.training.command import evaluate, generate, train
from synthesizer_attention.untrusted import printable

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        say(f"synthesizer {__version__}")
        raise typer.Exit


@app.callback()
def synthesizer(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Synthesizer attention: train, evaluate and compare it."""


@app.command(name="list")
def list_variants(imports: Imports = None) -> None:
    """List the variants: what each computes, learns and depends on."""
    import_modules(imports or ())
    table = Table("name", "paper", "what it computes", "parameters", "depends on")
    for variant in sorted(variants().values(), key=lambda variant: variant.baseline):
        if variant.baseline:
            table.add_section()
        facts = (variant.name, variant.paper, variant.equation, variant.parameters)
        table.add_row(*map(escape, facts), variant.depends_on)
    print_table(table)
    short = ", ".join(f"{alias} = {name}" for alias, name in ALIASES.items())
    say("D d_model, H heads, K = D/H, N max_len; biases not counted.")
    say("Mixtures, with learned weights: random+dot. Options: factorized_random:k=16.")
    say("Per layer: random*3,dot*3. Per group of heads: random@2|dot@2.")
    say(f"Short names: {short}.")


@app.command()
def recipes() -> None:
    """List the built-in recipes: task, data, size and rough cost."""
    from synthesizer_attention.run.recipe_list import summarize_recipes

    table = Table("name", "task", "data", "size", "rough cost")
    for summary in summarize_recipes():
        table.add_row(*map(escape, summary))
    print_table(table)
    say("`synthesizer train NAME --check` prints parameters, FLOPs, data and time.")


for verb in (train, evaluate, generate, compare, report, bench, audit, convert):
    app.command()(verb)


def _prepare_process() -> None:
    """Have a standard stream that was closed, or knows few characters, stop no command."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  to the end
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UserError("the current directory was deleted; change to another") from None


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 is success, 2 a user's mistake, 130 interrupted."""
    try:
        _prepare_process()
        words = sys.argv[1:] if arguments is None else arguments
        app(args=words, prog_name="synthesizer")
    except UserError as error:
        say_aside(f"synthesizer: error: {printable(str(error))}")
        return 2
    except Interrupted as stop:
        say_aside(f"synthesizer: {printable(str(stop))}")
        return 130
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name in ("", "synthesizer_attention", *sys.stdlib_module_names):
            raise
        install = "run pip install 'synthesizer-attention[train]'"
        say_aside(f"synthesizer: error: this needs {name}, which is not installed; {install}")
        return 2
    except (MemoryError, RuntimeError, OSError) as error:
        cause = str(error).partition("\n")[0][:200] or type(error).__name__
        if is_out_of_memory(error):
            advice = "ask for a smaller model, batch or length"
            say_aside(f"synthesizer: error: this machine has too little memory ({cause}); {advice}")
            return 2
        if not isinstance(error, OSError) or error.errno not in DISK:
            raise
        where = printable(str(error.filename or "the disk"))[:200]
        say_aside(f"synthesizer: error: {where}: {error.strerror}; {DISK[error.errno]}")
        return 2
    return 0
