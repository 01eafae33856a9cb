"""The workers of a study under one roof: hand out orders, hear events, replace the fallen."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType
from typing import TextIO

from synthesizer.errors import UserError
from synthesizer.experiment.interruption import Interrupted, Interruption
from synthesizer.study.worker import Message, Worker

TICK = 0.25  # seconds between looks at the clock
LOCKED = 60.0  # seconds that workers of a killed study may take to leave


class Crew:
    """Workers that serve one study folder; leaving it dismisses them, and no work is lost."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, _lock(folder)
        self._workers: list[Worker] = []
        self._events: Queue[tuple[Worker, Message]] = Queue()
        self._interruption = Interruption()
        self._started = 0

    def __enter__(self) -> "Crew":
        self._interruption.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            for worker in self._workers:
                worker.dismiss()
            for worker in self._workers:
                worker.wait()
        finally:
            self._interruption.__exit__(kind, error, trace)
            if self._lock is not None:
                self._lock.close()

    def grow(self, size: int) -> None:
        """Have at least so many workers."""
        while len(self._workers) < size:
            self._started += 1
            log = self._folder / f"worker{self._started}.log"
            lock = None if self._lock is None else self._lock.fileno()
            self._workers.append(Worker(self._events, log, lock))

    def ask(self, order: Message) -> Message:
        """Have one order done, and return the answer."""
        self.grow(1)
        self._workers[0].order(order)
        for worker, event in self._hear():
            if worker is self._workers[0] and event["event"] == "done":
                return event
            if event["event"] in ("failed", "gone"):
                raise UserError(event["error"])
        raise AssertionError("a crew is heard until it is done")

    def work(self, orders: Sequence[Message]) -> Iterator[tuple[int, Message]]:
        """Have all orders done, and yield what is heard of each by its place.

        Every order ends with "done" or "failed"; "tick" belongs to none.
        """
        waiting = deque(range(len(orders)))
        busy: dict[Worker, int] = {}
        while waiting or busy:
            for worker in self._workers:
                if waiting and worker not in busy:
                    busy[worker] = waiting.popleft()
                    yield busy[worker], {"event": "start"}
                    worker.order(orders[busy[worker]])
            heard = next(self._hear(patient=False), None)
            if heard is None:
                yield -1, {"event": "tick"}
                continue
            worker, event = heard
            if event["event"] == "gone":
                event = self._replace(worker, event, waiting)
            if worker in busy:
                place = busy[worker]
                if event["event"] in ("done", "failed"):
                    del busy[worker]
                yield place, event

    def _replace(self, worker: Worker, event: Message, waiting: Sequence[int]) -> Message:
        worker.wait()
        self._workers.remove(worker)
        if waiting or not self._workers:
            self.grow(len(self._workers) + 1)
        return {"event": "failed", "error": event["error"]}

    def _hear(self, *, patient: bool = True) -> Iterator[tuple[Worker, Message]]:
        """What workers say; an impatient ear gives up after a tick."""
        while True:
            if self._interruption.asked:
                raise Interrupted("interrupted")
            try:
                yield self._events.get(timeout=TICK)
            except Empty:
                if not patient:
                    return


def _lock(folder: Path) -> TextIO | None:
    """Keep other studies out; the workers hold the lock too, so it lasts as long as any of them."""
    try:
        import fcntl
    except ImportError:  # Windows has none
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise UserError(f"cannot write {folder} ({error.strerror}); check --out") from None
    deadline = time.monotonic() + LOCKED
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except OSError:
            if time.monotonic() > deadline:
                raise UserError(
                    f"another comparison is at work in {folder}; wait for it, or choose --out"
                ) from None
            time.sleep(TICK)
