"""Positions: every kind, with every variant and mask, against a loop over real tokens."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.t5.modeling_t5 import T5Attention

from synthesizer_attention.attention import masks
from synthesizer_attention.attention.layer import Inputs
from synthesizer_attention.errors import UserError
from synthesizer_attention.models import (
    SynthesizerConfig,
    SynthesizerForCausalLM,
    SynthesizerForConditionalGeneration,
)
from synthesizer_attention.models.layers import Context, Shape, Stack, sinusoids
from synthesizer_attention.run.recipe import load_recipe
from synthesizer_attention.spec import parse_positions
from test_contract import naive, small_blocks
from variants import EVERY, redrawn, tokens

D, H, LENGTH = 12, 3, 9
KINDS = [
    "none",
    "sinusoidal",
    "learned",
    "relative",
    "alibi",
    "rotary",
    "rotary:base=50:share=0.5",
    "sinusoidal+rotary",
    "learned+relative+rotary+alibi",
]
MASKS = {
    "none": [[1] * 9, [1] * 9],
    "right": [[1] * 9, [1] * 5 + [0] * 4],
    "left": [[0] * 3 + [1] * 6, [1] * 9],
    "holes": [[1, 0, 1, 1, 0, 0, 1, 1, 1], [0, 1, 1, 0, 1, 0, 1, 0, 0]],
}


def naive_bias(stack, kinds, positions, causal):
    """What is added to the logits (1, H, T, T), number by number."""
    bias = torch.zeros(1, H, len(positions), len(positions), dtype=torch.float64)
    for h, i, j in product(range(H), range(len(positions)), range(len(positions))):
        distance = positions[j] - positions[i]
        if kinds.relative:
            bucket = T5Attention._relative_position_bucket(distance, not causal, 32, 128)
            bias[0, h, i, j] = bias[0, h, i, j] + stack.relative.table[h, bucket]
        if kinds.alibi:
            bias[0, h, i, j] = bias[0, h, i, j] - 2 ** (-8 * (h + 1) / H) * abs(int(distance))
    return bias


def naive_stack(stack, x, kinds, causal):
    """A stack of one layer over the real tokens x (T, D) of one example."""
    layer, positions = stack.layers[0], torch.arange(len(x))
    if kinds.added == "sinusoidal":
        x = x + sinusoids(positions, D).double()
    if kinds.added == "learned":
        x = x + stack.positions.table.weight[positions]
    given = {"bias": naive_bias(stack, kinds, positions, causal), "rotary": kinds.rotary}
    x = x + naive(layer.attention, layer.attention_norm(x)[None], **given)[0]
    return stack.norm(x + layer.feed_forward(layer.feed_forward_norm(x)))


def gradients(stack, y, x):
    stack.zero_grad()
    x.grad = None
    (y * tokens(*y.shape, seed=5)).sum().backward()
    found = {"x": x.grad.clone()}
    for name, parameter in stack.named_parameters():
        if parameter.grad is not None:
            found[name] = parameter.grad.clone()
    return found


@settings(max_examples=20, deadline=None)
@given(
    spec=st.sampled_from(EVERY),
    positions=st.sampled_from(KINDS),
    mask=st.sampled_from(list(MASKS)),
    causal=st.booleans(),
)
def test_a_stack_is_the_loop_over_its_real_tokens(spec, positions, mask, causal):
    kinds = parse_positions(positions)
    spec = spec.replace(":a=2:b=4", "")
    shape = Shape(D, H, 20, LENGTH, causal=causal, positions=positions)
    stack = redrawn(Stack(shape, [spec]))
    real = torch.tensor(MASKS[mask]).bool()
    x = tokens(2, LENGTH, D).requires_grad_()
    expected = torch.cat([naive_stack(stack, x[b, real[b]], kinds, causal) for b in range(2)])
    wanted = gradients(stack, expected, x)
    inputs = Inputs(None if mask == "none" else real)
    context = Context(inputs, masks.locate(inputs.attention_mask, None, LENGTH, x.device))
    for path in ("plain", "fast"):
        stack.layers[0].attention.path = path
        with small_blocks():
            y = stack(x, context).x[real]
            found = gradients(stack, y, x)
        torch.testing.assert_close(y, expected)
        for name, grad in wanted.items():
            torch.testing.assert_close(found[name], grad, msg=lambda m, n=name: f"{n}: {m}")


SIZES = {
    "d_model": 12,
    "num_heads": 3,
    "num_layers": 2,
    "d_ff": 20,
    "max_len": 24,
    "vocab_size": 17,
    "eos_token_id": None,
}


@pytest.mark.parametrize(
    ("positions", "synthesis", "beams"),
    [
        ("alibi", "dot", 1),
        ("rotary", "random+dot", 3),
        ("sinusoidal+relative+rotary", "dense,dot", 1),
    ],
)
def test_generation_is_the_same_with_a_cache_and_alone(positions, synthesis, beams):
    torch.manual_seed(0)
    config = SynthesizerConfig(**SIZES, synthesis=synthesis, positions=positions)
    model = redrawn(SynthesizerForCausalLM(config)).eval()
    ids = torch.randint(2, 17, (2, 7))
    mask = torch.ones_like(ids)
    ids[0, :3], mask[0, :3] = 0, 0
    given = {"attention_mask": mask, "max_new_tokens": 10, "num_beams": beams, "do_sample": False}
    cached = model.generate(ids, **given, use_cache=True)
    torch.testing.assert_close(model.generate(ids, **given, use_cache=False), cached)
    alone = model.generate(ids[:1, 3:], max_new_tokens=10, num_beams=beams, do_sample=False)
    torch.testing.assert_close(alone[0], cached[0, 3:])


@pytest.mark.parametrize(
    ("positions", "universal"), [("sinusoidal+rotary", True), ("learned+alibi", False)]
)
def test_an_encoder_decoder_decodes_the_same_with_a_cache(positions, universal):
    torch.manual_seed(0)
    config = SynthesizerConfig(
        **SIZES, synthesis="dense+dot", positions=positions, universal=universal
    )
    model = redrawn(SynthesizerForConditionalGeneration(config)).eval()
    ids, mask = torch.randint(2, 17, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    given = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    cached = model.generate(ids, **given, use_cache=True)
    torch.testing.assert_close(model.generate(ids, **given, use_cache=False), cached)
    alone = model.generate(ids[1:, :6], max_new_tokens=12, do_sample=False)
    torch.testing.assert_close(alone[0], cached[1])


def test_a_saved_model_keeps_its_positions(tmp_path):
    config = SynthesizerConfig(**SIZES, synthesis="dot", positions="learned+rotary:share=0.5")
    model = SynthesizerForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    loaded = SynthesizerForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.arange(2, 12)[None]
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
    assert loaded.model.decoder.layers[0].attention.synthesis.rotary.width == 2


def test_the_record_says_which_layers_positions_do_not_reach():
    config = SynthesizerConfig(
        **SIZES, kind="decoder", synthesis="lightconv,random", positions="rotary+alibi"
    )
    assert config.layers_without_bias == {"decoder": 1}
    assert config.layers_without_rotary == {"decoder": 2}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rotory", "positions='rotory'; choose from sinusoidal, learned, relative, rotary"),
        ("sinusoidal+learned", "combines kinds that exclude each other; write each once"),
        ("none+rotary", "none alone"),
        ("rotary+rotary", "write each once"),
        ("alibi:base=3", "alibi has no options; only rotary has base and share"),
        ("rotary:bass=3", "rotary has no 'bass=3'; write base=NUMBER or share=NUMBER"),
        ("rotary:base=x", "rotary has no 'base=x'"),
        ("rotary:share=2", "rotary needs a base above 1 and a share in (0, 1]"),
        ("rotary:share=0.2", "turn no pair of features in heads of width 4"),
    ],
)
def test_bad_positions_are_named(text, words):
    with pytest.raises(UserError) as caught:
        SynthesizerConfig(**SIZES, positions=text)
    assert words in str(caught.value)
    if "width" not in words:
        with pytest.raises(UserError) as caught:
            load_recipe("shift", overrides=[f"model.positions={text}"])
        assert words in str(caught.value)
        assert str(caught.value).startswith("shift.toml [model]: positions=")
