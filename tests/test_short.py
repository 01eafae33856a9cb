"""Short sequences without the compiled kernel: one sum, kept probabilities, the plain equations."""

import os
import sys
from pathlib import Path

import pytest
import torch

import synthesizer_attention
from synthesizer_attention.attention import SyntheticAttention, fast
from test_fast import D, H
from test_kernel import built, library, needs_compiler
from variants import redrawn, tokens

__all__ = ["built", "library"]  # fixtures

SPECS = ["dense", "factorized_dense", "random+dot", "dense+dot", "random+dense+factorized_dense"]
SPECS += ["relative+dot", "factorized_random+fixed_random+dense", "dense@2|dense+dot@1"]


@pytest.fixture
def taken(monkeypatch):
    """The paths that calls take."""
    paths, choose = [], fast.dispatch.choose
    told = lambda *given: (choice := choose(*given), paths.append(choice.path))[0]  # noqa: E731
    monkeypatch.setattr(fast.dispatch, "choose", told)
    return paths


def layer_of(spec, length=11, **given):
    return redrawn(SyntheticAttention(D, H, length, spec, **given))


@pytest.mark.parametrize(
    "given", [{"dropout": 0.1}, {"position_ids": torch.arange(11) // 2}, {"dtype": torch.bfloat16}]
)
def test_what_it_does_not_know_goes_another_way(given, taken):
    layer = layer_of("random+dot", dropout=given.pop("dropout", 0.0))
    dtype = given.pop("dtype", torch.float64)
    layer.to(dtype)(tokens(2, 11, D).to(dtype), **given)
    assert taken == ["plain"]


def steps(layer, x):
    """The functions of this package, as (file, name), that the second call of a layer runs."""
    root, found = str(Path(synthesizer_attention.__file__).parent) + os.sep, set()

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root) and code.co_name[0] != "<":
            found.add((code.co_filename, code.co_qualname))

    layer(x)
    sys.setprofile(note)
    try:
        layer(x)
    finally:
        sys.setprofile(None)
    return found


def test_a_forward_is_few_steps():
    layer = SyntheticAttention(64, 4, 128, "random+dot", causal=True)
    found = steps(layer, torch.randn(2, 128, 64))
    assert len(found) <= 30, sorted(found)
    assert len({file for file, _ in found}) <= 9


@needs_compiler
def test_a_forward_by_the_kernel_is_few_steps(built):
    layer = SyntheticAttention(64, 4, 128, "random+dot", causal=True)
    found = steps(layer, torch.randn(2, 128, 64))
    assert built
    assert len(found) <= 30, sorted(found)
    assert len({file for file, _ in found}) <= 9
