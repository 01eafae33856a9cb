"""A sliding window: exact against a loop, on every path, padded, cached and in models."""

import pytest
import torch

from synthesizer.attention import fast, masks
from synthesizer.attention.cache import ValueCache
from synthesizer.attention.layer import SyntheticAttention
from synthesizer.attention.mixers import build_mixer
from synthesizer.attention.synthesis import Size
from synthesizer.errors import UserError
from synthesizer.models import (
    SynthesizerConfig,
    SynthesizerForCausalLM,
    SynthesizerForConditionalGeneration,
)
from variants import EVERY, redrawn, tokens

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


@pytest.mark.parametrize("spec", ["random", "dense", "random+dot"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_plain_path_is_the_equation_over_the_window(spec, causal):
    layer, x, mask = attention(spec, causal=causal, window=3, path="plain"), tokens(2, 9, D), None
    logits = layer.logits(x).expand(2, -1, -1, -1)
    values = layer.value(x).view(2, 9, H, D // H)
    visible = naive_visible(mask, 2, 9, causal, 3)
    expected = torch.zeros(2, 9, H, D // H, dtype=x.dtype)
    for b in range(2):
        for i in range(9):
            for h in range(H):
                keys = [j for j in range(9) if visible[b, i, j]]
                weights = torch.stack([logits[b, h, i, j] for j in keys]).softmax(0)
                expected[b, i, h] = sum(
                    w * values[b, j, h] for w, j in zip(weights, keys, strict=True)
                )
    torch.testing.assert_close(layer(x), layer.output(expected.flatten(-2)))


def results(layer, x, path, **given):
    """Outputs and all gradients of one path."""
    layer.path = path
    layer.zero_grad()
    x = x.clone().requires_grad_()
    y = layer(x, **given)
    (y * tokens(*y.shape, seed=5)).sum().backward()
    grads = {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}
    return {"y": y.detach(), "x": x.grad, **grads}


@pytest.mark.parametrize("spec", EVERY)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", MASKS)
def test_fast_equals_plain_under_a_window(spec, causal, kind, monkeypatch):
    monkeypatch.setattr(masks, "FEWEST_ROWS", 2)
    monkeypatch.setattr(fast.table, "FEWEST_ROWS", 2)
    monkeypatch.setattr(fast.blocks, "CACHED", 60)
    monkeypatch.setattr(fast.dispatch, "SHORT", 1)
    layer, x = attention(spec, causal=causal, window=2), tokens(2, 9, D)
    bias = tokens(1, H, 9, 9, seed=3)
    for given in ({}, {"bias": bias}):
        given["attention_mask"] = mask_of(kind)
        plain, quick = (results(layer, x, path, **given) for path in ("plain", "fast"))
        for name, expected in plain.items():
            torch.testing.assert_close(quick[name], expected, msg=lambda m, n=name: f"{n}: {m}")


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
    call = fast.Call(x, layer.synthesis.keys(x), values, causal=True, window=5)
    assert fast.choose(layer.synthesis, call).path == ("table" if spec == "random" else "blocks")
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


@pytest.mark.parametrize("spec", ["dot", "random", "dense", "factorized_dense", "random+dot"])
@pytest.mark.parametrize("kind", ["none", "left", "holes"])
@pytest.mark.parametrize("steps", [[1] * 9, [4, 1, 1, 3], [2, 7]])
def test_decoding_step_by_step_keeps_the_window_alone(spec, kind, steps):
    layer, x, cache = attention(spec, causal=True, window=3).eval(), tokens(2, 9, D), ValueCache()
    mask, bias = mask_of(kind), tokens(1, H, 9, 9, seed=3)
    expected, found, at = layer(x, attention_mask=mask, bias=bias), [], 0
    for step in steps:
        end = at + step
        given = {"attention_mask": None if mask is None else mask[:, :end]}
        given["bias"] = bias[:, :, at:end, :end]
        found.append(layer(x[:, at:end], cache=cache, **given))
        at = end
        assert cache.values.shape[2] == min(at, 3)
        assert cache.get_seq_length() == at
        assert cache.keys is None or cache.keys.shape[2] == min(at, 3)
    torch.testing.assert_close(torch.cat(found, 1), expected)


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
