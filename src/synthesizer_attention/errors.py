"""The one exception a user is meant to read, its kinds, and what says that memory ran out."""

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_NO_MEMORY = re.compile(
    "can't allocate memory|out of memory|ALLOC_FAILED|(size calculation|multiplication) overflow"
)
"""How torch says that it wants more memory than there is, or than can be counted."""


class UserError(ValueError):
    """A mistake the user can fix: one line with what was found, what was expected, what to do."""


class OtherDataError(UserError):
    """The data are not those that a run or a comparison began with."""


def refuse_other_data(begun: object, before: str, now: str) -> None:
    """Stop what would go on with other data than it began with, by their identities."""
    if before != now:
        raise OtherDataError(
            f"{begun} began with other data (identity {before[:12]}, now {now[:12]}); restore "
            "them, choose another --out, or delete the directory to begin again"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python, the system or torch says that no memory is left (no torch)."""
    names = {kind.__name__ for kind in type(error).__mro__}
    said = isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None
    full = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return said or full or bool(names & {"MemoryError", "OutOfMemoryError"})


@contextmanager
def one_line_for_memory(advise: Callable[[], str]) -> Iterator[None]:
    """Say that memory ran out, whoever noticed, and which number to lower."""
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(f"memory ran out{advise()}") from None
