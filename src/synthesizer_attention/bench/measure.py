"""Time and memory of every case of a plan, in rounds of all variants of a setting."""

import os
import platform
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from synthesizer_attention.attention.fast import dispatch as fast
from synthesizer_attention.attention.hook import kernels
from synthesizer_attention.bench.cases import build_case, count_flops, saved_bytes
from synthesizer_attention.bench.plan import DECODING, PRECISIONS, SHARED, Plan, Result, Row
from synthesizer_attention.training.meter import clock_name, peak_memory, time_in_turn

Tell = Callable[[int, int, str], None]
"""Called with the number of measurements done, their total, and the next one."""


def bench(plan: Plan, tell: Tell = lambda done, total, what: None) -> Result:
    """Measure everything in the plan, each setting in rounds of all its variants."""
    kernels().prepare()
    device, settings = torch.device(plan.device), list(plan.settings())
    torch.set_num_threads(settings[0].threads)
    rate, timed = gemm_rate(device), (settings[0].threads, "float32")
    result = Result(plan, machine(device, rate))
    total, done = len(settings) * (plan.rounds + 1), 0
    for setting in settings:
        what = f"{setting.mode} {setting.view} length {setting.length} width {setting.d_model}"
        what += f" {setting.precision}"
        how = (setting.threads, setting.precision)
        if how != timed:
            torch.set_num_threads(setting.threads)
            rate, timed = gemm_rate(device, PRECISIONS[setting.precision]), how
        tell(done, total, what)
        cases = {name: build_case(name, setting) for name in plan.names(setting)}
        peaks: dict[str, int | None] = dict.fromkeys(cases)
        if setting.mode not in DECODING:  # which is too many small steps to be watched
            for name, case in cases.items():  # first, while no gradient exists
                with peak_memory(device) as memory:
                    case.work()
                peaks[name] = memory.peak
        rounds = []
        for seconds in time_in_turn([case.work for case in cases.values()], plan.rounds, device):
            rounds.append(seconds)
            done += 1
            tell(done, total, what)
        columns = list(zip(*rounds, strict=True))
        for (name, case), ours in zip(cases.items(), columns, strict=True):
            best, speeds = min(ours), [d / s for d, s in zip(columns[0], ours, strict=True)]
            flops = count_flops(name, setting)
            row = Row(
                variant=name,
                **{each: getattr(setting, each) for each in SHARED},
                best_seconds=best,
                median_seconds=median(ours),
                speed=min(columns[0]) / best,
                speed_low=min(speeds),
                speed_high=max(speeds),
                tokens_per_second=setting.batch * setting.length / best,
                saved_bytes=saved_bytes(case),
                peak_bytes=peaks[name],
                flops=flops,
                gemm_fraction=None if flops is None else flops / best / rate,
            )
            result.rows.append(row)
        done += 1
    tell(total, total, "done")
    return result


def machine(device: torch.device, rate: float) -> dict[str, Any]:
    """The machine and the clock."""
    processor = f"{platform.machine()} CPU, {os.cpu_count()} cores"
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor,
        "threads": torch.get_num_threads(),
        "clock": clock_name(device),
        "torch": torch.__version__,
        "gemm_flops_per_second": round(rate),
        "kernel": "compiled" if fast.has_kernel(device) else "none",
        "bfloat16": has_bfloat16(device),
        "load_average": os.getloadavg()[0],
        "claims": "CUDA" if device.type == "cuda" else "CPU only",
    }


def has_bfloat16(device: torch.device) -> bool:
    """Whether the processor or GPU multiplies bfloat16 itself."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    asked = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in asked)


def gemm_rate(device: torch.device, dtype: torch.dtype = torch.float32, side: int = 1024) -> float:
    """Arithmetic per second of a large matrix product: what this machine can do at best."""
    tries, (left, right) = 8, torch.randn(2, side, side, device=device).to(dtype)
    return 2.0 * side**3 / min(time_in_turn([lambda: left @ right], tries, device))[0]
