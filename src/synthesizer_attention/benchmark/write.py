"""What a benchmark leaves: bench.json, bench.csv and the same as a page with plots."""

import csv
import io
import json
from dataclasses import asdict, fields
from pathlib import Path

from matplotlib.ticker import FixedLocator, NullLocator

from synthesizer_attention.benchmark.measure import Result, Row
from synthesizer_attention.report.blocks import Code, Figures, Placed, Plot, Section, Table, Text
from synthesizer_attention.report.page import page
from synthesizer_attention.report.style import End, drawing, look_of, name_at_right, to_svg
from synthesizer_attention.report.write import write_files
from synthesizer_attention.untrusted import check_links

HEAD = ("variant", "times dot", "rounds", "best ms", "tokens/s", "saved MB", "peak MB", "of GEMM")


def write(result: Result, command: str, directory: Path) -> Path:
    """Write all three files and return the page."""
    check_links(directory)
    record = {"command": command, **asdict(result)}
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, [field.name for field in fields(Row)])
    writer.writeheader()
    writer.writerows(asdict(row) for row in result.rows)
    texts = {
        "bench.json": json.dumps(record, indent=1) + "\n",
        "bench.csv": stream.getvalue(),
        "report.html": _page(result, command),
    }
    write_files(directory, texts)
    return directory / "report.html"


def _page(result: Result, command: str) -> str:
    facts = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in result.machine.items())
    sections = []
    for mode, view in dict.fromkeys((row.mode, row.view) for row in result.rows):
        rows = [row for row in result.rows if (row.mode, row.view) == (mode, view)]
        lengths = sorted({row.length for row in rows})
        blocks: list[Placed] = []
        if len(lengths) > 1:
            blocks += [Figures([Plot(speed_by_length(rows), "Times as fast as dot, best rounds.")])]
        blocks += [
            Table(HEAD, [cells(row) for row in rows if row.length == length], f"T={length}")
            for length in lengths
        ]
        sections.append(Section(f"{mode} {view}".strip(), blocks))
    return page("Speed and memory", sections, [Text(facts), Code(command)])


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


def speed_by_length(rows: list[Row]) -> str:
    """One curve per variant: times as fast as dot against the length."""
    names = list(dict.fromkeys(row.variant for row in rows))
    lengths = sorted({row.length for row in rows})
    with drawing(4.2) as (figure, axes):
        ends = []
        for place, name in enumerate(names):
            look = look_of(place)
            mine = sorted((row.length, row.speed) for row in rows if row.variant == name)
            xs, ys = [point[0] for point in mine], [point[1] for point in mine]
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
