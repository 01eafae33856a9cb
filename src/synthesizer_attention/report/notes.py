"""What a reader of a table must know: how it was made, and what there is to distrust (no torch).

SENTENCES has every sentence; `notes` says which of them a study earns, the loudest first.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from synthesizer_attention.report.load import Row, machines
from synthesizer_attention.report.summary import WITHOUT_A_NETWORK, Summary, remark
from synthesizer_attention.report.tables import trials_of
from synthesizer_attention.spec import DEFAULTS, NONE
from synthesizer_attention.study.evidence import FEWEST_SEEDS, HOLM, RULE
from synthesizer_attention.study.rows import AGAIN, AS_LARGE, DOT
from synthesizer_attention.study.stats import (
    FAR,
    FEWEST_UNITS,
    LEVEL,
    failing_rate,
    is_void,
    power_sentence,
)
from synthesizer_attention.study.tune import best_of

READS = 0.1  # nats per target that another example's source costs a model that reads

SENTENCES = {
    "floor": "NO ROW BEATS A BASELINE WITHOUT A NETWORK: {words} has {value} ({metric}). "
    "The models learned too little to compare their attention.",
    "no attention": "NO ROW BEATS THE ONE WITHOUT SELF-ATTENTION: {name} has {value} ({metric}). "
    "With this task, these data and this much training, attention does not help; verdicts on the "
    "other rows say little.",
    "no source": "NO ROW READS ITS SOURCE: with another example's source no row loses more than "
    "{worth:.2f} nats per target. What is written hardly depends on what is read; train for longer "
    "or begin with a pretrained model.",
    "weak": "THE OPPONENT MAY BE WEAK: dot is compared with {positions} positions alone. A table "
    "also encodes positions; against a dot product with relative or rotary positions the answer "
    "may differ.",
    "opponents": "The opponent: each varied value has its own dot product, at the first {name} "
    "({positions}).",
    "opponent": "The opponent: differences and verdicts are against {label} ({positions}; {how}).",
    "searched": "{what} were searched with {seeds}, on validation: {listed}.",
    "gain": "Assay sensitivity: with {named} dot {verb} {gain} {metric} over dot as configured; "
    "a table's lead over the latter may be no more than that.",
    "no check": "A/A check: none; no row trains dot again under other seeds (--controls adds it).",
    "void": "THE TABLE IS VOID: dot under other seeds is called {word} than dot ({difference}), so "
    "no other verdict counts.",
    "sound": "A/A check: dot under other seeds is {word} against dot ({difference}), as it should "
    "be.",
    "intervals": "Differences are row minus dot over shared seeds. A verdict follows from its "
    "interval: better where all of it is better than zero, no worse where all of it is within the "
    "margin ({margin}) or better, worse where all of it is beyond the margin. Intervals account "
    "for seeds and test examples, corrected for the number of rows and looks: the chance of any "
    f"wrong verdict in the table is {LEVEL:.0%}. With fewer than {FEWEST_SEEDS} seeds there is no "
    "verdict. Simulated studies keep that rate, but where seeds fail now and then (docs/compare.md "
    "has the rates).",
    "graph": "A verdict follows from the interval of row minus dot. It is better where all of "
    "it is better than zero, no worse where all of it is within the margin ({margin}) or better, "
    "worse where all of it is beyond the margin, behind where all of it is worse than zero but "
    "not all beyond the margin. Intervals account for seeds and test examples, corrected for the "
    f"number of rows and looks: the chance of any wrong verdict in the table is {LEVEL:.0%}. With "
    f"fewer than {FEWEST_SEEDS} seeds there is no verdict. docs/compare.md has simulated rates.",
    "primary": "The primary row is {label}, named before the first run that is judged: it has "
    f"{RULE.primary:.0%} of the level, and the other rows share the rest and what it hands on.",
    "dot's seeds": "Dot is in every comparison, so it has more seeds: {dot}, where a row has up to "
    "{rows}.",
    "dot again": "Dot is in every comparison, so it has more seeds: {dot}, {again} of them the A/A "
    "row's, where a row has up to {rows}.",
    "moderated": "Few seeds tell little of a row's spread, so the mean variance of dot and the "
    "{near} rows near it counts as {freedom} further degrees of freedom of each{but}.",
    "chance": "P(within the margin) is the chance that the row is no worse, given these runs and a "
    "flat prior; it is no verdict.",
    "varied": f"Each varied value is judged alone, with its own dot and its own {LEVEL:.0%}.",
    "looks": "Interim looks were planned at {planned} seeds and taken at {taken}; each uses its "
    f"part of the {LEVEL:.0%}.",
    "unplanned": "JUDGED BEFORE LOOKS WERE PLANNED: the table was first judged with {seeds} seeds, "
    "as if no more were to come. The planned looks do not cover that one; with it the chance of "
    f"any wrong verdict is not {LEVEL:.0%} but at most {2 * LEVEL:.0%}.",
    "fixed": "The number of seeds counts as fixed before the first run. Adding seeds because a row "
    "is undecided, and judging again, makes wrong verdicts more likely than that.",
    "no documents": "The records do not say which test examples belong together, so each of the "
    "{units:,.0f} counts as independent; where several come from one document, intervals are too "
    "narrow.",
    "few documents": "FEW TEST DOCUMENTS: the test set counts as {units:.1f} independent ones, "
    f"fewer than {FEWEST_UNITS}; how other texts would score is hardly known.",
    "worst": "A mean hides seeds that fail, so each row also shows its worst. Where none of "
    "{least} seeds failed, up to {rate:.0%} of all seeds still may (95 % bound); the verdict says "
    "nothing about them.",
    "closing": "So far: the validation gap to dot, after one, two and three thirds of the steps, "
    "still shrinks for {rows}. Longer training may change these verdicts.",
    "size": "The margin is not smaller than what more parameters alone gain ({gain:+.3g}, "
    "{label}): a verdict of no worse may hide as large a loss.",
    "commits": "The runs come from {count} commits ({commits}); {rerun}.",
    "tuned once": "Every variant had {tune} trials of learning rate and table rate, and uses those "
    "that did best on validation. One seed chose, which is not reported: where seeds spread, it "
    "favours lucky trials.",
    "tuned twice": "Every variant had {tune} trials of learning rate and table rate under a seed "
    "that is not reported, and its best {repeated} again under a second one; it uses those with "
    "the best mean on validation.",
    "chosen for": "All variants use the recipe's learning rates, which were chosen for {chosen}.",
    "untuned": "All variants use the recipe's learning rates; none was tuned on its own.",
    "measured": "The {choice} of all variants was chosen by {row} on validation ({tried}): {won}.",
    "match params": "The feed-forward width is chosen so that all variants have the same "
    "parameters.",
    "match flops": "The feed-forward width is chosen so that all variants have the same FLOPs.",
    "match time": "All variants are trained for as many seconds as dot, by steps timed beforehand.",
    "pretrained": "Every variant was pretrained first by {recipe}, {steps:,} steps, with the same "
    "synthesis and seed.",
    "machines": "Speeds are compared with dot's only where both were measured on machines of one "
    "kind; these runs were made on {count}: {kinds}.",
    "no bias": "{rows}: has no logits to add the relative bias to, and runs without it.",
    "without": "Without any network, {words} has {value} ({metric}) on the same examples.",
}


def say(name: str, /, **values: object) -> str:
    """A sentence with its places filled."""
    return SENTENCES[name].format(**values)


def notes(summary: Summary) -> list[str]:
    """What a reader must know to read the table."""
    return [*_results(summary), *_opponent(summary), *_evidence(summary), *_conditions(summary)]


def unplanned_looks(summary: Summary) -> list[str]:
    """Of a table that was judged before looks were planned: what the looks do not cover."""
    return [say("unplanned", seeds=n) for n in (summary.looks.unplanned if summary.looks else ())]


def _results(summary: Summary) -> Iterator[str]:
    """What makes a whole table doubtful: nothing was learned, attention or source do not matter."""
    sign, digits, metric = summary.sign, summary.digits, summary.metric_name
    means = {line.row.label: line.mean for line in summary.lines if line.mean is not None}
    for name, value in summary.floors.items():
        if means and sign * value >= max(sign * mean for mean in means.values()):
            words = WITHOUT_A_NETWORK[name][1]
            yield say("floor", words=words, value=f"{value:.{digits}f}", metric=metric)
    control = means.pop(NONE, None)
    if control is not None and means and all(sign * control >= sign * m for m in means.values()):
        yield say("no attention", name=NONE, value=f"{control:.{digits}f}", metric=metric)
    worth = [v for line in summary.lines if (v := line.cost["source_gap"]) is not None]
    if worth and max(worth) < READS:
        yield say("no source", worth=max(worth))


def _opponent(summary: Summary) -> Iterator[str]:
    """Which dot product the verdicts are about, how it was found, and what it gains."""
    row, chosen = summary.opponent, summary.study.chosen
    if row is None:
        return
    trials, digits = chosen.get("trials", []), summary.digits

    def positions_of(row: Row) -> list[str]:
        models = [run.recipe.get("model", {}) for run in row.runs] or [{}]
        return [str(model.get("positions", DEFAULTS.positions)) for model in models]

    def beside(label: str, positions: str) -> list[str]:
        """What the label of a dot product names beside its positions."""
        return [text for text in label.split(", ")[1:] if text != positions]

    positions = positions_of(row)[0]
    others = {text for line in summary.lines if line.row.spec == DOT and line.row.runs
              for text in positions_of(line.row)}  # fmt: skip
    others |= {str(trial.get("positions")) for trial in trials}
    kinds = {kind.partition(":")[0] for text in others for kind in text.split("+")}
    if not {"relative", "rotary", "alibi"} & kinds:
        yield say("weak", positions=positions)
        return
    if row.varied:
        yield say("opponents", name=row.name, positions=positions)
        return
    how = chosen.get("how") or "the best on validation"
    yield say("opponent", label=row.label, positions=positions, how=how)
    by_kind: dict[str, list[dict[str, Any]]] = {}  # of positions, and what else a dot product sets
    for trial in trials_of(summary, trials):
        own = [t.partition("=")[2] for t in trial["changes"] if t.startswith("model.positions=")]
        kind = own[0] if own else trial["positions"]
        also = beside(trial.get("row", DOT), trial["positions"])
        by_kind.setdefault(", ".join([kind, *also]), []).append(trial)
    if found := {kind: best for kind, each in by_kind.items() if (best := best_of(each))}:
        twice = any(len(one.scores) > 1 for one in found.values())
        yield say(
            "searched",
            what="Its settings" if any(", " in kind for kind in found) else "Its positions",
            seeds="two seeds of its own (the mean decides)" if twice else "a seed of its own",
            listed=", ".join(f"{kind} {one.mean:.{digits}f}" for kind, one in found.items()),
        )
    configured = chosen.get("configured") or DOT
    means = {line.row.label: line.mean for line in summary.lines}
    before, after = means.get(configured), means.get(row.label)
    if row.label != configured and before is not None and after is not None:
        gain = (after - before) * summary.sign
        yield say(
            "gain",
            named=" and ".join([f"{positions} positions", *beside(row.label, positions)]),
            verb="gains" if gain > 0 else "loses",
            gain=f"{abs(gain):.{digits}f}",
            metric=summary.metric_name,
        )


def _evidence(summary: Summary) -> Iterator[str]:
    """How verdicts follow from intervals, and how far those are to be trusted."""
    again, looks, digits = summary.again, summary.looks, summary.digits
    lines = [(line, line.comparison) for line in summary.lines if line.comparison]
    compared = [comparison for _, comparison in lines]
    if again is None:
        yield say("no check")
    else:
        difference = f"{again.difference:+.{digits}f}"
        yield say("void" if is_void(again) else "sound", word=again.word, difference=difference)
    yield say("intervals" if summary.study.rule == HOLM else "graph", margin=summary.margin)
    yield from _rule(summary)
    if len({line.row.varied for line in summary.lines}) > 1:
        yield say("varied")
    if looks is not None and len(looks.planned) > 1:
        planned, taken = (", ".join(map(str, n)) for n in (looks.planned, looks.taken))
        yield say("looks", planned=planned, taken=taken)
        yield from unplanned_looks(summary)
    elif any(comparison.covers_seeds for comparison in compared):
        yield say("fixed")
    if compared and np.isfinite(compared[0].units):
        if not summary.has_documents:
            yield say("no documents", units=compared[0].units)
        if compared[0].units < FEWEST_UNITS:
            yield say("few documents", units=compared[0].units)
    counts = [len(line.scores) for line in summary.lines if len(line.scores) >= FEWEST_SEEDS]
    if counts:
        least = min(counts)
        yield say("worst", least=least, rate=failing_rate(least))
        if spreads := [line.sd for line, _ in lines if line.sd is not None]:
            typical, rows = float(np.median(spreads)), len(compared)
            seeds = sorted({least, 5, 8, 12})
            how: dict[str, Any] = {"margin": compared[0].margin, "rule": summary.study.rule}
            yield power_sentence(seeds, sd=typical, rows=rows, **how)
    closing = [
        f"{line.row.label} ({', '.join(f'{gap:+.{digits}f}' for gap in line.gaps or ())})"
        for line in summary.lines
        if line.is_closing
    ]
    if closing:
        yield say("closing", rows="; ".join(closing))
    for line, comparison in lines:
        gain = comparison.difference * summary.sign
        if line.row.label.startswith(AS_LARGE) and comparison.margin >= gain:
            yield say("size", gain=gain, label=line.row.label)
    results = [run.result for run in summary.finished if run.result]
    commits = dict.fromkeys(str(result.get("commit") or "not known") for result in results)
    if len(commits) > 1:
        rerun = "no seed was run again, so the effect of the change of code is not known"
        if found := summary.study.facts.get("rerun"):
            same = "bit for bit equal" if found.get("equal") else "DIFFERENT"
            rerun = f"seed {found.get('seed')} of {found.get('row')} was run again and is {same}"
        short = ", ".join(commit[:10] for commit in commits)
        yield say("commits", count=len(commits), commits=short, rerun=rerun)


def _rule(summary: Summary) -> Iterator[str]:
    """What the study's rule adds to intervals: a primary row, seeds of dot, moderated spreads."""
    rule, dot = summary.study.rule, summary.dot
    compared = [line for line in summary.lines if line.comparison]
    found = [line.comparison for line in compared if line.comparison]
    primary = [comparison.label for comparison in found if comparison.is_primary]
    if primary:
        yield say("primary", label=primary[0])
    if dot is None or dot.row.varied or not compared:
        return
    again = [len(line.scores) for line in summary.lines if line.row.label == AGAIN]
    extra = again[0] if again and rule.most_dot_seeds > 1 else 0
    counts = {"dot": len(dot.scores) + extra, "rows": max(len(line.scores) for line in compared)}
    if counts["dot"] > counts["rows"] and rule.most_dot_seeds > 1:
        yield say("dot again" if extra else "dot's seeds", again=extra, **counts)
    near = [
        line
        for line in compared
        if line.row.label.partition(",")[0] not in FAR and len(line.scores) >= FEWEST_SEEDS
    ]
    if freedom := rule.prior_freedom(len(near)):
        but = " but the primary" if primary else ""
        yield say("moderated", near=len(near), freedom=freedom, but=but)
    if any(remark(comparison).startswith("P") for comparison in found):
        yield say("chance")


def _conditions(summary: Summary) -> Iterator[str]:
    """What all variants have alike, what some lack, and what can be had without a network."""
    facts = summary.study.facts
    chosen = facts.get("chosen_for") or summary.study.recipe.get("chosen_for")
    repeated = (facts.get("search") or {}).get("repeated")
    if facts.get("tune"):
        kind = "tuned twice" if repeated else "tuned once"
        yield say(kind, tune=facts["tune"], repeated=repeated)
    else:
        yield say("chosen for" if chosen else "untuned", chosen=chosen)
    for one in facts.get("measured") or ():
        each = [
            f"{', '.join(trial['changes']) or 'as inferred'} {trial['validation']:.2f}"
            for trial in one["trials"]
            if trial["validation"] is not None
        ]
        won, tried = ", ".join(one["chosen"]) or "as inferred", "; ".join(each)
        yield say("measured", choice=one["choice"], row=one["row"], tried=tried, won=won)
    if facts.get("match") not in (None, "none"):
        yield say(f"match {facts['match']}")
    if before := facts.get("pretrain"):
        yield say("pretrained", recipe=before["recipe"], steps=before["steps"])
    if len(kinds := machines(summary.finished)) > 1:
        yield say("machines", count=len(kinds), kinds="; ".join(kinds))
    left = [
        line.row.label
        for line in summary.lines
        if any(run.told("layers_without_bias") for run in line.row.finished)
    ]
    if left:
        yield say("no bias", rows=", ".join(left))
    metric = summary.metric_name
    for name, value in summary.floors.items():
        words = WITHOUT_A_NETWORK[name][1]
        yield say("without", words=words, value=f"{value:.{summary.digits}f}", metric=metric)
