import math
import subprocess
import sys

from synthesizer.recipe import dump
from synthesizer.run import Run
from synthesizer.training import fit
from tiny import environment, language_model


def test_two_processes_take_the_steps_of_one(tmp_path):
    """Seven windows per batch: the processes have unequal shares of the targets."""
    recipe = language_model(tmp_path, "train.batch_tokens=84", "train.accumulate=2")
    (tmp_path / "recipe.toml").write_text(dump(recipe))
    alone, together = Run(tmp_path / "alone"), Run(tmp_path / "together")
    fit(recipe, alone)
    launch = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m"]
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


def _numbers(lines):
    for line in lines:
        for value in line.values():
            yield from value.values() if isinstance(value, dict) else [value]
