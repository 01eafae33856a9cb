"""The worker pool: lost workers are replaced and their orders retried; mistakes fail at once."""

import os
import signal
import subprocess
from queue import Queue

import pytest

from synthesizer.errors import UserError
from synthesizer.experiment.interruption import Interrupted, Interruption
from synthesizer.study.pool import LocalWorker, WorkerPool, open_pool, visible_gpus

LOST = {"event": "gone", "error": "the worker was stopped by SIGKILL", "lost": True}
CRASHED = {"event": "gone", "error": "RuntimeError: a bug (see worker1.log)", "lost": False}
MISTAKE = {"event": "failed", "error": "no such column"}


class Scripted:
    """A worker that answers each order with the next event of a script shared by all."""

    def __init__(self, script):
        self.script, self.out, self.closed = script, Queue(), False

    def submit(self, order):
        self.out.put(self.script.pop(0) if self.script else {"event": "done", "order": order["n"]})

    def events(self):
        yield {"event": "hello"}
        while (event := self.out.get())["event"] != "gone":
            yield event
        yield event

    def close(self):
        self.closed = True
        self.out.put({"event": "gone", "error": "", "lost": False})

    def wait(self):
        pass


def play(script, orders=2, size=1):
    """The events of a pool whose workers follow a script, and the workers it started."""
    started = []

    def start(count, slot):
        started.append(Scripted(script))
        return started[-1]

    pool = WorkerPool(start, Interruption())
    pool.grow(size)
    events = [e for e in pool.run([{"n": n} for n in range(orders)]) if e[1]["event"] != "tick"]
    pool.close()
    return [(index, event["event"]) for index, event in events], started


def test_an_order_of_a_lost_worker_is_retried_before_the_others():
    events, started = play([LOST])
    assert events == [
        (0, "start"),
        (0, "retry"),
        (0, "start"),
        (0, "done"),
        (1, "start"),
        (1, "done"),
    ]
    assert len(started) == 2
    assert started[1].closed


def test_an_order_that_loses_two_workers_has_failed_and_the_others_go_on():
    events, started = play([LOST, LOST])
    assert events[:4] == [(0, "start"), (0, "retry"), (0, "start"), (0, "failed")]
    assert events[4:] == [(1, "start"), (1, "done")]
    assert len(started) == 3


def test_a_crash_fails_its_order_at_once_and_another_worker_takes_over():
    events, started = play([CRASHED])
    assert events == [(0, "start"), (0, "failed"), (1, "start"), (1, "done")]
    assert len(started) == 2


def test_a_users_mistake_fails_at_once_and_the_worker_goes_on():
    events, started = play([MISTAKE])
    assert events == [(0, "start"), (0, "failed"), (1, "start"), (1, "done")]
    assert len(started) == 1


def test_a_worker_gets_orders_only_once_it_answered():
    silent = Scripted([])
    silent.events = lambda: iter([])  # a node that the cluster has no room for
    workers = [silent, Scripted([])]
    pool = WorkerPool(lambda count, slot: workers[count], Interruption())
    pool.grow(2)
    events = list(pool.run([{"n": n} for n in range(3)]))
    assert [event["event"] for _, event in events if event["event"] != "tick"] == [
        *("start", "done") * 3
    ]
    assert silent.out.empty()
    pool.close()


def test_workers_that_never_answer_end_the_study():
    class Stillborn(Scripted):
        def events(self):
            yield LOST

    started = []

    def start(count, slot):
        started.append(Stillborn([]))
        return started[-1]

    with pytest.raises(UserError, match="no worker starts: the worker was stopped by SIGKILL"):
        WorkerPool(start, Interruption()).ask({"n": 1})
    assert len(started) == 3


def test_a_worker_that_does_not_fit_is_left_out_while_there_are_others():
    class Unfit(Scripted):
        def events(self):
            yield {"event": "unfit", "error": "node b has another commit"}

    pool = WorkerPool(lambda count, slot: Unfit([]) if count else Scripted([]), Interruption())
    pool.grow(2)
    events = []
    while {"event": "say", "text": "node b has another commit"} not in events:
        events += [event for _, event in pool.run([{"n": 1}])]
    assert sum(event["event"] == "start" for event in events) == sum(
        event["event"] == "done" for event in events
    )
    pool.close()
    alone = WorkerPool(lambda count, slot: Unfit([]), Interruption())
    with pytest.raises(UserError, match="node b has another commit"):
        alone.ask({"n": 1})


def test_a_replaced_worker_takes_over_the_slot():
    slots, script = [], [LOST]

    def start(count, slot):
        slots.append(slot)
        worker = Scripted(script)
        if slot == 1:
            worker.events = lambda: iter([])  # so that the first takes every order
        return worker

    pool = WorkerPool(start, Interruption())
    pool.grow(2)
    list(pool.run([{"n": n} for n in range(2)]))
    pool.close()
    assert slots == [0, 1, 0]


def test_every_worker_sees_one_gpu(tmp_path, monkeypatch):
    """Of two that are not there: the count of devices is a fake."""
    told = []

    def start(log, environment):
        told.append(environment["CUDA_VISIBLE_DEVICES"])
        return Scripted([])

    monkeypatch.setattr("synthesizer.study.pool.visible_gpus", lambda: ["5", "7"])
    monkeypatch.setattr("synthesizer.study.pool.LocalWorker", start)
    with open_pool(tmp_path) as pool:
        assert (pool.capacity, pool.place) == (2, "on 2 GPUs")
        pool.grow(3)
    assert told == ["5", "7", "5"]


def test_gpus_are_those_that_torch_counts_by_the_names_they_were_given(monkeypatch):
    def count(command, **options):
        return subprocess.CompletedProcess(command, 0, stdout="2\n")

    monkeypatch.setattr("synthesizer.study.pool.GPU_DRIVERS", ("/",))
    monkeypatch.setattr("synthesizer.study.pool.subprocess.run", count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-8f")
    assert visible_gpus() == ["3", "GPU-8f"]
    monkeypatch.setattr("synthesizer.study.pool.GPU_DRIVERS", ())
    assert visible_gpus() == []


def test_asking_returns_the_answer_or_raises_the_mistake():
    script = [MISTAKE, LOST]
    pool = WorkerPool(lambda count, slot: Scripted(script), Interruption())
    with pytest.raises(UserError, match="no such column"):
        pool.ask({"n": 1})
    assert pool.ask({"n": 2}) == {"event": "done", "order": 2}
    pool.close()


def test_an_interruption_ends_the_waiting():
    interruption = Interruption()
    pool = WorkerPool(lambda count, slot: Scripted([]), interruption)
    pool.grow(1)
    interruption.asked = True
    with pytest.raises(Interrupted):
        list(pool.run([{"n": 1}]))


def test_a_worker_killed_early_says_so_and_leaves_no_log(tmp_path):
    """Its log is deleted while it is read: that was a traceback of the listening thread."""
    worker = LocalWorker(tmp_path / "worker1.log")
    os.kill(worker._process.pid, signal.SIGKILL)
    worker.wait()
    (gone,) = worker.events()
    assert gone["lost"]
    assert gone["error"] == "the worker was stopped by SIGKILL: memory may have run out"
    assert not list(tmp_path.iterdir())


def test_a_worker_that_leaves_before_its_order_has_lost_it(tmp_path):
    worker = LocalWorker(tmp_path / "worker1.log")
    worker.close()
    worker.wait()
    hello, gone = worker.events()
    assert hello == {"event": "hello"}
    assert gone == {"event": "gone", "error": "the worker ended with code 0", "lost": True}


def test_one_pool_at_a_time_serves_a_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("synthesizer.experiment.lock.PATIENCE", 0.0)
    with (
        open_pool(tmp_path),
        pytest.raises(UserError, match=rf"process {os.getpid()} on .* is running a comparison in"),
        open_pool(tmp_path),
    ):
        pass
