"""A study on two Ray nodes, both on this machine: one dies, the driver dies, and nothing is lost."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from synthesizer.errors import UserError
from synthesizer.experiment.recipe import dump
from synthesizer.experiment.run import Run
from synthesizer.study.cluster import Driver, _room, own_code
from synthesizer.study.compare import compare
from synthesizer.study.plan import Asked
from tiny import environment, language_model

needs_ray = pytest.mark.skipif(
    not __import__("importlib.util").util.find_spec("ray"),
    reason="ray is not installed: pip install 'synthesizer-attention[cluster]'",
)
STEPS = 400
CHANGES = (f"train.steps={STEPS}", "train.checkpoint_every=20", "train.log_every=10")
PATIENT = {"health_check_failure_threshold": 60}  # of a machine that tests keep busy


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data, a recipe and a cache that all nodes share; the working directory of the drivers."""
    folder = tmp_path_factory.mktemp("shared")
    recipe = language_model(folder, *CHANGES, "evaluate.every=200")
    (folder / "tiny.toml").write_text(dump(recipe))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("SYNTHESIZER_CACHE", str(folder / "cache"))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", environment()["PYTHONPATH"] + _packages())
        yield folder


def _packages():
    """Where ray is, if that is no place a fresh interpreter looks."""
    given = os.environ.get("PYTHONPATH")
    return f"{os.pathsep}{given}" if given else ""


@pytest.fixture(scope="module")
def cluster(folder):
    from ray.cluster_utils import Cluster

    nodes = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "_system_config": PATIENT, "include_dashboard": False},
    )
    for _ in range(2):
        nodes.add_node(num_cpus=1)
    yield nodes
    nodes.shutdown()


def command(folder, address, out):
    words = ["compare", str(folder / "tiny.toml"), "--seeds", "1", "--plain", "--out", out]
    words += ["--synthesis", "dot", "--synthesis", "random", "--cluster", address]
    return [sys.executable, "-m", "synthesizer", *words]


def digests(study):
    """sha256 of what every run of a study learned and logged."""
    found = {}
    for row in ("dot", "random"):
        for name in ("metrics.jsonl", "model/model.safetensors"):
            content = (study / row / "seed1" / name).read_bytes()
            found[row, name] = hashlib.sha256(content).hexdigest()
    return found


def step_of(run):
    lines = Run(run).metrics()
    return lines[-1]["step"] if lines else 0


def wait_for_steps(out, process):
    """Until both runs of a study are on their way."""
    deadline = time.monotonic() + 200
    runs = [Path(out) / row / "seed1" for row in ("dot", "random")]
    while not all(0 < step_of(run) < STEPS for run in runs):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, [step_of(run) for run in runs]
        time.sleep(0.05)
