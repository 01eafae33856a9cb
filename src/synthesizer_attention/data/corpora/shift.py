"""A probe that positions solve: say the token that stood a fixed distance back.

input    d a f c b e ...        target of `_` is not scored
target   _ _ _ d a f ...
"""

from random import Random

from synthesizer_attention.data.corpora.drawing import DRAW, Row, Splits, draw_splits

TOKENS = tuple("abcdefghijklmnop")


def splits(seed: int = DRAW, *, length: int = 32, distance: int = 3, **sizes: int) -> Splits:
    """Rows of random letters; target[i] is input[i - distance]."""

    def draw(rng: Random) -> Row:
        tokens = rng.choices(TOKENS, k=length)
        target = ["_"] * distance + tokens[: length - distance]
        return {"input": " ".join(tokens), "target": " ".join(target)}

    return draw_splits(
        draw, "input", seed, {"train": 8_000, "validation": 500, "test": 1_000} | sizes
    )
