"""How large a model, how long a text and how many steps suit a user's file (no torch).

What the user sets is taken as it is, and what depends on it follows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from synthesizer.experiment.recipe_keys import TASKS

EPOCHS = {"translation": 30, "summarization": 10}
CUT = {"translation": 0.01}  # share of texts that may be longer than max_len; else:
MOST_CUT = 0.05
LONGEST = 512  # tokens of an inferred max_len
LOOKS, PATIENCE = 20, 5  # evaluations of a run, and how many without a better one end it
FEW_LOOKS, LITTLE_PATIENCE = 8, 3  # the same where an evaluation writes texts


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


def scale_of(num_bytes: float) -> Scale:
    """The model that suits so much text."""
    return next(scale for scale in SCALES if num_bytes < scale.below)


def infer_sizes(
    task: str, num_bytes: float, lengths: list[int], given: Mapping[str, str]
) -> dict[str, Any]:
    """Vocabulary, length, width and steps, by their keys."""
    scale, mine = scale_of(num_bytes), _numbers(given)
    in_bytes = task == "language_modeling" and scale.d_model < 256
    kind = given.get("text.kind") or ("byte" if in_bytes else "bpe")
    characters = 1.0 if kind == "byte" else scale.characters
    window = 64 if scale.d_model == 64 else 128
    longest = _percentile(lengths, 1 - CUT.get(task, MOST_CUT))
    fits = window if task == "language_modeling" else round_up(longest / characters + 2)
    fits = mine.get("model.max_len", fits)
    batch = mine.get("train.batch_tokens", max(scale.batch_tokens, 4 * fits))
    steps = _steps(EPOCHS.get(task, 10) * num_bytes / characters / batch)
    steps = mine.get("train.steps", steps)
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
    return sizes | {key: value for key, value in mine.items() if key in sizes}


def say_sizes(
    task: str,
    sizes: Mapping[str, Any],
    num_bytes: float,
    lengths: list[int],
    given: Mapping[str, str],
) -> list[str]:
    """The sizes in words, with their reasons."""

    def why(key: str, reason: str) -> str:
        return "as you set it" if key in given else reason

    in_bytes = sizes["text.kind"] == "byte"
    characters = 1.0 if in_bytes else scale_of(num_bytes).characters
    cut = CUT.get(task, MOST_CUT)
    longest = _percentile(lengths, 1 - cut)
    fits, steps, batch = (
        sizes[key] for key in ("model.max_len", "train.steps", "train.batch_tokens")
    )
    length = "the window"
    if task != "language_modeling":
        length = f"{100 * (1 - cut):.0f} of 100 texts have up to {longest:,} characters"
        length += "; longer ones are cut" if fits < longest / characters else ""
    times = steps * batch * characters / max(1.0, num_bytes)
    whole = f"about {times:.{0 if times >= 10 else 1}f} times through the text"
    return [
        f"text: {_readable(num_bytes)} bytes, as {sizes['text.kind']} tokens"
        + ("" if in_bytes else f" of a vocabulary of {sizes['text.vocab_size']:,}"),
        f"max_len: {fits} ({why('model.max_len', length)})",
        f"model: {sizes['model.num_layers']} layers of width {sizes['model.d_model']} "
        f"({why('model.d_model', 'from the amount of text')})",
        f"steps: {steps} of {batch:,} tokens ({why('train.steps', whole)})",
        f"stopping: the best weights on validation are kept, looked at every "
        f"{sizes['evaluate.every']} steps; {sizes['train.patience']} looks without a better one "
        "end a run",
    ]


def _numbers(given: Mapping[str, str]) -> dict[str, int]:
    """The whole numbers that the user sets; what a recipe refuses is left to its check."""
    plain = {key: value.replace("_", "") for key, value in given.items()}
    return {key: int(value) for key, value in plain.items() if _is_number(value)}


def _is_number(value: str) -> bool:
    return value.isdecimal() and len(value) < 20 and int(value) > 0


def _steps(wanted: float) -> int:
    return int(min(3000, max(200, round(wanted, -2))))


def round_up(length: float) -> int:
    """A max_len for texts of so many tokens."""
    return int(min(LONGEST, max(16, -(-length // 16) * 16)))


def _percentile(values: list[int], share: float) -> int:
    ordered = sorted(values)
    return ordered[int(share * (len(ordered) - 1))]


def _readable(number: float) -> str:
    for unit, factor in (("billion", 1e9), ("million", 1e6), ("thousand", 1e3)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number:.0f}"
