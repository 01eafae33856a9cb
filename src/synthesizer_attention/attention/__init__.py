"""The attention layer and everything in it: torch alone."""

from synthesizer_attention.attention.cache import ValueCache
from synthesizer_attention.attention.layer import CrossAttention, SyntheticAttention

__all__ = ["CrossAttention", "SyntheticAttention", "ValueCache"]
