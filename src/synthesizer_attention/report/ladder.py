"""What a ladder shows: losses by compute, the gap to dot, and where it goes (no torch)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter

from synthesizer_attention.metrics.scores import shown
from synthesizer_attention.report.load import Record, Row, Study, plain_change
from synthesizer_attention.report.page import Block, Figures, Plot, Points, Table, Text
from synthesizer_attention.report.style import (
    BLUE,
    MUTED,
    End,
    drawing,
    literal,
    look_of,
    name_at_right,
    to_svg,
)
from synthesizer_attention.report.summary import MINUS, MISSING, span
from synthesizer_attention.run.progress import clock
from synthesizer_attention.study.ladder import (
    FEWEST_RUNGS,
    GROWS,
    LAWLESS,
    SHRINKS,
    STAYS,
    Interval,
    Laws,
    Measured,
    Trend,
    find_lawless,
    fit_ladder,
    training_flops,
)

FAR = 1000.0  # times the largest rung: a crossing beyond is not worth a number
Cells = tuple[list[str], list[list[str]]]


@dataclass(frozen=True)
class Ladder:
    """The runs of a study's rungs, smallest first, by row."""

    families: dict[str, list[Row]]  # by the row's name without its rung
    opponent: str
    rungs: list[tuple[str, ...]]
    metric: str
    by_loss: bool  # whether every run has a loss; else the error, or the metric itself
    higher_is_better: bool

    @property
    def unit(self) -> str:
        """What is fitted, in words."""
        if self.by_loss:
            return "nats per target"
        name = shown(self.metric).removesuffix(", %")
        return f"points of 100 {MINUS} {name}" if self.higher_is_better else name

    def losses(self, row: Row) -> tuple[float, ...]:
        """What is fitted, of every seed."""
        metrics = [(run.result or {})["metrics"] for run in row.finished]
        if self.by_loss:
            return tuple(found["loss"] for found in metrics)
        return tuple(
            100 - found[self.metric] if self.higher_is_better else found[self.metric]
            for found in metrics
        )

    @cached_property
    def climbed(self) -> list[str]:
        """The rows with rungs enough for a law, the opponent first."""
        enough = [n for n, rows in self.families.items() if _num_trained(rows) >= FEWEST_RUNGS]
        return sorted(enough, key=lambda name: name != self.opponent)

    @cached_property
    def lawless(self) -> list[str]:
        """Those of them that follow no law beside the others."""
        if self.opponent not in self.climbed:
            return []
        return [self.climbed[n] for n in find_lawless(self._measured(self.climbed), 0)]

    @cached_property
    def fitted(self) -> list[str]:
        """The rows that get a law, the opponent first."""
        return [name for name in self.climbed if name not in self.lawless]

    @cached_property
    def laws(self) -> Laws | None:
        """Fitted to these rows."""
        if self.opponent not in self.fitted or len(self.fitted) < 2:
            return None
        return fit_ladder(self._measured(self.fitted), 0)

    def _measured(self, names: Sequence[str]) -> list[Measured]:
        return [
            Measured(
                tuple(_mean([_flops(run) for run in row.finished]) for row in self.families[name]),
                tuple(self.losses(row) for row in self.families[name]),
            )
            for name in names
        ]

    def seconds(self, rung: int) -> dict[str, float]:
        """What a run of each row trained at a rung, where one is finished."""
        times = {
            name: [float((run.result or {})["training_seconds"]) for run in rows[rung].finished]
            for name, rows in self.families.items()
        }
        return {name: _mean(found) for name, found in times.items() if found}


def _num_trained(rows: Sequence[Row]) -> int:
    return sum(bool(row.finished) for row in rows)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _flops(run: Record) -> float:
    return training_flops(run.result or {}, run.recipe)


def read_ladder(study: Study) -> Ladder | None:
    """The rungs of a study; None where it has none, or no run is finished."""
    finished = [run for row in study.rows for run in row.finished]
    dot = study.opponent()
    if not study.facts.get("ladder") or dot is None or not finished:
        return None
    rungs = list(dict.fromkeys(row.varied for row in study.rows))[::-1]
    found: dict[str, dict[tuple[str, ...], Row]] = {}
    for row in reversed(study.rows):
        found.setdefault(row.name, {})[row.varied] = row
    every = {  # a rung that a row is not at has no runs
        name: [own.get(varied) or Row(name, "", (), varied=varied) for varied in rungs]
        for name, own in reversed(found.items())
    }
    families = {name: rows for name, rows in every.items() if _num_trained(rows)}
    results = [run.result or {} for run in finished]
    return Ladder(
        families,
        dot.name,
        rungs,
        results[0]["main_metric"],
        all("loss" in result["metrics"] for result in results),
        results[0]["higher_is_better"],
    )


def rung_table(ladder: Ladder) -> Cells:
    """What each rung is and costs, and each row's losses there."""
    rows = []
    for number, varied in enumerate(ladder.rungs):
        trained = {n: rows[number] for n, rows in ladder.families.items() if rows[number].finished}
        dot = trained.get(ladder.opponent)
        runs = [run for row in trained.values() for run in row.finished]
        share = runs[0].recipe["train"].get("data_share", 1.0) if runs else None
        seeds = sorted({len(row.finished) for row in trained.values()})
        rows.append(
            [
                ", ".join(map(plain_change, varied)),
                MISSING if share is None else f"{share:.4g}",
                MISSING if dot is None else f"{_flops(dot.finished[0]):.2e}",
                MISSING if not runs else clock(_mean([*ladder.seconds(number).values()])),
                ", ".join(map(str, seeds)) or MISSING,
                *(
                    span(ladder.losses(rows[number]), 3) if rows[number].finished else MISSING
                    for rows in ladder.families.values()
                ),
            ]
        )
    head = ["rung", "share of train", f"FLOPs of {ladder.opponent}", "time of a run", "seeds"]
    return [*head, *ladder.families], rows


def law_table(ladder: Ladder) -> Cells:
    """Each row's law, and its gap to the opponent at both ends."""
    laws = ladder.laws
    assert laws is not None
    rows = []
    for name, power, trend in zip(ladder.fitted, laws.power, laws.trends, strict=True):
        ends = [MISSING, MISSING] if trend is None else [_signed(trend.bottom), _signed(trend.top)]
        word = MISSING if trend is None else {"unknown": "cannot tell"}.get(trend.word, trend.word)
        rows.append([name, f"{power.value:.3f} [{power.low:.3f}, {power.high:.3f}]", *ends, word])
    ends_of = "gap at the smallest rung", "at the largest"
    return ["variant", "exponent b", *ends_of, "lead"], rows


def sentences(ladder: Ladder) -> Iterator[str]:
    """One for each row beside the opponent."""
    laws = ladder.laws
    if laws is None:
        needed = f"a law needs {FEWEST_RUNGS} finished rungs of two rows, and two seeds of each row"
        yield f"Cannot tell where gaps go: {needed}. {next_rung(ladder)}"
        return
    for name, trend in zip(ladder.fitted, laws.trends, strict=True):
        if trend is not None:
            yield sentence(name, ladder.opponent, trend, ladder.unit, next_rung(ladder))


def sentence(name: str, opponent: str, trend: Trend, unit: str, cost: str) -> str:
    """Whether a lead shrinks, holds or grows, where lines cross, or what it takes to tell."""
    top, bottom, compute = trend.top, trend.bottom, float(trend.grid[-1])
    leads = name if top.value < 0 else opponent
    other = opponent if top.value < 0 else name
    sizes = (
        f"{abs(top.value):.3f} {unit} at {compute:.1e} FLOPs, the largest rung "
        f"(gap {_signed(top)}; {_signed(bottom)} at the smallest)"
    )
    if trend.word == GROWS:
        crossed = trend.crossing is not None and trend.grid[0] < trend.crossing.value < compute
        near = f"; the lines crossed near {_flops_span(trend)}" if crossed else ""
        return f"{leads} leads {other} by {sizes}, and its lead grows with compute{near}."
    if trend.word == SHRINKS:
        crossing = trend.crossing
        if crossing is None or crossing.value > FAR * compute:
            where = f"the lines would cross beyond {FAR:,.0f} times the compute of that rung"
        else:
            times = crossing.value / compute
            where = (
                f"the lines would cross near {_flops_span(trend)}, {times:,.1f} times the largest "
                "rung, if the laws hold that far"
            )
        return f"{leads} leads {other} by {sizes}, but its lead shrinks with compute: {where}."
    if trend.word == STAYS:
        return (
            f"{leads} leads {other} by {sizes}, and its lead holds: it changes by less than half "
            "of itself over the ladder, and no crossing is in sight."
        )
    known = f"{leads} leads {other} by {sizes}" if top.is_signed else (
        f"{name} and {opponent} are not told apart at the largest rung (gap {_signed(top)} {unit})"
    )  # fmt: skip
    return f"{known}; whether the gap shrinks, holds or grows cannot be told. {cost}"


def next_rung(ladder: Ladder) -> str:
    """What one more rung on top would cost, from what the last two did."""
    before, last = ladder.seconds(len(ladder.rungs) - 2), ladder.seconds(len(ladder.rungs) - 1)
    both = [name for name in last if name in before]
    if not both:
        return "What the next rung costs is not known: two rungs must be finished."
    each = {name: last[name] ** 2 / before[name] for name in both}
    runs = {name: len(ladder.families[name][-1].finished) for name in both}
    whole = sum(each[name] * runs[name] for name in both)
    return (
        f"The next rung would take about {clock(_mean([*each.values()]))} of one worker a run, "
        f"{clock(whole)} for its {sum(runs.values())} runs, and twice the training examples."
    )


def remarks(ladder: Ladder) -> list[str]:
    """How the laws were fitted, and what to distrust."""
    what = (
        "What is fitted is the loss on test, in nats per target (of the reference, where a task "
        "writes text), whatever the table's metric is."
        if ladder.by_loss
        else f"No loss was recorded, so what is fitted is {ladder.unit}."
    )
    said = [
        "Each rung below the largest has half the training examples, half the steps and "
        "1/sqrt(2) of the width (heads of one size, d_ff in proportion), about a quarter of the "
        "compute; learning rates, depth, length and tokenizer are the same at all of them"
        " unless the table says otherwise. " + what
    ]
    laws = ladder.laws
    if laws is not None:
        floor = laws.floor
        said.append(
            f"loss = floor + exp(a {MINUS} b log FLOPs), one floor for all rows: "
            f"{floor.value:.3f} [{floor.low:.3f}, {floor.high:.3f}]. A lead is measured by the "
            "ratio of what is above the floor at equal compute, as any lead in nats shrinks "
            "towards the floor. Intervals are a parametric bootstrap over seeds, corrected over "
            "the rows (5 % for any); test examples are the same at every rung and are not in them."
        )
        if laws.misfit > 1.5:
            said.append(
                f"THE LAWS FIT BADLY: they miss the means {laws.misfit:.1f} times as far as seeds "
                "explain; intervals are wider by that factor."
            )
    if laws is not None and ladder.lawless:
        said.append(
            f"No power law beside the others: {', '.join(ladder.lawless)}. Without it they miss "
            f"their means by so much less that chance would do it in 1 ladder of "
            f"{1 / LAWLESS:.0f}; it is not fitted and its gap is not drawn."
        )
    left = [name for name in ladder.families if name not in ladder.climbed]
    if laws is not None and left:
        said.append(f"Too few rungs for a law: {', '.join(left)}.")
    return said


def blocks(ladder: Ladder, *, plots: bool) -> list[Block]:
    """The section of a report."""
    found: list[Block] = [Points([*sentences(ladder)], "answer")]
    if plots and ladder.laws is not None:
        found.append(Figures(_plots(ladder, ladder.laws)))
    found.append(Table(*rung_table(ladder)))
    if ladder.laws is not None:
        found.append(Table(*law_table(ladder)))
    return [*found, *(Text(said, "note") for said in remarks(ladder))]


def _plots(ladder: Ladder, laws: Laws) -> list[Plot]:
    drawn = [Plot(losses_plot(ladder, laws), "Means over seeds and their laws.", "Loss")]
    for place, (name, trend) in enumerate(zip(ladder.fitted, laws.trends, strict=True)):
        if trend is not None:
            caption = "Below zero the row leads. The band holds other seeds."
            title = f"{name}: gap to {ladder.opponent}"
            drawn.append(Plot(gap_plot(ladder, laws, place, trend), caption, title))
    return drawn


def losses_plot(ladder: Ladder, laws: Laws) -> str:
    """Every row's mean losses by compute, and its law."""
    with drawing(3.4) as (figure, axes):
        axes.set_xscale("log")
        ends = []
        for place, name in enumerate([*ladder.fitted, *ladder.lawless]):
            look, rows = look_of(place), [r for r in ladder.families[name] if r.finished]
            compute = np.array([_mean([_flops(run) for run in row.finished]) for row in rows])
            means = [_mean(ladder.losses(row)) for row in rows]
            grid = np.geomspace(compute[0], compute[-1], 40)
            axes.plot(compute, means, look["marker"], color=look["color"], markersize=5)
            if name in ladder.lawless:
                ends.append(End(float(compute[-1]), means[-1], name, look))
                continue
            axes.plot(grid, laws.loss(place, grid), color=look["color"], linewidth=1.2,
                      linestyle=look["linestyle"])  # fmt: skip
            ends.append(End(float(grid[-1]), float(laws.loss(place, grid)[-1]), name, look))
        _mark_compute(axes)
        axes.set_ylabel(literal(ladder.unit))
        figure.draw_without_rendering()
        name_at_right(axes, ends)
        return to_svg(figure, "Losses by training compute, with fitted laws")


def gap_plot(ladder: Ladder, laws: Laws, place: int, trend: Trend) -> str:
    """The gap of one row by compute, with its band and the means it was fitted to."""
    rows = [row for row in ladder.families[ladder.fitted[place]] if row.finished]
    compute = np.array([_mean([_flops(run) for run in row.finished]) for row in rows])
    means = np.array([_mean(ladder.losses(row)) for row in rows])
    with drawing(2.6) as (figure, axes):
        axes.set_xscale("log")
        axes.axhline(0, color=MUTED, linewidth=1)
        axes.fill_between(trend.grid, trend.gap[1], trend.gap[2], color=BLUE, alpha=0.15, lw=0)
        axes.plot(trend.grid, trend.gap[0], color=BLUE, linewidth=1.6)
        axes.plot(compute, means - laws.loss(0, compute), "o", color=BLUE, markersize=5)
        _mark_compute(axes)
        axes.set_ylabel(f"gap of {literal(ladder.fitted[place])}\n{literal(ladder.unit)}")
        return to_svg(figure, f"Gap of {ladder.fitted[place]} to {ladder.opponent} by compute")


def _mark_compute(axes: Axes) -> None:
    """Powers of ten, and three times them where the axis holds fewer than two of them."""
    axes.set_xlabel("training FLOPs of a run")
    low, high = axes.get_xlim()
    powers = math.floor(math.log10(high)) - math.ceil(math.log10(low)) + 1
    if powers < 2:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.xaxis.set_major_formatter(LogFormatterSciNotation())
    axes.xaxis.set_minor_formatter(NullFormatter())


def _signed(found: Interval) -> str:
    values = (found.value, found.low, found.high)
    value, low, high = (f"{number:+.3f}".replace("-", MINUS) for number in values)
    return f"{value} [{low}, {high}]"


def _flops_span(trend: Trend) -> str:
    crossing = trend.crossing
    assert crossing is not None
    bounds = ["0" if crossing.low < 1 else f"{crossing.low:.1e}"]
    bounds.append("no end" if crossing.high > 1e30 else f"{crossing.high:.1e}")
    return f"{crossing.value:.1e} FLOPs [{bounds[0]}, {bounds[1]}]"
