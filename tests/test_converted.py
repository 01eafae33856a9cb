"""A converted model computes what the audited one did, without the projections that it left out."""

import pytest
import torch
from transformers import AutoConfig, AutoModel

from pretrained import (
    ENCODER_DECODERS,
    MODELS,
    OWN,
    build,
    crossed,
    drawn,
    inputs,
    real_logits,
)
from synthesizer_attention.audit.converted import build_converted
from synthesizer_attention.audit.hook import Hook
from synthesizer_attention.audit.tables import HeadTables
from synthesizer_attention.errors import UserError

SUBJECTS = (*MODELS, *OWN)


def pair(name, heads):
    """A model with heads replaced in its hook, and its conversion."""
    model, batch = build(name), inputs(name)
    with torch.no_grad(), Hook(model) as hook:
        hook.discover(batch)
        hook.tables = {
            place: drawn(chosen) for place, chosen in enumerate(heads(hook.layers)) if chosen
        }
        hooked = real_logits(model, batch)
        layers, tables = hook.layers, hook.tables
    return model, hooked, build_converted(model, layers, tables), batch


some = {
    "one": lambda layers: [(1,), *[()] * (len(layers) - 1)],
    "most": lambda layers: [tuple(range(layer.num_heads - 1)) for layer in layers],
    "a whole layer": lambda layers: [(), *[tuple(range(la.num_heads)) for la in layers[1:]]],
    "all": lambda layers: [tuple(range(layer.num_heads)) for layer in layers],
}


@pytest.mark.parametrize(("name", "heads"), crossed(MODELS, tuple(some)))
def test_converted_equals_hooked(name, heads):
    model, hooked, converted, batch = pair(name, some[heads])
    with torch.no_grad():
        torch.testing.assert_close(real_logits(converted, batch), hooked, rtol=1e-4, atol=1e-5)
    before = sum(p.numel() for p in model.parameters())
    tables = sum(p.numel() for n, p in converted.named_parameters() if ".tables." in n)
    assert sum(p.numel() for p in converted.parameters()) - tables < before


def test_a_replaced_head_has_no_query_and_no_key():
    _, _, converted, _ = pair("llama", some["most"])
    attention = converted.model.layers[0].self_attn
    assert attention.q_proj.weight.shape == (6, 24)  # one head of four, six wide
    assert attention.k_proj.weight.shape == (6, 24)  # one of two: two heads shared the other
    assert attention.v_proj.weight.shape == (12, 24)
    _, _, converted, _ = pair("llama", some["all"])
    assert not list(converted.model.layers[0].self_attn.q_proj.parameters())


@pytest.mark.parametrize("name", SUBJECTS)
def test_saved_equals_loaded(name, tmp_path):
    _, _, converted, batch = pair(name, some["most"])
    converted.save_pretrained(tmp_path)
    loaded = type(converted).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(loaded(**batch).logits, converted(**batch).logits)
    if name in MODELS:
        assert AutoConfig.from_pretrained(tmp_path).model_type == "synthesizer-converted"
        assert any(".tables." in key for key in AutoModel.from_pretrained(tmp_path).state_dict())


DECODERS = ("gpt2", "llama", "gemma", *ENCODER_DECODERS, "decoder", "window")


@pytest.mark.parametrize(("name", "heads"), crossed(DECODERS, ("most", "a whole layer")))
def test_cached_decoding_equals_uncached(name, heads):
    _, _, converted, batch = pair(name, some[heads])
    ids = batch[converted.main_input_name]
    left = torch.tensor([[0] * 2 + [1] * 5, [1] * 7])
    left = batch.get("attention_mask") if name in ENCODER_DECODERS else left
    options = {"attention_mask": left, "max_new_tokens": 4, "do_sample": False, "num_beams": 1}
    options["eos_token_id"] = None
    with torch.no_grad():
        cached = converted.generate(ids, use_cache=True, **options)
        plain = converted.generate(ids, use_cache=False, **options)
    assert torch.equal(cached, plain)


def test_a_layer_of_tables_caches_values_alone():
    _, _, converted, batch = pair("llama", some["all"])
    out = converted.generate(
        batch["input_ids"], max_new_tokens=3, return_dict_in_generate=True, eos_token_id=None
    )
    for layer in out.past_key_values.layers:
        assert layer.keys is None
        assert layer.values.shape[1] == 2


@pytest.mark.parametrize("name", ["whisper", "opt"])
def test_code_that_splits_by_a_count_caches_the_keys_of_dot_heads_alone(name):
    """It is given zeros for the others; a layer in which all are replaced has no keys."""
    _, _, converted, batch = pair(name, some["most"])
    options = {"max_new_tokens": 3, "return_dict_in_generate": True, "eos_token_id": None}
    out = converted.generate(batch[converted.main_input_name], **options)
    kept = getattr(out.past_key_values, "self_attention_cache", out.past_key_values)
    dots = [m.dot_heads for m in converted.modules() if hasattr(m, "dot_heads")]
    for layer, heads in zip(kept.layers, dots[-2:], strict=True):
        assert layer.keys.shape[1] == len(heads) == 1
        assert layer.values.shape[1] == 3


def test_another_attention_is_refused(tmp_path):
    _, _, converted, _ = pair("bert", some["one"])
    converted.save_pretrained(tmp_path)
    with pytest.raises(UserError) as error:
        AutoModel.from_pretrained(tmp_path, attn_implementation="eager")
    assert str(error.value) == (
        "attn_implementation='eager' would need the queries and keys that were left out of a "
        "converted model; leave it out, too"
    )


HIDDEN = (-100.0, -1e4, -1e9, torch.finfo(torch.float32).min, -torch.inf)  # as users write it


@pytest.mark.parametrize(
    ("name", "heads"), crossed(("bert", "gpt2", "llama", "gemma", "t5", "bart"), ("most", "all"))
)
def test_a_mask_that_is_added_hides_from_tables_what_it_hides_from_dot_products(name, heads):
    _, _, converted, batch = pair(name, some[heads])
    real = batch.pop("attention_mask").bool()
    sees = real[:, None, None]
    if name in ("gpt2", "llama", "gemma"):
        sees = sees.expand(-1, 1, 7, -1).tril()
    with torch.no_grad():
        expected = converted(**batch, attention_mask=sees).logits
        for number in HIDDEN:
            added = torch.where(sees, 0.0, number)
            torch.testing.assert_close(converted(**batch, attention_mask=added).logits, expected)


def test_a_small_bias_in_a_mask_hides_nothing_from_tables():
    _, _, converted, batch = pair("bert", some["all"])
    everywhere = torch.ones(2, 1, 7, 7, dtype=torch.bool)
    with torch.no_grad():
        expected = converted(batch["input_ids"], everywhere).logits
        for number in (-1.0, -20.0, 5.0):
            added = torch.where(everywhere.tril(), 0.0, number)
            torch.testing.assert_close(converted(batch["input_ids"], added).logits, expected)


@pytest.mark.parametrize("mask", ["none", "padding", "causal"])
@pytest.mark.parametrize("max_len", [5, 16])
def test_the_shared_matrix_gives_what_each_example_alone_would(mask, max_len):
    """Values and gradients of the fast way, in float64; texts of one token and of all."""
    torch.manual_seed(0)
    tables = HeadTables((0, 2, 3), max_len).double()
    for parameter in tables.parameters():
        parameter.data.normal_()
    values = torch.randn(4, 3, 7, 2, dtype=torch.float64, requires_grad=True)
    visible = None
    if mask == "padding":
        lengths = torch.tensor([7, 1, 4, 6])
        visible = (torch.arange(7) < lengths[:, None])[:, None, None].expand(4, 1, 7, 7)
    options = {"num_queries": 7, "causal": mask == "causal"}
    assert tables._is_shared(visible, 7, 7)
    fast = tables(values, visible, **options)
    everywhere = torch.ones(1, 1, 7, 7, dtype=torch.bool)
    given = visible.contiguous() if mask == "padding" else everywhere
    plain = tables(values, given.tril() if mask == "causal" else given.contiguous(), **options)
    torch.testing.assert_close(fast, plain)
    leaves = [values, tables.offsets, tables.sinks]
    weight = torch.randn_like(fast)
    for ours, theirs in zip(
        torch.autograd.grad((fast * weight).sum(), leaves),
        torch.autograd.grad((plain * weight).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
