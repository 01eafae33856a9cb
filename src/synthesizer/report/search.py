"""What the learning-rate search tried for each row, and how far it can be trusted (no torch)."""

from typing import Any

from synthesizer.report.summary import MISSING, Line, Summary
from synthesizer.study.tune import at_the_edge, expected_best


def trial_table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Head and rows of what was tried for each row, the best first."""
    sign = -1 if summary.higher_is_better else 1
    rows = []
    for line in summary.lines:
        known = [trial for trial in line.row.trials if trial["validation"] is not None]
        failed = [trial for trial in line.row.trials if trial["validation"] is None]
        ordered = sorted(known, key=lambda trial: sign * trial["validation"])
        for place, trial in enumerate([*ordered, *failed]):
            value = trial["validation"]
            shown = "failed" if value is None else f"{value:.{summary.digits}f}"
            set_to = dict(change.split("=", 1) for change in trial["changes"])
            rates = [
                set_to.get(key, MISSING)
                for key in ("train.lr", "train.table_rate", "model.positions")
            ]
            chosen = "chosen" if place == 0 and value is not None else ""
            rows.append([line.row.label, *rates, shown, chosen])
    heads = ["learning rate", "table rate", "positions", f"validation {summary.metric_name}", ""]
    return ["variant", *heads], rows


def search_table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """What the search found for each row: the rate at an edge, and the best to expect of k."""
    rows = []
    for line in summary.lines:
        expected = expected_best(_with_direction(line, summary))
        if not expected:
            continue
        rows.append([line.row.label, _edge(line, summary), *_spread(expected, summary.digits)])
    heads = ["best learning rate", "expected best of 1", "of half", "of all trials"]
    return ["variant", *heads], rows


def _edge(line: Line, summary: Summary) -> str:
    edge = at_the_edge(_with_direction(line, summary))
    return f"{edge} of those tried: widen" if edge else "inside"


def _with_direction(line: Line, summary: Summary) -> list[dict[str, Any]]:
    """Trials that failed do not say which scores are better."""
    return [{"higher_is_better": summary.higher_is_better, **trial} for trial in line.row.trials]


def _spread(expected: list[float], digits: int) -> list[str]:
    places = (0, (len(expected) - 1) // 2, len(expected) - 1)
    return [f"{expected[place]:.{digits}f}" for place in places]
