"""Runs that are really killed, in processes of their own."""

import json
import random
import signal
import time
from functools import partial

import pytest

from synthesizer_attention.run.recipe import dump
from synthesizer_attention.run.run import Run
from synthesizer_attention.training.loop import fit
from test_training import assert_same_outcome
from tiny import language_model

CHANGES = (
    "model.dropout=0.2",
    "train.steps=60",
    "train.checkpoint_every=7",
    "train.log_every=5",
    "evaluate.every=20",
    "train.average=3",
)


def step(run):
    """The last step that metrics.jsonl tells of."""
    try:
        whole, _, _ = (run.path / "metrics.jsonl").read_text().rpartition("\n")
        return json.loads(whole.splitlines()[-1])["step"]
    except (OSError, IndexError):
        return 0


def kill_after(aim, run, process, moment):
    """Kill a training some moment after a step, and return its exit code."""
    deadline = time.monotonic() + 60
    while step(run) < aim and time.monotonic() < deadline:
        time.sleep(moment.uniform(0.001, 0.01))
    time.sleep(moment.uniform(0.0, 0.03))
    process.kill()
    return process.wait()[0]


def checkpoints(run):
    paths = [path for path in run.checkpoints.iterdir() if path.name[0] != "."]  # left by a kill
    return {path.name: path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def story(tmp_path_factory, forks):
    """A run that is killed five times, then meets a full disk, then goes on to its end.

    A limit on the size of files stands for the full disk.
    """
    folder, moment = tmp_path_factory.mktemp("story"), random.Random(6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYNTHESIZER_CACHE", str(folder / "cache"))
        recipe, whole = language_model(folder, *CHANGES), Run(folder / "whole")
        fit(recipe, whole)
        (folder / "recipe.toml").write_text(dump(recipe))
        killed = Run(folder / "killed")
        train = partial(forks.start, "train", "recipe.toml", "--out", killed.path, "--plain")
        aims = sorted(moment.sample(range(5, 50, 5), 5))
        codes = [kill_after(aim, killed, train(cwd=folder), moment) for aim in aims]
        before = checkpoints(killed)
        full, _, errors = train(cwd=folder, largest_file=12_000).wait()
        after = checkpoints(killed)
        untouched = all(after.get(name) == content for name, content in before.items())
        last, _, _ = train(cwd=folder).wait()
    return whole, killed, (codes, len(before), full, untouched, last), errors


def test_a_run_killed_five_times_equals_the_uninterrupted_one(story):
    whole, killed, (codes, _, _, _, last), _ = story
    assert codes == [-signal.SIGKILL] * 5
    assert last == 0
    assert_same_outcome(killed, whole)


def test_a_full_disk_leaves_the_last_checkpoint_intact(story):
    _, _, (_, num_checkpoints, full, untouched, _), errors = story
    assert num_checkpoints > 0
    assert full == 2
    assert untouched
    assert "cannot write" in errors
    assert "the old file is intact: raise the limit of file sizes and run the same" in errors
