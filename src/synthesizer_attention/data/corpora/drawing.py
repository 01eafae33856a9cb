"""Rows drawn from a generator, each once, into train, validation and test."""

from collections.abc import Callable, Iterator
from random import Random

from synthesizer_attention.errors import UserError

Row = dict[str, str]
Splits = dict[str, list[Row]]

DRAW = 1  # the seed of what is drawn; draw 0 has been looked at by the records before it

_PATIENCE = 10_000


def draw_splits(
    draw: Callable[[Random], Row], column: str, seed: int, sizes: dict[str, int]
) -> Splits:
    """Draw rows whose column differs from every other row's, in all splits together.

    Test and validation are drawn first: a longer or shorter train split leaves them as they are.
    """
    assert list(sizes) == ["train", "validation", "test"], sizes
    rows = _distinct(draw, column, Random(seed))
    drawn = {name: [next(rows) for _ in range(sizes[name])] for name in reversed(sizes)}
    return {name: drawn[name] for name in sizes}


def check_difficulty(difficulty: int, most: int, what: str) -> None:
    """Refuse a difficulty that a probe cannot have."""
    if not 1 <= difficulty <= most:
        raise UserError(
            f"data.difficulty is {difficulty}; it is the number of {what} here: choose 1 to {most}"
        )


def _distinct(draw: Callable[[Random], Row], column: str, rng: Random) -> Iterator[Row]:
    seen: set[str] = set()
    repeats = 0
    while repeats < _PATIENCE:
        row = draw(rng)
        if row[column] in seen:
            repeats += 1
            continue
        seen.add(row[column])
        repeats = 0
        yield row
    raise UserError(f"the corpus ran out after {len(seen):,} distinct rows; ask for smaller splits")
