"""Synthesizer attention: the reference implementation, and the tool that compares it.

`import synthesizer` costs nothing; the layer costs a torch import, the models that of transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from synthesizer.errors import UserError

if TYPE_CHECKING:
    from synthesizer.attention import CrossAttention, SyntheticAttention, ValueCache
    from synthesizer.backbone import SynthesizerModel
    from synthesizer.baselines import BASELINES
    from synthesizer.cache import SynthesizerCache
    from synthesizer.config import SynthesizerConfig
    from synthesizer.mixers import build_mixer
    from synthesizer.models import (
        SynthesizerForCausalLM,
        SynthesizerForConditionalGeneration,
        SynthesizerForSequenceClassification,
    )
    from synthesizer.synthesis import SYNTHESES, Size, build_synthesis

__version__ = "0.1.0"

_HOME = {
    "SyntheticAttention": "attention",
    "CrossAttention": "attention",
    "ValueCache": "attention",
    "Size": "synthesis",
    "SYNTHESES": "synthesis",
    "build_synthesis": "synthesis",
    "BASELINES": "baselines",
    "build_mixer": "mixers",
    "SynthesizerCache": "cache",
    "SynthesizerConfig": "models",
    "SynthesizerModel": "models",
    "SynthesizerForCausalLM": "models",
    "SynthesizerForConditionalGeneration": "models",
    "SynthesizerForSequenceClassification": "models",
}

__all__ = [
    "BASELINES",
    "SYNTHESES",
    "CrossAttention",
    "Size",
    "SynthesizerCache",
    "SynthesizerConfig",
    "SynthesizerForCausalLM",
    "SynthesizerForConditionalGeneration",
    "SynthesizerForSequenceClassification",
    "SynthesizerModel",
    "SyntheticAttention",
    "UserError",
    "ValueCache",
    "build_mixer",
    "build_synthesis",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOME:
        raise AttributeError(f"module 'synthesizer' has no attribute {name!r}")
    try:
        return getattr(import_module(f"synthesizer.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name in ("transformers", "huggingface_hub"):
            raise UserError(
                f"{name} needs transformers, which is not installed; "
                "run pip install 'synthesizer-attention[train]'"
            ) from error
        raise
