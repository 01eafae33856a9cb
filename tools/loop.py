"""What the training loop costs beside a bare one: python tools/loop.py | tee results/loop.txt.

The bare loop has the same model, optimizer and clipping, and its batches are ready. Ours makes
them, seeds each step, sets rates, sums over processes, reads losses and logs. Both in each round.
"""

import tempfile
import time
from itertools import islice
from statistics import median

import torch
from torch import nn

from synthesizer_attention.attention.hook import kernels
from synthesizer_attention.data.batch import Batch
from synthesizer_attention.run.progress import Pace, Progress
from synthesizer_attention.run.recipe import Recipe, load_recipe
from synthesizer_attention.run.run import Run, provenance
from synthesizer_attention.tasks import build_task
from synthesizer_attention.tasks.task import Task
from synthesizer_attention.training.loop import Loop, open_accelerator

SIZES = {64: 40, 256: 10, 512: 5}  # width -> steps of a round, a log line each
ROUNDS, WARM_UP = 7, 2  # the latter do not count


def take_bare_step(loop: Loop, batch: Batch) -> None:
    """Update the weights with nothing around it."""
    count = torch.tensor(float(batch.num_targets))
    loop.model(**batch.inputs, num_items_in_batch=count).loss.backward()
    nn.utils.clip_grad_norm_(loop.model.parameters(), loop.recipe.train.clip)
    loop.optimizer.step()
    loop.optimizer.zero_grad()


def measure(recipe: Recipe, task: Task, steps: int) -> tuple[list[float], list[float], int]:
    """Milliseconds of a step of our loop and of the bare one by round; number of parameters."""
    ours, bare = [], []
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(recipe, Run(folder), task, open_accelerator(recipe), Progress())
        ready = [batch for (batch,) in islice(loop.batches(), steps)]
        made = loop.batches()
        for number in range(-WARM_UP, ROUNDS):
            begin, pace = time.perf_counter(), Pace(loop.state.step)
            for _ in range(steps):
                loop.take_step(next(made))
            loop.read()
            pace.add(time.perf_counter() - begin, 0)
            loop._log(pace)
            middle = time.perf_counter()
            for batch in ready:
                take_bare_step(loop, batch)
            end = time.perf_counter()
            if number >= 0:
                ours.append(1000 * (middle - begin) / steps)
                bare.append(1000 * (end - middle) / steps)
        return ours, bare, sum(weight.numel() for weight in loop.model.parameters())


def main() -> None:
    """Print a table of three sizes."""
    kernels().prepare()
    facts = provenance()
    print(
        f"commit {facts['commit']}, torch {torch.__version__}, threads: {torch.get_num_threads()}"
    )
    print(f"python-docs, random+dot, 2 layers, median of {ROUNDS} rounds, ms a step")
    print("| width | parameters | bare loop | ours | overhead, median (least to most of a round) |")
    print("|---|---|---|---|---|")
    for width, steps in SIZES.items():
        changes = [f"model.d_model={width}", f"model.d_ff={4 * width}", "train.log_every=1"]
        recipe = load_recipe("python-docs", synthesis="random+dot", overrides=changes)
        ours, bare, size = measure(recipe, build_task(recipe), steps)
        more = [one - other for one, other in zip(ours, bare, strict=True)]
        print(
            f"| {width} | {size / 1e6:.2f}M | {median(bare):.2f} | {median(ours):.2f} "
            f"| {median(more):+.2f} ({min(more):+.2f} to {max(more):+.2f}) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
