"""A mixture of GLUE and SuperGLUE tasks as text to text, trained together and scored apart."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from synthesizer.data.batch import Batch
from synthesizer.data.columns import Faults, read_rows
from synthesizer.data.encoded_cache import Entry
from synthesizer.data.prepare import Fields, Fitter, prepare, side_of
from synthesizer.data.sampler import Order
from synthesizer.data.sources import Row, Source, data_folder, open_source
from synthesizer.data.tokenizer import NUM_SENTINELS, Template, train_tokenizer
from synthesizer.errors import UserError
from synthesizer.experiment.recipe import Recipe
from synthesizer.metrics import (
    GLUE,
    NO_LABEL,
    SUPERGLUE,
    accuracy_statistics,
    confusion_statistics,
    glue_average,
    multirc_statistics,
    pearson_statistics,
    record_statistics,
    score,
    spearman_statistics,
    superglue_average,
)
from synthesizer.tasks.glue import MEMBERS, Member
from synthesizer.tasks.pairs import (
    load_ragged,
    pair_limits,
    pairs_in_order,
    share_pairs,
    store_ragged,
)
from synthesizer.tasks.task import Outputs, Scores

Array = NDArray[Any]


class TextToText:
    """Many tasks as prompts and answers; each counts by its examples, up to data.cap.

    The main metric is the share of right answers averaged over tasks, so that each task counts
    the same; the official metrics and averages stand beside it.
    """

    kind = "encoder_decoder"
    labels: list[str] | None = None
    num_labels: int | None = None
    main_metric = "accuracy"
    higher_is_better = True
    generates = True
    decodes = True

    def __init__(self, recipe: Recipe, tokenizer_dir: str | Path | None = None) -> None:
        self._recipe = recipe
        self._sources = _open(recipe)
        prints = (f"{name} {source.fingerprint}" for name, source in self._sources.items())
        whole = Source(origin="mixture", fingerprint=" ".join(prints), splits={})
        self.tokenizer, entry = prepare(recipe, tokenizer_dir, self._build, source=whole)
        self._arrays, self._rows = entry.arrays, entry.meta["rows"]
        self.report: dict[str, Any] = entry.meta["report"]

    def train_batches(self, start: int = 0, *, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Endless batches of similar lengths, tasks mixed."""
        sources = load_ragged(self._arrays, "train.source")
        targets = load_ragged(self._arrays, "train.target")
        order = Order(
            np.column_stack([sources.lengths, targets.lengths]),
            batch_tokens=self._recipe.train.batch_tokens,
            seed=self._recipe.seed,
            groups=self._arrays["train.groups"],
            cap=self._recipe.data.cap,
        )
        return share_pairs(order, sources, targets, self.tokenizer, start, rank, world)

    def batches(self, split: str) -> Iterator[Batch]:
        """Each held-out example once, task by task."""
        places = self._places(split)
        sources = load_ragged(self._arrays, "test.source").take(places)
        targets = load_ragged(self._arrays, "test.target").take(places)
        budget = self._recipe.evaluate.batch_tokens
        return pairs_in_order(sources, targets, self.tokenizer, budget)

    def score(self, split: str, outputs: Outputs) -> Scores:
        """Each task's official metrics, and both averages where all their tasks are present."""
        chosen = [self._rows[place] for place in self._places(split)]
        rows = [(*row, text.strip()) for row, text in zip(chosen, outputs.texts, strict=True)]
        names = list(dict.fromkeys(row[0] for row in rows))
        statistics: dict[str, Array] = {}
        for name in names:
            mine = [row[1:] for row in rows if row[0] == name]
            for metric, table in judge(MEMBERS[name], mine).items():
                statistics[f"{name}_{metric}"] = table
        metrics = {key: score(_metric(key), table) for key, table in statistics.items()}
        metrics |= _averages(metrics)
        right = np.array([row[-1] in row[3] for row in rows], dtype=np.float64)
        counts = {name: sum(row[0] == name for row in rows) for name in names}
        weights = np.array([1 / counts[row[0]] for row in rows])
        statistics["accuracy"] = np.column_stack([right * weights, weights])
        metrics["accuracy"] = score("accuracy", statistics["accuracy"])
        metrics["loss"] = float(outputs.losses.sum() / outputs.counts.sum())
        shown = [rows[[row[0] for row in rows].index(name)] for name in names]
        samples = [
            {"source": row[2], "reference": " | ".join(row[3]), "output": row[-1]} for row in shown
        ]
        return Scores(metrics, {}, statistics, samples)

    def _places(self, split: str) -> list[int]:
        """Which held-out examples a split has: for validation the first of each set.

        The paper reports development sets, so validation and test are the same examples here.
        """
        limit = self._recipe.evaluate.limit if split == "validation" else None
        sets: dict[tuple[str, str], list[int]] = {}
        for place, (name, group, *_) in enumerate(self._rows):
            half = group if group in MEMBERS[name].held_out else ""
            sets.setdefault((name, half), []).append(place)
        return [place for places in sets.values() for place in places[:limit]]

    def _build(
        self, source: Source, given: PreTrainedTokenizerFast | None
    ) -> tuple[PreTrainedTokenizerFast, Entry]:
        recipe = self._recipe
        report: dict[str, Any] = {"origin": {}, "examples": {}, "bad_rows": {}}
        train, groups = self._read_train(report)
        tokenizer = given or train_tokenizer(
            recipe.text,
            [side_of(train, side) for side in range(2)],
            Template(sentinels=NUM_SENTINELS),
        )
        fitter = Fitter(tokenizer, pair_limits(recipe), recipe.data, closed=True)
        labelled = [(*fields, str(group)) for fields, group in zip(train, groups, strict=True)]
        arrays: dict[str, Array] = {}
        (sources, targets), kept = fitter.encode("train", labelled)
        arrays["train.groups"] = np.array([int(fields[2]) for fields in kept])
        store_ragged(arrays, "train.source", sources)
        store_ragged(arrays, "train.target", targets)
        rows = [*self._read_held_out(report)]
        (sources, targets), _ = fitter.encode("test", [(row[2], row[3][0]) for row in rows])
        store_ragged(arrays, "test.source", sources)
        store_ragged(arrays, "test.target", targets)
        report |= {"overlong": fitter.report, "vocab_size": len(tokenizer)}
        return tokenizer, Entry(arrays, {"rows": rows, "report": report})

    def _read_train(self, report: dict[str, Any]) -> tuple[list[Fields], list[int]]:
        examples: list[Fields] = []
        groups: list[int] = []
        for number, name in enumerate(self._recipe.data.tasks):
            rows = self._rows_of(name, MEMBERS[name].held_out[0], "train", report)
            pairs = [(prompt, answer) for _, prompt, answers, _ in rows for answer in answers]
            examples += pairs
            groups += [number] * len(pairs)
        return examples, groups

    def _read_held_out(self, report: dict[str, Any]) -> Iterator[tuple[str, str, str, list[str]]]:
        """Task, group, prompt and answers of each example; a group keeps MNLI's halves apart."""
        for name in self._recipe.data.tasks:
            for held_out in MEMBERS[name].held_out:
                half = held_out if len(MEMBERS[name].held_out) > 1 else ""
                rows = self._rows_of(name, held_out, "test", report)
                for _, prompt, answers, group in rows:
                    yield name, group or half, prompt, answers

    def _rows_of(
        self, name: str, held_out: str, split: str, report: dict[str, Any]
    ) -> list[tuple[str, str, list[str], str]]:
        member, faults = MEMBERS[name], Faults(self._recipe.data.skip_bad)
        source = self._sources[f"{name} {held_out}"]

        def read(row: Row) -> tuple[str, str, list[str], str]:
            return name, member.prompt(row), member.references(row), member.group(row)

        if split not in source.splits:
            raise UserError(
                f"{source.origin} has no '{held_out}' split; {name} is scored on it: add the file, "
                f"or leave {name} out of data.tasks"
            )
        found = list(read_rows(source.splits[split](), read, faults))
        key = f"{name} {split if split == 'train' else held_out}"
        report["origin"][name], report["examples"][key] = source.origin, len(found)
        if faults.counts:
            report["bad_rows"][key] = dict(faults.counts)
        return found


def judge(member: Member, rows: list[tuple[str, str, list[str], str]]) -> dict[str, Array]:
    """Statistics of a task's official metrics from rows of group, prompt, answers and output."""
    groups, _, answers, outputs = (list(column) for column in zip(*rows, strict=True))
    names = {"glue": GLUE, "superglue": SUPERGLUE}[member.suite][member.name]
    if member.name == "record":
        return record_statistics(outputs, answers)
    if member.name == "stsb":
        numbers = [member.score_of(text) for text in outputs]
        targets = [float(answer[0]) for answer in answers]
        return {
            "pearson": pearson_statistics(numbers, targets),
            "spearman": spearman_statistics(numbers, targets),
        }
    known = {answer: number for number, answer in enumerate(member.answers)}
    predictions = [known.get(text, NO_LABEL) for text in outputs]
    labels = [known[answer[0]] for answer in answers]
    if member.name == "multirc":
        return multirc_statistics(predictions, labels, groups)
    if member.name == "mnli":
        halves = {half: [place for place, group in enumerate(groups) if group.endswith(half)]
                  for half in ("_matched", "_mismatched")}  # fmt: skip
        return {
            f"accuracy{half}": accuracy_statistics(
                [predictions[place] for place in places], [labels[place] for place in places]
            )
            for half, places in halves.items()
        }
    confusion = confusion_statistics(predictions, labels, num_labels=len(member.answers))
    accuracy = accuracy_statistics(predictions, labels)
    return {name: accuracy if name == "accuracy" else confusion for name in names}


def _open(recipe: Recipe) -> dict[str, Source]:
    """The source of each task, by its name and held-out split."""
    tasks = recipe.data.tasks
    unknown = [name for name in tasks if name not in MEMBERS]
    if unknown or not tasks:
        raise UserError(
            f"data.tasks has {', '.join(unknown) or 'no task'}; choose from {', '.join(MEMBERS)}"
        )
    opened = {}
    for name in tasks:
        for held_out in MEMBERS[name].held_out:
            try:
                source = open_source(MEMBERS[name].data(recipe.data, held_out), data_folder())
            except UserError as error:
                raise UserError(f"{error}; or leave {name} out of data.tasks") from None
            opened[f"{name} {held_out}"] = source
    return opened


def _averages(metrics: dict[str, float]) -> dict[str, float]:
    """GLUE's and SuperGLUE's own averages, if nothing is missing from them."""
    by_suite: dict[str, dict[str, dict[str, float]]] = {"glue": {}, "superglue": {}}
    for key, value in metrics.items():
        suite, name, metric = key.split("_", 2)
        by_suite[suite].setdefault(name, {})[metric] = value
    found = {
        "glue": glue_average(by_suite["glue"]).score,
        "superglue": superglue_average(by_suite["superglue"]).score,
    }
    return {suite: value for suite, value in found.items() if value is not None}


def _metric(key: str) -> str:
    return key.split("_", 2)[2]


build = TextToText
