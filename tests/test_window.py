"""Windows, and a kind of mask from outside, in models; test_contract.py has the loop."""

import re

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
from synthesizer_attention.models.cost import unread_parameters
from synthesizer_attention.run.recipe_keys import Model
from test_contract import chunk
from variants import redrawn, tokens

__all__ = ["chunk"]  # registered by its import

D, H = 12, 3


def attention(spec, *, length=9, **settings):
    return redrawn(SyntheticAttention(D, H, length, spec, **settings))


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


def config(window=4, **settings):
    return SynthesizerConfig(**SIZES, window=window, eos_token_id=None, **settings)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(
    ("synthesis", "window", "positions"),
    [
        ("random+dot", 4, "sinusoidal"),
        ("dense,dot", 4, "relative"),
        ("random+dot", "chunk:size=4", "sinusoidal"),
    ],
)
def test_a_causal_model_generates_the_same_with_its_cache(synthesis, window, positions, beams):
    torch.manual_seed(0)
    settings = config(window, synthesis=synthesis, positions=positions)
    model = redrawn(SynthesizerForCausalLM(settings)).eval()
    ids = torch.randint(2, 17, (2, 7))
    mask = torch.ones_like(ids)
    ids[0, :3], mask[0, :3] = 0, 0
    given = {"attention_mask": mask, "max_new_tokens": 10, "num_beams": beams, "do_sample": False}
    cached = model.generate(ids, **given, use_cache=True, return_dict_in_generate=True)
    torch.testing.assert_close(model.generate(ids, **given, use_cache=False), cached.sequences)
    held = [layer.values.shape[2] for layer in cached.past_key_values.layers]
    assert held == ([4, 4] if window == 4 else [16, 16])  # a kind of one's own keeps all
    alone = model.generate(ids[:1, 3:], max_new_tokens=10, num_beams=beams, do_sample=False)
    torch.testing.assert_close(alone[0], cached.sequences[0, 3:])


def test_an_encoder_decoder_generates_the_same_with_its_cache():
    torch.manual_seed(0)
    model = SynthesizerForConditionalGeneration(config(synthesis="dense+dot"))
    model = redrawn(model).eval()
    assert model.model.encoder.layers[0].attention.window == 4
    ids, mask = torch.randint(2, 17, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    given = {"attention_mask": mask, "max_new_tokens": 12, "num_beams": 3, "do_sample": False}
    cached = model.generate(ids, **given, use_cache=True, return_dict_in_generate=True)
    torch.testing.assert_close(model.generate(ids, **given, use_cache=False), cached.sequences)
    held = [layer.values.shape[2] for layer in cached.past_key_values.self_attention_cache.layers]
    assert held == [4, 4]


@pytest.mark.parametrize("window", [4, "chunk:size=4"])
def test_a_saved_model_keeps_its_window(window, tmp_path):
    SynthesizerForCausalLM(config(window, synthesis="random")).save_pretrained(tmp_path)
    loaded = SynthesizerForCausalLM.from_pretrained(tmp_path)
    assert loaded.model.decoder.layers[0].attention.window == window


def test_a_kind_of_mask_from_outside_reaches_a_recipe_and_its_costs():
    model = SynthesizerForCausalLM(config("chunk:size=4", synthesis="random"))
    assert Model(window="chunk:size=4").window == "chunk:size=4"
    assert unread_parameters(model) == 2 * 3 * (24 * 24 - 6 * 10)  # 6 chunks of 4 + 3 + 2 + 1


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (0, "window=0; it must be at least 1, or None for no window"),
        ("stripes", "window='stripes'; give a number, or choose from sliding, chunk"),
        ("chunk", "window='chunk' lacks size; write chunk:size=64"),
        ("chunk:width=2", "unknown option 'width' in mask 'chunk:width=2'; its options are size"),
        ("chunk:size=x", "option size=x in mask 'chunk:size=x' is not a whole number"),
    ],
)
def test_bad_windows_are_named(window, message):
    with pytest.raises(UserError, match=re.escape(message)):
        attention("random", window=window)


def test_a_baseline_has_no_window():
    with pytest.raises(
        UserError, match="window=3 with 'lightconv', which has no attention weights"
    ):
        build_mixer("lightconv", Size(D, H, 9), window=3)
