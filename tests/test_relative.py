"""relative: any length, and sinks at both ends."""

import pytest
import torch

from synthesizer_attention import (
    SynthesizerConfig,
    SynthesizerForCausalLM,
    SyntheticAttention,
    ValueCache,
)
from synthesizer_attention.attention import fast
from synthesizer_attention.attention.registry import build_synthesis, spec_of
from synthesizer_attention.attention.synthesis import numbers_by_distance
from synthesizer_attention.attention.terms import add_diagonals, lay_out
from synthesizer_attention.errors import UserError
from synthesizer_attention.models import SynthesizerForConditionalGeneration, SynthesizerModel
from test_fast import results
from variants import SIZE, redrawn, tokens

D, H, N = SIZE.d_model, SIZE.num_heads, SIZE.max_len
ANY_LENGTH = ["relative", "relative+dot", "relative@2|dot@1", "relative@1|relative+dot@2"]


def attention(spec, length=N, **options):
    return redrawn(SyntheticAttention(D, H, length, spec, **options))


def naive_output(layer, x, lengths):
    """The layer without its last projection, one pair at a time; `lengths` are of real tokens."""
    synthesis, value = layer.synthesis, layer.value(x).unflatten(-1, (H, -1))
    reach = synthesis.offsets.shape[1] // 2
    output = torch.zeros_like(value)
    for b, length in enumerate(lengths):
        for h in range(H):
            for i in range(length):
                logits = []
                for j in range(length):
                    if j == length - 1:
                        logits.append(synthesis.last[h, 0])
                    elif j == 0:
                        logits.append(synthesis.first[h, 0])
                    else:
                        far = max(-reach, min(reach, j - i))
                        logits.append(synthesis.offsets[h, far + reach])
                weights = torch.stack(logits).softmax(0)
                output[b, i, h] = (weights[:, None] * value[b, :length, h]).sum(0)
    return layer.output(output.flatten(-2))


@pytest.mark.parametrize("path", ["fast", "plain"])
@pytest.mark.parametrize("padded", [True, False])
def test_the_last_token_has_a_column_of_its_own(path, padded):
    """Values and gradients; one text has a single token, which is both first and last."""
    layer, x = attention("relative:sinks=2", path=path), tokens(3, N, D)
    lengths = [N, 1, N - 2] if padded else [N] * 3
    mask = torch.arange(N) < torch.tensor(lengths)[:, None]
    ours = layer(x, attention_mask=mask if padded else None) * mask[..., None]
    theirs = naive_output(layer, x, lengths) * mask[..., None]
    torch.testing.assert_close(ours, theirs)
    parameters, weight = list(layer.parameters()), tokens(3, N, D, seed=5)
    for one, other in zip(
        torch.autograd.grad((ours * weight).sum(), parameters),
        torch.autograd.grad((theirs * weight).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("spec", ["relative:sinks=2+dot", "random@1|relative:sinks=2@2"])
def test_a_part_of_several_has_its_last_column(spec):
    layer, x = attention(spec), tokens(2, N, D)
    before = layer.logits(x).detach()
    (relative,) = [m for m in layer.modules() if getattr(m, "last", None) is not None]
    relative.last.data += 1.0
    moved = (layer.logits(x) - before).detach()
    assert (moved[..., -1].abs() > 1e-6).any()
    assert not moved[..., :-1].abs().max() > 1e-12
    left = torch.arange(N).flip(0).expand(2, N) < N - 2
    plain = attention(spec, path="plain")
    torch.testing.assert_close(
        attention(spec)(x, attention_mask=left)[:, 2:], plain(x[:, 2:]), rtol=1e-6, atol=1e-6
    )


def test_what_the_last_column_cannot_be_is_refused():
    with pytest.raises(UserError, match="causal attention has another last token at each step"):
        attention("relative:sinks=2", causal=True)
    with pytest.raises(UserError, match=r"relative:sinks=3; choose 1 .* or 2"):
        build_synthesis("relative:sinks=3", SIZE)
    assert spec_of(build_synthesis("relative:sinks=2", SIZE)) == "relative:sinks=2"


@pytest.mark.parametrize("spec", ANY_LENGTH)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("path", ["fast", "plain"])
def test_a_longer_sequence_is_that_of_longer_tables(spec, causal, path):
    layer, x = attention(spec, causal=causal, path=path), tokens(2, 3 * N, D)
    mask = torch.arange(3 * N).expand(2, -1) >= torch.tensor([[0], [5]])
    ours = [layer(x), layer(x, attention_mask=mask)]
    layer.resize(3 * N)
    for one, other in zip(ours, [layer(x), layer(x, attention_mask=mask)], strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("spec", ANY_LENGTH)
def test_cached_decoding_goes_past_max_len(spec):
    layer, x, cache = attention(spec, causal=True), tokens(2, 3 * N, D), ValueCache()
    steps = [layer(x[:, at : at + 1], cache=cache) for at in range(3 * N)]
    torch.testing.assert_close(torch.cat(steps, 1), layer(x))


def config(spec, **options):
    return SynthesizerConfig(
        vocab_size=11, d_model=12, num_heads=3, num_layers=2, d_ff=8, max_len=6, synthesis=spec,
        dropout=0.0, **options,
    )  # fmt: skip


@pytest.mark.parametrize("spec", ["relative", "relative,dot", "relative@1|dot@2"])
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "none"])
def test_a_model_generates_past_max_len(spec, positions):
    torch.manual_seed(0)
    model = SynthesizerForCausalLM(config(spec, positions=positions)).eval()
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
    model = SynthesizerForCausalLM(config(spec, positions=positions))
    with pytest.raises(UserError, match="a sequence of 7 tokens met a model built for max_len=6"):
        model(input_ids=torch.ones(1, 7, dtype=torch.long))
    with pytest.raises(UserError, match="generate was asked for 8 tokens"):
        model.generate(torch.ones(1, 5, dtype=torch.long), max_new_tokens=3)


def test_an_encoder_with_both_sinks_saves_loads_and_resizes(tmp_path):
    model = SynthesizerModel(config("relative:sinks=2", kind="encoder")).eval()
    ids = torch.randint(3, 11, (2, 9))
    model.save_pretrained(tmp_path)
    loaded = SynthesizerModel.from_pretrained(tmp_path).eval()
    before = model(input_ids=ids).last_hidden_state
    assert torch.equal(loaded(input_ids=ids).last_hidden_state, before)
    model.resize(9)
    torch.testing.assert_close(model(input_ids=ids).last_hidden_state, before)


def test_a_translator_reads_and_writes_past_max_len():
    both = {"decoder_synthesis": "relative", "num_decoder_layers": 1, "kind": "encoder_decoder"}
    model = SynthesizerForConditionalGeneration(config("relative:sinks=2", **both)).eval()
    ids = torch.randint(3, 11, (2, 9))
    out = model.generate(ids, max_new_tokens=10, do_sample=False, eos_token_id=None)
    assert out.shape[1] == 11


BLOCKS = [(5, 5, 0, 5, 0, 5), (5, 9, 0, 5, 0, 9), (1, 6, 0, 1, 0, 6), (1, 1, 0, 1, 0, 1)]
BLOCKS += [(7, 9, 2, 5, 0, 4), (7, 9, 6, 7, 0, 9), (7, 9, 0, 3, 2, 9), (9, 9, 3, 9, 8, 9)]


@pytest.mark.parametrize(("num_queries", "num_keys", "top", "bottom", "left", "right"), BLOCKS)
def test_diagonals_are_laid_out_and_summed_as_pair_by_pair(
    num_queries, num_keys, top, bottom, left, right
):
    part = redrawn(build_synthesis("relative", SIZE))  # of 7: nine keys read its ends
    rows, keys, reach = slice(top, bottom), slice(left, right), N - 1
    numbers = numbers_by_distance(part, num_queries, num_keys)
    found = lay_out(numbers, num_queries, rows, keys)
    weight = tokens(H, bottom - top, right - left, seed=5)
    total, expected = torch.zeros_like(numbers), torch.zeros_like(numbers)
    add_diagonals(total, weight, num_queries, rows, keys)
    for h in range(H):
        for i in range(top, bottom):
            for j in range(left, right):
                distance = j - (num_keys - num_queries + i)
                right_one = part.offsets[h, max(-reach, min(reach, distance)) + reach]
                right_one = part.first[h, 0] if j == 0 else right_one
                assert found[h, i - top, j - left] == right_one
                read = 0 if j == 0 else distance + num_keys
                expected[h, read] += weight[h, i - top, j - left]
    torch.testing.assert_close(total, expected)
    (by_autograd,) = torch.autograd.grad((found * weight).sum(), numbers)
    torch.testing.assert_close(by_autograd, expected)


@pytest.mark.parametrize("spec", ["relative", "relative+random", "relative+factorized_random"])
@pytest.mark.parametrize(("causal", "window"), [(True, None), (False, None), (True, 5)])
def test_a_long_sequence_is_exact_and_keeps_nothing_of_all_pairs(spec, causal, window, monkeypatch):
    """Blocks of rows, made again for backward, without the compiled kernel."""
    for name, value in {"LONG": 8, "FEWEST_ROWS": 4, "NUM_BLOCKS": 5}.items():
        monkeypatch.setattr(fast.table, name, value)
    length, kept = 23, []
    layer, x = attention(spec, length, causal=causal, window=window), tokens(2, length, D)
    found = results(layer, x, "fast")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        layer(x)
    if spec == "relative":
        assert max(tensor.numel() for tensor in kept) < H * length * length
    for name, right in results(layer, x, "plain").items():
        torch.testing.assert_close(found[name], right, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("length", [65, 129])
def test_a_last_block_of_one_row_does_not_write_into_the_offsets(length):
    """Of one row and one head, what a window leaves of the distances is a view of them."""
    layer, x = attention("relative@1|dot@2", length, window=5), tokens(2, length, D)
    found = results(layer, x, "fast")
    for name, right in results(layer, x, "plain").items():
        torch.testing.assert_close(found[name], right, msg=lambda m, n=name: f"{n}: {m}")
