"""How fast, and at what memory, each variant is: beside dot product attention, in the same rounds.

bench(Plan(...)) -> Result       measures
write.write(result, ...)         bench.json, bench.csv, report.html
explain.explain(plan)            which path each variant would take, and why
"""

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch

from synthesizer_attention.attention.fast.dispatch import has_kernel
from synthesizer_attention.attention.hook import kernels
from synthesizer_attention.benchmark.cases import (
    FROZEN,
    GPT2,
    MODES,
    PEERS,
    Case,
    Setting,
    build_case,
    count_flops,
    saved_bytes,
)
from synthesizer_attention.benchmark.clock import Timing, gemm_rate, time_in_turn
from synthesizer_attention.errors import UserError
from synthesizer_attention.spec import variants
from synthesizer_attention.training.meter import clock_name, peak_memory

BASELINE = "dot"
VIEWS = ("causal", "full", "padded")
VARIANTS = (
    "random",
    "fixed_random",
    "factorized_random",
    "dense",
    "factorized_dense",
    "relative",
    "random+dense",
    "random+dot",
    "dense+dot",
)


def can_freeze(name: str) -> bool:
    """Whether a name is of one table that freeze() can hold the softmax of."""
    variant = variants().get(name)
    return variant is not None and not (variant.depends_on_input or variant.baseline)


Tell = Callable[[int, int, str], None]
"""Called with the number of measurements done, their total, and the next one."""


@dataclass(frozen=True)
class Plan:
    """What to measure; with `tokens` the batch follows the length."""

    variants: tuple[str, ...] = VARIANTS
    modes: tuple[str, ...] = ("train", "inference")
    views: tuple[str, ...] = ("causal", "full")
    lengths: tuple[int, ...] = (1024,)
    tokens: int = 4096
    d_model: int = 512
    num_heads: int = 8
    num_layers: int = 6
    vocab_size: int = 8000
    rounds: int = 5
    device: str = "cpu"
    peers: bool = False
    threads: tuple[int, ...] = (1,)
    compiled: bool = False  # every module by torch.compile, in one graph

    def __post_init__(self) -> None:
        for mode in self.modes:
            if mode not in MODES:
                raise UserError(f"unknown mode {mode!r}; choose from {', '.join(MODES)}")
        for view in self.views:
            if view not in VIEWS:
                raise UserError(f"unknown view {view!r}; choose from {', '.join(VIEWS)}")
        if min(self.rounds, *self.lengths, *self.threads) < 1:
            raise UserError("rounds, lengths and threads must be at least 1")
        try:
            torch.empty(1, device=self.device)
        except (RuntimeError, AssertionError) as error:
            why = str(error).partition("\n")[0][:100]
            raise UserError(
                f"torch has no device {self.device!r} here ({why}); choose cpu or cuda"
            ) from None
        if self.compiled and set(self.modes) - {"train", "inference"}:
            raise UserError("only the modes train and inference are compiled; leave the others out")

    def settings(self) -> Iterator[Setting]:
        """Every comparison: one mode, view and length; a whole model has its own view."""
        shared = ("d_model", "num_heads", "num_layers", "vocab_size", "device", "compiled")
        sizes: dict[str, Any] = {name: getattr(self, name) for name in shared}
        for mode in self.modes:
            views = self.views if mode in ("train", "inference") else ("",)
            for view, length, threads in product(views, self.lengths, self.threads):
                batch = max(1, self.tokens // length)
                yield Setting(mode, view, length, batch, threads=threads, **sizes)

    def names(self, setting: Setting) -> list[str]:
        """Who is compared in a setting, dot first."""
        names = [BASELINE, *[name for name in self.variants if name != BASELINE]]
        if setting.mode in ("inference", "decode") and "padded" not in setting.view:
            names += [name + FROZEN for name in self.variants if can_freeze(name)]
        if self.peers and setting.mode in ("train", "inference"):
            names += list(PEERS)
        if self.peers and setting.mode in ("lm", "decode"):
            names.append(GPT2)
        return names


@dataclass(frozen=True)
class Row:
    """One variant in one setting, measured."""

    variant: str
    mode: str
    view: str
    length: int
    batch: int
    best_seconds: float
    median_seconds: float
    speed: float  # times as fast as dot, by best rounds
    speed_low: float
    speed_high: float
    tokens_per_second: float
    saved_bytes: int | None
    peak_bytes: int | None
    flops: int | None
    gemm_fraction: float | None  # of this machine's rate for a large matrix product
    threads: int = 1
    compiled: bool = False


@dataclass(frozen=True)
class Result:
    """All rows, and what they were measured on."""

    plan: Plan
    machine: dict[str, Any]
    rows: list[Row] = field(default_factory=list)


def bench(plan: Plan, tell: Tell = lambda done, total, what: None) -> Result:
    """Measure everything in the plan, each setting in rounds of all its variants."""
    kernels().prepare()
    device = torch.device(plan.device)
    torch.set_num_threads(plan.threads[0])
    rate = gemm_rate(device)
    result = Result(plan, machine(device, rate))
    settings = list(plan.settings())
    total, done = len(settings) * (plan.rounds + 1), 0
    for setting in settings:
        what = f"{setting.mode} {setting.view} length {setting.length}"
        if setting.threads != torch.get_num_threads():
            torch.set_num_threads(setting.threads)
            rate = gemm_rate(device)
        tell(done, total, what)
        names = plan.names(setting)
        cases = [build_case(name, setting) for name in names]
        peaks = [_peak(case, setting, device) for case in cases]  # first, while no gradient exists
        rounds = []
        for seconds in time_in_turn([case.work for case in cases], plan.rounds, device):
            rounds.append(seconds)
            done += 1
            tell(done, total, what)
        timings = [Timing(tuple(column)) for column in zip(*rounds, strict=True)]
        for case, timing, peak in zip(cases, timings, peaks, strict=True):
            result.rows.append(_row(case, setting, timing, timings[0], peak, rate))
        done += 1
    tell(total, total, "done")
    return result


def _peak(case: Case, setting: Setting, device: torch.device) -> int | None:
    """The peak of memory; decoding is too many small steps to be watched."""
    if setting.mode == "decode":
        return None
    with peak_memory(device) as memory:
        case.work()
    return memory.peak


def _row(
    case: Case, setting: Setting, timing: Timing, dot: Timing, peak: int | None, rate: float
) -> Row:
    speed, low, high = timing.speed_of(dot)
    flops = count_flops(case.name, setting) if setting.mode != "decode" else None
    return Row(
        variant=case.name,
        mode=setting.mode,
        view=setting.view,
        length=setting.length,
        batch=setting.batch,
        best_seconds=timing.best,
        median_seconds=timing.median,
        speed=speed,
        speed_low=low,
        speed_high=high,
        tokens_per_second=setting.num_tokens / timing.best,
        saved_bytes=saved_bytes(case),
        peak_bytes=peak,
        flops=flops,
        gemm_fraction=None if flops is None else flops / timing.best / rate,
        threads=setting.threads,
        compiled=setting.compiled,
    )


def machine(device: torch.device, rate: float) -> dict[str, Any]:
    """What the numbers were taken on."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "threads": torch.get_num_threads(),
        "clock": clock_name(device),
        "torch": torch.__version__,
        "gemm_flops_per_second": round(rate),
        "kernel": "compiled" if has_kernel(device) else "none",
        "load_average": os.getloadavg()[0],
        "claims": "CUDA" if device.type == "cuda" else "CPU only",
    }


def _processor() -> str:
    return f"{platform.machine()} CPU, {os.cpu_count()} cores"
