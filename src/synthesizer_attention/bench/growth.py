"""How time and memory grow with length and width, and the arithmetic beside them."""

from collections.abc import Callable, Sequence

from synthesizer_attention.bench.plan import DOT, Result, Row
from synthesizer_attention.report.page import Plot
from synthesizer_attention.report.style import BLUE, TEXT, drawing, literal, to_svg

TABLES = dict.fromkeys(("random", "fixed_random", "factorized_random", "relative"), (12.0, 3.0))
DENSE = dict.fromkeys(("dense", "random+dense"), (18.0, 7.0))
DOTS = dict.fromkeys((DOT, "random+dot"), (24.0, 7.0))
OTHERS = {"dense+dot": (30.0, 11.0), "factorized_dense": (18.75, 3.0)}
ARITHMETIC = TABLES | DENSE | DOTS | OTHERS
CAPTION = (
    "One sequence, causal training. Blue: the variant; black: dot. Dashed above: its arithmetic at "
    "the rate of a large matrix product here; dashed below: what it keeps for backward."
)


def arithmetic(variant: str, d_model: int, length: int) -> float | None:
    """Multiplications and additions per token of a causal sublayer in training; None: not reckoned.

    6 D^2 for each projection of width D, forward and back; T D for each product with the visible
    half. Dot has two of those forward, one made again, four back: 24 D^2 + 7 T D.
    """
    if variant not in ARITHMETIC:
        return None
    projections, products = ARITHMETIC[variant]
    return (projections * d_model + products * length) * d_model


def growth_plots(result: Result, rows: Sequence[Row]) -> list[Plot]:
    """One drawing for each variant: time and peak memory, against the length and the width."""
    names = [name for name in dict.fromkeys(row.variant for row in rows) if name != DOT]
    rate = float(result.machine["gemm_flops_per_second"])
    return [Plot(_drawn(name, rows, rate), CAPTION, name) for name in names]


def _drawn(name: str, rows: Sequence[Row], rate: float) -> str:
    widths, lengths = [row.d_model for row in rows], [row.length for row in rows]
    often = (max(set(lengths), key=lengths.count), max(set(widths), key=widths.count))
    by_length = sorted((r for r in rows if r.d_model == often[1]), key=lambda r: r.length)
    by_width = sorted((r for r in rows if r.length == often[0]), key=lambda r: r.d_model)

    def reckoned(row: Row) -> float | None:
        found = arithmetic(row.variant, row.d_model, row.length) if row.mode == "train" else None
        return found and found * row.length * row.batch / rate * 1e3

    def kept(row: Row) -> float | None:
        return row.saved_bytes and row.saved_bytes / 1e6

    def peak(row: Row) -> float | None:
        return row.peak_bytes and row.peak_bytes / 1e6

    shown: list[tuple[str, Callable[[Row], float | None], Callable[[Row], float | None]]] = [
        ("ms", lambda row: row.best_seconds * 1e3, reckoned),
        ("peak MB", peak, kept),
    ]
    with drawing(4.6) as (figure, axes):
        axes.remove()
        panels = figure.subplots(2, 2, sharex="col", sharey="row")
        for (label, measured, dashed), line in zip(shown, panels, strict=True):
            for panel, own, field in zip(
                line, (by_length, by_width), ("length", "d_model"), strict=True
            ):
                mine = [row for row in own if row.variant == name]
                for each, colour in (([r for r in own if r.variant == DOT], TEXT), (mine, BLUE)):
                    xs = [getattr(row, field) for row in each]
                    panel.plot(xs, [measured(row) or None for row in each], color=colour)
                places = [getattr(row, field) for row in mine]
                lower = [dashed(row) or None for row in mine]
                panel.plot(places, lower, color=BLUE, linestyle=(0, (4, 2)), linewidth=1)
                panel.set_xscale("log", base=2)
                panel.set_yscale("log")
                panel.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
                panel.tick_params(axis="x", labelrotation=45)
            line[0].set_ylabel(label)
        panels[1][0].set_xlabel(f"length, width {often[1]}")
        panels[1][1].set_xlabel(f"width, length {often[0]:,}")
        figure.suptitle(literal(name), fontsize=10)
        return to_svg(figure, f"time and memory of {name} against length and width")
