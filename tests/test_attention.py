"""The attention: masks, positions, caches, dropout, and the ways torch may run it."""

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from synthesizer_attention.attention.baselines import build_mixer
from synthesizer_attention.attention.layer import CrossAttention, SyntheticAttention
from synthesizer_attention.attention.registry import SYNTHESES
from synthesizer_attention.attention.synthesis import Size
from synthesizer_attention.errors import UserError
from variants import EVERY, TABLES, every_synthesis, redrawn, tokens

B, T, H, D, K, N = 2, 5, 3, 12, 4, 7
CLOSE = {"atol": 1e-10, "rtol": 0}
HOLES = torch.tensor([[0, 1, 1, 0, 1], [1, 0, 1, 1, 0]]).bool()


def attention(spec, *, causal=False, max_len=N, dropout=0.0):
    built = SyntheticAttention(D, H, max_len, spec, causal=causal, dropout=dropout)
    return redrawn(built).eval()


@every_synthesis
@pytest.mark.parametrize("causal", [False, True])
def test_what_stands_in_padding_never_matters(spec, causal):
    layer, x = attention(spec, causal=causal), tokens(B, T, D)
    changed = torch.where(HOLES[..., None], x, 1e3 * tokens(B, T, D, seed=5))
    before, after = layer(x, attention_mask=HOLES), layer(changed, attention_mask=HOLES)
    assert torch.equal(before[HOLES], after[HOLES])


@every_synthesis
def test_the_future_never_leaks(spec):
    """Applying a mask after softmax, or scrambling heads and positions, fails this."""
    layer, x = attention(spec, causal=True), tokens(1, T, D)
    before = layer(x)
    for j in range(T):
        changed = x.clone()
        changed[0, j] += 1.0
        assert torch.equal(layer(changed)[:, :j], before[:, :j])


@every_synthesis
def test_weights_sum_to_one_over_visible_keys_and_are_zero_elsewhere(spec):
    layer, x = attention(spec, causal=True), tokens(B, T, D)
    weights = layer.weights(x, attention_mask=HOLES)
    assert weights.shape == (B, H, T, T)
    visible = HOLES[:, None, None] & torch.ones(T, T).tril().bool()
    assert (weights[~visible.expand_as(weights)] == 0).all()
    sums = weights.sum(-1)
    some = visible.any(-1).expand_as(sums)
    torch.testing.assert_close(sums[some], torch.ones_like(sums[some]), **CLOSE)
    assert (sums[~some] == 0).all()


@every_synthesis
def test_a_query_with_nothing_to_look_at_yields_zeros_and_finite_gradients(spec):
    layer, x = attention(spec, causal=True), tokens(B, T, D).requires_grad_()
    mask = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]])
    y = layer(x, attention_mask=mask)
    assert (y[0, :2] == 0).all()
    assert (y[1] == 0).all()
    y.square().sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


@every_synthesis
def test_large_logits_stay_finite(spec):
    layer, x = attention(spec), 1e4 * tokens(B, T, D)
    for parameter in layer.synthesis.parameters():
        parameter.data.mul_(1e4)
    assert layer(x, attention_mask=HOLES).isfinite().all()


@every_synthesis
def test_gradients_of_the_whole_layer_are_those_of_finite_differences(spec):
    layer = redrawn(SyntheticAttention(4, 2, 4, spec, causal=True)).eval()
    names = [name for name, _ in layer.named_parameters()]
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])

    def function(x, *values):
        replaced = dict(zip(names, values, strict=True))
        return torch.func.functional_call(layer, replaced, (x,), {"attention_mask": mask})

    inputs = (tokens(2, 3, 4).requires_grad_(), *layer.parameters())
    assert torch.autograd.gradcheck(function, inputs, atol=1e-6)


@pytest.mark.parametrize("spec", ["random", "dot"])
def test_dropout_of_weights_has_its_mean_and_is_off_in_evaluation(spec):
    layer, x = attention(spec, dropout=0.25), tokens(1, T, D)
    still = layer(x)
    assert torch.equal(layer(x), still)
    layer.train()
    torch.manual_seed(0)
    draws = torch.stack([layer(x) for _ in range(800)])
    error = draws.std(0) / 800**0.5
    assert ((draws.mean(0) - still).abs() < 5 * error).all()


@pytest.mark.parametrize("spec", TABLES)
@pytest.mark.parametrize("padded", [False, True])
def test_a_table_draws_one_dropout_mask_for_the_whole_batch(spec, padded):
    layer = attention(spec, dropout=0.5).train()
    x = tokens(1, T, D).expand(8, T, D)
    mask = torch.tensor([[0, 1, 1, 1, 1]]).expand(8, T) if padded else None
    y = layer(x, attention_mask=mask)
    torch.testing.assert_close(y, y[:1].expand_as(y), **CLOSE)
    dot = attention("dot", dropout=0.5).train()(x)
    assert not torch.allclose(dot, dot[:1].expand_as(dot))


@every_synthesis
def test_an_empty_batch_gives_an_empty_result(spec):
    layer = attention(spec, causal=True)
    assert layer(torch.zeros(0, T, D, dtype=torch.float64)).shape == (0, T, D)
    mask = torch.ones(0, T, dtype=torch.bool)
    assert layer(torch.zeros(0, T, D, dtype=torch.float64), attention_mask=mask).shape == (0, T, D)


@every_synthesis
def test_resizing_keeps_the_outputs_of_shorter_sequences(spec):
    layer, x = attention(spec, causal=True), tokens(B, T, D)
    before = layer(x)
    layer.resize(23)
    torch.testing.assert_close(layer(x), before, **CLOSE)
    assert layer(tokens(1, 23, D)).shape == (1, 23, D)
    layer.resize(T)
    torch.testing.assert_close(layer(x), before, **CLOSE)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda layer: layer(tokens(1, 9, D)),
            "a sequence of 9 tokens met a model built for max_len=7; "
            "truncate the data, raise max_len, or resize the model",
        ),
        (lambda layer: layer(tokens(1, 0, D)), "x has no tokens; give each sequence at least one"),
        (
            lambda layer: layer(tokens(1, T, D + 1)),
            "x has shape (1, 5, 13); expected (batch, length, 12)",
        ),
        (
            lambda layer: layer(tokens(2, T, D), attention_mask=torch.ones(2, 4)),
            "attention_mask has shape (2, 4); expected (2, 5), True where a token is real",
        ),
        (
            lambda layer: layer(tokens(2, T, D), attention_mask=torch.ones(2, 1, T, T)),
            "attention_mask has shape (2, 1, 5, 5); expected (2, 5)",
        ),
        (
            lambda layer: layer(tokens(2, T, D), position_ids=torch.arange(4)),
            "position_ids has shape (4,); expected (5,) or (2, 5)",
        ),
        (
            lambda layer: layer(tokens(2, T, D), position_ids=torch.arange(T) + 3),
            "position_ids run from 3 to 7 in a model built for max_len=7; keep them between 0 and",
        ),
        (
            lambda layer: layer.logits(tokens(1, 9, D)),
            "a sequence of 9 tokens met a model built for max_len=7",
        ),
        *[
            (
                lambda layer, shape=shape: layer(tokens(*shape)),
                f"x has shape {shape}; expected (batch, length, 12)",
            )
            for shape in [(), (D,), (T, D)]
        ],
        (
            lambda layer: layer(tokens(1, T, D).float()),
            "x holds torch.float32 and the weights torch.float64; give x.to(torch.float64), or",
        ),
        *[
            (
                lambda layer, dtype=dtype: layer(torch.ones(1, T, D, dtype=dtype)),
                f"x holds {dtype}; expected embeddings of torch.float64",
            )
            for dtype in (torch.int64, torch.bool, torch.complex128)
        ],
        (
            lambda layer: layer(tokens(1, T, D).tolist()),
            "x is a list; give a tensor: torch.tensor(x)",
        ),
        (
            lambda layer: layer.weights(tokens(1, T, D).numpy()),
            "x is a ndarray; give a tensor: torch.tensor(x)",
        ),
        (
            lambda layer: layer(tokens(1, T, D), attention_mask=[[1] * T]),
            "attention_mask is a list; give a tensor: torch.tensor(attention_mask)",
        ),
        (
            lambda layer: layer(tokens(1, T, D), attention_mask=torch.ones(1, T).numpy()),
            "attention_mask is a ndarray; give a tensor: torch.tensor(attention_mask)",
        ),
        (
            lambda layer: layer(tokens(1, T, D), position_ids=list(range(T))),
            "position_ids is a list; give a tensor: torch.tensor(position_ids)",
        ),
        (
            lambda layer: layer(*[tokens(1, T, D)] * 3),
            "attention was called with 3 arguments by position; it takes the tokens once, not as "
            "query, key and value, and all else by name: attention(x, attention_mask=mask)",
        ),
    ],
)
def test_bad_input_says_what_was_found_and_expected(call, text):
    with pytest.raises(UserError) as error:
        call(attention("random+dot"))
    assert text in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("spec", ["lightconv", "linformer"])
@pytest.mark.parametrize("shape", [(), (D,), (T, D)])
def test_a_baseline_says_the_same_of_tokens(spec, shape):
    layer = build_mixer(spec, Size(D, H, N)).double()
    with pytest.raises(UserError, match=r"x has shape .* expected"):
        layer(tokens(*shape))
    with pytest.raises(UserError, match=r"x holds torch\.float32 and the weights torch\.float64"):
        layer(tokens(1, T, D).float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer.float()(tokens(1, T, D).bfloat16()).shape == (1, T, D)


def test_none_is_no_attention():
    with pytest.raises(UserError, match="leaves the attention sublayer out"):
        SyntheticAttention(D, H, N, "none")


def test_cross_attention_is_dot_product_and_hides_padding():
    cross = redrawn(CrossAttention(D, H)).eval()
    x, memory = tokens(B, 3, D), tokens(B, T, D, seed=2)
    y = cross(x, *cross.project(memory), attention_mask=HOLES)
    for b in range(B):
        alone = cross(x[b : b + 1], *cross.project(memory[b : b + 1, HOLES[b]]))
        torch.testing.assert_close(y[b : b + 1], alone, **CLOSE)
    queries = torch.einsum("btd,hdk->bhtk", x, cross.synthesis.wq)
    keys = torch.einsum("bsd,hdk->bhsk", memory, cross.synthesis.wk)
    values = cross.value(memory).unflatten(-1, (H, K)).transpose(1, 2)
    theirs = torch.nn.functional.scaled_dot_product_attention(queries, keys, values)
    ours = cross(x, *cross.project(memory))
    torch.testing.assert_close(ours, cross.output(theirs.transpose(1, 2).flatten(-2)), **CLOSE)


@every_synthesis
def test_autocast_to_bfloat16_stays_near_full_precision(spec):
    layer, x = SyntheticAttention(D, H, N, spec, causal=True), torch.randn(B, T, D)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x, attention_mask=HOLES)
    torch.testing.assert_close(y.float(), layer(x, attention_mask=HOLES), atol=0.05, rtol=0.05)
    y.float().sum().backward()


@every_synthesis
def test_the_meta_device_gives_shapes(spec):
    with torch.device("meta"):
        layer = SyntheticAttention(D, H, N, spec, causal=True)
        y = layer(torch.empty(B, T, D), attention_mask=torch.ones(B, T), position_ids=None)
    assert y.shape == (B, T, D)
    assert y.is_meta


@pytest.mark.parametrize("spec", [*SYNTHESES, "random+dot"])
def test_compiled_whole_it_gives_the_same(spec):
    torch.compiler.reset()
    layer, x = attention(spec, causal=True), tokens(B, T, D)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x), **CLOSE)
    real = compiled(x, attention_mask=HOLES)[HOLES]
    torch.testing.assert_close(real, layer(x, attention_mask=HOLES)[HOLES], **CLOSE)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own making
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_gives_the_same():
    torch.compiler.reset()
    layer, x = attention("random+dense+dot", causal=True), tokens(B, T, D)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x), **CLOSE)


@pytest.mark.parametrize("spec", [*TABLES[:3], "dense", "factorized_dense", "random+dot"])
def test_exported_with_dynamic_batch_and_length_it_gives_the_same(spec):
    layer, x = attention(spec, causal=True), tokens(3, T, D)
    mask = torch.ones(3, T, dtype=torch.bool)
    batch, length = torch.export.Dim("batch", max=64), torch.export.Dim("length", min=2, max=N)
    program = torch.export.export(
        layer,
        (x,),
        {"attention_mask": mask},
        dynamic_shapes={
            "x": {0: batch, 1: length},
            "attention_mask": {0: batch, 1: length},
        },
    )
    other, holes = (
        tokens(4, 3, D),
        torch.tensor([[1, 1, 1], [0, 1, 1], [1, 0, 1], [1, 1, 0]]).bool(),
    )
    given = program.module()(other, attention_mask=holes)
    torch.testing.assert_close(given[holes], layer(other, attention_mask=holes)[holes], **CLOSE)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_mask_leaves_real_tokens_as_they_are_alone(data):
    spec, causal = data.draw(st.sampled_from(EVERY)), data.draw(st.booleans())
    batch, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, N))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    rows = st.lists(st.booleans(), min_size=length, max_size=length)
    mask = torch.tensor(data.draw(st.lists(rows, min_size=batch, max_size=batch)))
    layer = attention(spec, causal=causal).to(dtype)
    x = tokens(batch, length, D).to(dtype)
    y = layer(x, attention_mask=mask)
    assert y.isfinite().all()
    tolerance = CLOSE if dtype == torch.float64 else {"atol": 1e-3, "rtol": 1e-3}
    for b in range(batch):
        if mask[b].any():
            alone = layer(x[b : b + 1, mask[b]])
            torch.testing.assert_close(y[b, mask[b]], alone[0], **tolerance)
