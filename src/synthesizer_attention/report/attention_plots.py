"""The plots of attention.npz: where the heads look, how large their weights are, what is mixed."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import PowerNorm
from numpy.typing import NDArray

from synthesizer_attention.report.blocks import Plot
from synthesizer_attention.report.style import BLUE, MUTED, TEXT, drawing, literal, look_of, to_svg
from synthesizer_attention.report.summary import Line, Summary

SHOWN = ("dot", "random", "dense", "random+dot")
MOST = 4  # rows side by side where the table has others
MOST_LAYERS = 6
MOST_MIXTURES = 8
STACKS = ("encoder", "decoder")
GAP = 2  # pixels between maps

Array = NDArray[Any]


def shown_lines(summary: Summary) -> list[Line]:
    """The rows whose attention is drawn: the paper's four, or the first few that have any."""
    able = [line for line in summary.lines if line.row.finished and _stacks(line)]
    first = {line.row.spec: line for line in reversed(able)}
    named = [first[spec] for spec in SHOWN if spec in first]
    others = [line for line in able if line not in named]
    return [*named, *others][:MOST]


def attention_maps(lines: Sequence[Line]) -> list[Plot]:
    """One mosaic per row and stack: layers downwards, heads to the right, one test example."""
    return _plots(lines, "map", _mosaic)


def weight_histograms(lines: Sequence[Line]) -> list[Plot]:
    """The distribution of the weights before and after training, all layers together."""
    return _plots(lines, "histogram", _histogram)


def alpha_plots(summary: Summary) -> list[Plot]:
    """The learned weights of each mixture's parts, by layer and head."""
    mixed = [line for line in summary.lines if "+" in line.row.spec and line.row.finished]
    return _plots(mixed[:MOST_MIXTURES], "alphas", _alphas)


def _plots(
    lines: Sequence[Line], key: str, draw: Callable[[Line, str, dict[str, Array]], str]
) -> list[Plot]:
    """Whatever of the rows has the arrays, encoders first."""
    return [
        Plot(draw(line, stack, arrays), f"seed {seed}", f"{line.row.label}, {stack}")
        for wanted in STACKS
        for line in lines
        for seed, arrays, stack in _each_stack(line)
        if stack == wanted and f"{stack}.{key}" in arrays
    ]


def _stacks(line: Line) -> list[str]:
    return [stack for _, _, stack in _each_stack(line)]


def _each_stack(line: Line) -> list[tuple[int, dict[str, Array], str]]:
    """Seed, arrays and stack, of the row's first finished run."""
    if not line.row.finished:
        return []
    run = line.row.finished[0]
    arrays = run.arrays("attention.npz")
    return [(run.seed, arrays, s) for s in STACKS if f"{s}.map" in arrays]


def _mosaic(line: Line, stack: str, arrays: dict[str, Array]) -> str:
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


def _histogram(line: Line, stack: str, arrays: dict[str, Array]) -> str:
    counts, edges = arrays[f"{stack}.histogram"].sum(1), arrays["edges"]  # (2, bins)
    with drawing(2.5) as (figure, axes):
        for moment, name, colour, dashes in (
            (counts[0], "start", MUTED, (0, (4, 2))),
            (counts[1], "end", BLUE, "-"),
        ):
            share = 100 * moment / max(1, moment.sum())
            axes.stairs(share, edges, color=colour, linestyle=dashes, linewidth=1.6, label=name)
        axes.set_xlim(edges[0], edges[-1])
        powers = [f"{10.0**power:g}" for power in range(-3, 1)]
        axes.set_xticks(range(-6, 1), ["\N{LESS-THAN OR EQUAL TO}1e-6", "1e-5", "1e-4", *powers])
        axes.set_xlabel("attention weight")
        axes.set_ylabel("share of weights, %")
        axes.legend(loc="upper left")
        return to_svg(figure, f"Attention weights of {line.row.label}, {stack}, at start and end")


def _alphas(line: Line, stack: str, arrays: dict[str, Array]) -> str:
    alphas = arrays[f"{stack}.alphas"]  # (layers, heads, parts)
    layers, heads, parts = alphas.shape
    names = line.row.spec.split("+")
    if len(names) != parts or "," in line.row.spec:
        names = [f"part {part + 1}" for part in range(parts)]
    offsets = np.linspace(-0.3, 0.3, heads) if heads > 1 else np.zeros(1)
    with drawing(2.6) as (figure, axes):
        for part, name in enumerate(names):
            look = look_of(part + 1)
            places = (np.arange(layers)[:, None] + 1 + offsets).ravel()
            axes.plot(
                places, alphas[:, :, part].ravel(), look["marker"], color=look["color"],
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
