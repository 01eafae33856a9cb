"""Which dot product a table is measured by, how its rows were searched, and how gaps develop."""

from collections.abc import Iterator
from typing import Any

from synthesizer.report.summary import DOT, Line, Summary, opponent_record
from synthesizer.sizes import DEFAULTS
from synthesizer.study.tune import at_the_edge, expected_best


def opponent_sentences(summary: Summary) -> Iterator[str]:
    """Which dot product the words are about, how it was found, and what it gains."""
    row, chosen = summary.opponent, opponent_record(summary.study)
    if row is None:
        return
    model = row.runs[0].recipe.get("model", {}) if row.runs else {}
    positions = model.get("positions", DEFAULTS.positions)
    others = {
        str(run.recipe.get("model", {}).get("positions", DEFAULTS.positions))
        for line in summary.lines
        if line.row.spec == DOT
        for run in line.row.runs
    }
    others |= {str(trial.get("positions")) for trial in chosen.get("trials", [])}
    kinds = {kind for text in others for kind in text.split("+")}
    if not {"relative", "rotary", "alibi"} & {kind.partition(":")[0] for kind in kinds}:
        yield (
            f"THE OPPONENT MAY BE WEAK: dot is compared with {positions} positions alone. A table "
            "also says where tokens stand; against a dot product with relative or rotary positions "
            "the answer may differ."
        )
        return
    if row.varied:
        yield (
            f"The opponent: each varied value has its own dot product, at the first {row.name} "
            f"({positions})."
        )
        return
    how = chosen.get("how") or "the best on validation"
    yield f"The opponent: differences and verdicts are against {row.label} ({positions}; {how})."
    tried = [trial for trial in chosen.get("trials", []) if trial.get("validation") is not None]
    if tried:
        shown = [
            f"{t['positions']} {t['validation']:.{summary.digits}f}" for t in _best_each(tried)
        ]
        listed = ", ".join(shown)
        yield f"Its positions were searched with a seed of its own, on validation: {listed}."
    yield from _gain(summary, chosen.get("configured"))


def _best_each(tried: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The best trial of each kind of positions."""
    best: dict[str, dict[str, Any]] = {}
    for trial in tried:
        kind = next(
            (t.partition("=")[2] for t in trial["changes"] if t.startswith("model.positions=")),
            trial["positions"],
        )
        trial = {**trial, "positions": kind}
        sign = 1 if trial.get("higher_is_better", True) else -1
        old = best.get(kind)
        if old is None or sign * trial["validation"] > sign * old["validation"]:
            best[kind] = trial
    return list(best.values())


def _gain(summary: Summary, configured: str | None) -> Iterator[str]:
    """What the opponent's positions gain over dot as it was configured."""
    means = {line.row.label: line.mean for line in summary.lines}
    opponent = summary.opponent.label if summary.opponent else None
    before, after = means.get(configured or DOT), means.get(opponent or "")
    if before is None or after is None or opponent == (configured or DOT):
        return
    gain = (after - before) * (1 if summary.higher_is_better else -1)
    word = "gains" if gain > 0 else "loses"
    yield (
        f"Assay sensitivity: with {opponent.removeprefix('dot, ') if opponent else ''} positions "
        f"dot {word} {abs(gain):.{summary.digits}f} {summary.metric_name} over dot as configured; "
        "a table's lead over the latter may be no more than that."
    )


def curve_sentences(summary: Summary) -> Iterator[str]:
    """Whose gap to dot still closes when training ends."""
    closing = [line for line in summary.lines if line.is_closing]
    if not closing:
        return
    digits = summary.digits
    shown = [
        f"{line.row.label} ({', '.join(f'{gap:+.{digits}f}' for gap in line.gaps or ())})"
        for line in closing
    ]
    yield (
        "So far: the validation gap to dot, after one, two and three thirds of the steps, still "
        f"closes for {'; '.join(shown)}. What longer training would say is open "
        "(--confirm 3x trains them three times as long)."
    )


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
