"""Baselines inside the models: the same contract as for the synthesizing functions."""

import pytest
import torch

from synthesizer_attention import (
    SynthesizerCache,
    SynthesizerConfig,
    SynthesizerForCausalLM,
    SynthesizerForConditionalGeneration,
    SynthesizerForSequenceClassification,
    UserError,
)
from variants import redrawn

CAUSAL = ["lightconv:kernel=3", "dynamicconv:kernel=7", "lightconv:kernel=2,random+dot"]
LINFORMER = {"synthesis": "linformer:k=3", "decoder_synthesis": "dynamicconv:kernel=3"}
CLOSE = {"atol": 1e-10, "rtol": 0}
every_causal = pytest.mark.parametrize("spec", CAUSAL)


def config(**changes):
    sizes = {"vocab_size": 17, "d_model": 12, "num_heads": 3, "num_layers": 2, "d_ff": 20}
    return SynthesizerConfig(**{**sizes, "max_len": 14, **changes})


def build(cls, **changes):
    return redrawn(cls(config(**changes))).eval()


def ids(*shape, seed=2):
    return torch.randint(2, 17, shape, generator=torch.Generator().manual_seed(seed))


@every_causal
def test_a_left_padded_batch_gives_the_logits_of_each_alone(spec):
    model = build(SynthesizerForCausalLM, synthesis=spec)
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    tokens = ids(2, 6)
    logits = model(tokens, attention_mask=mask).logits
    torch.testing.assert_close(logits[:1], model(tokens[:1]).logits, **CLOSE)
    torch.testing.assert_close(logits[1:, 2:], model(tokens[1:, 2:]).logits, **CLOSE)


@every_causal
def test_cached_logits_are_the_uncached_ones_behind_padding_too(spec):
    model, tokens = build(SynthesizerForCausalLM, synthesis=spec), ids(2, 9)
    mask = torch.tensor([[1] * 9, [0, 0, 1, 1, 1, 1, 1, 1, 1]])
    whole = model(tokens, attention_mask=mask).logits
    cache, steps = SynthesizerCache(2), []
    for start, stop in ((0, 4), (4, 5), (5, 6), (6, 9)):
        given = {"attention_mask": mask[:, :stop], "past_key_values": cache, "use_cache": True}
        steps.append(model(tokens[:, start:stop], **given).logits)
    torch.testing.assert_close(torch.cat(steps, dim=1)[mask.bool()], whole[mask.bool()], **CLOSE)
    assert cache.get_seq_length() == 9


@pytest.mark.parametrize("beams", [1, 3])
@every_causal
def test_generating_with_a_cache_gives_the_tokens_of_generating_without(spec, beams):
    model = build(SynthesizerForCausalLM, synthesis=spec)
    mask = torch.tensor([[1] * 4, [0, 1, 1, 1]])
    given = {"attention_mask": mask, "max_new_tokens": 9, "num_beams": beams, "do_sample": False}
    cached, uncached = (
        model.generate(ids(2, 4), use_cache=use_cache, **given) for use_cache in (True, False)
    )
    assert torch.equal(cached, uncached)


@pytest.mark.parametrize("settings", [LINFORMER, {"synthesis": "dynamicconv:kernel=3"}])
def test_an_encoder_decoder_of_baselines_generates_with_beams(settings):
    model = build(SynthesizerForConditionalGeneration, **settings)
    mask = torch.tensor([[1] * 5, [1, 1, 1, 0, 0]])
    given = {"attention_mask": mask, "max_new_tokens": 7, "num_beams": 3}
    cached, uncached = (
        model.generate(ids(2, 5), use_cache=use_cache, **given) for use_cache in (True, False)
    )
    assert torch.equal(cached, uncached)


@pytest.mark.parametrize("spec", ["linformer:k=3", "lightconv:kernel=5", "dynamicconv"])
def test_a_classifier_reads_the_real_tokens_wherever_they_are(spec):
    model = build(SynthesizerForSequenceClassification, synthesis=spec, num_labels=3)
    tokens = ids(2, 7)
    mask = torch.tensor([[0, 1, 1, 1, 0, 0, 1], [1, 1, 1, 1, 1, 0, 0]])
    together = model(tokens, attention_mask=mask).logits
    for row in range(2):
        alone = model(tokens[row : row + 1, mask[row].bool()]).logits
        torch.testing.assert_close(together[row : row + 1], alone, **CLOSE)


def test_the_cache_of_a_convolution_does_not_grow():
    model = build(SynthesizerForCausalLM, synthesis="lightconv:kernel=4")
    cache = model(ids(2, 11), use_cache=True).past_key_values
    assert [layer.values.shape for layer in cache.layers] == [(2, 3, 12)] * 2
    cache.crop(11)
    with pytest.raises(UserError, match="of 11 seen, cannot go back to 9; decode without"):
        cache.crop(9)
    cache.reset()
    assert cache.get_seq_length() == 0


@pytest.mark.parametrize(
    ("cls", "settings"),
    [
        (SynthesizerForCausalLM, {"synthesis": "lightconv:kernel=3,dynamicconv:kernel=7"}),
        (SynthesizerForConditionalGeneration, LINFORMER),
        (SynthesizerForSequenceClassification, {"synthesis": "linformer:share_heads=0"}),
        (SynthesizerForCausalLM, {"synthesis": "dynamicconv", "universal": True}),
    ],
)
def test_a_saved_model_comes_back_exactly(cls, settings, tmp_path):
    model = redrawn(cls(config(**settings))).float().eval()
    model.save_pretrained(tmp_path)
    again = cls.from_pretrained(tmp_path)
    assert again.config.synthesis == model.config.synthesis
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
    given = {"labels": ids(2, 4)} if cls is SynthesizerForConditionalGeneration else {}
    assert torch.equal(again(ids(2, 6), **given).logits, model(ids(2, 6), **given).logits)


def test_resizing_a_model_of_baselines_keeps_what_it_learned():
    model, tokens = build(SynthesizerForConditionalGeneration, **LINFORMER), ids(2, 9)
    before = model(tokens, labels=ids(2, 6)).logits
    model.resize(20)
    torch.testing.assert_close(model(tokens, labels=ids(2, 6)).logits, before, **CLOSE)
    assert model.config.synthesis == "linformer:k=3"
    assert model.config.decoder_synthesis == "dynamicconv:kernel=3"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: config(kind="decoder", synthesis="linformer"),
            "linformer:k=32 cannot be causal: each of its 32 keys is a sum over the whole sequence",
        ),
        (
            lambda: config(kind="encoder_decoder", synthesis="linformer"),
            "use it in an encoder, and another spec for a decoder (decoder_synthesis)",
        ),
        (
            lambda: build(SynthesizerForCausalLM, synthesis="lightconv,dot")(
                ids(1, 3), output_attentions=True
            ),
            "'lightconv' has no attention weights between tokens; leave output_attentions out, or "
            "choose a synthesizing function",
        ),
    ],
)
def test_what_a_baseline_cannot_do_is_told(make, text):
    with pytest.raises(UserError) as caught:
        make()
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "spec", ["lightconv:kernel=3", "dynamicconv:kernel=3", "lightconv:kernel=3,dot"]
)
def test_layers_without_logits_run_beside_a_relative_bias_without_it(spec):
    relative = build(SynthesizerForCausalLM, synthesis=spec, positions="relative")
    plain = build(SynthesizerForCausalLM, synthesis=spec, positions="none")
    biases = [name for name, _ in relative.named_parameters() if "relative" in name]
    assert len(biases) == ("dot" in spec)
    plain.load_state_dict({k: v for k, v in relative.state_dict().items() if k not in biases})
    same = torch.equal(relative(ids(2, 5)).logits, plain(ids(2, 5)).logits)
    assert same == ("dot" not in spec)  # dot alone feels the bias
    assert relative.config.layers_without_bias == {"decoder": 1 if "dot" in spec else 2}
    assert plain.config.layers_without_bias == {}


def test_an_encoder_decoder_of_convolutions_trains_and_generates_with_relative_positions():
    model = build(
        SynthesizerForConditionalGeneration,
        synthesis="dynamicconv:kernel=3",
        positions="relative",
        norm="rms",
    )
    model(input_ids=ids(2, 5), labels=ids(2, 4)).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.generate(ids(2, 5), max_new_tokens=3, num_beams=2).shape[0] == 2
    assert model.config.layers_without_bias == {"encoder": 2, "decoder": 2}
