"""Audits and conversions are whole or not there: killed, on a full disk, with other weights."""

import json
import os
import shutil
import signal
import stat

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM

from pretrained import build
from synthesizer_attention.audit.load import hash_weights
from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError
from test_audit import home, measured, tokenizer  # noqa: F401
from test_audit_stopped import stopped
from test_damage import flip

slow = pytest.mark.slow  # a process of its own each


def audit_words(home, out):  # noqa: F811
    return [
        "audit", home / "masked", home / "texts.txt", "--max-len", "12", "--rank-examples", "4",
        "--fit-examples", "20", "--rankings", "1", "--steps", "1", "--out", out,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def audited(home, tmp_path_factory):  # noqa: F811
    """A folder with a model of its own and an audit of it."""
    folder = tmp_path_factory.mktemp("whole")
    shutil.copytree(home / "masked", folder / "masked")
    shutil.copy(home / "texts.txt", folder)
    assert main([*map(str, audit_words(folder, folder / "audit"))]) == 0
    return folder


@pytest.fixture
def own(audited, tmp_path):
    """A copy of it, as an audit made there would be."""
    shutil.copytree(audited, tmp_path / "own")
    path = tmp_path / "own" / "audit" / "audit.json"
    path.write_text(path.read_text().replace(str(audited), str(tmp_path / "own")))
    return tmp_path / "own"


def converted(folder, out, *more):
    return main(["convert", str(folder / "audit"), "--heads", "2", "--out", str(out), *more])


def other_weights(folder):
    build("bert", seed=5).save_pretrained(folder)


# which weights


def test_weights_that_were_replaced_are_not_converted(own, tmp_path, capsys):
    weights = own / "masked" / "model.safetensors"
    written = weights.read_bytes()
    other_weights(own / "masked")
    assert converted(own, tmp_path / "m") == 2
    said = capsys.readouterr().err
    assert f"the weights of {own}/masked are not those that {own}/audit was made of" in said
    assert said.count("synthesizer: error") == 1
    assert not (tmp_path / "m").exists()
    weights.write_bytes(written)
    assert converted(own, tmp_path / "m") == 0


def test_another_model_at_the_same_relative_path_is_not_taken(own, tmp_path, monkeypatch, capsys):
    (tmp_path / "elsewhere").mkdir()
    shutil.copytree(own / "masked", tmp_path / "elsewhere" / "masked")
    other_weights(tmp_path / "elsewhere" / "masked")
    path = own / "audit" / "audit.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"model": "masked"}))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert converted(own, tmp_path / "m") == 0  # the one that was audited, where it was
    ours = AutoModelForMaskedLM.from_pretrained(tmp_path / "m").get_input_embeddings().weight
    theirs = load_file(own / "masked" / "model.safetensors")
    assert torch.equal(ours, theirs["bert.embeddings.word_embeddings.weight"])
    shutil.rmtree(own / "masked")
    assert converted(own, tmp_path / "n") == 2
    assert "the weights of masked are not those" in capsys.readouterr().err


def test_a_flipped_bit_of_the_tables_is_seen(own, tmp_path, capsys):
    flip(own / "audit" / "tables.safetensors")
    assert converted(own, tmp_path / "m") == 2
    assert "tables.safetensors is damaged (its sha256 is not" in capsys.readouterr().err


def test_an_audit_of_an_older_version_is_converted_with_a_word(own, tmp_path, capsys):
    path = own / "audit" / "audit.json"
    record = json.loads(path.read_text())
    for name in (
        "path", "weights", "readers", "tables_sha256", "num_fit_rows", "num_judge_rows", "untimed",
        "checksum",
    ):  # fmt: skip
        del record[name]
    path.write_text(json.dumps(record))
    assert converted(own, tmp_path / "m") == 0
    assert "names no sha256 of the weights: they cannot be compared" in capsys.readouterr().err
    assert main(["report", str(own / "audit")]) == 0


def test_a_stopped_audit_does_not_go_on_with_other_weights(home, tmp_path):  # noqa: F811
    """A bias behind the last layer changes no average attention."""
    shutil.copytree(home / "masked", tmp_path / "masked")
    shutil.copy(home / "texts.txt", tmp_path)
    stopped(tmp_path, tmp_path / "out", "loss", "3 of 6 heads ranked")
    weights = tmp_path / "masked" / "model.safetensors"
    tensors = load_file(weights)
    tensors["cls.predictions.bias"] += 1
    save_file(tensors, weights, metadata={"format": "pt"})
    with pytest.raises(UserError, match="unfinished audit whose sha256 of weights was"):
        measured(tmp_path, "loss", tmp_path / "out")


def test_every_shard_has_its_hash(tmp_path):
    build("bert").save_pretrained(tmp_path, max_shard_size="20KB")
    found = hash_weights(str(tmp_path))
    assert {*found} == {path.name for path in tmp_path.glob("*.safetensors")}
    assert len(found) > 1
    (tmp_path / "m.gguf").write_bytes(b"gguf")
    assert list(hash_weights(str(tmp_path / "m.gguf"))) == ["m.gguf"]


# killed


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("synthesizer_attention.audit.run:_speeds", marks=slow),  # all is measured
        "synthesizer_attention.audit.run:sha256",  # tables are written
        pytest.param("synthesizer_attention.audit.run:audit_page", marks=slow),
        "synthesizer_attention.audit.record:Measured.finish",  # audit.json is written
    ],
)
def test_a_killed_audit_goes_on_or_is_whole(home, tmp_path, forks, moment):  # noqa: F811
    words, out = audit_words(home, tmp_path / "out"), tmp_path / "out"
    assert forks.run(*words, cwd=tmp_path, dies_in=moment)[0] == -signal.SIGKILL
    if (out / "audit.json").exists():
        assert moment.endswith("finish")
    else:
        code, _, said = forks.run(*words, cwd=tmp_path)
        assert code == 0, said
        assert "going on behind 12 measurements" in said
    assert (out / "report.html").exists()
    assert main(["convert", str(out), "--heads", "2", "--out", str(tmp_path / "m")]) == 0


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(
            "synthesizer_attention.audit.load:Reader.save", marks=slow
        ),  # weights are written
        pytest.param("synthesizer_attention.audit.convert:model_card", marks=slow),
        "synthesizer_attention.audit.convert:_clear",  # all is written, and not moved
    ],
)
def test_a_killed_conversion_leaves_nothing_in_its_place(audited, tmp_path, forks, moment):
    words = ["convert", audited / "audit", "--heads", "2", "--out", tmp_path / "m"]
    assert forks.run(*words, cwd=tmp_path, dies_in=moment)[0] == -signal.SIGKILL
    assert not (tmp_path / "m").exists()
    code, _, said = forks.run(*words, cwd=tmp_path)
    assert code == 0, said
    assert [path.name for path in tmp_path.iterdir() if "m." in path.name] == []  # it was removed
    AutoModelForMaskedLM.from_pretrained(tmp_path / "m")


def test_a_killed_tuning_goes_on_although_its_checkpoint_is_half_written(audited, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / ".tuning.safetensors.4194305.partial").touch()
    (tmp_path / "m" / ".tmpAbCdEf").touch()  # as safetensors calls a file that it has not written
    more = ("--tune", "2", "--texts", str(audited / "texts.txt"))
    assert converted(audited, tmp_path / "m", *more) == 0
    assert not [path for path in (tmp_path / "m").iterdir() if path.name.startswith(".")]


def test_the_page_of_damaged_tables_is_not_drawn(own, capsys):
    flip(own / "audit" / "tables.safetensors")
    assert main(["report", str(own / "audit")]) == 2
    assert "tables.safetensors is damaged (its sha256 is not" in capsys.readouterr().err


def test_a_record_whose_digit_was_flipped_is_refused(own, tmp_path, capsys):
    path = own / "audit" / "audit.json"
    text = path.read_text()
    path.write_text(text.replace('"value": ', '"value": 1', 1))
    assert converted(own, tmp_path / "m") == 2
    assert main(["report", str(own / "audit")]) == 2
    assert capsys.readouterr().err.count("it was damaged: its checksum is another") == 2


# a full disk


@pytest.mark.parametrize("largest", [pytest.param(600, marks=slow), 4000])
def test_a_conversion_on_a_full_disk_is_one_line_and_can_be_repeated(
    audited, tmp_path, forks, largest
):
    words = ["convert", audited / "audit", "--heads", "2", "--out", tmp_path / "m"]
    code, _, said = forks.run(*words, cwd=tmp_path, largest_file=largest)
    assert code == 2
    assert said.splitlines()[-1] == (
        f"synthesizer: error: cannot write {tmp_path}/m (File too large); nothing was written: "
        "raise the limit of file sizes and run the same command again"
    )
    assert not list(tmp_path.glob("*m*"))
    assert forks.run(*words, cwd=tmp_path)[0] == 0


@pytest.mark.parametrize(
    "largest", [pytest.param(1500, marks=slow), 5000, pytest.param(20_000, marks=slow)]
)
def test_an_audit_on_a_full_disk_is_one_line_and_goes_on(home, tmp_path, forks, largest):  # noqa: F811
    """The measurements, the record or the page do not fit."""
    words = audit_words(home, tmp_path / "out")
    code, _, said = forks.run(*words, cwd=tmp_path, largest_file=largest)
    assert code == 2
    assert said.splitlines()[-1].startswith(f"synthesizer: error: cannot write {tmp_path}/out/")
    assert "(File too large)" in said
    code, _, said = forks.run(*words, cwd=tmp_path)
    assert code == 0, said
    assert "going on behind" in said


# the page, and who may read


def test_report_draws_the_page_of_an_audit_again(audited, own, tmp_path, capsys):
    assert main(["report", str(audited / "audit"), "--out", str(tmp_path / "there")]) == 0
    drawn = (audited / "audit" / "report.html").read_bytes()
    assert (tmp_path / "there" / "report.html").read_bytes() == drawn
    page = own / "audit" / "report.html"
    page.unlink()
    capsys.readouterr()
    assert main(["report", str(own / "audit")]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    assert page.exists()
    (own / "audit" / "tables.safetensors").unlink()
    assert main(["report", str(own / "audit")]) == 2
    assert "holds no tables.safetensors, which its page shows" in capsys.readouterr().err


def test_files_follow_the_umask(own, tmp_path):
    old = os.umask(0o027)
    try:
        assert converted(own, tmp_path / "m") == 0
        assert main([*map(str, audit_words(own, tmp_path / "out"))]) == 0
    finally:
        os.umask(old)
    for folder in ("m", "out"):
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / folder).iterdir()}
        del modes[".lock" if folder == "out" else "README.md"]
        assert set(modes.values()) == {0o640}, modes


def test_a_tokenizer_that_was_changed_since_the_audit_is_named(own, tmp_path, capsys):
    path = own / "masked" / "tokenizer_config.json"
    path.write_text(path.read_text().replace("[UNK]", "[CLS]"))
    assert converted(own, tmp_path / "m") == 0
    said = capsys.readouterr().err
    assert f"tokenizer_config.json of {own}/masked was changed since the audit" in said
    assert "config.json of" not in said.replace("tokenizer_config.json of", "")


DAMAGES = {
    "model.safetensors": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "config.json": lambda content: content + b" ",
    "tokenizer.json": lambda content: content + b" ",
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_of_a_converted_folder_is_named(own, tmp_path, capsys, name):
    out = tmp_path / "m"
    assert converted(own, out) == 0
    model = AutoModelForMaskedLM.from_pretrained(out)
    (out / name).write_bytes(DAMAGES[name]((out / name).read_bytes()))
    with pytest.raises(UserError, match=rf"m: {name} is damaged .*; restore it from a copy, or"):
        AutoModelForMaskedLM.from_pretrained(out)
    words = [*map(str, audit_words(own, tmp_path / "again"))]
    assert main([words[0], str(out), *words[2:]]) == 2
    assert f"{name} is damaged" in capsys.readouterr().err
    model.save_pretrained(out)  # the user's own weights, which nobody vouches for
    tokenizer().save_pretrained(out)
    again = type(model).from_pretrained(pretrained_model_name_or_path=out)
    assert again.num_parameters() == model.num_parameters()
