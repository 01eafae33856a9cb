"""replace_attention in Hugging Face models: before and after, trained, saved and decoded."""

import pytest
import torch
from transformers import AutoModel, MPNetConfig, MPNetModel

from pretrained import (
    ENCODER_DECODERS,
    MODELS,
    TRANSLATORS,
    build,
    crossed,
    found_layers,
    inputs,
    real_logits,
)
from synthesizer_attention import replace_attention
from synthesizer_attention.audit.converted import build_converted
from synthesizer_attention.audit.tables import HeadTables
from synthesizer_attention.errors import UserError


@pytest.mark.parametrize(
    ("name", "spec"), crossed(MODELS, ("dot", "random+dot", "relative+dense+dot"))
)
def test_a_mixture_with_dot_starts_exactly_at_the_old_function(name, spec):
    model, batch = build(name), inputs(name)
    with torch.no_grad():
        before = real_logits(model, batch)
        names = replace_attention(model, spec, max_len=16)
        after = real_logits(model, batch)
    assert len(names) == (4 if name in ENCODER_DECODERS else 2)
    assert not any("EncDec" in found for found in names)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "spec"), crossed(MODELS, ("random", "relative+dot", "dense")))
def test_it_trains_saves_and_loads(name, spec, tmp_path):
    model, batch = build(name), inputs(name)
    with torch.no_grad():
        before = real_logits(model, batch)
    replace_attention(model, spec, max_len=16, layers=[1])
    after = real_logits(model, batch)
    assert torch.allclose(after, before, atol=1e-4) == ("dot" in spec)
    after.square().sum().backward()
    new = {n: p for n, p in model.named_parameters() if ".synthesized." in n}
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in new.values())
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(loaded(**batch).logits, model(**batch).logits)
    assert any(".synthesized." in key for key in AutoModel.from_pretrained(tmp_path).state_dict())
    (facts,) = model.config.replaced.values()
    assert facts["spec"] == spec


@pytest.mark.parametrize(
    ("name", "spec"),
    crossed(("gpt2", "llama", "gemma", *TRANSLATORS), ("random", "relative+dot", "dense+dot")),
)
def test_cached_decoding_equals_uncached(name, spec):
    model, batch = build(name), inputs(name)
    replace_attention(model, spec, max_len=16)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if ".synthesized." in key:
                parameter.normal_()
    left = (
        torch.tensor([[0] * 2 + [1] * 5, [1] * 7])
        if name not in TRANSLATORS
        else batch["attention_mask"]
    )
    options = {"attention_mask": left, "max_new_tokens": 6, "do_sample": False, "num_beams": 1}
    options["eos_token_id"] = None
    cached = model.generate(batch["input_ids"], use_cache=True, **options)
    assert torch.equal(cached, model.generate(batch["input_ids"], use_cache=False, **options))
    alone = model.generate(
        batch["input_ids"][:1, 2:] if name not in TRANSLATORS else batch["input_ids"][:1, :5],
        max_new_tokens=6, do_sample=False, eos_token_id=None,
    )  # fmt: skip
    assert torch.equal(alone[0, -6:], cached[0, -6:])


def test_pure_tables_have_no_queries_and_keys():
    model = build("llama")
    replace_attention(model, "random", max_len=16)
    attention = model.model.layers[0].self_attn
    assert not list(attention.q_proj.parameters()) + list(attention.k_proj.parameters())
    out = model.generate(
        torch.ones(1, 3, dtype=torch.long), max_new_tokens=3, return_dict_in_generate=True
    )
    assert all(layer.keys is None for layer in out.past_key_values.layers)


def test_fresh_weights_are_drawn_anew():
    model, batch = build("bert"), inputs("bert")
    with torch.no_grad():
        before = model(**batch).logits
        replace_attention(model, "random+dot", max_len=16, fresh=True)
        assert not torch.allclose(model(**batch).logits, before)
    assert model.bert.encoder.layer[0].attention.self.query.weight.std() < 0.1


def test_what_cannot_be_replaced_is_refused():
    config = MPNetConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    for model, options, text in (
        (MPNetModel(config), {}, "MPNetModel computes attention in its own code"),
        (build("bert"), {"layers": [5]}, "layers names 5; the model has 2: give 0 to 1"),
        (build("bert"), {"spec": "random@1|dot@2"}, "synthesis 'random@1|dot@2': a Hugging Face"),
        (build("bert"), {"spec": "fixed_random+dot"}, "FixedRandom in synthesis"),
    ):
        with pytest.raises(UserError) as error:
            replace_attention(model, **{"spec": "random+dot", "max_len": 4, **options})
        assert str(error.value).startswith(text)
    model = build("bert")
    replace_attention(model, "random", max_len=4)
    with pytest.raises(UserError, match="a sequence of 7 tokens met a model built for max_len=4"):
        model(**inputs("bert"))


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_a_converted_layer_is_refused_and_the_others_are_replaced(name, tmp_path):
    """Heads that are tables have no queries, so that no mixture with dot could start at them."""
    original = build(name)
    layers = found_layers(original, inputs(name))
    for count in (1, layers[0].num_heads):
        tables = HeadTables(range(count), 12)
        model = build_converted(original, layers, {0: tables}).eval()
        for chosen in ([0], None):
            with pytest.raises(UserError, match=f"layer 0 .* before \\(tables in {count} heads\\)"):
                replace_attention(model, "random+dot", max_len=16, layers=chosen)
        with torch.no_grad():
            before = real_logits(model, inputs(name))
            replace_attention(model, "random+dot", max_len=16, layers=[1])
            after = real_logits(model, inputs(name))
            torch.testing.assert_close(after, before, atol=2e-5, rtol=2e-5)
            model.save_pretrained(tmp_path)
            loaded = type(model).from_pretrained(tmp_path).eval()
            torch.testing.assert_close(real_logits(loaded, inputs(name)), after)
        with pytest.raises(UserError, match=r"layer 1 of this model was replaced before \(random"):
            replace_attention(model, "random+dot", max_len=16, layers=[1])
