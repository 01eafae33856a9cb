"""synthesizer bench."""

import re
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.console import (
    MOST,
    Imports,
    Plain,
    print_table,
    say,
    silence_libraries,
)
from synthesizer_attention.spec import import_modules


def bench(
    variants: Annotated[
        list[str] | None, typer.Option("--variant", help="A variant to time; may be repeated.")
    ] = None,
    modes: Annotated[
        list[str] | None,
        typer.Option(
            "--mode", help="train, inference, lm, classifier, seq2seq, decode; may be repeated."
        ),
    ] = None,
    views: Annotated[
        list[str] | None,
        typer.Option("--view", help="Mask: causal, full, padded; may be repeated."),
    ] = None,
    lengths: Annotated[
        list[int] | None,
        typer.Option(
            "--length", min=1, max=MOST, metavar="N", help="Sequence length; may be repeated."
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option(min=1, max=MOST, metavar="N", help="Tokens per batch.")
    ] = 4096,
    d_model: Annotated[int, typer.Option(min=1, max=MOST, metavar="N", help="Model width.")] = 512,
    num_heads: Annotated[
        int, typer.Option(min=1, max=MOST, metavar="N", help="Attention heads.")
    ] = 8,
    num_layers: Annotated[
        int, typer.Option(min=1, max=1024, help="Layers, in modes with a model.")
    ] = 6,
    rounds: Annotated[
        int, typer.Option(min=1, max=MOST, metavar="N", help="Timing rounds over all variants.")
    ] = 5,
    threads: Annotated[str, typer.Option(help="CPU threads; several as 1,2.")] = "1",
    vocab_size: Annotated[
        int,
        typer.Option(min=3, max=MOST, metavar="N", help="Vocabulary size, in modes with a model."),
    ] = 8000,
    small: Annotated[
        bool,
        typer.Option(
            "--small",
            help="The sizes of the recipe python-docs: width 64, 4 heads, 2 layers, length 64, "
            "batch 32, vocabulary 260.",
        ),
    ] = False,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile each sublayer with torch.compile.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    peers: Annotated[
        bool, typer.Option("--peers", help="Also time torch.nn.MultiheadAttention and GPT-2.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print the path each variant takes; time nothing.")
    ] = False,
    imports: Imports = None,
    out: Annotated[Path, typer.Option(help="Output directory.")] = Path("bench"),
    plain: Plain = False,
) -> None:
    """Time every variant against dot-product attention, in the same rounds."""
    import_modules(imports or ())
    silence_libraries()
    from synthesizer_attention.benchmark import measure

    if small:
        d_model, num_heads, num_layers, tokens, vocab_size = 64, 4, 2, 2048, 260
        lengths = [64]
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
        vocab_size=vocab_size,
        threads=_numbers(threads),
        compiled=compiled,
    )
    if explain:
        from synthesizer_attention.benchmark.explain import explain as explain_paths

        table = Table("variant", "mask", "length", "path", "reason")
        for line in explain_paths(plan):
            table.add_row(*map(escape, line))
        print_table(table)
        return
    from synthesizer_attention.benchmark.write import cells, write
    from synthesizer_attention.run.progress import open_count
    from synthesizer_attention.run.run import make_folder

    make_folder(out)
    with open_count(plain=plain) as tell:
        result = measure.bench(plan, tell)
    for row in result.rows:
        shown = cells(row)
        where = f"{row.mode} {row.view} T={row.length}"
        say(f"{where:28} {shown[0]:28} {shown[1]:>6} x dot ({shown[2]})  {shown[3]} ms")
    say(str(write(result, "synthesizer " + " ".join(sys.argv[1:]), out)))


def _numbers(given: str) -> tuple[int, ...]:
    """1,2 as numbers."""
    parts = given.split(",")
    if not all(re.fullmatch("[0-9]{1,4}", part) for part in parts):
        raise UserError(f"--threads is {given!r}; expected numbers such as 1 or 1,2")
    return tuple(dict.fromkeys(map(int, parts)))
