"""Which dot product a table is measured by, how its rows were searched, and how gaps develop."""

from collections.abc import Iterator
from typing import Any

from synthesizer.report.summary import DOT, Summary, opponent_record
from synthesizer.sizes import DEFAULTS
from synthesizer.study.tune import Tried, best_of


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
    found = _best_each(summary, chosen.get("trials", []))
    if found:
        listed = ", ".join(f"{kind} {one.mean:.{summary.digits}f}" for kind, one in found.items())
        twice = any(len(one.scores) > 1 for one in found.values())
        seeds = "two seeds of its own (the mean decides)" if twice else "a seed of its own"
        yield f"Its positions were searched with {seeds}, on validation: {listed}."
    yield from _gain(summary, chosen.get("configured"))


def _best_each(summary: Summary, trials: list[dict[str, Any]]) -> dict[str, Tried]:
    """The best setting of each kind of positions."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for trial in trials:
        own = [t.partition("=")[2] for t in trial["changes"] if t.startswith("model.positions=")]
        told = {"higher_is_better": summary.higher_is_better, **trial}
        kinds.setdefault(own[0] if own else trial["positions"], []).append(told)
    found = {kind: best_of(each) for kind, each in kinds.items()}
    return {kind: best for kind, best in found.items() if best is not None}


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
    longer = sorted(path.parent.name for path in summary.study.path.glob("confirm-*x/study.json"))
    then = (
        f"What longer training says is a table of its own ({', '.join(longer)})."
        if longer
        else "What longer training would say is open (--confirm 3x trains three times as long)."
    )
    yield (
        "So far: the validation gap to dot, after one, two and three thirds of the steps, still "
        f"closes for {'; '.join(shown)}. {then}"
    )
