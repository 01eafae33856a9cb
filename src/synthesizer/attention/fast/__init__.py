"""The same attention by the cheapest exact path; dispatch.py chooses."""

from synthesizer.attention.fast.dispatch import (
    PATHS,
    Call,
    Choice,
    attend,
    attend_across,
    choose,
    freeze,
    has_kernel,
    linear,
)
from synthesizer.attention.fast.kernel import prepare

__all__ = [
    "PATHS",
    "Call",
    "Choice",
    "attend",
    "attend_across",
    "choose",
    "freeze",
    "has_kernel",
    "linear",
    "prepare",
]
