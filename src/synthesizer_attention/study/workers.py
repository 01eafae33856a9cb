"""The workers of a study, behind an executor as of `concurrent.futures` (no torch).

`submit` returns a future; one thread for each worker takes orders, and replaces a worker that
crashed. A worker is a process on this machine, or one on a Ray cluster: cluster.py. How far a run
is stands in its directory.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from synthesizer_attention.errors import OtherDataError, UserError
from synthesizer_attention.run.disk import cannot_write
from synthesizer_attention.run.interruption import Interrupted, Interruption
from synthesizer_attention.run.lock import locked
from synthesizer_attention.run.run import remove_leftovers
from synthesizer_attention.untrusted import check_links

Message = dict[str, Any]

TICK = 0.25  # seconds between checks of the clock
SAVING = 120.0  # seconds a worker may take to save its checkpoint
RETRIES = 1  # of an order whose worker was lost on this machine
STILLBORN = 3  # workers in a row that were lost before they answered
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # without one torch need not be asked
ORDERLY = (0, -9, -15)  # exit codes of a worker that others stopped: by SIGKILL, by SIGTERM


class LostError(Exception):
    """A worker is gone; stopped from outside (`again`), its order may succeed elsewhere."""

    def __init__(self, error: str, *, again: bool) -> None:
        super().__init__(error)
        self.again = again


class UnfitError(Exception):
    """A worker must not be used, nor replaced."""


class Worker(Protocol):
    """One process that runs `worker.serve`, wherever it is. Both of its calls raise LostError."""

    def greet(self) -> str:
        """Wait until it can take orders, and return its host's name; empty: this machine."""
        ...

    def perform(self, order: Message) -> Message:
        """Have an order done, and return the answer; the user's mistake is a UserError."""
        ...

    def close(self) -> None:
        """Accept no more orders: the worker saves a checkpoint and exits."""
        ...

    def wait(self) -> None:
        """Wait until it has exited; after a while, or at a second Ctrl-C, kill it."""
        ...


class Task(Future[Message]):
    """The future of an order."""

    def __init__(self, do: str, **arguments: Any) -> None:  # noqa: ANN401  JSON
        super().__init__()
        self.order: Message = {"do": do, **arguments}
        self.losses = 0  # workers that were lost with it
        self.notes: deque[Message] = deque()  # "start" and "retry", for whoever shows progress


class LocalWorker:
    """A worker process on this machine: orders on its stdin, answers on its stdout."""

    def __init__(
        self, log: Path, environment: Mapping[str, str] | None = None, home: Path | None = None
    ) -> None:
        self._log = log
        source = str(Path(__file__).parents[2])  # the worker runs the code that started it
        given = {**os.environ, **(environment or {})}
        path = os.pathsep.join(filter(None, [source, given.get("PYTHONPATH")]))
        # -P: a json.py in the directory where a study is started is not imported.
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "synthesizer_attention.study.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                errors="replace",
                env={**given, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
                cwd=home,
                start_new_session=True,  # Ctrl-C reaches the parent alone, which closes stdin
            )

    def greet(self) -> str:
        read_answer(self.answer())
        return ""

    def perform(self, order: Message) -> Message:
        return read_answer(self.answer(order))

    def answer(self, order: Message | None = None) -> Message:
        """What the process says next, or why it says nothing more: see read_answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        with suppress(ValueError):  # it was closed by another thread
            if order is not None:
                with suppress(BrokenPipeError):
                    self._process.stdin.write(json.dumps(order) + "\n")
                    self._process.stdin.flush()
            line = self._process.stdout.readline()
        if line.endswith("\n"):  # else the worker was killed while it wrote
            answer: Message = json.loads(line)
            return answer
        code = self._process.wait()
        return {"lost": self._last_error(code), "again": code in ORDERLY}

    def close(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def wait(self) -> None:
        self.close()
        try:
            self._process.wait(SAVING)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        with suppress(OSError):
            if not self._log.stat().st_size:
                self._log.unlink()

    def _last_error(self, code: int) -> str:
        if code < 0:
            name = signal.Signals(-code).name
            memory = ": memory may have run out" if name == "SIGKILL" else ""
            return f"the worker was stopped by {name}{memory}"
        lines: list[str] = []
        with suppress(OSError):  # an empty log may have been deleted by now
            lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f"{said[-1]} (see {self._log})" if said else f"the worker ended with code {code}"


def read_answer(message: Message) -> Message:
    """A worker's answer; raise what it says instead."""
    if "lost" in message:
        raise LostError(message["lost"], again=message["again"])
    if "error" in message:
        raise (OtherDataError if message["ends_study"] else UserError)(message["error"])
    return message


class WorkerPool:
    """An executor of workers that serve one study directory.

    `start` opens one, given how many there were before it and the number of its slot: those of the
    workers there are at one time differ. `capacity` workers use what there is.
    """

    def __init__(
        self,
        start: Callable[[int, int], Worker],
        interruption: Interruption,
        *,
        capacity: int = 1,
        place: str = "",
        retries: int = RETRIES,
    ) -> None:
        self._start, self._interruption, self._retries = start, interruption, retries
        self.capacity, self.place = capacity, place
        self.notices: deque[str] = deque()  # for the user
        self._orders: deque[Task] = deque()
        self._changed = threading.Condition()
        self._workers: dict[int, Worker | None] = {}  # by slot; None: one to be replaced
        self._started = self._stillborn = 0
        self._is_closed = False
        self._error: Exception | None = None  # what ends the study

    def grow(self, size: int) -> None:
        """Have at least so many workers."""
        for slot in {*range(size)} - self._workers.keys():
            self._open(slot)
            threading.Thread(target=self._serve, args=(slot,), daemon=True).start()

    def submit(self, do: str, **arguments: Any) -> Task:  # noqa: ANN401  JSON
        """Have an order done: see worker.py."""
        task = Task(do, **arguments)
        with self._changed:
            self._orders.append(task)
            self._changed.notify_all()
        return task

    def wait(self, tasks: Collection[Task]) -> set[Task]:
        """Those that are done, after a moment at most; raise what ends the study."""
        if self._interruption.asked:
            raise Interrupted("interrupted")
        if self._error is not None:
            raise self._error
        wait(tasks, TICK, FIRST_COMPLETED)
        return {task for task in tasks if task.done()}

    def close(self) -> None:
        """Let every worker save what it does, and wait for all of them."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        there = [worker for worker in self._workers.values() if worker is not None]
        for worker in there:
            worker.close()
        for worker in there:
            worker.wait()

    def _open(self, slot: int) -> None:
        with self._changed:
            if not self._is_closed:
                self._workers[slot] = self._start(self._started, slot)
                self._started += 1

    def _serve(self, slot: int) -> None:
        """A thread's whole life: hand orders to a slot's worker, and replace one that is lost."""
        try:
            while (worker := self._workers[slot]) is not None:
                self._employ(worker)
                worker.wait()
                self._workers[slot] = None
                if self._await_order():
                    self._open(slot)
        except UnfitError as error:
            self._dismiss(slot, str(error))
        except Exception as error:
            self._error = error

    def _employ(self, worker: Worker) -> None:
        """Have orders done until the worker is lost or the pool is closed."""
        try:
            host = worker.greet()
        except LostError as lost:
            self._stillborn += 1
            if self._stillborn >= STILLBORN:
                raise UserError(f"no worker starts: {lost}") from None
            return
        self._stillborn = 0
        while self._await_order():
            with self._changed:
                task = self._orders.popleft() if self._orders else None
            if task is not None and not self._perform(worker, task, host):
                return

    def _perform(self, worker: Worker, task: Task, host: str) -> bool:
        """Have an order done; return whether the worker is still there."""
        if not task.running():
            task.set_running_or_notify_cancel()
        task.notes.append({"event": "start", "host": host})
        try:
            task.set_result(worker.perform(task.order))
        except UserError as error:
            task.set_exception(error)
        except LostError as lost:
            if not lost.again or task.losses >= self._retries:
                task.set_exception(UserError(str(lost)))
                return False
            task.losses += 1
            task.notes.append({"event": "retry", "error": str(lost)})
            with self._changed:
                self._orders.appendleft(task)
                self._changed.notify_all()
            return False
        return True

    def _await_order(self) -> bool:
        """Wait until there is something to do; False once the pool is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._orders or self._is_closed)
            return not self._is_closed

    def _dismiss(self, slot: int, error: str) -> None:
        worker = self._workers.pop(slot)
        if worker is not None:
            worker.wait()
        self.notices.append(error)
        if not self._workers:
            self._error = UserError(error)


def ask(pool: WorkerPool, do: str, **arguments: Any) -> Message:  # noqa: ANN401  JSON
    """Have one order done, and return the answer."""
    pool.grow(1)
    task = pool.submit(do, **arguments)
    while not pool.wait([task]):
        pass
    return task.result()


@contextmanager
def open_pool(folder: Path, say: Callable[[str], None] = lambda text: None) -> Iterator[WorkerPool]:
    """A pool of processes on this machine; leaving it closes them, and no work is lost.

    Each worker sees one GPU, where there are any; more workers than GPUs share them.
    """
    found = visible_gpus()
    capacity = len(found) or _processors()
    place = f"on {len(found)} GPU{'s' * (len(found) > 1)}" if found else "of one thread"

    def start(count: int, slot: int) -> Worker:
        own = {"CUDA_VISIBLE_DEVICES": found[slot % len(found)]} if found else {}
        return LocalWorker(folder / f"worker{count + 1}.log", own)

    with held(folder, say), Interruption() as interruption:
        pool = WorkerPool(start, interruption, capacity=capacity, place=place)
        try:
            yield pool
        finally:
            pool.close()


@contextmanager
def held(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Make a study's directory, and keep other studies out of it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error, "nothing was written") from None
    check_links(folder)
    with locked(folder, "running a comparison", say):
        remove_leftovers(folder)
        yield


def visible_gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES may name here: the GPUs that torch finds, one after the other."""
    if not any(Path(device).exists() for device in GPU_DRIVERS):
        return []
    script = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True)
    count = int(done.stdout) if done.returncode == 0 else 0
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return (named or [str(number) for number in range(count)])[:count]


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
