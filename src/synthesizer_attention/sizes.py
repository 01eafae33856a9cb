"""The keys of a model: every default and every named size, said once (no torch)."""

from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any, Literal

from synthesizer_attention.errors import UserError

Norm = Literal["layer", "rms"]
NormPosition = Literal["pre", "post"]
Activation = Literal["relu", "gelu"]
Pooling = Literal["cls", "mean"]

PRESETS: dict[str, dict[str, Any]] = {
    # Table 2 of the paper, translation: width, heads and layers; length from its parameter counts.
    "mt-base": {
        "kind": "encoder_decoder",
        "d_model": 512,
        "num_heads": 8,
        "num_layers": 6,
        "d_ff": 2048,
        "max_len": 256,
        "norm_position": "post",
        "dropout": 0.1,
        "label_smoothing": 0.1,
    },
    # The pretraining model of the authors' code base.
    "t5-base": {
        "kind": "encoder_decoder",
        "d_model": 768,
        "num_heads": 12,
        "num_layers": 12,
        "d_ff": 3072,
        "max_len": 512,
        "norm": "rms",
        "positions": "relative",
    },
    "laptop": {"d_model": 128, "num_heads": 4, "num_layers": 2, "d_ff": 512, "max_len": 128},
}


@dataclass(frozen=True)
class Defaults:
    """What a SynthesizerConfig is where nothing is chosen.

    A saved config leaves out what equals its default, so a value here never changes: models saved
    before would load as something else.
    """

    d_model: int = 512
    num_heads: int = 8
    num_layers: int = 6
    d_ff: int = 2048
    max_len: int = 256
    norm: Norm = "layer"
    norm_position: NormPosition = "pre"
    activation: Activation = "relu"
    positions: str = "sinusoidal"
    tie_word_embeddings: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0
    label_smoothing: float = 0.0
    pooling: Pooling = "mean"
    universal: bool = False
    fixed_depth: bool = False
    halting_epsilon: float = 0.05
    ponder_cost: float = 0.01
    window: int | None = None
    equal_qk_init: bool = False


DEFAULTS = Defaults()
RECIPE_DEFAULTS = replace(DEFAULTS, **PRESETS["laptop"], dropout=0.1)  # for training from scratch


POSITIONS = ("sinusoidal", "learned", "relative", "rotary", "alibi", "none")
_ADDED = ("sinusoidal", "learned", "none")  # to the embeddings, one of them


@dataclass(frozen=True)
class RotaryOptions:
    """How queries and keys are turned: RoPE (Su et al. 2021)."""

    base: float = 10_000.0  # the slowest turn takes about 2 pi base tokens
    share: float = 1.0  # of each head's width that is turned


@dataclass(frozen=True)
class PositionKinds:
    """What a model's `positions` asks for, part by part."""

    added: str = "none"  # to the embeddings: sinusoidal, learned or none
    relative: bool = False
    alibi: bool = False
    rotary: RotaryOptions | None = None


def parse_positions(text: str) -> PositionKinds:
    """Read 'sinusoidal', 'relative' or 'sinusoidal+rotary:base=500:share=0.5'."""
    parts = [part.strip().partition(":") for part in text.split("+")]
    names = [name for name, _, _ in parts]
    for name, _, options in parts:
        if name not in POSITIONS:
            raise UserError(
                f"positions={text!r}; choose from {', '.join(POSITIONS)}, or join some with +"
            )
        if options and name != "rotary":
            raise UserError(
                f"positions={text!r}: {name} has no options; only rotary has base and share"
            )
    added = [name for name in names if name in _ADDED]
    if len(set(names)) < len(names) or len(added) > 1 or ("none" in names and len(names) > 1):
        raise UserError(
            f"positions={text!r} combines kinds that exclude each other; write each once, at most "
            "one of sinusoidal and learned, and none alone"
        )
    turning = [options for name, _, options in parts if name == "rotary"]
    return PositionKinds(
        added[0] if added else "none",
        "relative" in names,
        "alibi" in names,
        _rotary_options(text, turning[0]) if turning else None,
    )


def _rotary_options(text: str, options: str) -> RotaryOptions:
    known = [field.name for field in fields(RotaryOptions)]
    found: dict[str, float] = {}
    for option in filter(None, options.split(":")):
        key, _, value = option.partition("=")
        try:
            found[key] = float(value)
        except ValueError:
            key = ""
        if key not in known:
            raise UserError(
                f"positions={text!r}: rotary has no {option!r}; write base=NUMBER or share=NUMBER"
            )
    rotary = RotaryOptions(**found)
    if not (1 < rotary.base < inf and 0 < rotary.share <= 1):
        raise UserError(f"positions={text!r}; rotary needs a base above 1 and a share in (0, 1]")
    return rotary
