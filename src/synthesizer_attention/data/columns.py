"""Which column plays which role, what a row's fields hold, and what becomes of bad rows."""

import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from synthesizer_attention.data.files import Row
from synthesizer_attention.errors import UserError, listed

NAMES = {
    "source": ("source", "src", "input", "en", "english", "article", "document", "dialogue"),
    "target": ("target", "tgt", "output", "de", "german", "fr", "french", "summary", "highlights"),
    "text": ("text", "sentence", "content", "review", "comment", "body", "message", "document"),
    "text_pair": ("text_pair",),
    "label": ("label", "labels", "class", "category", "target", "sentiment", "stars", "rating"),
    "dialog": ("dialog", "dialogue", "turns", "utterances", "conversation", "messages"),
    "persona": ("personality", "persona"),
    "reply": ("reply", "response", "answer", "target"),
    "history": ("history", "context", "prompt", "source"),
    "input": ("input",),
    "heading": ("title", "subject", "headline", "heading", "summary"),
    "asked": ("question", "query", "premise", "hypothesis", "claim"),
}
"""Names by which a role's column is known, the likeliest first, whatever their case."""

T = TypeVar("T")

SAMPLE = 1000  # rows that columns are inferred from
_MAX_LABELS = 1000
HASH = 16  # bytes


class BadRow(Exception):  # noqa: N818  not an error until Faults makes it one
    """Why a row cannot be an example."""


@dataclass
class Faults:
    """Bad rows, counted by their cause; without skip_bad the first is an error.

    The error waits for the end of the split, so that it can say how many rows are bad, unless the
    split is one that is never read to its end.
    """

    skip: bool
    endless: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    first: str | None = None

    def note(self, row: Row, cause: str) -> None:
        """Count a bad row."""
        self.counts[cause] += 1
        self.first = self.first or f"{row.file}, row {row.number}: {cause}"
        if self.endless:
            self.check("")

    def check(self, share: str) -> None:
        """Stop at the first bad row unless such rows are skipped."""
        if self.first and not self.skip:
            raise UserError(
                f"{self.first}; fix the row, or set data.skip_bad=true to leave such rows out and "
                f"have them counted{share}"
            )


def read_rows(rows: Iterable[Row], read: Callable[[Row], T], faults: Faults) -> Iterator[T]:
    """What `read` makes of each good row."""
    number = 0
    for number, row in enumerate(rows, start=1):  # noqa: B007  counted once, at the end
        try:
            if row.fault:
                raise BadRow(row.fault)
            made = read(row)
        except BadRow as cause:
            faults.note(row, str(cause))
            continue
        yield made
    bad = faults.counts.total()
    faults.check(f" ({bad:,} of {number:,} rows, {bad / max(1, number):.1%})")


def flat_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields with those of structs beside them: {"translation": {"en": x}} is translation.en."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        inner = value.items() if isinstance(value, Mapping) else ()
        flat |= {f"{name}.{key}": item for key, item in inner} or {name: value}
    return flat


def names_in(sample: Sequence[Mapping[str, Any]], share: float = 0.0) -> list[str]:
    """The columns that more than a share of the rows have, in the order they are met."""
    counts = Counter(itertools.chain.from_iterable(sample))
    return [name for name, count in counts.items() if count > share * len(sample)]


def is_known(name: str, *roles: str) -> bool:
    """Whether a column, or the end of a dotted one, has a name by which a role is known."""
    return any(name.rpartition(".")[2].lower() in NAMES[role] for role in roles)


def value_of(row: Row, column: str) -> Any:  # noqa: ANN401  whatever the file holds
    """A field; 'translation.en' reads a struct, or the column 'en' of a flat copy."""
    if column in row.fields:
        value = row.fields[column]
    else:
        struct, _, inner = column.partition(".")
        value = row.fields.get(struct, row.fields)
        value = value.get(inner) if inner and isinstance(value, Mapping) else None
        if value is None:
            raise BadRow(f"column '{column}' is missing")
    if value is None:
        raise BadRow(f"column '{column}' is empty")
    return value


def text_of(row: Row, column: str, *, blank: bool = False) -> str:
    """A field that is text, or a list of texts joined by spaces; empty only where blank may be."""
    value = row.fields.get(column)
    if type(value) is str and value.isascii() and value.strip():
        return value  # most are: what follows costs a third of the time a csv is read in
    value = value_of(row, column)
    parts = value if isinstance(value, list) else [value]
    if not isinstance(value, str) and not all(isinstance(part, str) for part in parts):
        raise BadRow(f"column '{column}' holds {type(value).__name__}, not text")
    text = value if isinstance(value, str) else " ".join(parts)
    check_utf8(text, column)
    if not blank and not text.strip():
        raise BadRow(f"column '{column}' is empty")
    return text


def texts_of(row: Row, column: str) -> list[str]:
    """A field that is a list of texts; the empty ones are left out."""
    value = value_of(row, column)
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise BadRow(f"column '{column}' holds {type(value).__name__}, not a list of texts")
    for part in value:
        check_utf8(part, column)
    return [part.strip() for part in value if part.strip()]


def check_utf8(text: str, column: str) -> None:
    """Refuse what was not UTF-8 in the file."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRow(f"column '{column}' is not UTF-8") from None


def label_of(row: Row, column: str) -> str:
    """A field that names a class: text, or a number written out."""
    value = row.fields.get(column)
    if type(value) is str and value.isascii() and (text := value.strip()):
        return text
    value = value_of(row, column)
    if isinstance(value, list | Mapping):
        raise BadRow(f"column '{column}' holds a {type(value).__name__}; expected one label a row")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    check_utf8(text, column)
    if not text:
        raise BadRow(f"column '{column}' is empty")
    return text


def label_number(label: str, labels: tuple[str, ...], column: str) -> int:
    """The number of a label by its name, or the number itself."""
    if label in labels:
        return labels.index(label)
    if label.isdecimal() and int(label) < len(labels):
        return int(label)
    raise BadRow(f"unknown label '{label[:100]}' in column '{column}'; known are {listed(labels)}")


def draw(rows: Iterable[Row], size: int) -> tuple[list[Row], int]:
    """Up to `size` rows from all over, in their order, and how many there are in all.

    The draw has a fixed seed: the first rows of a sorted file, and every so-manieth of one whose
    labels come in turn, are all alike.
    """
    rng, chosen, number = random.Random(0), dict[int, tuple[int, Row]](), 0
    for number, row in enumerate(rows, start=1):
        place = number - 1 if number <= size else rng.randrange(number)
        if place < size:
            chosen[place] = number, row
    return [row for _, row in sorted(chosen.values(), key=lambda pair: pair[0])], number


def infer_columns(
    rows: Iterable[Row], roles: tuple[str, ...], given: Mapping[str, str]
) -> dict[str, str]:
    """The column of each role: as given, by a known name, else by what the columns hold."""
    unknown = [role for role in given if role not in roles]
    if unknown:
        raise UserError(
            f"data.columns names the role '{unknown[0]}'; this task has {', '.join(roles)}"
        )
    sample = [flat_fields(row.fields) for row in rows if not row.fault]
    if not sample:
        raise UserError("the train split has no readable row; check data.train")
    names = names_in(sample)
    chosen = dict(given)
    for role, column in given.items():
        if column not in names and column.partition(".")[2] not in names:  # of a flat copy
            raise UserError(
                f"data.columns.{role} is '{column}'; the data has the columns {listed(names)}"
            )
    for role in roles:
        free = [name for name in names if name not in chosen.values()]
        known = [
            name
            for wanted in NAMES[role]
            for name in free
            if name.rpartition(".")[2].lower() == wanted
        ]
        if role not in chosen and known:
            chosen[role] = known[0]
    for role in roles:
        free = [name for name in names if name not in chosen.values()]
        if role not in chosen:
            chosen[role] = _guess(role, free, names, sample)
    return {role: chosen[role] for role in roles}


def _guess(role: str, free: list[str], names: list[str], sample: list[dict[str, Any]]) -> str:
    """For a label the column with the fewest values, for a text the next (or longest) of text."""
    texts = [name for name in free if all(isinstance(row.get(name), str) for row in sample)]
    if role == "label" and free:
        distinct = {name: len({str(row.get(name)) for row in sample}) for name in free}
        return min(free, key=lambda name: distinct[name])
    if role == "text" and texts:
        return max(texts, key=lambda name: sum(len(row[name]) for row in sample))
    if texts:
        return texts[0]
    raise UserError(
        f"no column for the role '{role}' among {listed(names)}; set data.columns.{role}"
    )


def infer_labels(values: Iterable[str], column: str) -> tuple[str, ...]:
    """The different labels in order, numbers by size."""
    distinct = set()
    for value in values:
        distinct.add(value)
        if len(distinct) > _MAX_LABELS:
            raise UserError(
                f"column '{column}' has over {_MAX_LABELS:,} different values; expected classes: "
                "set data.columns.label"
            )
    if len(distinct) < 2:
        raise UserError(
            f"column '{column}' has {len(distinct)} label; a classifier needs two or more: "
            "set data.columns.label"
        )
    numeric = all(value.removeprefix("-").isdecimal() for value in distinct)
    return tuple(sorted(distinct, key=int if numeric else None))


def cut_splits(
    hashes: bytes | bytearray, missing: list[str], share: float | Mapping[str, float]
) -> NDArray[np.int64]:
    """The split of each example, 0 for train and n for the n-th missing one, cut from train.

    Splits are cut in the order of the examples' hashes, end to end in `hashes`; equal ones stay
    together. Adding rows moves few others, and an input that occurs twice is never in two splits.
    """
    ranks = rank_hashes(hashes)
    different = int(ranks.max(initial=-1)) + 1
    if different <= len(missing):
        raise UserError(
            f"train has {different} different examples, too few to cut {' and '.join(missing)} "
            "from it; give those files"
        )
    shares = [share[split] if isinstance(share, Mapping) else share for split in missing]
    most = (different - 1) // len(missing)
    ends = np.cumsum([min(max(1, round(part * different)), most) for part in shares])
    place = 1 + np.searchsorted(ends, ranks, side="right")
    return np.where(ranks < ends[-1], place, 0)


def rank_hashes(hashes: bytes | bytearray) -> NDArray[np.int64]:
    """The place of each hash among the different ones in order: a random order, always the same."""
    high, low = np.array(memoryview(hashes)).view(">u8").reshape(-1, HASH // 8).T.astype(np.uint64)
    order = np.lexsort((low, high))
    high, low = high[order], low[order]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.cumsum(begins) - 1
    return ranks


def hash_text(text: str) -> bytes:
    """A hash of a text, of HASH bytes."""
    return hashlib.blake2b(text.encode(), digest_size=HASH).digest()
