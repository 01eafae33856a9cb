"""The contract of every synthesizing function, each equation as a naive loop, and known bugs."""

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from synthesizer_attention.attention.layer import SyntheticAttention
from synthesizer_attention.attention.registry import SYNTHESES, build_synthesis, spec_of
from synthesizer_attention.attention.synthesis import DotProduct, FixedRandom, Mixture, Random, Size
from synthesizer_attention.errors import UserError
from variants import EVERY, SIZE, TABLES, every_synthesis, redrawn, tokens

B, T, H, D, K, N = 2, 5, 3, 12, 4, 7
AT = torch.arange(T)


def logits_of(synthesis, x, at=AT):
    return synthesis(x, synthesis.keys(x), at, at)


class Whole(torch.nn.Module):
    """A synthesizing function as a function of x alone."""

    def __init__(self, synthesis):
        super().__init__()
        self.synthesis = synthesis

    def forward(self, x):
        return logits_of(self.synthesis, x, torch.arange(x.shape[1]))


@every_synthesis
def test_gradients_are_those_of_finite_differences(spec):
    module = redrawn(Whole(build_synthesis(spec, Size(d_model=4, num_heads=2, max_len=4))))
    names = [name for name, _ in module.named_parameters()]

    def function(x, *values):
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))

    x = tokens(2, 3, 4).requires_grad_()
    if not names:
        return
    assert torch.autograd.gradcheck(function, (x, *module.parameters()), atol=1e-6)


@every_synthesis
def test_every_parameter_gets_a_gradient_and_no_buffer_does(spec):
    synthesis, x = redrawn(build_synthesis(spec, SIZE)), tokens(B, N, D)
    probe = tokens(1, H, N, N, seed=3)
    outcome = (logits_of(synthesis, x, torch.arange(N)) * probe).sum()
    if not list(synthesis.parameters()):
        assert not outcome.requires_grad
        return
    outcome.backward()
    for name, parameter in synthesis.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    assert all(buffer.grad is None for buffer in synthesis.buffers())


@every_synthesis
def test_a_shorter_input_reads_the_top_left_corner(spec):
    synthesis, x = redrawn(build_synthesis(spec, SIZE)), tokens(B, N, D)
    whole = logits_of(synthesis, x, torch.arange(N))
    corner = logits_of(synthesis, x[:, :3], torch.arange(3))
    torch.testing.assert_close(corner, whole[:, :, :3, :3], atol=1e-10, rtol=0)


@every_synthesis
def test_a_state_dict_round_trips_to_identical_logits(spec):
    synthesis, x = redrawn(build_synthesis(spec, SIZE)), tokens(B, T, D)
    other = build_synthesis(spec, SIZE).double()
    other.load_state_dict(synthesis.state_dict())
    assert torch.equal(logits_of(synthesis, x), logits_of(other, x))


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
}


@pytest.mark.parametrize("name", SYNTHESES)
def test_parameter_names_outlive_the_code(name):
    state = build_synthesis(name, SIZE).state_dict()
    assert {key: tuple(value.shape) for key, value in state.items()} == PARAMETER_NAMES[name]


def test_a_mixture_keeps_its_parts_and_one_number_per_part_and_head():
    state = build_synthesis("random+dot", SIZE).state_dict()
    assert {"mix", "parts.0.table", "parts.1.wq", "parts.1.wk"} == set(state)
    assert state["mix"].shape == (H, 2)


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


@pytest.mark.parametrize("spec", ["dense", "factorized_dense", "random+dense"])
def test_a_row_depends_on_its_own_token_alone(spec):
    """A reshape written where a transpose was meant keeps the shape and fails this."""
    synthesis, x = redrawn(build_synthesis(spec, SIZE)), tokens(1, T, D)
    changed = x.clone()
    changed[0, 3] += 1.0
    moved = (logits_of(synthesis, changed) != logits_of(synthesis, x)).any(dim=1).any(dim=-1)
    assert moved[0].tolist() == [False, False, False, True, False]


@pytest.mark.parametrize("spec", TABLES)
def test_a_table_depends_on_nothing(spec):
    synthesis = redrawn(build_synthesis(spec, SIZE))
    assert torch.equal(
        logits_of(synthesis, tokens(1, T, D)), logits_of(synthesis, tokens(1, T, D, seed=9))
    )
    assert logits_of(synthesis, tokens(4, T, D)).shape[0] == 1


@pytest.mark.parametrize(("a", "b"), [(2, 4), (4, 2), (3, 3), (5, 4)])
def test_factorized_dense_has_a_times_b_distinct_columns(a, b):
    """Tile with tile leaves lcm(a, b) columns, repeat with repeat fewer: the bug of every port."""
    size = Size(d_model=12, num_heads=3, max_len=a * b)
    synthesis, at = (
        redrawn(build_synthesis(f"factorized_dense:a={a}:b={b}", size)),
        torch.arange(a * b),
    )
    synthesis.b1.data.abs_()
    columns = logits_of(synthesis, tokens(1, a * b, 12), at)[0, 0].T
    assert len({tuple(column.tolist()) for column in columns}) == a * b


def test_factorized_dense_is_the_flattened_outer_product():
    synthesis, x = redrawn(build_synthesis("factorized_dense:a=2:b=4", SIZE)), tokens(1, N, D)
    hidden = torch.relu(x[0] @ synthesis.w1[1] + synthesis.b1[1])
    left = hidden @ synthesis.wa[1] + synthesis.ba[1]  # (T, a)
    right = hidden @ synthesis.wb[1] + synthesis.bb[1]  # (T, b)
    outer = (right[:, :, None] * left[:, None, :]).flatten(1)[:, :N]
    torch.testing.assert_close(logits_of(synthesis, x, torch.arange(N))[0, 1], outer)


@pytest.mark.parametrize("k", [1, 3])
def test_factorized_random_has_rank_k(k):
    """The authors' own mode gives every query the same row: rank one."""
    size = Size(d_model=12, num_heads=3, max_len=9)
    synthesis = redrawn(build_synthesis(f"factorized_random:k={k}", size))
    matrices = logits_of(synthesis, tokens(1, 9, 12), torch.arange(9))[0]
    assert torch.linalg.matrix_rank(matrices).tolist() == [k] * 3


def test_fixed_random_is_saved_and_never_trained():
    fixed = build_synthesis("fixed_random", SIZE)
    assert list(fixed.parameters()) == []
    assert "table" in fixed.state_dict()


def test_alphas_sum_to_one_per_head():
    mixture = redrawn(build_synthesis("random+dense+dot", SIZE))
    assert mixture.alphas().shape == (H, 3)
    torch.testing.assert_close(mixture.alphas().sum(-1), torch.ones(H, dtype=torch.float64))


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_mixture_with_alpha_at_one_end_is_that_part(part):
    mixture, x = redrawn(build_synthesis("random+dense+dot", SIZE)), tokens(B, T, D)
    mixture.mix.data.fill_(-1e4)
    mixture.mix.data[:, part] = 1e4
    alone = mixture.parts[part]
    expected = logits_of(alone, x).expand(B, H, T, T)
    torch.testing.assert_close(logits_of(mixture, x), expected, atol=1e-10, rtol=0)


def test_learned_tables_start_small_and_fixed_ones_do_not():
    size = Size(d_model=8, num_heads=4, max_len=64)
    at, x = torch.arange(64), torch.zeros(1, 64, 8)
    for spec, std in (("random", 0.02), ("factorized_random", 0.02), ("fixed_random", 1.0)):
        assert logits_of(build_synthesis(spec, size), x, at).std().item() == pytest.approx(
            std, rel=0.2
        )
    wide = build_synthesis("random:std=0.5", size)
    assert wide.table.std().item() == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize("spec", EVERY)
@pytest.mark.parametrize("max_len", [4, 13])
def test_resize_keeps_what_was_learned(spec, max_len):
    synthesis = redrawn(build_synthesis(spec, Size(d_model=12, num_heads=3, max_len=7)))
    shared = min(7, max_len)
    x, at = tokens(B, shared, D), torch.arange(shared)
    before = logits_of(synthesis, x, at)
    synthesis.resize(max_len)
    torch.testing.assert_close(logits_of(synthesis, x, at), before, atol=1e-10, rtol=0)
    whole = torch.arange(max_len)
    longer = logits_of(synthesis, tokens(B, max_len, D), whole)
    assert longer.shape[-1] == max_len
    assert longer.isfinite().all()
    assert all(parameter.requires_grad for parameter in synthesis.parameters())


def test_resizing_factorized_dense_keeps_a_and_grows_b():
    synthesis = build_synthesis("factorized_dense", Size(d_model=12, num_heads=3, max_len=16))
    synthesis.resize(30)
    assert (synthesis.a, synthesis.b) == (4, 8)


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


@settings(max_examples=40, deadline=None)
@given(
    spec=st.sampled_from(EVERY),
    batch=st.integers(0, 3),
    heads=st.sampled_from([1, 2, 5]),
    max_len=st.integers(1, 9),
    data=st.data(),
)
def test_shapes_hold_for_any_size(spec, batch, heads, max_len, data):
    if spec.startswith("factorized_dense:"):
        max_len = min(max_len, 8)
    synthesis = build_synthesis(spec, Size(d_model=heads * 2, num_heads=heads, max_len=max_len))
    num_keys = data.draw(st.integers(1, max_len))
    num_queries = data.draw(st.integers(1, num_keys))
    keys = synthesis.keys(torch.randn(batch, num_keys, heads * 2))
    at = torch.arange(num_keys)
    x = torch.randn(batch, num_queries, heads * 2)
    logits = synthesis(x, keys, at[num_keys - num_queries :], at)
    assert logits.shape in (
        (batch, heads, num_queries, num_keys),
        (1, heads, num_queries, num_keys),
    )
    assert (keys is None) == (synthesis.d_keys == 0)


def test_classes_are_what_their_names_say():
    assert isinstance(build_synthesis("R+V", SIZE), Mixture)
    assert isinstance(build_synthesis("R", SIZE), Random)
    assert isinstance(build_synthesis("Fix", SIZE), FixedRandom)


def test_relative_gradients_are_sums_along_diagonals():
    synthesis, x, at = redrawn(build_synthesis("relative", SIZE)), tokens(1, N, D), torch.arange(N)
    weight = tokens(H, N, N, seed=3)
    (synthesis(x, None, at, at)[0] * weight).sum().backward()
    torch.testing.assert_close(synthesis.first.grad[:, 0], weight[:, :, 0].sum(1))
    for apart in range(1 - N, N):
        along = sum(weight[:, i, i + apart] for i in range(N) if 0 < i + apart < N)
        expected = along if torch.is_tensor(along) else torch.zeros(H, dtype=torch.float64)
        torch.testing.assert_close(synthesis.offsets.grad[:, apart + N - 1], expected)


def test_a_longer_relative_table_reads_its_ends():
    synthesis, x = redrawn(build_synthesis("relative", SIZE)), tokens(1, 20, D)
    at = torch.arange(20)
    before = synthesis(x, None, at, at)
    synthesis.resize(20)
    assert synthesis.offsets.shape == (H, 39)
    torch.testing.assert_close(synthesis(x, None, at, at), before)


def test_groups_of_heads_are_layers_of_their_own():
    """Each group computes what a whole layer of its kind would in those heads."""
    spec = "dense@1|random+dot@2"
    grouped, x = redrawn(build_synthesis(spec, SIZE)), tokens(B, T, D)
    logits = logits_of(grouped, x)
    first, second = grouped.groups
    torch.testing.assert_close(logits[:, :1], logits_of(first, x))
    torch.testing.assert_close(logits[:, 1:], logits_of(second, x))
    assert second.parts[1].wq.shape == (2, D, K)
    assert grouped.keys(x).shape == (B, 2, T, K)
    assert spec_of(grouped) == spec


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("random@2|dot@2", "is for 4 heads and the layer has 3; let the groups add up"),
        ("random@2|dot", "'dot' in synthesis 'random@2|dot' does not say how many heads"),
        ("random@2|none@1", "gives 'none' to some heads; it takes the place of all"),
        ("random@2|linformer@1", "gives 'linformer' to some heads"),
        ("dot+dot@2|dot@1", "groups of heads keep keys of different widths"),
    ],
)
def test_groups_that_cannot_be_are_refused(spec, text):
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
