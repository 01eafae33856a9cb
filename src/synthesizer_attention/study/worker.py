"""A worker process of a study: it imports torch once, has one thread, and answers orders.

    pool -> worker    {"do": a key of WORK, "recipe": ..., ...}                    a JSON line each
    worker -> pool    {}                                                           it is ready
                      {...}                                                        the answer
                      {"error": ..., "ends_study": ...}                            a user's mistake

A worker whose stdin ends saves a checkpoint and exits: none outlives its study. Any other error
ends the worker with a traceback in its log.
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
from synthesizer_attention.run.progress import Interrupted
from synthesizer_attention.run.recipe import Recipe, parse_recipe
from synthesizer_attention.run.run import Run

Message = dict[str, Any]


def serve() -> None:
    """Answer orders until stdin ends."""
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
    import torch
    from transformers.utils import logging

    import synthesizer_attention.training.loop  # noqa: F401  while the study is still planned

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
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
    arguments = {name: value for name, value in order.items() if name not in ("do", "recipe")}
    return WORK[order["do"]](parse_recipe(order["recipe"]), **arguments)


def _prepare(recipe: Recipe) -> Message:
    """Read and cache a recipe's data, and measure what a run of it would take."""
    from synthesizer_attention.tasks import build_task
    from synthesizer_attention.training.preview import time_answer, time_step

    task = build_task(recipe)
    tokens, examples = {}, {}
    for split in ("validation", "test"):
        batches = [(batch.num_tokens, len(batch.indices)) for batch in task.batches(split)]
        tokens[split], examples[split] = map(sum, zip(*batches, strict=True))
    return {
        "report": task.report,
        "metric": task.main_metric,
        "examples": examples,
        "seconds_per_step": time_step(recipe, task),
        "tokens": tokens,
        "seconds_per_answer": time_answer(recipe, task),
    }


def _precision(recipe: Recipe) -> Message:
    """The precision in which a recipe trains faster here, and why."""
    from synthesizer_attention.tasks import build_task
    from synthesizer_attention.training.preview import choose_precision

    train = recipe.train.model_copy(update={"start_from": None})  # which may not be there yet
    recipe = recipe.model_copy(update={"train": train})
    chosen, why = choose_precision(recipe, build_task(recipe))
    return {"precision": chosen.train.precision, "why": why}


def _train(
    recipe: Recipe, path: str, split: str, tracker: str | None = None, data: str | None = None
) -> Message:
    """One run of known data, resumed if unfinished, and measured on a split."""
    from synthesizer_attention.training.loop import fit

    return {"result": fit(recipe, Run(path), tracker=tracker, split=split, data=data)}


def _size(recipe: Recipe, like: str | None, measure: str) -> Message:
    """The width that makes a recipe as large as another, and how far off that is."""
    if like is None:
        count(recipe, measure)  # a spec that cannot be built fails here, before anything runs
        return {"d_ff": recipe.model.d_ff, "off": 0.0}
    other = parse_recipe(like)
    sized = at_width(recipe, match_width(recipe, other, measure))
    return {"d_ff": sized.model.d_ff, "off": count(sized, measure) - count(other, measure)}


WORK: dict[str, Callable[..., Message]] = {
    "size": _size, "prepare": _prepare, "precision": _precision, "train": _train,
}  # fmt: skip


def count(recipe: Recipe, measure: str) -> float:
    """A recipe's trained parameters ("params"), or its forward FLOPs per token ("flops").

    Entries of a causal table that no query reads do not count as parameters.
    """
    from synthesizer_attention.models import cost
    from synthesizer_attention.training.build import rough_config

    config = rough_config(recipe)
    if measure == "flops":
        return cost.flops_per_token(config)
    model = cost.sketch(config)
    return cost.count_parameters(model)["total"] - cost.unread_parameters(model)


def match_width(recipe: Recipe, like: Recipe, measure: str) -> int:
    """The d_ff at which `recipe` comes nearest to the count of `like`.

    Both counts are linear in d_ff, and what the vocabulary adds is the same on both sides.
    """
    budget = count(like, measure)
    first = count(at_width(recipe, 1), measure)
    slope = count(at_width(recipe, 2), measure) - first
    width = 1 + round((budget - first) / slope)
    if width < 1:
        raise UserError(
            f"{recipe.synthesis} has {first:,.0f} {measure} with a feed-forward of width 1, more "
            f"than the {budget:,.0f} of {like.synthesis} it must match; leave the row out, "
            "shorten model.max_len or use --match none"
        )
    return width


def at_width(recipe: Recipe, d_ff: int) -> Recipe:
    """The recipe with another feed-forward width."""
    model = recipe.model.model_copy(update={"d_ff": d_ff})
    return recipe.model_copy(update={"model": model})


if __name__ == "__main__":
    serve()
