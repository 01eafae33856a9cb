"""synthesizer compare."""

import shlex
import sys
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from synthesizer.experiment.console import (
    Imports,
    Overrides,
    Plain,
    Track,
    check_choice,
    say,
    say_aside,
    say_wrapped,
)

PLANS = ("commands", "slurm")


def name_plan(words: list[str]) -> list[str]:
    """The words of a command line, where --plan alone means --plan commands."""
    named = []
    for word, after in pairwise([*words, ""]):
        named += [word, PLANS[0]] if word == "--plan" and after not in PLANS else [word]
    return named


def compare(
    recipe: Annotated[
        str, typer.Argument(help="A built-in recipe, a .toml file, or your data: .csv, .txt, ...")
    ] = "python-docs",
    synthesis: Annotated[
        list[str] | None,
        typer.Option(
            help="A variant to train, with settings of its own where wanted: "
            "dot@model.positions=rotary. May be repeated. By default the paper's Table 2."
        ),
    ] = None,
    positions: Annotated[
        list[str] | None,
        typer.Option(help="Train every variant with these positions; may be repeated."),
    ] = None,
    opponent: Annotated[
        str,
        typer.Option(
            help="Positions of the dot product that the others are compared with; auto chooses "
            "them on validation, configured keeps the recipe's."
        ),
    ] = "auto",
    seeds: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Random seeds per variant; by default 3.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, max=1024, help="Worker processes; by default one per GPU, else one per core."
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Run on a Ray cluster: auto, or its head's HOST:PORT."
        ),
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option(min=0, help="GPUs per worker: 0.5 lets two share one; 0 uses none."),
    ] = None,
    match: Annotated[
        str,
        typer.Option(
            help="Give all variants dot's budget: params or flops through d_ff, time through the "
            "number of steps; or none."
        ),
    ] = "none",
    until_decided: Annotated[
        bool,
        typer.Option(
            "--until-decided", help="Add seeds at planned looks (3, 5, 8, 12) until all is decided."
        ),
    ] = False,
    confirm: Annotated[
        str | None,
        typer.Option(
            metavar="3x", help="Then train rows that still come closer to dot three times as long."
        ),
    ] = None,
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
            min=0, max=1e9, help="How much worse is still no worse; by default per metric."
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
        typer.Option(help="Recipe that pretrains each variant first; RECIPE then fine-tunes it."),
    ] = None,
    pretrain_set: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Change a key of the --pretrain recipe."),
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
            metavar="N", min=2, max=16, help="Train every variant at N sizes, RECIPE's the largest."
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(metavar="ROW", help="Also compare all rows with this one; may be repeated."),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="[slurm]", help="Print one train command per run, or a Slurm array script."
        ),
    ] = None,
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
    from synthesizer.errors import UserError
    from synthesizer.report.command import print_report
    from synthesizer.report.write import closing_rows
    from synthesizer.study import compare as study
    from synthesizer.study.asked import Asked
    from synthesizer.study.confirm import confirm as confirm_longer
    from synthesizer.study.confirm import parse_times

    asked = Asked(
        recipe=recipe,
        syntheses=tuple(synthesis or ()),
        positions=tuple(positions or ()),
        opponent=opponent,
        until_decided=until_decided,
        seeds=seeds,
        jobs=jobs,
        cluster=cluster,
        gpus=gpus,
        track=track,
        match=match,
        tune=tune,
        margin=margin,
        quick=quick,
        baselines=baselines,
        controls=controls,
        pretrain=pretrain,
        pretrain_overrides=tuple(pretrain_set or ()),
        vary=tuple(vary or ()),
        ladder=ladder,
        against=tuple(against or ()),
        overrides=tuple(overrides or ()),
        imports=tuple(imports or ()),
        out=out,
        command=shlex.join(["synthesizer", *sys.argv[1:]]),
    )
    check_choice("--plan", plan, (None, *PLANS))
    times = None if confirm is None else parse_times(confirm)
    if times is not None and (plan or quick):
        raise UserError("--confirm needs the verdict of whole runs; leave out --plan and --quick")
    if plan == "slurm":
        say(study.slurm_script(asked, say_aside))
        return
    if plan:
        for line in study.list_commands(asked, say_aside):
            say(line)
        return
    planned = study.compare(asked, say_wrapped, plain=plain)
    if times is not None:
        dots, closing = closing_rows(planned.out)
        confirm_longer(planned, dots, closing, times, say_wrapped, plain=plain)
    say_wrapped("reading the runs for the table and the report ...")
    print_report([planned.out])
