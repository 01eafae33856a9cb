"""Which dot product the rows of a study are compared with (no torch)."""

from typing import Any

from synthesizer_attention.report.costs import mean_known, told
from synthesizer_attention.report.load import Row, Study

DOT = "dot"


def base_of(study: Study, row: Row) -> Row | None:
    """The dot product that a row is compared with, once it is trained."""
    dot = opponent_of(study, row.varied)
    return dot if dot is not None and dot.finished else None


def opponent_record(study: Study) -> dict[str, Any]:
    """What study.json says of the opponent; empty in older records."""
    found = study.facts.get("opponent")
    return found if isinstance(found, dict) else {}


def opponent_of(study: Study, varied: tuple[str, ...] | None = None) -> Row | None:
    """The dot product that rows are compared with: as recorded, or the best on validation.

    Studies that recorded none, and those of --vary, have one for each choice of varied values, and
    its controls behind it; where no choice is asked for, that of the first row.
    """
    if varied is None:
        varied = study.rows[0].varied if study.rows else ()
    dots = [row for row in study.rows if row.spec == DOT and row.varied == varied]
    first = next((run.result or {} for row in dots for run in row.finished), {})
    metric, higher_is_better = first.get("main_metric", ""), first.get("higher_is_better", True)
    opponent = opponent_record(study)
    named = [row for row in dots if row.label == opponent.get("label")]
    scores = {
        row.label: mean_known(
            [told(lambda r: r["validation"][metric], run.result or {}) for run in row.finished]
        )
        for row in dots
        if row.candidate
    }
    known = {label: score for label, score in scores.items() if score is not None}
    if not named and known:
        best = (max if higher_is_better else min)(known, key=lambda label: known[label])
        named = [row for row in dots if row.label == best]
    return next(iter(named or dots), None)
