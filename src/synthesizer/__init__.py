"""Synthesizer attention: the reference implementation, and the tool that compares it.

`import synthesizer` costs nothing; the layer costs a torch import, the models that of transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from synthesizer.errors import UserError

if TYPE_CHECKING:
    from synthesizer.attention.baselines import BASELINES
    from synthesizer.attention.cache import ValueCache
    from synthesizer.attention.layer import CrossAttention, SyntheticAttention
    from synthesizer.attention.mixers import build_mixer
    from synthesizer.attention.registry import SYNTHESES, build_synthesis, register_synthesis
    from synthesizer.attention.synthesis import Size, Synthesis
    from synthesizer.audit.replace import replace_attention
    from synthesizer.models.backbone import SynthesizerModel
    from synthesizer.models.cache import SynthesizerCache
    from synthesizer.models.config import SynthesizerConfig
    from synthesizer.models.heads import (
        SynthesizerForCausalLM,
        SynthesizerForConditionalGeneration,
        SynthesizerForSequenceClassification,
    )
    from synthesizer.spec import import_modules

__version__ = "0.1.0"

_HOME = {
    "SyntheticAttention": "attention.layer",
    "CrossAttention": "attention.layer",
    "ValueCache": "attention.cache",
    "Size": "attention.synthesis",
    "SYNTHESES": "attention.registry",
    "Synthesis": "attention.synthesis",
    "build_synthesis": "attention.registry",
    "register_synthesis": "attention.registry",
    "import_modules": "spec",
    "replace_attention": "audit.replace",
    "BASELINES": "attention.baselines",
    "build_mixer": "attention.mixers",
    "SynthesizerCache": "models.cache",
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
    "Synthesis",
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
    "import_modules",
    "register_synthesis",
    "replace_attention",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOME:
        raise AttributeError(f"module 'synthesizer' has no attribute {name!r}")
    try:
        return getattr(import_module(f"synthesizer.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] in ("transformers", "huggingface_hub"):
            raise UserError(
                f"{name} needs transformers, which is not installed; "
                "run pip install 'synthesizer-attention[train]'"
            ) from error
        raise
