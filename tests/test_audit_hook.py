"""A hooked model is the model; a replaced head is the head that a loop computes."""

import pytest
import torch
from transformers import MPNetConfig, MPNetModel

from pretrained import ENCODER_DECODERS, MODELS, build, inputs
from synthesizer.audit.hook import Hook
from synthesizer.audit.tables import HeadTables
from synthesizer.errors import UserError

every_model = pytest.mark.parametrize("name", MODELS)


def drawn(heads, kind="relative", max_len=16):
    tables = HeadTables(heads, max_len, kind).requires_grad_(False)
    with torch.no_grad():
        for parameter in tables.parameters():
            parameter.normal_()
    return tables


@every_model
@pytest.mark.parametrize("padded", [True, False])
def test_hooked_with_nothing_replaced_equals_the_original(name, padded):
    model, batch = build(name), inputs(name, padded=padded)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        before = model(**batch).logits
        with Hook(model) as hook:
            hook.discover(batch)
            hooked = model(**batch).logits
        after = model(**batch).logits
    assert torch.equal(hooked, before)
    assert torch.equal(after, before)
    assert model.config._attn_implementation == "eager"


@every_model
def test_only_self_attention_is_found(name):
    model = build(name)
    with Hook(model) as hook:
        layers = hook.discover(inputs(name))
    both = {key: [0, 0, 1, 1] for key in ENCODER_DECODERS}
    causal = {"bert": [0, 0], "vit": [0, 0], **both}.get(name, [1, 1])
    assert [layer.causal for layer in layers] == [bool(c) for c in causal]
    heads = {"llama": (4, 2), "gemma": (3, 1)}.get(name, (3, 3))
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


@every_model
@pytest.mark.parametrize("kind", ["relative", "random"])
def test_replaced_heads_equal_a_naive_loop(name, kind, monkeypatch):
    model, batch, seen = build(name), inputs(name), recorded(monkeypatch)
    with torch.no_grad(), Hook(model) as hook:
        layers = hook.discover(batch)
        before = model(**batch).logits
        hook.tables = {place: drawn((0, 2), kind) for place in range(len(layers))}
        after = model(**batch).logits
    assert not torch.allclose(before, after)
    assert len(seen) == len(layers)
    for tables, values, visible, causal, output in seen:
        torch.testing.assert_close(output, naive_output(tables, values, visible, causal))


def test_a_head_replaced_by_its_own_attention_changes_nothing():
    """Logits that are the log of one example's weights give these weights back."""
    model, batch = build("gpt2"), inputs("gpt2", padded=False)
    batch = {"input_ids": batch["input_ids"][:1]}
    kept = {}
    with torch.no_grad(), Hook(model) as hook:
        hook.discover(batch)
        hook.observe = lambda layer, weights, visible: kept.update({layer: weights})
        before = model(**batch).logits
        hook.observe = None
        for layer in (0, 1):
            tables = HeadTables((1,), 7, "random")
            tables.table.data = kept[layer][0, 1:2].log().clamp(min=-80)
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
