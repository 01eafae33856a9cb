"""synthesizer compare."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from synthesizer_attention.run.console import (
    Imports,
    Overrides,
    Plain,
    Track,
    say,
    say_aside,
    say_wrapped,
)


def compare(
    recipe: Annotated[
        str, typer.Argument(help="A built-in recipe, a .toml file, or your data: .csv, .txt, ...")
    ] = "python-docs",
    synthesis: Annotated[
        list[str] | None,
        typer.Option(
            help="Variant to train, optionally with its own settings: "
            "dot@model.positions=rotary. May be repeated. By default the paper's Table 2."
        ),
    ] = None,
    opponent: Annotated[
        str,
        typer.Option(
            help="Position encoding of the dot product to compare with; auto chooses "
            "it on validation, configured keeps the recipe's."
        ),
    ] = "auto",
    seeds: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Random seeds per variant; by default 3.")
    ] = None,
    jobs: Annotated[
        str | None,
        typer.Option(
            metavar="N|ray:ADDRESS",
            help="Worker processes on this machine (by default one per GPU, else one per core), or "
            "a Ray cluster: ray:auto, ray:HOST:PORT, ray:auto,gpus=0.5 for two workers a GPU.",
        ),
    ] = None,
    match: Annotated[
        str,
        typer.Option(help="Give all variants dot's params or flops through d_ff; or none."),
    ] = "none",
    until_decided: Annotated[
        bool,
        typer.Option(
            "--until-decided",
            help="Add seeds at planned looks (3, 5, 8, 12) until every row is decided.",
        ),
    ] = False,
    tune: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=1000,
            help="Learning-rate search: trials per variant, of which the best two are trained "
            "again; by default 6, with --quick none.",
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1e9,
            help="Non-inferiority margin in points of the metric; by default set per metric.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed and a fifth of the steps; no verdict.")
    ] = False,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines", help="Also train lightconv, dynamicconv, linformer, Universal."
        ),
    ] = False,
    controls: Annotated[
        bool,
        typer.Option(
            "--controls",
            help="With --synthesis: also train dot under other seeds (A/A) and as large as "
            "random+dot, as the default table does.",
        ),
    ] = False,
    pretrain: Annotated[
        str | None,
        typer.Option(
            help="Recipe that pretrains each variant first; RECIPE then fine-tunes it. "
            "--set pretrain.KEY=VALUE changes a key of it."
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V1,V2", help="Train every variant with each value; may be repeated."
        ),
    ] = None,
    ladder: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=2,
            max=16,
            help="Train every variant at N sizes; RECIPE is the largest.",
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(metavar="ROW", help="Also compare all rows with this one; may be repeated."),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print one train command per run, and run nothing.")
    ] = False,
    track: Track = None,
    overrides: Overrides = None,
    imports: Imports = None,
    plain: Plain = False,
    out: Annotated[
        Path | None, typer.Option(help="Study directory; by default runs/RECIPE-HASH.")
    ] = None,
) -> None:
    """Find out whether a task needs dot-product attention: train every variant, and report.

    An interrupted comparison continues when the same command is run again.
    """
    from synthesizer_attention.report.command import print_report
    from synthesizer_attention.study import compare as study
    from synthesizer_attention.study.asked import Asked

    asked = Asked(
        recipe=recipe,
        syntheses=tuple(synthesis or ()),
        opponent=opponent,
        until_decided=until_decided,
        seeds=seeds,
        jobs=jobs,
        track=track,
        match=match,
        tune=tune,
        margin=margin,
        quick=quick,
        baselines=baselines,
        controls=controls,
        pretrain=pretrain,
        vary=tuple(vary or ()),
        ladder=ladder,
        against=tuple(against or ()),
        overrides=tuple(overrides or ()),
        imports=tuple(imports or ()),
        out=out,
        command=shlex.join(["synthesizer", *sys.argv[1:]]),
    )
    if plan:
        for line in study.list_commands(asked, say_aside):
            say(line)
        return
    planned = study.compare(asked, say_wrapped, plain=plain)
    say_wrapped("reading the runs for the table and the report ...")
    print_report([planned.out])
