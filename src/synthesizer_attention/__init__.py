"""Synthesizer attention: the reference implementation, and the tool that compares it.

`import synthesizer_attention` costs nothing; the layer imports torch, the models import
transformers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from synthesizer_attention.errors import UserError

if TYPE_CHECKING:
    from synthesizer_attention.attention.baselines import BASELINES, build_mixer
    from synthesizer_attention.attention.layer import CrossAttention, SyntheticAttention, ValueCache
    from synthesizer_attention.attention.masks import register_mask
    from synthesizer_attention.attention.mixers import MIXERS, Mixer, register_mixer
    from synthesizer_attention.attention.registry import (
        SYNTHESES,
        build_synthesis,
        register_synthesis,
    )
    from synthesizer_attention.attention.synthesis import Size, Synthesis
    from synthesizer_attention.audit.replace import replace_attention
    from synthesizer_attention.models.backbone import SynthesizerModel
    from synthesizer_attention.models.config import SynthesizerConfig
    from synthesizer_attention.models.generation import SynthesizerCache
    from synthesizer_attention.models.heads import (
        SynthesizerForCausalLM,
        SynthesizerForConditionalGeneration,
        SynthesizerForSequenceClassification,
    )
    from synthesizer_attention.spec import import_modules
    from synthesizer_attention.training.optim import parameter_groups

__version__ = "0.1.0"

_HOME = {
    "SyntheticAttention": "attention.layer",
    "CrossAttention": "attention.layer",
    "ValueCache": "attention.layer",
    "Size": "attention.synthesis",
    "SYNTHESES": "attention.registry",
    "Synthesis": "attention.synthesis",
    "build_synthesis": "attention.registry",
    "register_mask": "attention.masks",
    "register_synthesis": "attention.registry",
    "import_modules": "spec",
    "parameter_groups": "training.optim",
    "replace_attention": "audit.replace",
    "BASELINES": "attention.baselines",  # the older name of MIXERS
    "MIXERS": "attention.baselines",  # where ours are registered
    "Mixer": "attention.mixers",
    "register_mixer": "attention.mixers",
    "build_mixer": "attention.baselines",
    "SynthesizerCache": "models.generation",
    "SynthesizerConfig": "models",
    "SynthesizerModel": "models",
    "SynthesizerForCausalLM": "models",
    "SynthesizerForConditionalGeneration": "models",
    "SynthesizerForSequenceClassification": "models",
}

__all__ = [
    "BASELINES",
    "MIXERS",
    "SYNTHESES",
    "CrossAttention",
    "Mixer",
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
    "parameter_groups",
    "register_mask",
    "register_mixer",
    "register_synthesis",
    "replace_attention",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOME:
        raise AttributeError(f"module 'synthesizer_attention' has no attribute {name!r}")
    try:
        return getattr(import_module(f"synthesizer_attention.{_HOME[name]}"), name)
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] in ("transformers", "huggingface_hub"):
            raise UserError(
                f"{name} needs transformers, which is not installed; "
                "run pip install 'synthesizer-attention[train]'"
            ) from error
        raise
