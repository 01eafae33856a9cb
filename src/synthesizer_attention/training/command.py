"""synthesizer train, evaluate and generate."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from synthesizer_attention.run.console import (
    MOST,
    Imports,
    Overrides,
    Plain,
    Track,
    Verify,
    check_choice,
    say,
    say_aside,
    silence_libraries,
)
from synthesizer_attention.spec import import_modules
from synthesizer_attention.untrusted import printable

RunDir = Annotated[Path, typer.Argument(help="A run directory.")]
Weights = Annotated[
    str | None,
    typer.Option(
        "--checkpoint", help="Weights: best, last or averaged; by default those in model/."
    ),
]
CHECKPOINTS = (None, "best", "last", "averaged")


def train(
    recipe: Annotated[str, typer.Argument(help="A built-in recipe, or a .toml file.")],
    synthesis: Annotated[
        str | None, typer.Option(help="Synthesizing function: random, random+dot, ... (see list).")
    ] = None,
    overrides: Overrides = None,
    imports: Imports = None,
    out: Annotated[
        Path | None, typer.Option(help="Run directory; by default runs/RECIPE/SYNTHESIS/seedN.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Print parameters, FLOPs, data and time; do not train.")
    ] = False,
    plain: Plain = False,
    track: Track = None,
) -> None:
    """Train one recipe, or resume it, in a run directory."""
    from synthesizer_attention.run.recipe import load_recipe
    from synthesizer_attention.run.run import Run, default_path

    loaded = load_recipe(
        recipe, synthesis=synthesis, overrides=overrides or (), imports=imports or ()
    )
    silence_libraries()
    import_modules(loaded.imports)
    if check:
        from synthesizer_attention.training.preview import describe

        for line in describe(loaded):
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


def evaluate(
    run: RunDir,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    checkpoint: Weights = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override an evaluate key: evaluate.beam=8. May be repeated."),
    ] = None,
    imports: Imports = None,
    verify: Verify = True,
) -> None:
    """Evaluate a finished run on a split of its data."""
    import_modules(imports or ())
    check_choice("--split", split, ("train", "validation", "test"))
    check_choice("--checkpoint", checkpoint, CHECKPOINTS)
    silence_libraries()
    from synthesizer_attention.training.finish import measure

    scores = measure(
        run, split, checkpoint, overrides=overrides or (), verify=verify, say=say_aside
    )
    for name, value in scores.metrics.items():
        say(f"{name}\t{value:.4f}\t{scores.signatures.get(name, '')}".rstrip())


def generate(
    run: RunDir,
    beam: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Number of beams; 1 is greedy.")
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Sample instead of beam search.")
    ] = False,
    batch_size: Annotated[
        int, typer.Option(min=1, max=MOST, metavar="N", help="Input lines per batch.")
    ] = 16,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, max=MOST, metavar="N", help="Maximum number of new tokens.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, metavar="N", help="Random seed for --sample.")
    ] = 1,
    checkpoint: Weights = None,
    imports: Imports = None,
    verify: Verify = True,
) -> None:
    """Generate one line of stdout for each line of stdin, in order.

    An invalid input line gives an error on stderr with its number, and an empty output line. A line
    break in an output is written as \\n. A classifier prints every label and its probability.
    """
    import_modules(imports or ())
    check_choice("--checkpoint", checkpoint, CHECKPOINTS)
    silence_libraries()
    import torch

    from synthesizer_attention.run.run import Run
    from synthesizer_attention.training.generate import Answerer, Asked

    torch.manual_seed(seed)
    asked = Asked(beam, sample, batch_size, max_new_tokens)
    answerer = Answerer(Run(run), asked, checkpoint, verify=verify)
    for number, answer in enumerate(answerer.answer(sys.stdin.buffer), start=1):
        if answer.error is not None:
            say_aside(f"synthesizer: line {number}: {printable(answer.error)}")
        if sys.stdout.isatty():
            say(answer.text)
        else:  # a file gets the very answer
            sys.stdout.write(answer.text + "\n")
            sys.stdout.flush()
