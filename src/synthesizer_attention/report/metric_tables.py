"""All metrics of a task, in the order and under the headings of the paper's tables (no torch)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from synthesizer_attention.metrics import GLUE, METRICS, SUPERGLUE, base_metric, shown
from synthesizer_attention.report.load import Row, Study, plain_change
from synthesizer_attention.report.opponent import base_of
from synthesizer_attention.report.summary import Summary, difference_text, measured, scores_of, span
from synthesizer_attention.run.published import paper
from synthesizer_attention.study.stats import Comparison, judge

Table = tuple[list[str], list[list[str]]]  # head and rows

_SUITES = {"GLUE": ("glue", GLUE), "SuperGLUE": ("superglue", SUPERGLUE)}
_PERPLEXITY = {"perplexity of references": ("perplexity",)}
_ROUGE: dict[str, tuple[str, ...]] = {
    "ROUGE-1": ("rouge1",),
    "ROUGE-2": ("rouge2",),
    "ROUGE-L, summary level": ("rougeLsum",),
    "ROUGE-L, sentence level": ("rougeL",),
    **_PERPLEXITY,
}
COLUMNS: dict[str, dict[str, tuple[str, ...]]] = {
    "translation": {"BLEU": ("bleu",), "chrF": ("chrf",), **_PERPLEXITY},
    "language_modeling": {
        "perplexity": ("perplexity",),
        "word perplexity": ("word_perplexity",),
        "bits per byte": ("bits_per_byte",),
    },
    "span_corruption": {
        "log perplexity": ("loss",),
        "perplexity": ("perplexity",),
        "token accuracy, %": ("token_accuracy",),
    },
    "principal_sentence": _ROUGE,
    "summarization": _ROUGE,
    "dialogue": {
        "BLEU-1/4": ("bleu1", "bleu4"),
        "ROUGE-L": ("rougeL",),
        "METEOR 1.5, no WordNet": ("meteor15_no_wordnet",),
        "CIDEr": ("cider",),
        "embedding similarity": ("embedding_average",),
        **_PERPLEXITY,
    },
    "classification": {"accuracy, %": ("accuracy",), "macro F1": ("macro_f1",)},
    "text_to_text": {
        head: keys
        for suite, (prefix, metrics) in _SUITES.items()
        for head, keys in {
            suite: (prefix,),
            **{
                f"{suite} {printed}": tuple(f"{prefix}_{task}_{name}" for name in metrics[task])
                for task, printed in paper()["tables"][prefix]["columns"].items()
                if task != "average"
            },
        }.items()
    },
}
"""Headings, and the metrics under each; two under one heading are shown as a/b, as in the paper."""
_PLACED = {key for columns in COLUMNS.values() for keys in columns.values() for key in keys}


def higher_is_better(name: str) -> bool:
    """Whether more of a metric is better; the loss has no statistics of its own."""
    return name in METRICS and METRICS[name].higher_is_better


@dataclass(frozen=True)
class MetricTables:
    """Means of all metrics, and what is known of their differences from dot."""

    means: Table
    differences: Table


def metric_tables(summary: Summary) -> MetricTables | None:
    """Both tables; None where runs have one metric, or no task that is known."""
    study = summary.study
    rows = [row for row in study.rows if row.finished]
    task = str(study.recipe.get("task", ""))
    added = {shown(name): (name,) for name in METRICS if name not in _PLACED}
    known = {
        head: tuple(key for key in keys if any(scores_of(row, key) for row in rows))
        for head, keys in {**COLUMNS.get(task, {}), **added}.items()
    }
    columns = {head: keys for head, keys in known.items() if keys}
    if len(columns) < 2:
        return None
    means = [[row.label, *(_mean_sd(row, keys) for keys in columns.values())] for row in rows]
    compared = {key: _compare(summary, rows, key) for keys in columns.values() for key in keys}
    others = [row for row in rows if any(row.label in found for found in compared.values())]
    differences = [
        [row.label, *(_differences(row, keys, compared) for keys in columns.values())]
        for row in others
    ]
    head = ["variant", *columns]
    return MetricTables((head, means), (head, differences))


def varied_table(summary: Summary) -> Table | None:
    """A row for each variant, a column for each value of what --vary changed."""
    study = summary.study
    values = list(dict.fromkeys(row.varied for row in study.rows if row.varied))
    if not values:
        return None
    names = [", ".join(plain_change(change) for change in varied) for varied in values]
    cells: dict[str, list[str]] = {}
    for row in filter(lambda row: row.varied, study.rows):
        line = cells.setdefault(row.name, [span([])] * len(values))
        scores = list(scores_of(row, summary.metric).values())
        line[values.index(row.varied)] = span(scores, summary.digits)
    return ["variant", *names], [[name, *line] for name, line in cells.items()]


def _mean_sd(row: Row, keys: Sequence[str]) -> str:
    return " / ".join(span(list(scores_of(row, key).values())) for key in keys)


def _compare(summary: Summary, rows: Sequence[Row], key: str) -> dict[str, Comparison]:
    """Compare each row's metric with that of its own dot; the main metric is compared already."""
    if key == summary.metric:
        lines = summary.lines
        return {line.row.label: line.comparison for line in lines if line.comparison is not None}
    found: dict[str, Comparison] = {}
    settings: dict[str, Any] = {"metric": base_metric(key), "margin": None}
    settings["higher_is_better"] = higher_is_better(base_metric(key))
    for varied in dict.fromkeys(row.varied for row in rows):
        same = [row for row in rows if row.varied == varied]
        dot = base_of(summary.study, same[0])
        if dot is None or not scores_of(dot, key):
            continue
        mine = [row for row in same if row is not dot]
        with_it = [measured(row, key) for row in mine if scores_of(row, key)]
        compared = judge(measured(dot, key), with_it, **settings, looks=summary.looks)
        found |= {comparison.label: comparison for comparison in compared}
    return found


def _differences(row: Row, keys: Sequence[str], compared: dict[str, dict[str, Comparison]]) -> str:
    return " / ".join(difference_and_verdict(compared[key].get(row.label)) for key in keys)


def difference_and_verdict(found: Comparison | None) -> str:
    """'+0.31 [+0.20, +0.42], better'."""
    return difference_text(found) + (f", {found.word}" if found is not None else "")


def varied_points(study: Study, metric: str) -> dict[str, list[tuple[str, list[float]]]]:
    """For a plot: each variant's scores by the value that was varied, where one key was."""
    points: dict[str, list[tuple[str, list[float]]]] = {}
    for row in study.rows:
        scores = list(scores_of(row, metric).values())
        if len(row.varied) == 1 and scores:
            value = row.varied[0].partition("=")[2]
            points.setdefault(row.name, []).append((value, scores))
    return points
