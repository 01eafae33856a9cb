"""Runs that are really killed, in processes of their own.

One process imports everything once and forks: each fork is a process that may die, for the price
of none of the imports.
"""

import subprocess
import sys
import textwrap

import pytest

from synthesizer.recipe import dump
from synthesizer.run import Run
from synthesizer.training import fit
from test_training import assert_same_outcome, outcome
from tiny import language_model

CHANGES = (
    "model.dropout=0.2",
    "train.steps=60",
    "train.checkpoint_every=7",
    "train.log_every=5",
    "evaluate.every=20",
    "train.average=3",
)

NURSERY = """
import os, random, resource, signal, sys, time
import torch
from synthesizer.cli import main
from synthesizer.training import fit

def train(recipe, out, limit=None):
    child = os.fork()
    if child:
        return child
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    os._exit(main(["train", recipe, "--out", out, "--plain"]))

def wait(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def in_nursery(script, *arguments):
    """Run a script that may fork trainings; return what it prints."""
    command = [sys.executable, "-c", NURSERY + textwrap.dedent(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def recipe_file(tmp_path):
    recipe = language_model(tmp_path, *CHANGES)
    path = tmp_path / "recipe.toml"
    path.write_text(dump(recipe))
    return path


def test_a_run_killed_five_times_equals_the_uninterrupted_one(tmp_path, recipe_file):
    """Each kill comes at a random moment after the last checkpoint was passed by a random step."""
    whole, killed = Run(tmp_path / "whole"), Run(tmp_path / "killed")
    fit(language_model(tmp_path, *CHANGES), whole)
    script = """
        recipe, out = sys.argv[1:]
        kills, random_moment = 0, random.Random(6)
        while kills < 5:
            begun = time.time()
            child = train(recipe, out)
            line = random_moment.randint(1, 2)
            seen = lambda: sum(1 for _ in open(out + "/metrics.jsonl"))
            at = os.path.exists(out + "/metrics.jsonl") and seen()
            while time.time() - begun < 30:
                time.sleep(random_moment.uniform(0.001, 0.02))
                if os.path.exists(out + "/metrics.jsonl") and seen() not in (at, 0):
                    break
            time.sleep(random_moment.uniform(0.0, 0.05))
            os.kill(child, signal.SIGKILL)
            kills += wait(child) == -signal.SIGKILL
        print(kills, wait(train(recipe, out)))
    """
    done = in_nursery(script, recipe_file, killed.path)
    assert done.stdout.split() == ["5", "0"]
    assert_same_outcome(killed, whole)


def test_a_full_disk_leaves_the_last_checkpoint_intact(tmp_path, recipe_file):
    """A limit on the size of files stands for the full disk: the first checkpoint still fits."""
    whole, filled = Run(tmp_path / "whole"), Run(tmp_path / "filled")
    fit(language_model(tmp_path, *CHANGES), whole)
    script = """
        recipe, out, limit = sys.argv[1:]
        print(wait(train(recipe, out, int(limit))))
        print(*sorted(name for name in os.listdir(out + "/checkpoints")))
        print(wait(train(recipe, out)))
    """
    done = in_nursery(script, recipe_file, filled.path, 12_000)
    code, *left, again = done.stdout.split()
    assert (code, again) == ("2", "0")
    assert left == []
    assert "cannot write" in done.stderr
    assert "what stood there is intact: free some space" in done.stderr
    assert outcome(filled)[0] == outcome(whole)[0]
