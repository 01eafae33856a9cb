"""Short sequences without the compiled kernel: one sum, kept probabilities, the plain equations."""

import os
import sys
from pathlib import Path

import pytest
import torch

import synthesizer
from synthesizer.attention import SyntheticAttention, ValueCache, fast
from synthesizer.sizes import RotaryOptions
from test_fast import MASKS, D, H, mask_of, results
from test_kernel import built, library, needs_compiler
from variants import redrawn, tokens

__all__ = ["built", "library"]  # fixtures

SPECS = ["dense", "factorized_dense", "random+dot", "dense+dot", "random+dense+factorized_dense"]
SPECS += ["relative+dot", "factorized_random+fixed_random+dense", "dense@2|dense+dot@1"]


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch):
    monkeypatch.setattr(fast.short, "FEWEST_ROWS", 4)


@pytest.fixture
def taken(monkeypatch):
    """The paths that calls take."""
    paths, choose = [], fast.dispatch.choose
    told = lambda *given: (choice := choose(*given), paths.append(choice.path))[0]  # noqa: E731
    monkeypatch.setattr(fast.dispatch, "choose", told)
    return paths


def layer_of(spec, length=11, **given):
    return redrawn(SyntheticAttention(D, H, length, spec, **given))


def assert_plain(layer, x, **given):
    """The output and every gradient of the plain path, number by number."""
    expected, found = (results(layer, x, path, **given) for path in ("plain", "auto"))
    for name, right in expected.items():
        torch.testing.assert_close(
            found[name], right, rtol=1e-10, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (False, 3), (True, 3)])
def test_every_mask_gives_the_plain_equations(spec, kind, causal, window, taken):
    layer = layer_of(spec, causal=causal, window=window)
    assert_plain(layer, tokens(3, 11, D), attention_mask=mask_of(kind, 3, 11))
    assert taken[-1] == "short"


@pytest.mark.parametrize("spec", ["dense", "random+dot", "dense+dot"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_of_all_examples_and_its_gradient(spec, causal, taken):
    layer, x = layer_of(spec, causal=causal), tokens(2, 11, D)
    bias = tokens(1, H, 11, 11, seed=4).requires_grad_()
    right = mask_of("right", 2, 11)
    found = []
    for path in ("plain", "auto"):
        bias.grad = None
        found.append(results(layer, x, path, bias=bias, attention_mask=right) | {"bias": bias.grad})
    for name, expected in found[0].items():
        torch.testing.assert_close(found[1][name], expected, rtol=1e-10, atol=1e-10)
    assert taken[-1] == "short"


@pytest.mark.parametrize("kind", MASKS)
def test_rotary_positions_turn_queries_and_keys(kind, taken):
    layer = layer_of("random+dot", causal=True, rotary=RotaryOptions())
    assert_plain(layer, tokens(3, 11, D), attention_mask=mask_of(kind, 3, 11))
    assert taken[-1] == "short"


@torch.no_grad()
def test_later_queries_see_the_cached_keys(taken):
    layer, x = layer_of("random+dot", causal=True), tokens(2, 11, D)
    cache = ValueCache()
    parts = [layer(x[:, :4], cache=cache), layer(x[:, 4:], cache=cache)]
    assert taken == ["short", "short"]
    layer.path = "plain"
    torch.testing.assert_close(torch.cat(parts, 1), layer(x))


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
    root, found = str(Path(synthesizer.__file__).parent) + os.sep, set()

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
    assert len({file for file, _ in found}) <= 10


@needs_compiler
def test_a_forward_by_the_kernel_is_few_steps(built):
    layer = SyntheticAttention(64, 4, 128, "random+dot", causal=True)
    found = steps(layer, torch.randn(2, 128, 64))
    assert built
    assert len(found) <= 33, sorted(found)
    assert len({file for file, _ in found}) <= 10
