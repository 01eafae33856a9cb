"""What a row costs: parameters, arithmetic, memory and speed, alone and beside dot's (no torch)."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from synthesizer_attention.report.load import Record, Row

COSTS: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "parameters": lambda result: result["parameters"]["total"],
    "flops": lambda result: result["flops_per_token"],
    "training": lambda result: result["training_tokens_per_second"],
    "decoding": lambda result: result["decoding_tokens_per_second"],
    "memory": lambda result: result["training_memory_bytes"],
    "cache": lambda result: result["cache_bytes_per_token"],
    "process_memory": lambda result: result["peak_memory_bytes"],  # of older records
    "sharpness": lambda result: mean_known(list(result["sharpness"].values())),
    "source_gap": lambda result: result.get("source_gap", result.get("worth_of_source")),  # older
    "steps_per_token": lambda result: mean_known(list(result["steps_per_token"].values())),
}
SPEEDS = ("training", "decoding")  # which depend on the machine


def cost_of(row: Row) -> dict[str, float | None]:
    """Means over a row's finished runs; what none of them tells is None."""
    return {
        name: mean_known([told(read, run.result) for run in row.finished if run.result])
        for name, read in COSTS.items()
    }


def relative_cost(row: Row, base: Row | None) -> dict[str, float | None]:
    """The same over those of a base; no speed where the machines differ."""
    if base is None:
        return dict.fromkeys(COSTS)
    alike = len(machines([*row.finished, *base.finished])) == 1
    own, beside = cost_of(row), cost_of(base)
    return {
        name: _ratio(own[name], beside[name]) if alike or name not in SPEEDS else None
        for name in COSTS
    }


def machines(runs: Sequence[Record]) -> list[str]:
    """The kinds of machine that runs were made on: what decides how fast they are."""
    kinds: dict[str, None] = {}
    for result in (run.result or {} for run in runs):
        device = " on ".join(str(result[k]) for k in ("device", "processor") if k in result)
        kinds[f"{device or '?'}, threads: {result.get('threads', '?')}"] = None
    return list(kinds)


def told(read: Callable[[dict[str, Any]], float | None], result: dict[str, Any]) -> float | None:
    """What a result says, or None."""
    try:
        return read(result)
    except (KeyError, TypeError, AttributeError):  # an older or newer version's result
        return None


def mean_known(values: Sequence[float | None]) -> float | None:
    """The mean of the values that are known."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None
