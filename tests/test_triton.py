"""The GPU kernels, run by Triton's interpreter on CPU tensors, give what the equation gives."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from synthesizer_attention.attention import hook
from synthesizer_attention.attention.masks import Visibility
from synthesizer_attention.attention.terms import Terms
from synthesizer_attention.kernels import triton as gpu
from synthesizer_attention.kernels.cpu import Compiled

pytest.importorskip("triton", reason='triton is not installed: pip install ".[gpu]"')
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder

from test_fast import D as WIDTH
from test_fast import attention, mask_of, results
from test_odd_values import assert_hidden_never_matters, assert_near_to_float64
from variants import tokens

NAMES = gpu.NAMES
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
        "values": (heads, batch, num_keys, value_width),
        "queries": (heads, batch, num_queries, width),
        "keys": (heads, 1 if shared else batch, num_keys, width),
        "table": (heads, num_queries, num_keys),
        "weight": (heads,),
        "offsets": (heads, num_keys),
        "tiled": (heads, batch, num_queries, A),
        "repeated": (heads, batch, num_queries, -(-num_keys // A)),
    }
    wanted = {"values", *[name for part in parts for name in PARTS[part]]}
    return Terms(
        **{
            name: (0.7 * torch.randn(shape, generator=generator)).to(dtype).requires_grad_()
            for name, shape in shapes.items()
            if name in wanted
        }
    )


def seen_by(kind, batch, num_queries, num_keys):
    slots = torch.arange(num_keys - num_queries, num_keys, dtype=torch.int32)
    if kind == "causal":
        return Visibility(stops=(slots + 1)[None])
    if kind == "window":
        return Visibility(starts=(slots - 3).clamp(min=0)[None], stops=(slots + 1)[None])
    lengths = torch.arange(batch, dtype=torch.int32) * num_keys // max(1, batch - 1)
    stops = lengths[:, None].expand(batch, num_queries).contiguous()  # the first sees nothing
    if kind == "lengths":
        return Visibility(stops=stops)
    if kind == "lengths and rows":
        rows = (slots - slots[0]).expand(batch, -1) * 2 % num_queries  # some rows are read twice
        return Visibility(stops=stops, table_rows=rows.int().contiguous())
    return Visibility()


def naive(terms, seen, num_queries):
    """The equation, in float64: (B, T, H, K)."""
    double = Terms(**{n: p if p is None else p.double() for n, p in vars(terms).items()})
    num_keys, rows = terms.values.shape[2], seen.table_rows
    if rows is not None and terms.table is not None:
        double.table = double.weighted_table()[:, rows.long()]
        double.weight = None
    logits, keys = double.logits(num_queries, num_keys), torch.arange(num_keys)
    visible = torch.ones(1, 1, num_queries, num_keys, dtype=torch.bool)
    if seen.starts is not None:
        visible = visible & (keys >= seen.starts[:, None, :, None])
    if seen.stops is not None:
        visible = visible & (keys < seen.stops[:, None, :, None])
    weights = logits.masked_fill(~visible, -1e300).softmax(-1).masked_fill(~visible, 0.0)
    return (weights @ double.values.transpose(0, 1)).transpose(1, 2)


def assert_equal_to_the_equation(terms, seen, num_queries, bound):
    expected = naive(terms, seen, num_queries)
    grad = torch.linspace(-1, 1, expected.numel()).view(expected.shape)
    given = {name: part for name, part in vars(terms).items() if part is not None}
    rights = torch.autograd.grad(expected, list(given.values()), grad.double())
    with torch.no_grad():
        output, sums = gpu.attend(terms, seen, num_queries)
        wanted = [part is not None for part in vars(terms).values()]
        grads = gpu.attend_back(terms, seen, output, sums, grad.to(output.dtype), wanted)
    pairs = {"output": (output, expected.detach())}
    pairs |= {n: (getattr(grads, n), right) for n, right in zip(given, rights, strict=True)}
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
    expected, sums = gpu.attend(terms, Visibility(), 19)
    gaps = {n: torch.stack([p, p])[1] for n, p in vars(terms).items() if p is not None}
    gaps["queries"] = terms.queries.transpose(1, 2).contiguous().transpose(1, 2)
    gaps["values"] = terms.values.mT.contiguous().mT
    found, _ = gpu.attend(Terms(**gaps), Visibility(), 19)
    torch.testing.assert_close(found, expected)
    right, left = (
        gpu.attend_back(each, Visibility(), expected, sums, expected, [True] * 8)
        for each in (terms, Terms(**gaps))
    )
    for name in NAMES:
        torch.testing.assert_close(getattr(left, name), getattr(right, name))


@torch.no_grad()
def test_only_the_gradients_that_are_wanted_are_computed():
    terms = drawn_terms(SUMS[-1], 2, 2, 5, 5, (3, 3), shared=True, dtype=torch.float32)
    output, sums = gpu.attend(terms, Visibility(), 5)
    for name in NAMES:
        wanted = [other == name for other in NAMES]
        grads = gpu.attend_back(terms, Visibility(), output, sums, torch.ones_like(output), wanted)
        assert [n for n, part in vars(grads).items() if part is not None] == [name]


@torch.no_grad()
def test_an_empty_batch_gives_an_empty_result_and_zero_gradients():
    terms = drawn_terms(SUMS[-1], 0, 2, 5, 5, (3, 3), shared=True, dtype=torch.float32)
    output, sums = gpu.attend(terms, Visibility(), 5)
    assert output.shape == (0, 5, 2, 3)
    grads = gpu.attend_back(terms, Visibility(), output, sums, output, (True,) * 8)
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
    calls = []
    monkeypatch.setattr(hook, "GPUS", ("cpu",))
    monkeypatch.setattr(Compiled, "takes_on_gpu", lambda self, terms: True)
    counted = staticmethod(lambda *given: (calls.append(1), gpu.attend(*given))[1])
    monkeypatch.setattr(Compiled, "attend_on_gpu", counted)
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
