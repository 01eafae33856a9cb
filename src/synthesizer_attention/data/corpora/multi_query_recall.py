"""Multi-query recall: say the values that several keys were bound to.

    input    c 12 f 3 k 7 | f c f k ...       letters are keys, numbers their values
    target   _ _  _ _ _ _ _ 3 12 3 7 ...      scored where a key is asked

A key and its value are two tokens, so that an answer takes two steps: put each key beside its
value, by position, then find the key that is asked, by content. The difficulty is the number of
keys of a row.

    input    ~3 c12 ~0 ~5 f3 | f c f ...
    target   _  _   _  _  _  _ 3 12 3 ...

In the noisy form a pair is one token, so that content alone decides, every row has as many pairs,
and the difficulty is the number of tokens without meaning that are strewn among them.
"""

from collections.abc import Iterable
from random import Random

from synthesizer_attention.data.corpora.drawing import (
    DRAW,
    Row,
    Splits,
    check_difficulty,
    draw_splits,
)

KEYS = tuple("abcdefghijklmnopqrstuvwxyz")
VALUES = tuple(str(number) for number in range(16))
NOISE = tuple(f"~{number}" for number in range(8))
ASK = "|"
PAIRS = 8  # of a noisy row
QUESTIONS = 16
SIZES = {"train": 12_000, "validation": 500, "test": 1_000}


def splits(seed: int = DRAW, *, difficulty: int = 8, **sizes: int) -> Splits:
    """Rows of `difficulty` pairs of tokens, then of questions for them."""
    check_difficulty(difficulty, len(KEYS), "keys")

    def draw(rng: Random) -> Row:
        value = _bind(rng, difficulty)
        return _row(rng, value, [token for pair in value.items() for token in pair])

    return draw_splits(draw, "input", seed, SIZES | sizes)


def noisy_splits(seed: int = DRAW, *, difficulty: int = 8, **sizes: int) -> Splits:
    """Rows of pairs in one token each among `difficulty` tokens of noise, then of questions."""

    def draw(rng: Random) -> Row:
        value = _bind(rng, PAIRS)
        given = [key + value[key] for key in value] + rng.choices(NOISE, k=difficulty)
        rng.shuffle(given)
        return _row(rng, value, given)

    return draw_splits(draw, "input", seed, SIZES | sizes)


def _bind(rng: Random, count: int) -> dict[str, str]:
    return {key: rng.choice(VALUES) for key in rng.sample(KEYS, count)}


def _row(rng: Random, value: dict[str, str], given: Iterable[str]) -> Row:
    asked = rng.choices(list(value), k=QUESTIONS)
    before = [*given, ASK]
    target = ["_"] * len(before) + [value[key] for key in asked]
    return {"input": " ".join(before + asked), "target": " ".join(target)}
