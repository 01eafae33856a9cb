"""The attention layer and everything in it: torch alone."""

from synthesizer_attention.attention.layer import CrossAttention, SyntheticAttention, ValueCache

__all__ = ["CrossAttention", "SyntheticAttention", "ValueCache"]
