"""What a reader of a table must know: how it was made, and what there is to distrust."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from synthesizer_attention.report.costs import machines
from synthesizer_attention.report.load import Row
from synthesizer_attention.report.opponent import DOT, opponent_record
from synthesizer_attention.report.search import search_sentence
from synthesizer_attention.report.summary import Line, Summary
from synthesizer_attention.spec import DEFAULTS, NONE
from synthesizer_attention.study.rows import AS_LARGE
from synthesizer_attention.study.stats import (
    FEWEST_SEEDS,
    FEWEST_UNITS,
    LEVEL,
    failing_rate,
    is_void,
    power_sentence,
)
from synthesizer_attention.study.tune import Tried, best_of

READS = 0.1  # nats per target that another example's source costs a model that reads
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


def notes(summary: Summary) -> list[str]:
    """What a reader must know to read the table."""
    facts = summary.study.facts
    said = reliability(summary)
    chosen = facts.get("chosen_for") or summary.study.recipe.get("chosen_for")
    if facts.get("tune"):
        said.append(search_sentence(summary))
    elif chosen:
        said.append(
            f"All variants use the recipe's learning rates, which were chosen for {chosen}."
        )
    else:
        said.append("All variants use the recipe's learning rates; none was tuned on its own.")
    for one in facts.get("measured") or ():
        tried = [
            f"{', '.join(trial['changes']) or 'as inferred'} {trial['validation']:.2f}"
            for trial in one["trials"]
            if trial["validation"] is not None
        ]
        said.append(
            f"The {one['choice']} of all variants was chosen by {one['row']} on validation "
            f"({'; '.join(tried)}): {', '.join(one['chosen']) or 'as inferred'}."
        )
    if facts.get("match") == "time":
        said.append(
            "All variants are trained for as many seconds as dot. The number of steps of each "
            "follows from steps timed beforehand, in turns with dot's, and is in its remarks. "
            "The search ran with equal steps."
        )
    elif facts.get("match") not in (None, "none"):
        budget = {"params": "parameters", "flops": "FLOPs"}[facts["match"]]
        said.append(
            f"The feed-forward width is chosen so that all variants have the same {budget}."
        )
    before = facts.get("pretrain")
    if before:
        said.append(
            f"Every variant was pretrained first by {before['recipe']}, {before['steps']:,} steps, "
            "with the same synthesis and seed."
        )
    if len(kinds := machines(summary.finished)) > 1:
        said.append(
            "Speeds are compared with dot's only where both were measured on machines of one kind; "
            f"these runs were made on {len(kinds)}: {'; '.join(kinds)}."
        )
    left = _without_bias(summary)
    if left:
        said.append(f"{left}: has no logits to add the relative bias to, and runs without it.")
    return [*said, *_without_a_network(summary)]


def _without_bias(summary: Summary) -> str:
    """The rows some of whose layers run without the relative bias."""
    rows = [
        line.row.label
        for line in summary.lines
        if any((run.result or {}).get("layers_without_bias") for run in line.row.finished)
    ]
    return ", ".join(rows)


def _without_a_network(summary: Summary) -> list[str]:
    """What can be had without a network, as the runs report it of their data."""
    return [
        f"Without any network, {words} has {value:.{summary.digits}f} "
        f"({summary.metric_name}) on the same examples."
        for words, value in floors(summary).items()
    ]


def reliability(summary: Summary) -> list[str]:
    """Sentences, the loudest first."""
    return [
        *_floors(summary),
        *_without_attention(summary),
        *_without_source(summary),
        *_opponent(summary),
        *_again(summary),
        *_intervals(summary),
        *_units(summary),
        *_seeds(summary),
        *_closing_gaps(summary),
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
                f"NO ROW BEATS A BASELINE WITHOUT A NETWORK: {words} has "
                f"{value:.{summary.digits}f} ({summary.metric_name}). The models learned too "
                "little to compare their attention."
            )


def _without_attention(summary: Summary) -> Iterator[str]:
    sign = 1 if summary.higher_is_better else -1
    means = {line.row.label: line.mean for line in summary.lines if line.mean is not None}
    control = means.pop(NONE, None)
    if control is not None and means and all(sign * control >= sign * m for m in means.values()):
        yield (
            f"NO ROW BEATS THE ONE WITHOUT SELF-ATTENTION: {NONE} has "
            f"{control:.{summary.digits}f} ({summary.metric_name}). With this task, these "
            "data and this much training, attention does not help; verdicts on the other rows say "
            "little."
        )


def _without_source(summary: Summary) -> Iterator[str]:
    worth = [v for line in summary.lines if (v := line.cost["source_gap"]) is not None]
    if worth and max(worth) < READS:
        yield (
            f"NO ROW READS ITS SOURCE: with another example's source no row loses more than "
            f"{max(worth):.2f} nats per target. What is written hardly depends on what is read; "
            "train for longer or begin with a pretrained model."
        )


def _again(summary: Summary) -> Iterator[str]:
    again = summary.again
    if again is None:
        yield "A/A check: none; no row trains dot again under other seeds (--controls adds it)."
    elif is_void(again):
        yield (
            f"THE TABLE IS VOID: dot under other seeds is called {again.word} than dot "
            f"({again.difference:+.{summary.digits}f}), so no other verdict counts."
        )
    else:
        yield (
            f"A/A check: dot under other seeds is {again.word} against dot "
            f"({again.difference:+.{summary.digits}f}), as it should be."
        )


def _intervals(summary: Summary) -> Iterator[str]:
    yield (
        "Differences are row minus dot over shared seeds. A verdict follows from its interval: "
        "better where all of it is better than zero, no worse where all of it is within the margin "
        f"({summary.margin}) or better, worse where all of it is beyond the margin. Intervals "
        "account for seeds and test examples, corrected for the number of rows and looks: the "
        f"chance of any wrong verdict in the table is {LEVEL:.0%}. With fewer than {FEWEST_SEEDS} "
        "seeds there is no verdict. Simulated studies keep that rate, but where seeds fail now and "
        "then (docs/verdict.md has the rates)."
    )
    if len({line.row.varied for line in summary.lines}) > 1:
        yield f"Each varied value is judged alone, with its own dot and its own {LEVEL:.0%}."
    looks = summary.looks
    if looks is not None and len(looks.planned) > 1:
        yield (
            f"Interim looks were planned at {_list(looks.planned)} seeds and taken at "
            f"{_list(looks.taken)}; each uses its part of the {LEVEL:.0%}."
        )
        yield from unplanned_looks(summary)
    elif any(line.comparison and line.comparison.covers_seeds for line in summary.lines):
        yield (
            "The number of seeds counts as fixed before the first run. Adding seeds because a row "
            "is undecided, and judging again, makes wrong verdicts more likely than that."
        )


def unplanned_looks(summary: Summary) -> Iterator[str]:
    """Of a table that was judged before looks were planned: what the looks do not cover."""
    for seeds in summary.looks.unplanned if summary.looks else ():
        yield (
            f"JUDGED BEFORE LOOKS WERE PLANNED: the table was first judged with {seeds} seeds, as "
            f"if no more were to come. The planned looks do not cover that one; with it the chance "
            f"of any wrong verdict is not {LEVEL:.0%} but at most {2 * LEVEL:.0%}."
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
            f"than {FEWEST_UNITS}; how other texts would score is hardly known."
        )


def _seeds(summary: Summary) -> Iterator[str]:
    counts = [len(line.scores) for line in summary.lines if line.scores]
    if not counts or max(counts) < FEWEST_SEEDS:
        return
    least = min(count for count in counts if count >= FEWEST_SEEDS)
    yield (
        f"A mean hides seeds that fail, so each row also shows its worst. Where none of {least} "
        f"seeds failed, up to {failing_rate(least):.0%} of all seeds still may (95 % bound); "
        "the verdict says nothing about them."
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
                    f"{line.row.label}): a verdict of no worse may hide as large a loss."
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
        rerun = "no seed was run again, so the effect of the change of code is not known"
    short = ", ".join(commit[:10] for commit in commits)
    yield f"The runs come from {len(commits)} commits ({short}); {rerun}."


def worst(line: Line, *, higher_is_better: bool) -> float | None:
    """The score of a row's worst seed."""
    if len(line.scores) < 2:
        return None
    return (min if higher_is_better else max)(line.scores)


def _list(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def _opponent(summary: Summary) -> Iterator[str]:
    """Which dot product the verdicts are about, how it was found, and what it gains."""
    row, chosen = summary.opponent, opponent_record(summary.study)
    if row is None:
        return
    positions = _positions(row)
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
            "also encodes positions; against a dot product with relative or rotary positions the "
            "answer may differ."
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
        what = "Its settings" if any(", " in kind for kind in found) else "Its positions"
        yield f"{what} were searched with {seeds}, on validation: {listed}."
    yield from _gain(summary, chosen.get("configured"))


def _best_each(summary: Summary, trials: list[dict[str, Any]]) -> dict[str, Tried]:
    """The best trial of each kind of positions, with what else a dot product sets for itself."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for trial in trials:
        own = [t.partition("=")[2] for t in trial["changes"] if t.startswith("model.positions=")]
        told = {"higher_is_better": summary.higher_is_better, **trial}
        kind = own[0] if own else trial["positions"]
        beside = _beside(trial.get("row", DOT), trial["positions"])
        kinds.setdefault(", ".join([kind, *beside]), []).append(told)
    found = {kind: best_of(each) for kind, each in kinds.items()}
    return {kind: best for kind, best in found.items() if best is not None}


def _positions(row: Row) -> str:
    model = row.runs[0].recipe.get("model", {}) if row.runs else {}
    return str(model.get("positions", DEFAULTS.positions))


def _beside(label: str, positions: str) -> list[str]:
    """What the label of a dot product names beside its positions."""
    return [text for text in label.split(", ")[1:] if text != positions]


def _gain(summary: Summary, configured: str | None) -> Iterator[str]:
    """What the opponent's settings gain over dot as it was configured."""
    means = {line.row.label: line.mean for line in summary.lines}
    row = summary.opponent
    if row is None or row.label == (configured or DOT):
        return
    before, after = means.get(configured or DOT), means.get(row.label)
    if before is None or after is None:
        return
    positions = _positions(row)
    named = " and ".join([f"{positions} positions", *_beside(row.label, positions)])
    gain = (after - before) * (1 if summary.higher_is_better else -1)
    word = "gains" if gain > 0 else "loses"
    yield (
        f"Assay sensitivity: with {named} "
        f"dot {word} {abs(gain):.{summary.digits}f} {summary.metric_name} over dot as configured; "
        "a table's lead over the latter may be no more than that."
    )


def _closing_gaps(summary: Summary) -> Iterator[str]:
    """Which rows still come closer to dot when training ends."""
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
        f"shrinks for {'; '.join(shown)}. Longer training may change these verdicts."
    )
