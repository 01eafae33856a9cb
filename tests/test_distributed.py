import math
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from synthesizer.errors import UserError
from synthesizer.experiment.recipe import dump
from synthesizer.experiment.run import Run
from synthesizer.training.accelerator import open_accelerator
from synthesizer.training.loop import fit
from tiny import environment, language_model


def test_two_processes_take_the_steps_of_one(tmp_path):
    """Seven windows per batch: the processes have unequal shares of the targets.

    Validation is two batches, one for each.
    """
    changes = ("train.batch_tokens=84", "train.accumulate=2", "evaluate.batch_tokens=24")
    recipe = language_model(tmp_path, *changes)
    (tmp_path / "recipe.toml").write_text(dump(recipe))
    alone, together = Run(tmp_path / "alone"), Run(tmp_path / "together")
    fit(recipe, alone)
    launch = ["torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m"]
    train = ["synthesizer", "train", tmp_path / "recipe.toml", "--out", together.path, "--plain"]
    command = [sys.executable, "-m", *launch, *map(str, train)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step 3/12") == 1, "only the first process speaks"
    pairs = zip(_numbers(alone.metrics()), _numbers(together.metrics()), strict=True)
    assert all(math.isclose(one, two, rel_tol=1e-5) for one, two in pairs)
    for name in ("tokens", "lr"):
        ours, theirs = alone.metrics(), together.metrics()
        assert [line.get(name) for line in ours] == [line.get(name) for line in theirs]


@contextmanager
def ranks(*commands):
    """Processes of one training, each with a command of its own; all are ended with the test."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(len(commands)), "MASTER_ADDR": "127.0.0.1"}
    started = []
    for rank, words in enumerate(commands):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port)}
        command = [sys.executable, "-m", "synthesizer", "train", *map(str, words), "--plain"]
        env = {**environment(), **shared, **own}
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env))
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_processes_with_different_recipes_do_not_train(tmp_path):
    """They did, and reported success."""
    (tmp_path / "own.toml").write_text(dump(language_model(tmp_path)))
    first = [tmp_path / "own.toml", "--out", tmp_path / "run"]
    with ranks(first, [*first, "--set", "train.lr=0.5"]) as started:
        for process in started:
            _, error = process.communicate(timeout=120)
            assert process.returncode == 2
            assert error.splitlines()[-1] == (
                "synthesizer: error: process 1 was started with another recipe than process 0 "
                "(train.lr: 0.001 -> 0.5); start all of them with the same command"
            )
            assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


def test_a_process_that_dies_is_one_line_on_the_others(tmp_path):
    recipe = language_model(tmp_path, "train.steps=100000", "evaluate.every=100000")
    (tmp_path / "own.toml").write_text(dump(recipe))
    command = [tmp_path / "own.toml", "--out", tmp_path / "run"]
    with ranks(command, command) as (first, second):
        while not first.stdout.readline().startswith("step"):
            assert first.poll() is None, first.stderr.read()
        second.kill()
        _, error = first.communicate(timeout=120)
    assert first.returncode == 2
    assert error.splitlines() == [
        "synthesizer: error: process 0: another process of this training ended; "
        "see what it said, and run the same command to continue from the last checkpoint"
    ]


def test_training_alone_where_more_were_asked_for_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(UserError, match="without MPI, started one; use torchrun --nproc_per_node"):
        open_accelerator(language_model(tmp_path))


def _numbers(lines):
    for line in lines:
        for value in line.values():
            yield from value.values() if isinstance(value, dict) else [value]
