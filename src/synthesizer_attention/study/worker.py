"""A worker process of a study: it imports torch once, has one thread, and takes orders on stdin.

    pool -> worker    {"do": "size" | "prepare" | "train", ...}     a JSON line each
    worker -> pool    {}                                            it listens
                      {...}                                         the answer to an order
                      {"error": ..., "ends_study": ...}             or the user's mistake
A worker whose stdin ends saves a checkpoint and exits: none outlives the study it serves. Any other
error ends the worker with a traceback in its log; the pool reports it and starts another.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Queue
from typing import Any

from synthesizer_attention.errors import OtherDataError, UserError
from synthesizer_attention.run.interruption import Interrupted

Message = dict[str, Any]


def serve() -> None:
    """A worker's whole life: answer orders until stdin ends."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is not an answer

    def answer(message: Message) -> None:
        with suppress(BrokenPipeError):  # the pool is dead, and stdin's end will say so
            out.write(json.dumps(message) + "\n")
            out.flush()

    answer({})
    orders: Queue[Message | None] = Queue()
    busy = threading.Event()
    threading.Thread(target=_take_orders, args=(orders, busy), daemon=True).start()
    _import_torch()
    while (order := orders.get()) is not None:
        try:
            answer(perform(order))
        except UserError as error:
            answer({"error": str(error), "ends_study": isinstance(error, OtherDataError)})
        except (Interrupted, KeyboardInterrupt):
            return
        busy.clear()


def _take_orders(orders: "Queue[Message | None]", busy: threading.Event) -> None:
    ordered = False
    for line in sys.stdin:
        ordered = True
        busy.set()
        orders.put(json.loads(line))
    if not ordered:
        os._exit(0)  # nothing is under way, and imports may take seconds
    if busy.is_set():
        signal.raise_signal(signal.SIGTERM)  # on Windows os.kill ends a process at once
    orders.put(None)


def perform(order: Message) -> Message:
    """Do what an order says, and answer."""
    arguments = {name: value for name, value in order.items() if name != "do"}
    return WORK[order["do"]](**arguments)


def _import_torch() -> None:
    import torch
    from transformers.utils import logging

    import synthesizer_attention.training.loop  # noqa: F401  while the study is still planned

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()


def _size(recipe: str, like: str | None, measure: str) -> Message:
    """The width that makes a recipe as large as another, and how far off that is."""
    from synthesizer_attention.run.recipe import parse_recipe
    from synthesizer_attention.study.budget import at_width, count, match_width

    parsed = parse_recipe(recipe)
    if like is None:
        count(parsed, measure)  # a spec that cannot be built fails here, before anything runs
        return {"d_ff": parsed.model.d_ff, "off": 0.0}
    other = parse_recipe(like)
    sized = at_width(parsed, match_width(parsed, other, measure))
    return {"d_ff": sized.model.d_ff, "off": count(sized, measure) - count(other, measure)}


def _prepare(recipe: str) -> Message:
    """Read and cache a recipe's data, and measure what a run of it would take."""
    from synthesizer_attention.run.recipe import parse_recipe
    from synthesizer_attention.tasks import build_task
    from synthesizer_attention.training.preview import time_answer, time_step

    parsed = parse_recipe(recipe)
    task = build_task(parsed)
    tokens, examples = {}, {}
    for split in ("validation", "test"):
        batches = [(batch.num_tokens, len(batch.indices)) for batch in task.batches(split)]
        tokens[split], examples[split] = map(sum, zip(*batches, strict=True))
    return {
        "report": task.report,
        "metric": task.main_metric,
        "examples": examples,
        "seconds_per_step": time_step(parsed, task),
        "tokens": tokens,
        "seconds_per_answer": time_answer(parsed, task),
    }


def _train(
    recipe: str,
    path: str,
    split: str,
    tracker: str | None = None,
    data: str | None = None,
) -> Message:
    """One run of known data, resumed if unfinished, and measured on a split."""
    from synthesizer_attention.run.recipe import parse_recipe
    from synthesizer_attention.run.run import Run
    from synthesizer_attention.training.loop import fit

    parsed = parse_recipe(recipe)
    return {"result": fit(parsed, Run(path), tracker=tracker, split=split, data=data)}


WORK: dict[str, Callable[..., Message]] = {
    "size": _size,
    "prepare": _prepare,
    "train": _train,
}


if __name__ == "__main__":
    serve()
