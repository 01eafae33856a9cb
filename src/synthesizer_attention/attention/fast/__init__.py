"""The same attention by the cheapest exact path; dispatch.py chooses."""

from synthesizer_attention.attention.fast.dispatch import (
    PATHS,
    Call,
    Choice,
    attend,
    attend_across,
    choose,
    freeze,
    has_kernel,
)

__all__ = [
    "PATHS",
    "Call",
    "Choice",
    "attend",
    "attend_across",
    "choose",
    "freeze",
    "has_kernel",
]
