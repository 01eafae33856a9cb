"""The numbers of a study: each row's means over seeds, its verdict, and the answer (no torch)."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.scores import METRICS, base_metric, shown
from synthesizer_attention.report.load import Record, Row, Study, blaming, plain_change
from synthesizer_attention.run.records import STUDY
from synthesizer_attention.spec import NONE, parse_spec, split_layers, variants
from synthesizer_attention.study.evidence import FEWEST_SEEDS
from synthesizer_attention.study.rows import AGAIN, AS_LARGE, DOT
from synthesizer_attention.study.stats import (
    BEHIND,
    BETTER,
    BITS,
    LANGUAGE_MODEL,
    NO_WORSE,
    NOT_JUDGED,
    UNDECIDED,
    VOID,
    WORSE,
    Comparison,
    Looks,
    Measured,
    allowed,
    check_margin,
    is_void,
    judge,
    judge_again,
    voided,
)

PAPER_NAMES = {DOT: "Vanilla", NONE: "no self-attention"}
MISSING, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
CLOSING = 0.9  # a gap below this share of itself after the last third still shrinks
MOST_DRAWN = 16  # rows in a plot; the others stay in the table
UNIVERSAL = "universal"  # as compare labels it
NO, YES, OPEN, NO_VERDICT = "No", "Yes", "Undecided", "No verdict"
SYNTHETIC, BASELINE = "synthetic", "baseline"  # rows without dot product
FEW_SEEDS = f"fewer than {FEWEST_SEEDS} seeds shared with dot"
Compared = Sequence[tuple[str, Comparison]]  # the spec of a row, and what is known of it
WITHOUT_A_NETWORK = {
    "dictionary": (
        "a word-by-word dictionary",
        "a word-by-word dictionary counted from train",
    ),
    "bigram": ("a bigram model", "an interpolated bigram model of train"),
    "majority": ("the commonest label", "the commonest label of train"),
    "bag_of_words": (
        "a bag of words",
        "logistic regression on the tokens of a text, in whatever order,",
    ),
    "first_sentence": ("the first sentence", "the first sentence of the source"),
    "commonest_reply": ("the commonest reply", "the commonest reply of train"),  # older records
    "commonest_answer": ("the commonest answer", "the commonest answer of train"),
}
"""What a task measures on its data beside the networks, by the key of its report: name, words."""


@dataclass(frozen=True)
class Line:
    """One row of the table; what no finished run tells is None."""

    row: Row
    index: int  # of the row's colour, dashes and marker; 0 is dot
    scores: tuple[float, ...]
    comparison: Comparison | None
    relative: dict[str, float | None]  # its costs over dot's
    gaps: tuple[float, ...] | None = None  # to dot on validation, at thirds of the steps

    @property
    def cost(self) -> dict[str, float | None]:
        return self.row.cost

    @property
    def is_closing(self) -> bool:
        """Whether a decided row's gap to dot shrinks by a tenth or more in the last third.

        Where a row is no worse, a gap below a tenth of the margin has closed already.
        """
        if self.gaps is None or self.comparison is None:
            return False
        _, before, last = self.gaps
        word = self.comparison.word
        if word == NO_WORSE and abs(last) < (1 - CLOSING) * self.comparison.margin:
            return False
        decided = word in (BETTER, NO_WORSE, WORSE)
        return decided and before * last > 0 and abs(last) < CLOSING * abs(before)

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.scores)) if self.scores else None

    @property
    def sd(self) -> float | None:
        known = len(self.scores) > 1 and np.isfinite(self.scores).all()
        return float(np.std(self.scores, ddof=1)) if known else None

    @property
    def paper_name(self) -> str:
        """What the paper calls it: 'factorized_random:k=8+dot' is 'Factorized Random + Vanilla'."""
        named = [part.partition(":")[0] for part in self.row.spec.split("+")]
        name = " + ".join(PAPER_NAMES.get(n, n.replace("_", " ").title()) for n in named)
        runs = self.row.runs
        shares = any(run.recipe.get("model", {}).get("universal") for run in runs)
        shares |= not runs and self.row.label == UNIVERSAL
        return f"Universal {name.replace('Vanilla', 'Transformer')}" if shares else name

    @property
    def state(self) -> str:
        """What is missing of the row, if anything."""
        if self.row.error:
            return f"failed: {self.row.error}"
        if self.row.left_out:
            return f"left out: {self.row.left_out}"
        unfinished = (run for run in self.row.runs if run.result is None)
        missing = "; ".join(f"seed {run.seed} {run.state}" for run in unfinished)
        return missing if self.row.runs else "not run"


class Rival(NamedTuple):
    """A row that --against named, and what is known of all others beside it."""

    label: str
    margin: str
    compared: dict[str, Comparison]  # by label; differences are row - rival


@dataclass(frozen=True)
class Summary:
    """A study in numbers and words."""

    study: Study
    metric: str
    higher_is_better: bool
    lines: tuple[Line, ...]
    margin: str
    answer: str
    again: Comparison | None = None  # dot under other seeds, against dot
    looks: Looks | None = None
    opponent: Row | None = None  # the dot product that rows are compared with
    has_documents: bool = False  # whether the records say which test examples belong together
    rivals: tuple[Rival, ...] = ()
    floors: dict[str, float] = field(default_factory=dict)  # keys of WITHOUT_A_NETWORK

    @property
    def question(self) -> str:
        return f"Does {self.study.name} need dot-product attention?"

    @property
    def dot_name(self) -> str:
        """The dot product that differences are from; varied values have one each of this name."""
        return DOT if self.opponent is None else self.opponent.name

    @property
    def metric_name(self) -> str:
        return shown(self.metric)

    @property
    def digits(self) -> int:
        return 3 if self.metric == "bits_per_byte" else 2

    @property
    def sign(self) -> int:
        """What makes more of the metric better."""
        return 1 if self.higher_is_better else -1

    @property
    def finished(self) -> list[Record]:
        return self.study.finished

    @property
    def dot(self) -> Line | None:
        """The line of the dot product that rows are compared with."""
        return next((line for line in self.lines if line.row is self.opponent), None)

    @property
    def drawn(self) -> list[Line]:
        """The rows that plots have room for: dot, and the best of the others."""
        kept = [line for line in self.lines if line.index][: MOST_DRAWN - 1]
        return [line for line in self.lines if line.index == 0 or line in kept]

    @property
    def scope(self) -> str:
        varied: dict[str, dict[str, None]] = {}
        for row in () if self.study.facts.get("ladder") else self.study.rows:
            for key, _, value in (change.partition("=") for change in row.varied):
                varied.setdefault(key.rpartition(".")[2], {})[value] = None
        dot = self.opponent.runs[0].recipe if self.opponent and self.opponent.runs else None
        seeds = sorted({run.seed for run in self.finished})
        return scope(dot or self.study.recipe, seeds, varied)


def summarize(study: Study) -> Summary:
    """Put a study into numbers."""
    first = next(iter(study.finished), None)
    metric = (first and first.told("main_metric")) or ""
    higher = first is None or first.told("higher_is_better") is not False
    opponent = study.opponent()
    dot = opponent if opponent is not None and opponent.finished else None
    apart = [AGAIN] if dot is None or study.rule.most_dot_seeds == 1 else [AGAIN, dot.label]
    seeds = {run.seed for row in study.rows if row.label not in apart for run in row.finished}
    looks = study.looks and study.looks.within(len(seeds))
    asked: dict[str, Any] = {"metric": metric, "higher_is_better": higher, "margin": study.margin}
    compared: dict[str, Comparison] = {}
    again: Comparison | None = None
    margin, reference = "", None
    if dot is not None and metric in METRICS:
        reference = dot.measured(metric)
        if study.margin is not None:
            with blaming(study.path / STUDY):
                check_margin(study.margin, metric, reference)
        margin = margin_text(study, metric, reference)
        rows = [row for row in study.rows if row.label != AGAIN]
        for row in study.rows:
            if row.label == AGAIN and row.finished:
                again = judge_again(reference, row.measured(metric), **asked)
        compared = compare(study, rows, metric, higher, study.margin, looks)
        if is_void(again):
            compared = {label: voided(found) for label, found in compared.items()}
    rivals = []
    for label in (study.facts.get("against") or ()) if metric in METRICS else ():
        for rival in [row for row in study.rows if row.label == label and row.finished][:1]:
            others = [row for row in study.rows if row.finished and row.label not in (label, AGAIN)]
            beside = rival.measured(metric)
            found = judge(
                beside,
                [row.measured(metric) for row in others],
                **asked,
                looks=looks,
                rule=study.rule,
            )
            by_label = {comparison.label: comparison for comparison in found}
            rivals.append(Rival(label, margin_text(study, metric, beside), by_label))
    ordered = sorted(study.rows, key=lambda row: row is not opponent)
    lines = []
    for index, row in enumerate(ordered):
        base = study.base_of(row)
        own, dots = (
            thirds(one, metric) if one is not None and row.label in compared else None
            for one in (row, base)
        )
        gaps = tuple((own - dots).tolist()) if own is not None and dots is not None else None
        scores = tuple(row.scores(metric).values())
        found_there = compared.get(row.label)
        lines.append(Line(row, index, scores, found_there, row.relative_cost(base), gaps))
    lines.sort(  # best first; what has no score, or diverged, last
        key=lambda line: (
            math.inf
            if line.mean is None or math.isnan(line.mean)
            else -line.mean * (1 if higher else -1)
        )
    )
    data = (first and first.told("data")) or {}
    floors = {name: data[name]["test"] for name in WITHOUT_A_NETWORK if name in data}
    said = _answer(study, compared, lines, margin, higher_is_better=higher)
    if reference is not None and not any(row.varied for row in study.rows):
        size = allowed(metric, reference, study.rule) if study.margin is None else study.margin
        how: dict[str, Any] = {"size": size, "margin": margin, "higher_is_better": higher}
        said = _level(floors, dot.name if dot else DOT, [*reference.scores.values()], **how) + said
    return Summary(
        study,
        metric,
        higher,
        tuple(lines),
        margin,
        said,
        again,
        looks,
        dot,
        has_documents=reference is not None and reference.units is not None,
        rivals=tuple(rivals),
        floors=floors,
    )


def _level(
    floors: Mapping[str, float],
    dot: str,
    scores: Sequence[float],
    *,
    size: float,
    margin: str,
    higher_is_better: bool,
) -> str:
    """Said first where something without a network is within the margin of dot, or above it."""
    sign, mean = (1 if higher_is_better else -1), float(np.mean(scores))
    best = max(floors, key=lambda name: sign * floors[name], default=None)
    if best is None or not sign * (floors[best] - mean) >= -size:
        return ""
    name = WITHOUT_A_NETWORK[best][0]
    word = "level with" if abs(floors[best] - mean) <= size else "ahead of"
    return (
        f"{name[0].upper()}{name[1:]} is {word} {dot} ({floors[best]:.2f} beside {mean:.2f}, "
        f"margin {margin}): these data do not show a need for attention. "
    )


def compare(
    study: Study,
    rows: Sequence[Row],
    metric: str,
    higher_is_better: bool,
    margin: float | None,
    looks: Looks | None,
) -> dict[str, Comparison]:
    """What is known of each row beside its own dot, by label; varied values are judged apart."""
    found: dict[str, Comparison] = {}
    again = next((row for row in study.rows if row.label == AGAIN and row.finished), None)
    pooled = again is not None and study.rule.most_dot_seeds > 1
    trained = [row for row in rows if row.finished]
    for varied in dict.fromkeys(row.varied for row in trained):
        same = [row for row in trained if row.varied == varied]
        base = study.base_of(same[0])
        others = [row.measured(metric) for row in same if row is not base]
        if base is None or not others or not base.scores(metric):
            continue
        for comparison in judge(
            base.measured(metric),
            others,
            metric=base_metric(metric),
            higher_is_better=higher_is_better,
            margin=margin,
            looks=looks,
            rule=study.rule,
            primary=study.facts.get("primary"),
            again=again.measured(metric) if again is not None and pooled else None,
        ):
            found[comparison.label] = comparison
    return found


def _answer(
    study: Study,
    compared: dict[str, Comparison],
    lines: Sequence[Line],
    margin: str,
    *,
    higher_is_better: bool,
) -> str:
    """One sentence for the study (a ladder's largest rung), or over all varied values.

    The sentence says the varied values, so that rows go by their names without them.
    """
    values = list(dict.fromkeys(row.varied for row in study.rows)) or [()]
    name = f"{study.name} at this budget" if study.facts.get("quick") else study.name
    tables = []
    for varied in values[:1] if study.facts.get("ladder") else values:
        own = [row for row in study.rows if row.varied == varied and row.label in compared]
        specs = [(row.spec, replace(compared[row.label], label=row.name)) for row in own]
        closing = {line.row.name for line in lines if line.is_closing and line.row in own}
        tables.append(Varied(", ".join(map(plain_change, varied)), specs, closing))
    if len(tables) > 1:
        key = " and ".join(change.partition("=")[0].rpartition(".")[2] for change in values[0])
        short = [replace(one, value=one.value.removeprefix(f"{key} ")) for one in tables]
        return answer_by_value(name, key, short, margin)
    one = tables[0]
    subject = f"{name} with {one.value}" if one.value else name
    how: dict[str, Any] = {"higher_is_better": higher_is_better, "closing": one.closing}
    return answer(subject, one.compared, margin, **how)


def thirds(row: Row, metric: str) -> Any:  # noqa: ANN401  an array of three, or None
    """Validation scores after one, two and three thirds of the steps, the mean over runs."""
    found = []
    for run in row.finished:
        steps = int(run.recipe.get("train", {}).get("steps", 0))
        scored = [
            (line["step"], line["validation"][metric])
            for line in run.lines
            if isinstance(line.get("validation"), dict) and metric in line["validation"]
        ]
        if len(scored) < 3 or scored[0][0] > steps / 3 or scored[-1][0] < steps:
            return None
        at, values = zip(*scored, strict=True)
        found.append(np.interp([steps / 3, 2 * steps / 3, steps], at, values))
    return np.mean(found, axis=0) if found else None


def span(values: Sequence[float], digits: int = 2) -> str:
    """'12.30 \N{PLUS-MINUS SIGN} 0.41': mean and standard deviation over seeds; a dash for none."""
    if not values:
        return MISSING
    mean = f"{float(np.mean(values)):.{digits}f}".replace("-", MINUS)
    if len(values) < 2 or not np.isfinite(values).all():
        return mean
    return f"{mean} \N{PLUS-MINUS SIGN} {float(np.std(values, ddof=1)):.{digits}f}"


def signed(value: float, digits: int, low: float = math.inf, high: float = math.inf) -> str:
    """'+0.31 [+0.20, +0.42]', or the value alone where its interval has no end."""
    ends = (low, high) if math.isfinite(low) else ()
    first, *bounds = (f"{one:+.{digits}f}".replace("-", MINUS) for one in (value, *ends))
    return f"{first} [{', '.join(bounds)}]" if bounds else first


def difference_text(found: Comparison | None, digits: int = 2) -> str:
    """'+0.31 [+0.20, +0.42]'; without the interval where seeds are too few for one."""
    if found is None:
        return MISSING
    interval = (found.low, found.high) if found.covers_seeds else ()
    return signed(found.difference, digits, *interval)


def remark(found: Comparison) -> str:
    """What stands beside a word: on which side of dot, or how likely it is to be no worse.

    A study of the older rule has no such chance, and no remark.
    """
    if not math.isfinite(found.chance):
        return ""
    if found.word == BETTER and max(abs(found.low), abs(found.high)) < found.margin:
        return "ahead within the margin"
    if found.word == NO_WORSE and found.low * found.high > 0:
        return "behind within the margin"
    if found.word in (UNDECIDED, BEHIND):
        inside = "<1%" if found.chance < 0.01 else f"{found.chance:.0%}"
        return f"P(within the margin) {'>99%' if found.chance > 0.99 else inside}"
    return ""


def margin_text(study: Study, metric: str, dot: Measured) -> str:
    """'1 point of accuracy': the study's margin, or what the metric allows beside this dot."""
    size = allowed(metric, dot) if study.margin is None else study.margin
    name = shown(metric)
    if metric in LANGUAGE_MODEL and metric != "bits_per_byte":
        return f"{size:.3g} {name}, {BITS:g} bits per byte"
    points = "point of " if size == 1 else "points of "
    return f"{size:.3g} {points if name.endswith(', %') else ''}{name.removesuffix(', %')}"


def scope(
    recipe: dict[str, Any], seeds: Sequence[int], varied: Mapping[str, Collection[str]]
) -> str:
    """What the answer holds for, and what it leaves open; varied keys have several values."""
    model, train = recipe.get("model", {}), recipe.get("train", {})
    if not (model and train):
        return "Scope: unknown; no run has a readable recipe."
    layers = [model["num_layers"]]
    if model.get("kind") == "encoder_decoder":
        layers.append(model.get("num_decoder_layers") or model["num_layers"])
    tokens = train["batch_tokens"] * train.get("accumulate", 1)
    data = recipe.get("data", {})
    origin = data.get("builtin") or data.get("train") or data.get("hub") or data.get("local")
    origin = " or ".join(origin) if isinstance(origin, list) else origin
    listed = []  # [1, 2, 3, 4, 7] -> ['1 to 4', '7']; a run of two or three is spelt out
    for _, numbered in groupby(enumerate(sorted(seeds)), key=lambda pair: pair[1] - pair[0]):
        run = [str(seed) for _, seed in numbered]
        listed += [f"{run[0]} to {run[-1]}"] if len(run) > 3 else run
    *fewer, most = varied.get("num_heads", [str(model["num_heads"])])
    heads = f"{', '.join(fewer)} or {most}" if fewer else most
    others = [f"{key} {', '.join(vs)}" for key, vs in varied.items() if key != "num_heads"]
    seed_words = f"seed{'s' * (len(seeds) > 1)} {', '.join(listed)}" if seeds else "no seed yet"
    return (
        f"Scope: {'+'.join(map(str, layers))} layer{'s' * (layers != [1])} of width "
        f"{model['d_model']}, {heads} head{'s' * (heads != '1')}, length {model['max_len']}; "
        f"{train['steps']:,} steps of {tokens:,} tokens on {origin or recipe['name']}; "
        f"{'; '.join([*others, seed_words])}. "
        "Only self-attention differs between variants: cross-attention, where a model has any, "
        "is dot product in all of them. Another scale or data set may answer otherwise."
    )


# Does a task need dot products? A sentence from the words of a table's rows.


@dataclass(frozen=True)
class Varied:
    """The table of one varied value, or of several values together."""

    value: str
    compared: Compared
    closing: Collection[str] = ()


def answer(
    subject: str,
    compared: Compared,
    margin: str,
    *,
    higher_is_better: bool = True,
    closing: Collection[str] = (),
) -> str:
    """Whether the subject needs dot product, in a sentence."""
    if not compared:
        return f"No verdict: there is no finished pair of dot and another row on {subject}."
    alone = of_kind(compared, SYNTHETIC, BASELINE)
    head, clause, judged = _conclude(compared)
    if clause == FEW_SEEDS:
        seeds = max(comparison.num_seeds for _, comparison in compared)
        said = (
            f"No verdict on {subject} from {seeds} seed{'s' * (seeds != 1)} shared with dot; "
            f"{FEWEST_SEEDS} give one."
        )
        if not alone:
            return said
        best = (max if higher_is_better else min)(alone, key=lambda row: row.difference)
        word = "better" if (best.difference > 0) == higher_is_better else "worse"
        size = f"{abs(best.difference):.3g} {word} than" if best.difference else "equal to"
        return f"{said} So far the best row without dot product is {best.label}, {size} dot."
    if not judged:
        return f"No verdict on {subject}: {clause}."
    on = "" if clause.startswith("does not") else "on "
    start = f"{head} on {subject}:" if head == NO_VERDICT else f"{head}: {on}{subject}"
    open_ = [comparison.label for comparison in alone if comparison.label in closing]
    said = f"{start} {clause} (margin {margin})"
    return f"{said}{_beside(compared)}.{_closer(open_, len(open_))}"


def answer_by_value(subject: str, key: str, tables: Sequence[Varied], margin: str) -> str:
    """One sentence over the tables of a varied key: values that say the same are named together."""
    found: dict[tuple[str, str], list[str]] = {}
    named, count = [], 0
    for table in tables:
        head, clause, _ = _conclude(table.compared)
        found.setdefault((head, clause + _beside(table.compared)), []).append(table.value)
        alone = of_kind(table.compared, SYNTHETIC, BASELINE)
        if open_ := [row.label for row in alone if row.label in table.closing]:
            named.append(f"{_join(open_)} at {table.value}")
            count += len(open_)
    heads = {head for head, _ in found}
    lead = f"by {key}"
    if {YES, NO} <= heads:
        lead = f"it depends on {key}"
    elif len(heads) == 1 and heads <= {YES, NO}:
        lead = f"{heads.pop().lower()} at every {key} tried"
    said = [
        f"{head.lower()} at {_join(values)} ({clause})" for (head, clause), values in found.items()
    ]
    return f"On {subject}, {lead}: {', '.join(said)}; margin {margin}.{_closer(named, count)}"


def _conclude(compared: Compared) -> tuple[str, str, bool]:
    """The answer, the rows that give it or why there is none, and whether a row was judged."""
    words = {comparison.word for _, comparison in compared}
    if not compared:
        return NO_VERDICT, "no finished pair of rows", False
    if VOID in words:
        return NO_VERDICT, "dot differs from itself under other seeds (A/A check)", False
    if words == {NOT_JUDGED}:
        enough = max(comparison.num_seeds for _, comparison in compared) >= FEWEST_SEEDS
        no_statistics = "its runs have no per-example statistics to judge by"
        return NO_VERDICT, no_statistics if enough else FEW_SEEDS, False
    if _labels(of_kind(compared, NONE), BETTER, NO_WORSE):
        return NO, "does not even need self-attention; none is no worse than dot", True
    alone, synthetic = of_kind(compared, SYNTHETIC, BASELINE), of_kind(compared, SYNTHETIC)
    beaten = ""  # said where nothing but other mixers keeps up with dot product
    if synthetic and len(_labels(synthetic, WORSE)) == len(synthetic):
        beaten = f", while {_every(len(synthetic), 'of synthetic attention')} worse"
    claims = [(_labels(alone, BETTER), "better"), (_labels(alone, NO_WORSE), "no worse")]
    if said := [_claim(labels, word) for labels, word in claims if labels]:
        return NO, f"{' and '.join(said)} than dot product{beaten}", True
    if not alone:
        return NO_VERDICT, "no row does without dot product", True
    if len(_labels(alone, WORSE)) == len(alone):
        return YES, f"{_every(len(alone), 'without dot product')} worse", True
    after, unknown = _labels(alone, BEHIND), _labels(alone, UNDECIDED, NOT_JUDGED)
    if not unknown:
        every = f"{_every(len(alone), 'without dot product')} behind dot"
        return OPEN, f"{every}; whether by more than the margin is open for {_join(after)}", True
    also = f"; {_claim(after, 'behind')} dot" if after else ""
    likely = [row for row in alone if row.word == UNDECIDED and row.chance >= 0.5]
    if likely:  # newer studies know chances
        first = max(likely, key=lambda row: row.chance)
        also += f"; {first.label} is within the margin of dot with a probability of "
        also += f"{min(first.chance, 0.99):.0%}"
        if _labels(of_kind(compared, NONE), WORSE):
            also += ", and self-attention itself is needed (none is worse)"
    return OPEN, f"more seeds or test examples are needed for {_join(unknown)}{also}{beaten}", True


def _beside(compared: Compared) -> str:
    """What mixtures gain, and whether more parameters alone do."""
    mixed = _labels(of_kind(compared, "mixed"), BETTER)
    larger = _labels(of_kind(compared, DOT), BETTER)
    if not mixed:
        return ""
    also = f"; {_claim(mixed, 'better')} than dot"
    if larger:
        return f"{also}, and so {_claim(larger, '').strip()}"
    control = next((c for _, c in compared if c.label.startswith(AS_LARGE)), None)
    return also + (f", while {control.label}, is {control.word}" if control else "")


def _closer(named: Sequence[str], count: int) -> str:
    """Said of so many rows, on either side of dot, whose distance from it shrinks to the end."""
    verb = "comes" if count == 1 else "come"
    return f" So far: {_join(named)} still {verb} closer to dot." if named else ""


def _every(count: int, which: str) -> str:
    few = {1: f"the one row {which} is", 2: f"both rows {which} are"}
    return few.get(count, f"all {count} rows {which} are")


def of_kind(compared: Compared, *kinds: str) -> list[Comparison]:
    """The rows of these kinds."""
    return [comparison for spec, comparison in compared if kind_of(spec) in kinds]


def kind_of(spec: str) -> str:
    """What a row is: synthetic, mixed (with dot product), dot, none, baseline or other.

    A baseline is another mixer without dot product; Linformer, which has one, is other.
    """
    try:
        terms = [term for item, _ in split_layers(spec) for term in parse_spec(item)]
    except UserError:  # written by another version
        return "other"
    known = [variants()[term.name] for term in terms]
    if any(variant.baseline for variant in known):
        return "other" if any(variant.depends_on_pairs for variant in known) else BASELINE
    names = {term.name for term in terms}
    if names in ({NONE}, {DOT}):
        return names.pop()
    return "mixed" if DOT in names else SYNTHETIC


def _labels(comparisons: Sequence[Comparison], *words: str) -> list[str]:
    return [comparison.label for comparison in comparisons if comparison.word in words]


def _claim(labels: Sequence[str], word: str) -> str:
    return f"{_join(labels)} {'is' if len(labels) == 1 else 'are'} {word}"


def _join(labels: Sequence[str]) -> str:
    *first, last = labels
    return f"{', '.join(first)} and {last}" if first else last
