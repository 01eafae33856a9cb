"""What a ladder shows: losses by compute, the gap to dot, and where it goes (no torch)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter

from synthesizer_attention.metrics.scores import shown
from synthesizer_attention.report.load import Row, Study, plain_change
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
from synthesizer_attention.report.summary import MINUS, MISSING, signed, span
from synthesizer_attention.report.tables import Cells
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
SENTENCES = {
    GROWS: "{leads} leads {other} by {sizes}, and its lead grows with compute{crossing}.",
    SHRINKS: "{leads} leads {other} by {sizes}, but its lead shrinks with compute: the lines would "
    "cross {crossing}.",
    STAYS: "{leads} leads {other} by {sizes}, and its lead holds: it changes by less than half of "
    "itself over the ladder, and no crossing is in sight.",
    "unknown": "{known}; whether the gap shrinks, holds or grows cannot be told. {cost}",
    "no law": f"Cannot tell where gaps go: a law needs {FEWEST_RUNGS} finished rungs of two rows, "
    "and two seeds of each row. {cost}",
    "no cost": "What the next rung costs is not known: two rungs must be finished.",
    "cost": "The next rung would take about {run} of one worker a run, {whole} for its {runs} "
    "runs, and twice the training examples.",
    "rungs": "Each rung below the largest has half the training examples, half the steps and "
    "1/sqrt(2) of the width (heads of one size, d_ff in proportion), about a quarter of the "
    "compute; learning rates, depth, length and tokenizer are the same at all of them unless the "
    "table says otherwise. {what}",
    "loss": "What is fitted is the loss on test, in nats per target (of the reference, where a "
    "task writes text), whatever the table's metric is.",
    "no loss": "No loss was recorded, so what is fitted is {unit}.",
    "law": f"loss = floor + exp(a {MINUS} b log FLOPs), one floor for all rows: {{value:.3f}} "
    "[{low:.3f}, {high:.3f}]. A lead is measured by the ratio of what is above the floor at equal "
    "compute, as any lead in nats shrinks towards the floor. Intervals are a parametric bootstrap "
    "over seeds, corrected over the rows (5 % for any); test examples are the same at every rung "
    "and are not in them.",
    "misfit": "THE LAWS FIT BADLY: they miss the means {misfit:.1f} times as far as seeds explain; "
    "intervals are wider by that factor.",
    "lawless": "No power law beside the others: {rows}. Without it they miss their means by so "
    f"much less that chance would do it in 1 ladder of {1 / LAWLESS:.0f}; it is not fitted and its "
    "gap is not drawn.",
    "few rungs": "Too few rungs for a law: {rows}.",
}


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
        key, turned = ("loss", False) if self.by_loss else (self.metric, self.higher_is_better)
        found = [run.told("metrics", key) for run in row.finished]
        return tuple(100 - value if turned else value for value in found)

    @cached_property
    def climbed(self) -> list[str]:
        """The rows with rungs enough for a law, the opponent first."""
        trained = {
            name: sum(bool(r.finished) for r in rows) for name, rows in self.families.items()
        }
        enough = [name for name, count in trained.items() if count >= FEWEST_RUNGS]
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

    @property
    def trends(self) -> list[tuple[str, Trend]]:
        """What the laws say of each row beside the opponent."""
        trends = self.laws.trends if self.laws else ()
        return [(name, trend) for name, trend in zip(self.fitted, trends, strict=False) if trend]

    def _measured(self, names: Sequence[str]) -> list[Measured]:
        families = [self.families[name] for name in names]
        return [
            Measured(tuple(map(_flops, rows)), tuple(map(self.losses, rows))) for rows in families
        ]

    def points(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Compute and mean loss of a row's trained rungs."""
        rows = [row for row in self.families[name] if row.finished]
        means = [_mean(self.losses(row)) for row in rows]
        return np.array([_flops(row) for row in rows]), np.array(means)

    def seconds(self, rung: int) -> dict[str, float]:
        """How long a run of each row trained at a rung, where one is finished."""
        return {
            name: _mean([float(run.told("training_seconds")) for run in rows[rung].finished])
            for name, rows in self.families.items()
            if rows[rung].finished
        }

    def next_rung(self) -> str:
        """What one more rung on top would cost, from what the last two did."""
        before, last = self.seconds(len(self.rungs) - 2), self.seconds(len(self.rungs) - 1)
        each = {name: last[name] ** 2 / before[name] for name in last if name in before}
        if not each:
            return SENTENCES["no cost"]
        runs = {name: len(self.families[name][-1].finished) for name in each}
        whole = sum(each[name] * runs[name] for name in each)
        run = clock(_mean([*each.values()]))
        return SENTENCES["cost"].format(run=run, whole=clock(whole), runs=sum(runs.values()))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _flops(row: Row) -> float:
    return _mean([training_flops(run.result or {}, run.recipe) for run in row.finished])


def read_ladder(study: Study) -> Ladder | None:
    """The rungs of a study; None where it has none, or no run is finished."""
    dot = study.opponent()
    if not study.facts.get("ladder") or dot is None or not study.finished:
        return None
    rungs = list(dict.fromkeys(row.varied for row in study.rows))[::-1]
    found: dict[str, dict[tuple[str, ...], Row]] = {}
    for row in reversed(study.rows):
        found.setdefault(row.name, {})[row.varied] = row
    families = {  # a rung that a row is not at has no runs
        name: [own.get(varied) or Row(name, "", (), varied=varied) for varied in rungs]
        for name, own in reversed(found.items())
        if any(row.finished for row in own.values())
    }
    first = study.finished[0]
    return Ladder(
        families,
        dot.name,
        rungs,
        first.told("main_metric"),
        all("loss" in run.told("metrics") for run in study.finished),
        first.told("higher_is_better"),
    )


def rung_table(ladder: Ladder) -> Cells:
    """What each rung is and costs, and each row's losses there."""
    table = []
    for number, varied in enumerate(ladder.rungs):
        here = {name: rows[number] for name, rows in ladder.families.items()}
        runs = [run for row in here.values() for run in row.finished]
        dot = here[ladder.opponent].finished if ladder.opponent in here else ()
        seeds = sorted({len(row.finished) for row in here.values()} - {0})
        share = runs[0].recipe["train"].get("data_share", 1.0) if runs else None
        table.append(
            [
                ", ".join(map(plain_change, varied)),
                MISSING if share is None else f"{share:.4g}",
                f"{training_flops(dot[0].result or {}, dot[0].recipe):.2e}" if dot else MISSING,
                clock(_mean([*ladder.seconds(number).values()])) if runs else MISSING,
                ", ".join(map(str, seeds)) or MISSING,
                *(span(ladder.losses(row), 3) for row in here.values()),
            ]
        )
    head = ["rung", "share of train", f"FLOPs of {ladder.opponent}", "time of a run", "seeds"]
    return [*head, *ladder.families], table


def law_table(ladder: Ladder, laws: Laws) -> Cells:
    """Each row's law, and its gap to the opponent at both ends."""
    rows = []
    for name, power, trend in zip(ladder.fitted, laws.power, laws.trends, strict=True):
        seen = [MISSING] * 3
        if trend is not None:
            word = "cannot tell" if trend.word == "unknown" else trend.word
            seen = [_signed(trend.bottom), _signed(trend.top), word]
        rows.append([name, f"{power.value:.3f} [{power.low:.3f}, {power.high:.3f}]", *seen])
    ends_of = "gap at the smallest rung", "at the largest"
    return ["variant", "exponent b", *ends_of, "lead"], rows


def sentences(ladder: Ladder) -> Iterator[str]:
    """One for each row beside the opponent."""
    cost = ladder.next_rung()
    if ladder.laws is None:
        yield SENTENCES["no law"].format(cost=cost)
    for name, trend in ladder.trends:
        yield sentence(name, ladder.opponent, trend, ladder.unit, cost)


def sentence(name: str, opponent: str, trend: Trend, unit: str, cost: str) -> str:
    """Whether a lead shrinks, holds or grows, where lines cross, or what it takes to tell."""
    top, compute, found = trend.top, float(trend.grid[-1]), trend.crossing
    leads, other = (name, opponent) if top.value < 0 else (opponent, name)
    sizes = (
        f"{abs(top.value):.3f} {unit} at {compute:.1e} FLOPs, the largest rung "
        f"(gap {_signed(top)}; {_signed(trend.bottom)} at the smallest)"
    )
    crossing = near = ""
    if found is not None:
        low = "0" if found.low < 1 else f"{found.low:.1e}"
        high = "no end" if found.high > 1e30 else f"{found.high:.1e}"
        near = f"near {found.value:.1e} FLOPs [{low}, {high}]"
    if trend.word == GROWS and found is not None and trend.grid[0] < found.value < compute:
        crossing = f"; the lines crossed {near}"
    if trend.word == SHRINKS:
        crossing = f"beyond {FAR:,.0f} times the compute of that rung"
        if found is not None and found.value <= FAR * compute:
            times = f"{found.value / compute:,.1f} times the largest rung"
            crossing = f"{near}, {times}, if the laws hold that far"
    known = f"{leads} leads {other} by {sizes}" if top.is_signed else (
        f"{name} and {opponent} are not told apart at the largest rung (gap {_signed(top)} {unit})"
    )  # fmt: skip
    template = SENTENCES.get(trend.word, SENTENCES["unknown"])
    return template.format(
        leads=leads, other=other, sizes=sizes, crossing=crossing, known=known, cost=cost
    )


def remarks(ladder: Ladder) -> list[str]:
    """How the laws were fitted, and what to distrust."""
    what = SENTENCES["loss" if ladder.by_loss else "no loss"].format(unit=ladder.unit)
    said = [SENTENCES["rungs"].format(what=what)]
    laws = ladder.laws
    if laws is None:
        return said
    floor = laws.floor
    said.append(SENTENCES["law"].format(value=floor.value, low=floor.low, high=floor.high))
    if laws.misfit > 1.5:
        said.append(SENTENCES["misfit"].format(misfit=laws.misfit))
    left = [name for name in ladder.families if name not in ladder.climbed]
    for kind, rows in (("lawless", ladder.lawless), ("few rungs", left)):
        if rows:
            said.append(SENTENCES[kind].format(rows=", ".join(rows)))
    return said


def blocks(ladder: Ladder, *, plots: bool) -> list[Block]:
    """The section of a report."""
    found: list[Block] = [Points([*sentences(ladder)], "answer")]
    if plots and ladder.laws is not None:
        found.append(Figures(draw(ladder, ladder.laws)))
    found.append(Table(*rung_table(ladder)))
    if ladder.laws is not None:
        found.append(Table(*law_table(ladder, ladder.laws)))
    return [*found, *(Text(said, "note") for said in remarks(ladder))]


def draw(ladder: Ladder, laws: Laws) -> list[Plot]:
    """Every row's losses and laws, then each row's gap to the opponent."""
    caption = "Below zero the row leads. The band holds other seeds."
    return [
        Plot(_losses_plot(ladder, laws), "Means over seeds and their laws.", "Loss"),
        *(
            Plot(_gap_plot(ladder, laws, name, trend), caption, f"{name}: gap to {ladder.opponent}")
            for name, trend in ladder.trends
        ),
    ]


def _losses_plot(ladder: Ladder, laws: Laws) -> str:
    """Every row's mean losses by compute, and its law."""
    with drawing(3.4) as (figure, axes):
        axes.set_xscale("log")
        ends = []
        for place, name in enumerate([*ladder.fitted, *ladder.lawless]):
            look, (compute, means) = look_of(place), ladder.points(name)
            axes.plot(compute, means, look["marker"], color=look["color"], markersize=5)
            last = means[-1]
            if name in ladder.fitted:
                grid = np.geomspace(compute[0], compute[-1], 40)
                curve = laws.loss(place, grid)
                dashes, last = look["linestyle"], curve[-1]
                axes.plot(grid, curve, color=look["color"], linewidth=1.2, linestyle=dashes)
            ends.append(End(float(compute[-1]), float(last), name, look))
        _mark_compute(axes)
        axes.set_ylabel(literal(ladder.unit))
        figure.draw_without_rendering()
        name_at_right(axes, ends)
        return to_svg(figure, "Losses by training compute, with fitted laws")


def _gap_plot(ladder: Ladder, laws: Laws, name: str, trend: Trend) -> str:
    """The gap of one row by compute, with its band and the means it was fitted to."""
    compute, means = ladder.points(name)
    with drawing(2.6) as (figure, axes):
        axes.set_xscale("log")
        axes.axhline(0, color=MUTED, linewidth=1)
        axes.fill_between(trend.grid, trend.gap[1], trend.gap[2], color=BLUE, alpha=0.15, lw=0)
        axes.plot(trend.grid, trend.gap[0], color=BLUE, linewidth=1.6)
        axes.plot(compute, means - laws.loss(0, compute), "o", color=BLUE, markersize=5)
        _mark_compute(axes)
        axes.set_ylabel(f"gap of {literal(name)}\n{literal(ladder.unit)}")
        return to_svg(figure, f"Gap of {name} to {ladder.opponent} by compute")


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
    return signed(found.value, 3, found.low, found.high)
