"""What an engineer's own model and file may have: read rightly, or refused in one line."""

import json
import resource
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    GPT2ForSequenceClassification,
    Olmo2Config,
    Olmo2ForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
    T5EncoderModel,
)

from pretrained import VOCAB, build
from synthesizer_attention.audit.converted import build_converted
from synthesizer_attention.audit.examples import read_examples
from synthesizer_attention.audit.hook import Hook
from synthesizer_attention.audit.load import load_model, num_positions
from synthesizer_attention.audit.tables import HeadTables
from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError
from test_audit import sentences, tokenizer

SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("own")
    torch.manual_seed(0)
    gpt2 = build("gpt2").config
    gpt2.num_labels, gpt2.pad_token_id = 2, None
    roberta = RobertaConfig(
        vocab_size=VOCAB, max_position_embeddings=16, pad_token_id=0, type_vocab_size=1, **SMALL
    )
    models = {
        "sentence-t5": T5EncoderModel(build("t5").config),
        "gpt2-classifier": GPT2ForSequenceClassification(gpt2),
        "vit": build("vit"),
        "bert": build("bert"),
        "half": build("bert"),
        "roberta": RobertaForMaskedLM(roberta),
    }
    for name, model in models.items():
        model.save_pretrained(home / name)
        if name != "vit":
            tokenizer().save_pretrained(home / name)
    unpadded = tokenizer()
    unpadded.pad_token = None
    (home / "unpadded").mkdir()
    models["gpt2-classifier"].save_pretrained(home / "unpadded")
    unpadded.save_pretrained(home / "unpadded")
    weights = load_file(home / "half" / "model.safetensors")
    kept = {key: value for key, value in weights.items() if ".layer.1." not in key}
    save_file(kept, home / "half" / "model.safetensors", metadata={"format": "pt"})
    (home / "nothing").mkdir()
    texts = sentences(12)
    (home / "texts.txt").write_text("\n".join(texts))
    (home / "long.txt").write_text("\n".join([" ".join(texts)] * 8))
    rows = {
        "labels": [("text,label", "{t},{n}")], "words": [("a,b,score", "{t},{t},high")],
        "pairs": [("a,b,score", "{t},{t},{n}")], "gap": [("a,b,score", "{t},{t},")],
        "nan": [("text,label", "{t},nan")],
    }  # fmt: skip
    for name, [(head, row)] in rows.items():
        lines = [row.format(t=text, n=number % 2) for number, text in enumerate(texts)]
        (home / f"{name}.csv").write_text("\n".join([head, *lines]))
    return home


def audited(home, out, model, data, *options):
    words = ["audit", str(home / model), str(home / data), *options, "--out", str(out)]
    return main(
        [*words, "--rankings", "1", "--rank-examples", "2", "--steps", "1", "--length", "4"]
    )


READ = {
    "an encoder alone": ("sentence-t5", "pairs.csv", "--metric", "spearman"),
    "a decoder that classifies": ("gpt2-classifier", "labels.csv"),
    "texts longer than positions": ("roberta", "long.txt"),
}


@pytest.mark.parametrize("case", READ)
def test_an_audit_works_with(home, tmp_path, case, capsys):
    assert audited(home, tmp_path / "out", *READ[case]) == 0, capsys.readouterr().err
    record = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert record["max_len"] == (15 if READ[case][0] == "roberta" else record["max_len"])
    assert record["num_cut"] == (8 if "long.txt" in READ[case] else 0)
    assert (
        main(["convert", str(tmp_path / "out"), "--heads", "1", "--out", str(tmp_path / "m")]) == 0
    )
    assert type(load_model(str(tmp_path / "m"), record["metric"])).__name__ == (
        f"Converted{record['architecture']}"
    )


def test_positions_are_those_behind_padding(home):
    assert num_positions(load_model(str(home / "roberta"), None)) == 15
    assert num_positions(load_model(str(home / "bert"), None)) == 16


REFUSED = {
    "images": (
        ("vit", "texts.txt"),
        "cannot load a processor of images from {home}/vit (",
        "put the model's preprocessor_config.json into its folder",
    ),
    "no model": (("nothing", "texts.txt"), "cannot load a model from {home}/nothing (", ""),
    "half a model": (
        ("half", "texts.txt"),
        "{home}/half holds no weights for 16 parameters of a BertForMaskedLM, such as "
        "bert.encoder.layer.1.attention.output.LayerNorm.bias",
        "give the folder of a whole model",
    ),
    "no padding": (
        ("unpadded", "labels.csv"),
        "GPT2ForSequenceClassification needs a padding token to read several texts at once",
        "set pad_token_id in config.json",
    ),
    "scores in words": (
        ("bert", "words.csv", "--metric", "spearman"),
        "score 'high' is not a number",
        "give one for every pair, or leave the row out",
    ),
    "no score": (("bert", "gap.csv", "--metric", "spearman"), "score ", "is not a number"),
    "no class": (("gpt2-classifier", "nan.csv"), "label ", "is none of the model's 2 classes"),
    "no file": (
        ("bert", "nowhere.csv"), "{home}/nowhere.csv does not exist; give a file of texts", ""
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_one_line_refuses(home, tmp_path, case, capsys):
    words, begin, then = REFUSED[case]
    assert audited(home, tmp_path / "out", *words) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"synthesizer: error: {begin.format(home=home)}")
    assert then in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_place_of_out_is_seen_before_anything_is_measured(home, tmp_path, capsys):
    (tmp_path / "out").write_text("mine")
    assert audited(home, tmp_path / "out", "bert", "texts.txt") == 2
    said = capsys.readouterr().err
    assert said == f"synthesizer: error: {tmp_path}/out is not a directory; name another --out\n"


def test_a_long_ranking_says_how_long_it_will_take(home, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("synthesizer_attention.audit.record.SAID_EVERY", 0)
    assert audited(home, tmp_path / "out", "bert", "texts.txt") == 0
    assert "5 of 6 heads measured, 0 minutes to go" in capsys.readouterr().err


# odd models


def changed(home, tmp_path, name, **values):
    """A copy of a model's folder with other values in its config.json."""
    shutil.copytree(home / name, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return tmp_path / "model"


ODD = {
    "no heads": {"n_head": 0},
    "heads below zero": {"n_head": -4},
    "layers in a text": {"n_layer": "2"},
    "half a layer": {"n_layer": 2.5},
    "null layers": {"n_layer": None},
    "padding beyond the vocabulary": {"pad_token_id": 10**9},
    "a milliard classes": {"num_labels": 10**9},
    "a milliard positions": {"n_positions": 10**9},
    "a milliard numbers": {"n_embd": 10**9},
}


@pytest.mark.parametrize("case", ODD)
def test_an_odd_config_is_one_line_and_takes_no_memory(home, tmp_path, case, capsys):
    model = changed(home, tmp_path, "gpt2-classifier", **ODD[case])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert audited(home, tmp_path / "out", model, "labels.csv") == 2
    said = capsys.readouterr().err.splitlines()
    assert [line[:18] for line in said] == ["synthesizer: error"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB


@pytest.mark.parametrize(
    ("key", "value"), [("num_heads", 10**9), ("num_heads", None), ("d_head", 0), ("heads", [7]),
                       ("max_len", 10**9), ("max_len", "2"), ("kind", {})],
)  # fmt: skip
def test_an_odd_converted_model_is_refused(home, tmp_path, key, value, capsys):
    bert = build("bert")
    with torch.no_grad(), Hook(bert) as hook:
        hook.discover({"input_ids": torch.ones(1, 4, dtype=torch.long)})
        tables = {0: HeadTables((1,), 16)}
        build_converted(bert, hook.layers, tables).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    (facts,) = config["replaced"].values()
    facts[key] = value
    path.write_text(json.dumps(config))
    assert audited(home, tmp_path / "out", tmp_path / "model", "texts.txt") == 2
    assert capsys.readouterr().err.count("synthesizer: error: ") == 1


@pytest.mark.parametrize(
    ("name", "data", "metric"),
    [("bert", "texts.txt", "loss"), ("bert", "texts.txt", "agreement"),
     ("gpt2-classifier", "labels.csv", "accuracy")],
)  # fmt: skip
def test_a_model_whose_outputs_are_no_numbers_is_refused_before_the_first_head(
    home, tmp_path, name, data, metric, capsys
):
    model = changed(home, tmp_path, name)
    weights = load_file(model / "model.safetensors")
    key = next(key for key in weights if key.endswith(("LayerNorm.weight", "ln_f.weight")))
    weights[key][0] = float("nan")
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    assert audited(home, tmp_path / "out", model, data, "--metric", metric) == 2
    said = capsys.readouterr().err
    assert f"the model's own {metric} is nan" in said
    assert "alone" not in said  # no head was replaced


# speed that cannot be measured


def olmo():
    """Queries and keys are normalized over all heads."""
    more = {"num_key_value_heads": 2, "max_position_embeddings": 16, "pad_token_id": 0}
    return Olmo2ForCausalLM(Olmo2Config(vocab_size=VOCAB, **SMALL, **more))


def bigcode():
    """All heads share one key and one value."""
    from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM  # which uses torch.jit

    return GPTBigCodeForCausalLM(
        GPTBigCodeConfig(vocab_size=VOCAB, n_embd=8, n_layer=1, n_head=2, n_positions=16)
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("architecture", [olmo, bigcode])
def test_a_speed_that_cannot_be_measured_is_left_out_with_a_word(
    home, tmp_path, architecture, capsys
):
    torch.manual_seed(0)
    architecture().save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    out = tmp_path / "out"
    assert audited(home, out, tmp_path / "model", "long.txt") == 0
    said = capsys.readouterr().err
    record = json.loads((out / "audit.json").read_text())
    assert record["speed"] == []
    assert "cannot be run with heads left out of it" in record["untimed"]
    assert f"speed was not measured: {record['untimed']}" in said
    assert "cannot be run with heads left out of it" in (out / "report.html").read_text()
    assert main(["convert", str(out), "--heads", "1", "--out", str(tmp_path / "m")]) == 2
    assert "audit works, convert does not" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_a_text_that_is_not_utf_8_is_named(tmp_path):
    (tmp_path / "texts.txt").write_bytes(b"w1 w2\nw3 \xe9 w4\n")
    with pytest.raises(UserError, match=r"texts.txt, row 2: column .* is not UTF-8; save the file"):
        read_examples(tmp_path / "texts.txt", "loss")
