"""How reliable a table is: what its intervals hold, and whatever a reader should distrust."""

from collections.abc import Iterator

import numpy as np

from synthesizer.report.opponent import curve_sentences, opponent_sentences
from synthesizer.report.summary import Line, Summary
from synthesizer.spec import NONE
from synthesizer.study.evidence import FEWEST_SEEDS
from synthesizer.study.rows import AS_LARGE
from synthesizer.study.sequential import LEVEL, failing_rate, power_sentence
from synthesizer.study.verdict import FEWEST_UNITS, is_void

WITHOUT_A_NETWORK = {
    "dictionary": "a word-by-word dictionary counted from train",
    "bigram": "an interpolated bigram model of train",
    "majority": "the commonest label of train",
    "bag_of_words": "logistic regression on the tokens of a text, in whatever order,",
    "first_sentence": "the first sentence of the source",
    "commonest_reply": "the commonest reply of train",
    "commonest_answer": "the commonest answer of train",
}
"""What a task measures on its data beside the networks, by the key of its report."""


def reliability(summary: Summary) -> list[str]:
    """Sentences, the loudest first."""
    return [
        *_floors(summary),
        *_without_attention(summary),
        *opponent_sentences(summary),
        *_again(summary),
        *_intervals(summary),
        *_units(summary),
        *_seeds(summary),
        *curve_sentences(summary),
        *_size_control(summary),
        *_commits(summary),
    ]


def floors(summary: Summary) -> dict[str, float]:
    """What can be had without a network, by what it is."""
    results = [run.result for run in summary.finished if run.result]
    data = results[0].get("data", {}) if results else {}
    return {words: data[name]["test"] for name, words in WITHOUT_A_NETWORK.items() if name in data}


def _floors(summary: Summary) -> Iterator[str]:
    sign = 1 if summary.higher_is_better else -1
    means = [sign * line.mean for line in summary.lines if line.mean is not None]
    for words, value in floors(summary).items():
        if means and sign * value >= max(means):
            yield (
                f"NO ROW BEATS WHAT NEEDS NO NETWORK: {words} has "
                f"{value:.{summary.digits}f} ({summary.metric_name}). Nothing was learned here "
                "that a comparison of attention could speak of."
            )


def _without_attention(summary: Summary) -> Iterator[str]:
    sign = 1 if summary.higher_is_better else -1
    means = {line.row.label: line.mean for line in summary.lines if line.mean is not None}
    control = means.pop(NONE, None)
    if control is not None and means and all(sign * control >= sign * m for m in means.values()):
        yield (
            f"NO ROW BEATS THE ONE WITHOUT SELF-ATTENTION: {NONE} has "
            f"{control:.{summary.digits}f} ({summary.metric_name}). So much data, so short a "
            "training or this task gives attention nothing to do; words between the others say "
            "little."
        )


def _again(summary: Summary) -> Iterator[str]:
    again = summary.again
    if again is None:
        yield "A/A check: none; no row trains dot again under other seeds (--controls adds it)."
    elif is_void(again):
        yield (
            f"THE TABLE IS VOID: dot under other seeds is called {again.word} than dot "
            f"({again.difference:+.{summary.digits}f}), so that no other word means anything."
        )
    else:
        yield (
            f"A/A check: dot under other seeds is {again.word} against dot "
            f"({again.difference:+.{summary.digits}f}), as it should be."
        )


def _intervals(summary: Summary) -> Iterator[str]:
    yield (
        "Differences are row minus dot over shared seeds. Each word is read off its interval: "
        "better where all of it is ahead of dot, no worse where none of it is behind by the margin "
        f"({summary.margin}) or more, worse where all of it is. Its ends hold seeds and test "
        "examples, corrected over the rows and looks, so that the chance of any wrong word in the "
        f"table is {LEVEL:.0%}; fewer than {FEWEST_SEEDS} seeds get no word. Simulated studies "
        "keep that rate, but where seeds fail now and then (docs/verdict.md has the rates)."
    )
    if len({line.row.varied for line in summary.lines}) > 1:
        yield f"Each varied value is a table of its own, with its own dot and its own {LEVEL:.0%}."
    looks = summary.looks
    if looks is not None and len(looks.planned) > 1:
        yield (
            f"Looks were planned at {_list(looks.planned)} seeds and taken at "
            f"{_list(looks.taken)}; each has its part of the {LEVEL:.0%}."
        )
    elif any(line.comparison and line.comparison.covers_seeds for line in summary.lines):
        yield (
            "The number of seeds counts as fixed before the first run. Adding seeds because a row "
            "is undecided, and judging again, is wrong more often than stated."
        )


def _units(summary: Summary) -> Iterator[str]:
    known = [line.comparison.units for line in summary.lines if line.comparison]
    if not known or not np.isfinite(known[0]):
        return
    if not summary.has_documents:
        yield (
            f"The records do not say which test examples belong together, so each of the "
            f"{known[0]:,.0f} counts as independent; where several come from one document, "
            "intervals are too narrow."
        )
    if known[0] < FEWEST_UNITS:
        yield (
            f"FEW TEST DOCUMENTS: the test set counts as {known[0]:.1f} independent ones, fewer "
            f"than {FEWEST_UNITS}; what other texts would say is hardly known."
        )


def _seeds(summary: Summary) -> Iterator[str]:
    counts = [len(line.scores) for line in summary.lines if line.scores]
    if not counts or max(counts) < FEWEST_SEEDS:
        return
    least = min(count for count in counts if count >= FEWEST_SEEDS)
    yield (
        f"A mean hides seeds that fail, so each row also shows its worst. Where none of {least} "
        f"seeds failed, up to {failing_rate(least):.0%} of all seeds still may (95 % bound), and "
        "a word says nothing of them."
    )
    compared = [line.comparison for line in summary.lines if line.comparison]
    spreads = [line.sd for line in summary.lines if line.comparison and line.sd is not None]
    if compared and spreads:
        typical = float(np.median(spreads))
        yield power_sentence(
            sorted({least, 5, 8, 12}), sd=typical, margin=compared[0].margin, rows=len(compared)
        )


def _size_control(summary: Summary) -> Iterator[str]:
    for line in summary.lines:
        found = line.comparison
        if line.row.label.startswith(AS_LARGE) and found is not None:
            gain = found.difference if summary.higher_is_better else -found.difference
            if found.margin >= gain:
                yield (
                    f"The margin is not smaller than what more parameters alone gain ({gain:+.3g}, "
                    f"{line.row.label}): no worse may hide as much as that."
                )


def _commits(summary: Summary) -> Iterator[str]:
    commits = dict.fromkeys(
        str(run.result.get("commit") or "not known") for run in summary.finished if run.result
    )
    if len(commits) < 2:
        return
    again = summary.study.facts.get("rerun")
    if again:
        same = "bit for bit equal" if again.get("equal") else "DIFFERENT"
        rerun = f"seed {again.get('seed')} of {again.get('row')} was run again and is {same}"
    else:
        rerun = "no seed was run again, so what the change of code did to it is not known"
    short = ", ".join(commit[:10] for commit in commits)
    yield f"The runs come from {len(commits)} commits ({short}); {rerun}."


def worst(line: Line, *, higher_is_better: bool) -> float | None:
    """The score of a row's worst seed."""
    if len(line.scores) < 2:
        return None
    return (min if higher_is_better else max)(line.scores)


def _list(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
