"""The compiled kernel gives what the plain path gives, and what the blocks in torch give."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from synthesizer_attention.attention import fast, hook, masks
from synthesizer_attention.attention import terms as terms_file
from synthesizer_attention.attention.layer import Inputs, SyntheticAttention
from synthesizer_attention.attention.terms import Places, Terms
from synthesizer_attention.errors import UserError
from synthesizer_attention.kernels import cpu as kernel
from test_fast import ANY_LENGTH, MASKS, mask_of, results
from tiny import environment
from variants import TABLES, redrawn, tokens

H, D = 3, 12
KNOWN = [spec for spec in ANY_LENGTH if spec != "dot"]
SUMS = ["relative+relative+dot", "dense+dot", "dot+random+dense", "dense+dot+dot", "relative+dot"]
SUMS += ["dense:input=head:share=1+dot"]

needs_compiler = pytest.mark.skipif(
    not any(map(kernel.which, ("cc", "gcc", "clang"))) or kernel._gemm() is None,
    reason="no C compiler, or a torch that shows no BLAS",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The kernel, compiled once for all files and workers of a test run."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    path = shared / "kernel" / "kernel.so"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "built_path", lambda home: path)
        assert kernel.build() == path
    return path


@pytest.fixture
def built(library, monkeypatch):
    """The kernel in use, on one thread, in small blocks; how often it was called."""
    calls, threads = [], torch.get_num_threads()
    monkeypatch.delenv("SYNTHESIZER_KERNEL")
    monkeypatch.setattr(kernel, "built_path", lambda home: library)
    monkeypatch.setattr(kernel, "CACHED", 400)
    monkeypatch.setattr(kernel, "BESIDE", 2 * 23 * (D // H))  # two examples of the longest
    monkeypatch.setattr(kernel, "FEWEST_ROWS", 5)
    attend = kernel.attend

    def told(*args, grads=None, **given):
        calls.append("attend" if grads is None else "attend_back")
        attend(*args, grads=grads, **given)

    monkeypatch.setattr(kernel, "attend", told)
    torch.set_num_threads(1)
    kernel.loaded.cache_clear()
    yield calls
    torch.set_num_threads(threads)
    kernel.loaded.cache_clear()


def attention(spec, length, *, causal=False, max_len=None):
    layer = SyntheticAttention(D, H, max_len or length, spec, causal=causal, path="fast")
    layer = redrawn(layer).float()
    for parameter in layer.parameters():  # so that float32 rounding is not amplified
        parameter.data *= 0.5
    return layer


def assert_close(found, expected):
    for name, right in expected.items():
        atol = 2e-5 * max(1.0, float(right.abs().max()))
        torch.testing.assert_close(
            found[name], right, rtol=2e-5, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )


@needs_compiler
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    spec=st.sampled_from([*KNOWN, *SUMS]),
    kind=st.sampled_from(MASKS),
    causal=st.booleans(),
    window=st.sampled_from([None, None, 4, 9]),
    rows=st.sampled_from([5, 5, 64]),  # of a block: several blocks, or one small product
    threads=st.sampled_from([1, 2]),  # two share the rows of each of three heads
    shape=st.sampled_from([(1, 23, 0), (3, 2, 2), (3, 23, 0), (1, 2, 0), (3, 23, 2)]),
)
def test_the_kernel_gives_what_the_plain_path_gives(
    spec, kind, causal, window, rows, threads, shape, built
):
    torch.set_num_threads(threads)
    kernel.CACHED, kernel.FEWEST_ROWS = {5: (400, 5), 64: (2**17, 64)}[rows]  # restored by built
    batch, length, longer = shape
    layer = attention(spec, length, causal=causal, max_len=length + longer)
    layer.window = window
    x, mask = tokens(batch, length, D).float(), mask_of(kind, batch, length)
    built.clear()
    found = results(layer, x, "fast", attention_mask=mask)
    assert set(built) == {"attend", "attend_back"}
    assert_close(found, results(layer, x, "plain", attention_mask=mask))


@needs_compiler
@pytest.mark.parametrize(
    "spec", ["dense+dot", "random+dot", "factorized_dense", "random+dense", "relative+dot"]
)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width", [16, 20])  # of a head: whole vectors, and not
def test_small_products_follow_what_rows_see(spec, causal, width, built, monkeypatch):
    monkeypatch.setattr(kernel, "CACHED", 2**17)
    monkeypatch.setattr(kernel, "FEWEST_ROWS", 64)
    for length, kind, window in ((37, "none", None), (16, "holes", None), (37, "left", 5)):
        layer = SyntheticAttention(2 * width, 2, length, spec, causal=causal, window=window)
        layer, mask = redrawn(layer).float(), mask_of(kind, 3, length)
        for parameter in layer.parameters():
            parameter.data *= 0.2
        x = tokens(3, length, 2 * width).float()
        found = results(layer, x, "fast", attention_mask=mask)
        assert_close(found, results(layer, x, "plain", attention_mask=mask))
    assert "attend_back" in built


@needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86 compilers")
@pytest.mark.parametrize("without", ["-mno-avx512f", "-mno-avx"])  # registers of 8 and 4 numbers
def test_narrower_registers_give_the_same(without, built, tmp_path, monkeypatch):
    monkeypatch.setattr(kernel, "FLAGS", (*kernel.FLAGS, "-O1", without))
    monkeypatch.setattr(kernel, "built_path", lambda home: tmp_path / "kernel.so")
    kernel.build()
    for spec in ("dense+dot", "random+dot", "factorized_dense", "relative"):
        for cached, fewest in ((400, 5), (2**17, 64)):  # several blocks, and one small product
            monkeypatch.setattr(kernel, "CACHED", cached)
            monkeypatch.setattr(kernel, "FEWEST_ROWS", fewest)
            layer, x = attention(spec, 23, causal=True), tokens(3, 23, D).float()
            mask = mask_of("holes", 3, 23)
            built.clear()
            found = results(layer, x, "fast", attention_mask=mask)
            assert set(built) == {"attend", "attend_back"}
            assert_close(found, results(layer, x, "plain", attention_mask=mask))


@needs_compiler
@pytest.mark.parametrize("spec", ["dense", "random+dot"])
def test_the_kernel_adds_a_bias_and_its_gradient(spec, built):
    layer, x, biases = attention(spec, 23), tokens(2, 23, D).float(), {}
    for path in ("plain", "fast"):
        layer.path, bias = path, tokens(1, H, 1, 23).float().requires_grad_()
        layer(x, bias=bias).square().sum().backward()
        biases[path] = {"bias": bias.grad}
    assert_close(biases["fast"], biases["plain"])


@needs_compiler
@pytest.mark.parametrize("spec", TABLES)
@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_reads_frozen_weights(spec, causal, built):
    layer, x = attention(spec, 23, causal=causal).eval(), tokens(3, 23, D).float()
    with torch.no_grad():
        layer.path = "plain"
        expected = layer(x)
        layer.path = "fast"
        layer.freeze()
        built.clear()
        assert_close({"output": layer(x)}, {"output": expected})
    assert built == ["attend"]


@needs_compiler
def test_the_kernel_is_exact_where_logits_are_huge_or_hidden_by_infinity(built):
    layer, x = attention("random+dot", 23), tokens(2, 23, D).float()
    layer.synthesis.parts[0].table.data *= 1e4
    bias = torch.zeros(1, H, 23, 23)
    bias[..., 5:9] = -torch.inf
    expected = results(layer, x, "plain", bias=bias)
    assert_close(results(layer, x, "fast", bias=bias), expected)


@needs_compiler
def test_the_kernel_lets_no_nan_pass_for_a_number(built):
    layer, x = attention("random+dot", 23), tokens(2, 23, D).float()
    layer.synthesis.parts[0].table.data[0, 4, 7] = torch.nan
    y = layer(x)
    assert "attend" in built
    assert y[:, 4].isnan().all()
    assert not y[:, 3].isnan().any()


@needs_compiler
def test_the_kernel_is_used_for_float32_and_bfloat16_alone(built):
    assert hook.uses_kernel(torch.zeros(1), 2)
    assert not hook.uses_kernel(torch.zeros(1, dtype=torch.float64), 2)
    assert not hook.uses_kernel(torch.zeros(1, dtype=torch.float16), 2)
    assert hook.uses_kernel(torch.zeros(1, dtype=torch.bfloat16), 2)
    torch.set_num_threads(2)
    assert hook.uses_kernel(torch.zeros(1), 2)


@needs_compiler
def test_the_command_compiles_it_and_says_where(tmp_path, monkeypatch):
    monkeypatch.delenv("SYNTHESIZER_KERNEL")
    monkeypatch.setenv("SYNTHESIZER_CACHE", str(tmp_path / "cache"))
    quick = tmp_path / "bin" / "cc"  # one that does not optimize
    quick.parent.mkdir()
    quick.write_text(f'#!/bin/sh\nexec {kernel._compiler()} "$@" -O0\n')
    quick.chmod(0o700)
    words = [sys.executable, "-P", "-m", "synthesizer_attention.kernels.cpu"]
    path = {"PATH": f"{quick.parent}:{os.environ['PATH']}"}
    done = subprocess.run(words, env=environment() | path, capture_output=True, text=True)
    path = Path(done.stdout.strip())
    assert path.parent == tmp_path / "cache"
    assert path.exists()
    assert kernel.loaded(str(tmp_path / "cache")) is not None


@pytest.fixture
def unbuilt(tmp_path, monkeypatch):
    """An empty cache, a compiler and nobody who said no; the processes that were started."""
    started = []
    monkeypatch.delenv("SYNTHESIZER_KERNEL")
    monkeypatch.setattr(kernel, "built_path", lambda home: tmp_path / "kernel.so")
    monkeypatch.setattr(kernel, "_compiler", lambda: "cc")
    monkeypatch.setattr(kernel, "_gemm", lambda: 1)
    monkeypatch.setattr(kernel.subprocess, "Popen", lambda words, **_: started.append(words))
    kernel.loaded.cache_clear()
    yield started
    kernel.loaded.cache_clear()


def test_the_first_process_has_it_compiled_for_the_next_and_says_so(unbuilt, tmp_path, caplog):
    layer, x = attention("random+dot", 23), tokens(2, 23, D).float()
    for _ in range(2):
        layer(x).sum().backward()
    assert [words[1:] for words in unbuilt] == [["-P", "-m", "synthesizer_attention.kernels.cpu"]]
    path = tmp_path / "kernel.so"
    told = f"a faster kernel {path} is compiled in the background, for the next process"
    assert caplog.messages == [f"{told}; SYNTHESIZER_KERNEL=0 says no"]


@pytest.mark.parametrize("why", ["refused", "no compiler", "no BLAS", "failed before"])
def test_nothing_is_compiled_where_it_is_refused_or_in_vain(
    why, unbuilt, tmp_path, monkeypatch, caplog
):
    if why == "refused":
        monkeypatch.setenv("SYNTHESIZER_KERNEL", "0")
    elif why == "failed before":
        (tmp_path / "kernel.failed").touch()
    else:
        name = "_compiler" if why == "no compiler" else "_gemm"
        monkeypatch.setattr(kernel, name, lambda: None)
    attention("random+dot", 23)(tokens(2, 23, D).float())
    kernel.prepare()
    assert not unbuilt
    assert not caplog.messages


@needs_compiler
def test_a_run_compiles_it_before_the_first_step(tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("SYNTHESIZER_KERNEL")
    monkeypatch.setenv("SYNTHESIZER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel, "FLAGS", (*kernel.FLAGS, "-O0"))
    kernel.loaded.cache_clear()
    kernel.prepare()
    path = kernel.built_path(str(tmp_path / "cache"))
    assert caplog.messages == [
        f"a faster kernel {path} is compiled, once; SYNTHESIZER_KERNEL=0 says no"
    ]
    assert kernel.loaded(str(tmp_path / "cache")) is not None
    kernel.prepare()
    assert len(caplog.messages) == 1
    kernel.loaded.cache_clear()


def test_another_flag_is_another_kernel(monkeypatch):
    first = kernel.built_path("here")
    monkeypatch.setattr(kernel, "FLAGS", ("-O0",))
    assert first.parent.name == "here"
    assert kernel.built_path("here") != first


@needs_compiler
def test_a_backward_pass_goes_the_way_of_its_forward_pass(built):
    layer, x = attention("random+dot", 23), tokens(2, 23, D).float()
    expected = results(layer, x, "plain")
    layer.path = "fast"
    layer.zero_grad()
    y = layer(x)
    torch.set_num_threads(2)
    spread = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape)
    (y * spread.float()).sum().backward()
    assert built == ["attend", "attend_back"]
    table = layer.synthesis.parts[0].table.grad
    name = "synthesis.parts.0.table"
    assert_close({name: table}, {name: expected[name]})


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, r"no C compiler was found \(cc, gcc, clang\); install one"),
        ("false", r"false failed: .*; the torch path still works"),
    ],
)
def test_what_the_compiler_says_is_told(found, text, monkeypatch, tmp_path):
    monkeypatch.setattr(kernel, "which", lambda name: found)
    monkeypatch.setattr(kernel, "built_path", lambda home: tmp_path / "kernel.so")
    with pytest.raises(UserError, match=text):
        kernel.build()
    assert (tmp_path / "kernel.failed").exists() == (found is not None)


@needs_compiler
@pytest.mark.parametrize("threads", [2, 3, 5])  # rows shared, a head each, more than heads
def test_a_number_of_threads_gives_the_same_bits_again(threads, built):
    layer, x = attention("random+dense", 23, causal=True), tokens(3, 23, D).float()
    expected = results(layer, x, "plain")
    torch.set_num_threads(threads)
    first, again = results(layer, x, "fast"), results(layer, x, "fast")
    assert built == ["attend", "attend_back"] * 2
    assert_close(first, expected)
    for name, found in first.items():
        assert torch.equal(found, again[name]), name


@needs_compiler
def test_without_torch_s_threads_the_kernel_takes_one(built, monkeypatch):
    monkeypatch.setattr(kernel, "_runtime", lambda: (0, 0, 0, 0))
    kernel.loaded.cache_clear()
    layer, x = attention("random+dot", 23), tokens(2, 23, D).float()
    expected = results(layer, x, "plain")
    torch.set_num_threads(2)
    assert_close(results(layer, x, "fast"), expected)
    assert built == ["attend", "attend_back"]


@needs_compiler
def test_the_kernel_takes_an_empty_batch(built):
    terms = Terms(torch.empty(H, 0, 7, 4), table=torch.ones(H, 7, 7))
    seen = masks.visibility_of(None, 7, 7, True, None, masks.SLOT, torch.device("cpu"))
    output, kept = fast.operator.attend_terms(terms, seen, 7)
    wanted = [tensor is not None for tensor in vars(terms).values()]
    grads = fast.operator.attend_back(terms, seen, output, kept, output, wanted)
    assert output.shape == (0, 7, H, 4)
    assert not grads.table.any()
    assert built == ["attend", "attend_back"]


@needs_compiler
@pytest.mark.parametrize("spec", ["random+dot", "dense", "factorized_dense"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # by the kernel, in blocks
def test_compiled_gradients_lie_as_their_tensors_do(spec, dtype, built):
    """And as the operators promise, by torch's own check; laid out otherwise they are copied."""
    layer, x = attention(spec, 9, causal=True).to(dtype), tokens(3, 9, D).to(dtype)
    call = layer._call(x, Inputs())
    terms = layer.synthesis.terms(x, call.keys, Places.slots(9, 9))
    terms.values = call.values.transpose(0, 1)  # in memory (B, T, H, K)
    given = [part if part is None else part.detach() for part in vars(terms).values()]
    if dtype == torch.float64:
        given = [part if part is None else part.contiguous() for part in given]
    values, wanted = given[0], [part is not None for part in given]
    seen = masks.visibility_of(None, 9, 9, True, None, masks.SLOT, x.device)
    given += [None, seen.stops, None, True, True]
    operators = torch.ops.synthesizer
    output, kept = operators.attend(*given, 9)
    back = (*given, None, kept, output, wanted)
    torch.library.opcheck(operators.attend.default, (*given, 9), test_utils="test_faketensor")
    torch.library.opcheck(operators.attend_back.default, back, test_utils="test_faketensor")
    assert operators.attend_back(*back)[0].stride() == values.stride()
    assert bool(built) == (dtype == torch.float32)


@needs_compiler
@pytest.mark.parametrize("frozen", [False, True])
def test_two_bilinear_terms_reach_the_kernel_as_they_lie(frozen, built, monkeypatch):
    """Of two, nothing is joined beforehand; the keys of one of them may need no gradient."""
    layer, x = attention("dense+dot", 23, causal=True), tokens(3, 23, D).float()
    if frozen:
        for weight in (layer.synthesis.mix, *layer.synthesis.parts[0].parameters()):
            weight.requires_grad_(False)
    expected = results(layer, x, "plain")
    expected = {name: value for name, value in expected.items() if value is not None}
    monkeypatch.setattr(terms_file, "_joined", None)
    for rows in (5, 64):  # by the BLAS, and by hand
        monkeypatch.setattr(kernel, "FEWEST_ROWS", rows)
        assert_close(results(layer, x, "fast"), expected)
    assert built == ["attend", "attend_back"] * 2


def test_two_low_ranks_are_one_table_that_freezes():
    layer = attention("factorized_random+factorized_random:k=3", 7).eval()
    x = tokens(2, 7, D).float()
    with torch.no_grad():
        expected = layer(x)
        layer.freeze()
        torch.testing.assert_close(layer(x), expected)


def test_a_second_bilinear_term_is_never_dropped_without_the_kernel(monkeypatch):
    """A graph that was compiled with the kernel may run where it has gone."""
    part = torch.ones(1, 2, 3, 4)
    terms = Terms(part, queries=part, keys=part, other_queries=part, other_keys=part)
    visibility = masks.visibility_of(None, 3, 3, True, None, masks.SLOT, part.device)
    monkeypatch.setattr(fast.operator, "uses_kernel", lambda values, num_queries: False)
    with pytest.raises(AssertionError, match="the compiled kernel has gone"):
        fast.operator.attend_terms(terms, visibility, 3)
