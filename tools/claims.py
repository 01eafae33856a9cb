"""The paper's claims, and one word for each from the committed records; used by results.py.

The claims are one family. A claim holds if each of its rows shows it at the claim's level, and does
not hold if one row shows the contrary at that level over the number of rows. Each side has half of
5 %, shared out among the claims by Holm's procedure. The words of rows are those of the tables.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from synthesizer_attention.report.load import Row
from synthesizer_attention.report.summary import Summary, signed
from synthesizer_attention.study.stats import (
    BEHIND,
    BETTER,
    LEVEL,
    NO_WORSE,
    WORSE,
    Comparison,
    judge,
)

HOLDS, FAILS = "holds here", "does not hold here"
OPEN, NOT_RUN = "undecided at this scale", "not run"
DOT = "dot"
FASTER = 1.6  # "60% faster"
WHOLE_MODELS = ("lm", "classifier", "seq2seq")  # modes of bench
IMPLIES = {BETTER: (BETTER,), NO_WORSE: (BETTER, NO_WORSE), WORSE: (WORSE,)}


@dataclass(frozen=True)
class Pair:
    """A row beside another, the word that a claim has for it and the word that contradicts it."""

    summary: Summary
    row: Row
    base: Row
    wanted: str
    contrary: str

    def judged(self, level: float) -> Comparison | None:
        """What is known of the row at this level of either side, looks included."""
        summary = self.summary
        found = judge(
            self.base.measured(summary.metric),
            [self.row.measured(summary.metric)],
            metric=summary.metric,
            higher_is_better=summary.higher_is_better,
            margin=summary.study.margin,
            looks=summary.looks,
            rule=replace(summary.study.rule, level=2 * level),
        )
        return next(iter(found), None)

    def shows(self, word: str, level: float) -> bool:
        """Whether the row is so at this level; behind: the other one is better than it."""
        if word == BEHIND:
            return replace(self, row=self.base, base=self.row).shows(BETTER, level)
        found = self.judged(level)
        return found is not None and found.word in IMPLIES[word]

    @property
    def told(self) -> str:
        """'random worse', as the record's table has it; without a table, the difference."""
        if self.base is self.summary.opponent:
            for line in self.summary.lines:
                if line.row is self.row and line.comparison:
                    return f"{self.row.label} {line.comparison.word}"
        found = self.judged(LEVEL / 2)
        size = signed(found.difference, self.summary.digits) if found else "not comparable"
        return f"{self.row.label} {size}"


Pairs = Callable[[Summary], Iterator[Pair | str]]  # of a study; the name of what was not run


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the records that must show it, and the rows that do."""

    text: str
    source: str
    studies: tuple[str, ...]  # names in results/
    pairs: Pairs


def row_of(summary: Summary, spec: str) -> Row | None:
    """The finished row of a spec, with as many of the best dot's settings as a row has."""
    rows = {row.label: row for row in summary.study.rows if row.spec == spec and row.finished}
    own = summary.dot_name.split(", ")[1:]
    labels = [", ".join([spec, *own[:count]]) for count in range(len(own), -1, -1)]
    return next((rows[label] for label in labels if label in rows), next(iter(rows.values()), None))


def against(
    specs: Sequence[str], other: str, wanted: str, contrary: str, *, as_paper: bool = False
) -> Pairs:
    """A claim about rows beside another one; as_paper: without the positions of the best dot."""

    def pairs(summary: Summary) -> Iterator[Pair | str]:
        base = row_of(summary, other)
        if base is None:
            yield other
            return
        for spec in specs:
            row = row_of(summary, spec)
            if as_paper:
                row = next((r for r in summary.study.rows if r.label == spec and r.finished), None)
            yield Pair(summary, row, base, wanted, contrary) if row else spec

    return pairs


def near(*specs: str) -> Pairs:
    """No worse than dot, all of them."""
    return against(specs, DOT, NO_WORSE, WORSE)


def behind(*specs: str) -> Pairs:
    """Worse than dot, all of them."""
    return against(specs, DOT, WORSE, NO_WORSE)


def ahead(specs: Sequence[str], other: str, *, as_paper: bool = False) -> Pairs:
    """Better than another row, all of them."""
    return against(specs, other, BETTER, BEHIND, as_paper=as_paper)


def best(spec: str, *others: str) -> Pairs:
    """All other rows are worse than this one."""
    return against(others, spec, WORSE, BETTER)


def all_of(*parts: Pairs) -> Pairs:
    """Several parts of one claim."""
    return lambda summary: (pair for part in parts for pair in part(summary))


def needs_heads(summary: Summary) -> Iterator[Pair | str]:
    """One head is worse than the number of heads that does best on validation, for both."""

    def validation(row: Row) -> float:
        return summary.sign * (row.mean("validation", summary.metric) or 0.0)

    for spec in ("random", "dense"):
        rows = [row for row in summary.study.rows if row.spec == spec and row.varied]
        several = [row for row in rows[1:] if row.finished]
        if several and rows[0].finished:
            yield Pair(summary, rows[0], max(several, key=validation), WORSE, NO_WORSE)
        else:
            yield spec


TABLE_2 = "random", "factorized_random", "dense", "factorized_dense", "random+dense"
MIXED = "dense+dot", "random+dot"
FIVE = DOT, "random", "dense", *MIXED
TRANSLATION, MODELING = ("translation",), ("language-modeling",)
FRESH = ("language-modeling-fresh",)  # mixtures with dot's positions, seeds that chose nothing

CLAIMS = (
    Claim("Random and Dense are near dot product in translation.", "Table 2", TRANSLATION,
          near("random", "dense")),
    Claim("Fixed Random is clearly worse than dot product in translation.", "Table 2", TRANSLATION,
          behind("fixed_random")),
    Claim("Random + Vanilla is the best in translation.", "Table 2", TRANSLATION,
          best("random+dot", "dot", *TABLE_2, "dense+dot")),
    Claim("Dense + Vanilla is the best in language modelling.", "Table 2", FRESH,
          best("dense+dot", "dot", "random", "random+dot")),
    Claim("Pure Synthesizers are behind dot product in language modelling.", "Table 2", MODELING,
          behind(*TABLE_2)),
    Claim("Random has a lower perplexity than dynamic convolution.", "abstract", FRESH,
          ahead(["random"], "dynamicconv", as_paper=True)),
    Claim("Factorized Synthesizers beat Linformer in encoding.", "abstract",
          ("encoding-agnews", "encoding-imdb"),
          ahead(["factorized_random", "factorized_random+dot"], "linformer")),
    Claim("Dense is the best and dot product the worst in dialogue.", "Table 3",
          ("dialogue", "dialogue-personachat"),
          all_of(best("dense", "dot", "random", *MIXED),
                 ahead(["random", "dense", *MIXED], "dot"))),
    Claim("Mixtures and dot product are ahead of pure Synthesizers in summarization.", "Table 3",
          ("summarization",),
          all_of(*(ahead(["dot", *MIXED], pure) for pure in ("random", "dense")))),
    Claim("Pure Synthesizers lose to dot product after pretraining.", "Tables 4, 5",
          ("transfer-stsb",), behind("random", "dense")),
    Claim("Random + Vanilla is at or above dot product after pretraining.", "Tables 4, 5",
          ("transfer-stsb",), near("random+dot")),
    Claim("Pure Synthesizers lose to dot product on pairs of sentences.", "why Tables 4, 5",
          ("pairs",), behind("random", "dense")),
    Claim("Random + Vanilla is at or above dot product on pairs of sentences.", "why Tables 4, 5",
          ("pairs",), near("random+dot")),
    Claim("Synthesizers need several heads.", "heads ablation", ("heads",), needs_heads),
)  # fmt: skip

HEAD = ["claim", "paper", "record", "here", "evidence"]


def judge_claims(
    summaries: dict[str, Summary], bench: Path, claims: Sequence[Claim] = CLAIMS
) -> list[list[str]]:
    """The cells of HEAD, a line for each claim."""
    found: dict[str, list[Pair]] = {}
    missing: dict[str, list[str]] = {}
    for claim in claims:
        for name in claim.studies:
            for one in claim.pairs(summaries[name]) if name in summaries else [name]:
                if isinstance(one, Pair):
                    found.setdefault(claim.text, []).append(one)
                else:
                    missing.setdefault(claim.text, []).append(one)

    def holds(text: str, level: float) -> bool:
        return text not in missing and all(one.shows(one.wanted, level) for one in found[text])

    def fails(text: str, level: float) -> bool:
        each = level / len(found[text])
        return any(one.shows(one.contrary, each) for one in found[text])

    words = dict.fromkeys(holm([*found], holds), HOLDS) | dict.fromkeys(
        holm([*found], fails), FAILS
    )
    lines = []
    for claim in claims:
        pairs, left = found.get(claim.text, []), missing.get(claim.text, [])
        word = words.get(claim.text, OPEN) if pairs else NOT_RUN
        said = [_told(pairs)] + ([f"not run: {', '.join(left)}"] if pairs and left else [])
        record = ", ".join(claim.studies)
        lines.append([claim.text, claim.source, record, word, "; ".join(filter(None, said))])
    return [*lines, _faster(bench)]


def holm(names: Sequence[str], passes: Callable[[str, float], bool]) -> set[str]:
    """Which of the names pass, all of them together at half of the level."""
    passed: set[str] = set()
    while more := {
        name
        for name in names
        if name not in passed and passes(name, LEVEL / 2 / (len(names) - len(passed)))
    }:
        passed |= more
    return passed


def _told(pairs: Sequence[Pair]) -> str:
    """'random worse, dense undecided (against dot)', by record and base."""
    by_base: dict[tuple[str, str], list[str]] = {}
    for pair in pairs:
        by_base.setdefault((pair.summary.study.name, pair.base.label), []).append(pair.told)
    several = len({name for name, _ in by_base}) > 1
    return "; ".join(
        f"{f'{name}: ' if several else ''}{', '.join(words)} (against {base})"
        for (name, base), words in by_base.items()
    )


def _faster(bench: Path) -> list[str]:
    """Whole models timed in turn on one machine; a sublayer alone is not what a user waits for."""
    ratios = {}
    for file in sorted(bench.glob("*/bench.json")):
        rows = json.loads(file.read_text())["rows"]
        speeds = {(r["mode"], r["length"], r["variant"]): r["tokens_per_second"] for r in rows}
        for (mode, length, variant), speed in speeds.items():
            other = speeds.get((mode, length, "dynamicconv"))
            if variant == "random" and other and mode in WHOLE_MODELS:
                ratios[f"{mode} of {length} tokens"] = speed / other
    word = NOT_RUN
    if ratios:
        faster = [ratio >= FASTER for ratio in ratios.values()]
        word = HOLDS if all(faster) else OPEN if any(faster) else FAILS
    said = ", ".join(f"{name} {ratio:.2f}\N{MULTIPLICATION SIGN}" for name, ratio in ratios.items())
    text = "Random is 60% faster than dynamic convolution."
    return [text, "abstract", "bench", word, said and f"whole models: {said}"]
