"""The executor of a study: worker processes behind `submit` and futures (no torch).

One thread per worker hands orders over, and replaces a worker that is lost. What a worker does is
in worker.py; progress is read from run directories.

On a Ray cluster each actor runs one worker process. Ray places the actors and reports lost ones.
All results are run directories on a disk that the nodes share, so a study whose driver was killed
continues by the same command.
"""

import json
import logging
import math
import os
import platform
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from synthesizer_attention.errors import OtherDataError, UserError
from synthesizer_attention.run.files import cannot_write, locked, read_regular, remove_leftovers
from synthesizer_attention.run.progress import Interrupted, Interruption
from synthesizer_attention.run.run import provenance

Message = dict[str, Any]
Say = Callable[[str], None]

TICK = 0.25  # seconds between checks of the clock
SAVING = 120.0  # seconds a worker may take to save its checkpoint
RETRIES, RAY_RETRIES = 1, 3  # of an order whose worker was lost: here, on a cluster
STILLBORN = 3  # workers of a slot, in a row, that were lost before they answered
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # without one torch need not be asked
ORDERLY = (0, -9, -15)  # exit codes of a worker that others stopped: by SIGKILL, by SIGTERM
CONNECT = 10.0  # seconds until a cluster must accept a connection
SYNC = 5  # seconds that a network disk may take to show a new file
PASSED_ON = ("SYNTHESIZER_DATA", "SYNTHESIZER_CACHE")  # to the nodes of a cluster
TOKEN = ".cluster"


class Jobs(NamedTuple):
    """Who trains: so many workers here, or as many as a Ray cluster has room for."""

    workers: int | None = None
    ray: str | None = None  # "auto", or its head's "HOST:PORT"
    gpus: float | None = None  # of a worker on the cluster


def parse_jobs(text: str | None) -> Jobs:
    """'4', 'ray:auto' or 'ray:HOST:PORT,gpus=0.5'."""
    if text is None:
        return Jobs()
    kind, _, address = text.partition("ray:")
    if not kind and address:
        address, _, share = address.partition(",gpus=")
        if not share:
            return Jobs(ray=address)
        with suppress(ValueError):
            gpus = float(share)
            if 0 <= gpus < math.inf and (gpus <= 1 or gpus % 1 == 0):
                return Jobs(ray=address, gpus=gpus)
    elif text.isascii() and text.isdecimal() and 0 < len(text) < 5 and int(text):
        return Jobs(workers=int(text))
    raise UserError(
        f"--jobs is {text!r}; expected a number of workers such as 2, or a Ray cluster: ray:auto, "
        "ray:HOST:PORT or ray:auto,gpus=0.5 (a share of a GPU, or whole GPUs, for each worker)"
    )


class LostError(Exception):
    """A worker is gone; stopped from outside (`again`), its order may succeed elsewhere."""

    def __init__(self, error: str, *, again: bool) -> None:
        super().__init__(error)
        self.again = again


class Worker:
    """A worker process on this machine."""

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
        """Wait until it takes orders; return its host's name, empty for this machine.

        Raises LostError, or UserError where it must be neither used nor replaced.
        """
        read_answer(self.answer())
        return ""

    def perform(self, order: Message) -> Message:
        """Have an order done; raises LostError, or the user's mistake as UserError."""
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
        if code < 0:
            name = signal.Signals(-code).name
            memory = ": memory may have run out" if name == "SIGKILL" else ""
            lost = f"the worker was stopped by {name}{memory}"
        else:
            said = ""
            with suppress(OSError):  # an empty log may have been deleted by now
                said = self._log.read_text(encoding="utf-8", errors="replace").strip()
            last = said.rpartition("\n")[2].strip()
            lost = f"{last} (see {self._log})" if last else f"the worker ended with code {code}"
        return {"lost": lost, "again": code in ORDERLY}

    def close(self) -> None:
        """Take no more orders: the worker saves a checkpoint and exits."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def wait(self) -> None:
        """Wait until it has exited; after a while, or at a second Ctrl-C, kill it."""
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


def read_answer(message: Message) -> Message:
    """A worker's answer; raise what it says instead."""
    if "lost" in message:
        raise LostError(message["lost"], again=message["again"])
    if "error" in message:
        raise (OtherDataError if message["ends_study"] else UserError)(message["error"])
    return message


class Task(Future[Message]):
    """The future of an order."""

    def __init__(self, do: str, **arguments: Any) -> None:  # noqa: ANN401  JSON
        super().__init__()
        self.order: Message = {"do": do, **arguments}
        self.losses = 0  # workers that were lost with it
        self.notes: deque[Message] = deque()  # "start" and "retry", for whoever shows progress


class WorkerPool:
    """An executor of workers that serve one study directory.

    `start(count, slot)` opens a worker: `count` were opened before it, and no two workers have one
    slot at a time. `capacity` workers use the whole machine or cluster.
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
        self._workers: dict[int, Worker] = {}  # by slot
        self._started = self._slots = 0
        self._is_closed = False
        self._error: Exception | None = None  # what ends the study

    def grow(self, size: int) -> None:
        """Have at least so many workers."""
        for slot in range(self._slots, size):
            threading.Thread(target=self._serve, args=(slot,), daemon=True).start()
        self._slots = max(self._slots, size)

    def submit(self, do: str, **arguments: Any) -> Task:  # noqa: ANN401  JSON
        """Have an order done: see WORK."""
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
            there = list(self._workers.values())
        for worker in there:
            worker.close()
        for worker in there:
            worker.wait()

    def _serve(self, slot: int) -> None:
        """A thread's whole life: hand orders to a slot's worker, and replace one that is lost."""
        stillborn = 0
        try:
            while True:
                with self._changed:
                    if self._is_closed:
                        return
                    worker = self._workers[slot] = self._start(self._started, slot)
                    self._started += 1
                try:
                    host = worker.greet()
                except LostError as lost:
                    stillborn += 1
                    if stillborn == STILLBORN:
                        raise UserError(f"no worker starts: {lost}") from None
                else:
                    stillborn = 0
                    while (task := self._next_order()) and self._perform(worker, task, host):
                        pass
                worker.wait()
        except UserError as error:  # this slot is given up, the others go on
            self._workers.pop(slot).wait()
            self.notices.append(str(error))
            if not self._workers:
                self._error = error
        except Exception as error:
            self._error = error

    def _next_order(self) -> Task | None:
        """Wait until there is something to do; None once the pool is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._orders or self._is_closed)
            return None if self._is_closed else self._orders.popleft()

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


def ask(pool: WorkerPool, do: str, **arguments: Any) -> Message:  # noqa: ANN401  JSON
    """Have one order done, and return the answer."""
    pool.grow(1)
    task = pool.submit(do, **arguments)
    while not pool.wait([task]):
        pass
    return task.result()


@contextmanager
def open_pool(folder: Path, jobs: Jobs, say: Say) -> Iterator[WorkerPool]:
    """A pool on this machine or a cluster that alone serves a study's directory.

    Leaving it closes the workers, and no work is lost.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error, "nothing was written") from None
    with locked(folder, "running a comparison", say):
        remove_leftovers(folder)
        where = nullcontext(_here(folder)) if jobs.ray is None else _on_ray(folder, jobs)
        with where as (start, place, capacity), Interruption() as interruption:  # after Ray's own
            retries = RETRIES if jobs.ray is None else RAY_RETRIES
            pool = WorkerPool(start, interruption, capacity=capacity, place=place, retries=retries)
            try:
                yield pool
            finally:
                pool.close()


Place = tuple[Callable[[int, int], Worker], str, int]
"""How a worker is started, in words where, and how many there is room for."""


def _here(folder: Path) -> Place:
    """Each worker sees one GPU, where there are any; more workers than GPUs share them."""
    found = visible_gpus()
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()

    def start(count: int, slot: int) -> Worker:
        own = {"CUDA_VISIBLE_DEVICES": found[slot % len(found)]} if found else {}
        return Worker(folder / f"worker{count + 1}.log", own)

    place = f"on {len(found)} GPU{'s' * (len(found) > 1)}" if found else "of one thread"
    return start, place, len(found) or len(affinity) or os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES may name here: the GPUs that torch finds, one after the other."""
    if not any(Path(device).exists() for device in GPU_DRIVERS):
        return []
    script = "import torch; print(torch.cuda.device_count())"
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True)
    count = int(done.stdout) if done.returncode == 0 else 0
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return (named or [str(number) for number in range(count)])[:count]


@dataclass(frozen=True)
class Driver:
    """What a node must share with the process that conducts the study."""

    home: Path  # where it was started: relative paths in recipes begin here
    folder: Path  # the study's
    token: str  # written in a file of it
    code: tuple[str, str | None]  # version and commit
    environment: dict[str, str]

    def misfit(self) -> str | None:
        """Why this process, on a node, cannot serve the study."""
        for folder in (self.home, self.folder):
            if not folder.is_dir():
                return f"cannot see {folder}; start compare in, and give --out, a shared directory"
        for _ in range(SYNC):
            with suppress(OSError, ValueError):
                if read_regular(self.folder / TOKEN) == self.token:
                    break
            time.sleep(1)
        else:
            return f"has another {self.folder}; give --out a directory on a disk that nodes share"
        if (code := own_code()) != self.code:
            found, wanted = (f"synthesizer {v}, commit {c}" for v, c in (code, self.code))
            return f"has {found}, and the driver {wanted}; install the same on both"
        return None


class Host:
    """The actor: it has a worker process on its node."""

    def __init__(self, driver: Driver, log: Path) -> None:
        self._driver, self._log = driver, log

    def greet(self) -> Message:
        """Start the worker if the node is fit for the study."""
        node = import_ray().get_runtime_context().get_node_id()[:8]
        host = f"{platform.node()} (Ray node {node})"  # several nodes may share a host
        if error := self._driver.misfit():
            return {"error": f"{host} {error}", "ends_study": False}
        self._worker = Worker(self._log, self._driver.environment, self._driver.home)
        return {"host": host, **self._worker.answer()}

    def answer(self, order: Message) -> Message:
        return self._worker.answer(order)

    def wait(self) -> None:
        self._worker.wait()


class RayWorker(Worker):
    """A worker process on a node of a cluster, as soon as there is room for it."""

    def __init__(self, driver: Driver, log: Path, gpus: float) -> None:
        self._ray = import_ray()
        # Three threads: while one awaits an answer, another closes the worker.
        host = self._ray.remote(num_cpus=1, num_gpus=gpus, max_concurrency=3)(Host)
        self._actor = host.remote(driver, log)
        self._host = ""  # once it answered
        self._is_lost = False
        self._end: Any = None  # of its process, once that was asked for

    def greet(self) -> str:
        self._host = str(read_answer(self.answer())["host"])
        return self._host

    def answer(self, order: Message | None = None) -> Message:
        errors, name = self._ray.exceptions, self._host or "a node that had not answered"
        told = self._actor.greet.remote() if order is None else self._actor.answer.remote(order)
        try:
            answer: Message = self._ray.get(told)
        except errors.RayError as error:
            self._is_lost = True
            own = isinstance(error, errors.RayTaskError)  # an error of our own code there
            cause = str(error).strip().split("\n")[-1] if own else type(error).__name__
            return {"lost": f"{name} was lost ({cause})", "again": not own}
        if "lost" in answer:
            answer["lost"] += f" on {name}"
        return answer

    def close(self) -> None:
        if self._host and self._end is None:
            self._end = self._actor.wait.remote()

    def wait(self) -> None:
        self.close()
        try:
            if self._end is not None and not self._is_lost:
                with suppress(self._ray.exceptions.RayError, TimeoutError):
                    self._ray.get(self._end, timeout=SAVING + 10)
        finally:
            self._ray.kill(self._actor)


@contextmanager
def _on_ray(folder: Path, jobs: Jobs) -> Iterator[Place]:
    """Workers on a Ray cluster, each with a processor and, where there are any, GPUs."""
    ray, address = import_ray(), jobs.ray or "auto"
    # Whatever log_to_driver says, Ray prints the log of a lost node into the table.
    ray._private.worker.print_to_stdstream = lambda *args, **kwargs: None
    try:
        if address != "auto":  # Ray itself waits for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"no Ray cluster answers at {address} ({str(error).strip().splitlines()[0]}); give "
            "auto or the head's HOST:PORT, on a machine where ray start was run"
        ) from None
    token, shown = secrets.token_hex(8), folder / TOKEN  # who can tell it sees the same folder
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        most = max((node.get("GPU", 0) for node in nodes), default=0)
        share = min(1, most) if jobs.gpus is None else jobs.gpus
        rooms = [room for node in nodes if (room := _room(node, share))]
        if not rooms:
            raise UserError(
                f"no node of the Ray cluster has a free processor and {share:g} GPUs for a worker; "
                "add nodes, or lower gpus= in --jobs"
            )
        passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        hidden = {} if share else {"CUDA_VISIBLE_DEVICES": ""}
        driver = Driver(Path.cwd(), folder.absolute(), token, own_code(), passed | hidden)
        shown.unlink(missing_ok=True)
        shown.write_text(token, encoding="utf-8")

        def start(count: int, slot: int) -> Worker:
            return RayWorker(driver, driver.folder / f"worker{count + 1}.log", share)

        each = f"with {share:g} GPUs each" if share else "of one thread"
        yield start, f"{each} on {len(rooms)} Ray node{'s' * (len(rooms) > 1)}", sum(rooms)
    finally:
        shown.unlink(missing_ok=True)
        ray.shutdown()


def import_ray() -> Any:  # noqa: ANN401  a module without types
    """Ray, which only a cluster needs."""
    try:
        import ray
    except ImportError:
        raise UserError(
            "--jobs ray:ADDRESS needs ray, which is not installed; "
            "run pip install 'synthesizer-attention[cluster]'"
        ) from None
    return ray


def own_code() -> tuple[str, str | None]:
    """Version and commit of the code that runs here."""
    known = provenance()
    return known["versions"]["synthesizer"], known["commit"]


def _room(resources: dict[str, float], gpus: float) -> int:
    """Workers that a node has room for: a processor each, and a share of one GPU or whole GPUs."""
    processors, found = int(resources.get("CPU", 0)), resources.get("GPU", 0)
    if not gpus:
        return processors
    return min(processors, int(found) * int(1 / gpus) if gpus < 1 else int(found / gpus))
