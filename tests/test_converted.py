"""Attention hooked, replaced, converted, converted again and loaded computes one thing."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel, MPNetConfig, MPNetModel

from pretrained import (
    ENCODER_DECODERS,
    MODELS,
    OWN,
    SUBJECTS,
    TRANSLATORS,
    build,
    crossed,
    drawn,
    found_layers,
    inputs,
    real_logits,
)
from synthesizer_attention import replace_attention
from synthesizer_attention.audit.averages import measure_averages
from synthesizer_attention.audit.converted import build_converted
from synthesizer_attention.audit.cost import size_with
from synthesizer_attention.audit.hook import Hook
from synthesizer_attention.audit.load import num_positions
from synthesizer_attention.audit.tables import HeadTables
from synthesizer_attention.errors import UserError

NEAR = {"rtol": 1e-4, "atol": 1e-5}
some = {
    "one": lambda layers: [(1,), *[()] * (len(layers) - 1)],
    "most": lambda layers: [tuple(range(layer.num_heads - 1)) for layer in layers],
    "a whole layer": lambda layers: [(), *[tuple(range(la.num_heads)) for la in layers[1:]]],
    "all": lambda layers: [tuple(range(layer.num_heads)) for layer in layers],
}


def pair(name, heads):
    """A model, its logits with heads replaced in its hook, and its conversion."""
    model, batch = build(name), inputs(name)
    with torch.no_grad(), Hook(model) as hook:
        chosen = enumerate(some[heads](hook.discover(batch)))
        hook.tables = {place: drawn(inside) for place, inside in chosen if inside}
        hooked = real_logits(model, batch)
        layers, tables = hook.layers, hook.tables
    return model, hooked, build_converted(model, layers, tables), batch


# the hook


@pytest.mark.parametrize(("name", "padded"), crossed(SUBJECTS, (True, False)))
def test_hooked_with_nothing_replaced_is_the_model(name, padded):
    model, batch = build(name), inputs(name, padded=padded)
    if name in MODELS:
        model.set_attn_implementation("eager")
    with torch.no_grad():
        before = model(**batch).logits
        with Hook(model) as hook:
            layers = hook.discover(batch)
            hooked = model(**batch).logits
            hook.observe = lambda *_: None
            observed = model(**batch).logits
            with pytest.raises(UserError, match="being audited already"), Hook(model):
                pass
        after = model(**batch).logits
    assert torch.equal(hooked, before)
    assert torch.equal(after, before)
    torch.testing.assert_close(observed, before)
    assert name in OWN or model.config._attn_implementation == "eager"
    causal = [0, 0, 1, 1] if name in (*ENCODER_DECODERS, "translator") else [1, 1]
    causal = [0, 0] if name in ("bert", "vit", "modernbert", "classifier", "mixed") else causal
    assert [layer.causal for layer in layers] == [bool(c) for c in causal]
    heads = dict.fromkeys(("llama", "phi3", "gpt-oss", "olmo2"), (4, 2))
    heads |= dict.fromkeys(("gemma", "bigcode"), (3, 1))
    heads = heads.get(name, (4, 4) if name in OWN else (3, 3))
    assert {(layer.num_heads, layer.num_key_heads) for layer in layers} == {heads}
    assert not any("EncDec" in layer.name or "encoder_attn" in layer.name for layer in layers)


def naive_output(tables, values, visible, causal):
    """The replaced heads of one layer, one query at a time, in float64."""
    batch, _, num_keys, _ = values.shape
    out = torch.zeros(batch, len(tables.heads), visible.shape[2], values.shape[3])
    for b in range(batch):
        seen = visible[min(b, visible.shape[0] - 1), 0]
        real = [j for j in range(num_keys) if seen[:, j].any()]
        for r in range(len(tables.heads)):
            for i in range(seen.shape[0]):
                logits = {}
                for j in real:
                    if not seen[i, j]:
                        continue
                    if tables.kind == "random":
                        logits[j] = float(tables.table[r, i, j])
                    elif j == real[-1] and not causal:
                        logits[j] = float(tables.sinks[r, 1])
                    elif j == real[0]:
                        logits[j] = float(tables.sinks[r, 0])
                    else:
                        place = min(max(j - i, 1 - tables.max_len), tables.max_len - 1)
                        logits[j] = float(tables.offsets[r, place + tables.max_len - 1])
                if logits:
                    shares = torch.tensor(list(logits.values()), dtype=torch.float64).softmax(0)
                    for share, j in zip(shares, logits, strict=True):
                        out[b, r, i] += float(share) * values[b, r, j]
    return out


@pytest.mark.parametrize(("name", "kind"), crossed(SUBJECTS, ("relative", "random")))
def test_replaced_heads_equal_a_naive_loop(name, kind, monkeypatch):
    model, batch, seen, plain = build(name), inputs(name), [], HeadTables.forward

    def record(self, values, visible, *, num_queries, causal):
        output = plain(self, values, visible, num_queries=num_queries, causal=causal)
        seen.append((self, values, visible, causal, output))
        return output

    monkeypatch.setattr(HeadTables, "forward", record)
    with torch.no_grad(), Hook(model) as hook:
        layers = hook.discover(batch)
        before = real_logits(model, batch)
        hook.tables = {place: drawn((0, 2), kind) for place in range(len(layers))}
        after = real_logits(model, batch)
    assert not torch.allclose(before, after)
    assert len(seen) == len(layers)
    for tables, values, visible, causal, output in seen:
        torch.testing.assert_close(output, naive_output(tables, values, visible, causal))


@pytest.mark.parametrize("name", ["gpt2", *OWN])
def test_a_head_replaced_by_its_own_attention_changes_nothing(name):
    """Logits that are the log of one example's weights give these weights back."""
    model, kept = build(name), {}
    batch = {key: value[:1] for key, value in inputs(name, padded=False).items()}
    with torch.no_grad(), Hook(model) as hook:
        hook.discover(batch)
        before = model(**batch).logits
        hook.read([batch], lambda layer, weights, _: kept.update({layer: weights}))
        for layer, weights in kept.items():
            tables = HeadTables((0, 2), weights.shape[-1], "random")
            tables.table.data = weights[0, [0, 2]].log().clamp(min=-80)
            hook.tables = {layer: tables}
            torch.testing.assert_close(model(**batch).logits, before)


# converted


@pytest.mark.parametrize(("name", "heads"), crossed(SUBJECTS, tuple(some)))
def test_converted_equals_hooked_and_loads_as_it_was_saved(name, heads, tmp_path):
    model, hooked, converted, batch = pair(name, heads)
    tables = sum(p.numel() for n, p in converted.named_parameters() if ".tables." in n)
    converted.save_pretrained(tmp_path)
    loaded = type(converted).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(real_logits(converted, batch), hooked, **NEAR)
        assert torch.equal(loaded(**batch).logits, converted(**batch).logits)
    if name in MODELS:
        before = sum(p.numel() for p in model.parameters())
        after = sum(p.numel() for p in converted.parameters()) - tables
        whole = name == "olmo2" and heads in ("one", "most")  # what normalizes all heads needs them
        assert after == before if whole else after < before
        layers = found_layers(model, batch)
        gone = [(n, head) for n, inside in enumerate(some[heads](layers)) for head in inside]
        said = [size_with(layers, 24, 16, each)["parameters"] for each in ([], gone)]
        matrices = [
            sum(p.numel() for p in m.parameters() if p.dim() > 1) for m in (model, converted)
        ]
        assert matrices[0] - matrices[1] == said[0] - said[1]
        assert AutoConfig.from_pretrained(tmp_path).model_type == "synthesizer-converted"
        assert any(".tables." in key for key in AutoModel.from_pretrained(tmp_path).state_dict())


def test_a_replaced_head_has_no_query_no_key_and_no_cached_key(tmp_path):
    _, _, converted, batch = pair("llama", "most")
    attention = converted.model.layers[0].self_attn
    assert attention.q_proj.weight.shape == (6, 24)  # one head of four, six wide
    assert attention.k_proj.weight.shape == (6, 24)  # one of two: two heads shared the other
    assert attention.v_proj.weight.shape == (12, 24)
    _, _, converted, batch = pair("llama", "all")
    assert not list(converted.model.layers[0].self_attn.q_proj.parameters())
    options = {"max_new_tokens": 3, "return_dict_in_generate": True, "eos_token_id": None}
    for layer in converted.generate(batch["input_ids"], **options).past_key_values.layers:
        assert layer.keys is None
        assert layer.values.shape[1] == 2
    for name in ("whisper", "opt"):  # whose code splits by a count: it is given zeros for others
        _, _, converted, batch = pair(name, "most")
        out = converted.generate(batch[converted.main_input_name], **options)
        kept = getattr(out.past_key_values, "self_attention_cache", out.past_key_values)
        dots = [m.dot_heads for m in converted.modules() if hasattr(m, "dot_heads")]
        for layer, heads in zip(kept.layers, dots[-2:], strict=True):
            assert layer.keys.shape[1] == len(heads) == 1
            assert layer.values.shape[1] == 3
    converted.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="attn_implementation='eager' would need the queries and"):
        AutoModel.from_pretrained(tmp_path, attn_implementation="eager")


def decoded_both_ways(model, name, batch, count):
    """What greedy decoding gives with a cache; without it must be the same."""
    left = torch.tensor([[0] * 2 + [1] * 5, [1] * 7])
    left = batch.get("attention_mask") if name in ENCODER_DECODERS else left
    options = {"attention_mask": left, "max_new_tokens": count, "do_sample": False, "num_beams": 1}
    options["eos_token_id"] = None
    ids = batch[model.main_input_name]
    with torch.no_grad():
        cached = model.generate(ids, use_cache=True, **options)
        assert torch.equal(cached, model.generate(ids, use_cache=False, **options))
    return cached


FUSED = ("phi3", "neox", "bigcode", "bigcode by head", "gpt-oss", "olmo2")
DECODERS = ("gpt2", "llama", "gemma", *FUSED, *ENCODER_DECODERS, "decoder", "window")


@pytest.mark.parametrize(("name", "heads"), crossed(DECODERS, ("most", "a whole layer")))
def test_cached_decoding_equals_uncached(name, heads):
    _, _, converted, batch = pair(name, heads)
    decoded_both_ways(converted, name, batch, 4)


HIDDEN = (-100.0, -1e4, -1e9, torch.finfo(torch.float32).min, -torch.inf)  # as users write it


@pytest.mark.parametrize(
    ("name", "heads"), crossed(("bert", "gpt2", "llama", "gemma", "t5", "bart"), ("most", "all"))
)
def test_a_mask_that_is_added_hides_from_tables_what_it_hides_from_dot_products(name, heads):
    _, _, converted, batch = pair(name, heads)
    sees = batch.pop("attention_mask").bool()[:, None, None]
    if name in ("gpt2", "llama", "gemma"):
        sees = sees.expand(-1, 1, 7, -1).tril()
    with torch.no_grad():
        expected = converted(**batch, attention_mask=sees).logits
        for number in HIDDEN:
            added = torch.where(sees, 0.0, number)
            torch.testing.assert_close(converted(**batch, attention_mask=added).logits, expected)
        if (name, heads) == ("bert", "all"):  # a small bias hides nothing
            everywhere = torch.ones(2, 1, 7, 7, dtype=torch.bool)
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
    leaves, weight = [values, tables.offsets, tables.sinks], torch.randn_like(fast)
    ours, theirs = (torch.autograd.grad((y * weight).sum(), leaves) for y in (fast, plain))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


# converted again


STEPS = {  # (layer, heads) of the first conversion, then of the second
    "one by one": ({0: (1,)}, {0: (0,), 1: (2,)}),
    "to a whole layer": ({0: (0, 2), 1: (1,)}, {0: (1,), 1: (0,)}),
    "beside a whole layer": ({0: (0, 1, 2, 3)}, {1: (0, 1, 2)}),
}


def chosen(heads, layers, lengths=(16, 16)):
    """Tables of these heads, as far as the layers have them."""
    return {
        place: drawn([head for head in wanted if head < layers[place].num_heads], max_len=length)
        for (place, wanted), length in zip(heads.items(), lengths, strict=False)
    }


CASES = [(steps, lengths) for steps in STEPS for lengths in ((16, 16), (3, 16))]


@pytest.mark.parametrize(("name", "case"), crossed(SUBJECTS, CASES))
def test_converted_twice_equals_converted_at_once(name, case):
    """And equals what the hook of the second audit showed."""
    model, batch, (steps, lengths) = build(name), inputs(name), case
    lengths = (11, 11) if name in OWN else lengths
    layers = found_layers(model, batch)
    first, second = (chosen(each, layers, lengths) for each in STEPS[steps])
    joined = second | {n: t.joined(second[n]) if n in second else t for n, t in first.items()}
    at_once = build_converted(model, layers, joined)
    half = build_converted(model, layers, first)
    again = found_layers(half, batch)
    places = {layer.name: place for place, layer in enumerate(again)}
    moved = {places[layers[place].name]: table for place, table in second.items()}
    with torch.no_grad(), Hook(half) as hook:
        hook.discover(batch)
        plain = real_logits(half, batch)
        if name != "gpt-oss":  # whose sinks take a share
            hook.observe = lambda layer, weights, visible: torch.testing.assert_close(
                weights.sum(-1)[visible.any(-1).expand_as(weights[..., 0])],
                torch.ones(int(visible.any(-1).expand_as(weights[..., 0]).sum())),
            )
        torch.testing.assert_close(real_logits(half, batch), plain, **NEAR)
        hook.observe, hook.tables = None, moved
        hooked = real_logits(half, batch)
    for layer in again:
        place = next(place for place, other in enumerate(layers) if other.name == layer.name)
        assert layer.tables == list(first[place].heads if place in first else ())
        same = ("num_heads", "num_key_heads", "d_head", "causal")
        assert all(getattr(layer, key) == getattr(layers[place], key) for key in same)
    twice = build_converted(half, again, moved)
    assert type(twice) is type(at_once)
    assert twice.config.to_dict() == at_once.config.to_dict()
    state, other = twice.state_dict(), at_once.state_dict()
    assert state.keys() == other.keys()
    assert all(torch.equal(state[key], other[key]) for key in state)
    with torch.no_grad():
        torch.testing.assert_close(real_logits(half, batch), plain, **NEAR)
        torch.testing.assert_close(real_logits(twice, batch), hooked, **NEAR)


@pytest.mark.parametrize("name", MODELS)
def test_the_weights_that_are_averaged_are_those_of_the_layer(name):
    """Of dot heads and of tables."""
    model, batch = build(name), inputs(name)
    layers = found_layers(model, batch)
    half, kept = build_converted(model, layers, chosen({0: (1,), 1: (0, 2)}, layers)), []
    for each in (model, half):
        with torch.no_grad(), Hook(each) as hook:
            again = hook.discover(batch)
            seen = {}
            hook.read([batch], lambda layer, weights, _, seen=seen: seen.setdefault(layer, weights))
            kept.append(seen[0])
            first, *_ = measure_averages(hook, [batch], 8)
    before, after = kept
    real = batch.get("attention_mask", torch.ones(2, before.shape[-2])).bool()
    for head in (head for head in range(layers[0].num_heads) if head != 1):
        torch.testing.assert_close(after[:, head][real], before[:, head][real])
    assert not torch.allclose(after[:, 1], before[:, 1])
    assert len(first.tables("relative").offsets) == layers[0].num_heads  # of tables, too
    for more in ([], [(1, 1)]):
        gone = [(0, 1), (1, 0), (1, 2), *more]
        assert size_with(again, 24, 8, more) == size_with(layers, 24, 8, gone)


def test_layers_without_dot_products_are_left_or_refused():
    model, batch = build("bert"), inputs("bert")
    layers = found_layers(model, batch)
    whole = build_converted(model, layers, {n: drawn((0, 1, 2)) for n in range(2)})
    with Hook(whole) as hook, pytest.raises(UserError, match="all 6 heads of the model are tables"):
        hook.discover(batch)
    replace_attention(model, "random+dot", max_len=16, layers=[0])
    with torch.no_grad():
        before = real_logits(model, batch)
        with Hook(model) as hook:
            (layer,) = hook.discover(batch)
            torch.testing.assert_close(real_logits(model, batch), before)
        converted = build_converted(model, [layer], {0: drawn((1,))})
        real_logits(converted, batch)
    assert layer.name == "bert.encoder.layer.1.attention.self"
    assert len(converted.config.replaced) == 2


def test_joined_tables_read_what_each_read_alone():
    torch.manual_seed(0)
    short, long = drawn((2,), max_len=3), drawn((0, 3), max_len=6)
    joined = short.joined(long)
    assert (joined.heads, joined.max_len) == ((0, 2, 3), 6)
    both = [each.logits(9, 9, None, None, has_last=True) for each in (long, short)]
    logits = joined.logits(9, 9, None, None, has_last=True)
    assert torch.equal(logits[:, [0, 2]], both[0])
    assert torch.equal(logits[:, [1]], both[1])
    assert all(parameter.requires_grad for parameter in joined.parameters())
    model = build("bert")  # tables by position end where they were measured
    layers = found_layers(model, inputs("bert"))
    half = build_converted(model, layers, {0: drawn((1,), "random", 9)})
    assert num_positions(half) == 9
    whole = half.base_model.encoder.layer[0].attention.self.tables.joined(drawn((2,), "random", 8))
    assert (whole.heads, whole.table.shape) == ((1, 2), (2, 8, 8))


# replace_attention


SPECS = ("dot", "random", "random+dot", "dense", "relative+dense+dot")


@pytest.mark.parametrize(("name", "spec"), crossed([m for m in MODELS if m != "gpt-oss"], SPECS))
def test_a_replaced_model_starts_at_the_old_function_trains_saves_and_loads(name, spec, tmp_path):
    """At the old function: where the spec holds dot."""
    model, batch = build(name), inputs(name)
    with torch.no_grad():
        before = real_logits(model, batch)
    names = replace_attention(model, spec, max_len=16)
    after = real_logits(model, batch)
    assert len(names) == len(model.config.replaced) == (4 if name in ENCODER_DECODERS else 2)
    assert not any("EncDec" in found for found in names)
    assert {facts["spec"] for facts in model.config.replaced.values()} == {spec}
    assert torch.allclose(after, before, **NEAR) == ("dot" in spec)
    after.square().sum().backward()
    new = {n: p for n, p in model.named_parameters() if ".synthesized." in n}
    learns = any(p.grad is not None and p.grad.abs().sum() > 0 for p in new.values())
    assert learns == (spec != "dot")  # one part has no mixture to learn
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(loaded(**batch).logits, model(**batch).logits)
    assert any(".synthesized." in key for key in AutoModel.from_pretrained(tmp_path).state_dict())


@pytest.mark.parametrize(
    ("name", "spec"),
    crossed(("gpt2", "llama", "gemma", *TRANSLATORS), ("random", "relative+dot", "dense+dot")),
)
def test_synthesized_logits_decode_alike_with_a_cache_padded_and_alone(name, spec):
    model, batch = build(name), inputs(name)
    replace_attention(model, spec, max_len=16)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if ".synthesized." in key:
                parameter.normal_()
    cached = decoded_both_ways(model, name, batch, 6)
    ids = batch["input_ids"][:1, :5] if name in TRANSLATORS else batch["input_ids"][:1, 2:]
    alone = model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=None)
    assert torch.equal(alone[0, -6:], cached[0, -6:])
    if (name, spec) == ("gpt2", "random"):
        out = model.generate(ids, max_new_tokens=3, return_dict_in_generate=True)
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
        (build("gpt-oss"), {}, "GptOssAttention has a sink beside its keys"),
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
    original, batch = build(name), inputs(name)
    layers = found_layers(original, batch)
    for count in (1, layers[0].num_heads):
        model = build_converted(original, layers, {0: HeadTables(range(count), 12)}).eval()
        for which in ([0], None):
            with pytest.raises(UserError, match=f"layer 0 .* before \\(tables in {count} heads\\)"):
                replace_attention(model, "random+dot", max_len=16, layers=which)
        with torch.no_grad():
            before = real_logits(model, batch)
            replace_attention(model, "random+dot", max_len=16, layers=[1])
            after = real_logits(model, batch)
            torch.testing.assert_close(after, before, atol=2e-5, rtol=2e-5)
            model.save_pretrained(tmp_path)
            loaded = type(model).from_pretrained(tmp_path).eval()
            torch.testing.assert_close(real_logits(loaded, batch), after)
        with pytest.raises(UserError, match=r"layer 1 of this model was replaced before \(random"):
            replace_attention(model, "random+dot", max_len=16, layers=[1])


# the sweep over architectures


SWEPT = {
    "persimmon": "audited, converted, cached generation equals uncached",  # by head, normed by head
    "llama4_text": "audited, converted, cached generation equals uncached",  # complex rotary
    "afmoe": "audited, converted, cached generation equals uncached",  # views what attention gives
    "pegasus_x": "audited, converted, cached generation equals uncached",  # layers that say no word
    "deit": "audited, converted",
    "moshi": "audited, not converted: no projections of queries and keys that heads are known",
    "mpnet": "refused: computes attention in its own code",
    "rwkv": "refused: computes attention in its own code",
    "resnet": "refused: did no self-attention through",
}


@pytest.mark.slow
def test_the_sweep_says_what_each_architecture_can_do(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "tools")
    import architectures

    found = dict(architectures.sweep(list(SWEPT)))
    assert found.keys() == SWEPT.keys()
    for name, result in found.items():
        assert architectures.short(result).startswith(SWEPT[name]), result
    page = architectures.PAGE.read_text()
    for row in architectures.table([*found.items()]).splitlines()[2:]:
        what, _, names = row.strip("| ").split(" | ")
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {what} |")]
        assert all(name in line for name in names.split(", "))
