"""ListOps small enough to learn in a minute: the same generator, shorter lists."""

from synthesizer.data.corpora import listops
from synthesizer.data.corpora.drawing import Splits


def splits(
    seed: int = 0, *, train: int = 20_000, validation: int = 1_000, test: int = 1_000
) -> Splits:
    """Lists of 10 < tokens < 60 with at least two operators, none twice."""
    return listops.splits(
        seed,
        train=train,
        validation=validation,
        test=test,
        longer_than=10,
        shorter_than=60,
        min_operators=2,
    )
