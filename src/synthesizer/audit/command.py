"""synthesizer audit, convert."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from synthesizer.experiment.console import MOST, say, say_aside, silence_libraries


def audit(
    model: Annotated[
        str, typer.Argument(help="A folder of a Hugging Face model, a run, or a hub name.")
    ],
    data: Annotated[
        Path | None,
        typer.Argument(
            help="Texts to measure on: .csv, .txt, ..., or a folder of images; of a run, its own."
        ),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="loss, accuracy, spearman or agreement; else by the model.")
    ] = None,
    keep: Annotated[float, typer.Option(help="The share of the metric's value to keep.")] = 0.99,
    fit: Annotated[
        Path | None, typer.Option(help="What to average and rank on; else half of DATA.")
    ] = None,
    max_len: Annotated[
        int | None,
        typer.Option(min=2, max=MOST, help="Tokens of a text; longer ones are cut, and counted."),
    ] = None,
    examples: Annotated[
        int | None, typer.Option(min=2, max=MOST, help="Examples that judge; by default all.")
    ] = None,
    fit_examples: Annotated[
        int, typer.Option(min=1, max=MOST, help="Examples that are averaged.")
    ] = 1000,
    rank_examples: Annotated[
        int, typer.Option(min=2, max=MOST, help="Examples that rank heads.")
    ] = 100,
    rankings: Annotated[int, typer.Option(min=1, max=MOST, help="How often heads are ranked.")] = 3,
    steps: Annotated[int, typer.Option(min=1, max=MOST, help="Points of the curve.")] = 12,
    table: Annotated[
        str, typer.Option(help="relative (by distance) or random (by position).")
    ] = "relative",
    length: Annotated[
        list[int] | None,
        typer.Option(min=1, max=MOST, help="Time texts of this length; repeatable."),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Random seed of the split and the control.")
    ] = 0,
    out: Annotated[Path, typer.Option(help="Output directory.")] = Path("audit"),
) -> None:
    """Measure which heads of a pretrained Transformer need their dot products.

    Replaces heads by their average attention, measures the cost, and says how many can be replaced.
    Stopped, the same command goes on behind what it has measured.
    """
    silence_libraries()
    from synthesizer.audit.run import audit as measure
    from synthesizer.audit.subject import Asked

    asked = Asked(
        model=model,
        data=data,
        out=out,
        metric=metric,
        keep=keep,
        fit=fit,
        max_len=max_len,
        examples=examples,
        fit_examples=fit_examples,
        rank_examples=rank_examples,
        rankings=rankings,
        steps=steps,
        table=table,
        lengths=tuple(length or ()),
        seed=seed,
        command=shlex.join(["synthesizer", *sys.argv[1:]]),
    )
    record = measure(asked, say_aside)
    say(f"{record['sentence']} {record['ended']}".rstrip())
    say(str(out / "report.html"))


def convert(
    path: Annotated[Path, typer.Argument(metavar="AUDIT", help="The folder of an audit.")],
    out: Annotated[Path, typer.Option(help="The new model's folder.")],
    heads: Annotated[int | None, typer.Option(help="How many heads become tables.")] = None,
    keep: Annotated[
        float | None, typer.Option(help="As many as keep this share of the metric's value.")
    ] = None,
    tune: Annotated[
        int, typer.Option(min=0, max=MOST, help="Steps that fit tables to the original.")
    ] = 0,
    tune_all: Annotated[bool, typer.Option("--tune-all", help="Fit all weights.")] = False,
    tune_rate: Annotated[
        float, typer.Option(min=0, help="Learning rate of --tune-all's weights.")
    ] = 3e-4,
    texts: Annotated[Path | None, typer.Option(help="What --tune reads, unlabelled.")] = None,
) -> None:
    """Write a model in which replaced heads have no query and no key projection.

    It loads with from_pretrained after `import synthesizer.models`.
    """
    silence_libraries()
    from synthesizer.audit.convert import Asked
    from synthesizer.audit.convert import convert as write
    from synthesizer.audit.tune import Tuning

    command = shlex.join(["synthesizer", *sys.argv[1:]])
    tuning = Tuning(tune, everything=tune_all, rate=tune_rate) if tune else None
    asked = Asked(path, out, heads, keep, tuning, texts, command)
    count = write(asked, say_aside)
    say(f"{count} heads replaced: {out}")
