"""Damaged run directories, killed starts, and disks that are full or read-only."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager

import pytest

from synthesizer_attention.bench import page
from synthesizer_attention.bench.plan import Plan, Result
from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError
from synthesizer_attention.report.load import read_run
from synthesizer_attention.run.files import checksum, digest, remove_leftovers, sha256, write_text
from synthesizer_attention.run.recipe import dump
from synthesizer_attention.run.run import Run
from synthesizer_attention.study.plan import draw_up
from synthesizer_attention.study.rows import Asked
from synthesizer_attention.study.workers import Jobs, open_pool
from synthesizer_attention.training.finish import load_model, measure
from synthesizer_attention.training.loop import fit
from tiny import language_model


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A recipe and its finished run."""
    folder = tmp_path_factory.mktemp("damage")
    os.environ["SYNTHESIZER_CACHE"] = str(folder / "cache")
    recipe, run = language_model(folder), Run(folder / "run")
    fit(recipe, run)
    (folder / "own.toml").write_text(dump(recipe))
    return recipe, run


@pytest.fixture
def copy(finished, tmp_path):
    """The finished run, to be damaged."""
    return Run(shutil.copytree(finished[1].path, tmp_path / "copy"))


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def as_older_versions(run, kind):
    """Take the hashes out of result.json: into manifest.json, as once, or away, as before that."""
    path = run.path / "result.json"
    stored = json.loads(path.read_text())
    files = stored.pop("files")
    del stored["checksum"]
    path.write_text(json.dumps(stored, indent=2) + "\n")
    if kind == "manifest.json":
        files["result.json"] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        text = json.dumps({"files": files, "sha256": digest(files)}, indent=1) + "\n"
        (run.path / kind).write_text(text)
    return run


@pytest.fixture(params=["result.json", "manifest.json"])
def hashed(request, copy):
    """A run with hashes in its record, and one of an older version; and where they are."""
    if request.param == "manifest.json":
        as_older_versions(copy, request.param)
    return copy, request.param


def test_the_record_knows_every_file_that_is_read_back(finished):
    _, run = finished
    files = json.loads((run.path / "result.json").read_text())["files"]
    there = {p.relative_to(run.path).as_posix() for p in run.path.rglob("*") if p.is_file()}
    assert {*files} == there - {".lock", "result.json", "model/README.md"}
    assert not {"files", "checksum"} & {*run.result()}
    run.check("")


@pytest.mark.parametrize("name", ["model/model.safetensors", "statistics.npz", "recipe.toml"])
def test_a_flipped_bit_is_named_with_what_to_do(hashed, name):
    run, where = hashed
    flip(run.path / name)
    words = rf"copy: {name} is damaged \(its sha256 is not the one in {where}\); restore it from a "
    with pytest.raises(UserError, match=words):
        measure(run.path, "test", None)
    run.check(hashes=False)


def test_a_changed_record_and_a_missing_file_are_named(hashed):
    run, where = hashed
    (run.path / "model" / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"model/tokenizer.json is missing; restore it"):
        load_model(run)
    text = (run.path / where).read_text()
    (run.path / where).write_text(text.replace('"bytes": 1', '"bytes": 2', 1))
    with pytest.raises(UserError, match=rf"{where} is damaged \(its checksum is another\); rest"):
        load_model(run)
    stored = json.loads(text)
    stored["files"]["../../outside"] = {"bytes": 1, "sha256": ""}
    stored |= {"sha256": digest(stored["files"])} if where == "manifest.json" else {}
    stored |= {"checksum": checksum(stored)} if where == "result.json" else {}
    (run.path / where).write_text(json.dumps(stored))
    with pytest.raises(UserError, match=rf"unreadable {where} \(ValueError\)"):
        load_model(run)


@pytest.mark.parametrize("text", ["{}", "[]", "null", ""])
def test_a_result_of_rubbish_is_not_a_finished_run(finished, copy, text):
    """It was: "finished; nothing to do"."""
    (copy.path / "result.json").write_text(text)
    for act in (lambda: fit(finished[0], copy), lambda: load_model(copy)):
        with pytest.raises(UserError, match=r"(unreadable|not) .*(result.json|the record)"):
            act()


def test_a_run_whose_result_is_gone_does_not_start_over(finished, hashed):
    run, where = hashed
    (run.path / "result.json").unlink()
    words = "it was trained to its end, but result.json and the"
    with pytest.raises(UserError, match="is missing; rest" if where == "manifest.json" else words):
        fit(finished[0], run)


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_over(finished, tmp_path):
    recipe, run = finished[0], Run(tmp_path / "run")
    with run.held(recipe):
        (run.checkpoints / "step-4.safetensors").write_text("rubbish")
    with pytest.raises(UserError, match=r"none of its 1 checkpoints can be read; restore them"):
        fit(recipe, run)


def test_files_of_a_run_follow_the_umask(finished):
    """Those of safetensors were private whatever it said."""
    old = os.umask(0o022)
    os.umask(old)
    modes = {p.name: p.stat().st_mode & 0o777 for p in finished[1].path.rglob("*") if p.is_file()}
    del modes[".lock"]
    assert set(modes.values()) == {0o666 & ~old}, modes


@contextmanager
def as_somebody_else():
    """Without root's right to read everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model/model.safetensors", "model/model.safetensors may not be read; ask its owner for"),
        ("result.json", "result.json may not be read; ask its owner"),
        ("checkpoints/best.safetensors", "best.safetensors may not be read; ask its owner"),
    ],
)
def test_a_file_that_may_not_be_read_is_not_called_damaged(finished, capsys, name, said):
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are private
        os.chmod(folder, 0o755)
        path = shutil.copytree(finished[1].path, f"{folder}/run")
        os.chmod(f"{path}/{name}", 0)
        more = ["--checkpoint", "best"] if "best" in name else []
        with as_somebody_else():
            assert main(["evaluate", str(path), *more]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "delete" not in err
    assert err.count("\n") == 1


def test_a_run_without_hashes_loads(copy):
    as_older_versions(copy, "none")
    assert load_model(copy).config.d_model == 8
    assert read_run(copy.path).state == "finished"


def test_hashes_of_weights_are_left_out_when_told(copy, capsys):
    flip(copy.path / "model" / "model.safetensors")
    assert main(["evaluate", str(copy.path)]) == 2
    assert "model/model.safetensors is damaged" in capsys.readouterr().err
    assert main(["evaluate", str(copy.path), "--no-verify"]) == 0


@pytest.mark.parametrize("name", ["statistics.npz", "result.json", "recipe.toml", "attention.npz"])
def test_a_report_names_a_damaged_file_and_leaves_the_run_out(hashed, name):
    run, where = hashed
    flip(run.path / name)
    record = read_run(run.path)
    assert record.result is None
    said = f"{name} is damaged (its sha256 is not the one in {where})"
    if name == where:
        assert re.fullmatch(r"result\.json is damaged .*|unreadable result\.json .*", record.state)
    else:
        assert record.state == said


def test_a_report_needs_no_weights_but_all_of_them_or_none(copy):
    config = copy.path / "model" / "config.json"
    config.unlink()
    assert read_run(copy.path).state == "model/config.json is missing"
    for name in ("model", "checkpoints"):
        shutil.rmtree(copy.path / name, ignore_errors=True)
    assert read_run(copy.path).state == "finished"
    with pytest.raises(UserError, match=r"model/config\.json is missing"):
        copy.check()


def test_a_report_of_an_old_run_checks_what_it_can(copy):
    as_older_versions(copy, "none")
    recipe = (copy.path / "recipe.toml").read_text()
    (copy.path / "recipe.toml").write_text(recipe.replace("language_modeling", "dialogue"))
    assert read_run(copy.path).state == "recipe.toml and result.json disagree on task"
    (copy.path / "recipe.toml").write_text("")
    assert read_run(copy.path).state == "unreadable recipe.toml (KeyError)"


@pytest.mark.parametrize("text", ["[1]\n", "{}\n", '{"step": "x"}\n', "\0\0\n"])
def test_a_damaged_line_of_metrics_is_named(tmp_path, finished, text):
    run = Run(tmp_path / "run")
    with run.held(finished[0]):
        run.log(1, {"loss": 1.0})
        with (run.path / "metrics.jsonl").open("a") as file:
            file.write(text)
    with pytest.raises(UserError, match=r"run: line 2 of metrics.jsonl is damaged; restore it"):
        run.metrics()
    assert read_run(run.path).state == "unreadable metrics.jsonl"


def test_a_comparison_killed_before_its_first_record_goes_on(tmp_path):
    """It was: "exists and is not a comparison; choose another --out"."""
    out = tmp_path / "study"
    out.mkdir()
    (out / "worker1.log").write_text("")
    (out / f".study.json.{2**22 + 1}.partial").write_text("{")
    assert draw_up(Asked(recipe="shift", out=out)).out == out
    with open_pool(out, Jobs(), print):
        assert not list(out.glob("*.partial"))
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="exists and is not a comparison; choose another --out"):
        draw_up(Asked(recipe="shift", out=out))


def test_temporary_files_of_killed_writers_alone_are_removed(tmp_path):
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    dead, alive = (tmp_path / f".report.html.{p}.partial" for p in (done.pid, os.getpid()))
    dead.touch()
    alive.touch()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [alive.name]


def test_temporary_files_of_a_killed_run_are_removed_in_every_folder(tmp_path, finished):
    run = Run(tmp_path / "run")
    run.checkpoints.mkdir(parents=True)
    (run.checkpoints / ".step-4.safetensors.77.partial").touch()
    (run.checkpoints / ".tmpdXmlwU").touch()  # as safetensors calls a file that it has not written
    with run.held(finished[0]):
        assert not list(run.checkpoints.iterdir())


def test_save_model_says_a_full_disk_in_one_line(finished, tmp_path, monkeypatch):
    from synthesizer_attention.training import finish

    class Full:
        class tokenizer:  # noqa: N801
            @staticmethod
            def save_pretrained(folder):
                raise Exception("No space left on device (os error 28)")

    model = load_model(finished[1])
    with pytest.raises(UserError, match=r"cannot write .*model \(No space left .*\); the checkp"):
        finish.save_model(model, Full, Run(tmp_path), finished[0], {})


def test_a_read_only_disk_is_one_line(tmp_path, monkeypatch):
    def read_only(*arguments, **options):
        raise OSError(30, os.strerror(30), str(arguments[0]))

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(os, "unlink", read_only)
    with pytest.raises(UserError, match=r"Read-only file system\); make it writable, or choose"):
        write_text(tmp_path / "file", "text")


def test_a_benchmark_writes_atomically_and_says_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "_page", lambda *_: "page")

    result = Result(Plan(), {"long": "x" * 10_000})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write .*bench.json \(File too large\)"):
            page.write(result, "bench", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)
    assert not list(tmp_path.iterdir())


def test_errors_of_the_file_system_are_one_line(monkeypatch, capsys, tmp_path):
    from synthesizer_attention.training import preview

    def full(recipe):
        raise OSError(28, os.strerror(28), "/some/file")

    monkeypatch.setattr(preview, "describe", full)
    assert main(["train", "shift", "--check"]) == 2
    assert capsys.readouterr().err == (
        "synthesizer: error: /some/file: No space left on device; "
        "free some space and run the same command again\n"
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model.max_len=1000000", r"this model takes [\d,.]+ GB of weights and gradients, most in"),
        ("model.max_len=1000000", r"synthesis \(factorized_random and relative need no table"),
        (
            "model.d_ff=16777216 model.d_model=16384",
            r"the machine has [\d,.]+ GB; lower model.max_len",
        ),
        ("model.d_ff=4611686018427387904", r"expected less than or equal to 16777216"),
        ("train.lr=inf", r"expected a finite number"),
    ],
)
def test_absurd_sizes_are_refused_before_anything_is_allocated(tmp_path, change, words):
    with pytest.raises(UserError, match=words):
        fit(language_model(tmp_path, *change.split()), Run(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_directory_of_more_files_than_a_corpus_has_is_refused(tmp_path, monkeypatch):
    """The root of a file system was walked for minutes."""
    monkeypatch.setattr("synthesizer_attention.data.files.MAX_FILES", 10)
    for number in range(11):
        (tmp_path / f"{number}.txt").write_text("text")
    recipe = language_model(tmp_path, f"data.train={tmp_path}")
    with pytest.raises(UserError, match=r"holds more than 10 files; name a directory of text"):
        fit(recipe, Run(tmp_path / "run"))
