"""A sliding window: exact against a loop, on every path, padded, cached and in models."""

import pytest
import torch

from synthesizer_attention.attention import fast, masks
from synthesizer_attention.attention.baselines import build_mixer
from synthesizer_attention.attention.layer import SyntheticAttention
from synthesizer_attention.attention.synthesis import Size
from synthesizer_attention.errors import UserError
from synthesizer_attention.models import (
    SynthesizerConfig,
    SynthesizerForCausalLM,
    SynthesizerForConditionalGeneration,
)
from variants import redrawn, tokens

D, H = 12, 3
MASKS = {
    "none": None,
    "right": [[1] * 9, [1] * 5 + [0] * 4],
    "left": [[0] * 3 + [1] * 6, [1] * 9],
    "holes": [[1, 0, 1, 1, 0, 0, 1, 1, 1], [0, 1, 1, 0, 1, 0, 1, 0, 0]],
    "nothing real": [[0] * 9, [1] * 9],
}


def mask_of(kind):
    return None if MASKS[kind] is None else torch.tensor(MASKS[kind]).bool()


def attention(spec, *, length=9, **settings):
    spec = spec.replace(":a=2:b=4", "")
    return redrawn(SyntheticAttention(D, H, length, spec, **settings))


def naive_visible(mask, batch, length, causal, window):
    """Query by query: count the real tokens between it and each key."""
    real = torch.ones(batch, length) if mask is None else mask
    visible = torch.zeros(batch, length, length, dtype=torch.bool)
    for b in range(batch):
        for i in range(length):
            for j in range(length):
                low, high = min(i, j), max(i, j)
                between = int(real[b, low + 1 : high + 1].sum())  # real tokens from low to high
                near = between < window
                visible[b, i, j] = bool(real[b, j]) and near and (j <= i or not causal)
    return visible


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 2, 4, 20])
@pytest.mark.parametrize("kind", MASKS)
def test_the_rule_is_the_one_of_a_loop(kind, window, causal):
    mask = mask_of(kind)
    expected = naive_visible(mask, 2, 9, causal, window)
    found = masks.visible_keys(mask, causal, 9, 9, torch.device("cpu"), window)
    torch.testing.assert_close(found[:, 0].expand(2, 9, 9), expected)


def test_position_ids_move_tables_and_not_the_window():
    layer, x = attention("random", causal=True, window=3, length=12), tokens(2, 9, D)
    positions = torch.arange(9) + 2
    weights = layer.weights(x, position_ids=positions)
    table, visible = layer.synthesis.table[:, 2:11, 2:11], naive_visible(None, 1, 9, True, 3)
    expected = table.masked_fill(~visible, -torch.inf).softmax(-1)
    torch.testing.assert_close(weights, expected.expand(2, -1, -1, -1))


@pytest.mark.parametrize("spec", ["dot", "random", "random+dot", "dense"])
def test_long_sequences_take_a_path_that_skips_what_is_hidden(spec):
    layer = attention(spec, length=300, causal=True, window=5).float()
    x = tokens(2, 300, D).float()
    values = x.unflatten(-1, (H, -1)).transpose(1, 2)
    call = fast.dispatch.Call(x, layer.synthesis.keys(x), values, causal=True, window=5)
    path = fast.dispatch.choose(layer.synthesis, call).path
    assert path == ("table" if spec == "random" else "blocks")
    rule = (None, 300, 300, True, 5, masks.SLOT, x.device)
    spans = [span for _, (span,) in masks.visibility_of(*rule).row_blocks(300, 300, 300)]
    assert max(span.last - span.first for span in spans) == masks.FEWEST_ROWS + 4
    expected = layer(x)
    layer.path = "plain"
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)


def test_a_frozen_table_keeps_its_window():
    layer, x = attention("random", causal=True, window=3).eval(), tokens(2, 9, D)
    expected = layer(x)
    layer.freeze()
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected)
        torch.testing.assert_close(layer(x[:, :6]), expected[:, :6])


SIZES = {
    "d_model": 12,
    "num_heads": 3,
    "num_layers": 2,
    "d_ff": 20,
    "max_len": 24,
    "vocab_size": 17,
}


def config(**settings):
    return SynthesizerConfig(**SIZES, window=4, eos_token_id=None, **settings)


@pytest.mark.parametrize("positions", ["sinusoidal", "relative"])
@pytest.mark.parametrize("synthesis", ["random+dot", "dense,dot"])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_causal_model_generates_the_same_with_its_cache(synthesis, beams, positions):
    torch.manual_seed(0)
    model = redrawn(SynthesizerForCausalLM(config(synthesis=synthesis, positions=positions))).eval()
    ids = torch.randint(2, 17, (2, 7))
    mask = torch.ones_like(ids)
    ids[0, :3], mask[0, :3] = 0, 0
    given = {"attention_mask": mask, "max_new_tokens": 10, "num_beams": beams, "do_sample": False}
    cached = model.generate(ids, **given, use_cache=True, return_dict_in_generate=True)
    torch.testing.assert_close(model.generate(ids, **given, use_cache=False), cached.sequences)
    held = [layer.values.shape[2] for layer in cached.past_key_values.layers]
    assert held == [4, 4]
    alone = model.generate(ids[:1, 3:], max_new_tokens=10, num_beams=beams, do_sample=False)
    torch.testing.assert_close(alone[0], cached.sequences[0, 3:])


@pytest.mark.parametrize("beams", [1, 3])
def test_an_encoder_decoder_generates_the_same_with_its_cache(beams):
    torch.manual_seed(0)
    model = SynthesizerForConditionalGeneration(config(synthesis="dense+dot"))
    model = redrawn(model).eval()
    assert model.model.encoder.layers[0].attention.window == 4
    ids, mask = torch.randint(2, 17, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    given = {"attention_mask": mask, "max_new_tokens": 12, "num_beams": beams, "do_sample": False}
    cached = model.generate(ids, **given, use_cache=True, return_dict_in_generate=True)
    torch.testing.assert_close(model.generate(ids, **given, use_cache=False), cached.sequences)
    held = [layer.values.shape[2] for layer in cached.past_key_values.self_attention_cache.layers]
    assert held == [4, 4]


def test_a_saved_model_keeps_its_window(tmp_path):
    model = SynthesizerForCausalLM(config(synthesis="random"))
    model.save_pretrained(tmp_path)
    loaded = SynthesizerForCausalLM.from_pretrained(tmp_path)
    assert loaded.model.decoder.layers[0].attention.window == 4


def test_bad_windows_are_named():
    with pytest.raises(UserError, match="window=0; it must be at least 1, or None for no window"):
        attention("random", window=0)
    with pytest.raises(
        UserError, match="window=3 with 'lightconv', which has no attention weights"
    ):
        build_mixer("lightconv", Size(D, H, 9), window=3)
