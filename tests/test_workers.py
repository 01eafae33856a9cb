"""Workers of a study: lost ones are replaced and their orders retried; mistakes fail at once."""

import os
import signal
import subprocess
import time
from threading import Event

import pytest

from synthesizer_attention.errors import OtherDataError, UserError
from synthesizer_attention.run.interruption import Interrupted, Interruption
from synthesizer_attention.study.workers import (
    LocalWorker,
    LostError,
    UnfitError,
    WorkerPool,
    ask,
    open_pool,
    read_answer,
    visible_gpus,
)

LOST = {"lost": "the worker was stopped by SIGKILL", "again": True}
CRASHED = {"lost": "RuntimeError: a bug (see worker1.log)", "again": False}
MISTAKE = {"error": "no such column", "ends_study": False}


class Scripted:
    """A worker that answers each order with the next message of a script shared by all."""

    def __init__(self, script=()):
        self.script, self.closed = script, Event()

    def greet(self):
        return ""

    def perform(self, order):
        return read_answer(self.script.pop(0) if self.script else {"order": order["n"]})

    def close(self):
        self.closed.set()

    def wait(self):
        pass


class Silent(Scripted):
    """A worker that the cluster has no room for."""

    def greet(self):
        self.closed.wait(60)
        raise LostError("it never came", again=True)


def play(script, orders=2):
    """What is noted of each order, how it ends, and the workers that were started."""
    started = []

    def start(count, slot):
        started.append(Scripted(script))
        return started[-1]

    pool = WorkerPool(start, Interruption())
    pool.grow(1)
    tasks = [pool.submit("train", n=n) for n in range(orders)]
    while len(pool.wait(tasks)) < orders:
        pass
    pool.close()
    told = []
    for task in tasks:
        end = "failed" if task.exception() else "done"
        told.append([*(note["event"] for note in task.notes), end])
    return told, started


def test_an_order_of_a_lost_worker_is_retried():
    told, started = play([LOST])
    assert told == [["start", "retry", "start", "done"], ["start", "done"]]
    assert len(started) == 2
    assert started[1].closed.is_set()


def test_an_order_that_loses_two_workers_has_failed_and_the_others_go_on():
    told, started = play([LOST, LOST])
    assert told == [["start", "retry", "start", "failed"], ["start", "done"]]
    assert len(started) == 3


def test_a_crash_fails_its_order_at_once_and_another_worker_takes_over():
    told, started = play([CRASHED])
    assert told == [["start", "failed"], ["start", "done"]]
    assert len(started) == 2


def test_a_users_mistake_fails_at_once_and_the_worker_goes_on():
    told, started = play([MISTAKE])
    assert told == [["start", "failed"], ["start", "done"]]
    assert len(started) == 1


def test_a_worker_gets_orders_only_once_it_answered():
    workers = [Silent(), Scripted()]
    pool = WorkerPool(lambda count, slot: workers[count], Interruption())
    pool.grow(2)
    assert [ask(pool, "train", n=n) for n in range(3)] == [{"order": n} for n in range(3)]
    pool.close()


def test_workers_that_never_answer_end_the_study():
    class Stillborn(Scripted):
        def greet(self):
            return read_answer(LOST)

    started = []

    def start(count, slot):
        started.append(Stillborn())
        return started[-1]

    with pytest.raises(UserError, match="no worker starts: the worker was stopped by SIGKILL"):
        ask(WorkerPool(start, Interruption()), "train", n=1)
    assert len(started) == 3


def test_a_worker_that_does_not_fit_is_left_out_while_there_are_others():
    class Unfit(Scripted):
        def greet(self):
            raise UnfitError("node b has another commit")

    pool = WorkerPool(lambda count, slot: Unfit() if count else Scripted(), Interruption())
    pool.grow(2)
    assert ask(pool, "train", n=1) == {"order": 1}
    while not pool.notices:
        time.sleep(0.01)
    assert [*pool.notices] == ["node b has another commit"]
    assert ask(pool, "train", n=2) == {"order": 2}
    pool.close()
    alone = WorkerPool(lambda count, slot: Unfit(), Interruption())
    with pytest.raises(UserError, match="node b has another commit"):
        ask(alone, "train", n=1)


def test_a_replaced_worker_takes_over_the_slot():
    slots, script = [], [LOST]

    def start(count, slot):
        slots.append(slot)
        return Silent() if slot == 1 else Scripted(script)  # so that the first takes every order

    pool = WorkerPool(start, Interruption())
    pool.grow(2)
    assert ask(pool, "train", n=1) == {"order": 1}
    pool.close()
    assert slots == [0, 1, 0]


def test_an_error_of_our_own_ends_the_study_and_does_not_hang_it():
    class Broken(Scripted):
        def perform(self, order):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask(WorkerPool(lambda count, slot: Broken(), Interruption()), "train", n=1)


def test_every_worker_sees_one_gpu(tmp_path, monkeypatch):
    """Of two that are not there: the count of devices is a fake."""
    told = []

    def start(log, environment):
        told.append(environment["CUDA_VISIBLE_DEVICES"])
        return Scripted()

    monkeypatch.setattr("synthesizer_attention.study.workers.visible_gpus", lambda: ["5", "7"])
    monkeypatch.setattr("synthesizer_attention.study.workers.LocalWorker", start)
    with open_pool(tmp_path) as pool:
        assert (pool.capacity, pool.place) == (2, "on 2 GPUs")
        pool.grow(3)
    assert told == ["5", "7", "5"]


def test_gpus_are_those_that_torch_counts_by_the_names_they_were_given(monkeypatch):
    def count(command, **options):
        return subprocess.CompletedProcess(command, 0, stdout="2\n")

    monkeypatch.setattr("synthesizer_attention.study.workers.GPU_DRIVERS", ("/",))
    monkeypatch.setattr("synthesizer_attention.study.workers.subprocess.run", count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-8f")
    assert visible_gpus() == ["3", "GPU-8f"]
    monkeypatch.setattr("synthesizer_attention.study.workers.GPU_DRIVERS", ())
    assert visible_gpus() == []


def test_asking_returns_the_answer_or_raises_the_mistake():
    script = [MISTAKE, LOST]
    pool = WorkerPool(lambda count, slot: Scripted(script), Interruption())
    with pytest.raises(UserError, match="no such column"):
        ask(pool, "train", n=1)
    assert ask(pool, "train", n=2) == {"order": 2}
    pool.close()
    with pytest.raises(OtherDataError):
        read_answer({"error": "began with other data", "ends_study": True})


def test_an_interruption_ends_the_waiting():
    interruption = Interruption()
    pool = WorkerPool(lambda count, slot: Silent(), interruption)
    interruption.asked = True
    with pytest.raises(Interrupted):
        ask(pool, "train", n=1)
    pool.close()


def test_a_worker_killed_early_says_so_and_leaves_no_log(tmp_path):
    worker = LocalWorker(tmp_path / "worker1.log")
    os.kill(worker._process.pid, signal.SIGKILL)
    with pytest.raises(LostError, match="stopped by SIGKILL: memory may have run out") as lost:
        worker.greet()
    assert lost.value.again
    worker.wait()
    assert not list(tmp_path.iterdir())


def test_a_worker_that_leaves_before_its_order_has_lost_it(tmp_path):
    worker = LocalWorker(tmp_path / "worker1.log")
    worker.close()
    assert worker.greet() == ""
    with pytest.raises(LostError, match="the worker ended with code 0") as lost:
        worker.perform({"do": "train"})
    assert lost.value.again
    worker.wait()


def test_one_pool_at_a_time_serves_a_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("synthesizer_attention.run.lock.PATIENCE", 0.0)
    with (
        open_pool(tmp_path),
        pytest.raises(UserError, match=rf"process {os.getpid()} on .* is running a comparison in"),
        open_pool(tmp_path),
    ):
        pass
