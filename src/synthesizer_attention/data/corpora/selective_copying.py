"""Selective copying: say the letters again in order, and none of the noise between them.

    input    . c . . a f . b > > > >        the noise is somewhere else in every row
    target   _ _ _ _ _ _ _ _ c a f b        scored where a letter is asked

Where a letter stands says nothing of its number: a model has to tell letters from noise. The
difficulty is the number of tokens without meaning.
"""

from random import Random

from synthesizer_attention.data.corpora.drawing import DRAW, Row, Splits, draw_splits

LETTERS = tuple("abcdefghijklmnop")
NOISE, ASK = ".", ">"
SIZES = {"train": 12_000, "validation": 500, "test": 1_000}


def splits(seed: int = DRAW, *, difficulty: int = 8, letters: int = 8, **sizes: int) -> Splits:
    """Rows of `letters` letters among `difficulty` tokens of noise, then as many questions."""

    def draw(rng: Random) -> Row:
        chosen = rng.choices(LETTERS, k=letters)
        places = set(rng.sample(range(letters + difficulty), letters))
        left = iter(chosen)
        given = [next(left) if place in places else NOISE for place in range(letters + difficulty)]
        return {
            "input": " ".join(given + [ASK] * letters),
            "target": " ".join(["_"] * len(given) + chosen),
        }

    return draw_splits(draw, "input", seed, SIZES | sizes)
