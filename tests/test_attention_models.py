"""Windows, masks from outside, relative past max_len and groups of heads, in models."""

import re

import pytest
import torch

from synthesizer_attention.attention.baselines import build_mixer
from synthesizer_attention.attention.layer import SyntheticAttention, ValueCache
from synthesizer_attention.attention.registry import build_synthesis, spec_of
from synthesizer_attention.attention.synthesis import Size
from synthesizer_attention.errors import UserError
from synthesizer_attention.models import (
    SynthesizerConfig,
    SynthesizerForCausalLM,
    SynthesizerForConditionalGeneration,
    SynthesizerModel,
)
from synthesizer_attention.models.cost import unread_parameters
from synthesizer_attention.run.recipe_keys import Model
from test_contract import chunk
from variants import GROUPS, SIZE, redrawn, tokens

__all__ = ["chunk"]  # registered by its import

D, H = 12, 3


def attention(spec, *, length=9, **settings):
    return redrawn(SyntheticAttention(D, H, length, spec, **settings))


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


N = SIZE.max_len
ANY_LENGTH = ["relative", "relative+dot", "relative@2|dot@1", "relative@1|relative+dot@2"]


def small(spec, **options):
    sizes = {**SIZES, "vocab_size": 11, "d_ff": 8, "max_len": 6}
    return SynthesizerConfig(**{**sizes, **options}, synthesis=spec)


@pytest.mark.parametrize("spec", ANY_LENGTH)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("path", ["fast", "plain"])
def test_a_longer_sequence_is_that_of_longer_tables(spec, causal, path):
    layer, x = attention(spec, length=N, causal=causal, path=path), tokens(2, 3 * N, D)
    mask = torch.arange(3 * N).expand(2, -1) >= torch.tensor([[0], [5]])
    ours = [layer(x), layer(x, attention_mask=mask)]
    layer.resize(3 * N)
    for one, other in zip(ours, [layer(x), layer(x, attention_mask=mask)], strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("spec", ANY_LENGTH)
def test_cached_decoding_goes_past_max_len(spec):
    layer, x, cache = attention(spec, length=N, causal=True), tokens(2, 3 * N, D), ValueCache()
    steps = [layer(x[:, at : at + 1], cache=cache) for at in range(3 * N)]
    torch.testing.assert_close(torch.cat(steps, 1), layer(x))


def test_what_the_last_column_cannot_be_is_refused():
    with pytest.raises(UserError, match="causal attention has another last token at each step"):
        attention("relative:sinks=2", causal=True)
    with pytest.raises(UserError, match=r"relative:sinks=3; choose 1 .* or 2"):
        build_synthesis("relative:sinks=3", SIZE)
    assert spec_of(build_synthesis("relative:sinks=2", SIZE)) == "relative:sinks=2"


@pytest.mark.parametrize(
    ("spec", "positions"),
    [("relative", "sinusoidal"), ("relative,dot", "rotary"), ("relative@1|dot@2", "none")],
)
def test_a_model_generates_past_max_len(spec, positions):
    torch.manual_seed(0)
    model = SynthesizerForCausalLM(small(spec, positions=positions)).eval()
    ids = torch.randint(3, 11, (2, 4))
    options = {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None}
    cached = model.generate(ids, **options)
    assert cached.shape[1] == 13
    assert torch.equal(cached, model.generate(ids, use_cache=False, **options))
    before = model(input_ids=cached).logits
    model.resize(13)
    torch.testing.assert_close(model(input_ids=cached).logits, before)


@pytest.mark.parametrize(
    ("spec", "positions"),
    [("relative,random", "none"), ("dot", "rotary"), ("relative", "learned")],
)
def test_other_models_keep_their_limit(spec, positions):
    model = SynthesizerForCausalLM(small(spec, positions=positions))
    with pytest.raises(UserError, match="a sequence of 7 tokens met a model built for max_len=6"):
        model(input_ids=torch.ones(1, 7, dtype=torch.long))
    with pytest.raises(UserError, match="generate was asked for 8 tokens"):
        model.generate(torch.ones(1, 5, dtype=torch.long), max_new_tokens=3)


def test_an_encoder_with_both_sinks_saves_loads_and_resizes(tmp_path):
    model = SynthesizerModel(small("relative:sinks=2", kind="encoder")).eval()
    ids = torch.randint(3, 11, (2, 9))
    model.save_pretrained(tmp_path)
    loaded = SynthesizerModel.from_pretrained(tmp_path).eval()
    before = model(input_ids=ids).last_hidden_state
    assert torch.equal(loaded(input_ids=ids).last_hidden_state, before)
    model.resize(9)
    torch.testing.assert_close(model(input_ids=ids).last_hidden_state, before)


def test_a_translator_reads_and_writes_past_max_len():
    both = {"decoder_synthesis": "relative", "num_decoder_layers": 1, "kind": "encoder_decoder"}
    model = SynthesizerForConditionalGeneration(small("relative:sinks=2", **both)).eval()
    ids = torch.randint(3, 11, (2, 9))
    out = model.generate(ids, max_new_tokens=10, do_sample=False, eos_token_id=None)
    assert out.shape[1] == 11


@pytest.mark.parametrize("spec", GROUPS)
def test_models_train_save_load_and_generate(spec, tmp_path):
    torch.manual_seed(0)
    model = SynthesizerForCausalLM(small(f"{spec},dot", max_len=12)).eval()
    ids = torch.randint(3, 11, (2, 5))
    model(input_ids=ids, labels=ids).loss.backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if "synthesis" in n)
    model.save_pretrained(tmp_path)
    loaded = SynthesizerForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
    assert loaded.config.synthesis == f"{spec},dot"
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    cached = model.generate(ids, **options)
    assert torch.equal(cached, model.generate(ids, use_cache=False, **options))
