"""The worker pool of a study: submit orders, iterate events, replace crashed workers (no torch)."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Protocol

from synthesizer.errors import UserError
from synthesizer.experiment.disk import cannot_write
from synthesizer.experiment.interruption import Interrupted, Interruption
from synthesizer.experiment.lock import locked
from synthesizer.experiment.run import remove_leftovers
from synthesizer.study.worker import Message
from synthesizer.untrusted import check_links

TICK = 0.25  # seconds between checks of the clock
SAVING = 120.0  # seconds a worker may take to save its checkpoint
RETRIES = 1  # of an order whose worker was lost on this machine
STILLBORN = 3  # workers in a row that were lost before they answered
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # without one torch need not be asked
ORDERLY = (0, -9, -15)  # exit codes of a worker that others stopped: by SIGKILL, by SIGTERM


class Worker(Protocol):
    """One process that runs `worker.serve`, wherever it is."""

    def submit(self, order: Message) -> None:
        """Send an order; that the worker is gone shows as an event, not here."""
        ...

    def events(self) -> Iterator[Message]:
        """All that it sends, in order, from {"event": "hello"} on, once it can take orders.

        The last is {"event": "gone", "error": ..., "lost": ...}. Lost is a worker that was stopped
        from outside: its order may succeed elsewhere. {"event": "unfit", "error": ...} is the last
        of one that must not be used, nor replaced.
        """
        ...

    def close(self) -> None:
        """Accept no more orders: the worker saves a checkpoint and exits."""
        ...

    def wait(self) -> None:
        """Wait until it has exited; after a while, or at a second Ctrl-C, kill it."""
        ...


class LocalWorker:
    """A worker process on this machine: orders on its stdin, events on its stdout."""

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
                [sys.executable, "-P", "-m", "synthesizer.study.worker"],
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

    def submit(self, order: Message) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()

    def events(self) -> Iterator[Message]:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.endswith("\n"):  # else the worker was killed while it wrote
                    yield json.loads(line)
        code = self._process.wait()
        yield {"event": "gone", "error": self._last_error(code), "lost": code in ORDERLY}

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


class WorkerPool:
    """Workers that serve one study directory.

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
        self._slots: dict[Worker, int] = {}
        self._ready: dict[Worker, str] = {}  # workers that answered, and their hosts
        self._events: Queue[tuple[Worker, Message]] = Queue()
        self._started = self._stillborn = 0

    def grow(self, size: int) -> None:
        """Have at least so many workers."""
        while len(self._slots) < size:
            slot = next(n for n in range(size) if n not in self._slots.values())
            worker = self._start(self._started, slot)
            self._started += 1
            self._slots[worker] = slot
            threading.Thread(target=self._listen, args=(worker,), daemon=True).start()

    def ask(self, order: Message) -> Message:
        """Have one order done, and return the answer."""
        self.grow(1)
        for _, event in self.run([order]):
            if event["event"] == "done":
                return event
            if event["event"] == "failed":
                raise UserError(event["error"])
        raise AssertionError("every order ends with done or failed")

    def run(self, orders: Sequence[Message]) -> Iterator[tuple[int, Message]]:
        """Have all orders done, and yield (the order's index, event) as they come.

        Every order begins with "start" and ends with "done" or "failed"; "retry" says that its
        worker was lost and that it starts again. Index -1: "tick", a moment passed, or "say".
        """
        waiting, retried = deque(range(len(orders))), Counter[int]()
        busy: dict[Worker, int] = {}
        while waiting or busy:
            for worker, host in self._ready.items():
                if waiting and worker not in busy:
                    busy[worker] = waiting.popleft()
                    yield busy[worker], {"event": "start", "host": host}
                    worker.submit(orders[busy[worker]])
            heard = self._next_event()
            if heard is None:
                yield -1, {"event": "tick"}
                continue
            worker, event = heard
            index = busy.get(worker)
            if event["event"] == "hello":
                self._ready[worker], self._stillborn = event.get("host", ""), 0
            elif event["event"] == "unfit":
                self._dismiss(worker, event["error"])
                yield -1, {"event": "say", "text": event["error"]}
            elif event["event"] == "gone":
                kind = "failed"
                if index is not None and event["lost"] and retried[index] < self._retries:
                    retried[index] += 1
                    waiting.appendleft(index)
                    kind = "retry"
                self._replace(worker, event["error"], needed=bool(waiting))
                event = {"event": kind, "error": event["error"]}
            if event["event"] in ("done", "failed", "retry"):
                busy.pop(worker, None)
            if index is not None:
                yield index, event

    def close(self) -> None:
        """Let every worker save what it does, and wait for all of them."""
        for worker in self._slots:
            worker.close()
        for worker in self._slots:
            worker.wait()

    def _replace(self, worker: Worker, error: str, *, needed: bool) -> None:
        self._stillborn += worker not in self._ready
        if self._stillborn >= STILLBORN:
            raise UserError(f"no worker starts: {error}")
        self._remove(worker)
        if needed or not self._slots:
            self.grow(len(self._slots) + 1)

    def _dismiss(self, worker: Worker, error: str) -> None:
        self._remove(worker)
        if not self._slots:
            raise UserError(error)

    def _remove(self, worker: Worker) -> None:
        worker.wait()
        del self._slots[worker]
        self._ready.pop(worker, None)

    def _listen(self, worker: Worker) -> None:
        for event in worker.events():
            self._events.put((worker, event))

    def _next_event(self) -> tuple[Worker, Message] | None:
        """What a worker sent, or None after a tick."""
        if self._interruption.asked:
            raise Interrupted("interrupted")
        with suppress(Empty):
            return self._events.get(timeout=TICK)
        return None


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
