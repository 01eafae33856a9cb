"""replace_attention: PyTorch's own layers, before and after."""

import pytest
import torch
from torch import nn

from synthesizer_attention import replace_attention
from synthesizer_attention.errors import UserError

D, H = 12, 3


def drawn(module, seed=0):
    torch.manual_seed(seed)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double().eval()


def encoder(batch_first=True, norm_first=False):
    layer = nn.TransformerEncoderLayer(
        D, H, 16, dropout=0.0, batch_first=batch_first, norm_first=norm_first
    )
    return drawn(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))


PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])


@pytest.mark.parametrize("spec", ["dot", "random+dot", "dot@1|relative+dot@2"])
@pytest.mark.parametrize(("batch_first", "norm_first"), [(True, False), (False, True)])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_an_encoder_starts_exactly_at_the_old_function(spec, batch_first, norm_first, padded, grad):
    """Without gradients an encoder layer would take its fused path past the replacement."""
    model = encoder(batch_first, norm_first)
    x = torch.randn(2, 5, D, dtype=torch.float64)
    x = x if batch_first else x.transpose(0, 1)
    mask = {"src_key_padding_mask": PADDING} if padded else {}
    with torch.set_grad_enabled(grad):
        before = model(x, **mask)
        names = replace_attention(model, spec, max_len=8)
        after = model(x, **mask)
    assert names == ["layers.0.self_attn", "layers.1.self_attn"]
    real = ~PADDING if padded else torch.ones_like(PADDING)
    real = real if batch_first else real.T
    torch.testing.assert_close(after[real], before[real])


def test_a_decoder_keeps_its_attention_to_the_memory_and_its_causality():
    layer = nn.TransformerDecoderLayer(D, H, 16, dropout=0.0, batch_first=True)
    model = drawn(nn.TransformerDecoder(layer, 2))
    x, memory = torch.randn(2, 5, D).double(), torch.randn(2, 4, D).double()
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    before = model(x, memory, tgt_mask=mask, tgt_is_causal=True)
    replace_attention(model, "random+dot", max_len=8)
    torch.testing.assert_close(model(x, memory, tgt_mask=mask, tgt_is_causal=True), before)
    assert isinstance(model.layers[0].multihead_attn, nn.MultiheadAttention)


def test_some_layers_and_fresh_ones_differ():
    model, x = encoder(), torch.randn(2, 5, D).double()
    before = model(x)
    assert replace_attention(model, "random", max_len=8, layers=[1]) == ["layers.1.self_attn"]
    assert isinstance(model.layers[0].self_attn, nn.MultiheadAttention)
    after = model(x)
    assert not torch.allclose(before, after)
    after.sum().backward()
    assert model.layers[1].self_attn.synthesis.table.grad is not None
    model = encoder()
    replace_attention(model, "random+dot", max_len=8, fresh=True)
    assert not torch.allclose(model(x), before)
    assert model.layers[0].self_attn.query_bias is None
    model = encoder()  # relative attention takes longer sequences
    replace_attention(model, "relative+dot", max_len=4)
    assert model(torch.randn(2, 9, D).double()).shape == (2, 9, D)


def test_weights_are_returned_as_torch_does():
    old = drawn(nn.MultiheadAttention(D, H, batch_first=True))
    x = torch.randn(2, 5, D).double()
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    options = {"key_padding_mask": PADDING, "attn_mask": mask}
    holder = nn.ModuleList([old])
    expected = old(x, x, x, **options)
    heads = old(x, x, x, average_attn_weights=False, **options)
    replace_attention(holder, "dot", max_len=8)
    for ours, theirs in zip(holder[0](x, x, x, **options), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    ours = holder[0](x, x, x, average_attn_weights=False, **options)
    torch.testing.assert_close(ours[1], heads[1])
    alone = holder[0](x[0], x[0], x[0])
    torch.testing.assert_close(alone[0], holder[0](x[:1], x[:1], x[:1])[0][0])


@pytest.mark.parametrize(
    ("make", "options", "text"),
    [
        (lambda: nn.Linear(2, 2), {}, "Linear holds no nn.MultiheadAttention that attends to"),
        (encoder, {"layers": [7]}, "layers names 7; the model has 2: give 0 to 1"),
        (
            lambda: nn.ModuleList([nn.MultiheadAttention(D, H, kdim=5)]),
            {},
            "0 has keys of another width, bias_k or add_zero_attn",
        ),
        *(
            (encoder, {"spec": spec}, text)
            for spec, text in {
                "fixed_random+dot": "FixedRandom in synthesis 'fixed_random+dot' cannot start at",
                "dot+dot": "synthesis 'dot+dot' holds 2 dot products in one mixture",
                "relative:sinks=2": "synthesis 'relative:sinks=2' gives the last token a logit",
            }.items()
        ),
    ],
)
def test_what_cannot_be_replaced_is_refused(make, options, text):
    with pytest.raises(UserError) as error:
        replace_attention(make(), max_len=8, **options)
    assert str(error.value).startswith(text)


def test_attention_to_something_else_and_long_sequences_are_refused():
    holder = nn.ModuleList([nn.MultiheadAttention(D, H, bias=False)])
    replace_attention(holder, max_len=4)
    x = torch.randn(3, 2, D)
    with pytest.raises(UserError, match="is self-attention, and was called with different"):
        holder[0](x, x.clone(), x)
    with pytest.raises(UserError, match="a sequence of 6 tokens met attention built for max_len=4"):
        holder[0](*[torch.randn(6, 2, D)] * 3)


STARTS = ["relative+dot", "dense+dot", "factorized_random:k=2+dot", "factorized_dense+dot+random"]


@pytest.mark.parametrize("spec", STARTS)
def test_other_parts_start_at_zero_and_learn(spec):
    model, x = encoder(), torch.randn(2, 5, D).double()
    before = model(x)
    replace_attention(model, spec, max_len=8)
    after = model(x)
    torch.testing.assert_close(after, before)
    after.square().sum().backward()
    parts = [p for p in model.layers[0].self_attn.synthesis.parts if not hasattr(p, "wq")]
    assert all(any(w.grad.abs().sum() > 0 for w in part.parameters()) for part in parts)


def test_heads_of_a_group_keep_their_dot_product():
    model, x = encoder(), torch.randn(2, 5, D).double()
    old = model.layers[0].self_attn
    before = old(x, x, x, average_attn_weights=False)[1]
    replace_attention(model, "random@1|dot@2", max_len=8)
    after = model.layers[0].self_attn(x, x, x, average_attn_weights=False)[1]
    torch.testing.assert_close(after[:, 1:], before[:, 1:])
    assert not torch.allclose(after[:, :1], before[:, :1])
