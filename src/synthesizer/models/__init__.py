"""Hugging Face models; importing this registers the Auto classes."""

from synthesizer.models.backbone import SynthesizerModel
from synthesizer.models.config import ConvertedConfig, SynthesizerConfig
from synthesizer.models.heads import (
    MODELS,
    SynthesizerForCausalLM,
    SynthesizerForConditionalGeneration,
    SynthesizerForSequenceClassification,
)

__all__ = [
    "MODELS",
    "ConvertedConfig",
    "SynthesizerConfig",
    "SynthesizerForCausalLM",
    "SynthesizerForConditionalGeneration",
    "SynthesizerForSequenceClassification",
    "SynthesizerModel",
]
