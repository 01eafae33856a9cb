"""The plots: differences from dot, quality against cost, curves, and where the heads look."""

import math
from collections.abc import Callable, Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from synthesizer_attention.report.load import machines
from synthesizer_attention.report.page import Plot
from synthesizer_attention.report.style import (
    BLUE,
    MUTED,
    RED,
    RIGHT,
    SHADE,
    SIGNED,
    TEXT,
    UP,
    End,
    drawing,
    list_at_right,
    literal,
    look_of,
    name_at_right,
    shortened,
    to_svg,
)
from synthesizer_attention.report.summary import WITHOUT_A_NETWORK, Line, Summary
from synthesizer_attention.report.tables import trials_of
from synthesizer_attention.study.rows import DOT
from synthesizer_attention.study.stats import BEHIND, BETTER, NO_WORSE, WORSE, is_open
from synthesizer_attention.study.tune import learning_rate_of, settings_tried

SPREAD_OUT = 12  # margins: beyond that the axis turns logarithmic
MOST_POINTS = 2000  # of a curve; a longer one is thinned
FAR = 3  # times as far from the best as all other rows: would leave them no room
SHOWN = (DOT, "random", "dense", "random+dot")
MOST = 4  # rows side by side where the table has others
MOST_LAYERS = 6
MOST_BYTES = 10_000  # of the tokens of a map
MOST_TOKENS = 20  # on the axes of a map
MOST_MIXTURES = 8
STACKS = ("encoder", "decoder")
GAP = 2  # pixels between maps
Array = NDArray[Any]

_VERDICTS = {BETTER: BLUE, NO_WORSE: BLUE, WORSE: RED, BEHIND: RED}


def forest(summary: Summary) -> str:
    """Each row's difference from dot with its interval; the margin is shaded, better is right."""
    lines = [line for line in summary.drawn if line.comparison]
    if not lines:
        return ""
    floors = _floors(summary)
    names = [fill(literal(name), 26) for name in (*(line.row.label for line in lines), *floors)]
    rooms = [1 + 0.85 * max(0, name.count("\n") - 1) for name in names]  # two lines fit into one
    places = [sum(rooms[:place]) + (room - 1) / 2 for place, room in enumerate(rooms)]
    with drawing(0.9 + 0.29 * sum(rooms)) as (figure, axes):
        axes.grid(visible=False, axis="y")
        compared = [line.comparison for line in lines if line.comparison]
        margin = compared[0].margin
        ends = [value for c in compared for value in (c.low, c.high, c.difference)]
        ends += floors.values()
        reach = max([abs(end) for end in ends if math.isfinite(end)] + [1.3 * margin, 1e-9]) * 1.08
        _scale(axes, reach, margin)
        if not summary.higher_is_better:
            axes.invert_xaxis()
        worst = -margin * summary.sign
        axes.axvspan(worst, 0, color=SHADE, linewidth=0, zorder=0)
        axes.axvline(0, color=MUTED, linewidth=1)
        axes.axvline(worst, color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
        for place, difference in zip(places[len(lines) :], floors.values(), strict=True):
            axes.plot(difference, place, "D", color=MUTED, markersize=5)
        for place, c in zip(places, compared, strict=False):
            colour = _VERDICTS.get(c.word, MUTED)
            low, high = max(c.low, -reach), min(c.high, reach)
            dashes = "-" if c.covers_seeds else (0, (2, 2))
            axes.plot([low, high], [place, place], color=colour, linewidth=2, linestyle=dashes)
            inside = "none" if is_open(c.word) or c.word not in _VERDICTS else colour
            axes.plot(
                c.difference, place, "o", color=colour, markerfacecolor=inside, markersize=6,
                markeredgewidth=1.5,
            )  # fmt: skip
        axes.set_yticks(places, names)
        axes.set_ylim(sum(rooms) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        words = axes.secondary_yaxis("right")
        words.set_yticks(places, [*(c.word for c in compared), *["no network"] * len(floors)])
        words.tick_params(axis="y", length=0)
        words.spines["right"].set_visible(False)
        scale = ", log scale" if axes.get_xscale() == "symlog" else ""
        unit = f"{literal(summary.metric_name)}{scale} (better {RIGHT})"
        dot = summary.dot_name
        between = "\n" if dot != DOT else ", "  # a long name would not fit beside the unit
        axes.set_xlabel(f"difference from {literal(dot)}{between}{unit}")
        return to_svg(figure, "Differences from dot with intervals; the margin is shaded")


def _floors(summary: Summary) -> dict[str, float]:
    """How far what has no network is from dot, by its name; not where values vary."""
    dot = summary.dot
    if dot is None or dot.mean is None or dot.row.varied:
        return {}
    found = {WITHOUT_A_NETWORK[key][0]: value - dot.mean for key, value in summary.floors.items()}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _scale(axes: Axes, reach: float, margin: float) -> None:
    """Linear, or logarithmic away from zero where one row is far off."""
    axes.set_xlim(-reach, reach)
    if reach <= SPREAD_OUT * margin or not margin:  # dot scores 0, and so does its margin
        axes.xaxis.set_major_locator(MaxNLocator(5, symmetric=True))
    else:
        near = 2 * margin
        axes.set_xscale("symlog", linthresh=near, linscale=1.2)
        axes.set_xlim(-1.4 * reach, 1.4 * reach)
        round_ones = [k * 10.0**power for power in range(-6, 7) for k in (1, 2, 3, 5)]
        marks = [v for v in round_ones if near * 0.999 <= v <= reach] or [near]  # as floats go
        shown = marks[:: max(1, len(marks) - 1)]  # the first and the last have room for numbers
        ticks = sorted({0.0, *shown, *(-value for value in shown)})
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(SIGNED)


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
        axes.set_ylabel(f"{literal(summary.metric_name)} (better {UP})")
        axes.legend(fontsize=8)
        return to_svg(figure, f"{summary.metric_name} by {key}, one line per variant")


def quality_and_speed(summary: Summary) -> str:
    """Every row's metric against its training speed, and the rows that no other beats in both."""
    relative = any(line.relative["training"] for line in summary.lines)
    if not relative and len(machines(summary.finished)) > 1:
        return ""
    costs = [(line.relative if relative else line.cost)["training"] for line in summary.drawn]
    unit = "times dot's" if relative else "tokens per second"
    label = f"training speed, {unit} (faster {RIGHT})"
    return _front(summary, costs, label, "Quality against training speed, with the Pareto front")


def quality_and_cache(summary: Summary) -> str:
    """The same against what decoding keeps of a token; empty where all rows keep as much."""
    costs = [line.cost["cache"] for line in summary.drawn]
    if len({*costs} - {None}) < 2:
        return ""
    title = "Quality against the cache of a token, with the Pareto front"
    return _front(summary, costs, f"cache, bytes per token (smaller {RIGHT})", title, along=-1)


def _front(
    summary: Summary, costs: Sequence[float | None], label: str, title: str, *, along: int = 1
) -> str:
    """Quality against a cost, better being right (along it, or against it: -1) and up."""
    points = [
        (line, cost, line.mean)
        for line, cost in zip(summary.drawn, costs, strict=True)
        if cost is not None and line.mean is not None and math.isfinite(line.mean)
    ]
    if len(points) < 2:
        return ""
    sign = summary.sign
    with drawing(3.6) as (figure, axes):
        if sign < 0:
            axes.invert_yaxis()
        if along < 0:
            axes.invert_xaxis()
        front = pareto([(along * cost, sign * mean) for _, cost, mean in points])
        spread = max(line.sd or 0.0 for line, *_ in points)
        edge = sign * lower_edge([sign * mean for *_, mean in points], spread)
        heights = [sign * max(sign * mean, sign * edge) for *_, mean in points]
        path = sorted(((points[place][1], heights[place]) for place in front), reverse=along < 0)
        axes.step(*zip(*path, strict=True), where="pre", color=MUTED, linewidth=1, zorder=1)
        names = []
        for order, ((line, cost, mean), height) in enumerate(zip(points, heights, strict=True)):
            look = look_of(line.index)
            colour = look["color"]
            inside = colour if order in front else "none"
            axes.plot(
                cost, height, look["marker"], color=colour, markerfacecolor=inside, markersize=7
            )
            if height == mean and line.sd:
                bar = [mean - line.sd, mean + line.sd]
                axes.plot([cost, cost], bar, color=colour, linewidth=1, alpha=0.6, zorder=1)
            if height != mean:
                far = f"{mean:.{summary.digits}f} \N{DOWNWARDS ARROW}"
                axes.annotate(far, (cost, height), (0, 8), textcoords="offset points",
                              ha="center", fontsize=8, color=colour)  # fmt: skip
            names.append((line.row.label, look, order in front))
        axes.set_xlabel(label)
        axes.set_ylabel(f"{literal(summary.metric_name)} (better {UP})")
        axes.margins(0.08)
        list_at_right(axes, names)
        return to_svg(figure, title)


def lower_edge(scores: Sequence[float], spread: float = 0.0) -> float:
    """The least score to draw: the worst, or below the others where the worst are far off.

    Scores that lie together are taken to lie as far apart as seeds do.
    """
    ranked = sorted(scores, reverse=True)
    kept = len(ranked)
    while (
        kept > 3
        and ranked[0] - ranked[kept - 1] > FAR * max(ranked[0] - ranked[kept - 2], spread) > 0
    ):
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
    rows = []
    for line in summary.drawn:
        tried = settings_tried(trials_of(summary, line.row.trials))
        rated = [
            (rate, one) for one in tried if (rate := learning_rate_of(one.changes)) is not None
        ]
        if rated:
            rows.append((line, sorted(rated, key=lambda pair: pair[0])))
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
        every = sorted({rate for _, points in rows for rate, _ in points})
        axes.xaxis.set_major_locator(FixedLocator([every[0], every[len(every) // 2], every[-1]]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:.2g}"))
        axes.set_xlabel("learning rate")
        axes.set_ylabel(f"validation {literal(summary.metric_name)} (better {UP})")
        axes.margins(0.08)
        list_at_right(axes, [(line.row.label, look_of(line.index), True) for line, _ in rows])
        return to_svg(figure, "Validation score by learning rate, one point per trial")


def learning_curves(summary: Summary) -> list[Plot]:
    """Training loss and the main metric on validation by step, and the latter by time.

    The last is empty where machines differ, or tell no seconds.
    """
    name = f"validation {literal(summary.metric_name)}"

    def seconds_per_step(line: Line) -> float | None:
        told = [
            seconds / run.recipe["train"]["steps"]
            for run in line.row.finished
            if (seconds := run.told("training_seconds"))
        ]
        return float(np.mean(told)) if told else None

    def validation(entry: dict[str, Any]) -> float | None:
        found: float | None = entry.get("validation", {}).get(summary.metric)
        return found

    sign, alike = summary.sign, len(machines(summary.finished)) == 1
    loss = _curves(summary, lambda e: e.get("loss"), "training loss, nats per target", 1)
    by_step = _curves(summary, validation, name, sign)
    seconds = "seconds of training", seconds_per_step
    by_time = _curves(summary, validation, name, sign, *seconds) if alike else ""
    return [
        Plot(loss, "Mean over seeds; the band is their range."),
        Plot(by_step, "The same on validation; up is better."),
        Plot(by_time, "The same against the seconds that training took, evaluation left out."),
    ]


def _curves(
    summary: Summary,
    read: Callable[[dict[str, Any]], float | None],
    name: str,
    sign: int,
    across: str = "step",
    unit: Callable[[Line], float | None] = lambda line: 1.0,
) -> str:
    """Mean over seeds and, as a band, their range; unfinished runs go as far as they came."""
    curves = []
    for line in summary.drawn:
        values: dict[int, list[float]] = {}
        for entry in (entry for run in line.row.runs for entry in run.lines):
            value = read(entry)
            if value is not None and math.isfinite(value):
                values.setdefault(int(entry["step"]), []).append(value)
        scale = unit(line)
        if values and scale is not None:
            found = [(step, np.mean(at), min(at), max(at)) for step, at in sorted(values.items())]
            curve = np.array(found).T  # (4, steps): step, mean, least and most
            curve[0] *= scale
            curves.append((line, curve))
    if not curves:
        return ""
    with drawing(3.4) as (figure, axes):
        ends = []
        for line, curve in curves:
            steps, mean, low, high = _thinned(curve)
            look = look_of(line.index)
            axes.fill_between(steps, low, high, color=look["color"], alpha=0.15, linewidth=0)
            marker = look["marker"] if len(steps) == 1 else ""
            axes.plot(
                steps, mean, color=look["color"], linestyle=look["linestyle"], marker=marker,
                linewidth=1.5 if line.index else 2,
            )  # fmt: skip
            ends.append(End(float(steps[-1]), float(mean[-1]), line.row.label, look))
        longest = max(curve.shape[1] for _, curve in curves)
        thinned = f" (thinned to {MOST_POINTS:,} points, extremes kept)"
        axes.set_xlabel(across + thinned * (longest > MOST_POINTS))
        axes.set_ylabel(name)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 2.5, 5, 10]))
        if sign < 0:
            axes.invert_yaxis()
        figure.draw_without_rendering()
        name_at_right(axes, ends)
        return to_svg(figure, f"{name} by {across}, one curve per row")


def _thinned(curve: Array) -> Array:
    """At most MOST_POINTS of a curve: its ends, and the least and the most of every stretch."""
    _, _, low, high = curve
    if len(low) <= MOST_POINTS:
        return curve
    kept = {0, len(low) - 1}
    for part in np.array_split(np.arange(len(low)), MOST_POINTS // 2 - 1):
        kept |= {int(part[low[part].argmin()]), int(part[high[part].argmax()])}
    return curve[:, sorted(kept)]


# The plots of attention.npz, of each row's first finished run.


def shown_lines(summary: Summary) -> list[Line]:
    """The rows whose attention is drawn: the paper's four, or the first few that have any."""
    maps = {f"{stack}.map" for stack in STACKS}
    able = [line for line in summary.lines if maps & arrays_of(line).keys()]
    first = {line.row.spec: line for line in reversed(able)}
    named = [first[spec] for spec in SHOWN if spec in first]
    others = [line for line in able if line not in named]
    return [*named, *others][:MOST]


def mixtures(summary: Summary) -> list[Line]:
    """The rows whose mixture weights are drawn."""
    mixed = [line for line in summary.lines if "+" in line.row.spec and line.row.finished]
    return mixed[:MOST_MIXTURES]


def arrays_of(line: Line) -> dict[str, Array]:
    """What the first finished run of a row keeps of its attention."""
    return line.row.finished[0].arrays("attention.npz") if line.row.finished else {}


def attention_plots(
    lines: Sequence[Line],
    key: str,
    draw: Callable[[Line, str, dict[str, Array]], str],
    what: str = "",
) -> list[Plot]:
    """What is drawn of these arrays of each row that has them, encoders first."""
    found = [(line, arrays_of(line)) for line in lines]
    return [
        Plot(
            draw(line, stack, arrays),
            f"seed {line.row.finished[0].seed}" + (f", {what}" if what else ""),
            f"{line.row.label}, {stack}",
        )
        for stack in STACKS
        for line, arrays in found
        if {f"{stack}.map", f"{stack}.{key}"} <= arrays.keys()
    ]


def mosaic(line: Line, stack: str, arrays: dict[str, Array]) -> str:
    """Layers downwards, heads to the right, of one test example."""
    maps = arrays[f"{stack}.map"].astype(np.float64) / 255  # (layers, heads, T, T)
    chosen = np.unique(np.linspace(0, len(maps) - 1, MOST_LAYERS).round().astype(int))
    numbers = arrays.get(f"{stack}.layers", np.arange(len(maps)))[chosen]
    maps = maps[chosen]
    layers, heads, rows, columns = maps.shape
    padded = np.pad(maps, ((0, 0), (0, 0), (0, GAP), (0, GAP)), constant_values=np.nan)
    image = np.concatenate([np.concatenate(list(layer), axis=1) for layer in padded], axis=0)
    with drawing(0.75 + 3.8 * layers / heads) as (figure, axes):
        axes.grid(visible=False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        drawn = axes.imshow(
            image[:-GAP, :-GAP], cmap="viridis", norm=PowerNorm(0.5, 0, 1), interpolation="none"
        )
        axes.set_xticks([(columns + GAP) * h + columns / 2 for h in range(heads)])
        axes.set_xticklabels([f"head {h + 1}" if heads <= 8 else str(h + 1) for h in range(heads)])
        axes.set_yticks([(rows + GAP) * n + rows / 2 for n in range(layers)])
        axes.set_yticklabels([f"layer {number + 1}" for number in numbers])
        axes.xaxis.tick_top()
        axes.tick_params(length=0, labelsize=9)
        bar = figure.colorbar(
            drawn, ax=axes, orientation="horizontal", aspect=45, pad=0.03, fraction=0.05
        )
        bar.set_ticks([0, 0.05, 0.25, 0.5, 1])
        bar.ax.tick_params(labelsize=8)
        bar.outline.set_visible(False)
        bar.set_label("weight; queries downwards, keys to the right", fontsize=9)
        return to_svg(figure, f"Attention maps of {line.row.label}, {stack}, by layer and head")


def words_of(arrays: dict[str, Array], stack: str) -> list[str]:
    """The tokens of a stack's maps; none where a run kept none."""
    kept = arrays.get(f"{stack}.tokens", np.empty(0))[:MOST_BYTES].astype(np.uint8).tobytes()
    return kept.decode(errors="replace").split("\0")[:-1]


def by_token(line: Line, stack: str, arrays: dict[str, Array]) -> str:
    """The last layer, the mean of its heads, with the tokens on both axes."""
    words = [shortened(literal(word).strip()) for word in words_of(arrays, stack)[:MOST_TOKENS]]
    count = len(words)
    weights = arrays[f"{stack}.map"][-1].mean(0)[:count, :count] / 255
    if weights.shape != (count, count) or not count:
        return ""
    with drawing(4.2) as (figure, axes):
        axes.grid(visible=False)
        axes.imshow(weights, cmap="viridis", norm=PowerNorm(0.5, 0, 1), interpolation="none")
        axes.set_xticks(range(count), words, rotation=90)
        axes.set_yticks(range(count), words)
        axes.tick_params(length=0, labelsize=8)
        axes.set_xlabel("keys")
        axes.set_ylabel("queries")
        return to_svg(figure, f"Attention of {line.row.label}, {stack}, last layer, by token")


def histogram(line: Line, stack: str, arrays: dict[str, Array]) -> str:
    """The distribution of the weights before and after training, all layers together."""
    counts, edges = arrays[f"{stack}.histogram"].sum(1), arrays["edges"]  # (2, bins)
    looks = (("start", MUTED, (0, (4, 2))), ("end", BLUE, "-"))
    with drawing(2.5) as (figure, axes):
        for moment, (name, colour, dashes) in zip(counts, looks, strict=True):
            share = 100 * moment / max(1, moment.sum())
            axes.stairs(share, edges, color=colour, linestyle=dashes, linewidth=1.6, label=name)
        axes.set_xlim(edges[0], edges[-1])
        powers = [f"{10.0**power:g}" for power in range(-3, 1)]
        axes.set_xticks(range(-6, 1), ["\N{LESS-THAN OR EQUAL TO}1e-6", "1e-5", "1e-4", *powers])
        axes.set_xlabel("attention weight")
        axes.set_ylabel("share of weights, %")
        axes.legend(loc="upper left")
        return to_svg(figure, f"Attention weights of {line.row.label}, {stack}, at start and end")


def alphas(line: Line, stack: str, arrays: dict[str, Array]) -> str:
    """The learned weights of a mixture's parts, by layer and head."""
    found = arrays[f"{stack}.alphas"]  # (layers, heads, parts)
    layers, heads, parts = found.shape
    names = line.row.spec.split("+")
    if len(names) != parts or "," in line.row.spec:
        names = [f"part {part + 1}" for part in range(parts)]
    offsets = np.linspace(-0.3, 0.3, heads) if heads > 1 else np.zeros(1)
    places = (np.arange(layers)[:, None] + 1 + offsets).ravel()
    with drawing(2.6) as (figure, axes):
        for part, name in enumerate(names):
            look = look_of(part + 1)
            axes.plot(
                places, found[:, :, part].ravel(), look["marker"], color=look["color"],
                markersize=5, label=literal(name),
            )  # fmt: skip
        axes.axhline(1 / parts, color=TEXT, linewidth=0.8, linestyle=(0, (4, 2)))
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlim(0.4, layers + 0.6)
        axes.set_xticks(range(1, layers + 1))
        axes.set_xlabel(f"layer; its {heads} heads from left to right")
        axes.set_ylabel("alpha (dashed: start)")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.18), ncols=parts)
        return to_svg(figure, f"Learned alphas of {line.row.label}, {stack}, by layer and head")
