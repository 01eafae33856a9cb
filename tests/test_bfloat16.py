"""Attention in bfloat16 by the compiled kernel: sums are float32, and it says what it rounds."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from synthesizer_attention.attention.fast.operator import (
    MULTIPLIED,
    gradients_of_terms,
    written_out,
)
from synthesizer_attention.attention.layer import CrossAttention, SyntheticAttention
from synthesizer_attention.attention.terms import Terms
from synthesizer_attention.kernels import cpu as kernel
from test_compile import compiled_results
from test_fast import MASKS, mask_of, results
from test_kernel import KNOWN, SUMS, H, attention, built, library, needs_compiler
from variants import tokens

__all__ = ["built", "library"]
D = 24
ROUNDED = 2**-7  # of bfloat16's weights, summed in float32, and of the results
SUMMED = 1e-4  # of what is added and differentiated in float32


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


def assert_near(found, expected, name, bound):
    """By the length of the difference: a single number may be a sum near zero."""
    error, length = (found.double() - expected).norm(), expected.norm()
    assert error <= bound * length + 1e-4 * expected.numel() ** 0.5, f"{name}: {error} of {length}"


@pytest.fixture
def checked(built, monkeypatch):
    """Every call of the kernel beside the equation in float64, from the very same numbers."""
    attend = kernel.attend

    def compare(terms, visibility, output, *, grads=None, **given):
        if terms.values.dtype == torch.bfloat16:
            numbers = [None if part is None else part.double() for part in vars(terms).values()]
        attend(terms, visibility, output, grads=grads, **given)
        if terms.values.dtype != torch.bfloat16:
            return
        num_queries = output.shape[2]
        if grads is None:
            expected = written_out(Terms(*numbers), visibility, num_queries)
            assert_near(output.permute(1, 2, 0, 3), expected, "output", ROUNDED)
            return
        wanted = [part is not None for part in vars(grads).values()]
        above = output.permute(1, 2, 0, 3).double()
        with torch.enable_grad():
            asked = [None if part is None else part.requires_grad_() for part in numbers]
            each = gradients_of_terms(asked, visibility, above, wanted)
        for (name, found), expected in zip(vars(grads).items(), each, strict=True):
            if found is not None:
                bound = ROUNDED if name in MULTIPLIED else SUMMED
                assert_near(found, expected.detach(), name, bound)

    monkeypatch.setattr(kernel, "attend", compare)
    return built


@needs_compiler
@pytest.mark.parametrize("multiplies", [True, False])  # False: bfloat16 is widened to float32
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    spec=st.sampled_from(["dot", "factorized_random+dot", *KNOWN, *SUMS]),
    kind=st.sampled_from(MASKS),
    causal=st.booleans(),
    window=st.sampled_from([None, None, 4, 9]),
    rows=st.sampled_from([5, 64]),
    threads=st.sampled_from([1, 2]),
    shape=st.sampled_from([(1, 23, 0), (3, 2, 2), (3, 37, 0), (3, 23, 2)]),
)
def test_bfloat16_is_rounded_as_said(
    multiplies, spec, kind, causal, window, rows, threads, shape, checked, monkeypatch
):
    if not multiplies:
        monkeypatch.setattr(kernel.in_use().library, "has_bfloat16", lambda: 0)
    torch.set_num_threads(threads)
    kernel.CACHED, kernel.FEWEST_ROWS = {5: (400, 5), 64: (2**17, 64)}[rows]  # restored by built
    batch, length, longer = shape
    torch.manual_seed(0)
    layer = SyntheticAttention(D, H, length + longer, spec, causal=causal, window=window)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x, mask = tokens(batch, length, D).float(), mask_of(kind, batch, length)
    checked.clear()
    with autocast():
        found = results(layer, x, "fast", attention_mask=mask)
    assert set(checked) == {"attend", "attend_back"}
    assert all(number.isfinite().all() for number in found.values())


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("spec", ["dot", "dense+dot", "random", "factorized_dense"])
def test_compiled_bfloat16_equals_eager(spec, threads, built):
    torch._dynamo.reset()
    layer, x = attention(spec, 23, causal=True), tokens(3, 23, 12).float()
    torch.set_num_threads(threads)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with autocast():
        expected = results(layer, x, "fast")
        built.clear()
        found = compiled_results(layer, x, compiled)
        assert set(built) == {"attend", "attend_back"}
    for name, right in expected.items():
        assert_near(found[name], right.double(), name, ROUNDED)


def test_cross_attention_of_few_keys_is_computed_in_float32():
    torch.manual_seed(0)
    layer, x, memory = CrossAttention(12, 3), tokens(2, 5, 12).float(), tokens(2, 7, 12).float()
    mask = mask_of("right", 2, 7)
    expected = layer(x, *layer.project(memory, mask), attention_mask=mask)
    with autocast():
        found = layer(x, *layer.project(memory, mask), attention_mask=mask)
    assert found.dtype == torch.bfloat16
    assert_near(found.detach(), expected.detach().double(), "output", 2 * ROUNDED)


@pytest.mark.parametrize("causal", [True, False])
def test_a_frozen_table_computes_in_the_type_of_the_values(causal):
    torch.manual_seed(0)
    layer, x = SyntheticAttention(12, 3, 9, "random", causal=causal).eval(), tokens(2, 9, 12)
    torch.nn.init.normal_(layer.synthesis.table)
    with torch.no_grad():
        expected = layer(x.float())
        layer.freeze()
        with autocast():
            found = layer(x.float())
    assert found.dtype == torch.bfloat16
    assert_near(found, expected.double(), "output", 2 * ROUNDED)
