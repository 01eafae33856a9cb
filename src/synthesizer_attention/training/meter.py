"""Time and peak memory of a piece of work, apart from what other processes use."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch.autograd.profiler_util import MEMORY_EVENT_NAME
from torch.profiler import ProfilerActivity, profile


def clock_name(device: torch.device) -> str:
    """Which clock `now` reads: a single thread's own time, which other processes do not add to."""
    return "processor time of one thread" if _is_one_thread(device) else "wall clock"


def now(device: torch.device) -> float:
    """Seconds of that clock, once the device has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.process_time() if _is_one_thread(device) else time.perf_counter()


def _is_one_thread(device: torch.device) -> bool:
    return device.type == "cpu" and torch.get_num_threads() == 1


def time_in_turn(
    works: Sequence[Callable[[], object]], rounds: int, device: torch.device
) -> Iterator[list[float]]:
    """Run all works once to warm up, then yield the seconds of each, round by round.

    In rounds of all, so that a busy machine is fair.
    """
    for number in range(rounds + 1):
        seconds = []
        for work in works:
            start = now(device)
            work()
            seconds.append(now(device) - start)
        if number:
            yield seconds


@dataclass
class Memory:
    """Peak bytes of new tensors; None where the device cannot be measured."""

    peak: int | None = None


@contextmanager
def peak_memory(device: torch.device) -> Iterator[Memory]:
    """Measure the peak memory of new tensors.

    Not the process's memory: that is libraries for the most part, and what an allocator
    keeps of earlier work.
    """
    memory = Memory()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield memory
        memory.peak = torch.cuda.max_memory_allocated(device) - before
    elif device.type == "cpu":
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # silences its start-up message
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            yield memory
        found = profiler.profiler.kineto_results.events()
        changes = [(e.start_ns(), e.nbytes()) for e in found if e.name() == MEMORY_EVENT_NAME]
        ordered = sorted(changes, key=lambda change: change[0])
        memory.peak = max(accumulate((size for _, size in ordered), initial=0))
    else:
        yield memory
