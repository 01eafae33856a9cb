"""The attention: masks, positions, caches, dropout, and the ways torch may run it."""

import inspect

import pytest
import torch
from torch import nn

from synthesizer_attention.attention.baselines import build_mixer
from synthesizer_attention.attention.layer import TORCHS, CrossAttention, SyntheticAttention
from synthesizer_attention.attention.synthesis import Size
from synthesizer_attention.errors import UserError
from variants import every_synthesis, redrawn, tokens

B, T, H, D, K, N = 2, 5, 3, 12, 4, 7
CLOSE = {"atol": 1e-10, "rtol": 0}
HOLES = torch.tensor([[0, 1, 1, 0, 1], [1, 0, 1, 1, 0]]).bool()


def attention(spec, *, causal=False, max_len=N, dropout=0.0):
    built = SyntheticAttention(D, H, max_len, spec, causal=causal, dropout=dropout)
    return redrawn(built).eval()


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


@pytest.mark.parametrize("spec", ["random", "relative", "random+fixed_random"])
@pytest.mark.parametrize("padded", [False, True])
def test_a_table_draws_one_dropout_mask_for_the_whole_batch(spec, padded):
    layer = attention(spec, dropout=0.5).train()
    x = tokens(1, T, D).expand(8, T, D)
    mask = torch.tensor([[0, 1, 1, 1, 1]]).expand(8, T) if padded else None
    y = layer(x, attention_mask=mask)
    torch.testing.assert_close(y, y[:1].expand_as(y), **CLOSE)
    dot = attention("dot", dropout=0.5).train()(x)
    assert not torch.allclose(dot, dot[:1].expand_as(dot))


@pytest.mark.parametrize("spec", ["dense", "random+dot"])
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
        (
            lambda layer: layer(*[tokens(1, T, D)] * 3, key_padding_mask=torch.zeros(1, T)),
            "attention got key_padding_mask=, which is nn.MultiheadAttention's; here give "
            "attention_mask=~key_padding_mask: True where a token is real",
        ),
        (
            lambda layer: layer(tokens(1, T, D), need_weights=True),
            "here attention.attend(x) gives the output and the weights of every head",
        ),
    ],
)
def test_bad_input_says_what_was_found_and_expected(call, text):
    with pytest.raises(UserError) as error:
        call(attention("random+dot"))
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_what_nothing_is_called_with_is_pythons_own_error():
    with pytest.raises(TypeError, match=r"forward\(\) got an unexpected keyword argument 'mask'"):
        attention("random+dot")(tokens(1, T, D), mask=None)


def test_torchs_own_arguments_are_all_answered():
    """And what the answers say is so: torch's mask, given as told, hides the same tokens."""
    given = inspect.signature(nn.MultiheadAttention.forward).parameters
    assert {*TORCHS} == {*given} - {"self", "query", "key", "value"}
    torchs = nn.MultiheadAttention(D, H, bias=False, batch_first=True, dtype=torch.float64)
    ours, x = attention("dot"), tokens(2, T, D)
    heads = torchs.in_proj_weight.detach().view(3, H, -1, D).mT  # (3, H, D, K)
    ours.synthesis.wq.data, ours.synthesis.wk.data = heads[0].clone(), heads[1].clone()
    ours.value.weight.data = torchs.in_proj_weight.detach()[2 * D :].clone()
    ours.output.weight.data = torchs.out_proj.weight.detach().clone()
    hidden = torch.zeros(2, T, dtype=torch.bool)
    hidden[1, -2:] = True
    y, weights = torchs(x, x, x, key_padding_mask=hidden)
    found, each = ours.attend(x, attention_mask=~hidden)
    torch.testing.assert_close(found[~hidden], y[~hidden])
    torch.testing.assert_close(each.mean(1)[~hidden], weights[~hidden])


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


@pytest.mark.parametrize("spec", ["dot", "relative", "dense", "factorized_dense", "random+dot"])
def test_the_meta_device_gives_shapes(spec):
    with torch.device("meta"):
        layer = SyntheticAttention(D, H, N, spec, causal=True)
        y = layer(torch.empty(B, T, D), attention_mask=torch.ones(B, T), position_ids=None)
    assert y.shape == (B, T, D)
    assert y.is_meta


@pytest.mark.parametrize("spec", ["random", "relative", "dense", "factorized_dense", "random+dot"])
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
