"""What the system refuses (a disk, memory, other processes) is one line with advice that fits."""

import errno
import fcntl
import os
import shutil

import pytest
import torch

from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.files import locked, write_text
from synthesizer_attention.run.recipe import dump, load_recipe
from synthesizer_attention.run.run import Run
from synthesizer_attention.tasks import build_task
from synthesizer_attention.training import evaluate
from synthesizer_attention.training.loop import Loop, fit
from test_training import Told, assert_same_outcome
from tiny import language_model


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "the old file is intact: free some space and run the same command again"),
        (errno.EDQUOT, "the old file is intact: free some of your quota and run the same command"),
        (errno.EIO, "the old file is intact: the disk reports an error: check it, and run"),
        (errno.ESTALE, "the old file is intact: the disk of a server was lost: mount it and run"),
        (errno.EROFS, "make it writable, or choose another --out"),
        (errno.ENOENT, "its directory was deleted or moved: put it back, or run the same command"),
        (errno.ENXIO, "the old file is intact: see to it, and run the same command again"),
    ],
)
def test_the_advice_fits_what_a_disk_reports(tmp_path, monkeypatch, number, advice):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(UserError) as refused:
        write_text(tmp_path / "file", "new")
    found = f"cannot write {tmp_path / 'file'} ({os.strerror(number)}); "
    assert str(refused.value).startswith(found + advice)
    assert not list(tmp_path.iterdir())


def test_a_run_whose_directory_was_deleted_is_not_told_to_free_space(tmp_path):
    run = Run(tmp_path / "run")
    watched = Told(at=6, act=lambda: shutil.rmtree(run.path))
    with pytest.raises(UserError, match=r"No such file.*; its directory was deleted or moved: put"):
        fit(language_model(tmp_path), run, watched)


def test_a_disk_without_locks_is_named_as_such(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UserError) as refused, locked(tmp_path, "training", print):
        pass
    assert str(refused.value) == (
        f"cannot write {tmp_path / '.lock'} (No locks available); nothing was written: this disk "
        "gives no locks: choose a path on another, or mount it with locks"
    )


def full():
    torch.empty(2**55)  # a real "DefaultCPUAllocator: can't allocate memory"


def test_a_step_out_of_memory_names_the_key_to_lower_and_leaves_the_last_checkpoint(
    tmp_path, monkeypatch
):
    recipe, whole, run = language_model(tmp_path), Run(tmp_path / "whole"), Run(tmp_path / "run")
    fit(recipe, whole)
    with monkeypatch.context() as patch:
        loss = Loop._loss
        patch.setattr(
            Loop,
            "_loss",
            lambda self, *rest: full() if self.state.step == 5 else loss(self, *rest),
        )
        with pytest.raises(UserError) as refused:
            fit(recipe, run)
    last = run.checkpoints / "step-4.safetensors"
    assert str(refused.value) == (
        f"memory ran out at step 6; the last good checkpoint is {last}; free some and run the same "
        "command, or lower train.batch_tokens, which is 48, in another --out (a higher "
        "train.accumulate, which is 1, makes up for it)"
    )
    fit(recipe, run)
    assert_same_outcome(run, whole)


@pytest.mark.parametrize("raised", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory.")])
def test_an_evaluation_out_of_memory_names_its_own_key(tmp_path, monkeypatch, raised):
    def refuse(*_):
        raise raised

    monkeypatch.setattr(evaluate, "_measure", refuse)
    with pytest.raises(UserError, match=r"^memory ran out on validation; lower evaluate.batch_tok"):
        fit(language_model(tmp_path, "evaluate.batch_tokens=2048"), Run(tmp_path / "run"))


def test_whatever_runs_out_of_memory_is_one_line(monkeypatch, capsys):
    from synthesizer_attention.training import preview

    monkeypatch.setattr(preview, "describe", lambda recipe: full())
    assert main(["train", "shift", "--check"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("synthesizer: error: this machine has too little memory ([enforce fail")
    assert said.count("\n") == 1


@pytest.mark.parametrize("size", ["2", "two"])
def test_one_of_several_processes_that_nobody_launched_is_one_line(tmp_path, forks, size):
    (tmp_path / "own.toml").write_text(dump(language_model(tmp_path)))
    words = ("train", "own.toml", "--out", "run")
    code, _, said = forks.run(*words, cwd=tmp_path, env={"WORLD_SIZE": size})
    begin = f"synthesizer: error: WORLD_SIZE={size} says that this is one of several processes, and"
    assert code == 2
    assert said.startswith(begin)
    assert said.endswith("-m synthesizer_attention train ..., or unset WORLD_SIZE\n")
    assert said.count("\n") == 1


def long_csv(path, count):
    names = [f"column{n}" for n in range(count)]
    lines = [",".join(names), *(",".join([f"x{n}"] * count) for n in range(3))]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_row_of_names_is_cut(tmp_path, capsys):
    path = long_csv(tmp_path / "wide.csv", 30_000)
    assert main(["compare", str(path), "--out", str(tmp_path / "out")]) == 2
    shown = ", ".join(f"column{n}" for n in range(10))
    assert capsys.readouterr().err == (
        f"synthesizer: error: {path} has the columns {shown} and 29,990 more and none of text; "
        "expected text and label, source and target, or text\n"
    )


def test_no_message_grows_with_what_a_user_gives(tmp_path):
    """Columns, labels, keys and values: each of these was written out in full."""
    own, path = tmp_path / "own.toml", long_csv(tmp_path / "wide.csv", 2000)
    labels = [f"label {n}" for n in range(900)]
    sets = {
        "columns": ["task=classification", f"data.train={path}", "data.columns.text=none"],
        "labels": ["task=classification", f"data.train={path}", f"data.labels={labels}"],
        "values": ["model.d_model=" + "9" * 50_000],
    }
    for changes in sets.values():
        with pytest.raises(UserError) as refused:
            build_task(load_recipe("classification", overrides=changes))
        assert len(str(refused.value)) < 2000
    own.write_text("\n".join(f"key{n} = {n}" for n in range(900)))
    with pytest.raises(UserError, match=r"; and 8\d\d more") as refused:
        load_recipe(str(own))
    assert len(str(refused.value)) < 10_000
