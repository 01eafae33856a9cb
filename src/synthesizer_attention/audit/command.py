"""synthesizer audit, convert."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from synthesizer_attention.run.console import MOST, say, say_aside, silence_libraries


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
        typer.Option(help="loss, accuracy, spearman or agreement; by default chosen by the model."),
    ] = None,
    keep: Annotated[float, typer.Option(help="Fraction of the metric to preserve.")] = 0.99,
    fit: Annotated[
        Path | None,
        typer.Option(help="Data to average attention and rank heads on; by default half of DATA."),
    ] = None,
    max_len: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=MOST,
            metavar="N",
            help="Maximum length in tokens; longer texts are truncated.",
        ),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(
            min=2, max=MOST, metavar="N", help="Examples in the final evaluation; by default all."
        ),
    ] = None,
    fit_examples: Annotated[
        int, typer.Option(min=1, max=MOST, metavar="N", help="Examples to average attention over.")
    ] = 1000,
    rank_examples: Annotated[
        int, typer.Option(min=2, max=MOST, metavar="N", help="Examples to rank heads on.")
    ] = 100,
    rankings: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST,
            metavar="N",
            help="Number of rankings; heads are ranked again as more are replaced.",
        ),
    ] = 3,
    steps: Annotated[
        int, typer.Option(min=1, max=MOST, metavar="N", help="Points on the curve.")
    ] = 12,
    table: Annotated[
        str, typer.Option(help="relative (by distance) or random (by position).")
    ] = "relative",
    length: Annotated[
        list[int] | None,
        typer.Option(
            min=1, max=MOST, metavar="N", help="Sequence length to time; may be repeated."
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0, max=2**63 - 1, metavar="N", help="Random seed of the split and the random order."
        ),
    ] = 0,
    out: Annotated[Path, typer.Option(help="Output directory.")] = Path("audit"),
) -> None:
    """Measure which heads of a pretrained Transformer need their dot products.

    Replaces heads by their average attention, measures the cost, and says how many can be replaced.
    An interrupted audit resumes when the same command is run again.
    """
    silence_libraries()
    from synthesizer_attention.audit.run import Asked
    from synthesizer_attention.audit.run import audit as measure

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
    path: Annotated[Path, typer.Argument(metavar="AUDIT", help="Directory of an audit.")],
    out: Annotated[Path, typer.Option(help="Directory of the new model.")],
    heads: Annotated[int | None, typer.Option(help="Number of heads to replace.")] = None,
    keep: Annotated[
        float | None,
        typer.Option(help="Replace as many heads as preserve this fraction of the metric."),
    ] = None,
    tune: Annotated[
        int,
        typer.Option(
            min=0, max=MOST, metavar="N", help="Steps of distillation from the original model."
        ),
    ] = 0,
    tune_all: Annotated[
        bool, typer.Option("--tune-all", help="Tune all weights, not only the tables.")
    ] = False,
    tune_rate: Annotated[
        float, typer.Option(min=0, help="Learning rate of all other weights, with --tune-all.")
    ] = 3e-4,
    texts: Annotated[Path | None, typer.Option(help="Unlabelled texts for --tune.")] = None,
) -> None:
    """Write a model in which replaced heads have no query and no key projection.

    It loads with from_pretrained after `import synthesizer_attention.models`.
    """
    silence_libraries()
    from synthesizer_attention.audit.convert import convert as write
    from synthesizer_attention.audit.tune import Tuning

    command = shlex.join(["synthesizer", *sys.argv[1:]])
    tuning = Tuning(tune, everything=tune_all, rate=tune_rate) if tune else None
    count = write(
        path, out, say_aside, heads=heads, keep=keep, tuning=tuning, texts=texts, command=command
    )
    say(f"{count} heads replaced: {out}")
