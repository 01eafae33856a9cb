"""Groups of heads: the contract of every synthesizing function, the layer, its paths and models."""

import pytest
import torch

from synthesizer_attention import (
    SynthesizerConfig,
    SynthesizerForCausalLM,
    SyntheticAttention,
    ValueCache,
)
from synthesizer_attention.attention.registry import build_synthesis, spec_of
from variants import GROUPS, SIZE, redrawn, tokens

groups = pytest.mark.parametrize("spec", GROUPS)
D, H, N = SIZE.d_model, SIZE.num_heads, SIZE.max_len


def test_rotary_positions_turn_the_dot_products_of_a_group():
    from synthesizer_attention.spec import RotaryOptions

    spec, x = "random@2|random+dot@1", tokens(2, 70, D)
    plain = attention(spec, causal=True, rotary=RotaryOptions(), path="plain")
    fast = attention(spec, causal=True, rotary=RotaryOptions(), path="fast")
    torch.testing.assert_close(fast(x), plain(x))
    assert not torch.allclose(fast(x), attention(spec, causal=True)(x))
    cache = ValueCache()
    steps = [plain(x[:, at : at + 10], cache=cache) for at in range(0, 70, 10)]
    torch.testing.assert_close(torch.cat(steps, 1), plain(x))


def attention(spec, length=96, **options):
    return redrawn(SyntheticAttention(D, H, length, spec, **options))


@groups
def test_decoding_with_a_cache_equals_the_whole(spec):
    layer, x = attention(spec, 7, causal=True), tokens(2, 7, D)
    cache = ValueCache()
    steps = [layer(x[:, at : at + 1], cache=cache) for at in range(7)]
    torch.testing.assert_close(torch.cat(steps, 1), layer(x))
    dots = {"random@2|dot@1": 1, "dense@1|relative@1|random+dot@1": 1}.get(spec)
    assert (cache.keys is None) == (dots is None)
    assert dots is None or cache.keys.shape[1] == dots


@groups
def test_models_train_save_load_generate_and_resize(spec, tmp_path):
    config = SynthesizerConfig(
        vocab_size=11, d_model=12, num_heads=3, num_layers=2, d_ff=8, max_len=12,
        synthesis=f"{spec},dot", dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = SynthesizerForCausalLM(config).eval()
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


@groups
def test_resize_keeps_what_was_learned(spec):
    synthesis, x, at = redrawn(build_synthesis(spec, SIZE)), tokens(2, 5, D), torch.arange(5)
    before = synthesis(x, synthesis.keys(x), at, at)
    synthesis.resize(13)
    torch.testing.assert_close(synthesis(x, synthesis.keys(x), at, at), before)
    assert spec_of(synthesis) == spec
