import json
import os
import platform
import stat
import subprocess
import sys

import numpy as np
import pytest

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.files import locked, write_atomically
from synthesizer_attention.run.run import Run, default_path
from tiny import environment, language_model


def test_a_new_directory_is_claimed_and_keeps_the_resolved_recipe(tmp_path):
    recipe, run = language_model(tmp_path), Run(tmp_path / "new" / "run")
    run.claim(recipe)
    with run.held(recipe):
        assert run.recipe() == recipe
    assert not run.is_finished


def test_a_run_of_another_recipe_is_refused_and_the_keys_are_named(tmp_path):
    run = Run(tmp_path / "run")
    with run.held(language_model(tmp_path)):
        run.log(3, {"loss": 1.0})
    other = language_model(tmp_path, "train.steps=99", "seed=7")
    with pytest.raises(UserError, match=r"another recipe \(seed: 1 -> 7; train.steps: 12 -> 99\)"):
        run.claim(other)


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    recipe = language_model(tmp_path)
    with pytest.raises(UserError, match="exists and is not a run; choose another --out"):
        Run(tmp_path).claim(recipe)
    with pytest.raises(UserError, match=r"holds no recipe.toml, so it is not a run"):
        Run(tmp_path).recipe()


def test_what_a_killed_start_leaves_behind_is_used(tmp_path):
    recipe, run = language_model(tmp_path), Run(tmp_path / "run")
    run.checkpoints.mkdir(parents=True)
    (run.path / ".recipe.toml.123.partial").write_text("half")
    run.claim(recipe)
    with run.held(recipe):
        assert run.recipe() == recipe
    assert not list(run.path.glob(".*.partial"))


def test_what_a_refused_start_leaves_behind_is_used_by_the_corrected_recipe(tmp_path):
    """A path that was mistyped, say: nothing was trained, and nothing is lost."""
    run = Run(tmp_path / "run")
    with run.held(language_model(tmp_path, "data.train=txet.txt")):
        pass
    right = language_model(tmp_path)
    run.claim(right)
    with run.held(right):
        assert run.recipe() == right


def test_a_recipe_that_waited_for_another_run_is_refused(tmp_path):
    run, other = Run(tmp_path / "run"), language_model(tmp_path, "seed=7")
    run.claim(other)  # before the other process has begun
    with run.held(language_model(tmp_path)):
        run.log(3, {"loss": 1.0})
    with pytest.raises(UserError, match="another recipe"), run.held(other):
        pass
    assert run.recipe() == language_model(tmp_path)


def test_an_out_that_cannot_be_a_directory_is_refused_by_name(tmp_path):
    """It was called a damaged run, to be deleted."""
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    recipe = language_model(tmp_path)
    for name in ("notes.txt", "loop"):
        with pytest.raises(UserError, match=rf"{name} exists and is not a directory; choose ano"):
            Run(tmp_path / name).claim(recipe)
    for name in ("notes.txt/run", "loop/run"):
        run = Run(tmp_path / name)
        run.claim(recipe)
        with pytest.raises(UserError, match=r"cannot make .*; check --out"), run.held(recipe):
            pass
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_write_syncs_the_file_and_its_directory(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_mode), fsync(fd)))
    write_atomically(tmp_path / "file", lambda beside: beside.write_text("new"))
    assert [stat.S_ISDIR(mode) for mode in synced] == [False, True]


def test_two_processes_cannot_train_in_one_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("synthesizer_attention.run.files.PATIENCE", 0.3)
    recipe, path, said = language_model(tmp_path), tmp_path / "run", []
    who = f"process {os.getpid()} on {platform.node()}"
    with (
        Run(path).held(recipe),
        pytest.raises(UserError, match="wait for it, stop it, or choose another") as error,
        Run(path).held(recipe, said.append),
    ):
        pass
    assert str(error.value).startswith(f"{who} is training in {path}; ")
    assert said == [f"waiting for {who}, which is training in {path}"]


def test_a_lock_is_waited_for_and_ends_with_its_process(tmp_path):
    script = """
import sys, time
from pathlib import Path
from synthesizer_attention.run.files import locked
with locked(Path(sys.argv[1]), "training", print):
    print("held", flush=True)
    time.sleep(60)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    said = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as other:
        assert other.stdout.readline() == b"held\n"

        def say(text):
            said.append(text)
            other.kill()

        with locked(tmp_path, "training", say):
            pass
    assert said[0].startswith(f"waiting for process {other.pid} on ")


def test_rewinding_forgets_later_steps_and_a_line_that_was_cut_off(tmp_path):
    run = Run(tmp_path)
    for step in (1, 2, 3):
        run.log(step, {"loss": step / 3})
        run.log_time(step, {"seconds": 1.0})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    run.rewind(2)
    assert run.metrics() == [{"step": 1, "loss": 1 / 3}, {"step": 2, "loss": 2 / 3}]
    assert [line["step"] for line in run.timing()] == [1, 2]
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text == "".join(json.dumps(line) + "\n" for line in run.metrics())


def test_a_write_that_fails_leaves_what_stood_there(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def run_out_of_space(beside):
        beside.write_text("half")
        raise OSError(28, os.strerror(28))

    with pytest.raises(UserError, match=r"No space left on device.*the old file is intact"):
        write_atomically(path, run_out_of_space)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_arrays_are_read_back_without_pickle(tmp_path):
    run = Run(tmp_path)
    run.write_arrays("statistics.npz", {"bleu": np.eye(3)})
    with np.load(tmp_path / "statistics.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["bleu"], np.eye(3))


def test_a_run_without_result_says_so(tmp_path):
    with pytest.raises(UserError, match=r"holds no result.json; train the run to its end first"):
        Run(tmp_path).result()


def test_the_path_of_a_run_spells_its_variant(tmp_path):
    recipe = language_model(tmp_path, "seed=3", synthesis="factorized_random:k=4+dot")
    expected = "runs/language_modeling/factorized_random_k=4+dot/seed3"
    assert default_path(recipe).as_posix() == expected
