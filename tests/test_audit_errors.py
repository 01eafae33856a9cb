"""What an engineer's own model and file may have: read rightly, or refused in one line."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    GPT2ForSequenceClassification,
    RobertaConfig,
    RobertaForMaskedLM,
    T5EncoderModel,
)

from pretrained import VOCAB, build
from synthesizer.audit.load import load_model, num_positions
from synthesizer.cli import main
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
    monkeypatch.setattr("synthesizer.audit.measured.SAID_EVERY", 0)
    assert audited(home, tmp_path / "out", "bert", "texts.txt") == 0
    assert "5 of 6 heads measured, 0 minutes to go" in capsys.readouterr().err
