"""A probe that needs content: say the value that this key was bound to.

    input    f3 b12 k7 b f f ...       letters are keys, numbers their values
    target   _  _   _  12 3 3 ...      scored where a key is asked

Each row binds its own keys to its own values and then asks for them, so the answer is in the
row and nowhere else. A model that cannot compare tokens can at best guess one of the row's values.
"""

from random import Random

from synthesizer_attention.data.corpora.drawing import DRAW, Row, Splits, draw_splits

KEYS = tuple("abcdefghijklmnopqrst")
VALUES = tuple(str(number) for number in range(20))


def splits(seed: int = DRAW, *, bindings: int = 12, questions: int = 24, **sizes: int) -> Splits:
    """Rows of `bindings` different keys, each with a value, then of `questions` keys among them."""

    def draw(rng: Random) -> Row:
        value = {key: rng.choice(VALUES) for key in rng.sample(KEYS, bindings)}
        asked = rng.choices(list(value), k=questions)
        bound = [key + value[key] for key in value]
        answers = [value[key] for key in asked]
        return {"input": " ".join(bound + asked), "target": " ".join(["_"] * bindings + answers)}

    return draw_splits(
        draw, "input", seed, {"train": 8_000, "validation": 500, "test": 1_000} | sizes
    )
