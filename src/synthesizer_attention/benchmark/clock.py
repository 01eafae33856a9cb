"""How time is taken: rounds of all cases in turn, so that a busy machine is fair."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from synthesizer_attention.training.meter import now

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


def time_in_turn(works: Sequence[Work], rounds: int, device: torch.device) -> Iterator[list[float]]:
    """Run all cases once to warm up, then yield the seconds of each, round by round."""
    for work in works:
        _seconds(work, device)
    for _ in range(rounds):
        yield [_seconds(work, device) for work in works]


def _seconds(work: Work, device: torch.device) -> float:
    start = now(device)
    work()
    return now(device) - start


def gemm_rate(device: torch.device, side: int = 1024, tries: int = 8) -> float:
    """Arithmetic per second of a large matrix product: what this machine can do at best."""
    left, right = torch.randn(2, side, side, device=device)
    best = min(_seconds(lambda: left @ right, device) for _ in range(tries))
    return 2.0 * side**3 / best
