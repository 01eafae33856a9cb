"""Preview a recipe without training: sizes, costs, data and time."""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator

import torch

from synthesizer_attention.attention.hook import kernels
from synthesizer_attention.errors import UserError, one_line_for_memory
from synthesizer_attention.models.config import SynthesizerConfig
from synthesizer_attention.models.cost import (
    cache_bytes_per_token,
    count_parameters,
    flops_per_token,
    sketch,
)
from synthesizer_attention.run.progress import Progress, clock
from synthesizer_attention.run.recipe import Recipe, change, dump, published_parameters
from synthesizer_attention.run.run import Run
from synthesizer_attention.spec import normalize_spec
from synthesizer_attention.tasks import build_task
from synthesizer_attention.tasks.task import Task
from synthesizer_attention.training.build import build_config, build_model, rough_config
from synthesizer_attention.training.evaluate import answer, evaluating
from synthesizer_attention.training.loop import SIZES, Loop, open_accelerator

TRIED = 4  # steps, the first of which warms up
GAIN = 1.1  # times as fast as in float32, from which on auto means bfloat16


def describe(recipe: Recipe) -> Iterator[str]:
    """Lines about a recipe, each as soon as it is known."""
    yield dump(recipe).rstrip()
    yield ""
    try:
        task = build_task(recipe)
        if recipe.train.precision == "auto":
            recipe, why = choose_precision(recipe, task)
            yield why
    except UserError:
        yield "the data cannot be read; with a vocabulary as large as text.vocab_size:"
        yield from _cost(rough_config(recipe))
        yield from _published(recipe)
        raise
    yield from describe_data(task)
    yield from _cost(build_config(recipe, task.tokenizer, task.labels))
    yield from _published(recipe)
    seconds, threads = time_step(recipe, task), torch.get_num_threads()
    yield (
        f"time: about {clock(seconds * recipe.train.steps)} for {recipe.train.steps} steps "
        f"({seconds * 1000:.0f} ms each, threads: {threads}; evaluation comes on top)"
    )


def describe_data(task: Task) -> Iterator[str]:
    """Lines about the data that a task read."""
    yield "data"
    for key, value in task.report.items():
        yield f"  {key}: {value}"


def _published(recipe: Recipe) -> Iterator[str]:
    """The printed count of the same row, where the recipe is that of a published table.

    A recipe in miniature names the table of another model.
    """
    if recipe.paper != recipe.name:
        return
    counts = published_parameters(recipe.paper, normalize_spec(recipe.synthesis))
    yield from (f"  published: {count}" for count in counts or ["no count of this row is known"])


def _cost(config: SynthesizerConfig) -> Iterator[str]:
    yield "parameters"
    for part, count in count_parameters(sketch(config)).items():
        yield f"  {part}: {count:,}"
    yield f"FLOPs per token, forward at full length: {flops_per_token(config):,.0f}"
    cached = cache_bytes_per_token(config)
    yield f"cache bytes per token: {'nothing is decoded' if cached is None else f'{cached:,}'}"


def time_answer(recipe: Recipe, task: Task) -> float:
    """Seconds of an answer by a model that knows no end yet, so at most; 0 where none is due."""
    if not task.generates:
        return 0.0
    model = build_model(recipe, task.tokenizer, task.labels)
    inputs = next(iter(task.batches("validation"))).inputs
    begin = time.perf_counter()
    with evaluating(model):
        answers = answer(model, inputs, recipe.evaluate)
    return (time.perf_counter() - begin) / len(answers)


def choose_precision(recipe: Recipe, task: Task) -> tuple[Recipe, str]:
    """The recipe in the precision in which it trains faster here, and the reason.

    Timed on this model, in turn: narrow models do not gain, whatever the processor has.
    """
    if any(int(os.environ.get(name, "1")) > 1 for name in SIZES):
        raise UserError(
            "train.precision is auto, which one process chooses by its own clock, and several were "
            "launched; set float32 or bfloat16"
        )
    lacks = torch.cuda.is_available() and not torch.cuda.is_bf16_supported()
    each = {name: change(recipe, [f"train.precision={name}"]) for name in ("float32", "bfloat16")}
    if lacks:
        return each["float32"], "precision: float32 (this GPU lacks bfloat16)"
    kernels().prepare()
    taken: dict[str, list[float]] = {name: [] for name in each}
    for name in [*each] * 2:
        taken[name].append(time_step(each[name], task))
    gain = min(taken["float32"]) / min(taken["bfloat16"])
    chosen = "bfloat16" if gain >= GAIN else "float32"
    told = f"a step in bfloat16 is {gain:.2f} times as fast here; auto asks for {GAIN}"
    return each[chosen], f"precision: {chosen} ({told})"


def time_step(recipe: Recipe, task: Task) -> float:
    """Seconds of a training step by the wall clock, measured on a few."""
    accelerator = open_accelerator(recipe)
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(recipe, Run(folder), task, accelerator, Progress())
        batches = loop.batches()
        taken = []
        for _ in range(TRIED):
            begin = time.perf_counter()
            with one_line_for_memory(loop.lower_batches):
                loop.take_step(next(batches))
            taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:])
