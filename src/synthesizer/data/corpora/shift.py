"""A probe that positions solve: say the token that stood a fixed distance back.

input    d a f c b e ...        target of `_` is not scored
target   _ _ _ d a f ...
"""

from random import Random

from synthesizer.data.corpora.drawing import Row, Splits, draw_splits

TOKENS = tuple("abcdefghijklmnop")


def splits(
    seed: int = 0,
    *,
    train: int = 8_000,
    validation: int = 500,
    test: int = 500,
    length: int = 32,
    distance: int = 3,
) -> Splits:
    """Rows of random letters; target[i] is input[i - distance]."""

    def draw(rng: Random) -> Row:
        tokens = rng.choices(TOKENS, k=length)
        target = ["_"] * distance + tokens[: length - distance]
        return {"input": " ".join(tokens), "target": " ".join(target)}

    return draw_splits(draw, "input", seed, train=train, validation=validation, test=test)
