"""Draw docs/images/picture.svg: what dot, dense and random read. python tools/picture.py.

Every cell is a weight that the layer computes, with parameters drawn once and words without
positions: equal words give equal columns and rows in dot, equal rows in dense, nothing in random.
"""

from pathlib import Path

import torch

from synthesizer_attention import SyntheticAttention

TEXTS = ("the cat sat on the mat", "the dog saw the red cat")
VARIANTS = {
    "dot": ("B[i,j] = q(x[i]) \N{MIDDLE DOT} k(x[j])", "reads both tokens"),
    "dense": ("B[i] = MLP(x[i])", "reads the query token alone"),
    "random": ("B = R, learned", "reads positions alone"),
}
SIZE, GAP, LEFT, TOP = 25, 2, 74, 112
STYLE = """text{font-family:system-ui,sans-serif;fill:#1b1f24}.t{font-weight:700;font-size:20px}
.e{font-family:ui-monospace,monospace;font-size:13px}.n{font-size:14px;fill:#57606a}
.w{font-size:11px}.m{fill:#0b4f8a}.h{fill:none;stroke:#bc4c00;stroke-width:2}
@media(prefers-color-scheme:dark){text{fill:#e6e8eb}.n{fill:#9aa4af}.m{fill:#79b8ff}.h{stroke:#f0883e}}
"""


def weights(synthesis: str, texts: tuple[str, ...]) -> list[list[list[float]]]:
    """The layer's attention weights for each text, one head."""
    generator = torch.Generator().manual_seed(5)
    words = sorted({word for text in texts for word in text.split()})
    vectors = dict(zip(words, torch.randn(len(words), 16, generator=generator), strict=True))
    layer = SyntheticAttention(d_model=16, num_heads=1, max_len=6, synthesis=synthesis)
    with torch.no_grad():
        for parameter in layer.parameters():
            scale = 1.6 if synthesis == "random" else 0.42
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
        batch = torch.stack([torch.stack([vectors[w] for w in text.split()]) for text in texts])
        found: list[list[list[float]]] = layer.weights(batch)[:, 0].tolist()
    return found


def draw() -> str:
    """The picture as SVG."""
    parts = []
    for place, (name, (equation, reads)) in enumerate(VARIANTS.items()):
        x = LEFT + 345 * place
        for css, y, said in (("t", 32, name), ("e", 56, equation), ("n", 78, reads)):
            parts.append(f'<text class="{css}" x="{x}" y="{y}">{said}</text>')
        maps = weights(name, TEXTS)
        for number, (text, rows) in enumerate(zip(TEXTS, maps, strict=True)):
            top = TOP + 200 * number
            words = text.split() if name != "random" else [str(n + 1) for n in range(6)]
            keys = words if name == "dot" else [str(n + 1) for n in range(6)]
            for i, row in enumerate(rows):
                y = top + i * (SIZE + GAP)
                parts.append(
                    f'<text class="w" x="{x - 6}" y="{y + 17}" text-anchor="end">{words[i]}</text>'
                    f'<text class="w" x="{x + i * (SIZE + GAP) + SIZE / 2}" y="{top - 6}" '
                    f'text-anchor="middle">{keys[i]}</text>'
                )
                parts += [
                    f'<rect class="m" x="{x + j * (SIZE + GAP)}" y="{y}" width="{SIZE}" '
                    f'height="{SIZE}" opacity="{0.06 + 0.94 * weight:.2f}"/>'
                    for j, weight in enumerate(row)
                ]
                if words[i] == "the" and name == "dense":
                    wide = 6 * (SIZE + GAP) + GAP
                    parts.append(
                        f'<rect class="h" x="{x - 2}" y="{y - 2}" width="{wide}" height="29"/>'
                    )
    told = (
        "Two texts. Rows are queries, columns keys; the layer computed every cell. In the boxes: "
    )
    told += "a word makes one row wherever it stands."
    parts.append(f'<text class="n" x="{LEFT}" y="502">{told}</text>')
    label = "dot reads both tokens, dense the query token alone, random positions alone"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1010 520" role="img" '
        f'aria-label="{label}">\n<style>{STYLE}</style>\n' + "\n".join(parts) + "\n</svg>\n"
    )


if __name__ == "__main__":
    home = Path(__file__).parents[1] / "docs" / "images"
    (home / "picture.svg").write_text(draw(), encoding="utf-8")
