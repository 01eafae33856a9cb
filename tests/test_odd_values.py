"""Hidden tokens never matter, whatever they hold; a NaN that is seen stays one; large logits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from synthesizer_attention.attention.baselines import build_mixer
from synthesizer_attention.attention.layer import CrossAttention, SyntheticAttention
from synthesizer_attention.attention.synthesis import Size
from synthesizer_attention.kernels.cpu import Compiled
from test_fast import mask_of, results
from test_kernel import built, library, needs_compiler
from variants import EVERY, redrawn, tokens

__all__ = ["built", "library"]  # fixtures

H, D, T, B = 3, 12, 7, 3
SPECS = [spec for spec in EVERY if spec != "factorized_dense:a=2:b=4"]
ODD = (torch.nan, torch.inf, -torch.inf, 3e38)
KINDS = ("right", "left", "holes", "nothing real")
CASES = {
    "spec": st.sampled_from(SPECS),
    "kind": st.sampled_from(KINDS),
    "causal": st.booleans(),
    "window": st.sampled_from([None, 3]),
    "odd": st.sampled_from(ODD),
    "path": st.sampled_from(["plain", "fast", "auto"]),
}


def layer_of(spec, causal, window=None, length=T):
    built = SyntheticAttention(D, H, length, spec, causal=causal, window=window)
    return redrawn(built).float()


def with_hidden(x, mask, odd):
    """x, and the same with something odd in every hidden token."""
    return x, torch.where(mask[..., None], x, odd)


def assert_hidden_never_matters(layer, x, mask, odd, path):
    """Outputs of real tokens and every gradient are the same to the bit."""
    before, after = [
        results(layer, given, path, attention_mask=mask) for given in with_hidden(x, mask, odd)
    ]
    for name, right in before.items():
        if right is not None:
            assert torch.equal(after[name], right), name
            assert right.isfinite().all(), name
    assert (after["input"][~mask] == 0).all()


@given(**CASES)
@settings(max_examples=60, deadline=None)
def test_hidden_tokens_never_matter_in_torch(spec, kind, causal, window, odd, path):
    layer, mask = layer_of(spec, causal, window), mask_of(kind, B, T)
    assert_hidden_never_matters(layer, tokens(B, T, D).float(), mask, odd, path)


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True])
def test_hidden_tokens_never_matter_in_the_compiled_kernel(kind, causal, built):
    for spec in ("random", "factorized_dense", "random+dot", "dense+dot"):
        for length in (T, 23):  # small products and blocks
            layer, mask = layer_of(spec, causal, length=length), mask_of(kind, B, length)
            x = tokens(B, length, D).float()
            assert_hidden_never_matters(layer, x, mask, torch.nan, "fast")
    assert "attend_back" in built


@pytest.mark.parametrize("spec", ["lightconv:kernel=3", "dynamicconv:kernel=3", "linformer:k=2"])
@pytest.mark.parametrize("kind", KINDS)
def test_hidden_tokens_never_matter_in_baselines(spec, kind):
    layer, mask = redrawn(build_mixer(spec, Size(D, H, T))), mask_of(kind, B, T)
    assert_hidden_never_matters(layer, tokens(B, T, D), mask, torch.nan, "auto")


def test_hidden_tokens_of_a_memory_never_matter():
    cross, mask = redrawn(CrossAttention(D, H)), mask_of("holes", B, T)
    x, memories = tokens(B, 4, D), with_hidden(tokens(B, T, D, seed=2), mask, torch.nan)
    outputs = [cross(x, *cross.project(given, mask), attention_mask=mask) for given in memories]
    assert torch.equal(*outputs)
    assert outputs[0].isfinite().all()


@pytest.mark.parametrize("spec", ["dot", "random", "random+dot"])
def test_hidden_tokens_never_matter_when_compiled(spec):
    layer, mask = layer_of(spec, True), mask_of("holes", B, T)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    before, after = [
        compiled(given, attention_mask=mask)[mask]
        for given in with_hidden(tokens(B, T, D).float(), mask, torch.nan)
    ]
    assert torch.equal(before, after)
    assert before.isfinite().all()


@given(
    **{name: CASES[name] for name in ("spec", "kind", "causal", "path")}, at=st.integers(0, T - 1)
)
@settings(max_examples=60, deadline=None)
def test_a_nan_that_is_seen_stays_one(spec, kind, causal, path, at):
    layer, mask, x = layer_of(spec, causal), mask_of(kind, B, T), tokens(B, T, D).float()
    layer.path = path
    x[:, at] = torch.nan
    y = layer(x, attention_mask=mask)
    for b in range(B):
        if mask[b, at]:
            seeing = mask[b].clone()
            seeing[:at] &= not causal
            assert y[b, seeing].isnan().all()
        else:
            assert y[b, mask[b]].isfinite().all()


def errors_at(layer, x, path, exact):
    """The largest distance from float64 of the output and of each gradient."""
    found = results(layer, x, path)
    return {
        name: float((found[name].double() - right).abs().max()) for name, right in exact.items()
    }


def assert_near_to_float64(layer, x):
    """The fast path's errors, compared with the plain path's own and with rounding."""
    layer.double()
    logits = float(layer.logits(x).detach().abs().max())
    assert logits > 100
    exact = results(layer, x, "plain")
    layer.float()
    plain, fast_ = [errors_at(layer, x.float(), path, exact) for path in ("plain", "fast")]
    for name, right in exact.items():
        rounding = torch.finfo(torch.float32).eps * logits * float(right.abs().max())
        assert fast_[name] <= 4 * plain[name] + rounding, name


@needs_compiler
@pytest.mark.parametrize("spec", ["dot", "dense", "factorized_dense", "random+dot", "dense+dot"])
@pytest.mark.parametrize("kernel", [False, True])
def test_large_logits_are_as_near_to_float64_as_float32_is(spec, kernel, built, monkeypatch):
    if not kernel:
        monkeypatch.setattr(Compiled, "is_built", lambda self: False)
    for length in (T, 23):
        layer = layer_of(spec, True, length=length)
        assert_near_to_float64(layer, 10 * tokens(B, length, D))
