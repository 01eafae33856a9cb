"""Workers of a study: lost ones are replaced and their orders retried; mistakes fail at once."""

import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from threading import Event

import pytest

from studies import conducted
from synthesizer_attention.errors import OtherDataError, UserError
from synthesizer_attention.run.progress import Interrupted, Interruption
from synthesizer_attention.run.recipe import dump
from synthesizer_attention.study import workers
from synthesizer_attention.study.compare import compare
from synthesizer_attention.study.rows import Asked
from synthesizer_attention.study.workers import (
    Driver,
    Jobs,
    LostError,
    Worker,
    WorkerPool,
    ask,
    open_pool,
    own_code,
    parse_jobs,
    read_answer,
    visible_gpus,
)
from tiny import environment, language_model

LOST = {"lost": "the worker was stopped by SIGKILL", "again": True}
CRASHED = {"lost": "RuntimeError: a bug (see worker1.log)", "again": False}
MISTAKE = {"error": "no such column", "ends_study": False}


class Scripted:
    """A worker that answers each order with the next message of a script shared by all."""

    def __init__(self, script=(), greeting=None):
        self.script, self.greeting, self.closed = script, greeting or {}, Event()

    def greet(self):
        if self.greeting == "silent":  # the cluster has no room for it
            self.closed.wait(60)
            raise LostError("it never came", again=True)
        read_answer(self.greeting)
        return ""

    def perform(self, order):
        answer = self.script.pop(0) if self.script else {"order": order["n"]}
        if isinstance(answer, Exception):
            raise answer
        return read_answer(answer)

    def close(self):
        self.closed.set()

    def wait(self):
        pass


def pool_of(*made, script=()):
    """A pool whose slots have these workers, the last of them for all others."""
    slots = []

    def start(count, slot):
        slots.append(slot)
        return Scripted(script, made[min(slot, len(made) - 1)] if made else None)

    pool = WorkerPool(start, Interruption())
    pool.slots = slots
    return pool


@pytest.mark.parametrize(
    ("script", "told", "started"),
    [
        ([LOST], ["start", "retry", "start", "done"], 2),
        ([LOST, LOST], ["start", "retry", "start", "failed"], 3),
        ([CRASHED], ["start", "failed"], 2),
        ([MISTAKE], ["start", "failed"], 1),
    ],
    ids=["lost once", "lost twice", "crashed", "a user's mistake"],
)
def test_what_becomes_of_an_order_and_that_the_next_is_done(script, told, started):
    pool = pool_of(script=script)
    pool.grow(1)
    first, second = (pool.submit("train", n=n) for n in range(2))
    while len(pool.wait([first, second])) < 2:
        pass
    end = "failed" if first.exception() else "done"
    assert [*(note["event"] for note in first.notes), end] == told
    assert second.result() == {"order": 1}
    assert pool.slots == [0] * started
    pool.close()


def test_a_worker_gets_orders_only_once_it_answered_and_a_lost_one_leaves_its_slot():
    pool = pool_of(None, "silent", script=[LOST])
    pool.grow(2)
    assert [ask(pool, "train", n=n) for n in range(3)] == [{"order": n} for n in range(3)]
    pool.close()
    assert sorted(pool.slots) == [0, 0, 1]


def test_a_worker_that_does_not_fit_is_left_out_while_there_are_others():
    unfit = {"error": "node b has another commit", "ends_study": False}
    pool = pool_of(None, unfit)
    pool.grow(2)
    assert ask(pool, "train", n=1) == {"order": 1}
    while not pool.notices:
        time.sleep(0.01)
    assert [*pool.notices] == ["node b has another commit"]
    assert ask(pool, "train", n=2) == {"order": 2}
    pool.close()
    with pytest.raises(UserError, match="node b has another commit"):
        ask(pool_of(unfit), "train", n=1)


def test_what_ends_a_study_is_raised_where_it_is_waited_for():
    stillborn = pool_of(LOST)
    with pytest.raises(UserError, match="no worker starts: the worker was stopped by SIGKILL"):
        ask(stillborn, "train", n=1)
    assert stillborn.slots == [0] * 3
    with pytest.raises(ZeroDivisionError):
        ask(pool_of(script=[ZeroDivisionError()]), "train", n=1)
    with pytest.raises(UserError, match="no such column"):
        ask(pool_of(script=[MISTAKE]), "train", n=1)
    with pytest.raises(OtherDataError):
        read_answer({"error": "began with other data", "ends_study": True})
    interrupted = pool_of("silent")
    interrupted._interruption.asked = True
    with pytest.raises(Interrupted):
        ask(interrupted, "train", n=1)
    interrupted.close()


def test_every_worker_sees_one_of_the_gpus_that_torch_counts(tmp_path, monkeypatch):
    """Of two that are not there."""
    counted = subprocess.CompletedProcess([], 0, stdout="2\n")
    monkeypatch.setattr(workers.subprocess, "run", lambda *_, **__: counted)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(workers, "GPU_DRIVERS", ())
    assert visible_gpus() == []
    monkeypatch.setattr(workers, "GPU_DRIVERS", ("/",))
    assert visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-8f")
    told = []
    monkeypatch.setattr(workers, "Worker", lambda log, own: told.append(own) or Scripted())
    with open_pool(tmp_path, Jobs(), print) as pool:
        assert (pool.capacity, pool.place) == (2, "on 2 GPUs")
        pool.grow(3)
        while len(told) < 3:
            time.sleep(0.01)
    assert sorted(own["CUDA_VISIBLE_DEVICES"] for own in told) == ["3", "3", "GPU-8f"]


def test_a_process_that_is_gone_says_why_and_leaves_no_empty_log(tmp_path):
    killed, left = (Worker(tmp_path / f"worker{n}.log") for n in (1, 2))
    os.kill(killed._process.pid, signal.SIGKILL)
    left.close()
    assert left.greet() == ""
    for worker, call, said in (
        (killed, killed.greet, "stopped by SIGKILL: memory may have run out"),
        (left, lambda: left.perform({"do": "train"}), "the worker ended with code 0"),
    ):
        with pytest.raises(LostError, match=said) as lost:
            call()
        assert lost.value.again
        worker.wait()
    assert not list(tmp_path.iterdir())


def test_one_pool_at_a_time_serves_a_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("synthesizer_attention.run.files.PATIENCE", 0.0)
    with (
        open_pool(tmp_path, Jobs(), print),
        pytest.raises(UserError, match=rf"process {os.getpid()} on .* is running a comparison in"),
        open_pool(tmp_path, Jobs(), print),
    ):
        pass


def test_jobs_name_workers_here_or_a_cluster():
    assert parse_jobs("4") == Jobs(workers=4)
    assert parse_jobs("ray:head:6379") == Jobs(ray="head:6379")
    assert parse_jobs("ray:auto,gpus=0.5") == Jobs(ray="auto", gpus=0.5)
    for wrong in ("0", "-1", "two", "ray:", "ray:auto,gpus=1.5", "99999", "²"):
        with pytest.raises(UserError, match=r"--jobs is .*; expected a number of workers"):
            parse_jobs(wrong)


def test_a_node_must_see_the_drivers_folders_and_run_its_code(tmp_path, monkeypatch):
    (tmp_path / ".cluster").write_text("token")
    driver = Driver(tmp_path, tmp_path, "token", own_code(), {})
    monkeypatch.setattr(workers, "SYNC", 1)
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
    assert [workers._room(node, share) for share in (0, 0.25, 0.4, 1, 2, 4)] == [8, 8, 4, 2, 1, 0]
    assert workers._room({"GPU": 1.0}, 0) == 0


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    missing = r"run pip install 'synthesizer-attention\[cluster\]'"
    with pytest.raises(UserError, match=missing), open_pool(tmp_path, Jobs(ray="auto"), print):
        pass


needs_ray = pytest.mark.skipif(
    find_spec("ray") is None,
    reason="ray is not installed: pip install 'synthesizer-attention[cluster]'",
)
# A dead node refuses every check at once; one that tests keep busy may take 10 s for each.
PATIENT = {"health_check_period_ms": 250, "health_check_failure_threshold": 20}


@needs_ray
@pytest.mark.slow  # Ray takes ten seconds to import
@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "head"])
def test_an_address_without_a_cluster_is_named(tmp_path, address):
    said = f"no Ray cluster answers at {address} .*give auto or the head's HOST:PORT"
    with pytest.raises(UserError, match=said), open_pool(tmp_path, Jobs(ray=address), print):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data, a recipe and a cache that all nodes share; the working directory of the drivers."""
    folder = tmp_path_factory.mktemp("shared")
    sets = ("train.steps=400", "train.checkpoint_every=20", "train.log_every=10")
    (folder / "tiny.toml").write_text(dump(language_model(folder, *sets, "evaluate.every=200")))
    given = os.environ.get("PYTHONPATH")  # where ray is, if a fresh interpreter does not look there
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("SYNTHESIZER_CACHE", str(folder / "cache"))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv(
            "PYTHONPATH", os.pathsep.join(filter(None, (environment()["PYTHONPATH"], given)))
        )
        yield folder


@pytest.fixture(scope="module")
def cluster(folder):
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "_system_config": PATIENT, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        nodes.add_node(num_cpus=1)
    yield nodes
    nodes.shutdown()


def digests(study):
    """sha256 of what every run of a study learned and logged."""
    names = ("metrics.jsonl", "model/model.safetensors")
    paths = [study / row / "seed1" / name for row in ("dot", "random") for name in names]
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_study_that_loses_a_node_and_its_driver_equals_a_local_one(folder, cluster):
    """One node is killed in mid-run, then the driver; the same command ends the study."""
    words = [sys.executable, "-m", "synthesizer_attention", "compare", str(folder / "tiny.toml")]
    words += ["--seeds", "1", "--plain", "--synthesis", "dot", "--synthesis", "random"]
    words += ["--tune", "0", "--opponent", "configured", "--out", "study"]
    words += ["--jobs", f"ray:{cluster.address}"]
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
    conducted(Asked(str(folder / "tiny.toml"), ("dot", "random"), out=folder / "local", **same))
    assert digests(folder / "study") == digests(folder / "local")
    assert not (folder / "study" / ".cluster").exists()


@needs_ray
@pytest.mark.slow
def test_a_node_that_cannot_serve_is_refused_before_anything_starts(folder, cluster, monkeypatch):
    asked = Asked(
        str(folder / "tiny.toml"), ("dot",), jobs=f"ray:{cluster.address}", out=folder / "refused"
    )
    monkeypatch.setattr(workers, "own_code", lambda: ("0.0.0", "c0ffee"))
    wanted = r"\(Ray node \w+\) has synthesizer .*, and the driver synthesizer 0.0.0, commit c0ffee"
    with pytest.raises(UserError, match=wanted):
        compare(asked, print, plain=True)
    many = replace(asked, jobs=f"{asked.jobs},gpus=1")
    with pytest.raises(
        UserError, match="no node of the Ray cluster has a free processor and 1 GPU"
    ):
        compare(many, print, plain=True)
    assert not list((folder / "refused").glob("[!.]*"))
