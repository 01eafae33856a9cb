"""The keys of a model: every default and every named size, said once (no torch)."""

from dataclasses import dataclass, replace
from typing import Any, Literal

Norm = Literal["layer", "rms"]
NormPosition = Literal["pre", "post"]
Activation = Literal["relu", "gelu"]
Positions = Literal["sinusoidal", "learned", "relative", "none"]
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
    positions: Positions = "sinusoidal"
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


DEFAULTS = Defaults()
RECIPE_DEFAULTS = replace(DEFAULTS, **PRESETS["laptop"], dropout=0.1)  # for training from scratch
