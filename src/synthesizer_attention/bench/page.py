"""What a benchmark writes: bench.json, bench.csv, and a page of plots and tables."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from textwrap import fill

from matplotlib.ticker import FixedLocator, NullLocator

from synthesizer_attention.bench.growth import growth_plots
from synthesizer_attention.bench.plan import DOT, Result, Row
from synthesizer_attention.report.page import (
    Block,
    Code,
    Figures,
    Glossary,
    Plot,
    Points,
    Section,
    Table,
    Text,
    page,
)
from synthesizer_attention.report.style import (
    BLUE,
    MUTED,
    TEXT,
    End,
    drawing,
    literal,
    look_of,
    name_at_right,
    to_svg,
)
from synthesizer_attention.report.write import write_files

TERMS = {  # the columns of a table, each with its meaning
    "variant": "What makes the attention logits; frozen: with its table's softmax computed once.",
    "times dot": "How many times as fast as dot-product attention, by the best rounds of both.",
    "rounds": "The least and the most of that in one round.",
    "best ms": "Milliseconds of one call in the best round.",
    "tokens/s": "Tokens per second in the best round.",
    "saved MB": "What a forward pass keeps for backward, beside parameters and buffers.",
    "peak MB": "The most memory that one call takes beyond what was there before.",
    "of GEMM": "Arithmetic per second as a share of a large matrix product's on this machine.",
}
SHOWN_MODES = {
    "train": "Training a sublayer",
    "inference": "Inference of a sublayer",
    "lm": "Training a language model",
    "classifier": "Training a classifier",
    "seq2seq": "Training an encoder-decoder",
    "decode": "Decoding",
    "translate": "Decoding by an encoder-decoder",
}


def write(result: Result, command: str, directory: Path) -> Path:
    """Write bench.json, bench.csv and the page with plots; return the page."""
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, [field.name for field in fields(Row)])
    writer.writeheader()
    writer.writerows(asdict(row) for row in result.rows)
    texts = {
        "bench.json": json.dumps({"command": command, **asdict(result)}, indent=1) + "\n",
        "bench.csv": stream.getvalue(),
        "report.html": _page(result, command),
    }
    write_files(directory, texts)
    return directory / "report.html"


def _page(result: Result, command: str) -> str:
    """One section for each mode, mask and precision: its plots, then a table of each length."""
    sections, answers = [], []
    kinds = [(row.mode, row.view, row.precision) for row in result.rows]
    for mode, view, precision in dict.fromkeys(kinds):
        kind = (mode, view, precision)
        rows = [row for row, its in zip(result.rows, kinds, strict=True) if its == kind]
        lower = "" if precision == "float32" else f"in {precision}"
        heading = " ".join(filter(None, (SHOWN_MODES[mode], lower, view and f"({view} mask)")))
        plots = growth_plots(result, rows) if result.plan.growth else plots_of(rows)
        blocks: list[Block] = [Figures(plots)]
        settings = dict.fromkeys((row.length, row.batch, row.d_model, row.threads) for row in rows)
        for length, batch, width, threads in settings:
            here = (length, width, threads)
            own = [row for row in rows if (row.length, row.d_model, row.threads) == here]
            caption = f"{length:,} tokens, batch {batch}, width {width}, "
            caption += _counted(threads, "thread")
            blocks.append(Table(list(TERMS), [*map(cells, own)], caption, TERMS, sortable=True))
        sections.append(Section(heading, blocks))
        others = [row for row in rows if row.variant != DOT]
        for best in sorted(others, key=lambda row: -row.speed)[:1]:
            where = f"{heading}, {best.length:,} tokens"
            answers.append(f"{where}: {best.variant}, {best.speed:.2f} times as fast")
    sections.append(Section("Terms", [Glossary(TERMS)]))
    sections.append(Section("How it was measured", [*_measured(result), Code(command)]))
    lead: list[Block] = [
        Text("The fastest variant, beside dot-product attention in the same rounds:", "answer"),
        Points(answers),
    ]
    return page("Speed and memory of each variant beside dot", sections, lead)


def _measured(result: Result) -> list[Block]:
    found, plan = result.machine, result.plan
    how = (
        f"All variants ran in turn for {_counted(plan.rounds, 'round')}, timed by "
        f"{found['clock']}, on {found['device']} with torch {found['torch']}. Width "
        f"{plan.d_model}, {_counted(plan.num_heads, 'head')}, {plan.tokens:,} tokens a batch; in "
        f"whole models {_counted(plan.num_layers, 'layer')} and a vocabulary of "
        f"{plan.vocab_size:,}."
    )
    kernel = "The compiled kernel ran." if found["kernel"] == "compiled" else "No kernel ran."
    rate = (
        f"{kernel} A large matrix product reaches {found['gemm_flops_per_second'] / 1e9:.0f} "
        f"GFLOP/s here; the load average was {found['load_average']:.2f} at the start."
    )
    return [Text(how), Text(rate), Text(f"Claims hold for: {found['claims']}.", "note")]


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'s' * (count != 1)}"


def plots_of(rows: list[Row]) -> list[Plot]:
    """The plots of one mode and mask: speed and memory, by variant or by length."""
    plots = []
    for threads in dict.fromkeys(row.threads for row in rows):
        own = [row for row in rows if row.threads == threads]
        title = _counted(threads, "thread") if len({row.threads for row in rows}) > 1 else ""
        if len({row.length for row in own}) > 1:
            caption = "Times as fast as dot, by best rounds."
            plots.append(Plot(speed_by_length(own), caption, title))
            continue
        speeds = [(row.variant, row.speed, row.speed_low, row.speed_high) for row in own]
        caption = "By best rounds; bars: the range of the rounds."
        plots.append(Plot(beside_dot(speeds, "times as fast as dot"), caption, title))
        dot = next(row for row in own if row.variant == DOT)
        if dot.saved_bytes:
            shares = {row.variant: (row.saved_bytes or 0) / dot.saved_bytes for row in own}
            memory = [(name, share, share, share) for name, share in shares.items()]
            caption = "What a forward pass keeps for backward, beside parameters."
            plots.append(
                Plot(beside_dot(memory, "memory for backward, times dot's"), caption, title)
            )
    return plots


def cells(row: Row) -> list[str]:
    """A row as a reader wants it."""
    return [
        row.variant,
        f"{row.speed:.2f}",
        f"{row.speed_low:.2f} to {row.speed_high:.2f}",
        f"{row.best_seconds * 1e3:.1f}",
        f"{row.tokens_per_second:,.0f}",
        "" if row.saved_bytes is None else f"{row.saved_bytes / 1e6:.1f}",
        "" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.1f}",
        "" if row.gemm_fraction is None else f"{row.gemm_fraction:.0%}",
    ]


def beside_dot(values: Sequence[tuple[str, float, float, float]], label: str) -> str:
    """A value of each variant with its range, dot being 1: (name, value, low, high), in order."""
    with drawing(0.9 + 0.27 * len(values)) as (figure, axes):
        axes.grid(visible=False, axis="y")
        axes.axvline(1, color=MUTED, linewidth=1)
        for place, (name, value, low, high) in enumerate(values):
            colour = TEXT if name == DOT else BLUE
            axes.plot([low, high], [place, place], color=colour, linewidth=2)
            axes.plot(value, place, "o", color=colour, markersize=6)
        axes.set_yticks(range(len(values)), [fill(literal(name), 28) for name, *_ in values])
        axes.set_ylim(len(values) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(left=0)
        axes.set_xlabel(label)
        return to_svg(figure, f"{label}, one point per variant")


def speed_by_length(rows: list[Row]) -> str:
    """One curve per variant: times as fast as dot against the length."""
    lengths = sorted({row.length for row in rows})
    with drawing(4.2) as (figure, axes):
        ends = []
        for place, name in enumerate(dict.fromkeys(row.variant for row in rows)):
            look = look_of(place)
            mine = sorted((row.length, row.speed) for row in rows if row.variant == name)
            xs, ys = zip(*mine, strict=True)
            axes.plot(xs, ys, color=look["color"], linestyle=look["linestyle"], linewidth=1.5)
            ends.append(End(xs[-1], ys[-1], name, look))
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(lengths))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([str(length) for length in lengths])
        axes.set_xlabel("length, at a fixed number of tokens")
        axes.set_ylabel("times as fast as dot")
        figure.draw_without_rendering()
        name_at_right(axes, ends)
        return to_svg(figure, "times as fast as dot by length, one curve per variant")
