"""A mask says 1 for real tokens and 0 for padding: every other number is refused, everywhere."""

import pytest
import torch
from torch import nn

from pretrained import build as build_pretrained
from pretrained import inputs
from synthesizer_attention import (
    Size,
    SynthesizerForCausalLM,
    SynthesizerForConditionalGeneration,
    SynthesizerForSequenceClassification,
    UserError,
    replace_attention,
)
from synthesizer_attention.attention.baselines import build_mixer
from synthesizer_attention.attention.layer import CrossAttention
from test_models import build, ids
from test_replace import D, H, drawn
from variants import tokens

REAL = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
ADDED = {-1e9: "-1e+09", torch.finfo(torch.float32).min: "-3.40282e+38", -torch.inf: "-inf"}
OTHERS = {2.0: "2", 0.5: "0.5", torch.nan: "nan", -1.0: "-1"}
every_number = pytest.mark.parametrize(("number", "text"), {**ADDED, **OTHERS}.items())


def mask_with(number, dtype=torch.float32):
    """As masks that are added to logits are made: 0 for real tokens, this for padding."""
    return torch.where(REAL.bool(), 0.0, number).to(dtype)


def assert_refused(call, text="-1e+09"):
    with pytest.raises(UserError) as error:
        call()
    assert f"attention_mask holds {text}; expected 1 (or True) for real tokens and 0" in str(
        error.value
    )
    assert "\n" not in str(error.value)


@every_number
def test_other_numbers_are_refused_by_name(number, text):
    layer, x = build_mixer("random+dot", Size(D, H, 8)).double(), tokens(2, 5, D)
    assert_refused(lambda: layer(x, attention_mask=mask_with(number)), text)


@pytest.mark.parametrize("spec", ["random", "dot", "lightconv", "dynamicconv", "linformer"])
def test_every_token_mixer_refuses_what_is_added_to_logits(spec):
    layer, x = build_mixer(spec, Size(D, H, 8)).double(), tokens(2, 5, D)
    assert_refused(lambda: layer(x, attention_mask=mask_with(-1e9)))
    expected = layer(x, attention_mask=REAL.bool())
    for dtype in (torch.int64, torch.uint8, torch.float32, torch.bfloat16):
        assert torch.equal(layer(x, attention_mask=REAL.to(dtype)), expected)


def test_a_memory_refuses_it_too():
    cross, x, memory = CrossAttention(D, H).double(), tokens(2, 3, D), tokens(2, 5, D)
    assert_refused(lambda: cross.project(memory, mask_with(-1e9)))
    given = cross.project(memory)
    assert_refused(lambda: cross(x, *given, attention_mask=mask_with(-1e9)))


@pytest.mark.parametrize("changes", [{}, {"universal": True}, {"window": 3}])
def test_every_model_refuses_it(changes):
    added, decoder = mask_with(-1e9), build(SynthesizerForCausalLM, **changes)
    assert_refused(lambda: decoder(ids(2, 5), attention_mask=added))
    at = torch.tensor([[0, 1, 2, 0, 1]]).expand(2, 5)
    assert_refused(lambda: decoder(ids(2, 5), attention_mask=added, position_ids=at))
    assert_refused(lambda: decoder.generate(ids(2, 5), attention_mask=added, max_new_tokens=2))
    encoder = build(SynthesizerForSequenceClassification, num_labels=2, **changes)
    assert_refused(lambda: encoder(ids(2, 5), attention_mask=added))
    both = build(SynthesizerForConditionalGeneration, **changes)
    given = {"decoder_input_ids": ids(2, 5)}
    assert_refused(lambda: both(ids(2, 5), attention_mask=added, **given))
    assert_refused(lambda: both(ids(2, 5), decoder_attention_mask=added, **given))


def test_a_decoded_token_refuses_it_too():
    model = build(SynthesizerForCausalLM).float()
    with torch.no_grad():
        cache = model(ids(2, 4), use_cache=True).past_key_values
        mask = mask_with(-1.0, torch.int64)
        assert_refused(
            lambda: model(ids(2, 1), past_key_values=cache, attention_mask=mask), text="-1"
        )


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_replaced_pretrained_layer_refuses_it_by_name_and_by_position(name):
    model, batch = build_pretrained(name), inputs(name)
    replace_attention(model, "random+dot", max_len=16)
    mask = batch.pop("attention_mask")
    added = (1.0 - mask) * -1e9
    assert_refused(lambda: model(**batch, attention_mask=added))
    if name == "bert":
        assert_refused(lambda: model(batch["input_ids"], added))
    with pytest.raises(UserError, match=r"holds torch\.float32; replaced attention takes booleans"):
        model(**batch, attention_mask=added[:, None, None])


def test_replaced_attention_adds_a_padding_mask_of_floats_as_torch_does():
    layer = nn.TransformerEncoderLayer(D, H, 16, dropout=0.0, batch_first=True)
    model = drawn(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False))
    x, real = tokens(2, 5, D), REAL.bool()
    masks = [torch.where(real, 0.0, number).double() for number in (-1e9, -torch.inf, -2.0)]
    before = [model(x, src_key_padding_mask=mask)[real] for mask in masks]
    replace_attention(model, "random+dot", max_len=8)
    for mask, expected in zip(masks, before, strict=True):
        torch.testing.assert_close(model(x, src_key_padding_mask=mask)[real], expected)
    attention = model.layers[0].self_attn
    with pytest.raises(UserError, match=r"key_padding_mask holds torch\.int64; give booleans"):
        attention(x, x, x, key_padding_mask=REAL)


def test_a_compiled_layer_asserts_it():
    torch._dynamo.reset()
    layer, x = build_mixer("random+dot", Size(D, H, 8)).double(), tokens(2, 5, D)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        expected = layer(x, attention_mask=REAL)
        torch.testing.assert_close(compiled(x, attention_mask=REAL), expected)
        with pytest.raises(RuntimeError, match="attention_mask holds other numbers; expected 1"):
            compiled(x, attention_mask=mask_with(-1e9).long())
