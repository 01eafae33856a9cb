"""A study on two Ray nodes of this machine: one dies, the driver dies, and nothing is lost."""

import hashlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe import dump
from synthesizer_attention.study.asked import Asked
from synthesizer_attention.study.cluster import Driver, _room, open_cluster, own_code
from synthesizer_attention.study.compare import compare
from test_study import conducted
from tiny import environment, language_model

needs_ray = pytest.mark.skipif(
    find_spec("ray") is None,
    reason="ray is not installed: pip install 'synthesizer-attention[cluster]'",
)
STEPS = 400
CHANGES = (f"train.steps={STEPS}", "train.checkpoint_every=20", "train.log_every=10")
# A dead node refuses every check at once; one that tests keep busy may take 10 s for each.
PATIENT = {"health_check_period_ms": 250, "health_check_failure_threshold": 20}


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
    words += ["--synthesis", "dot", "--synthesis", "random", "--tune", "0"]
    words += ["--opponent", "configured", "--jobs", f"ray:{address}"]
    return [sys.executable, "-m", "synthesizer_attention", *words]


def digests(study):
    """sha256 of what every run of a study learned and logged."""
    found = {}
    for row in ("dot", "random"):
        for name in ("metrics.jsonl", "model/model.safetensors"):
            content = (study / row / "seed1" / name).read_bytes()
            found[row, name] = hashlib.sha256(content).hexdigest()
    return found


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_study_that_loses_a_node_and_its_driver_equals_a_local_one(folder, cluster):
    """One node is killed in mid-run, then the driver; the same command ends the study."""
    words, out = command(folder, cluster.address, "study"), folder / "study"
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as driver:
        heard, name = [], None
        for line in map(bytes.decode, driver.stdout):
            heard.append(line)
            running = re.search(r"dot seed 1: training on .*\(Ray node (\w+)\)", line)
            if running and name is None:  # the retry may begin elsewhere before the driver dies
                name = running[1]
                node = next(n for n in cluster.list_all_nodes() if n.node_id.startswith(name))
            if "dot seed 1: step 20/" in line:
                cluster.remove_node(node, allow_graceful=False)
            if "trying again" in line:
                driver.send_signal(signal.SIGKILL)
    assert re.search(rf"dot seed 1 failed: .* \(Ray node {name}\) was lost", "".join(heard)), heard
    done = subprocess.run(words, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 worker of one thread on 1 Ray node" in done.stdout
    same = {"seeds": 1, "jobs": "1", "tune": 0, "opponent": "configured"}
    local = Asked(str(folder / "tiny.toml"), ("dot", "random"), out=folder / "local", **same)
    conducted(local)
    assert digests(out) == digests(folder / "local")
    assert not (out / ".cluster").exists()


@needs_ray
@pytest.mark.slow
def test_a_node_that_cannot_serve_is_refused_before_anything_starts(folder, cluster, monkeypatch):
    asked = Asked(
        str(folder / "tiny.toml"), ("dot",), jobs=f"ray:{cluster.address}", out=folder / "refused"
    )
    monkeypatch.setattr("synthesizer_attention.study.cluster.own_code", lambda: ("0.0.0", "c0ffee"))
    wanted = r"\(Ray node \w+\) has synthesizer .*, and the driver synthesizer 0.0.0, commit c0ffee"
    with pytest.raises(UserError, match=wanted):
        compare(asked, print, plain=True)
    many = replace(asked, jobs=f"{asked.jobs},gpus=1")
    with pytest.raises(
        UserError, match="no node of the Ray cluster has a free processor and 1 GPU"
    ):
        compare(many, print, plain=True)
    assert not list((folder / "refused").glob("[!.]*"))


@pytest.fixture
def driver(tmp_path):
    (tmp_path / ".cluster").write_text("token")
    return Driver(tmp_path, tmp_path, "token", own_code(), {})


def test_a_node_must_see_the_drivers_folders_and_run_its_code(driver, monkeypatch):
    monkeypatch.setattr("synthesizer_attention.study.cluster.SYNC", 1)
    assert driver.misfit() is None
    missing = driver.home / "missing"
    for blind in (replace(driver, home=missing), replace(driver, folder=missing)):
        assert blind.misfit() == (
            f"cannot see {missing}; start compare in, and give --out, a shared directory"
        )
    assert replace(driver, token="another").misfit() == (
        f"has another {driver.folder}; give --out a directory on a disk that nodes share"
    )
    version, commit = own_code()
    assert replace(driver, code=("9", "c0ffee")).misfit() == (
        f"has synthesizer {version}, commit {commit}, and the driver synthesizer 9, "
        "commit c0ffee; install the same on both"
    )


def test_a_node_has_room_for_a_worker_per_processor_and_share_of_a_gpu():
    node = {"CPU": 8.0, "GPU": 2.0}
    assert [_room(node, share) for share in (0, 0.25, 0.4, 1, 2, 4)] == [8, 8, 4, 2, 1, 0]
    assert _room({"GPU": 1.0}, 0) == 0


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "head"])
def test_an_address_without_a_cluster_is_named(tmp_path, address):
    said = f"no Ray cluster answers at {address} .*give auto or the head's HOST:PORT"
    with pytest.raises(UserError, match=said), open_cluster(tmp_path, address, None, print):
        pass


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    missing = r"run pip install 'synthesizer-attention\[cluster\]'"
    with pytest.raises(UserError, match=missing), open_cluster(tmp_path, "auto", None, print):
        pass
