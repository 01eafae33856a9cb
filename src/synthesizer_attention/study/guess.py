"""Infer a recipe from a user's file: task, columns, length and size, with reasons (no torch).

Every guess is a setting of a built-in recipe: it can be said, changed and run again. What the user
sets is taken as it is, and what depends on it follows it.
"""

import json
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from synthesizer_attention.data.columns import draw, flat_fields, infer_columns, is_known, names_in
from synthesizer_attention.data.files import DATA_SUFFIXES, PACKED, Row, split_name
from synthesizer_attention.data.sources import SPLITS, Source, open_source
from synthesizer_attention.errors import UserError, listed
from synthesizer_attention.run.recipe import Settings, recipe_names
from synthesizer_attention.run.recipe_keys import TASKS, Data

WORDS = 4  # a vocabulary of words is this many times one of pieces
DROPOUT, DROPOUTS = "model.dropout", (0.3, 0.5)  # tried beside the recipe's own
HELD_OUT, MOST_HELD_OUT = 500, 0.1  # rows of validation, if no larger a share of the file
MOST_TEST = 0.25  # share of the file
SPREAD, SPREADS = 20.0, {"language_modeling": 5.0, "dialogue": 5.0}  # std of what a test example
# says of a row against dot, in margins, as in the recorded studies
DECIDES = 3.08  # std between no difference and a margin: half of one side's 2.5 %, and 80 % power
LABEL_LENGTH = 40  # characters of a label, at most
SAMPLE = 4_000  # rows that are examined
COLUMN = "data.columns."
EPOCHS = {"translation": 30, "summarization": 10}
CUT = {"translation": 0.01}  # share of texts that may be longer than max_len; else:
MOST_CUT = 0.05
LONGEST = 512  # tokens of an inferred max_len
LOOKS, PATIENCE = 20, 5  # evaluations of a run, and how many without a better one end it
FEW_LOOKS, LITTLE_PATIENCE = 8, 3  # the same where an evaluation writes texts
SIBLINGS = {"validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
SIMILAR = 3  # times as long one of two similar texts may be
SHARED = 0.5  # of the words of one text in the other: the least of texts of one language
_LAST = re.compile(r"[\W_]*(\d+|[ab])$", re.IGNORECASE)  # of question1, sentence_a


@dataclass(frozen=True)
class Choice:
    """What is measured on validation and not guessed: options beside the recipe as it stands."""

    name: str
    keys: tuple[str, ...]  # that it sets; the first says it in words
    options: tuple[Settings, ...]


@dataclass(frozen=True)
class Guess:
    """A built-in recipe, what of it the data changes, and why, in words."""

    recipe: str
    settings: Settings
    reasons: tuple[str, ...]
    source: Source | None = None  # the data that were examined
    choices: tuple[Choice, ...] = ()


def is_data(name: str) -> bool:
    """Whether a user's word names data rather than a recipe."""
    path = Path(name)
    if name in recipe_names() or path.suffix == ".toml":
        return False
    return path.exists() or path.suffix != ""


def infer_recipe(
    name: str, task: str | None = None, given: Mapping[str, str] | None = None
) -> Guess:
    """Guess what to do with a file; what the user sets, by its key, is not guessed."""
    path = Path(name)
    if not path.exists():
        raise UserError(
            f"{name} does not exist; name a data file, a .toml file, or a recipe that "
            "`synthesizer recipes` lists"
        )
    splits = _find_splits(path)
    source = _open(splits)
    # Drawn from the whole file, as its labels may be sorted or come in turn.
    sample, num_rows = draw((row for row in source.splits["train"]() if not row.fault), SAMPLE)
    if not sample:
        raise UserError(f"{path} has no readable row; expected text, or rows with columns")
    sample = [row._replace(fields=flat_fields(row.fields)) for row in sample]
    given = given or {}
    named = {key.removeprefix(COLUMN): value for key, value in given.items() if COLUMN in key}
    columns = _Columns.of(sample, named)
    if task is None:
        task, reason = _guess_task(path, columns)
    elif task in TASKS and TASKS[task].from_file:
        reason = "as you set it"
    else:
        known = ", ".join(name for name, info in TASKS.items() if info.from_file)
        raise UserError(f"task={task} cannot be inferred from a file; choose from {known}")
    reasons = [f"task: {task} ({reason})"]
    roles = columns.roles(task)
    if roles:
        used = ", ".join(f"{role} '{column}'" for role, column in roles.items())
        unused = [name for name in columns.names if name not in roles.values()]
        used += f"; not used: {listed(unused)}" if unused else ""
        if task == "classification" and (more := [c for c in columns.texts if c in unused]):
            used += f" (to read both texts: --set data.columns.text_pair={more[0]})"
        reasons.append(f"columns: {used}")
    if len(splits) > 1:
        splits, unfit = _with_columns(splits, source, list(roles.values()))
        source = _open(splits) if unfit else source
        names = ", ".join(str(file) for file in splits.values())
        reasons.append("; ".join([f"splits: {names}", *unfit]))
    num_bytes = columns.mean_bytes(roles) * num_rows
    scale = next(scale for scale in SCALES if num_bytes < scale.below)
    lengths = columns.lengths(roles, joined=task == "classification")
    sizes, said = _infer_sizes(task, scale, num_bytes, lengths, given)
    reasons += said
    values: dict[str, Any] = {
        "name": split_name(path)[0]
        if len(splits) == 1 and not path.is_dir()
        else splits["train"].absolute().parent.name
    }
    values |= {f"data.{split}": str(file) for split, file in splits.items()}
    cut = [split for split in SPLITS if split not in splits]
    if cut and "data.holdout" not in given:
        shares, said_of_them = _held_out(task, num_rows, cut)
        values |= {f"data.holdout.{split}": share for split, share in shares.items()}
        reasons.append(said_of_them)
    values |= {f"data.columns.{role}": column for role, column in roles.items()}
    settings = {key: json.dumps(value) for key, value in {**values, **sizes}.items()}
    words = {"text.kind": "word", "text.vocab_size": str(WORDS * scale.vocab_size)}
    choices = [
        Choice("tokenizer", tuple(words), (words,)),
        Choice("dropout", (DROPOUT,), tuple({DROPOUT: str(p)} for p in DROPOUTS)),
    ]
    if task == "language_modeling":  # its bits per byte are not those of words
        del choices[0]
    return Guess(task, settings, tuple(reasons), source, tuple(choices))


def _find_splits(path: Path) -> dict[str, Path]:
    """The files of each split: train's, of a folder or as named, and those called as its siblings.

    A folder of texts is one split.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file())
        splits = {"train", *(name for names in SIBLINGS.values() for name in names)}
        tables = [file for file in files if split_name(file)[1] in DATA_SUFFIXES]
        if not tables and all(split_name(file)[0] in splits for file in files):
            tables = files
        if not tables:
            return {"train": path}
        named = [file for file in tables if split_name(file)[0] == "train"]
        if len(named) != 1:
            raise UserError(
                f"{path} holds {listed([file.name for file in named or tables])}; expected one "
                "file of rows called train, and its others called validation and test: name one "
                "of these files"
            )
        path = named[0]
    found, (stem, own) = {"train": path}, split_name(path)
    for split, names in SIBLINGS.items() if stem == "train" and path.is_file() else ():
        suffixes = dict.fromkeys((own, *DATA_SUFFIXES)) if own in DATA_SUFFIXES else (own,)
        files = [
            path.with_name(name + suffix + packed)
            for name in names
            for suffix in suffixes
            for packed in ("", PACKED)
        ]
        if there := [file for file in files if file.is_file()]:
            found[split] = there[0]
    return found


def _held_out(task: str, num_rows: int, cut: list[str]) -> tuple[dict[str, float], str]:
    """The share of the rows for validation and for test, and in words: test follows the margin."""
    needed = max(HELD_OUT, int(round((DECIDES * SPREADS.get(task, SPREAD)) ** 2, -2)))
    shares = {
        "validation": min(MOST_HELD_OUT, HELD_OUT / num_rows),
        "test": min(MOST_TEST, needed / num_rows),
    }
    shares = {split: float(f"{share:.2g}") for split, share in shares.items()}
    parts = [f"about {shares[split] * num_rows:,.0f} rows for {split}" for split in cut]
    said = f"held out: {' and '.join(parts)}"
    if "test" in cut:
        said += f" ({needed:,} decide on a difference of the margin in 8 of 10 studies, seeds aside"
        said += "; fewer decide less)" if MOST_TEST * num_rows < needed else ")"
    return shares, said


def _open(splits: Mapping[str, Path]) -> Source:
    return open_source(Data.model_validate({key: str(file) for key, file in splits.items()}), None)


def _with_columns(
    splits: dict[str, Path], source: Source, wanted: list[str]
) -> tuple[dict[str, Path], list[str]]:
    """The splits that have every column, as a test set without labels has not; and why not."""
    kept, said = {}, []
    for split, file in splits.items():
        first = next((row for row in source.splits[split]() if not row.fault), None)
        missing = [c for c in wanted if not first or c not in flat_fields(first.fields)]
        if missing and split != "train":
            said.append(f"{file} has no column '{missing[0]}', so {split} is cut from train")
        else:
            kept[split] = file
    return kept, said


@dataclass(frozen=True)
class _Columns:
    """What the columns of a sample hold."""

    sample: list[Row]
    names: list[str]  # of those that most rows have
    labels: list[str]  # few, short values that come again and again; the fewest first
    texts: list[str]  # with words in them, in the order of the file
    given: Mapping[str, str]  # by role, as the user says

    @classmethod
    def of(cls, sample: list[Row], given: Mapping[str, str]) -> "_Columns":
        names = names_in([row.fields for row in sample], share=0.5)
        distinct = {name: len(set(_values(sample, name))) for name in names}
        labels = [name for name in names if _is_label(_values(sample, name))]
        texts = [name for name in names if name not in labels and _is_text(sample, name)]
        return cls(sample, names, sorted(labels, key=lambda name: distinct[name]), texts, given)

    def roles(self, task: str) -> dict[str, str]:
        """The column of each role of a task: by a known name, then by what looks like it."""
        given = dict(self.given)
        if task == "language_modeling":
            return infer_columns(self.sample, ("text",), given)
        if task == "classification":
            if self.labels:
                given.setdefault("label", self.label)
            if self.pair and not given.keys() & {"text", "text_pair"}:
                given["text"], given["text_pair"] = self.pair
            pair = ("text_pair",) if "text_pair" in given else ()
            return infer_columns(self.sample, ("text", *pair, "label"), given)
        if task in ("translation", "summarization"):
            taken = given.values()
            free = [
                name
                for name in self.texts
                if not is_known(name, "source", "target") and name not in taken
            ]
            missing = [
                role
                for role in ("source", "target")
                if role not in given and not any(is_known(name, role) for name in self.names)
            ]
            given |= dict(zip(missing, free, strict=False))
            return infer_columns(self.sample, ("source", "target"), given)
        return given

    @property
    def label(self) -> str:
        """The likeliest label."""
        known = [name for name in self.labels if is_known(name, "label")]
        return (known or self.labels)[0]

    @cached_property
    def pair(self) -> tuple[str, str] | None:
        """The two texts that one label belongs to, in the order in which they are read.

        Names that differ in a number or letter; a heading or a question and the longest text; or
        the only two texts, where they have similar lengths and words.
        """
        texts = [name for name in self.texts if name not in self.given.values()]
        for one, other in combinations(texts, 2):
            if _LAST.sub("", one) == _LAST.sub("", other) != "":
                return one, other
        longest = max(texts, key=self.mean_length, default="")
        for name in texts:
            if name != longest and is_known(name, "heading", "asked"):
                return name, longest
        if len(texts) != 2:
            return None
        lengths = sorted(map(self.mean_length, texts))
        words = [" ".join(_values(self.sample, name)).lower().split() for name in texts]
        common = set(words[0]) & set(words[1])
        shared = min(sum(word in common for word in side) / max(1, len(side)) for side in words)
        similar = lengths[1] <= SIMILAR * lengths[0] and shared >= SHARED
        return (texts[0], texts[1]) if similar else None

    def mean_length(self, name: str) -> float:
        """Characters of a column's values."""
        return statistics.fmean(len(value) for value in _values(self.sample, name))

    def lengths(self, roles: dict[str, str], *, joined: bool) -> list[int]:
        """Characters of the longest text of each row, or of its texts joined in one."""
        return [(sum if joined else max)(map(len, row)) for row in self._texts(roles)]

    def mean_bytes(self, roles: dict[str, str]) -> float:
        """UTF-8 of a row's texts; labels and what is not used are none."""
        rows = self._texts(roles)
        return statistics.fmean(
            sum(len(text.encode("utf-8", "replace")) for text in row) for row in rows
        )

    def _texts(self, roles: dict[str, str]) -> list[tuple[str, ...]]:
        """Of each row, what is trained on."""
        names = [name for role, name in roles.items() if role != "label"]
        columns = [_values(self.sample, name) for name in names or self.names]
        return list(zip(*columns, strict=True))


def _values(sample: list[Row], name: str) -> list[str]:
    values = [row.fields.get(name) for row in sample]
    return [" ".join(map(str, v)) if isinstance(v, list) else str(v) for v in values]


def _is_label(values: list[str]) -> bool:
    short = max(map(len, values)) <= LABEL_LENGTH
    return short and 2 <= len(set(values)) <= max(2, len(values) // 3)


def _is_measured(values: list[str]) -> bool:
    """Numbers, not all of them whole."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return False
    return any(not number.is_integer() for number in numbers)


def _is_text(sample: list[Row], name: str) -> bool:
    """Strings that differ, most of them with spaces or letters that an identifier has not."""
    if not all(isinstance(row.fields.get(name), str | list) for row in sample):
        return False
    values = _values(sample, name)
    wordy = sum(" " in value or "\n" in value or not value.isascii() for value in values)
    return 2 * wordy > len(values) and (len(set(values)) > 1 or len(values) == 1)


def _guess_task(path: Path, columns: _Columns) -> tuple[str, str]:
    names, texts = columns.names, columns.texts
    dialog = [name for name in names if is_known(name, "dialog")]
    if dialog and any(isinstance(row.fields.get(dialog[0]), list) for row in columns.sample):
        return "dialogue", f"'{dialog[0]}' holds lists of turns"
    for row in columns.sample if not columns.given else ():
        for name, value in row.fields.items():
            if isinstance(value, list) and is_known(name, "label"):
                raise UserError(
                    f"{path}, row {row.number}: column '{name}' holds a list; a classifier needs "
                    "one label a row: write one row per label, or choose columns with "
                    "--set data.columns.text=COLUMN"
                )
    if not texts and any(_is_text(columns.sample, name) for name in names):
        raise UserError(
            f"{path} has too few rows ({len(columns.sample)}) to tell text from labels; expected "
            "hundreds, of which some are held out: give more rows"
        )
    if not texts:
        raise UserError(
            f"{path} has the columns {listed(names)} and none of text; "
            "expected text and label, source and target, or text"
        )
    if given := columns.given:  # the roles that the user gave columns for
        if "source" in given or "target" in given:
            return _task_of_pairs(columns)
        if "label" in given or "text_pair" in given:
            label = given.get("label") or (columns.labels and columns.label) or "no column"
            return "classification", f"'{label}' is the label, from the columns as you set them"
        if "text" in given:
            return "language_modeling", f"'{given['text']}' is the text, as you set it"
        return "dialogue", "from the columns, as you set them"
    named = [any(is_known(name, role) for name in names) for role in ("source", "target")]
    known = bool(columns.labels) and is_known(columns.label, "label")
    if columns.labels and (len(texts) == 1 or known or (columns.pair and not all(named))):
        number = len(set(_values(columns.sample, columns.label)))
        reason = f"'{columns.label}' has {number} different values"
        if columns.pair:
            reason += f" for the texts '{columns.pair[0]}' and '{columns.pair[1]}' together"
            reason += "" if known else f"; to write '{columns.pair[1]}': --set task=translation"
        return "classification", reason
    if len(texts) == 1:
        _refuse_unfit_labels(path, columns)
        return "language_modeling", f"'{texts[0]}' is text and nothing else is"
    if len(texts) > 2 and not all(named):
        raise UserError(
            f"{path} has {len(texts)} columns of text ({listed(texts)}); say which to use: "
            f"--set data.columns.source={texts[0]} --set data.columns.target={texts[1]}, "
            f"or --set data.columns.text={texts[0]} for one alone"
        )
    return _task_of_pairs(columns)


def _refuse_unfit_labels(path: Path, columns: _Columns) -> None:
    """A column that reads like a label and cannot be one is not left out in silence."""
    for name in columns.names:
        values = _values(columns.sample, name)
        if name in columns.texts or not (is_known(name, "label") or _is_measured(values)):
            continue
        found = len(set(values))
        cause = (
            f"'{values[0][:100]}' in every row looked at; a classifier needs two classes or more"
            if found == 1
            else f"{found:,} different values in {len(values):,} rows; a classifier needs classes "
            "that come again, so round or group them"
        )
        raise UserError(
            f"{path}: column '{name}' has {cause}, or --set task=language_modeling to model "
            f"'{columns.texts[0]}' alone"
        )


def _task_of_pairs(columns: _Columns) -> tuple[str, str]:
    source, target = columns.roles("translation").values()
    here, there = columns.mean_length(source), columns.mean_length(target)
    if here > SIMILAR * there:
        return "summarization", f"'{target}' is less than a third as long as '{source}'"
    if there > SIMILAR * here:
        return "translation", f"'{target}' is longer than '{source}', so no summary of it"
    return "translation", f"'{source}' and '{target}' are texts of similar length"


@dataclass(frozen=True)
class Scale:
    """A model that suits so much text; characters per token are of its vocabulary."""

    below: float  # bytes of text
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


def _infer_sizes(
    task: str, scale: Scale, num_bytes: float, lengths: list[int], given: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """Vocabulary, length, width and steps, by their keys; and in words, with their reasons."""
    plain = {key: value.replace("_", "") for key, value in given.items()}
    mine = {  # whole numbers that the user sets; what a recipe refuses is left to its check
        key: int(value)
        for key, value in plain.items()
        if value.isdecimal() and len(value) < 20 and int(value) > 0
    }
    models_text = task == "language_modeling"
    kind = given.get("text.kind") or ("byte" if models_text and scale.d_model < 256 else "bpe")
    characters = 1.0 if kind == "byte" else scale.characters
    cut = CUT.get(task, MOST_CUT)
    longest = sorted(lengths)[int((1 - cut) * (len(lengths) - 1))]
    window = 64 if scale.d_model == 64 else 128
    fits = mine.get("model.max_len", window if models_text else round_up(longest / characters + 2))
    batch = mine.get("train.batch_tokens", max(scale.batch_tokens, 4 * fits))
    wanted = round(EPOCHS.get(task, 10) * num_bytes / characters / batch, -2)
    steps = mine.get("train.steps", int(min(3000, max(200, wanted))))
    writes = TASKS[task].kind == "encoder_decoder"
    looks, patience = (FEW_LOOKS, LITTLE_PATIENCE) if writes else (LOOKS, PATIENCE)
    sizes = {
        "text.kind": kind,
        **({} if kind == "byte" else {"text.vocab_size": scale.vocab_size}),
        "model.max_len": fits,
        "model.d_model": scale.d_model,
        "model.num_layers": scale.num_layers,
        "train.batch_tokens": batch,
        "train.lr": scale.lr,
        "train.steps": steps,
        "train.warmup": steps // 10,
        "train.checkpoint_every": max(100, steps // 4),
        "train.patience": patience,
        "evaluate.every": min(steps, max(20, steps // looks)),
    }
    sizes |= {key: value for key, value in mine.items() if key in sizes}

    def why(key: str, reason: str) -> str:
        return "as you set it" if key in given else reason

    units = ((1e9, " billion"), (1e6, " million"), (1e3, " thousand"))
    factor, unit = next((pair for pair in units if num_bytes >= pair[0]), (1, ""))
    number = f"{num_bytes / factor:.{1 if unit else 0}f}{unit}"
    vocabulary = "" if kind == "byte" else f" of a vocabulary of {sizes['text.vocab_size']:,}"
    length = "the window"
    if not models_text:
        length = f"{100 * (1 - cut):.0f} of 100 texts have up to {longest:,} characters"
        length += "; longer ones are cut" if fits < longest / characters else ""
    times = steps * batch * characters / max(1.0, num_bytes)
    whole = f"about {times:.{0 if times >= 10 else 1}f} times through the text"
    width = why("model.d_model", "from the amount of text")
    return sizes, [
        f"text: {number} bytes, as {kind} tokens{vocabulary}",
        f"max_len: {fits} ({why('model.max_len', length)})",
        f"model: {sizes['model.num_layers']} layers of width {sizes['model.d_model']} ({width})",
        f"steps: {steps} of {batch:,} tokens ({why('train.steps', whole)})",
        f"stopping: the best weights on validation are kept, looked at every "
        f"{sizes['evaluate.every']} steps; {sizes['train.patience']} looks without a better one "
        "end a run",
    ]


def round_up(length: float) -> int:
    """A max_len for texts of so many tokens."""
    return int(min(LONGEST, max(16, -(-length // 16) * 16)))
