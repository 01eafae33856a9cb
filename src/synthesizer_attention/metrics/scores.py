"""Every metric by name: how it is counted and scored, its name in reports and its margin."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics import labels, language_model, text
from synthesizer_attention.metrics.labels import Statistics, Total, percent_from_statistics

Measure = Callable[[Any, Any, Any], Statistics]
Sign = Callable[[Any, Any], str]


class Metric(NamedTuple):
    """What is known of a metric by its name.

    A task of `tasks` has `measure(outputs, references, known)` for every split: written texts and
    their references, or predicted and true labels; known are word vectors, or the number of labels.
    """

    score: Callable[[Total], float]  # of its statistics, summed over examples
    shown: str = ""  # as papers write it; by default its name with spaces
    margin: float = 1.0  # points that still count as no worse; at most 2 % of dot's value
    higher_is_better: bool = True
    tasks: tuple[str, ...] = ()
    measure: Measure = lambda *_: np.empty((0, 0))
    sign: Sign | None = None  # of references and known: what it takes to repeat the figure


def _of_two(measure: Callable[[Any, Any], Statistics]) -> Measure:
    return lambda outputs, references, _: measure(outputs, references)


def _bleu(shown: str, task: str, order: int = 4) -> Metric:
    return Metric(
        text.bleu_from_statistics,
        shown,
        0.5,
        tasks=(task,),
        measure=_of_two(partial(text.bleu_statistics, max_order=order)),
        sign=lambda references, _: text.sacrebleu_signature(references, order),
    )


def _rouge(name: str, *more: str) -> Metric:
    return Metric(
        percent_from_statistics,
        "ROUGE-L" if name == "rougeL" else "",
        0.5,
        tasks=("summarization", "principal_sentence", *more),
        measure=_of_two(partial(text.rouge_statistics, name)),
        sign=lambda *_: text.rouge_signature(),
    )


_percent = partial(Metric, percent_from_statistics)
_loss = partial(Metric, higher_is_better=False)

METRICS = {
    "bleu": _bleu("BLEU", "translation"),
    "bleu1": _bleu("BLEU-1", "dialogue", order=1),
    "bleu4": _bleu("BLEU-4", "dialogue"),
    "chrf": Metric(
        text.chrf_from_statistics,
        "chrF",
        0.5,
        tasks=("translation",),
        measure=_of_two(text.chrf_statistics),
        sign=lambda references, _: text.sacrebleu_signature(references, None),
    ),
    "perplexity": _loss(language_model.perplexity_from_statistics),
    "word_perplexity": _loss(language_model.word_perplexity_from_statistics),
    "bits_per_byte": _loss(language_model.bits_per_byte_from_statistics),
    "rouge1": _rouge("rouge1"),
    "rouge2": _rouge("rouge2"),
    "rougeL": _rouge("rougeL", "dialogue"),
    "rougeLsum": _rouge("rougeLsum"),
    "meteor_exact_stem": Metric(
        text.meteor_from_statistics,
        "METEOR (exact, stem)",
        0.5,
        tasks=("dialogue",),
        measure=_of_two(text.meteor_statistics),
        sign=lambda *_: text.meteor_signature(),
    ),
    "meteor15_no_wordnet": _percent("METEOR, mean of segments", margin=0.5),  # of older runs
    "cider": _percent(
        tasks=("dialogue",),
        measure=_of_two(text.cider_statistics),
        sign=lambda *_: text.cider_signature(),
    ),
    text.EMBEDDING: _percent(
        tasks=("dialogue",),
        measure=text.embedding_statistics,
        sign=lambda _, vectors: text.vectors_signature(vectors),
    ),
    "accuracy": _percent(
        "accuracy, %", tasks=("classification",), measure=_of_two(labels.accuracy_statistics)
    ),
    "accuracy_matched": _percent(),
    "accuracy_mismatched": _percent(),
    "token_accuracy": _percent("token accuracy, %"),
    "exact_match": _percent(),
    "token_f1": _percent(),
    "matthews": Metric(labels.matthews_from_statistics),
    "f1": Metric(labels.f1_from_statistics),
    "f1a": Metric(labels.f1_from_statistics),
    "macro_f1": Metric(
        labels.macro_f1_from_statistics,
        tasks=("classification",),
        measure=lambda predictions, targets, count: labels.confusion_statistics(
            predictions, targets, num_labels=count
        ),
    ),
    "pearson": Metric(labels.correlation_from_statistics),
    "spearman": Metric(labels.correlation_from_statistics),
}
"""Every metric. Add your own here: reports show it and verdicts judge it by this line alone."""


def of_task(task: str) -> dict[str, Metric]:
    """The metrics that a task records."""
    return {name: metric for name, metric in METRICS.items() if task in metric.tasks}


def shown(name: str) -> str:
    """A metric as a report writes it."""
    found = METRICS.get(name)
    return found.shown if found and found.shown else name.replace("_", " ")


def base_metric(name: str) -> str:
    """What scores 'glue_cola_matthews' of a mixture, or 'matthews@mobile' of a part: 'matthews'."""
    whole = name.partition("@")[0]
    return whole if whole in METRICS else whole.split("_", 2)[-1]


def score(name: str, statistics: Statistics) -> float:
    """The metric called name over all rows of its statistics."""
    if name not in METRICS:
        raise UserError(f"unknown metric '{name}'; choose from {', '.join(METRICS)}")
    labels.require_examples(len(statistics))
    return METRICS[name].score(statistics.sum(axis=0, dtype=np.float64))  # a file's are float32
