"""What the search tried for each row, what it chose, and by how many seeds."""

from collections.abc import Iterator
from typing import Any

from synthesizer_attention.report.opponent import opponent_record
from synthesizer_attention.report.summary import MISSING, Line, Summary
from synthesizer_attention.study.tune import Tried, at_the_edge, expected_best, settings_tried

Table = tuple[list[str], list[list[str]]]
RATES = ("train.lr", "train.table_rate", "model.positions")


def trials_of(line: Line, summary: Summary) -> list[dict[str, Any]]:
    """A row's trials; what failed does not say which scores are better."""
    return [{"higher_is_better": summary.higher_is_better, **trial} for trial in line.row.trials]


def search_sentence(summary: Summary) -> str:
    """How learning rates were chosen."""
    facts = summary.study.facts
    tune, repeated = facts.get("tune"), (facts.get("search") or {}).get("repeated")
    first = f"Every variant had {tune} trials of learning rate and table rate"
    if repeated:
        return (
            f"{first} under a seed that is not reported, and its best {repeated} again under a "
            "second one; it uses those with the best mean on validation."
        )
    return (
        f"{first}, and uses those that did best on validation. One seed chose, which is not "
        "reported: where seeds spread, it favours lucky trials."
    )


def _searched(summary: Summary) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The trials of each row, and of the dot products that were tried and left."""
    rows = {line.row.label: trials_of(line, summary) for line in summary.lines}
    beaten: dict[str, list[dict[str, Any]]] = {}
    for trial in opponent_record(summary.study).get("trials", []):
        label = trial.get("row", "")
        if label and not rows.get(label):
            told = {"higher_is_better": summary.higher_is_better, **trial}
            beaten.setdefault(label, []).append(told)
    yield from ((label, trials) for label, trials in rows.items() if trials)
    yield from beaten.items()


def search_table(summary: Summary) -> Table:
    """What the search found for each row: the rate at an edge, and the best to expect of k."""
    rows = []
    for label, trials in _searched(summary):
        expected = expected_best(trials)
        if not expected or not summary.study.facts.get("tune"):
            continue
        places = (0, (len(expected) - 1) // 2, len(expected) - 1)
        spread = [f"{expected[place]:.{summary.digits}f}" for place in places]
        edge = at_the_edge(trials)
        rows.append([label, f"{edge} of those tried: widen" if edge else "inside", *spread])
    heads = ["best learning rate", "expected best of 1", "of half", "of all trials"]
    return ["variant", *heads], rows


def trial_table(summary: Summary) -> Table:
    """Head and rows of what was tried for each row, the best first."""
    found = {label: settings_tried(trials) for label, trials in _searched(summary)}
    failed = {label: _failed(trials) for label, trials in _searched(summary)}
    seeds = max((len(one.scores) for each in found.values() for one in each), default=1)
    rows = []
    for label, each in found.items():
        ordered = sorted(each, key=lambda one: one.rank, reverse=True)
        for place, one in enumerate(ordered):
            shown = [*_scores(one, seeds, summary.digits), "" if place else _taken(label, summary)]
            rows.append([label, *_rates(one.changes), *shown])
        blank = [MISSING] * (seeds if seeds > 1 else 0)
        rows += [[label, *_rates(one), "failed", *blank, ""] for one in failed[label]]
    score = f"validation {summary.metric_name}"
    heads = [score, *["second seed", "mean"][: seeds if seeds > 1 else 0], ""]
    return ["variant", "learning rate", "table rate", "positions", *heads], rows


def _taken(label: str, summary: Summary) -> str:
    """What became of a row's best setting: without tuning, one row alone is chosen."""
    chosen = opponent_record(summary.study).get("label")
    if summary.study.facts.get("tune"):
        return "chosen" if any(line.row.label == label for line in summary.lines) else "its best"
    return "chosen" if label == chosen else ""


def _failed(trials: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The settings that no seed got through."""
    known = {one.changes for one in settings_tried(trials)}
    return list(dict.fromkeys(c for trial in trials if (c := tuple(trial["changes"])) not in known))


def _rates(changes: tuple[str, ...]) -> list[str]:
    set_to = dict(change.split("=", 1) for change in changes)
    return [set_to.get(key, MISSING) for key in RATES]


def _scores(one: Tried, seeds: int, digits: int) -> list[str]:
    """A score for each seed, and their mean where there are several."""
    each = ["failed" if score is None else f"{score:.{digits}f}" for score in one.scores]
    if seeds == 1:
        return each
    mean = f"{one.mean:.{digits}f}" if len(one.scores) > 1 else MISSING
    return [*each, *[MISSING] * (seeds - len(each)), mean]
