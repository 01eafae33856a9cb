"""Runs that are really killed, in processes of their own.

One process imports everything once and forks: each fork is a process that may die, for the price
of none of the imports.
"""

import json
import signal
import subprocess
import sys

import pytest

from synthesizer.experiment.recipe import dump
from synthesizer.experiment.run import Run
from synthesizer.training.loop import fit
from test_training import assert_same_outcome
from tiny import environment, language_model

CHANGES = (
    "model.dropout=0.2",
    "train.steps=60",
    "train.checkpoint_every=7",
    "train.log_every=5",
    "evaluate.every=20",
    "train.average=3",
)

NURSERY = """
import json, os, random, resource, signal, sys, time
import torch
from synthesizer.cli import main
from synthesizer.training.loop import fit

recipe, out = sys.argv[1:]
moment = random.Random(6)


def train(limit=None):
    child = os.fork()
    if child:
        return child
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    os._exit(main(["train", recipe, "--out", out, "--plain"]))


def wait(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def step():
    try:
        with open(out + "/metrics.jsonl") as file:
            whole, _, _ = file.read().rpartition("\\n")
        return json.loads(whole.splitlines()[-1])["step"]
    except (OSError, IndexError):
        return 0


def kill_after(aim):
    child = train()
    deadline = time.time() + 60
    while step() < aim and time.time() < deadline:
        time.sleep(moment.uniform(0.001, 0.01))
    time.sleep(moment.uniform(0.0, 0.03))
    os.kill(child, signal.SIGKILL)
    return wait(child)


def checkpoints():
    folder = out + "/checkpoints/"
    names = [name for name in os.listdir(folder) if name[0] != "."]  # not what a kill left
    return {name: open(folder + name, "rb").read() for name in names}


aims = sorted(moment.sample(range(5, 50, 5), 5))
codes = [kill_after(aim) for aim in aims]
before = checkpoints()
full = wait(train(limit=12_000))
untouched = all(checkpoints().get(name) == content for name, content in before.items())
print(json.dumps([codes, len(before), full, untouched, wait(train())]))
"""


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A run that is killed five times, then meets a full disk, then goes on to its end.

    A limit on the size of files stands for the full disk.
    """
    folder = tmp_path_factory.mktemp("story")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYNTHESIZER_CACHE", str(folder / "cache"))
        recipe, whole = language_model(folder, *CHANGES), Run(folder / "whole")
        fit(recipe, whole)
        (folder / "recipe.toml").write_text(dump(recipe))
        killed = Run(folder / "killed")
        command = [sys.executable, "-c", NURSERY, str(folder / "recipe.toml"), str(killed.path)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    return whole, killed, json.loads(done.stdout), done.stderr


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
    assert "the old file is intact: free some space and run the same command again" in errors
