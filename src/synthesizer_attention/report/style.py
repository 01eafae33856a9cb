"""How every plot looks: colours that follow the page's theme, text that stays text.

Plots are drawn in placeholder colours, which `to_svg` replaces by the page's CSS variables; so one
drawing serves light and dark. The palette is distinct for any colour vision, and every
curve carries its name beside it.
"""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from synthesizer_attention.errors import printable

WIDTH = 4.8  # inches: as wide as a phone, so that nothing shrinks there
LONGEST = 20  # letters of a name beside a curve
UP, RIGHT, MINUS = "\N{UPWARDS ARROW}", "\N{RIGHTWARDS ARROW}", "\N{MINUS SIGN}"
SIGNED = FuncFormatter(lambda v, _: f"{v:+.3g}".replace("-", MINUS) if abs(v) > 1e-12 else "0")
_THEME = {  # name: (placeholder, light, dark)
    "text": ("#0a0b00", "#1b1f24", "#e6e8eb"),
    "muted": ("#0a0b01", "#5b636e", "#a3abb5"),
    "line": ("#0a0b02", "#d5d9de", "#3a414a"),
    "shade": ("#0a0b03", "#eef1f5", "#22282f"),
    "page": ("#0a0b04", "#ffffff", "#14181d"),
    "c1": ("#0a0b05", "#0072b2", "#56b4e9"),
    "c2": ("#0a0b06", "#c44e00", "#ff9150"),
    "c3": ("#0a0b07", "#00805d", "#35d0a2"),
    "c4": ("#0a0b08", "#b0508a", "#eba6cd"),
    "c5": ("#0a0b09", "#8f6a00", "#e8c04d"),
    "c6": ("#0a0b0a", "#6a51a3", "#b9a3ec"),
}
TEXT, MUTED, LINE, SHADE, PAGE, BLUE, RED = (
    _THEME[name][0] for name in ("text", "muted", "line", "shade", "page", "c1", "c2")
)
_CYCLE = [_THEME[f"c{number}"][0] for number in range(1, 7)]
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
_MARKERS = "s^DvoPX"  # one more than colours, so that no pair comes twice
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "synthesizer",
    "font.size": 10,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "text.color": TEXT,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": TEXT,
    "ytick.labelcolor": TEXT,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
}


def look_of(place: int) -> dict[str, Any]:
    """Colour, dashes and marker of a row by index; the first is the one compared with."""
    if place == 0:
        return {"color": TEXT, "linestyle": "-", "marker": "o"}
    turn, colour = divmod(place - 1, len(_CYCLE))
    dashes = _DASHES[turn % len(_DASHES)]
    marker = _MARKERS[(place - 1) % len(_MARKERS)]
    return {"color": _CYCLE[colour], "linestyle": dashes, "marker": marker}


class End(NamedTuple):
    """Where a curve ends, and what it is called."""

    x: float
    y: float
    name: str
    look: dict[str, Any]


@contextmanager
def drawing(height: float, width: float = WIDTH) -> Iterator[tuple[Figure, Axes]]:
    """A figure with one pair of axes in the house style."""
    with rc_context(_SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.add_subplot()


def to_svg(figure: Figure, title: str) -> str:
    """The figure as an SVG element in the page's colours, described by a title."""
    stream = io.StringIO()
    with rc_context(_SETTINGS):
        none = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(stream, format="svg", transparent=True, metadata=none, bbox_inches="tight")
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    ours = r"<metadata>.*?</metadata>|<style .*?</style>|<!--.*?-->"  # the page has their style
    svg = re.sub(ours, "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r"(?<=[ ;\"])font: ([\d.]+px) [^;\"]*", r"font: \1 system-ui, sans-serif", svg)
    used = set(re.findall(r"#([\w-]+)", svg))
    svg = re.sub(r' id="([\w-]+)"', lambda m: m[0] if m[1] in used else "", svg)
    for name, (stand_in, _, _) in _THEME.items():
        svg = svg.replace(stand_in, f"var(--{name})")
    safe = escape(printable(title))
    return svg.replace("<svg", f'<svg role="img" aria-label="{safe}"', 1).strip()


def literal(name: str) -> str:
    """A user's name as a plot shows it: as it is, and no formula between dollar signs."""
    return printable(name).replace("$", r"\$")


def css_variables() -> str:
    """The colours of the page and its plots in both themes."""
    light = " ".join(f"--{name}: {colours[1]};" for name, colours in _THEME.items())
    dark = " ".join(f"--{name}: {colours[2]};" for name, colours in _THEME.items())
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    )


def name_at_right(axes: Axes, ends: Sequence[End]) -> None:
    """Write the names of curves in a column right of the axes, each tied to its end."""
    to_axes = axes.transData + axes.transAxes.inverted()
    points = [(*to_axes.transform((end.x, end.y)), end) for end in ends]
    points.sort(key=lambda point: point[1])
    for (x, y, end), place in zip(points, _spread([p[1] for p in points]), strict=True):
        sample = {"color": end.look["color"], "transform": axes.transAxes, "clip_on": False}
        axes.plot([x, 1.0, 1.03], [y, y, place], linewidth=0.5, alpha=0.45, **sample)
        dashes = end.look["linestyle"]
        axes.plot([1.03, 1.1], [place, place], linestyle=dashes, linewidth=1.6, **sample)
        _write(axes, 1.115, place, end.name, end.look["color"])


def list_at_right(
    axes: Axes, names: Sequence[tuple[str, dict[str, Any], bool]], gap: float = 0.07
) -> None:
    """Write the names of points right of the axes, in order, each with its marker, maybe filled."""
    for place, (name, look, filled) in enumerate(names):
        height = 0.98 - gap * place
        sample = {"color": look["color"], "transform": axes.transAxes, "clip_on": False}
        inside = look["color"] if filled else "none"
        axes.plot(1.04, height, look["marker"], markersize=5, markerfacecolor=inside, **sample)
        _write(axes, 1.07, height, name, look["color"])


def shortened(name: str) -> str:
    """A name of at most LONGEST letters: its beginning and its end, where rows often differ."""
    if len(name) <= LONGEST:
        return name
    end = (LONGEST - 1) // 2
    return f"{name[: LONGEST - 1 - end]}\N{HORIZONTAL ELLIPSIS}{name[-end:]}"


def _write(axes: Axes, x: float, y: float, name: str, colour: str) -> None:
    how: dict[str, Any] = {"color": colour, "fontsize": 9, "va": "center"}
    axes.text(x, y, literal(shortened(name)), transform=axes.transAxes, **how)


def _spread(heights: Sequence[float], gap: float = 0.075) -> list[float]:
    """Heights in rising order, moved as little as keeps them a gap apart.

    Less a gap for each name below, heights may not fall: neighbours that do share their mean.
    """
    groups: list[list[float]] = []
    for place, height in enumerate(heights):
        groups.append([height - gap * place])
        while len(groups) > 1 and np.mean(groups[-2]) > np.mean(groups[-1]):
            last = groups.pop()
            groups[-1] += last
    levels = [float(np.mean(group)) for group in groups for _ in group]
    room = max(0.0, 1.0 - gap * (len(levels) - 1))
    return [min(max(level, 0.0), room) + gap * place for place, level in enumerate(levels)]
