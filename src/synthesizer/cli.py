"""The command line: each verb parses, calls one function of the library, and says where to look.

Each verb imports what it needs inside itself, so that --help, list and recipes start at once.
"""

import shlex
import shutil
import sys
from pathlib import Path
from textwrap import fill
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from synthesizer.errors import UserError
from synthesizer.untrusted import printable

app = typer.Typer(
    help="Synthesizer attention: train, evaluate and compare it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Synthesis = Annotated[
    str | None, typer.Option(help="What makes the attention: random, random+dot, ... (see list).")
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="key=value, overrides any key of the recipe.")
]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", help="Module or .py file that registers your own functions."),
]
Plain = Annotated[bool, typer.Option("--plain", help="Plain lines instead of a bar.")]
RunDir = Annotated[Path, typer.Argument(help="A run directory.")]
Which = Annotated[str | None, typer.Option(help="best, last or averaged; by default model/.")]


@app.command(name="list")
def list_variants(imports: Imports = None) -> None:
    """List the variants: what each computes, learns and depends on."""
    from synthesizer.spec import ALIASES, import_modules, variants

    import_modules(imports or ())
    table = Table("name", "paper", "what it computes", "parameters", "depends on")
    for variant in sorted(variants().values(), key=lambda variant: variant.baseline):
        if variant.baseline:
            table.add_section()
        facts = (variant.name, variant.paper, variant.equation, variant.parameters)
        table.add_row(*map(escape, facts), variant.depends_on)
    _print(table)
    short = ", ".join(f"{alias} = {name}" for alias, name in ALIASES.items())
    _say("D d_model, H heads, K = D/H, N max_len; biases aside.")
    _say("Mix with +, weights learned: random+dot. Options: factorized_random:k=16.")
    _say("Per layer: random*3,dot*3.")
    _say(f"Short names: {short}.")


@app.command()
def recipes() -> None:
    """List the built-in recipes: task, data, size and rough cost."""
    from synthesizer.experiment.recipe_list import summarize_recipes

    table = Table("name", "task", "data", "size", "rough cost")
    for summary in summarize_recipes():
        facts = (summary.name, summary.task, summary.data, summary.size, summary.cost)
        table.add_row(*map(escape, facts))
    _print(table)
    _say("`synthesizer train NAME --check` tells parameters, FLOPs, data and time.")


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A built-in recipe, or a .toml file.")],
    synthesis: Synthesis = None,
    overrides: Overrides = None,
    imports: Imports = None,
    out: Annotated[
        Path | None, typer.Option(help="Run directory; by default runs/RECIPE/SYNTHESIS/seedN.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Say what it would do, and stop.")] = False,
    plain: Plain = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write curves for TensorBoard, too.")
    ] = False,
) -> None:
    """Train one recipe, or resume it, and leave a run directory behind."""
    from synthesizer.experiment.recipe import load_recipe
    from synthesizer.experiment.run import Run, default_path

    loaded = load_recipe(
        recipe, synthesis=synthesis, overrides=overrides or (), imports=imports or ()
    )
    _quiet_libraries()
    if check:
        from synthesizer.training.preview import describe

        for line in describe(loaded):
            _say(line)
        return
    from synthesizer.experiment.progress import open_progress
    from synthesizer.training.loop import fit

    run = Run(out or default_path(loaded))
    run.claim(loaded)
    if run.is_finished:
        _say(f"{run.path} is finished; nothing to do")
    progress = open_progress(plain=plain)
    try:
        result = fit(loaded, run, progress, tensorboard=tensorboard)
    finally:
        progress.close()
    if result:
        name = result["main_metric"]
        _say(f"{run.path}  test {name} {result['metrics'][name]:.4f}")


@app.command()
def evaluate(
    run: RunDir,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    checkpoint: Which = None,
    imports: Imports = None,
) -> None:
    """Measure a finished run on a split of its data."""
    from synthesizer.spec import import_modules

    import_modules(imports or ())
    _one_of("--split", split, ("train", "validation", "test"))
    _one_of("--checkpoint", checkpoint, (None, "best", "last", "averaged"))
    _quiet_libraries()
    from synthesizer.training.finish import measure

    scores = measure(run, split, checkpoint)
    for name, value in scores.metrics.items():
        _say(f"{name}\t{value:.4f}\t{scores.signatures.get(name, '')}".rstrip())


@app.command()
def generate(
    run: RunDir,
    beam: Annotated[int | None, typer.Option(min=1, help="Beams; 1 is greedy.")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw instead of search.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Lines answered together.")] = 16,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.")] = None,
    seed: Annotated[int, typer.Option(help="Of --sample.")] = 1,
    checkpoint: Which = None,
    imports: Imports = None,
) -> None:
    """Answer each line of stdin with a line of stdout, in order.

    A line that cannot be taken gives an error on stderr with its number, and an empty line. A line
    break within an answer is written as \\n. A classifier writes every label and its probability.
    """
    _one_of("--checkpoint", checkpoint, (None, "best", "last", "averaged"))
    _quiet_libraries()
    import torch

    from synthesizer.experiment.run import Run
    from synthesizer.spec import import_modules
    from synthesizer.training.generate import Answerer, Asked

    import_modules(imports or ())
    torch.manual_seed(seed)
    asked = Asked(beam, sample, batch_size, max_new_tokens)
    answerer = Answerer(Run(run), asked, checkpoint)
    for number, answer in enumerate(answerer.answer(sys.stdin.buffer), start=1):
        if answer.error is not None:
            _note(f"synthesizer: line {number}: {printable(answer.error)}")
        if sys.stdout.isatty():
            _say(answer.text)
        else:  # a file gets the very answer
            sys.stdout.write(answer.text + "\n")
            sys.stdout.flush()


@app.command()
def compare(
    recipe: Annotated[
        str, typer.Argument(help="A built-in recipe, a .toml file, or your data: .csv, .txt, ...")
    ] = "python-docs",
    synthesis: Annotated[
        list[str] | None, typer.Option(help="A row; by default the paper's Table 2 and controls.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs per row; by default 3.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Workers; by default all cores.")] = None,
    match: Annotated[
        str, typer.Option(help="none, params or flops: what d_ff makes equal in all rows.")
    ] = "none",
    tune: Annotated[int, typer.Option(min=0, help="Trials per row that choose its rates.")] = 0,
    margin: Annotated[
        float | None, typer.Option(min=0, help="What counts as no worse; by default per metric.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One seed, fewer steps, no verdict.")] = (
        False
    ),
    baselines: Annotated[bool, typer.Option("--baselines", help="Add the other systems.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Print the single runs, and stop.")] = False,
    overrides: Overrides = None,
    imports: Imports = None,
    plain: Plain = False,
    out: Annotated[
        Path | None, typer.Option(help="Study directory; by default runs/RECIPE-HASH.")
    ] = None,
) -> None:
    """Answer whether a task needs dot-product attention: train every row, fairly, and report.

    Interrupted and started again it goes on where it was.
    """
    from synthesizer.study import compare as study
    from synthesizer.study.plan import Asked

    asked = Asked(
        recipe=recipe,
        syntheses=tuple(synthesis or ()),
        seeds=seeds,
        jobs=jobs,
        match=match,
        tune=tune,
        margin=margin,
        quick=quick,
        baselines=baselines,
        overrides=tuple(overrides or ()),
        imports=tuple(imports or ()),
        out=out,
        command=shlex.join(["synthesizer", *sys.argv[1:]]),
    )
    if plan:
        for line in study.list_commands(asked, _note):
            _say(line)
        return
    _report([study.compare(asked, _tell, plain=plain).out])


@app.command()
def report(
    dirs: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Runs, or directories that hold some.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where the files go; by default the first DIR.")
    ] = None,
    imports: Imports = None,
) -> None:
    """Turn run directories into report.html, report.md and table.csv."""
    from synthesizer.spec import import_modules

    import_modules(imports or ())
    _report(dirs, out)


@app.command()
def bench(
    variants: Annotated[
        list[str] | None, typer.Option("--variant", help="A variant; by default all.")
    ] = None,
    modes: Annotated[
        list[str] | None,
        typer.Option(
            "--mode", help="train, inference, lm, classifier, seq2seq, decode; may be repeated."
        ),
    ] = None,
    views: Annotated[
        list[str] | None, typer.Option("--view", help="causal, full, padded; may be repeated.")
    ] = None,
    lengths: Annotated[
        list[int] | None, typer.Option("--length", help="Tokens of a sequence; may be repeated.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a batch.")] = 4096,
    d_model: Annotated[int, typer.Option(min=1, help="Width.")] = 512,
    num_heads: Annotated[int, typer.Option(min=1, help="Heads.")] = 8,
    num_layers: Annotated[int, typer.Option(min=1, help="Layers of a whole model.")] = 6,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of all variants in turn.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Threads of a CPU.")] = 1,
    device: Annotated[str, typer.Option(help="cpu, or cuda where there is one.")] = "cpu",
    peers: Annotated[
        bool, typer.Option("--peers", help="Add what one would pick instead: PyTorch's, GPT-2.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say which path each variant takes, and stop.")
    ] = False,
    imports: Imports = None,
    out: Annotated[Path, typer.Option(help="Where the files go.")] = Path("bench"),
    plain: Plain = False,
) -> None:
    """Time every variant beside dot product attention, in the same rounds."""
    _quiet_libraries()
    import torch

    from synthesizer.benchmark import measure
    from synthesizer.spec import import_modules

    import_modules(imports or ())
    torch.set_num_threads(threads)
    defaults = measure.Plan()
    plan = measure.Plan(
        variants=tuple(variants or defaults.variants),
        modes=tuple(modes or defaults.modes),
        views=tuple(views or defaults.views),
        lengths=tuple(lengths or defaults.lengths),
        tokens=tokens,
        d_model=d_model,
        num_heads=num_heads,
        num_layers=num_layers,
        rounds=rounds,
        device=device,
        peers=peers,
    )
    if explain:
        from synthesizer.benchmark.explain import explain as explain_paths

        table = Table("variant", "view", "length", "path", "because")
        for line in explain_paths(plan):
            table.add_row(*map(escape, line))
        _print(table)
        return
    from synthesizer.benchmark.write import cells, write
    from synthesizer.experiment.progress import open_count

    with open_count(plain=plain) as tell:
        result = measure.bench(plan, tell)
    for row in result.rows:
        shown = cells(row)
        where = f"{row.mode} {row.view} T={row.length}"
        _say(f"{where:28} {shown[0]:28} {shown[1]:>6} x dot ({shown[2]})  {shown[3]} ms")
    _say(str(write(result, "synthesizer " + " ".join(sys.argv[1:]), out)))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 is done, 2 the user's mistake, 130 interrupted."""
    from synthesizer.experiment.interruption import Interrupted

    try:
        app(args=arguments, prog_name="synthesizer")
    except UserError as error:
        _note(f"synthesizer: error: {printable(str(error))}")
        return 2
    except Interrupted as stop:
        _note(f"synthesizer: {printable(str(stop))}")
        return 130
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


def _report(dirs: list[Path], out: Path | None = None) -> None:
    """Write the report of runs; print its tables, answers and place."""
    try:
        from synthesizer.report import summarize_all, write
        from synthesizer.report.tables import brief
    except ImportError as error:
        raise UserError(
            f"a report needs {error.name}, which is not installed; "
            "run pip install 'synthesizer-attention[train]'"
        ) from None
    summaries = summarize_all(dirs)
    for summary in summaries:
        head, rows = brief(summary)
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for place, name in enumerate(head):
            shown = escape(printable(name))
            table.add_column(shown, justify="right" if place else "left", no_wrap=not place)
        for row in rows:
            table.add_row(*(escape(printable(cell, lines=True)) for cell in row))
        _print(table)
        for line in summary.lines:
            if line.state:
                _tell(f"{line.row.label}: {line.state}")
        _tell(f"{summary.question} {summary.answer}")
    _say(str(write(summaries, out or dirs[0])))


def _one_of(option: str, value: str | None, allowed: tuple[str | None, ...]) -> None:
    if value not in allowed:
        names = ", ".join(name for name in allowed if name)
        raise UserError(f"{option} is {value!r}; choose from {names}")


def _quiet_libraries() -> None:
    """Keep the libraries' own progress bars and advice off the screen."""
    try:
        from transformers.utils import logging
    except ImportError:
        raise UserError(
            "this needs transformers, which is not installed; "
            "run pip install 'synthesizer-attention[train]'"
        ) from None
    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _print(table: Table) -> None:
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table)


def _tell(text: str) -> None:
    """A sentence, which a terminal shows without breaking words."""
    text = printable(text)
    if sys.stdout.isatty():
        text = fill(text, shutil.get_terminal_size().columns - 1, break_on_hyphens=False)
    _say(text)


def _note(text: str) -> None:
    """What stands beside the output, so that the output can be piped."""
    sys.stderr.write(printable(text, lines=True) + "\n")


def _say(text: str) -> None:
    sys.stdout.write(printable(text, lines=True) + "\n")
    sys.stdout.flush()
