"""The attention layer and everything in it: torch alone."""

from synthesizer.attention.cache import ValueCache
from synthesizer.attention.layer import CrossAttention, SyntheticAttention

__all__ = ["CrossAttention", "SyntheticAttention", "ValueCache"]
