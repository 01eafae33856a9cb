"""The processes of a study: each imports torch once, has one thread, and takes orders on stdin.

    parent -> worker    {"do": "size" | "prepare" | "train", ...}      one JSON line each
    worker -> parent    {"event": "show" | "measure" | "say", ...}     while it trains
                        {"event": "done", ...}                         the answer to an order
                        {"event": "failed", "error": ...}              the user's mistake
                        {"event": "gone", "error": ...}                the process ended
A worker whose stdin ends saves a checkpoint and leaves: none outlives the study it serves. What
else goes wrong ends the worker; its last words are the error, and another takes its place.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import Any, TextIO

from synthesizer.errors import UserError
from synthesizer.experiment.interruption import Interrupted

Message = dict[str, Any]

PATIENCE = 120.0  # seconds a worker may take to save its checkpoint


class Worker:
    """The parent's side: a process, and a thread that puts what it says into a queue."""

    def __init__(
        self, events: "Queue[tuple[Worker, Message]]", log: Path, lock: int | None
    ) -> None:
        self._log, self._events = log, events
        home = str(Path(__file__).parents[2])  # the worker runs the code that started it
        path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "synthesizer.study.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
                pass_fds=() if lock is None else (lock,),
                start_new_session=True,  # Ctrl-C reaches the parent alone, which then tells
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def order(self, message: Message) -> None:
        """Hand out work; a worker that just died shows as an event, not here."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def dismiss(self) -> None:
        """Let it save what it does and leave."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def wait(self) -> None:
        """Wait until it left; after a while, or a second Ctrl-C, make it."""
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._process.kill()
            self._process.wait()
        if self._log.exists() and not self._log.stat().st_size:
            self._log.unlink()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put((self, json.loads(line)))
        self._process.stdout.close()
        self._events.put((self, {"event": "gone", "error": self._last_words()}))

    def _last_words(self) -> str:
        code = self._process.wait()
        if code < 0:
            name = signal.Signals(-code).name
            memory = ": memory may have run out" if name == "SIGKILL" else ""
            return f"the worker was stopped by {name}{memory}"
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f"{said[-1] if said else f'the worker ended with code {code}'} (see {self._log})"


class Wire:
    """A worker's progress, as events to the parent."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def send(self, event: str, **values: Any) -> None:  # noqa: ANN401  JSON
        with suppress(BrokenPipeError):  # the parent is dead, and stdin's end says so in order
            self._out.write(json.dumps({"event": event, **values}) + "\n")
            self._out.flush()

    def show(self, step: int, steps: int, loss: float, rate: float, left: float) -> None:
        self.send("show", step=step, steps=steps, loss=loss, rate=rate, left=left)

    def measure(self, step: int, metric: str, value: float) -> None:
        self.send("measure", step=step, metric=metric, value=value)

    def say(self, text: str) -> None:
        self.send("say", text=text)

    def close(self) -> None: ...


def serve() -> None:
    """A worker's whole life: answer orders until stdin ends."""
    wire = Wire(os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8"))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints is no event
    orders: Queue[Message | None] = Queue()
    busy = threading.Event()
    threading.Thread(target=_take_orders, args=(orders, busy), daemon=True).start()
    _import_torch()
    while (order := orders.get()) is not None:
        try:
            wire.send("done", **perform(order, wire))
        except UserError as error:
            wire.send("failed", error=str(error))
        except (Interrupted, KeyboardInterrupt):
            return
        busy.clear()


def _take_orders(orders: "Queue[Message | None]", busy: threading.Event) -> None:
    for line in sys.stdin:
        busy.set()
        orders.put(json.loads(line))
    if busy.is_set():
        os.kill(os.getpid(), signal.SIGTERM)
    orders.put(None)


def perform(order: Message, wire: Wire) -> Message:
    """Do what an order says, and answer."""
    arguments = {name: value for name, value in order.items() if name != "do"}
    return WORK[order["do"]](wire, **arguments)


def _import_torch() -> None:
    import torch
    from transformers.utils import logging

    import synthesizer.training.loop  # noqa: F401  while the parent still reads and plans

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _size(wire: Wire, recipe: str, like: str | None, measure: str) -> Message:
    """The width that makes a recipe as large as another, and how far off that is."""
    from synthesizer.experiment.recipe import parse_recipe
    from synthesizer.study.budget import at_width, count, match_width

    parsed = parse_recipe(recipe)
    if like is None:
        count(parsed, measure)  # a spec that cannot be built fails here, before anything runs
        return {"d_ff": parsed.model.d_ff, "off": 0.0}
    other = parse_recipe(like)
    sized = at_width(parsed, match_width(parsed, other, measure))
    return {"d_ff": sized.model.d_ff, "off": count(sized, measure) - count(other, measure)}


def _prepare(wire: Wire, recipe: str) -> Message:
    """Read and cache a recipe's data, and measure what a run of it would take."""
    from synthesizer.experiment.recipe import parse_recipe
    from synthesizer.tasks import build_task
    from synthesizer.training.preview import time_answer, time_step

    parsed = parse_recipe(recipe)
    task = build_task(parsed)
    tokens = {
        split: sum(batch.num_tokens for batch in task.batches(split))
        for split in ("validation", "test")
    }
    return {
        "report": task.report,
        "seconds_per_step": time_step(parsed, task),
        "tokens": tokens,
        "seconds_per_answer": time_answer(parsed, task),
    }


def _train(wire: Wire, recipe: str, path: str, split: str) -> Message:
    """One run, resumed where it stands, and measured on a split."""
    from synthesizer.experiment.recipe import parse_recipe
    from synthesizer.experiment.run import Run
    from synthesizer.training.loop import fit

    return {"result": fit(parse_recipe(recipe), Run(path), wire, split=split)}


WORK: dict[str, Callable[..., Message]] = {"size": _size, "prepare": _prepare, "train": _train}


if __name__ == "__main__":
    serve()
