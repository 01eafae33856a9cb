"""The worker pool: lost workers are replaced and their orders retried; mistakes fail at once."""

import os
import signal
from queue import Queue

import pytest

from synthesizer.errors import UserError
from synthesizer.experiment.interruption import Interrupted, Interruption
from synthesizer.study.pool import LocalWorker, WorkerPool, open_pool

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

    def start(number):
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


def test_asking_returns_the_answer_or_raises_the_mistake():
    script = [MISTAKE, LOST]
    pool = WorkerPool(lambda number: Scripted(script), Interruption())
    with pytest.raises(UserError, match="no such column"):
        pool.ask({"n": 1})
    assert pool.ask({"n": 2}) == {"event": "done", "order": 2}
    pool.close()


def test_an_interruption_ends_the_waiting():
    interruption = Interruption()
    pool = WorkerPool(lambda number: Scripted([]), interruption)
    pool.grow(1)
    interruption.asked = True
    with pytest.raises(Interrupted):
        list(pool.run([{"n": 1}]))


def test_a_worker_killed_early_says_so_and_leaves_no_log(tmp_path):
    """Its log is deleted while it is read: that was a traceback of the listening thread."""
    worker = LocalWorker(tmp_path / "worker1.log", None)
    os.kill(worker._process.pid, signal.SIGKILL)
    worker.wait()
    (gone,) = worker.events()
    assert gone["lost"]
    assert gone["error"] == "the worker was stopped by SIGKILL: memory may have run out"
    assert not list(tmp_path.iterdir())


def test_a_worker_that_leaves_before_its_order_has_lost_it(tmp_path):
    worker = LocalWorker(tmp_path / "worker1.log", None)
    worker.close()
    worker.wait()
    (gone,) = worker.events()
    assert gone == {"event": "gone", "error": "the worker ended with code 0", "lost": True}


def test_one_pool_at_a_time_serves_a_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("synthesizer.study.pool.LOCKED", 0.0)
    with (
        open_pool(tmp_path),
        pytest.raises(UserError, match=r"another comparison is running in .*; wait for it"),
        open_pool(tmp_path),
    ):
        pass
