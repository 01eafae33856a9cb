"""The paper's claims, and what the committed records say of each; used by results.py."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from synthesizer_attention.report.load import Row
from synthesizer_attention.report.summary import Summary
from synthesizer_attention.report.tables import COLUMNS, higher_is_better
from synthesizer_attention.study.stats import (
    BETTER,
    NO_WORSE,
    WORSE,
    judge,
)

HOLDS, FAILS = "holds here", "does not hold here"
OPEN, NOT_RUN = "undecided at this scale", "not run"
DOT = "dot"
FASTER = 1.6  # "60% faster"

Finding = tuple[str, str]  # a word of the four above, and the evidence
Check = Callable[[Summary, str], Finding]  # of a study, with dot being the row of this label


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the records that may speak of it, and how they do."""

    text: str
    source: str
    studies: tuple[str, ...]  # directories of results/
    check: Check


def row_of(summary: Summary, spec: str, dot: str = DOT) -> Row | None:
    """The finished row of a spec: with as many of this dot's settings as there is a row with."""
    rows = {row.label: row for row in summary.study.rows if row.spec == spec and row.finished}
    own = dot.split(", ")[1:]
    labels = [", ".join([spec, *own[:count]]) for count in range(len(own), -1, -1)]
    return next((rows[label] for label in labels if label in rows), next(iter(rows.values()), None))


def words_against(
    summary: Summary, specs: Sequence[str], other: str, dot: str = DOT
) -> dict[str, str]:
    """Each spec's word against another; those that were not run are missing."""
    base = row_of(summary, other, dot)
    rows = {spec: row for spec in specs if (row := row_of(summary, spec, dot)) is not None}
    if base is None or not rows:
        return {}
    found = judge(
        base.measured(summary.metric),
        [row.measured(summary.metric) for row in rows.values()],
        metric=summary.metric,
        higher_is_better=summary.higher_is_better,
        margin=summary.study.margin,
        looks=summary.looks,
    )
    by_label = {comparison.label: comparison.word for comparison in found}
    return {spec: by_label[row.label] for spec, row in rows.items() if row.label in by_label}


def decide(words: dict[str, str], yes: Sequence[str], no: Sequence[str], wanted: int) -> str:
    """Holds if all words confirm, fails if one contradicts; not run if none is there."""
    if not words:
        return NOT_RUN
    if any(word in no for word in words.values()):
        return FAILS
    confirmed = all(word in yes for word in words.values()) and len(words) == wanted
    return HOLDS if confirmed else OPEN


def told(words: dict[str, str], other: str, asked: Sequence[str] = ()) -> str:
    """'random better, dense worse (against dot); not run: dense+dot'."""
    missing = [spec for spec in asked if spec not in words]
    said = f"{', '.join(f'{spec} {word}' for spec, word in words.items())} (against {other})"
    return said + (f"; not run: {', '.join(missing)}" if missing else "")


def against(specs: Sequence[str], other: str, yes: Sequence[str], no: Sequence[str]) -> Check:
    """A claim about the words of some rows against another."""

    def check(summary: Summary, dot: str = DOT) -> Finding:
        words = words_against(summary, specs, other, dot)
        rows = {spec: row_of(summary, spec, dot) for spec in (*specs, other)}
        named = {spec: row.label if row else spec for spec, row in rows.items()}
        said = told(
            {named[spec]: word for spec, word in words.items()},
            named[other],
            [named[spec] for spec in specs],
        )
        return decide(words, yes, no, len(specs)), said

    return check


def near(*specs: str) -> Check:
    """No worse than dot, all of them."""
    return against(specs, DOT, (BETTER, NO_WORSE), (WORSE,))


def behind(*specs: str) -> Check:
    """Worse than dot, all of them."""
    return against(specs, DOT, (WORSE,), (BETTER, NO_WORSE))


def ahead(specs: Sequence[str], other: str) -> Check:
    """Better than another row, all of them."""
    return against(specs, other, (BETTER,), (WORSE,))


def best(spec: str, *others: str) -> Check:
    """All other rows are worse than this one."""
    return against(others, spec, (WORSE,), (BETTER,))


def all_of(*checks: Check, noted: Callable[[Summary], str] | None = None) -> Check:
    """Several parts of one claim: it fails with any, and holds with all; a note decides nothing."""

    def check(summary: Summary, dot: str = DOT) -> Finding:
        found = [part(summary, dot) for part in checks]
        words = [word for word, _ in found if word != NOT_RUN]
        said = "; ".join(evidence for word, evidence in found if word != NOT_RUN)
        said += noted(summary) if noted else ""
        if not words:
            return NOT_RUN, ""
        if FAILS in words:
            return FAILS, said
        return (HOLDS if words == [HOLDS] * len(checks) else OPEN), said

    return check


def means_by_metric(summary: Summary) -> str:
    """How many metrics have Dense's mean at the top and dot's at the bottom."""
    rows = {spec: row for spec in FIVE if (row := row_of(summary, spec)) is not None}
    columns = COLUMNS.get("dialogue", {}).values()
    keys = [key for keys in columns for key in keys if higher_is_better(key)]
    top = bottom = count = 0
    for key in keys:
        means = {spec: [*row.scores(key).values()] for spec, row in rows.items()}
        known = {spec: sum(values) / len(values) for spec, values in means.items() if values}
        if len(known) == len(FIVE):
            count += 1
            top += max(known, key=lambda spec: known[spec]) == "dense"
            bottom += min(known, key=lambda spec: known[spec]) == "dot"
    said = f"; of {count} metrics dense has the best mean in {top}, dot the worst in {bottom}"
    return said if count else ""


def needs_heads(summary: Summary, _dot: str = DOT) -> Finding:
    """One head is worse than the number of heads that does best on validation, for both."""
    words: dict[str, str] = {}
    against_heads = []
    specs = ("random", "dense")
    for spec in specs:
        rows = [row for row in summary.study.rows if row.spec == spec and row.varied]
        several = [row for row in rows[1:] if row.finished]
        if not several or not rows[0].finished:
            continue
        best = max(several, key=lambda row: _validation(row, summary))
        found = judge(
            best.measured(summary.metric),
            [rows[0].measured(summary.metric)],
            metric=summary.metric,
            higher_is_better=summary.higher_is_better,
        )
        if found:
            words[rows[0].label] = found[0].word
            against_heads.append(best.label)
    said = told(words, ", ".join(against_heads))
    return decide(words, (WORSE,), (BETTER, NO_WORSE), len(specs)), said


def _validation(row: Row, summary: Summary) -> float:
    """A row's mean on validation, more being better."""
    scores = [(run.result or {})["validation"][summary.metric] for run in row.finished]
    return (1 if summary.higher_is_better else -1) * sum(scores) / len(scores)


TABLE_2 = "random", "factorized_random", "dense", "factorized_dense", "random+dense"
MIXED = "dense+dot", "random+dot"
FIVE = DOT, "random", "dense", *MIXED
TRANSLATION = ("translation", "grammar-ende", "grammar-ende-large", "grammar-ende-sinusoidal")
MODELING = ("language-modeling", "python-docs", "python-docs-sinusoidal")

CLAIMS = (
    Claim("Random and Dense are near dot product in translation.", "Table 2", TRANSLATION,
          near("random", "dense")),
    Claim("Fixed Random is clearly worse than dot product in translation.", "Table 2", TRANSLATION,
          behind("fixed_random")),
    Claim("Random + Vanilla is the best in translation.", "Table 2", TRANSLATION,
          best("random+dot", "dot", *TABLE_2, "dense+dot")),
    Claim("Dense + Vanilla is the best in language modelling.", "Table 2", MODELING,
          best("dense+dot", "dot", *TABLE_2, "random+dot")),
    Claim("Pure Synthesizers are behind dot product in language modelling.", "Table 2", MODELING,
          behind(*TABLE_2)),
    Claim("Random has a lower perplexity than dynamic convolution.", "abstract", MODELING,
          ahead(["random"], "dynamicconv")),
    Claim("Factorized Synthesizers beat Linformer in encoding.", "abstract",
          ("encoding-agnews", "encoding-imdb"),
          ahead(["factorized_random", "factorized_random+dot"], "linformer")),
    Claim("Dense is the best and dot product the worst in dialogue.", "Table 3",
          ("dialogue", "dialogue-personachat"),
          all_of(best("dense", "dot", "random", *MIXED),
                 ahead(["random", "dense", *MIXED], "dot"), noted=means_by_metric)),
    Claim("Mixtures and dot product are ahead of pure Synthesizers in summarization.", "Table 3",
          ("summarization",),
          all_of(*(ahead(["dot", *MIXED], pure) for pure in ("random", "dense")))),
    Claim("Pure Synthesizers lose to dot product after pretraining.", "Tables 4, 5",
          ("transfer",), behind("random", "dense")),
    Claim("Random + Vanilla is at or above dot product after pretraining.", "Tables 4, 5",
          ("transfer",), near("random+dot")),
    Claim("Pure Synthesizers lose to dot product on pairs of sentences.", "why Tables 4, 5",
          ("pairs",), behind("random", "dense")),
    Claim("Random + Vanilla is at or above dot product on pairs of sentences.", "why Tables 4, 5",
          ("pairs",), near("random+dot")),
    Claim("Synthesizers need several heads.", "heads ablation", ("heads",), needs_heads),
)  # fmt: skip


HEAD = ["claim", "paper", "record", "with the paper's dot", "with the best dot", "evidence"]


def judge_claims(summaries: dict[str, Summary], bench: Path) -> list[list[str]]:
    """The cells of HEAD for every claim; one line per record that speaks of it."""
    lines = []
    for claim in CLAIMS:
        found = [
            [claim.text, claim.source, name, *_findings(claim.check, summaries[name])]
            for name in claim.studies
            if name in summaries
        ]
        run = [line for line in found if line[3] != NOT_RUN]
        lines += run or [[claim.text, claim.source, ", ".join(claim.studies), NOT_RUN, "", ""]]
    word, said = _faster(bench)
    text = "Random is 60% faster than dynamic convolution."
    return [*lines, [text, "abstract", "bench", word, "", said]]


def _findings(check: Check, summary: Summary) -> list[str]:
    """Both words and their evidence; one where the best dot is the paper's or plays no part."""
    word, said = check(summary, DOT)
    best_word, best_said = check(summary, summary.dot_name)
    if best_said == said:
        return [word, "", said]
    return [word, best_word, f"{said}. {best_said}"]


def _faster(bench: Path) -> Finding:
    ratios = {}
    for file in sorted(bench.glob("*/bench.json")):
        rows = json.loads(file.read_text())["rows"]
        for row in rows:
            key = [row[name] for name in ("mode", "view", "length")]
            other = [r for r in rows if [r[n] for n in ("mode", "view", "length")] == key]
            slow = [r for r in other if r["variant"] == "dynamicconv"]
            if row["variant"] == "random" and slow:
                name = f"{file.parent.name}: {row['mode']} of {row['length']} tokens"
                ratios[name] = row["tokens_per_second"] / slow[0]["tokens_per_second"]
    if not ratios:
        return NOT_RUN, ""
    said = ", ".join(f"{name} {ratio:.2f}\N{MULTIPLICATION SIGN}" for name, ratio in ratios.items())
    if all(ratio >= FASTER for ratio in ratios.values()):
        return HOLDS, said
    return (FAILS if all(ratio < FASTER for ratio in ratios.values()) else OPEN), said
