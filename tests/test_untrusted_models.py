"""Pretrained folders and audits of somebody else: audit and convert execute and lose nothing."""

import json
import os
import pickle
import shutil

import pytest
import torch

import browser
from pretrained import build, sentences, tokenizer
from synthesizer_attention.audit.convert import convert
from synthesizer_attention.audit.examples import Example, encode
from synthesizer_attention.audit.load import load_model, load_tokenizer
from synthesizer_attention.audit.run import Asked, audit
from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError
from test_untrusted_files import Payload, change
from test_untrusted_text import ASK, ESCAPES, HOSTILE, NOTHING_RAN, needs_browser


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A tiny BERT, its tokenizer, and an audit of it on hostile texts."""
    home = tmp_path_factory.mktemp("whole")
    build("bert").save_pretrained(home / "model")
    tokenizer().save_pretrained(home / "model")
    rows = [{"text": f"{text} {HOSTILE}", "label": HOSTILE} for text in sentences(12)]
    (home / "<img src=x>.jsonl").write_text("\n".join(map(json.dumps, rows)))
    audit(
        Asked(
            model=str(home / "model"), data=home / "<img src=x>.jsonl", out=home / "audit",
            metric="loss", max_len=12, rank_examples=2, fit_examples=4, rankings=1, steps=2,
            keep=0.01, command=f"synthesizer audit {HOSTILE}",
        ),
        lambda text: None,
    )  # fmt: skip
    return home


@pytest.fixture
def folder(whole, tmp_path):
    shutil.copytree(whole / "model", tmp_path / "model")
    return tmp_path / "model"


def pickled(folder):
    (folder / "model.safetensors").unlink()
    marker = folder.parent / "executed"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(marker)))


def index(name):
    def plant(folder):
        (folder / "model.safetensors").rename(folder.parent / "elsewhere.safetensors")
        torch.save({}, folder / "weights.bin")
        names = {"weight_map": {"weight": name}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(names))

    return plant


def code(**keys):
    """Code in the folder that config.json or the tokenizer's names."""

    def plant(folder):
        marker = folder.parent / "executed"
        text = f"import os\nos.mkdir({str(marker)!r})\nclass Evil: pass\n"
        (folder / "evil.py").write_text(text)
        change(folder / "config.json", **keys)

    return plant


def instead(name, make):
    def plant(folder):
        (folder / name).unlink()
        make(folder / name)

    return plant


MAP = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"}
FOLDERS = {
    "weights in a pickle": (pickled, "weights in a pickle are not read"),
    "an index of pickles": (index("weights.bin"), "expected .safetensors files of the same folder"),
    "an index that leads out": (
        index("../elsewhere.safetensors"), "expected .safetensors files of the same folder",
    ),
    "code": (code(model_type="evil", auto_map=MAP), "contains custom code"),
    "a pipe": (instead("config.json", os.mkfifo), "is not a regular file"),
    "weights in a pipe": (instead("model.safetensors", os.mkfifo), "is not a regular file"),
    "endless weights": (
        instead("model.safetensors", lambda path: path.symlink_to("/dev/zero")),
        "is not a regular file",
    ),
    "rubbish": (
        instead("model.safetensors", lambda path: path.write_bytes(b"\xff" * 99)), "cannot load",
    ),
    "nesting": (lambda f: (f / "config.json").write_text("[" * 10**6), "maximum recursion depth"),
    "many layers": (lambda f: change(f / "config.json", num_hidden_layers=10**7), "layers 100000"),
    "a large vocabulary": (lambda f: change(f / "config.json", vocab_size=2**40), "numbers and"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
def test_a_hostile_model_folder_is_refused_in_a_line(folder, tmp_path, monkeypatch, capsys, name):
    def ask(*words):
        raise AssertionError("the user was asked whether to run it")

    monkeypatch.setattr("builtins.input", ask)
    plant, words = FOLDERS[name]
    plant(folder)
    (tmp_path / "texts.txt").write_text("w1 w2\n" * 8)
    arguments = ["audit", str(folder), str(tmp_path / "texts.txt"), "--out", str(tmp_path / "out")]
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.startswith("synthesizer: error: ")
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["pipeline", "BertConfig", "BertTokenizer", 5])
def test_a_class_that_is_no_model_is_not_used(folder, name):
    change(folder / "config.json", architectures=[name])
    assert type(load_model(str(folder), "agreement")).__name__ == "BertModel"


def test_code_beside_a_known_architecture_is_left_alone(folder, tmp_path):
    code(auto_map={"AutoModelForMaskedLM": "evil.Evil", **MAP})(folder)
    change(
        folder / "tokenizer_config.json",
        tokenizer_class="Evil",
        auto_map={"AutoTokenizer": ["evil.Evil", None]},
    )
    assert type(load_model(str(folder), None)).__name__ == "BertForMaskedLM"
    load_tokenizer(str(folder))
    assert not (tmp_path / "executed").exists()


def test_a_tokenizer_of_another_model_is_refused(folder):
    text = json.loads((folder / "tokenizer.json").read_text())
    text["model"]["vocab"]["w1"] = 10**6
    (folder / "tokenizer.json").write_text(json.dumps(text))
    model = load_model(str(folder), None)
    with pytest.raises(UserError, match=r"gives token 1000000 and the model has embeddings for 37"):
        encode([Example(("w1 w2",))], "loss", model, load_tokenizer(str(folder)), 8)


AUDITS = {
    "no object": ("[]", "Input should be an object"),
    "nesting": ("[" * 10**6, "nested too deeply"),
    "a metric": ({"metric": "<script>"}, "metric: Input should be 'loss'"),
    "a model": ({"model": 5}, "model: Input should be a valid string"),
    "heads": ({"order": [[99, 99]]}, "order names a head that no layer has"),
    "layers": ({"layers": [{"x": 1}]}, "layers.0.call: Field required"),
    "a length": ({"max_len": 10**12}, "tables.safetensors does not fit audit.json"),
    "a table": ({"table": "evil"}, "table: Input should be 'relative' or 'random'"),
    "points": ({"curve": [1]}, "curve.0: Input should be an object"),
}


@pytest.fixture
def audited(whole, tmp_path):
    shutil.copytree(whole / "audit", tmp_path / "audit")
    return tmp_path / "audit"


@pytest.mark.parametrize("name", AUDITS)
def test_the_record_of_a_hostile_audit_is_refused(audited, tmp_path, name):
    given, words = AUDITS[name]
    if isinstance(given, str):
        (audited / "audit.json").write_text(given)
    else:
        change(audited / "audit.json", **given, checksum="")
    with pytest.raises(UserError, match=words):
        convert(audited, tmp_path / "out", print, heads=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["audit.json", "tables.safetensors"])
def test_a_pipe_in_an_audit_is_refused(audited, tmp_path, name):
    (audited / name).unlink()
    os.mkfifo(audited / name)
    with pytest.raises(UserError, match="is not a regular file"):
        convert(audited, tmp_path / "out", print, heads=1)


def test_an_audit_of_another_model_is_refused(audited, tmp_path):
    layers = json.loads((audited / "audit.json").read_text())["layers"]
    renamed = [{**layer, "name": f"evil.{layer['call']}"} for layer in layers]
    change(audited / "audit.json", layers=renamed, checksum="")
    with pytest.raises(UserError, match="is an audit of another model"):
        convert(audited, tmp_path / "out", print, heads=1)


def test_a_converted_model_is_not_written_through_a_link(audited, tmp_path):
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="is not an empty directory"):
        convert(audited, tmp_path / "out", print, heads=1)
    assert not (tmp_path / "elsewhere").exists()


def test_the_card_of_a_converted_model_has_no_markup_of_users(audited, tmp_path):
    convert(audited, tmp_path / "out", print, heads=3, command=f"``` {HOSTILE}")
    text = (tmp_path / "out" / "README.md").read_text()
    assert not ESCAPES.search(text)
    assert r"examples of \<img src=x\>.jsonl" in text
    assert "\n````\n``` <script>" in text


@needs_browser
def test_the_page_of_an_audit_shows_hostile_texts_as_text(whole, tmp_path):
    file = whole / "audit" / "report.html"
    seen = browser.look(file, tmp_path, width=1280, scheme="light", ask=ASK)
    assert seen.answers == NOTHING_RAN
    assert seen.complaints == []
    assert [url for url in seen.requests if not url.startswith("data:")] == [file.as_uri()]
    assert "<script>window.hit=1</script>" in seen.text
    assert not ESCAPES.search(file.read_text())
