"""Names, counts, first draws and sizes of parameters; test_contract.py has the equations."""

import math
import re
import warnings

import pytest
import torch

from synthesizer_attention.attention import synthesis as functions
from synthesizer_attention.attention.layer import SyntheticAttention
from synthesizer_attention.attention.registry import SYNTHESES, build_synthesis
from synthesizer_attention.attention.synthesis import DotProduct, Size
from synthesizer_attention.errors import UserError
from variants import EVERY, GROUPS, SIZE, redrawn, tokens

B, T, H, D, K, N = 2, 5, 3, 12, 4, 7
AT = torch.arange(T)


def logits_of(synthesis, x, at=AT):
    return synthesis(x, synthesis.keys(x), at, at)


PARAMETER_NAMES = {
    "dot": {"wq": (H, D, K), "wk": (H, D, K)},
    "random": {"table": (H, N, N)},
    "fixed_random": {"table": (H, N, N)},
    "factorized_random": {"rows": (H, N, 8), "columns": (H, N, 8)},
    "dense": {"w1": (H, D, K), "b1": (H, K), "w2": (H, K, N), "b2": (H, N)},
    "factorized_dense": {
        "w1": (H, D, K),
        "b1": (H, K),
        "wa": (H, K, 3),
        "ba": (H, 3),
        "wb": (H, K, 3),
        "bb": (H, 3),
    },
    "relative": {"offsets": (H, 2 * N - 1), "first": (H, 1)},
    "relative:sinks=2": {"offsets": (H, 2 * N - 1), "first": (H, 1), "last": (H, 1)},
    "fixed_random+dot": {
        "mix": (H, 2),
        "parts.0.table": (H, N, N),
        "parts.1.wq": (H, D, K),
        "parts.1.wk": (H, D, K),
    },
    "random@1|dot@2": {
        "groups.0.table": (1, N, N),
        "groups.1.wq": (2, D, K),
        "groups.1.wk": (2, D, K),
    },
}


@pytest.mark.parametrize("spec", PARAMETER_NAMES)
def test_parameter_names_outlive_the_code(spec):
    assert set(SYNTHESES) <= set(PARAMETER_NAMES)
    state = build_synthesis(spec, SIZE).state_dict()
    assert {key: tuple(value.shape) for key, value in state.items()} == PARAMETER_NAMES[spec]


TABLE_1 = {  # the paper's Table 1, biases aside, summed over heads
    "dot": 2 * D**2,
    "random": H * N**2,
    "fixed_random": 0,
    "factorized_random": 2 * H * N * 8,
    "factorized_random:k=3": 2 * H * N * 3,
    "dense": D**2 + D * N,
    "factorized_dense": D**2 + D * (3 + 3),
    "factorized_dense:a=2:b=4": D**2 + D * (2 + 4),
    "relative": 2 * H * N,
    "random@2|dot@1": 2 * N**2 + 2 * D * K,
    "random+dot": H * N**2 + 2 * D**2 + H * 2,
    "random+dense": H * N**2 + D**2 + D * N + H * 2,
}


@pytest.mark.parametrize(("spec", "count"), TABLE_1.items())
def test_parameters_count_as_in_the_papers_table_1(spec, count):
    synthesis = build_synthesis(spec, SIZE)
    biases = {"b1", "b2", "ba", "bb"}
    counted = sum(
        parameter.numel()
        for name, parameter in synthesis.named_parameters()
        if name.rpartition(".")[2] not in biases
    )
    assert counted == count


def test_learned_tables_start_small_and_fixed_ones_do_not():
    size = Size(d_model=8, num_heads=4, max_len=64)
    at, x = torch.arange(64), torch.zeros(1, 64, 8)
    for spec, std in (("random", 0.02), ("factorized_random", 0.02), ("fixed_random", 1.0)):
        assert logits_of(build_synthesis(spec, size), x, at).std().item() == pytest.approx(
            std, rel=0.2
        )
    wide = build_synthesis("random:std=0.5", size)
    assert wide.table.std().item() == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize("spec", [*EVERY, *GROUPS])
@pytest.mark.parametrize("max_len", [4, 13])
def test_resize_keeps_what_was_learned(spec, max_len):
    synthesis = redrawn(build_synthesis(spec, Size(d_model=12, num_heads=3, max_len=7)))
    shared = min(7, max_len)
    x, at = tokens(B, shared, D), torch.arange(shared)
    before, a = logits_of(synthesis, x, at), getattr(synthesis, "a", None)
    synthesis.resize(max_len)
    assert a == getattr(synthesis, "a", None)  # so that every learned column stays where it was
    torch.testing.assert_close(logits_of(synthesis, x, at), before, atol=1e-10, rtol=0)
    whole = torch.arange(max_len)
    longer = logits_of(synthesis, tokens(B, max_len, D), whole)
    assert longer.shape[-1] == max_len
    assert longer.isfinite().all()
    assert all(parameter.requires_grad for parameter in synthesis.parameters())


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((10, 3, 7), "d_model=10 does not divide into num_heads=3"),
        ((12, 0, 7), "d_model=12 does not divide into num_heads=0"),
        ((12, 3, 0), "max_len=0; it must be at least 1"),
    ],
)
def test_a_size_that_cannot_be_is_refused(numbers, text):
    with pytest.raises(UserError, match=text):
        Size(*numbers)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("random@2|dot@2", "is for 4 heads and the layer has 3; let the groups add up"),
        ("random@2|dot", "'dot' in synthesis 'random@2|dot' does not say how many heads"),
        ("random@2|none@1", "gives 'none' to some heads; it takes the place of all"),
        ("random@2|linformer@1", "gives 'linformer' to some heads"),
        ("dot+dot@2|dot@1", "groups of heads keep keys of different widths"),
        ("dense:input=token", "dense:input=token; choose from model, head"),
    ],
)
def test_a_layer_that_cannot_be_is_refused(spec, text):
    with pytest.raises(UserError, match=re.escape(text)):
        build_synthesis(spec, SIZE)


@pytest.mark.parametrize("spec", ["dot", "random+dot", "random@1|dot@2", "dense"])
def test_a_dot_product_may_start_with_equal_queries_and_keys(spec):
    """Then a token's logit with itself and with its copies is the squared norm of its query."""
    layer = SyntheticAttention(D, H, N, spec, equal_qk_init=True)
    dots = [part for part in layer.modules() if isinstance(part, DotProduct)]
    assert bool(dots) == ("dot" in spec)
    for dot in dots:
        torch.testing.assert_close(dot.wk, dot.wq, rtol=0, atol=0)
        dot.reset_parameters()
        torch.testing.assert_close(dot.wk, dot.wq, rtol=0, atol=0)
        x = tokens(1, 2, D)[:, [0, 1, 0]].to(dot.wq.dtype)
        logits = logits_of(dot, x, torch.arange(3))
        torch.testing.assert_close(logits[..., 0, 2], logits[..., 0, 0])
        norms = (x[:, None] @ dot.wq).square().sum(-1) / math.sqrt(dot.d_keys)
        torch.testing.assert_close(logits.diagonal(dim1=-2, dim2=-1), norms)
        logits[..., 0, 1].sum().backward()
        assert not torch.equal(dot.wq.grad, dot.wk.grad)  # learning parts them


def test_queries_and_keys_start_apart_unless_asked():
    assert not torch.equal(*build_synthesis("dot", SIZE).parameters())


def test_a_large_table_names_variants_that_need_none(monkeypatch):
    monkeypatch.setattr(functions, "LARGE_TABLE", 4 * 3 * 8**2)
    with pytest.warns(UserWarning, match=r"0.0 GB at max_len 8, .*; factorized_random and"):
        SyntheticAttention(6, 3, 8, "random")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SyntheticAttention(6, 3, 7, "random")
        with torch.device("meta"):  # a sketch
            SyntheticAttention(6, 3, 8, "random")
