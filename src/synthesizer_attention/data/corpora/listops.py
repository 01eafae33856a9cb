"""ListOps after the Long Range Arena: nested lists of digits under MIN, MAX, MED and SM.

    [MAX 2 9 [MIN 4 7 ] 0 ]   ->   9

SM is the sum modulo 10; MED of an even count is the mean of the two middle values, rounded down.
Source is tokens between spaces: an operator carries its opening bracket, `]` closes, and each token
counts towards the length. The Long Range Arena's files also have parentheses, which its reader
drops before counting, and it reads X for `]`: the same 15 tokens. Defaults are the published
parameters.
"""

from collections.abc import Callable
from random import Random

from synthesizer_attention.data.corpora.drawing import DRAW, Row, Splits, draw_splits


def _median(values: list[int]) -> int:
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": _median,
    "[SM": lambda values: sum(values) % 10,
}
_NAMES = list(OPERATORS)
_OPERATOR_SHARE = 0.25


def splits(
    seed: int = DRAW,
    *,
    longer_than: int = 500,
    shorter_than: int = 2_000,
    max_depth: int = 10,
    max_args: int = 10,
    min_operators: int = 1,
    **sizes: int,
) -> Splits:
    """Lists of longer_than < tokens < shorter_than, none twice."""

    def draw(rng: Random) -> Row:
        while True:
            tokens: list[str] = []
            value = _grow(rng, tokens, max_depth, max_args, shorter_than)
            if longer_than < len(tokens) < shorter_than:
                source = " ".join(tokens)
                if source.count("[") >= min_operators:
                    return {"Source": source, "Target": str(value)}

    wanted = {"train": 96_000, "validation": 2_000, "test": 2_000} | sizes
    return draw_splits(draw, "Source", seed, wanted)


def short_splits(seed: int = DRAW, **sizes: int) -> Splits:
    """Lists small enough to learn in a minute: 10 < tokens < 60, at least two operators."""
    wanted = {"train": 20_000, "validation": 1_000, "test": 1_000} | sizes
    return splits(seed, longer_than=10, shorter_than=60, min_operators=2, **wanted)


def _grow(rng: Random, tokens: list[str], depth: int, max_args: int, limit: int) -> int:
    """Append one list of at most depth levels and return its value; past the limit give up growing.

    The published generator may also draw a lone digit, which no length limit here lets through.
    """
    name = _NAMES[int(rng.random() * len(_NAMES))]
    tokens.append(name)
    values = []
    for _ in range(2 + int(rng.random() * (max_args - 1))):
        if depth > 2 and rng.random() < _OPERATOR_SHARE and len(tokens) < limit:
            values.append(_grow(rng, tokens, depth - 1, max_args, limit))
        else:
            digit = int(rng.random() * 10)
            tokens.append(str(digit))
            values.append(digit)
    tokens.append("]")
    return OPERATORS[name](values)
