"""Hugging Face models; importing this registers the Auto classes."""

from synthesizer_attention.models.backbone import SynthesizerModel
from synthesizer_attention.models.config import ConvertedConfig, SynthesizerConfig
from synthesizer_attention.models.heads import (
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
