"""A converted model is audited again: what is left is measured, and a second conversion joins."""

import json

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM

from pretrained import MODELS, OWN, build, crossed, drawn, found_layers, inputs, real_logits
from synthesizer_attention import replace_attention
from synthesizer_attention.audit.averages import measure_averages
from synthesizer_attention.audit.convert import convert
from synthesizer_attention.audit.converted import build_converted
from synthesizer_attention.audit.cost import size_with
from synthesizer_attention.audit.hook import Hook
from synthesizer_attention.audit.load import load_model, num_positions
from synthesizer_attention.audit.run import Asked, audit
from synthesizer_attention.audit.tables import HeadTables
from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError
from test_audit_seq2seq import home as seq2seq  # noqa: F401  a fixture

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


def joined(first, second):
    """The tables of both steps by layer."""
    return {
        place: first[place].joined(second[place]) if place in first and place in second
        else first.get(place, second.get(place))
        for place in {**first, **second}
    }  # fmt: skip


CASES = [(steps, lengths) for steps in STEPS for lengths in ((16, 16), (3, 16))]


@pytest.mark.parametrize(("name", "case"), crossed((*MODELS, *OWN), CASES))
def test_converted_twice_equals_converted_at_once(name, case):
    """And equals what the hook of the second audit showed."""
    model, batch, (steps, lengths) = build(name), inputs(name), case
    lengths = (11, 11) if name in OWN else lengths
    layers = found_layers(model, batch)
    first, second = (chosen(each, layers, lengths) for each in STEPS[steps])
    at_once = build_converted(model, layers, joined(first, second))
    half = build_converted(model, layers, first)
    again = found_layers(half, batch)
    places = {layer.name: place for place, layer in enumerate(again)}
    moved = {places[layers[place].name]: table for place, table in second.items()}
    with torch.no_grad(), Hook(half) as hook:
        hook.discover(batch)
        plain = real_logits(half, batch)
        hook.observe = lambda layer, weights, visible: torch.testing.assert_close(
            weights.sum(-1)[visible.any(-1).expand_as(weights[..., 0])],
            torch.ones(int(visible.any(-1).expand_as(weights[..., 0]).sum())),
        )
        torch.testing.assert_close(real_logits(half, batch), plain, rtol=1e-4, atol=1e-5)
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
        torch.testing.assert_close(real_logits(half, batch), plain, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(real_logits(twice, batch), hooked, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_weights_that_are_averaged_are_those_of_the_layer(name):
    """Of dot heads and of tables: their product with the values is what the layer gives."""
    model, batch = build(name), inputs(name)
    layers = found_layers(model, batch)
    half = build_converted(model, layers, chosen({0: (1,), 1: (0, 2)}, layers))
    with torch.no_grad(), Hook(model) as hook:
        hook.discover(batch)
        hook.tables = {}
        kept = {}
        hook.read([batch], lambda layer, weights, _: kept.setdefault(layer, weights))
    seen = {}
    with torch.no_grad(), Hook(half) as hook:
        hook.discover(batch)
        hook.read([batch], lambda layer, weights, _: seen.setdefault(layer, weights))
    real = batch.get("attention_mask", torch.ones(2, kept[0].shape[-2])).bool()
    for head in (head for head in range(layers[0].num_heads) if head != 1):
        torch.testing.assert_close(seen[0][:, head][real], kept[0][:, head][real])
    assert not torch.allclose(seen[0][:, 1], kept[0][:, 1])


def test_averages_have_rows_for_all_heads_and_sizes_count_what_went_before():
    model, batch = build("llama"), inputs("llama")
    layers = found_layers(model, batch)
    half = build_converted(model, layers, chosen({0: (0, 1)}, layers))
    with torch.no_grad(), Hook(half) as hook:
        again = hook.discover(batch)
        first, _ = measure_averages(hook, [batch], 8)
    assert first.tables("relative").offsets.shape == (4, 15)
    assert again[0].dots == [2, 3]
    for more in ([], [(1, 0)]):
        assert size_with(again, 24, 8, more) == size_with(layers, 24, 8, [(0, 0), (0, 1), *more])


def test_from_a_folder_to_a_folder_and_on(seq2seq, tmp_path, capsys):  # noqa: F811
    """T5: 5 heads, audited again, 4 more: the loaded folder scores what the second audit said."""
    half, out = tmp_path / "half", tmp_path / "again"
    convert(seq2seq / "t5-audit", half, print, heads=5)
    words = ["audit", str(half), str(seq2seq / "pairs.csv"), "--out", str(out), "--max-len", "12"]
    words += ["--rank-examples", "4", "--rankings", "1", "--steps", "3", "--length", "4"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "5 heads are tables already, and stay as they are" in said.err
    assert "5 of its heads are tables already." in said.out
    record = json.loads((out / "audit.json").read_text())
    first = json.loads((seq2seq / "t5-audit" / "audit.json").read_text())
    assert len(record["order"]) == 7
    assert not {tuple(head) for head in record["order"]} & {tuple(h) for h in first["order"][:5]}
    assert record["architecture"] == "ConvertedT5ForConditionalGeneration"
    assert {row["replaced"] for row in record["speed"]} >= {0, 7}
    assert "5 tables: replaced before" in (out / "report.html").read_text()
    assert main(["convert", str(out), "--heads", "8", "--out", str(tmp_path / "no")]) == 2
    assert "the model has 7 that are dot products: give 1 to 7" in capsys.readouterr().err
    point = next(point for point in record["curve"] if point["replaced"] == 5)
    convert(out, tmp_path / "more", print, heads=5)
    assert "10 of 12 heads as tables" in (tmp_path / "more" / "README.md").read_text()
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "more")
    assert sum(len(facts["heads"]) for facts in loaded.config.replaced.values()) == 10
    asked = Asked(
        model=str(tmp_path / "more"), data=seq2seq / "pairs.csv", out=tmp_path / "third",
        max_len=12, rank_examples=2, rankings=1, steps=1,
    )  # fmt: skip
    assert audit(asked, print)["value"] == pytest.approx(point["value"], rel=1e-4)


def test_a_model_without_dot_products_has_nothing_to_audit():
    model, batch = build("bert"), inputs("bert")
    layers = found_layers(model, batch)
    whole = build_converted(model, layers, {n: drawn((0, 1, 2)) for n in range(2)})
    with Hook(whole) as hook, pytest.raises(UserError) as error:
        hook.discover(batch)
    assert str(error.value) == (
        "all 6 heads of the model are tables already; audit one that has dot products left"
    )


def test_layers_with_synthesized_logits_are_left_as_they_are():
    model, batch = build("bert"), inputs("bert")
    replace_attention(model.eval(), "random+dot", max_len=16, layers=[0])
    with torch.no_grad():
        before = real_logits(model, batch)
        with Hook(model) as hook:
            (layer,) = hook.discover(batch)
            torch.testing.assert_close(real_logits(model, batch), before)
        converted = build_converted(model, [layer], {0: drawn((1,))})
        real_logits(converted, batch)
    assert layer.name == "bert.encoder.layer.1.attention.self"
    assert len(converted.config.replaced) == 2


def test_tables_by_position_end_where_they_were_measured_and_are_not_mixed(seq2seq, tmp_path):  # noqa: F811
    model, batch = build("bert"), inputs("bert")
    layers = found_layers(model, batch)
    half = build_converted(model, layers, {0: drawn((1,), "random", 9)})
    assert num_positions(half) == 9
    whole = half.base_model.encoder.layer[0].attention.self.tables.joined(drawn((2,), "random", 8))
    assert (whole.heads, whole.table.shape) == ((1, 2), (2, 8, 8))
    half.save_pretrained(tmp_path / "half")
    AutoModelForMaskedLM.from_pretrained(tmp_path / "half")
    from test_audit import tokenizer

    tokenizer().save_pretrained(tmp_path / "half")
    assert type(load_model(str(tmp_path / "half"), "loss")).__name__ == "ConvertedBertForMaskedLM"
    asked = Asked(str(tmp_path / "half"), seq2seq / "texts.txt", tmp_path / "out")
    with pytest.raises(UserError, match=r"--table is relative and the tables of .* are random"):
        audit(asked, print)


def test_joined_tables_read_what_each_read_alone():
    torch.manual_seed(0)
    short, long = drawn((2,), max_len=3), drawn((0, 3), max_len=6)
    joined = short.joined(long)
    assert (joined.heads, joined.max_len) == ((0, 2, 3), 6)
    both = [each.logits(9, 9, None, None, has_last=True) for each in (long, short)]
    logits = joined.logits(9, 9, None, None, has_last=True)
    assert torch.equal(logits[:, [0, 2]], both[0])
    assert torch.equal(logits[:, [1]], both[1])
    assert isinstance(joined, HeadTables)
    assert all(parameter.requires_grad for parameter in joined.parameters())
