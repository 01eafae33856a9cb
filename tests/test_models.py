"""The models: what they compute, over every variant, in float64 with redrawn parameters."""

import pytest
import torch
from torch.nn import functional as F

from synthesizer_attention import (
    SynthesizerCache,
    SynthesizerConfig,
    SynthesizerForCausalLM,
    SynthesizerForConditionalGeneration,
    SynthesizerForSequenceClassification,
    SynthesizerModel,
    UserError,
)
from synthesizer_attention.attention.synthesis import DotProduct
from variants import EVERY, redrawn

EVERY_LAYER = [*EVERY, "none", "random,dot", "none,random+dot"]
EVERY_LAYER += ["lightconv:kernel=3", "dynamicconv:kernel=7", "lightconv:kernel=2,random+dot"]
LINFORMER = {"synthesis": "linformer:k=3", "decoder_synthesis": "dynamicconv:kernel=3"}
every_layer = pytest.mark.parametrize("spec", EVERY_LAYER)
CLOSE = {"atol": 1e-10, "rtol": 0}
TINY = {"vocab_size": 17, "d_model": 12, "num_heads": 3, "num_layers": 2, "d_ff": 20, "max_len": 8}


def config(synthesis="random+dot", **changes):
    return SynthesizerConfig(**{**TINY, "synthesis": synthesis, **changes})


def build(cls, synthesis="random+dot", **changes):
    """A model with parameters large enough to be told apart, norms aside so that it stays sane."""
    return redrawn(cls(config(synthesis, **changes))).eval()


def ids(*shape, seed=2):
    return torch.randint(2, 17, shape, generator=torch.Generator().manual_seed(seed))


@every_layer
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "relative", "none"])
def test_a_left_padded_batch_gives_the_logits_of_each_alone(spec, positions):
    model = build(SynthesizerForCausalLM, spec, positions=positions)
    long, short = ids(1, 6), ids(1, 4, seed=3)
    padded = torch.cat([torch.zeros(1, 2, dtype=torch.long), short], dim=1)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    logits = model(torch.cat([long, padded]), attention_mask=mask).logits
    torch.testing.assert_close(logits[:1], model(long).logits, **CLOSE)
    torch.testing.assert_close(logits[1:, 2:], model(short).logits, **CLOSE)


@every_layer
@pytest.mark.parametrize("positions", ["learned", "relative"])
def test_cached_logits_are_the_uncached_ones_behind_padding_too(spec, positions):
    model = build(SynthesizerForCausalLM, spec, positions=positions)
    tokens, mask = ids(2, 7), torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1]])
    whole = model(tokens, attention_mask=mask).logits
    cache, steps = SynthesizerCache(2), []
    for start, stop in ((0, 3), (3, 4), (4, 7)):
        output = model(
            tokens[:, start:stop],
            attention_mask=mask[:, :stop],
            past_key_values=cache,
            use_cache=True,
        )
        steps.append(output.logits)
    real = mask.bool()
    torch.testing.assert_close(torch.cat(steps, dim=1)[real], whole[real], **CLOSE)
    assert cache.get_seq_length() == 7


@pytest.mark.parametrize("spec", ["random", "dense", "factorized_dense", "random+dense"])
def test_a_model_without_dot_caches_values_alone(spec):
    def cached(model):
        layers = model(ids(2, 5), use_cache=True).past_key_values.layers
        kept = [t for layer in layers for t in (layer.keys, layer.values) if t is not None]
        return sum(t.nbytes for t in kept)

    synthetic = cached(build(SynthesizerForCausalLM, spec))
    assert 2 * synthetic == cached(build(SynthesizerForCausalLM, "dot"))


@every_layer
def test_the_future_never_leaks_through_a_model(spec):
    model, tokens = build(SynthesizerForCausalLM, spec), ids(1, 6)
    before = model(tokens).logits
    for j in range(6):
        changed = tokens.clone()
        changed[0, j] = (changed[0, j] + 1) % 17
        assert torch.equal(model(changed).logits[:, :j], before[:, :j])


@every_layer
@pytest.mark.parametrize("positions", ["sinusoidal", "relative"])
def test_an_encoder_decoder_ignores_what_is_padded(spec, positions):
    model = build(SynthesizerForConditionalGeneration, spec, positions=positions)
    source, target = ids(2, 6), ids(2, 5, seed=5)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 1, 0]])
    together = model(source, attention_mask=mask, decoder_input_ids=target).logits
    alone = model(source[1:, mask[1].bool()], decoder_input_ids=target[1:]).logits
    torch.testing.assert_close(together[1:], alone, **CLOSE)


@every_layer
def test_an_encoder_decoder_decodes_with_a_cache_as_without(spec):
    model = build(SynthesizerForConditionalGeneration, spec, positions="learned")
    source, target = ids(2, 6), ids(2, 5, seed=5)
    whole = model(source, decoder_input_ids=target).logits
    first = model(source, decoder_input_ids=target[:, :2], use_cache=True)
    rest = model(
        encoder_outputs=(first.encoder_last_hidden_state,),
        decoder_input_ids=target[:, 2:],
        past_key_values=first.past_key_values,
        use_cache=True,
    )
    torch.testing.assert_close(torch.cat([first.logits, rest.logits], dim=1), whole, **CLOSE)


def test_the_causal_loss_compares_each_output_with_the_next_token():
    model, tokens = build(SynthesizerForCausalLM), ids(2, 6)
    labels = tokens.clone()
    labels[0, 3] = -100
    output = model(tokens, labels=labels)
    scored = [(b, t) for b in range(2) for t in range(1, 6) if labels[b, t] != -100]
    each = [F.cross_entropy(output.logits[b, t - 1].float(), labels[b, t]) for b, t in scored]
    torch.testing.assert_close(output.loss, torch.stack(each).mean())
    summed = model(tokens, labels=labels, num_items_in_batch=4).loss
    torch.testing.assert_close(summed, torch.stack(each).sum() / 4)


def test_the_sequence_loss_compares_each_output_with_its_own_label():
    model, source = build(SynthesizerForConditionalGeneration), ids(2, 5)
    labels = torch.tensor([[5, 6, 1], [7, 1, -100]])
    output = model(source, labels=labels)
    shifted = torch.tensor([[0, 5, 6], [0, 7, 1]])
    assert torch.equal(model.prepare_decoder_input_ids_from_labels(labels), shifted)
    logits = model(source, decoder_input_ids=shifted).logits
    expected = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=-100)
    torch.testing.assert_close(output.loss, expected)


def test_labels_are_smoothed_in_training_and_true_in_evaluation():
    smooth = build(SynthesizerForCausalLM, label_smoothing=0.1)
    sharp = build(SynthesizerForCausalLM)
    tokens = ids(2, 6)
    assert torch.equal(smooth(tokens, labels=tokens).loss, sharp(tokens, labels=tokens).loss)
    logits = sharp.train()(tokens).logits[:, :-1].flatten(0, 1).float()
    expected = F.cross_entropy(logits, tokens[:, 1:].flatten(), label_smoothing=0.1)
    torch.testing.assert_close(smooth.train()(tokens, labels=tokens).loss, expected)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize(
    "spec", ["random", "dense+dot", "linformer:k=3", "lightconv:kernel=5", "dynamicconv"]
)
def test_a_classifier_reads_the_real_tokens_wherever_they_are(pooling, spec):
    model = build(SynthesizerForSequenceClassification, spec, pooling=pooling, num_labels=5)
    tokens, mask = ids(2, 6), torch.tensor([[0, 1, 1, 0, 1, 0], [1, 1, 1, 1, 0, 0]])
    logits = model(tokens, attention_mask=mask).logits
    assert logits.shape == (2, 5)
    for b in range(2):
        alone = model(tokens[b : b + 1, mask[b].bool()])
        torch.testing.assert_close(logits[b : b + 1], alone.logits, **CLOSE)


def test_pooling_is_the_first_token_or_the_mean():
    first = build(SynthesizerForSequenceClassification, pooling="cls")
    mean = build(SynthesizerForSequenceClassification, pooling="mean")
    states = first.model(ids(2, 6)).last_hidden_state
    torch.testing.assert_close(first(ids(2, 6)).logits, first.score(states[:, 0]), **CLOSE)
    torch.testing.assert_close(mean(ids(2, 6)).logits, mean.score(states.mean(1)), **CLOSE)


def test_a_classifier_scores_classes_and_numbers():
    labels = torch.tensor([1, 0])
    classes = build(SynthesizerForSequenceClassification, num_labels=3)
    output = classes(ids(2, 6), labels=labels)
    torch.testing.assert_close(output.loss, F.cross_entropy(output.logits.float(), labels))
    number = build(SynthesizerForSequenceClassification, num_labels=1)
    output = number(ids(2, 6), labels=torch.tensor([0.5, 2.0]))
    expected = F.mse_loss(output.logits[:, 0], torch.tensor([0.5, 2.0], dtype=torch.float64))
    torch.testing.assert_close(output.loss, expected)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_every_trunk_trains_all_its_parameters(norm, norm_position, activation):
    made = config(
        norm=norm, norm_position=norm_position, activation=activation, positions="relative"
    )
    model = SynthesizerForConditionalGeneration(made)
    model(ids(2, 8), labels=ids(2, 8)).loss.backward()
    missing = [name for name, p in model.named_parameters() if p.grad is None]
    assert missing == []
    biases = [name for name, _ in model.named_parameters() if name.endswith(".bias")]
    assert (biases == []) == (norm == "rms")


def test_equal_queries_and_keys_are_where_a_model_starts_and_not_where_it_is_loaded(tmp_path):
    model = SynthesizerForCausalLM(config(equal_qk_init=True))
    dots = [part for part in model.modules() if isinstance(part, DotProduct)]
    assert dots
    for dot in dots:
        torch.testing.assert_close(dot.wk, dot.wq, rtol=0, atol=0)
        torch.nn.init.normal_(dot.wk)  # as after training
    model.save_pretrained(tmp_path)
    loaded = SynthesizerForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.equal_qk_init
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)


@every_layer
@pytest.mark.parametrize("max_len", [6, 13])
def test_resize_keeps_what_a_model_learned(spec, max_len):
    if spec.startswith("factorized_dense:") and max_len > 8:
        spec = "factorized_dense"
    model, tokens = build(SynthesizerForCausalLM, spec, positions="learned"), ids(2, 6)
    before = model(tokens).logits
    model.resize(max_len)
    assert model.config.max_len == max_len
    torch.testing.assert_close(model(tokens).logits, before, **CLOSE)
    assert model(ids(2, max_len)).logits.shape == (2, max_len, 17)
    again = SynthesizerForCausalLM(model.config)
    assert {k: v.shape for k, v in again.state_dict().items()} == {
        k: v.shape for k, v in model.state_dict().items()
    }


def test_resizing_writes_both_sides_of_factorized_dense_into_the_config():
    model = build(SynthesizerForConditionalGeneration, "factorized_dense")
    model.resize(20, decoder_max_len=7)
    assert model.config.synthesis == "factorized_dense:a=3:b=7"
    assert model.config.decoder_synthesis == "factorized_dense:a=3:b=3"
    with pytest.raises(UserError, match="max_len=0"):
        model.resize(0)


def test_attention_weights_and_states_come_when_asked_for():
    model = build(
        SynthesizerForConditionalGeneration, "random,dense+dot", decoder_synthesis="none,R"
    )
    output = model(
        ids(2, 6), decoder_input_ids=ids(2, 5), output_attentions=True, output_hidden_states=True
    )
    assert [w.shape for w in output.encoder_attentions] == [(2, 3, 6, 6)] * 2
    assert output.decoder_attentions[0] is None
    assert output.decoder_attentions[1].shape == (2, 3, 5, 5)
    assert [w.shape for w in output.cross_attentions] == [(2, 3, 5, 6)] * 2
    assert len(output.decoder_hidden_states) == 3
    for weights in (*output.encoder_attentions, *output.cross_attentions):
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
    plain = model(ids(2, 6), decoder_input_ids=ids(2, 5))
    assert plain.encoder_attentions is None
    torch.testing.assert_close(output.logits, plain.logits, **CLOSE)


def test_position_ids_are_used_and_must_continue_a_cache():
    model, tokens = build(SynthesizerForCausalLM, "random+dot"), ids(2, 4)
    at = torch.tensor([[3, 1, 0, 2]])
    assert not torch.allclose(model(tokens, position_ids=at).logits, model(tokens).logits)
    counted = torch.arange(4)[None].expand(2, 4)
    assert torch.equal(model(tokens, position_ids=counted).logits, model(tokens).logits)
    cache = model(tokens, use_cache=True).past_key_values
    with pytest.raises(UserError, match="position_ids of 1 tokens do not continue the 4 cached"):
        model(tokens[:, :1], past_key_values=cache, position_ids=torch.tensor([[2]]))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: build(SynthesizerForCausalLM)(ids(1, 9)),
            "a sequence of 9 tokens met a model built for max_len=8",
        ),
        (
            lambda: build(SynthesizerForCausalLM, "none", positions="none")(ids(1, 9)),
            "a sequence of 9 tokens met a model built for max_len=8",
        ),
        (
            lambda: build(SynthesizerForCausalLM)(ids(2, 5), attention_mask=torch.ones(2, 4)),
            "attention_mask has shape (2, 4); expected (2, 5)",
        ),
        (
            lambda: build(SynthesizerForCausalLM)(ids(2, 5), attention_mask=torch.ones(2, 1, 5, 5)),
            "attention_mask has shape (2, 1, 5, 5); expected (2, 5)",
        ),
        (
            lambda: build(SynthesizerForCausalLM)(ids(2, 5), attention_mask=[[1] * 5] * 2),
            "attention_mask is a list; give a tensor: torch.tensor(attention_mask)",
        ),
        (
            lambda: build(SynthesizerForCausalLM)(ids(2, 5).numpy()),
            "input_ids is a ndarray; give a tensor: torch.tensor(input_ids)",
        ),
        (lambda: build(SynthesizerForCausalLM)(), "give input_ids or inputs_embeds, and not both"),
        (
            lambda: build(SynthesizerForConditionalGeneration)(ids(2, 5)),
            "an encoder-decoder needs decoder_input_ids, or labels to make them of",
        ),
        (
            lambda: build(SynthesizerForConditionalGeneration)(
                ids(2, 5), decoder_input_ids=ids(2, 4), decoder_inputs_embeds=torch.ones(2, 4, 12)
            ),
            "give decoder_input_ids or decoder_inputs_embeds, and not both",
        ),
        (
            lambda: SynthesizerForCausalLM(config(kind="encoder")),
            "this config has kind='encoder' and the model class needs 'decoder'; load it with "
            "AutoModelForSequenceClassification.from_pretrained(...), or make a SynthesizerConfig("
            "kind='decoder', ...)",
        ),
    ],
)
def test_bad_input_says_what_was_found_and_expected(call, text):
    with pytest.raises(UserError) as error:
        call()
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_a_foreign_cache_is_refused():
    from transformers import DynamicCache

    with pytest.raises(UserError, match="past_key_values is a DynamicCache"):
        build(SynthesizerForCausalLM)(ids(1, 3), past_key_values=DynamicCache())


def test_the_bare_model_is_any_of_the_three():
    assert SynthesizerModel(config()).config.kind == "decoder"
    encoder = SynthesizerModel(config(kind="encoder"))
    assert encoder(ids(2, 4)).last_hidden_state.shape == (2, 4, 12)
    both = SynthesizerModel(config(kind="encoder_decoder"))
    assert both(ids(2, 4), decoder_input_ids=ids(2, 3)).last_hidden_state.shape == (2, 3, 12)


def test_the_cache_of_a_convolution_does_not_grow():
    model = build(SynthesizerForCausalLM, synthesis="lightconv:kernel=4", max_len=14)
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
    model, tokens = build(SynthesizerForConditionalGeneration, **LINFORMER), ids(2, 7)
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
            "linformer cannot be causal: its outputs read later tokens; use it in an encoder",
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
    relative = build(SynthesizerForCausalLM, spec, positions="relative")
    plain = build(SynthesizerForCausalLM, spec, positions="none")
    biases = [name for name, _ in relative.named_parameters() if "relative" in name]
    assert len(biases) == ("dot" in spec)
    plain.load_state_dict({k: v for k, v in relative.state_dict().items() if k not in biases})
    same = torch.equal(relative(ids(2, 5)).logits, plain(ids(2, 5)).logits)
    assert same == ("dot" not in spec)  # dot alone feels the bias
    assert relative.config.layers_without_bias == {"decoder": 1 if "dot" in spec else 2}
    assert plain.config.layers_without_bias == {}
