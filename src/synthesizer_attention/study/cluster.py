"""Workers on a Ray cluster: each Ray actor runs one worker process (no torch).

Ray places the actors, says when one is lost and passes messages; plan, runs and table are ours, and
run directories on a disk that all nodes share are the results. Nothing is taken from the driver's
memory, so a killed driver's study goes on by the same command.
"""

import logging
import os
import platform
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.interruption import Interruption
from synthesizer_attention.run.run import provenance
from synthesizer_attention.study.workers import (
    SAVING,
    LocalWorker,
    LostError,
    Message,
    UnfitError,
    Worker,
    WorkerPool,
    held,
    read_answer,
)
from synthesizer_attention.untrusted import read_regular

RETRIES = 3  # of a run whose node was lost
CONNECT = 10.0  # seconds
ANSWER = 180.0  # seconds that a node may take to start its first process
SYNC = 5  # seconds that a network disk may take to show a new file
PASSED_ON = ("SYNTHESIZER_DATA", "SYNTHESIZER_CACHE", "SYNTHESIZER_MAX_BYTES")
TOKEN = ".cluster"


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

    def greet(self) -> tuple[str, str | None]:
        """Start the worker if the node is fit for the study; the node's name, and why not."""
        error = self._driver.misfit()
        if error is None:
            self._worker = LocalWorker(self._log, self._driver.environment, self._driver.home)
            self._worker.greet()
        return host_name(), error

    def answer(self, order: Message) -> Message:
        return self._worker.answer(order)

    def wait(self) -> None:
        self._worker.wait()


class RayWorker:
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
        host, error = self._call(self._actor.greet)
        if error:
            raise UnfitError(f"{host} {error}")
        self._host = host
        return str(host)

    def perform(self, order: Message) -> Message:
        answer = self._call(self._actor.answer, order)
        if "lost" in answer:
            answer["lost"] += f" on {self._host}"
        return read_answer(answer)

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

    def _call(self, method: Any, *arguments: Any) -> Any:  # noqa: ANN401  of an actor
        errors = self._ray.exceptions
        try:
            return self._ray.get(method.remote(*arguments))
        except errors.RayError as error:
            self._is_lost = True
            own = isinstance(error, errors.RayTaskError)  # an error of our own code there
            cause = str(error).strip().split("\n")[-1] if own else type(error).__name__
            name = self._host or "a node that had not answered"
            raise LostError(f"{name} was lost ({cause})", again=not own) from None


@contextmanager
def open_cluster(
    folder: Path, address: str, gpus: float | None, say: Callable[[str], None]
) -> Iterator[WorkerPool]:
    """A pool of workers on a Ray cluster, each with a processor and, where there are any, GPUs."""
    ray = import_ray()
    with held(folder, say), _connected(address), _shown(folder) as token:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        most = max((node["Resources"].get("GPU", 0) for node in nodes), default=0)
        share = min(1, most) if gpus is None else gpus
        rooms = {node["NodeID"]: _room(node["Resources"], share) for node in nodes}
        used = [node for node, room in rooms.items() if room]
        if not used:
            raise UserError(
                f"no node of the Ray cluster has a free processor and {share:g} GPUs for a worker; "
                "add nodes, or lower gpus= in --jobs"
            )
        passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        hidden = {} if share else {"CUDA_VISIBLE_DEVICES": ""}
        driver = Driver(Path.cwd(), folder.absolute(), token, own_code(), passed | hidden)
        used = _fit_nodes(driver, used, say)
        where = f"{len(used)} Ray node{'s' * (len(used) > 1)}"
        each = f"with {share:g} GPUs each" if share else "of one thread"

        def start(count: int, slot: int) -> Worker:
            return RayWorker(driver, driver.folder / f"worker{count + 1}.log", share)

        with Interruption() as interruption:  # after Ray, which listens to signals too
            pool = WorkerPool(
                start,
                interruption,
                capacity=sum(rooms[node] for node in used),
                place=f"{each} on {where}",
                retries=RETRIES,
            )
            try:
                yield pool
            finally:
                pool.close()


def import_ray() -> Any:  # noqa: ANN401  a module without types
    """Ray, which only this needs."""
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


def host_name() -> str:
    """A node's name: several nodes may share a host."""
    return f"{platform.node()} (Ray node {import_ray().get_runtime_context().get_node_id()[:8]})"


@contextmanager
def _connected(address: str) -> Iterator[None]:
    ray = import_ray()
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
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _shown(folder: Path) -> Iterator[str]:
    """A secret in a file of a folder: who can tell it sees the same folder."""
    token, path = secrets.token_hex(8), folder / TOKEN
    path.unlink(missing_ok=True)
    path.write_text(token, encoding="utf-8")
    try:
        yield token
    finally:
        path.unlink(missing_ok=True)


def _room(resources: dict[str, float], gpus: float) -> int:
    """Workers that a node has room for: a processor each, and a share of one GPU or whole GPUs."""
    processors, found = int(resources.get("CPU", 0)), resources.get("GPU", 0)
    if not gpus:
        return processors
    return min(processors, int(found) * int(1 / gpus) if gpus < 1 else int(found / gpus))


def _fit_nodes(driver: Driver, nodes: list[str], say: Callable[[str], None]) -> list[str]:
    """The nodes that answer; refuse to start where one of them cannot serve the study."""
    ray = import_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = ray.remote(num_cpus=0)(_look)
    asked = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        asked[node] = look.options(scheduling_strategy=there).remote(driver)
    fit = []
    for node, answer in asked.items():
        try:
            name, error = ray.get(answer, timeout=ANSWER)
        except ray.exceptions.RayTaskError as failure:  # it cannot import this file, or reads other
            name, error = f"Ray node {node[:8]}", f"fails: {str(failure).strip().splitlines()[-1]}"
        except (ray.exceptions.RayError, TimeoutError) as failure:  # it was lost, as any may be
            say(f"Ray node {node[:8]} does not answer ({type(failure).__name__}) and is left out")
            continue
        if error:
            raise UserError(f"{name} {error}")
        fit.append(node)
    if not fit:
        raise UserError("no node of the Ray cluster answers; check `ray status`")
    return fit


def _look(driver: Driver) -> tuple[str, str | None]:
    return host_name(), driver.misfit()
