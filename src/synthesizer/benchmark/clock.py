"""How time and memory are taken: rounds of all cases in turn, so that a busy machine is fair."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

import torch
from torch.autograd.profiler import profile

Work = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Seconds of one case, round by round."""

    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        """The fastest round: what the machine can do when it is left alone."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The middle round."""
        return median(self.seconds)

    def speed_of(self, other: "Timing") -> tuple[float, float, float]:
        """How many times as fast as another, by best rounds; and the lowest and highest round."""
        rounds = [theirs / ours for ours, theirs in zip(self.seconds, other.seconds, strict=True)]
        return other.best / self.best, min(rounds), max(rounds)


def clock_name(device: torch.device) -> str:
    """Which clock is read: a single thread's own time, which other processes do not add to."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return "processor time of one thread" if alone else "wall clock"


def time_in_turn(works: Sequence[Work], rounds: int, device: torch.device) -> Iterator[list[float]]:
    """Run all cases once to warm up, then yield the seconds of each, round by round."""
    for work in works:
        _seconds(work, device)
    for _ in range(rounds):
        yield [_seconds(work, device) for work in works]


def _seconds(work: Work, device: torch.device) -> float:
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    read = time.process_time if alone else time.perf_counter
    _synchronize(device)
    start = read()
    work()
    _synchronize(device)
    return read() - start


def gemm_rate(device: torch.device, side: int = 1024, tries: int = 8) -> float:
    """Arithmetic per second of a large matrix product: what this machine can do at best."""
    left, right = torch.randn(2, side, side, device=device)
    best = min(_seconds(lambda: left @ right, device) for _ in range(tries))
    return 2.0 * side**3 / best


def peak_bytes(work: Work, device: torch.device) -> int:
    """The most memory that tensors made by a call take up at once, by every taking and freeing."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler speaks on stderr otherwise
    with profile(profile_memory=True) as taken:
        work()
    events = [event for event in taken.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(accumulate(changes), default=0)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
