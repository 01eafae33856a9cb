"""The worker pool of a study: submit orders, iterate events, replace crashed workers (no torch)."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Protocol, TextIO

from synthesizer.errors import UserError
from synthesizer.experiment.interruption import Interrupted, Interruption
from synthesizer.experiment.run import cannot_write, remove_leftovers
from synthesizer.study.worker import Message
from synthesizer.untrusted import check_links

TICK = 0.25  # seconds between checks of the clock
LOCKED = 60.0  # seconds that workers of a killed study may take to leave
SAVING = 120.0  # seconds a worker may take to save its checkpoint
RETRIES = 1  # of an order whose worker was lost
ORDERLY = (0, -signal.SIGKILL, -signal.SIGTERM)  # exit codes of a worker that others stopped


class Worker(Protocol):
    """One process that runs `worker.serve`, wherever it is."""

    def submit(self, order: Message) -> None:
        """Send an order; that the worker is gone shows as an event, not here."""
        ...

    def events(self) -> Iterator[Message]:
        """All that it sends, in order; the last is {"event": "gone", "error": ..., "lost": ...}.

        Lost is a worker that was stopped from outside: its order may succeed elsewhere.
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

    def __init__(self, log: Path, lock: int | None) -> None:
        self._log = log
        home = str(Path(__file__).parents[2])  # the worker runs the code that started it
        path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
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
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
                pass_fds=() if lock is None else (lock,),
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
    """Workers that serve one study directory; `start` opens one, given its number."""

    def __init__(self, start: Callable[[int], Worker], interruption: Interruption) -> None:
        self._start, self._interruption = start, interruption
        self._workers: list[Worker] = []
        self._events: Queue[tuple[Worker, Message]] = Queue()
        self._started = 0

    def grow(self, size: int) -> None:
        """Have at least so many workers."""
        while len(self._workers) < size:
            self._started += 1
            worker = self._start(self._started)
            self._workers.append(worker)
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
        worker was lost and that it starts again; "tick" (index -1) that a moment passed.
        """
        waiting, retried = deque(range(len(orders))), Counter[int]()
        busy: dict[Worker, int] = {}
        while waiting or busy:
            for worker in self._workers:
                if waiting and worker not in busy:
                    busy[worker] = waiting.popleft()
                    yield busy[worker], {"event": "start"}
                    worker.submit(orders[busy[worker]])
            heard = self._next_event()
            if heard is None:
                yield -1, {"event": "tick"}
                continue
            worker, event = heard
            index = busy.get(worker)
            if event["event"] == "gone":
                kind = "failed"
                if index is not None and event["lost"] and retried[index] < RETRIES:
                    retried[index] += 1
                    waiting.appendleft(index)
                    kind = "retry"
                self._replace(worker, needed=bool(waiting))
                event = {"event": kind, "error": event["error"]}
            if event["event"] in ("done", "failed", "retry"):
                busy.pop(worker, None)
            if index is not None:
                yield index, event

    def close(self) -> None:
        """Let every worker save what it does, and wait for all of them."""
        for worker in self._workers:
            worker.close()
        for worker in self._workers:
            worker.wait()

    def _replace(self, worker: Worker, *, needed: bool) -> None:
        worker.wait()
        self._workers.remove(worker)
        if needed or not self._workers:
            self.grow(len(self._workers) + 1)

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
def open_pool(folder: Path) -> Iterator[WorkerPool]:
    """A pool of processes on this machine; leaving it closes them, and no work is lost."""
    lock = _lock(folder)
    number = None if lock is None else lock.fileno()
    with Interruption() as interruption:
        pool = WorkerPool(
            lambda count: LocalWorker(folder / f"worker{count}.log", number), interruption
        )
        try:
            yield pool
        finally:
            pool.close()
            if lock is not None:
                lock.close()


def _lock(folder: Path) -> TextIO | None:
    """Keep other studies out; the workers hold the lock too, so it lasts as long as any of them."""
    try:
        import fcntl
    except ImportError:  # Windows has none
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_links(folder)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise cannot_write(folder, error) from None
    deadline = time.monotonic() + LOCKED
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_leftovers(folder)
            return file
        except OSError:
            if time.monotonic() > deadline:
                file.close()
                raise UserError(
                    f"another comparison is running in {folder}; wait for it, or choose --out"
                ) from None
            time.sleep(TICK)
