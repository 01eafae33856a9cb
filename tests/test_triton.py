"""The GPU kernels, run by Triton's interpreter on CPU tensors, give what the equation gives."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from synthesizer_attention.attention import hook
from synthesizer_attention.kernels import triton as gpu
from synthesizer_attention.kernels.triton import FusedRange, FusedTerms

pytest.importorskip("triton", reason='triton is not installed: pip install ".[gpu]"')
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder

from test_fast import D as WIDTH
from test_fast import attention, mask_of, results
from test_odd_values import assert_hidden_never_matters, assert_near_to_float64
from variants import tokens

NAMES = ("values", "queries", "keys", "table", "weight", "offsets", "tiled", "repeated")
PARTS = {
    "bilinear": ("queries", "keys"),
    "table": ("table",),
    "weighed table": ("table", "weight"),
    "offsets": ("offsets",),
    "outer": ("tiled", "repeated"),
}
SUMS = [("bilinear",), ("table",), ("bilinear", "offsets"), ("outer",)]
SUMS += [("bilinear", "weighed table"), ("table", "outer"), tuple(PARTS)[:1] + tuple(PARTS)[2:]]
RANGES = ("all", "causal", "window", "lengths", "lengths and rows")
A = 5


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Tiles of 16, so that small sizes cross their edges."""
    tile = gpu._tile
    monkeypatch.setattr(gpu, "_tile", lambda terms: tile(terms)._replace(rows=16, columns=16))


def drawn_terms(parts, batch, heads, num_queries, num_keys, widths, *, shared, dtype):
    generator = torch.Generator().manual_seed(0)
    width, value_width = widths
    shapes = {
        "values": (batch, heads, num_keys, value_width),
        "queries": (batch, heads, num_queries, width),
        "keys": (1 if shared else batch, heads, num_keys, width),
        "table": (heads, num_queries, num_keys),
        "weight": (heads,),
        "offsets": (heads, num_keys),
        "tiled": (batch, heads, num_queries, A),
        "repeated": (batch, heads, num_queries, -(-num_keys // A)),
    }
    wanted = {"values", *[name for part in parts for name in PARTS[part]]}
    return FusedTerms(
        **{
            name: (0.7 * torch.randn(shape, generator=generator)).to(dtype).requires_grad_()
            for name, shape in shapes.items()
            if name in wanted
        }
    )


def seen_by(kind, batch, num_queries, num_keys):
    slots = torch.arange(num_keys - num_queries, num_keys, dtype=torch.int32)
    if kind == "causal":
        return FusedRange(stops=(slots + 1)[None])
    if kind == "window":
        return FusedRange(starts=(slots - 3).clamp(min=0)[None], stops=(slots + 1)[None])
    lengths = torch.arange(batch, dtype=torch.int32) * num_keys // max(1, batch - 1)
    stops = lengths[:, None].expand(batch, num_queries).contiguous()  # the first sees nothing
    if kind == "lengths":
        return FusedRange(stops=stops)
    if kind == "lengths and rows":
        rows = (slots - slots[0]).expand(batch, -1) * 2 % num_queries  # some rows are read twice
        return FusedRange(stops=stops, rows=rows.int().contiguous())
    return FusedRange()


def naive(terms, seen, num_queries):
    """The equation, in float64."""
    double = {name: getattr(terms, name) for name in NAMES}
    double = {name: None if part is None else part.double() for name, part in double.items()}
    num_keys = terms.values.shape[2]
    logits, keys = torch.zeros(1, 1, num_queries, num_keys), torch.arange(num_keys)
    if terms.queries is not None:
        logits = logits + double["queries"] @ double["keys"].mT
    if terms.table is not None:
        table = double["table"]
        if terms.weight is not None:
            table = table * double["weight"][:, None, None]
        logits = logits + (
            table if seen.rows is None else table[:, seen.rows.long()].transpose(0, 1)
        )
    if terms.offsets is not None:
        logits = logits + double["offsets"][:, None]
    if terms.tiled is not None:
        logits = logits + double["tiled"][..., keys % A] * double["repeated"][..., keys // A]
    visible = torch.ones(1, 1, num_queries, num_keys, dtype=torch.bool)
    if seen.starts is not None:
        visible = visible & (keys >= seen.starts[:, None, :, None])
    if seen.stops is not None:
        visible = visible & (keys < seen.stops[:, None, :, None])
    weights = logits.masked_fill(~visible, -1e300).softmax(-1).masked_fill(~visible, 0.0)
    return weights @ double["values"]


def assert_equal_to_the_equation(terms, seen, num_queries, bound):
    expected = naive(terms, seen, num_queries)
    grad = torch.linspace(-1, 1, expected.numel()).view(expected.shape)
    given = [part for part in terms.tensors() if part is not None]
    rights = iter(torch.autograd.grad(expected, given, grad.double()))
    wanted = tuple(part is not None for part in terms.tensors())
    with torch.no_grad():
        output, sums = gpu.forward(terms, seen, num_queries)
        grads = gpu.backward(terms, seen, output, sums, grad.to(output.dtype), wanted)
    found = dict(zip(NAMES, grads.tensors(), strict=True))
    pairs = {"output": (output, expected.detach())}
    pairs |= {n: (found[n], next(rights)) for n in NAMES if getattr(terms, n) is not None}
    for name, (left, right) in pairs.items():
        assert left.dtype == terms.values.dtype
        error = (left.double() - right.double()).abs().max()
        assert error <= bound * max(1.0, float(right.abs().max())), f"{name}: {error}"


@pytest.mark.parametrize("parts", SUMS, ids=" + ".join)
@pytest.mark.parametrize("kind", RANGES)
def test_the_interpreted_kernels_give_the_equation_and_its_gradients(parts, kind):
    for num_queries, num_keys, widths, shared in ((19, 19, (20, 3), False), (3, 35, (6, 20), True)):
        terms = drawn_terms(
            parts, 2, 2, num_queries, num_keys, widths, shared=shared, dtype=torch.float32
        )
        seen = seen_by(kind, 2, num_queries, num_keys)
        assert_equal_to_the_equation(terms, seen, num_queries, 2e-6)


def _dot_of_numbers(builder, a, b, *others, dot=InterpreterBuilder.create_dot):
    """The interpreter keeps bfloat16 as bits, and multiplies the bits; multiply the numbers."""
    a, b = (
        builder.cast_impl(part, tl.float32) if part.dtype.scalar == tl.bfloat16 else part
        for part in (a, b)
    )
    return dot(builder, a, b, *others)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["causal", "lengths and rows"])
def test_half_precision_differs_by_its_rounding_alone(dtype, kind, monkeypatch):
    monkeypatch.setattr(InterpreterBuilder, "create_dot", _dot_of_numbers)
    terms = drawn_terms(SUMS[-1], 2, 2, 19, 19, (6, 20), shared=True, dtype=dtype)
    bound = {torch.float16: 3e-3, torch.bfloat16: 2e-2}[dtype]
    assert_equal_to_the_equation(terms, seen_by(kind, 2, 19, 19), 19, bound)


@torch.no_grad()
def test_a_view_with_gaps_is_read_where_it_lies():
    terms = drawn_terms(SUMS[-1], 2, 2, 19, 19, (6, 20), shared=False, dtype=torch.float32)
    expected, _ = gpu.forward(terms, FusedRange(), 19)
    gaps = [None if p is None else torch.stack([p, p], 0)[1] for p in terms.tensors()]
    turned = FusedTerms(*gaps)
    turned.queries = terms.queries.transpose(1, 2).contiguous().transpose(1, 2)
    turned.values = terms.values.mT.contiguous().mT
    found, _ = gpu.forward(turned, FusedRange(), 19)
    torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_only_the_gradients_that_are_wanted_are_computed():
    terms = drawn_terms(SUMS[-1], 2, 2, 5, 5, (3, 3), shared=True, dtype=torch.float32)
    output, sums = gpu.forward(terms, FusedRange(), 5)
    for name in NAMES:
        wanted = tuple(other == name for other in NAMES)
        grads = gpu.backward(terms, FusedRange(), output, sums, torch.ones_like(output), wanted)
        assert [n for n in NAMES if getattr(grads, n) is not None] == [name]


@torch.no_grad()
def test_an_empty_batch_gives_an_empty_result_and_zero_gradients():
    terms = drawn_terms(SUMS[-1], 0, 2, 5, 5, (3, 3), shared=True, dtype=torch.float32)
    output, sums = gpu.forward(terms, FusedRange(), 5)
    assert output.shape == (0, 2, 5, 3)
    grads = gpu.backward(terms, FusedRange(), output, sums, output, (True,) * 8)
    assert not grads.keys.any()
    assert not grads.table.any()


def test_what_a_tile_has_no_room_for_does_not_fit():
    terms = drawn_terms(("bilinear",), 1, 1, 2, 2, (3, 3), shared=True, dtype=torch.float32)
    assert gpu.fits(terms)
    assert not gpu.fits(replace(terms, queries=torch.zeros(1, 1, 2, 257)))
    assert not gpu.fits(replace(terms, values=terms.values.double()))


COMPILE = Path(__file__).with_name("triton_compile.py")


@pytest.mark.parametrize("arch", ["80", "90"])
@pytest.mark.timeout(600)
def test_every_kernel_compiles_for_a_gpu_that_is_not_there(arch, tmp_path):
    told = subprocess.run(
        [sys.executable, str(COMPILE), arch],
        env={**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    assert len(told.stdout.splitlines()) == 8


@pytest.fixture
def calls(monkeypatch):
    """Layers on the CPU go through the kernels, as on a GPU; how often they did."""
    calls, attend = [], gpu.attend
    monkeypatch.setattr(hook, "GPUS", ("cpu",))
    monkeypatch.setattr(gpu, "takes", lambda terms: True)
    monkeypatch.setattr(gpu, "attend", lambda *given: (calls.append(1), attend(*given))[1])
    return calls


@pytest.mark.parametrize("spec", ["random+dot", "dense", "factorized_dense"])
@pytest.mark.parametrize("kind", ["none", "left"])
def test_an_attention_on_a_gpu_goes_through_the_kernels(spec, kind, calls):
    layer, x = attention(spec, length=19, causal=True).float(), tokens(2, 19, WIDTH).float()
    mask = mask_of(kind, 2, 19)
    expected = results(layer, x, "plain", attention_mask=mask)
    found = results(layer, x, "fast", attention_mask=mask)
    assert calls
    for name, right in expected.items():
        bound = 2e-4 * max(1.0, float(right.abs().max()))
        torch.testing.assert_close(found[name], right, rtol=2e-4, atol=bound)


@pytest.mark.parametrize("spec", ["random+dot", "dense", "factorized_dense"])
@pytest.mark.parametrize("kind", ["right", "left", "holes", "nothing real"])
def test_hidden_tokens_never_matter_on_a_gpu(spec, kind, calls):
    layer, mask = attention(spec, causal=True).float(), mask_of(kind, 3, 7)
    assert_hidden_never_matters(layer, tokens(3, 7, WIDTH).float(), mask, torch.nan, "fast")
    assert calls


@torch.no_grad()
@pytest.mark.parametrize("spec", ["random+dot", "dense", "factorized_dense"])
def test_a_nan_that_is_seen_stays_one_on_a_gpu(spec, calls):
    layer, x = attention(spec, length=19, causal=True).float(), tokens(2, 19, WIDTH).float()
    x[0, 5] = torch.nan
    y = layer(x)
    assert calls
    assert y[0, 5:].isnan().all()
    assert y[1].isfinite().all()


@pytest.mark.parametrize(("spec", "scale"), [("random+dot", 3), ("dense", 10)])
def test_logits_in_the_hundreds_are_as_near_to_float64_on_a_gpu(spec, scale, calls):
    assert_near_to_float64(attention(spec, length=19, causal=True), scale * tokens(2, 19, WIDTH))
    assert calls
