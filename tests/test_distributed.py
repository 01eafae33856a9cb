import math
import subprocess
import sys

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
