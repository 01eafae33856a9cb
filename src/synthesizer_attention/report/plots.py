"""The plots of numbers: differences from dot, quality against speed, learning curves."""

import math
from collections.abc import Callable, Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from synthesizer_attention.report.costs import machines
from synthesizer_attention.report.opponent import DOT
from synthesizer_attention.report.search import trials_of
from synthesizer_attention.report.style import (
    BLUE,
    MUTED,
    RED,
    SHADE,
    End,
    drawing,
    list_at_right,
    literal,
    look_of,
    name_at_right,
    to_svg,
)
from synthesizer_attention.report.summary import Line, Summary
from synthesizer_attention.study.stats import BETTER, NO_WORSE, WORSE
from synthesizer_attention.study.tune import Tried, learning_rate_of, settings_tried

SPREAD_OUT = 12  # margins: beyond that the axis turns logarithmic
MOST_POINTS = 2000  # of a curve; a longer one is thinned
FAR = 3  # times as far from the best as all other rows: would leave them no room

_VERDICTS = {BETTER: BLUE, NO_WORSE: BLUE, WORSE: RED}


def forest(summary: Summary) -> str:
    """Each row's difference from dot with its interval; the margin is shaded, better is right."""
    lines = [line for line in summary.drawn if line.comparison]
    if not lines:
        return ""
    names = [fill(literal(line.row.label), 26) for line in lines]
    rooms = [1 + 0.85 * max(0, name.count("\n") - 1) for name in names]  # two lines fit into one
    places = [sum(rooms[:place]) + (room - 1) / 2 for place, room in enumerate(rooms)]
    with drawing(0.9 + 0.29 * sum(rooms)) as (figure, axes):
        axes.grid(visible=False, axis="y")
        compared = [line.comparison for line in lines if line.comparison]
        margin = compared[0].margin
        ends = [value for c in compared for value in (c.low, c.high, c.difference)]
        reach = max([abs(end) for end in ends if math.isfinite(end)] + [1.3 * margin, 1e-9]) * 1.08
        _scale(axes, reach, margin)
        if not summary.higher_is_better:
            axes.invert_xaxis()
        worst = -margin if summary.higher_is_better else margin
        axes.axvspan(worst, 0, color=SHADE, linewidth=0, zorder=0)
        axes.axvline(0, color=MUTED, linewidth=1)
        axes.axvline(worst, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
        for place, c in zip(places, compared, strict=True):
            colour = _VERDICTS.get(c.word, MUTED)
            low, high = max(c.low, -reach), min(c.high, reach)
            dashes = "-" if c.covers_seeds else (0, (2, 2))
            axes.plot([low, high], [place, place], color=colour, linewidth=2, linestyle=dashes)
            inside = colour if c.word in _VERDICTS else "none"
            axes.plot(
                c.difference, place, "o", color=colour, markerfacecolor=inside, markersize=6,
                markeredgewidth=1.5,
            )  # fmt: skip
        axes.set_yticks(places, names)
        axes.set_ylim(sum(rooms) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        words = axes.secondary_yaxis("right")
        words.set_yticks(places, [c.word for c in compared])
        words.tick_params(axis="y", length=0)
        words.spines["right"].set_visible(False)
        scale = ", log scale" if axes.get_xscale() == "symlog" else ""
        unit = f"{literal(summary.metric_name)}{scale}"
        dot = summary.dot_name
        between = "\n" if dot != DOT else ", "  # a long name would not fit beside the unit
        axes.set_xlabel(
            f"difference from {literal(dot)}{between}{unit} (better \N{RIGHTWARDS ARROW})"
        )
        return to_svg(figure, "Differences from dot with intervals; the margin is shaded")


def _scale(axes: Axes, reach: float, margin: float) -> None:
    """Linear, or logarithmic away from zero where one row is far off."""
    axes.set_xlim(-reach, reach)
    if reach <= SPREAD_OUT * margin or not margin:  # dot scores 0, and so does its margin
        axes.xaxis.set_major_locator(MaxNLocator(5, symmetric=True))
        axes.xaxis.set_major_formatter(FuncFormatter(_signed))
        return
    near = 2 * margin
    axes.set_xscale("symlog", linthresh=near, linscale=1.2)
    axes.set_xlim(-1.4 * reach, 1.4 * reach)
    round_ones = [k * 10.0**power for power in range(-6, 7) for k in (1, 2, 3, 5)]
    marks = [v for v in round_ones if near * 0.999 <= v <= reach] or [near]  # as floats go
    shown = marks[:: max(1, len(marks) - 1)]  # the first and the last have room for their numbers
    ticks = sorted({0.0, *shown, *(-value for value in shown)})
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_signed))


def _signed(value: float, _: int | None) -> str:
    return f"{value:+.3g}".replace("-", "\N{MINUS SIGN}") if abs(value) > 1e-12 else "0"


def by_value(
    summary: Summary, points: Mapping[str, Sequence[tuple[str, Sequence[float]]]], key: str
) -> str:
    """Means and seeds of each variant at every value of a varied key; better is up."""
    values = list(dict.fromkeys(value for line in points.values() for value, _ in line))
    if len(values) < 2:
        return ""
    with drawing(3.2) as (figure, axes):
        if not summary.higher_is_better:
            axes.invert_yaxis()
        for number, (name, line) in enumerate(points.items()):
            at = [values.index(value) for value, _ in line]
            look = look_of(number)
            axes.plot(at, [np.mean(scores) for _, scores in line], label=literal(name), **look)
            for place, (_, scores) in zip(at, line, strict=True):  # a mean hides seeds that fail
                seeds = {**look, "linestyle": "none", "markersize": 4, "markerfacecolor": "none"}
                axes.plot([place + 0.04 * (number + 1)] * len(scores), scores, **seeds)
        axes.set_xticks(range(len(values)), list(map(literal, values)))
        axes.set_xlabel(literal(key))
        axes.set_ylabel(f"{literal(summary.metric_name)} (better \N{UPWARDS ARROW})")
        axes.legend(fontsize=8)
        return to_svg(figure, f"{summary.metric_name} by {key}, one line per variant")


def quality_and_speed(summary: Summary) -> str:
    """Every row's metric against its training speed, and the rows that no other beats in both."""
    relative = any(line.relative["training"] for line in summary.lines)
    if not relative and len(machines(summary.finished)) > 1:
        return ""
    unit = "times dot's" if relative else "tokens per second"
    return _front(
        summary,
        lambda line: (line.relative if relative else line.cost)["training"],
        f"training speed, {unit} (faster \N{RIGHTWARDS ARROW})",
        "Quality against training speed, with the Pareto front",
    )


def quality_and_cache(summary: Summary) -> str:
    """The same against what decoding keeps of a token; empty where all rows keep as much."""
    if len({line.cost["cache"] for line in summary.drawn} - {None}) < 2:
        return ""
    return _front(
        summary,
        lambda line: line.cost["cache"],
        "cache, bytes per token (smaller \N{RIGHTWARDS ARROW})",
        "Quality against the cache of a token, with the Pareto front",
        less=True,
    )


def _front(
    summary: Summary,
    read: Callable[[Line], float | None],
    label: str,
    title: str,
    *,
    less: bool = False,
) -> str:
    """Quality against a cost that is better when more, or less; better is right and up."""
    shown = [(line.index, line, read(line), line.mean) for line in summary.drawn]
    points = [
        (place, line, cost, mean)
        for place, line, cost, mean in shown
        if cost is not None and mean is not None and math.isfinite(mean)
    ]
    if len(points) < 2:
        return ""
    sign, along = 1 if summary.higher_is_better else -1, -1 if less else 1
    with drawing(3.6) as (figure, axes):
        if sign < 0:
            axes.invert_yaxis()
        if less:
            axes.invert_xaxis()
        front = pareto([(along * cost, sign * mean) for _, _, cost, mean in points])
        edge = sign * lower_edge([sign * mean for *_, mean in points])
        heights = [sign * max(sign * mean, sign * edge) for *_, mean in points]
        path = sorted(((points[place][2], heights[place]) for place in front), reverse=less)
        axes.step(*zip(*path, strict=True), where="pre", color=MUTED, linewidth=1, zorder=1)
        for order, ((place, _, cost, mean), height) in enumerate(zip(points, heights, strict=True)):
            look = look_of(place)
            inside = look["color"] if order in front else "none"
            axes.plot(
                cost,
                height,
                look["marker"],
                color=look["color"],
                markerfacecolor=inside,
                markersize=7,
            )
            if height != mean:
                far = f"{mean:.{summary.digits}f} \N{DOWNWARDS ARROW}"
                axes.annotate(far, (cost, height), (0, 8), textcoords="offset points",
                              ha="center", fontsize=8, color=look["color"])  # fmt: skip
        axes.set_xlabel(label)
        axes.set_ylabel(f"{literal(summary.metric_name)} (better \N{UPWARDS ARROW})")
        axes.margins(0.08)
        list_at_right(
            axes,
            [
                (line.row.label, look_of(place), order in front)
                for order, (place, line, _, _) in enumerate(points)
            ],
        )
        return to_svg(figure, title)


def lower_edge(scores: Sequence[float]) -> float:
    """The least score to draw: the worst, or below the others where the worst are far off."""
    ranked = sorted(scores, reverse=True)
    kept = len(ranked)
    while kept > 3 and ranked[0] - ranked[kept - 1] > FAR * (ranked[0] - ranked[kept - 2]) > 0:
        kept -= 1
    span = ranked[0] - ranked[kept - 1]
    return ranked[-1] if kept == len(ranked) else ranked[kept - 1] - 0.3 * span


def pareto(points: Sequence[tuple[float, float]]) -> set[int]:
    """Which points no other equals in both and beats in one; more is better in both."""
    return {
        place
        for place, (x, y) in enumerate(points)
        if not any(a >= x and b >= y and (a > x or b > y) for a, b in points)
    }


def score_by_rate(summary: Summary) -> str:
    """Every trial's validation score against its learning rate; where two seeds chose, both."""
    rows = [(line, points) for line in summary.drawn if (points := _rated(line, summary))]
    if not rows:
        return ""
    with drawing(3.4) as (figure, axes):
        axes.set_xscale("log")
        if not summary.higher_is_better:
            axes.invert_yaxis()
        for line, points in rows:
            look = look_of(line.index)
            color, marker = look["color"], look["marker"]
            rates = [rate for rate, _ in points]
            axes.plot(rates, [one.mean for _, one in points], color=color, linewidth=1, alpha=0.5)
            for rate, one in points:
                each = [rate] * len(one.known)
                axes.plot(each, one.known, color=color, linewidth=0.6, alpha=0.5)
                axes.plot(each, one.known, marker, color=color, markerfacecolor="none")
            rate, best = max(points, key=lambda point: point[1].rank)
            axes.plot(rate, best.mean, marker, color=color)
        tried = sorted({rate for _, points in rows for rate, _ in points})
        axes.xaxis.set_major_locator(FixedLocator([tried[0], tried[len(tried) // 2], tried[-1]]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:.2g}"))
        axes.set_xlabel("learning rate")
        axes.set_ylabel(f"validation {literal(summary.metric_name)} (better \N{UPWARDS ARROW})")
        axes.margins(0.08)
        list_at_right(axes, [(line.row.label, look_of(line.index), True) for line, _ in rows])
        return to_svg(figure, "Validation score by learning rate, one point per trial")


def _rated(line: Line, summary: Summary) -> list[tuple[float, Tried]]:
    """A row's settings by learning rate."""
    tried = settings_tried(trials_of(line, summary))
    found = [(learning_rate_of(one.changes), one) for one in tried]
    return sorted(
        ((rate, one) for rate, one in found if rate is not None), key=lambda pair: pair[0]
    )


def training_loss(summary: Summary) -> str:
    """Loss of the training batches by step."""
    return _curves(summary, lambda line: line.get("loss"), "training loss, nats per target", 1)


def validation_metric(summary: Summary) -> str:
    """The main metric on validation by step."""
    name, sign = _validation(summary)
    return _curves(summary, lambda line: line.get("validation", {}).get(summary.metric), name, sign)


def validation_by_time(summary: Summary) -> str:
    """The same by seconds of training; empty where machines differ, or tell no seconds."""
    if len(machines(summary.finished)) != 1:
        return ""
    name, sign = _validation(summary)
    return _curves(
        summary,
        lambda line: line.get("validation", {}).get(summary.metric),
        name,
        sign,
        across="seconds of training",
        scale=_seconds_per_step,
    )


def _validation(summary: Summary) -> tuple[str, int]:
    name = f"validation {literal(summary.metric_name)}"
    return name, 1 if summary.higher_is_better else -1


def _seconds_per_step(line: Line) -> float | None:
    """The mean over a row's runs; None where they do not tell it."""
    told = [
        run.result["training_seconds"] / run.recipe["train"]["steps"]
        for run in line.row.finished
        if run.result and run.result.get("training_seconds")
    ]
    return float(np.mean(told)) if told else None


def _curves(
    summary: Summary,
    read: Callable[[dict[str, Any]], float | None],
    name: str,
    sign: int,
    *,
    across: str = "step",
    scale: Callable[[Line], float | None] = lambda line: 1.0,
) -> str:
    """Mean over seeds and, as a band, their range; unfinished runs go as far as they came."""
    drawn = [(line.index, line, scale(line), _mean_curve(line, read)) for line in summary.drawn]
    curves = [
        (place, line, (curve[0] * factor, *curve[1:]))
        for place, line, factor, curve in drawn
        if len(curve[0]) and factor is not None
    ]
    if not curves:
        return ""
    with drawing(3.4) as (figure, axes):
        ends = []
        for place, line, curve in curves:
            steps, mean, low, high = _thinned(curve)
            look = look_of(place)
            axes.fill_between(steps, low, high, color=look["color"], alpha=0.15, linewidth=0)
            marker = look["marker"] if len(steps) == 1 else ""
            axes.plot(
                steps, mean, color=look["color"], linestyle=look["linestyle"], marker=marker,
                linewidth=2 if place == 0 else 1.5,
            )  # fmt: skip
            ends.append(End(float(steps[-1]), float(mean[-1]), line.row.label, look))
        longest = max(len(curve[0]) for *_, curve in curves)
        thinned = f" (thinned to {MOST_POINTS:,} points, extremes kept)"
        axes.set_xlabel(across + thinned * (longest > MOST_POINTS))
        axes.set_ylabel(name)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 2.5, 5, 10]))
        if sign < 0:
            axes.invert_yaxis()
        figure.draw_without_rendering()
        name_at_right(axes, ends)
        return to_svg(figure, f"{name} by {across}, one curve per row")


Curve = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _mean_curve(line: Line, read: Callable[[dict[str, Any]], float | None]) -> Curve:
    """Steps, mean, least and most over the runs that have a value at the step."""
    values: dict[int, list[float]] = {}
    for run in line.row.runs:
        for entry in run.lines:
            value = read(entry)
            if value is not None and math.isfinite(value):
                values.setdefault(int(entry["step"]), []).append(value)
    steps = sorted(values)
    found = [values[step] for step in steps]
    return (
        np.array(steps),
        np.array([np.mean(at) for at in found]),
        np.array([np.min(at) for at in found]),
        np.array([np.max(at) for at in found]),
    )


def _thinned(curve: Curve) -> Curve:
    """At most MOST_POINTS of a curve: its ends, and the least and the most of every stretch."""
    steps, _, low, high = curve
    if len(steps) <= MOST_POINTS:
        return curve
    kept = {0, len(steps) - 1}
    for part in np.array_split(np.arange(len(steps)), MOST_POINTS // 2 - 1):
        kept |= {int(part[low[part].argmin()]), int(part[high[part].argmax()])}
    places = sorted(kept)
    return curve[0][places], curve[1][places], curve[2][places], curve[3][places]
