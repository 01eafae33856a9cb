"""A hooked model is the model; a replaced head is the head that a loop computes."""

import pytest
import torch
from transformers import MPNetConfig, MPNetModel

from pretrained import (
    ENCODER_DECODERS,
    MODELS,
    OWN,
    build,
    crossed,
    drawn,
    found_layers,
    inputs,
    real_logits,
)
from synthesizer_attention.audit.hook import Hook
from synthesizer_attention.audit.tables import HeadTables
from synthesizer_attention.errors import UserError

SUBJECTS = (*MODELS, *OWN)


@pytest.mark.parametrize(("name", "padded"), crossed(SUBJECTS, (True, False)))
def test_hooked_with_nothing_replaced_equals_the_original(name, padded):
    model, batch = build(name), inputs(name, padded=padded)
    if name in MODELS:
        model.set_attn_implementation("eager")
    with torch.no_grad():
        before = model(**batch).logits
        with Hook(model) as hook:
            hook.discover(batch)
            hooked = model(**batch).logits
            hook.observe = lambda *_: None
            observed = model(**batch).logits
        after = model(**batch).logits
    assert torch.equal(hooked, before)
    assert torch.equal(after, before)
    torch.testing.assert_close(observed, before)
    assert name in OWN or model.config._attn_implementation == "eager"


@pytest.mark.parametrize("name", SUBJECTS)
def test_only_self_attention_is_found(name):
    layers = found_layers(build(name), inputs(name))
    causal = [0, 0, 1, 1] if name in (*ENCODER_DECODERS, "translator") else [1, 1]
    causal = [0, 0] if name in ("bert", "vit", "classifier", "mixed") else causal
    assert [layer.causal for layer in layers] == [bool(c) for c in causal]
    heads = {"llama": (4, 2), "gemma": (3, 1)}.get(name, (4, 4) if name in OWN else (3, 3))
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


def recorded(monkeypatch):
    """Every call of replaced heads from now on: the heads, what they were given, what they gave."""
    seen = []
    plain = HeadTables.forward

    def record(self, values, visible, *, num_queries, causal):
        output = plain(self, values, visible, num_queries=num_queries, causal=causal)
        seen.append((self, values, visible, causal, output))
        return output

    monkeypatch.setattr(HeadTables, "forward", record)
    return seen


@pytest.mark.parametrize(("name", "kind"), crossed(SUBJECTS, ("relative", "random")))
def test_replaced_heads_equal_a_naive_loop(name, kind, monkeypatch):
    model, batch, seen = build(name), inputs(name), recorded(monkeypatch)
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


def test_a_model_without_the_interface_is_refused():
    config = MPNetConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    with pytest.raises(UserError) as error:
        Hook(MPNetModel(config))
    assert str(error.value) == (
        "MPNetModel computes attention in its own code, not through transformers' attention "
        "interface, so its heads cannot be reached; choose another architecture"
    )


def test_one_hook_at_a_time():
    first, second = build("bert"), build("bert")
    with Hook(first), pytest.raises(UserError, match="being audited already"), Hook(second):
        pass
