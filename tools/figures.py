"""Draw the pictures of README.md from the records under results/: python tools/figures.py."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.colors import PowerNorm

from synthesizer_attention.run.records import opened

ROOT = Path(__file__).parents[1]
STUDY, SEED = opened(ROOT / "results" / "python-docs.zip"), "seed1"
ROWS = {
    "dot-positions=sinusoidal+relative-lr=0.012": "dot: every pair of tokens",
    "dense-lr=0.012-table_rate=10": "dense: its own token",
    "random-lr=0.00801-table_rate=45.8": "random: a learned table",
    "random+dot-lr=0.012-table_rate=10": "random+dot: a mixture",
}
THEMES = {"light": ("#1b1f24", "#ffffff"), "dark": ("#e6e8eb", "#0d1117")}


def draw(theme: str) -> None:
    """The second layer's attention on one test text, four heads for each of four variants."""
    text, page = THEMES[theme]
    with plt.rc_context({"text.color": text, "font.size": 11, "svg.hashsalt": theme}):
        widths = {"width_ratios": [1, 1, 1, 1, 0.15, 1, 1, 1, 1]}  # a gap between the variants
        figure, axes = plt.subplots(2, 9, figsize=(11.4, 3.25), facecolor=page, gridspec_kw=widths)
        for number, (row, title) in enumerate(ROWS.items()):
            top, left = divmod(number, 2)
            with np.load(STUDY / row / SEED / "attention.npz", allow_pickle=False) as file:
                maps = file["decoder.map"][1] / 255  # (H, T, T)
            for head, weights in enumerate(maps):
                at = axes[top, 5 * left + head]
                at.imshow(weights, cmap="viridis", norm=PowerNorm(0.5, 0, 1), interpolation="none")
            axes[top, 5 * left].set_title(title, loc="left", color=text, fontsize=12)
        for at in axes.flat:
            at.set_axis_off()
        figure.subplots_adjust(left=0.005, right=0.995, top=0.93, bottom=0.01, wspace=0.06)
        figure.savefig(ROOT / "docs" / "images" / f"attention-{theme}.png", dpi=110, facecolor=page)
        plt.close(figure)


if __name__ == "__main__":
    for theme in THEMES:
        draw(theme)
