import math
from dataclasses import replace

import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from synthesizer_attention.attention.layer import Inputs
from synthesizer_attention.models.layers import (
    Context,
    Layer,
    Positions,
    RelativeBias,
    Shape,
    Stack,
    bucket,
    sinusoids,
)
from variants import redrawn, tokens

SHAPE = Shape(d_model=12, num_heads=3, d_ff=20, max_len=9, causal=True)


def test_sinusoids_are_the_papers_formula():
    table = sinusoids(torch.arange(6), 8)
    for position in range(6):
        for i in range(4):
            angle = position / 10_000 ** (2 * i / 8)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


@pytest.mark.parametrize("d_model", [1, 7])
def test_sinusoids_take_odd_widths(d_model):
    assert sinusoids(torch.arange(3), d_model).shape == (3, d_model)


@pytest.mark.parametrize("causal", [False, True])
def test_the_relative_bias_has_t5s_buckets(causal):
    bias, at = RelativeBias(2, causal=causal), torch.arange(200)
    ours = bucket(at[None, :] - at[:, None], causal, bias.num_buckets, bias.max_distance)
    theirs = T5Attention._relative_position_bucket(
        at[None, :] - at[:, None], bidirectional=not causal, num_buckets=32, max_distance=128
    )
    assert torch.equal(ours, theirs)


def test_the_relative_bias_follows_positions_per_example():
    bias = redrawn(RelativeBias(3, causal=True))
    at = torch.tensor([[0, 1, 2], [4, 5, 8]])
    both = bias(at, at)
    assert both.shape == (2, 3, 3, 3)
    torch.testing.assert_close(both[1:], bias(at[1], at[1]))


@pytest.mark.parametrize("first", [True, False])
def test_a_layer_is_its_residuals(first):
    shape = replace(SHAPE, norm_position="pre" if first else "post")
    layer, x = redrawn(Layer(shape, "random+dot")).eval(), tokens(2, 5, 12)
    expected = x
    for part in ("attention", "feed_forward"):
        norm, sublayer = getattr(layer, f"{part}_norm"), getattr(layer, part)
        if first:
            expected = expected + sublayer(norm(expected))
        else:
            expected = norm(expected + sublayer(expected))
    torch.testing.assert_close(layer(x, Context(Inputs(), torch.arange(5)))[0], expected)


def test_none_leaves_the_sublayer_out():
    layer, x = redrawn(Layer(SHAPE, "none")).eval(), tokens(2, 5, 12)
    expected = x + layer.feed_forward(layer.feed_forward_norm(x))
    torch.testing.assert_close(layer(x, Context(Inputs(), torch.arange(5)))[0], expected)
    assert not any("attention" in name for name, _ in layer.named_parameters())


def test_learned_positions_keep_what_both_lengths_share():
    positions = redrawn(Positions("learned", 5, 4))
    before = positions.table.weight.clone()
    positions.resize(8)
    assert torch.equal(positions.table.weight[:5], before)
    positions.resize(3)
    assert torch.equal(positions.table.weight, before[:3])
    assert positions.table.weight.requires_grad


def test_the_relative_bias_is_shared_by_all_layers():
    stack = Stack(Shape(12, 3, 20, 9, causal=True, positions="relative"), ["dot", "random"])
    names = [name for name, _ in stack.named_parameters() if name.startswith("relative")]
    assert names == ["relative.table"]
