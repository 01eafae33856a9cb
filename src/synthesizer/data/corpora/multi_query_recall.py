"""Multi-query recall: say the values that several keys were bound to.

    input    c 12 f 3 k 7 | f c f k ...       letters are keys, numbers their values
    target   _ _  _ _ _ _ _ 3 12 3 7 ...      scored where a key is asked

A key and its value are two tokens, so that an answer takes two steps: put each key beside its
value, by position, then find the key that is asked, by content. The difficulty is the number of
keys of a row. In the noisy form every row has the same keys, and the difficulty is the number of
tokens without meaning that are strewn among its pairs.
"""

from random import Random

from synthesizer.data.corpora.drawing import DRAW, Row, Splits, check_difficulty, draw_splits

KEYS = tuple("abcdefghijklmnopqrstuvwxyz")
VALUES = tuple(str(number) for number in range(16))
NOISE = tuple(f"~{number}" for number in range(8))
ASK = "|"
SIZES = {"train": 12_000, "validation": 500, "test": 1_000}


def splits(seed: int = DRAW, *, difficulty: int = 8, questions: int = 16, **sizes: int) -> Splits:
    """Rows of `difficulty` pairs, then of `questions` keys among them."""
    check_difficulty(difficulty, len(KEYS), "keys")
    return _splits(seed, difficulty, 0, questions, sizes)


def noisy_splits(
    seed: int = DRAW, *, difficulty: int = 8, pairs: int = 6, questions: int = 16, **sizes: int
) -> Splits:
    """The same with `difficulty` tokens of noise among the pairs."""
    return _splits(seed, pairs, difficulty, questions, sizes)


def _splits(seed: int, pairs: int, noise: int, questions: int, sizes: dict[str, int]) -> Splits:
    def draw(rng: Random) -> Row:
        value = {key: rng.choice(VALUES) for key in rng.sample(KEYS, pairs)}
        parts = [[key, value[key]] for key in value] + [[rng.choice(NOISE)] for _ in range(noise)]
        rng.shuffle(parts)
        given = [token for part in parts for token in part] + [ASK]
        asked = rng.choices(list(value), k=questions)
        answers = [value[key] for key in asked]
        return {"input": " ".join(given + asked), "target": " ".join(["_"] * len(given) + answers)}

    return draw_splits(draw, "input", seed, SIZES | sizes)
