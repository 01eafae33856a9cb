"""The command line: every verb and its options, each said once.

A verb imports what it needs when it is called, so that --help, list and recipes start at once. The
names of a verb's parameters are the fields of the record that it fills.
"""

import io
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from synthesizer_attention import __version__
from synthesizer_attention.errors import UserError, is_out_of_memory, printable
from synthesizer_attention.run.files import DISK
from synthesizer_attention.run.progress import (
    Interrupted,
    print_table,
    say,
    say_aside,
    say_wrapped,
    silence_libraries,
)
from synthesizer_attention.spec import ALIASES, import_modules, load_packaged, variants

MOST = 2**31 - 1  # torch and Python's own functions count no further
SEEDS = 2**63 - 1
NONE: list[Any] = []

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def number(
    help: str,
    *names: str,
    least: float = 1,
    most: float = MOST,
    kind: Callable[[str], float] = int,
) -> Any:  # noqa: ANN401
    """An option for a number between bounds, which its help leaves out."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            name = "a whole number" if kind is int else "a number"
            raise typer.BadParameter(f"{str(text)[:40]!r} is not {name}") from None
        if not least <= value <= most:
            raise typer.BadParameter(f"{text} is not between {least} and {most}")
        return value

    return typer.Option(*names, parser=parse, metavar="N", help=help)


def flag(name: str, help: str) -> Any:  # noqa: ANN401
    """A switch without its opposite."""
    return typer.Option(name, help=help)


RunDir = Annotated[Path, typer.Argument(help="A run directory.")]
Weights = Annotated[
    str | None,
    typer.Option("--checkpoint", help="Use the best, last or averaged weights, not model/."),
]
Overrides = Annotated[
    list[str], typer.Option("--set", help="Change a recipe key: train.steps=100. Repeatable.")
]
Imports = Annotated[
    list[str], typer.Option("--import", help="Import a module or .py file of yours. Repeatable.")
]
Verify = Annotated[
    bool, typer.Option("--verify/--no-verify", help="Compare the run's files with their sha256.")
]
Track = Annotated[
    str | None, typer.Option(metavar="NAME", help="Also log to tensorboard, wandb, mlflow, ...")
]
Live = Annotated[
    bool, flag("--live", "Also write play.html, a page in which the report's models run.")
]
Plain = Annotated[bool, flag("--plain", "Print plain lines instead of a progress bar.")]


def _record(options: dict[str, Any], *without: str) -> dict[str, Any]:
    """A verb's options as fields of a record, with the command that gave them."""
    lists = {name: tuple(value) for name, value in options.items() if isinstance(value, list)}
    given = {**options, **lists, "command": shlex.join(["synthesizer", *sys.argv[1:]])}
    return {name: value for name, value in given.items() if name not in without}


def _check_choice(option: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise UserError(f"{option} is {value!r}; choose from {', '.join(allowed)}")


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
def list_variants(imports: Imports = NONE) -> None:
    """List the variants: what each computes, learns and depends on."""
    import_modules(imports)
    for line in load_packaged():
        say_aside(f"synthesizer: {line}")
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
    from synthesizer_attention.run.recipe import load_recipe, recipe_names, summarize

    table = Table("name", "task", "data", "size", "rough cost")
    for name in recipe_names():
        table.add_row(*map(escape, summarize(load_recipe(name))))
    print_table(table)
    say("`synthesizer train NAME --check` prints parameters, FLOPs, data and time.")


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A built-in recipe, or a .toml file.")],
    synthesis: Annotated[
        str | None, typer.Option(help="Train this variant: random, random+dot, ... (see list).")
    ] = None,
    overrides: Overrides = NONE,
    imports: Imports = NONE,
    out: Annotated[
        Path | None, typer.Option(help="Run directory; by default runs/RECIPE/SYNTHESIS/seedN.")
    ] = None,
    check: Annotated[
        bool, flag("--check", "Print parameters, FLOPs, data and time; do not train.")
    ] = False,
    prepare: Annotated[
        bool, flag("--prepare", "Encode the data into the cache; do not train.")
    ] = False,
    plain: Plain = False,
    track: Track = None,
) -> None:
    """Train one recipe, or resume it, in a run directory."""
    from synthesizer_attention.run.recipe import load_recipe
    from synthesizer_attention.run.run import Run, default_path

    loaded = load_recipe(recipe, synthesis=synthesis, overrides=overrides, imports=imports)
    silence_libraries()
    import_modules(loaded.imports)
    if check:
        from synthesizer_attention.training.preview import describe

        for line in describe(loaded):
            say(line)
        return
    if prepare:
        from synthesizer_attention.data.cache import cache_folder, check_own
        from synthesizer_attention.tasks import build_task
        from synthesizer_attention.training.preview import describe_data

        check_own(cache_folder())
        for line in describe_data(build_task(loaded)):
            say(line)
        return
    from synthesizer_attention.run.progress import open_progress
    from synthesizer_attention.training.loop import fit

    run = Run(out or default_path(loaded))
    progress = open_progress(plain=plain)
    try:
        result = fit(loaded, run, progress, tracker=track)
    finally:
        progress.close()
    if result:
        name = result["main_metric"]
        say(f"{run.path}  test {name} {result['metrics'][name]:.4f}")


CHECKPOINTS = ("best", "last", "averaged")


@app.command()
def evaluate(
    run: RunDir,
    split: Annotated[str, typer.Option(help="Score train, validation or test.")] = "test",
    checkpoint: Weights = None,
    overrides: Annotated[
        list[str],
        typer.Option("--set", help="Change an evaluate key: evaluate.beam=8. Repeatable."),
    ] = NONE,
    imports: Imports = NONE,
    verify: Verify = True,
) -> None:
    """Evaluate a finished run on a split of its data."""
    import_modules(imports)
    _check_choice("--split", split, ("train", "validation", "test"))
    _check_choice("--checkpoint", checkpoint, CHECKPOINTS)
    silence_libraries()
    from synthesizer_attention.training.finish import measure

    scores = measure(run, split, checkpoint, overrides=overrides, verify=verify, say=say_aside)
    for name, value in scores.metrics.items():
        say(f"{name}\t{value:.4f}\t{scores.signatures.get(name, '')}".rstrip())


@app.command()
def generate(
    run: RunDir,
    beam: Annotated[int | None, number("Search with N beams; 1 is greedy.", most=1024)] = None,
    sample: Annotated[bool, flag("--sample", "Sample instead of beam search.")] = False,
    batch_size: Annotated[int, number("Read N lines per batch.")] = 16,
    max_new_tokens: Annotated[int | None, number("Generate at most N tokens.")] = None,
    seed: Annotated[int, number("Random seed for --sample.", least=0, most=SEEDS)] = 1,
    checkpoint: Weights = None,
    imports: Imports = NONE,
    verify: Verify = True,
) -> None:
    """Generate one line of stdout for each line of stdin, in order.

    An invalid input line gives an error on stderr with its number, and an empty output line. A line
    break in an output is written as \\n. A classifier prints every label and its probability.
    """
    import_modules(imports)
    _check_choice("--checkpoint", checkpoint, CHECKPOINTS)
    silence_libraries()
    import torch

    from synthesizer_attention.run.run import Run
    from synthesizer_attention.training.generate import Answerer

    torch.manual_seed(seed)
    answerer = Answerer(Run(run), checkpoint, verify=verify, beam=beam, sample=sample,
                        batch_size=batch_size, max_new_tokens=max_new_tokens)  # fmt: skip
    for line, (text, error) in enumerate(answerer.answer(sys.stdin.buffer), start=1):
        if error is not None:
            say_aside(f"synthesizer: line {line}: {printable(error)}")
        if sys.stdout.isatty():
            say(text)
        else:  # a file gets the very answer
            sys.stdout.write(text + "\n")
            sys.stdout.flush()


@app.command()
def compare(
    recipe: Annotated[
        str, typer.Argument(help="A built-in recipe, a .toml file, or your data: .csv, .txt, ...")
    ] = "python-docs",
    syntheses: Annotated[
        list[str],
        typer.Option(
            "--synthesis",
            help="Train this variant, with settings of its own: dot@model.positions=rotary. "
            "Repeatable. By default the paper's Table 2.",
        ),
    ] = NONE,
    opponent: Annotated[
        str,
        typer.Option(
            help="Position encoding of the dot product to compare with; auto chooses "
            "it on validation, configured keeps the recipe's."
        ),
    ] = "auto",
    seeds: Annotated[
        int | None,
        number("Train N seeds per variant, and dot with more; by default 3.", most=333),
    ] = None,
    jobs: Annotated[
        str | None,
        typer.Option(
            metavar="N|ray:ADDRESS",
            help="Start N worker processes (by default one per GPU, else one per core), or use a "
            "Ray cluster: ray:auto, ray:HOST:PORT, ray:auto,gpus=0.5 for two workers a GPU.",
        ),
    ] = None,
    match: Annotated[
        str, typer.Option(help="Give all variants dot's params or flops through d_ff; or none.")
    ] = "none",
    until_decided: Annotated[
        bool,
        flag(
            "--until-decided",
            "Add seeds at planned looks (3, 5, 8, 12) until every row is decided.",
        ),
    ] = False,
    tune: Annotated[
        int | None,
        number(
            "Search learning rates with N trials per variant, and train the best two again; "
            "by default 6, with --quick none.",
            least=0,
            most=1000,
        ),
    ] = None,
    margin: Annotated[
        float | None,
        number(
            "Non-inferiority margin in points of the metric; by default set per metric.",
            least=0,
            most=1e9,
            kind=float,
        ),
    ] = None,
    quick: Annotated[
        bool, flag("--quick", "Train five rows for a fifth of the steps, without a search.")
    ] = False,
    baselines: Annotated[
        bool, flag("--baselines", "Also train lightconv, dynamicconv, linformer, Universal.")
    ] = False,
    controls: Annotated[
        bool,
        flag(
            "--controls",
            "With --synthesis: also train dot under other seeds (A/A) and as large as random+dot, "
            "as the default table does.",
        ),
    ] = False,
    pretrain: Annotated[
        str | None,
        typer.Option(
            help="Pretrain each variant with this recipe; RECIPE then fine-tunes it. "
            "--set pretrain.KEY=VALUE changes a key of it."
        ),
    ] = None,
    vary: Annotated[
        list[str],
        typer.Option(metavar="KEY=V1,V2", help="Train every variant with each value. Repeatable."),
    ] = NONE,
    ladder: Annotated[
        int | None,
        number("Train every variant at N sizes; RECIPE is the largest.", least=2, most=16),
    ] = None,
    against: Annotated[
        list[str],
        typer.Option(metavar="ROW", help="Also compare all rows with this one. Repeatable."),
    ] = NONE,
    primary: Annotated[
        str | None,
        typer.Option(
            metavar="ROW",
            help="Judge this row first, with half of the error rate; by default the best row "
            "without dot product on validation.",
        ),
    ] = None,
    check: Annotated[
        bool, flag("--check", "Print rows, seeds, power and time; run nothing.")
    ] = False,
    plan: Annotated[bool, flag("--plan", "Print one train command per run; run nothing.")] = False,
    live: Live = False,
    track: Track = None,
    overrides: Overrides = NONE,
    imports: Imports = NONE,
    plain: Plain = False,
    out: Annotated[
        Path | None, typer.Option(help="Study directory; by default runs/RECIPE-HASH.")
    ] = None,
) -> None:
    """Find out whether a task needs dot-product attention: train every variant, and report.

    An interrupted comparison continues when the same command is run again.
    """
    options = _record(locals(), "plan", "plain", "check", "live")
    if live and (check or plan):
        raise UserError("--live shows trained models, and nothing is trained; leave it out")
    from synthesizer_attention.study import compare as study
    from synthesizer_attention.study.rows import Asked

    asked = Asked(**options)
    if check:
        study.check_plan(asked, say_wrapped)
        return
    if plan:
        for line in study.list_commands(asked, say_aside):
            say(line)
        return
    planned = study.compare(asked, say_wrapped, plain=plain)
    say_wrapped("reading the runs for the table and the report ...")
    _print_report([planned.out], live=live)


@app.command()
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
    live: Live = False,
    imports: Imports = NONE,
    verify: Verify = True,
) -> None:
    """Write report.html, report.md and table.csv from run directories.

    Of an audit's directory: draw its report.html again.
    """
    import_modules(imports)
    if any((path / "audit.json").exists() for path in dirs):
        if len(dirs) > 1 or live:
            raise UserError("an audit has a page of its own; name its directory alone")
        from synthesizer_attention.audit.page import draw_again

        say(str(draw_again(dirs[0], out)))
        return
    _print_report(dirs, out, verify=verify, live=live)


def _print_report(
    dirs: list[Path], out: Path | None = None, *, verify: bool = True, live: bool = False
) -> None:
    """Write the report of runs; print its tables, answers and path."""
    from synthesizer_attention.report.tables import advice, brief
    from synthesizer_attention.report.write import summarize_all, write
    from synthesizer_attention.study.rows import DOT

    summaries = summarize_all(dirs, verify=verify)
    home, beside = out or dirs[0], ""
    if live:
        silence_libraries()
        from synthesizer_attention.play.export import live as write_live

        say_aside("writing the live page ...")
        beside = write_live(summaries, home / "play.html", say_aside).name
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
        if words := advice(summary):
            say_wrapped(words)
    say_aside("writing the report ...")
    say(str(write(summaries, home, beside)))


@app.command()
def play(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Finished run directories.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("play.html"),
) -> None:
    """Write one offline page in which trained models run: type a text, see where they attend.

    The page shows each model's guesses and bits per byte, its answer or its class; the attention
    map of every head, a mixture's parts with their alphas, and what it costs to swap a head for
    its mean over train text. It holds the weights, in float16, and three texts of the test data.
    """
    silence_libraries()
    from synthesizer_attention.play.export import play as write_page

    path = write_page(runs, out)
    say(f"{path}  {path.stat().st_size / 1e6:.1f} MB")


@app.command()
def bench(
    variants: Annotated[
        list[str], typer.Option("--variant", help="Time this variant. Repeatable.")
    ] = NONE,
    modes: Annotated[
        list[str],
        typer.Option(
            "--mode",
            help="Time train, inference, lm, classifier, seq2seq, decode, or translate (decoding "
            "by an encoder-decoder). Repeatable.",
        ),
    ] = NONE,
    views: Annotated[
        list[str], typer.Option("--view", help="Mask causal, full or padded. Repeatable.")
    ] = NONE,
    lengths: Annotated[list[int], number("Sequence length. Repeatable.", "--length")] = NONE,
    tokens: Annotated[int, number("Tokens per batch.")] = 4096,
    d_model: Annotated[int, number("Model width.")] = 512,
    num_heads: Annotated[int, number("Attention heads.")] = 8,
    num_layers: Annotated[int, number("Layers, in modes with a model.", most=1024)] = 6,
    rounds: Annotated[int, number("Timing rounds over all variants.")] = 5,
    threads: Annotated[str, typer.Option(help="CPU threads; several as 1,2.")] = "1",
    vocab_size: Annotated[int, number("Vocabulary size, in modes with a model.", least=3)] = 8000,
    positions: Annotated[
        str, typer.Option(help="Position encoding, in modes with a model.")
    ] = "sinusoidal",
    window: Annotated[int, number("Sliding window, in modes with a model; 0: none.", least=0)] = 0,
    small: Annotated[
        bool,
        flag(
            "--small",
            "Use the sizes of the recipe python-docs: width 64, 4 heads, 2 layers, length 64, "
            "batch 32, vocabulary 260.",
        ),
    ] = False,
    compiled: Annotated[
        bool, flag("--compile", "Also time everything compiled; in mode decode, a compiled peer.")
    ] = False,
    precision: Annotated[
        str, typer.Option(help="float32, bfloat16 (by autocast), or both as float32,bfloat16.")
    ] = "float32",
    device: Annotated[str, typer.Option(help="Run on cpu or cuda.")] = "cpu",
    peers: Annotated[
        bool,
        flag("--peers", "Also time PyTorch's attention and fused dot, GPT-2, Llama and Marian."),
    ] = False,
    growth: Annotated[
        bool,
        flag(
            "--growth",
            "Time one sequence of length 128 to 16,384, then of width 64 to 2,048 (all doublings).",
        ),
    ] = False,
    explain: Annotated[
        bool, flag("--explain", "Print the path each variant takes; time nothing.")
    ] = False,
    imports: Imports = NONE,
    out: Annotated[Path, typer.Option(help="Output directory.")] = Path("bench"),
    plain: Plain = False,
) -> None:
    """Time every variant against dot-product attention, in the same rounds."""
    options = _record(locals(), "small", "explain", "imports", "out", "plain")
    import_modules(imports)
    silence_libraries()
    from synthesizer_attention.bench import cases, measure, page
    from synthesizer_attention.bench.plan import SMALL, Plan

    command = options.pop("command")
    options = {name: value for name, value in options.items() if value != ()}
    plan = Plan(**{**options, **(SMALL if small else {})})
    if explain:
        table = Table("variant", "mask", "length", "path", "reason")
        for line in cases.explain(plan):
            table.add_row(*map(escape, line))
        print_table(table)
        return
    from synthesizer_attention.run.files import make_folder
    from synthesizer_attention.run.progress import open_count

    make_folder(out)
    with open_count(plain=plain) as tell:
        result = measure.bench(plan, tell)
    for row in result.rows:
        shown = page.cells(row)
        where = f"{row.mode} {row.view} T={row.length} D={row.d_model} {row.precision}"
        say(f"{where:40} {shown[0]:28} {shown[1]:>6} x dot ({shown[2]})  {shown[3]} ms")
    say(str(page.write(result, command, out)))


@app.command()
def audit(
    model: Annotated[
        str, typer.Argument(help="A folder of a Hugging Face model, a run, or a hub name.")
    ],
    data: Annotated[
        Path | None,
        typer.Argument(
            help="Data to measure on: .csv, .txt, ..., or a folder of images. A run brings its own."
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Measure loss, accuracy, spearman or agreement; by default the model's own."
        ),
    ] = None,
    keep: Annotated[float, typer.Option(help="Fraction of the metric to preserve.")] = 0.99,
    fit: Annotated[
        Path | None,
        typer.Option(help="Data to average attention and rank heads on; by default half of DATA."),
    ] = None,
    max_len: Annotated[int | None, number("Truncate texts to N tokens.", least=2)] = None,
    examples: Annotated[
        int | None, number("Examples in the final evaluation; by default all.", least=2)
    ] = None,
    fit_examples: Annotated[int, number("Average attention over N examples.")] = 1000,
    rank_examples: Annotated[int, number("Rank heads on N examples.", least=2)] = 100,
    rankings: Annotated[int, number("Rank heads N times, again as more are replaced.")] = 3,
    steps: Annotated[int, number("Points on the curve.")] = 12,
    table: Annotated[
        str, typer.Option(help="Tables: relative (by distance) or random (by position).")
    ] = "relative",
    lengths: Annotated[
        list[int], number("Time sequences of N tokens. Repeatable.", "--length")
    ] = NONE,
    seed: Annotated[
        int, number("Random seed of the split and the random order.", least=0, most=SEEDS)
    ] = 0,
    out: Annotated[Path, typer.Option(help="Output directory.")] = Path("audit"),
) -> None:
    """Measure which heads of a pretrained Transformer need their dot products.

    Replaces heads by their average attention, measures the cost, and says how many can be replaced.
    An interrupted audit resumes when the same command is run again.
    """
    options = _record(locals())
    silence_libraries()
    from synthesizer_attention.audit.run import Asked
    from synthesizer_attention.audit.run import audit as measure

    record = measure(Asked(**options), say_aside)
    say(f"{record['sentence']} {record['ended']}".rstrip())
    say(str(out / "report.html"))


@app.command()
def convert(
    audit: Annotated[Path, typer.Argument(help="Directory of an audit.")],
    out: Annotated[Path, typer.Option(help="Directory of the new model.")],
    heads: Annotated[int | None, typer.Option(help="Replace so many heads.")] = None,
    keep: Annotated[
        float | None,
        typer.Option(help="Replace as many heads as preserve this fraction of the metric."),
    ] = None,
    tune: Annotated[int, number("Distil from the original model for N steps.", least=0)] = 0,
    tune_all: Annotated[bool, flag("--tune-all", "Tune all weights, not only the tables.")] = False,
    tune_rate: Annotated[
        float, number("Learning rate of all other weights, with --tune-all.", least=0, kind=float)
    ] = 3e-4,
    texts: Annotated[Path | None, typer.Option(help="Unlabelled texts for --tune.")] = None,
) -> None:
    """Write a model in which replaced heads have no query and no key projection.

    It loads with from_pretrained after `import synthesizer_attention.models`.
    """
    options = _record(locals(), "tune", "tune_all", "tune_rate")
    silence_libraries()
    from synthesizer_attention.audit.convert import convert as write
    from synthesizer_attention.audit.tune import Tuning

    tuning = Tuning(tune, everything=tune_all, rate=tune_rate) if tune else None
    count = write(say=say_aside, tuning=tuning, **options)
    say(f"{count} heads replaced: {out}")


@app.command()
def export(
    model: Annotated[
        str, typer.Argument(help="A folder of a model, a run of synthesizer train, or a hub name.")
    ],
    out: Annotated[Path, typer.Option(help="Directory of the graphs.")],
    lengths: Annotated[
        list[int], number("Time sequences of N tokens. Repeatable.", "--length")
    ] = NONE,
    beside: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Time this model in the same rounds.")
    ] = None,
) -> None:
    """Write an encoder or a classifier as ONNX, in float32 and int8, and compare its outputs."""
    options = _record(locals())
    silence_libraries()
    from synthesizer_attention.audit.export import export as write

    for row in write(say=say, **options).get("milliseconds", []):
        shown = [f"{name} {ms:.1f} ms" for name, ms in list(row.items())[2:]]
        say(f"{row['batch']} x {row['length']} tokens: {', '.join(shown)}")
    say(str(out))


@app.command()
def transfer(
    model: Annotated[
        str, typer.Argument(help="A folder of a Hugging Face encoder, or a hub name.")
    ],
    train: Annotated[
        Path, typer.Argument(help="Texts or pairs with a label or score: .csv, .jsonl, .parquet.")
    ],
    test: Annotated[Path, typer.Argument(help="The same, for the final evaluation.")],
    synthesis: Annotated[
        list[str],
        typer.Option(
            help="Compare this attention; kept is the original's. Repeatable; by default kept, dot,"
            " random, dense, random+dot, dense+dot, none."
        ),
    ] = NONE,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Judge by accuracy, macro_f1, matthews, f1, pearson or spearman; by default "
            "pearson for scores, accuracy for labels."
        ),
    ] = None,
    apart: Annotated[
        bool, flag("--apart", "Encode the texts of a pair apart and learn their cosine.")
    ] = False,
    layers: Annotated[int | None, number("Use the first N layers.")] = None,
    max_len: Annotated[int, number("Truncate inputs to N tokens.", least=2)] = 128,
    distil: Annotated[int, number("Distil each new attention for N steps.")] = 300,
    distil_rate: Annotated[
        float, number("Learning rate of distillation.", least=0, kind=float)
    ] = 1e-3,
    distil_table_rate: Annotated[
        float, number("Learning rate of tables in distillation.", least=0, kind=float)
    ] = 3e-2,
    steps: Annotated[int, number("Fine-tune for N steps.", least=3)] = 300,
    rate: Annotated[float, number("Learning rate of fine-tuning.", least=0, kind=float)] = 1e-4,
    table_rate: Annotated[
        float, number("Tables learn N times as fast in fine-tuning.", least=0, kind=float)
    ] = 1.0,
    examples: Annotated[
        int | None, number("Use N examples of TRAIN, drawn once.", least=20)
    ] = None,
    seeds: Annotated[int, number("Seeds per row.")] = 3,
    seed: Annotated[int, number("First seed.", least=0, most=2**31)] = 1,
    margin: Annotated[
        float | None,
        number("A row is no worse within N points of the metric.", least=0, kind=float),
    ] = None,
    out: Annotated[Path, typer.Option(help="Output directory.")] = Path("transfer"),
) -> None:
    """Swap the attention of a pretrained encoder, distil it, fine-tune it, and judge it.

    Rows are compared with a dot product that was drawn anew and distilled as long.
    An interrupted transfer resumes when the same command is run again.
    """
    options = _record(locals())
    silence_libraries()
    from synthesizer_attention.audit.transfer import Asked
    from synthesizer_attention.audit.transfer import transfer as perform

    perform(Asked(**options), say_aside)
    _print_report([out])


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
        app(args=sys.argv[1:] if arguments is None else arguments, prog_name="synthesizer")
        return 0
    except UserError as error:
        said = str(error)
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
        said = f"this needs {name}, which is not installed; {install}"
    except (MemoryError, RuntimeError, OSError) as error:
        if is_out_of_memory(error):
            cause = str(error).partition("\n")[0][:200] or type(error).__name__
            advice = "ask for a smaller model, batch or length"
            said = f"this machine has too little memory ({cause}); {advice}"
        elif isinstance(error, OSError) and error.errno in DISK:
            where = str(error.filename or "the disk")[:200]
            said = f"{where}: {error.strerror}; {DISK[error.errno]}"
        else:
            raise
    say_aside(f"synthesizer: error: {printable(said)}")
    return 2
