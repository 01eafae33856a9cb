"""This package's own models in an audit: opened, replaced, converted to head groups, loaded."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from pretrained import OWN, build, crossed, drawn, inputs, real_logits
from synthesizer_attention.audit.averages import measure_averages
from synthesizer_attention.audit.converted import build_converted
from synthesizer_attention.audit.examples import RunData
from synthesizer_attention.audit.hook import Hook, other_layers
from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError
from synthesizer_attention.models import MODELS
from synthesizer_attention.run.run import Run
from synthesizer_attention.training.loop import fit
from tiny import environment, language_model


def pair(case, heads, kind="relative", max_len=16, **more):
    """A model's logits with heads replaced in its hook, and its conversion."""
    model, batch = build(case, **more), inputs(case)
    with torch.no_grad(), Hook(model) as hook:
        hook.discover(batch)
        hook.tables = {place: drawn(heads, kind, max_len) for place in range(len(hook.layers))}
        hooked = real_logits(model, batch)
        layers, tables = hook.layers, hook.tables
    return hooked, build_converted(model, layers, tables), batch


SPECS = {
    ("decoder", (1,)): "dot@1|relative:biased=0@1|dot@2",
    ("decoder", (0, 1, 2, 3)): "relative:biased=0",
    ("window", (0, 3)): "relative@1|dot@2|relative@1",
    ("classifier", (2, 3)): "dot@2|relative:sinks=2:biased=0@2",
    ("mixed", (0, 1, 2)): (
        "relative:sinks=2:biased=0@3|dot@1,random,relative:sinks=2:biased=0@3|dot@1"
    ),
    ("translator", (1, 2)): "dot@1|relative:sinks=2:biased=0@2|dot@1",
}


@pytest.mark.parametrize(("key", "max_len"), crossed(SPECS, (3, 16)))
def test_converted_equals_hooked_and_is_a_synthesizer_of_head_groups(key, max_len):
    case, heads = key
    hooked, converted, batch = pair(case, heads, max_len=max_len)
    with torch.no_grad():
        torch.testing.assert_close(real_logits(converted, batch), hooked, rtol=1e-4, atol=1e-5)
    assert type(converted) is MODELS[converted.config.kind]
    assert converted.config.synthesis == SPECS[case, heads]
    if case == "translator":
        assert converted.config.decoder_synthesis == "dot@1|relative:biased=0@2|dot@1"
    weights = [p for name, p in converted.named_parameters() if name.endswith(("wq", "wk"))]
    dots = 2 * (4 - len(heads)) * (2 + 2 * (case == "translator"))
    across = 2 * 2 * 4 * (case == "translator")  # cross-attention keeps its own
    assert sum(len(weight) for weight in weights) == dots + across


@pytest.mark.parametrize(("case", "max_len"), crossed(OWN, (7, 16)))
def test_tables_by_position_take_the_bias_into_account(case, max_len):
    hooked, converted, batch = pair(case, (0, 2), "random", max_len)
    with torch.no_grad():
        torch.testing.assert_close(real_logits(converted, batch), hooked, rtol=1e-4, atol=1e-5)
    assert "random@1|dot@1|random@1|dot@1" in converted.config.synthesis
    assert converted.config.max_len == min(11, max_len)


LOADING = """
import sys, torch, synthesizer_attention.models
from transformers import AutoModelForSeq2SeqLM
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1] + "/model").eval()
with torch.no_grad():
    torch.save(model(**torch.load(sys.argv[1] + "/batch")).logits, sys.argv[1] + "/logits")
"""


def test_a_fresh_process_loads_it_after_one_import(tmp_path):
    _, converted, batch = pair("translator", (1, 2))
    converted.save_pretrained(tmp_path / "model")
    torch.save(batch, tmp_path / "batch")
    command = [sys.executable, "-c", LOADING, str(tmp_path)]
    subprocess.run(command, check=True, env=environment())
    with torch.no_grad():
        assert torch.equal(torch.load(tmp_path / "logits"), converted(**batch).logits)


def test_averages_are_those_of_what_the_model_shows():
    model, batch = build("decoder"), inputs("decoder", padded=False)
    with torch.no_grad(), Hook(model) as hook:
        hook.discover(batch)
        (first, _) = measure_averages(hook, [batch], 11)
        shown = model(**batch, output_attentions=True).attentions[0]
    means = first.tables("relative").offsets.exp()
    for distance in range(6):
        seen = torch.diagonal(shown[..., 1:], -distance - 1, -2, -1)  # keys after the first
        torch.testing.assert_close(means[:, 10 - distance], seen.mean((0, 2)))


def test_what_is_no_dot_product_is_left_as_it_is():
    model = build("mixed")
    assert other_layers(model) == {"model.encoder.layers.1": "random"}
    with pytest.raises(UserError) as error:
        Hook(build("decoder", synthesis="random+dot,none"))
    assert str(error.value) == (
        "no layer of the model is a dot product alone (its synthesis is random+dot,none), so there "
        "is no head to replace; give a model with dot layers"
    )


@pytest.mark.parametrize("path", ["plain", "fast"])
def test_no_bias_is_added_to_heads_that_ask_for_none(path):
    from synthesizer_attention import SyntheticAttention

    torch.manual_seed(0)
    x, bias = torch.randn(2, 5, 12), torch.randn(1, 3, 5, 5)
    spec = "relative:biased=0@1|dot@2"
    layer = SyntheticAttention(12, 3, 5, spec, path=path).eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
        given = layer(x, bias=bias)
        expected = layer(x, bias=bias * torch.tensor([0.0, 1.0, 1.0])[:, None, None])
        torch.testing.assert_close(given, expected)
        other = layer(x, bias=bias * torch.tensor([1.0, 0.0, 1.0])[:, None, None])
        assert not torch.allclose(given, other)
        alone = SyntheticAttention(12, 3, 5, "relative:biased=0", path=path).eval()
        torch.testing.assert_close(alone(x, bias=bias), alone(x))
    with pytest.raises(UserError, match="biased=0 in a mixture, whose logits are one sum"):
        SyntheticAttention(12, 3, 5, "relative:biased=0+dot")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of a tiny language model."""
    folder = tmp_path_factory.mktemp("run")
    recipe = language_model(folder, "model.num_layers=2", synthesis="dot")
    fit(recipe, Run(folder / "run"))
    return folder / "run"


def test_some_of_a_run_s_test_split_are_drawn(run):
    data = RunData(Run(run), "loss")
    whole = data.judging(None, 0).texts
    assert len(whole) > 4
    some = data.judging(3, 0)
    places = [whole.index(text) for text in some.texts]
    assert len(some) == 3
    assert places != [0, 1, 2]
    assert some.drawn_from == len(whole)
    assert data.judging(3, 0).texts == some.texts


def test_a_run_is_audited_on_its_own_data_and_converted(run, tmp_path, capsys):
    """With nothing replaced its loss is the run's own, and a tuned conversion comes nearer."""
    out = str(tmp_path / "audit")
    words = ["audit", str(run), "--out", out, "--length", "12", "--rankings", "1"]
    assert main(words) == 0, capsys.readouterr().err
    record = json.loads((tmp_path / "audit" / "audit.json").read_text())
    result = json.loads((run / "result.json").read_text())
    assert record["value"] == pytest.approx(result["metrics"]["loss"], rel=1e-5)
    assert record["data"].endswith("its test split")
    assert len(record["order"]) == 4
    assert {row["replaced"] for row in record["speed"]} >= {0, 1, 2, 4}
    assert "commit" in record
    for tuning, name in (([], "plain"), (["--tune", "4"], "tuned")):
        model = str(tmp_path / name)
        assert main(["convert", out, "--heads", "3", "--out", model, *tuning]) == 0
        loaded = AutoModelForCausalLM.from_pretrained(model)
        assert "relative" in loaded.config.synthesis
        card = (tmp_path / name / "README.md").read_text()
        assert "names under `synthesis`" in card
        assert "AutoModelForCausalLM.from_pretrained" in card
        assert "import synthesizer_attention.models" in card
    assert "tuning step 4 of 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{run}", "--max-len", "8"], "--max-len is for the texts of a file, and a run's own data"),
        (["{run}", "--metric", "spearman"], "--metric spearman needs pairs and a score, which"),
        (["{run}/model"], "{run}/model is not a run of synthesizer train, so there are no data"),
    ],
)
def test_a_mistake_is_one_line(run, tmp_path, capsys, words, said):
    arguments = [word.format(run=run) for word in words]
    assert main(["audit", *arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"synthesizer: error: {said.format(run=run)}")
    assert error.count("\n") == 1
