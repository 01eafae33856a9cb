"""The exception that a user reads, and text of any origin made safe to show (no torch)."""

import errno
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

_NO_MEMORY = re.compile(
    "can't allocate memory|out of memory|ALLOC_FAILED|(size calculation|multiplication) overflow"
)
"""How torch says that it wants more memory than there is, or than can be counted."""
_CONTROL = r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"


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


def printable(text: str, *, lines: bool = False) -> str:
    r"""Text with control characters, terminal escapes and reversed writing spelled out, as \x1b.

    `lines` keeps line breaks and tabs.
    """
    pattern = rf"(?![\n\t]){_CONTROL}" if lines else _CONTROL
    return re.sub(pattern, lambda found: found[0].encode("unicode_escape").decode(), text)


def listed(names: Iterable[object], most: int = 10) -> str:
    """Names with commas between them; of many, and of long ones, the beginning."""
    every = [str(name) for name in names]
    shown = [name if len(name) <= 100 else f"{name[:100]}..." for name in every[:most]]
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return ", ".join(shown) + more


def plain(text: str) -> str:
    """Text as Markdown shows it: no link, no HTML, no emphasis, no new line."""
    escaped = re.sub(r"([\\`*\[\]<>|&~])", r"\\\1", printable(text))
    return re.sub(r"(?i)(\w)(://|(?<=www)\.)", r"\1&#8203;\2", escaped)  # readers link addresses


def fenced(code: str, language: str = "") -> str:
    """Preformatted text in Markdown, in a longer fence than any that it holds."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
    return f"{fence}{language}\n{printable(code, lines=True)}\n{fence}"
