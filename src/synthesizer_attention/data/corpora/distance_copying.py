"""Copying by a distance that the input names: say the letter that stood so many tokens back.

    input    c2 a1 f3 b1 e2 ...      a token is a letter and a distance
    target   _  c  _  f  f  ...      not scored where the distance leads before the row

With one distance a position table solves it (the probe `shift`). With several, where to attend
depends on the input: a table can fetch one distance per head and leave the choice to the
feed-forward layer, so that it lasts as long as its heads; a dot product with positions can go
wherever a token says. The difficulty is the number of distances.
"""

from random import Random

from synthesizer_attention.data.corpora.drawing import (
    DRAW,
    Row,
    Splits,
    check_difficulty,
    draw_splits,
)

LETTERS = tuple("abcdefgh")
SIZES = {"train": 12_000, "validation": 500, "test": 1_000}


def splits(seed: int = DRAW, *, difficulty: int = 4, length: int = 32, **sizes: int) -> Splits:
    """Rows of letters with distances from 1 to `difficulty`."""
    check_difficulty(difficulty, length - 1, "distances")

    def draw(rng: Random) -> Row:
        letters = rng.choices(LETTERS, k=length)
        back = [rng.randint(1, difficulty) for _ in letters]
        target = [letters[i - n] if n <= i else "_" for i, n in enumerate(back)]
        tokens = [f"{letter}{n}" for letter, n in zip(letters, back, strict=True)]
        return {"input": " ".join(tokens), "target": " ".join(target)}

    return draw_splits(draw, "input", seed, SIZES | sizes)
