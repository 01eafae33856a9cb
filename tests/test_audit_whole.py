"""Audits and conversions are whole or not there, and a stopped audit ends with the same record."""

import json
import os
import shutil
import signal
import stat

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM

from pretrained import build, tokenizer
from synthesizer_attention.audit.cost import Auditor, Point
from synthesizer_attention.audit.load import hash_weights
from synthesizer_attention.audit.record import Measured
from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError
from test_damage import flip

slow = pytest.mark.slow  # a process of its own each


def audit_words(home, out):
    return [
        "audit", home / "masked", home / "texts.txt", "--max-len", "12", "--rank-examples", "4",
        "--fit-examples", "20", "--rankings", "1", "--steps", "1", "--out", out,
    ]  # fmt: skip


@pytest.fixture
def own(audits, tmp_path):
    """A copy of a model, its texts and its audit, as one made there would be."""
    home, (done, _) = tmp_path / "own", audits.finished("loss")
    shutil.copytree(audits.model("masked"), home / "masked")
    shutil.copy(audits.home / "texts.txt", home)
    shutil.copytree(done, home / "audit")
    path = home / "audit" / "audit.json"
    path.write_text(path.read_text().replace(str(audits.home), str(home)))
    return home


def converted(folder, out, *more):
    return main(["convert", str(folder / "audit"), "--heads", "2", "--out", str(out), *more])


# a stopped audit


def stopped(audits, out, case, at, **more):
    """Audit until something is said."""

    def say(text):
        if text.startswith(at):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audits.measured(case, out, say, **more)


def without_times(record):
    left_out = ("speed", "command", "checksum")
    return {name: value for name, value in record.items() if name not in left_out}


@pytest.mark.parametrize(
    ("metric", "at"), [("spearman", "3 of 6 heads ranked"), ("loss", "2 of 6 heads replaced")]
)
def test_the_record_is_that_of_an_audit_in_one_piece(audits, tmp_path, monkeypatch, metric, at):
    """Also where the last line was cut off."""
    audited, whole = audits.finished(metric)
    calls, plain, said = [], Auditor.outputs, []

    def outputs(self, heads, examples, *keep):
        calls.append(len(heads))
        return plain(self, heads, examples, *keep)

    monkeypatch.setattr(Auditor, "outputs", outputs)
    stopped(audits, tmp_path, metric, at)
    assert not (tmp_path / "audit.json").exists()
    path = tmp_path / "measured.jsonl"
    if metric == "loss":
        path.write_text(path.read_text()[:-9])
        stopped(audits, tmp_path, metric, at)
    assert all(json.loads(line) for line in path.read_text().splitlines())
    audits.measured(metric, tmp_path, said.append)
    number = {"3": 6, "2": 6 + 3 + 2}[at[0]]  # heads alone, behind three, and 0 and 1 replaced
    assert f"going on behind {number} measurements" in said
    resumed = json.loads((tmp_path / "audit.json").read_text())
    assert without_times(resumed) == without_times(whole)
    tables = [(folder / "tables.safetensors").read_bytes() for folder in (tmp_path, audited)]
    assert tables[0] == tables[1]
    assert not path.exists()
    measured = 2 + 6 + 1 + 3 + 4 + 2 + 1  # originals, heads, behind three, curve, control, moved
    assert len(calls) <= measured + 6  # originals again, and the point that was not finished


def test_another_audit_is_not_gone_on_with(audits, own, tmp_path):
    out = tmp_path / "out"
    stopped(audits, out, "loss", "3 of 6 heads ranked", home=own)
    with pytest.raises(UserError, match="of an unfinished audit whose seed was 0, and now it is 1"):
        audits.measured("loss", out, home=own, seed=1)

    def weights(path):  # a bias behind the last layer changes no average attention
        tensors = load_file(path)
        tensors["cls.predictions.bias"] += 1
        save_file(tensors, path, metadata={"format": "pt"})

    for name, change, said in (
        ("texts.txt", lambda path: path.write_text(path.read_text().replace("w3", "w4")),
         "checksum of texts"),
        ("masked/tokenizer_config.json", lambda path: path.write_text(path.read_text() + " "),
         "sha256 of config and tokenizer"),
        ("masked/model.safetensors", weights, "sha256 of weights"),
    ):  # fmt: skip
        written = (own / name).read_bytes()
        change(own / name)
        with pytest.raises(UserError, match=f"of an unfinished audit whose {said} was"):
            audits.measured("loss", out, home=own)
        (own / name).write_bytes(written)
    path = out / "measured.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    digit = lines[3].index("0.") + 2
    lines[3] = lines[3][:digit] + str((int(lines[3][digit]) + 1) % 10) + lines[3][digit + 1 :]
    path.write_text("".join(lines))
    with pytest.raises(UserError, match=r"jsonl is damaged \(.*the checksum of .* is another"):
        audits.measured("loss", out, home=own)


POINT = {"replaced": 1, "value": 2.0, "cost": float("nan"), "low": 0.1, "high": 1.5}
BEGUN = b'{"facts": {"seed": "0"}}\n'
JUNK = {
    "no UTF-8": b"\xff\n",
    "a deep list": b"[" * 100_000 + b"\n",
    "a number": b"5\n",
    "words": b"no record\n",
    "a line of text": BEGUN + b'"x"\n',
    "a name that is a list": BEGUN + b'{"name": [], "found": {}}\n',
    "a list for a point": BEGUN + b'{"name": "one", "found": [1]}\n',
    "a point without its value": BEGUN + b'{"name": "one", "found": {}}\n',
    "a point of text": BEGUN
    + json.dumps({"name": "one", "found": POINT | {"value": "x"}}).encode()
    + b"\n",
}


@pytest.mark.parametrize("junk", JUNK)
def test_junk_among_measurements_is_one_line(tmp_path, junk):
    made = Measured(tmp_path, {"seed": "0"})("one", lambda: Point(**POINT), Point)
    assert repr(Measured(tmp_path, {"seed": "0"})("one", pytest.fail, Point)) == repr(made)
    (tmp_path / "measured.jsonl").write_bytes(JUNK[junk])
    with pytest.raises(UserError, match=r"measured.jsonl is damaged \(.*\); delete it") as error:
        Measured(tmp_path, {"seed": "0"})("one", lambda: Point(**POINT), Point)
    assert "\n" not in str(error.value)


# which weights


def test_other_weights_are_not_converted(own, tmp_path, monkeypatch, capsys):
    weights = own / "masked" / "model.safetensors"
    written = weights.read_bytes()
    build("bert", seed=5).save_pretrained(own / "masked")
    assert converted(own, tmp_path / "m") == 2
    said = capsys.readouterr().err
    assert f"the weights of {own}/masked are not those that {own}/audit was made of" in said
    assert said.count("synthesizer: error") == 1
    assert not (tmp_path / "m").exists()
    shutil.copytree(own / "masked", tmp_path / "elsewhere" / "masked")  # at the same relative path
    weights.write_bytes(written)
    path = own / "audit" / "audit.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model": "masked"}))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert converted(own, tmp_path / "m") == 0  # the one that was audited, where it was
    ours = AutoModelForMaskedLM.from_pretrained(tmp_path / "m").get_input_embeddings().weight
    assert torch.equal(ours, load_file(weights)["bert.embeddings.word_embeddings.weight"])
    shutil.rmtree(own / "masked")
    assert converted(own, tmp_path / "n") == 2
    assert "the weights of masked are not those" in capsys.readouterr().err


def test_an_audit_of_an_older_version_is_converted_with_a_word(own, tmp_path, capsys):
    path = own / "audit" / "audit.json"
    record = json.loads(path.read_text())
    for name in (
        "path", "weights", "readers", "files", "num_fit_rows", "num_judge_rows", "untimed",
        "checksum",
    ):  # fmt: skip
        del record[name]
    path.write_text(json.dumps(record))
    assert converted(own, tmp_path / "m") == 0
    assert "names no sha256 of the weights: they cannot be compared" in capsys.readouterr().err
    assert main(["report", str(own / "audit")]) == 0


def test_every_shard_has_its_hash(tmp_path):
    build("bert").save_pretrained(tmp_path, max_shard_size="20KB")
    found = hash_weights(str(tmp_path))
    assert {*found} == {path.name for path in tmp_path.glob("*.safetensors")}
    assert len(found) > 1
    (tmp_path / "m.gguf").write_bytes(b"gguf")
    assert list(hash_weights(str(tmp_path / "m.gguf"))) == ["m.gguf"]


def test_damage_to_an_audit_is_named(own, tmp_path, capsys):
    path = own / "audit" / "audit.json"
    text = path.read_text()
    path.write_text(text.replace('"value": ', '"value": 1', 1))
    for verb in (lambda: converted(own, tmp_path / "m"), lambda: main(["report", f"{own}/audit"])):
        path.write_text(text.replace('"value": ', '"value": 1', 1))
        assert verb() == 2
        assert "it was damaged: its checksum is another" in capsys.readouterr().err
        path.write_text(text)
        flip(own / "audit" / "tables.safetensors")
        assert verb() == 2
        assert "tables.safetensors is damaged (its sha256 is not" in capsys.readouterr().err
        flip(own / "audit" / "tables.safetensors")


# killed, or on a full disk


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("synthesizer_attention.audit.run:_speeds", marks=slow),  # all is measured
        "synthesizer_attention.audit.run:audit_page",  # tables are written
        "synthesizer_attention.audit.record:Measured.finish",  # audit.json is written
    ],
)
def test_a_killed_audit_goes_on_or_is_whole(audits, tmp_path, forks, moment):
    audits.model("masked")
    words, out = audit_words(audits.home, tmp_path / "out"), tmp_path / "out"
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
    [  # weights are written; the reader is; all is, and not moved
        pytest.param("synthesizer_attention.audit.load:Reader.save", marks=slow),
        pytest.param("synthesizer_attention.audit.convert:model_card", marks=slow),
        "synthesizer_attention.audit.convert:_clear",
    ],
)
def test_a_killed_conversion_leaves_nothing_in_its_place(own, tmp_path, forks, moment):
    words = ["convert", own / "audit", "--heads", "2", "--out", tmp_path / "m"]
    assert forks.run(*words, cwd=tmp_path, dies_in=moment)[0] == -signal.SIGKILL
    assert not (tmp_path / "m").exists()
    code, _, said = forks.run(*words, cwd=tmp_path)
    assert code == 0, said
    assert [path.name for path in tmp_path.iterdir() if "m." in path.name] == []  # it was removed
    AutoModelForMaskedLM.from_pretrained(tmp_path / "m")


def test_a_killed_tuning_goes_on_although_its_checkpoint_is_half_written(own, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / ".tuning.safetensors.4194305.partial").touch()
    (tmp_path / "m" / ".tmpAbCdEf").touch()  # as safetensors calls a file that it has not written
    assert converted(own, tmp_path / "m", "--tune", "2", "--texts", str(own / "texts.txt")) == 0
    assert not [path for path in (tmp_path / "m").iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("largest", [pytest.param(600, marks=slow), 4000])
def test_a_conversion_on_a_full_disk_is_one_line_and_can_be_repeated(own, tmp_path, forks, largest):
    words = ["convert", own / "audit", "--heads", "2", "--out", tmp_path / "m"]
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
def test_an_audit_on_a_full_disk_is_one_line_and_goes_on(audits, tmp_path, forks, largest):
    """The measurements, the record or the page do not fit."""
    audits.model("masked")
    words = audit_words(audits.home, tmp_path / "out")
    code, _, said = forks.run(*words, cwd=tmp_path, largest_file=largest)
    assert code == 2
    assert said.splitlines()[-1].startswith(f"synthesizer: error: cannot write {tmp_path}/out/")
    assert "(File too large)" in said
    code, _, said = forks.run(*words, cwd=tmp_path)
    assert code == 0, said
    assert "going on behind" in said


# the page, who may read, and what was changed since


def test_report_draws_the_page_of_an_audit_again(own, tmp_path, capsys):
    page = own / "audit" / "report.html"
    assert main(["report", str(own / "audit"), "--out", str(tmp_path / "there")]) == 0
    page.unlink()
    capsys.readouterr()
    assert main(["report", str(own / "audit")]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    assert (tmp_path / "there" / "report.html").read_bytes() == page.read_bytes()
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


DAMAGES = {
    "model.safetensors": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "config.json": lambda content: content + b" ",
    "tokenizer.json": lambda content: content + b" ",
}


def test_a_damaged_file_of_a_converted_folder_is_named(own, tmp_path, capsys):
    out, config = tmp_path / "m", own / "masked" / "tokenizer_config.json"
    config.write_text(config.read_text().replace("[UNK]", "[CLS]"))
    assert converted(own, out) == 0
    said = capsys.readouterr().err
    assert f"tokenizer_config.json of {own}/masked was changed since the audit" in said
    assert "config.json of" not in said.replace("tokenizer_config.json of", "")
    model = AutoModelForMaskedLM.from_pretrained(out)
    words = [*map(str, audit_words(own, tmp_path / "again"))]
    for name, damage in DAMAGES.items():
        written = (out / name).read_bytes()
        (out / name).write_bytes(damage(written))
        with pytest.raises(UserError, match=rf"m: {name} is damaged .*; restore it from"):
            AutoModelForMaskedLM.from_pretrained(out)
        assert main([words[0], str(out), *words[2:]]) == 2
        assert f"{name} is damaged" in capsys.readouterr().err
        (out / name).write_bytes(written)
    (out / name).write_bytes(damage(written))
    model.save_pretrained(out)  # the user's own weights, which nobody vouches for
    tokenizer().save_pretrained(out)
    again = type(model).from_pretrained(pretrained_model_name_or_path=out)
    assert again.num_parameters() == model.num_parameters()
