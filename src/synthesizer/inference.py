"""From a user's own file to a recipe: task, columns, length and size, with reasons (no torch).

Every guess is a `--set` override of a built-in recipe: it can be said, changed and run again.
"""

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from synthesizer.columns import NAMES, infer_columns
from synthesizer.errors import UserError
from synthesizer.sources import Row, read_files

TASKS = ("classification", "translation", "summarization", "dialogue", "language_modeling")
EPOCHS = {"translation": 30, "summarization": 10}
LABEL_LENGTH = 40  # characters of a label, at most
SAMPLE = 2000  # rows


@dataclass(frozen=True)
class Guess:
    """A built-in recipe, what of it the data changes, and why, in words."""

    recipe: str
    overrides: tuple[str, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Scale:
    """A model that suits so much text; characters per token are of its vocabulary."""

    below: float  # characters of text
    d_model: int
    num_layers: int
    vocab_size: int
    characters: float
    batch_tokens: int
    lr: float


SCALES = (
    Scale(2e6, 64, 2, 2000, 2.5, 2048, 2e-3),
    Scale(2e7, 128, 2, 8000, 3.5, 4096, 1e-3),
    Scale(float("inf"), 256, 4, 16000, 4.0, 8192, 5e-4),
)


def is_data(name: str) -> bool:
    """Whether a user's word names data rather than a recipe."""
    path = Path(name)
    return path.suffix != ".toml" and (path.exists() or path.suffix not in ("", ".toml"))


def infer_recipe(name: str, task: str | None = None) -> Guess:
    """Guess what to do with a file; a task that is given is not guessed."""
    path = Path(name)
    sample = [row for row in islice(read_files((path,)), SAMPLE) if not row.fault]
    if not sample:
        raise UserError(f"{path} has no readable row; expected text, or rows with columns")
    fields = [row.fields for row in sample]
    labels = _label_columns(fields)
    texts = _text_columns(fields, labels)
    if task is None:
        task, reason = _guess_task(path, fields, labels, texts)
    elif task in TASKS:
        reason = "as you set it"
    else:
        raise UserError(
            f"task={task} cannot be inferred from a file; choose from {', '.join(TASKS)}"
        )
    columns = _choose_columns(task, sample, labels, texts)
    total = _characters(path)
    scale = next(scale for scale in SCALES if total < scale.below)
    overrides = {
        "name": path.stem,
        "data.train": str(path),
        **{f"data.columns.{k}": v for k, v in columns.items()},
    }
    sizes, words = _sizes(task, scale, total, _lengths(fields, columns))
    named = ", ".join(f"{role}: '{column}'" for role, column in columns.items())
    return Guess(
        task,
        tuple(f"{key}={json.dumps(value)}" for key, value in {**overrides, **sizes}.items()),
        (f"task: {task} ({reason})", f"columns: {named or 'none'}", *words),
    )


def _guess_task(
    path: Path, fields: list[dict[str, Any]], labels: list[str], texts: list[str]
) -> tuple[str, str]:
    names = list(fields[0])
    dialog = [name for name in names if _is_known(name, ["dialog"])]
    known = [name for name in labels if _is_known(name, ["label"])]
    if dialog and isinstance(fields[0][dialog[0]], list):
        return "dialogue", f"'{dialog[0]}' holds lists of turns"
    if not texts:
        raise UserError(
            f"{path} has the columns {', '.join(names)} and none of text; "
            "expected text and label, source and target, or text"
        )
    if known or (labels and len(texts) == 1):
        label = (known or labels)[0]
        number = len({str(row.get(label)) for row in fields})
        return "classification", f"'{label}' has {number} different values"
    if len(texts) >= 2:
        source, target = (_mean_length(fields, name) for name in texts[:2])
        if source > 3 * target:
            return "summarization", f"'{texts[1]}' is a third as long as '{texts[0]}', or less"
        return "translation", f"'{texts[0]}' and '{texts[1]}' are texts of similar length"
    return "language_modeling", f"'{texts[0]}' is text and nothing else is"


def _choose_columns(
    task: str, sample: list[Row], labels: list[str], texts: list[str]
) -> dict[str, str]:
    """The roles of a task, filled by names that are known, then by what looks like it."""
    if task == "language_modeling":
        return infer_columns(sample, ("text",), {})
    if task == "classification":
        known = [name for name in labels if _is_known(name, ["label"])]
        given = {"label": (known or labels)[0]} if labels else {}
        return infer_columns(sample, ("text", "label"), given)
    if task in ("translation", "summarization"):
        free = [name for name in texts if not _is_known(name, ("source", "target"))]
        missing = [role for role in ("source", "target") if not _finds(sample, role)]
        return infer_columns(sample, ("source", "target"), dict(zip(missing, free, strict=False)))
    return {}


def _is_known(name: str, roles: Iterable[str]) -> bool:
    return any(name.lower() in NAMES[role] for role in roles)


def _finds(sample: list[Row], role: str) -> bool:
    return any(_is_known(name, [role]) for name in sample[0].fields)


def _label_columns(fields: list[dict[str, Any]]) -> list[str]:
    """Columns of few, short values that come again and again; the fewest first."""
    found = {}
    for name in fields[0]:
        values = [str(row.get(name)) for row in fields]
        distinct = len(set(values))
        short = max(len(value) for value in values) <= LABEL_LENGTH
        if short and 2 <= distinct <= max(2, min(100, len(values) // 3)):
            found[name] = distinct
    return sorted(found, key=lambda name: found[name])


def _text_columns(fields: list[dict[str, Any]], labels: list[str]) -> list[str]:
    """Columns of strings that differ and have words in them, in the order of the file."""
    found = []
    for name in fields[0]:
        values = [row.get(name) for row in fields]
        strings = [value for value in values if isinstance(value, str)]
        if len(strings) < len(values) or name in labels:
            continue
        if len(set(strings)) > 1 and _mean_length(fields, name) >= 8:
            found.append(name)
    return found


def _sizes(
    task: str, scale: Scale, total: float, lengths: list[int]
) -> tuple[dict[str, Any], list[str]]:
    """Vocabulary, length, width and steps, and the words that say so."""
    in_bytes = task == "language_modeling" and scale.d_model < 256
    characters = 1.0 if in_bytes else scale.characters
    longest = _percentile(lengths, 0.95)
    window = 64 if scale.d_model == 64 else 128
    fits = window if task == "language_modeling" else _round_up(longest / characters + 2)
    tokens = total / characters
    steps = _steps(EPOCHS.get(task, 10) * tokens / scale.batch_tokens)
    sizes = {
        "text.kind": "byte" if in_bytes else "bpe",
        **({} if in_bytes else {"text.vocab_size": scale.vocab_size}),
        "model.max_len": fits,
        "model.d_model": scale.d_model,
        "model.num_layers": scale.num_layers,
        "train.batch_tokens": max(scale.batch_tokens, 4 * fits),
        "train.lr": scale.lr,
        "train.steps": steps,
        "train.warmup": steps // 10,
        "train.checkpoint_every": max(100, steps // 4),
        "evaluate.every": max(100, steps // 4),
    }
    why = "the window" if task == "language_modeling" else f"95 of 100 have {longest} characters"
    words = [
        f"text: {_readable(total)} characters, as {sizes['text.kind']} tokens"
        + ("" if in_bytes else f" of a vocabulary of {scale.vocab_size:,}"),
        f"max_len: {fits} ({why})",
        f"model: {scale.num_layers} layers of width {scale.d_model} (from the amount of text)",
        f"steps: {steps} of {sizes['train.batch_tokens']:,} tokens "
        f"(about {steps * scale.batch_tokens / max(1.0, tokens):.0f} times through the text)",
    ]
    return sizes, words


def _steps(wanted: float) -> int:
    return int(min(3000, max(200, round(wanted, -2))))


def _round_up(length: float) -> int:
    return int(min(512, max(16, -(-length // 16) * 16)))


def _lengths(fields: list[dict[str, Any]], columns: dict[str, str]) -> list[int]:
    """The longest text of each row, in characters."""
    names = [name for role, name in columns.items() if role != "label"] or list(fields[0])
    return [max(len(str(row.get(name, ""))) for name in names) for row in fields]


def _mean_length(fields: list[dict[str, Any]], name: str) -> float:
    return statistics.fmean(len(str(row.get(name, ""))) for row in fields)


def _percentile(values: Iterable[int], share: float) -> int:
    ordered = sorted(values)
    return ordered[int(share * (len(ordered) - 1))]


def _characters(path: Path) -> float:
    """About how much text there is, from the size on disk; parquet is packed."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    return size * (2.0 if path.suffix == ".parquet" else 1.0)


def _readable(number: float) -> str:
    for unit, factor in (("billion", 1e9), ("million", 1e6), ("thousand", 1e3)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number:.0f}"
