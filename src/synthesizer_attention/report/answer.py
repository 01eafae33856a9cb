"""Does a task need dot products? A sentence from the words of a table's rows (no torch)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from synthesizer_attention.errors import UserError
from synthesizer_attention.spec import NONE, parse_spec, split_layers, variants
from synthesizer_attention.study.rows import AS_LARGE, DOT
from synthesizer_attention.study.stats import (
    BETTER,
    FEWEST_SEEDS,
    NO_WORSE,
    NOT_JUDGED,
    UNDECIDED,
    VOID,
    WORSE,
    Comparison,
)

NO, YES, OPEN, NO_VERDICT = "No", "Yes", "Undecided", "No verdict"
SYNTHETIC, BASELINE = "synthetic", "baseline"  # rows without dot product
Compared = Sequence[tuple[str, Comparison]]  # the spec of a row, and what is known of it


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
    alone = _alone(compared)
    reason = _no_words(compared)
    if reason == FEW_SEEDS:
        seeds = max(comparison.num_seeds for _, comparison in compared)
        first = f"No verdict on {subject} from {_count(seeds, 'seed')} shared with dot"
        return f"{first}; {FEWEST_SEEDS} give one.{_so_far(alone, higher_is_better)}"
    if reason:
        return f"No verdict on {subject}: {reason}."
    head, clause = _core(compared)
    if head == NO_VERDICT:
        sentence = f"{head} on {subject}: {clause}"
    elif _does_without(compared):
        sentence = f"{head}: {subject} {clause}"
    else:
        sentence = f"{head}: on {subject} {clause}"
    open_ = [comparison.label for comparison in alone if comparison.label in closing]
    return f"{sentence} (margin {margin}){_beside(compared)}.{_closer(open_, len(open_))}"


@dataclass(frozen=True)
class Varied:
    """The table of one varied value, or of several values together."""

    value: str
    compared: Compared
    closing: Collection[str] = ()


def answer_by_value(subject: str, key: str, tables: Sequence[Varied], margin: str) -> str:
    """One sentence over the tables of a varied key: values that say the same are named together."""
    found: dict[tuple[str, str], list[str]] = {}
    for table in tables:
        reason = _no_words(table.compared) if table.compared else "no finished pair of rows"
        head, clause = (NO_VERDICT, reason) if reason else _core(table.compared)
        clause += "" if reason else _beside(table.compared)
        found.setdefault((head, clause), []).append(table.value)
    heads = {head for head, _ in found}
    lead = f"by {key}"
    if {YES, NO} <= heads:
        lead = f"it depends on {key}"
    elif len(heads) == 1 and heads <= {YES, NO}:
        lead = f"{heads.pop().lower()} at every {key} tried"
    said = [
        f"{head.lower()} at {_join(values)} ({clause})" for (head, clause), values in found.items()
    ]
    open_ = {
        table.value: [c.label for c in _alone(table.compared) if c.label in table.closing]
        for table in tables
    }
    named = [f"{_join(labels)} at {value}" for value, labels in open_.items() if labels]
    so_far = _closer(named, sum(map(len, open_.values())))
    return f"On {subject}, {lead}: {', '.join(said)}; margin {margin}.{so_far}"


def _closer(named: Sequence[str], count: int) -> str:
    """Said of so many rows, on either side of dot, whose distance from it shrinks to the end."""
    verb = "comes" if count == 1 else "come"
    return f" So far: {_join(named)} still {verb} closer to dot." if named else ""


def _alone(compared: Compared) -> list[Comparison]:
    """The rows that do without dot product, a convolution among them."""
    return [comparison for spec, comparison in compared if kind_of(spec) in (SYNTHETIC, BASELINE)]


FEW_SEEDS = f"fewer than {FEWEST_SEEDS} seeds shared with dot"


def _no_words(compared: Compared) -> str:
    """Why no row has a word; empty where one has."""
    if any(comparison.word == VOID for _, comparison in compared):
        return "dot differs from itself under other seeds (A/A check)"
    if any(comparison.word != NOT_JUDGED for _, comparison in compared):
        return ""
    if max(comparison.num_seeds for _, comparison in compared) >= FEWEST_SEEDS:
        return "its runs have no per-example statistics to judge by"
    return FEW_SEEDS


def _does_without(compared: Compared) -> bool:
    """Whether not even self-attention is needed."""
    return any(
        kind_of(spec) == NONE and comparison.word in (BETTER, NO_WORSE)
        for spec, comparison in compared
    )


def _core(compared: Compared) -> tuple[str, str]:
    """The answer, and the rows that give it."""
    alone = _alone(compared)
    better, even = _labels(alone, BETTER), _labels(alone, NO_WORSE)
    if _does_without(compared):
        return NO, "does not even need self-attention; none is no worse than dot"
    if better or even:
        claims = [_claim(better, "better"), _claim(even, "no worse")]
        said = " and ".join(claim for claim in claims if claim)
        return NO, f"{said} than dot product{_synthetic_rows_lose(compared)}"
    if alone and len(_labels(alone, WORSE)) == len(alone):
        return YES, f"{_every(len(alone), 'without dot product')} worse"
    if alone:
        open_rows = _labels(alone, UNDECIDED, NOT_JUDGED)
        needed = f"more seeds or test examples are needed for {_join(open_rows)}"
        return OPEN, f"{needed}{_synthetic_rows_lose(compared)}"
    return NO_VERDICT, "no row does without dot product"


def _synthetic_rows_lose(compared: Compared) -> str:
    """Said where nothing but other mixers keeps up with dot product."""
    rows = [comparison for spec, comparison in compared if kind_of(spec) == SYNTHETIC]
    if not rows or len(_labels(rows, WORSE)) < len(rows):
        return ""
    return f", while {_every(len(rows), 'of synthetic attention')} worse"


def _every(count: int, which: str) -> str:
    few = {1: f"the one row {which} is", 2: f"both rows {which} are"}
    return few.get(count, f"all {count} rows {which} are")


def _beside(compared: Compared) -> str:
    """What mixtures gain, and whether more parameters alone do."""
    kinds = [(kind_of(spec), comparison) for spec, comparison in compared]
    mixed = _labels([comparison for kind, comparison in kinds if kind == "mixed"], BETTER)
    larger = _labels([comparison for kind, comparison in kinds if kind == DOT], BETTER)
    also = f"; {_claim(mixed, 'better')} than dot" if mixed else ""
    if mixed and larger:
        also += f", and so {_claim(larger, '').strip()}"
    elif mixed and (control := [c for _, c in compared if c.label.startswith(AS_LARGE)]):
        also += f", while {control[0].label}, is {control[0].word}"
    return also


def _so_far(alone: Sequence[Comparison], higher_is_better: bool) -> str:
    if not alone:
        return ""
    best = (max if higher_is_better else min)(alone, key=lambda row: row.difference)
    gained = best.difference > 0 if higher_is_better else best.difference < 0
    size = f"{abs(best.difference):.3g} {'better' if gained else 'worse'} than dot"
    shown = size if best.difference else "equal to dot"
    return f" So far the best row without dot product is {best.label}, {shown}."


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
    if names == {NONE}:
        return NONE
    if names == {DOT}:
        return DOT
    return "mixed" if DOT in names else SYNTHETIC


def _labels(comparisons: Sequence[Comparison], *words: str) -> list[str]:
    return [comparison.label for comparison in comparisons if comparison.word in words]


def _claim(labels: Sequence[str], word: str) -> str:
    return f"{_join(labels)} {'is' if len(labels) == 1 else 'are'} {word}" if labels else ""


def _join(labels: Sequence[str]) -> str:
    *first, last = labels
    return f"{', '.join(first)} and {last}" if first else last


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
