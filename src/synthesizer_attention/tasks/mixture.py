"""A mixture of GLUE and SuperGLUE tasks as text to text, trained together and scored apart."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from synthesizer_attention.data.batch import Ragged
from synthesizer_attention.data.cache import Entry, Fields, Table
from synthesizer_attention.data.columns import Faults, cut_splits, hash_text, read_rows
from synthesizer_attention.data.files import Row
from synthesizer_attention.data.prepare import Fitter, tokenizer_texts
from synthesizer_attention.data.sources import Mixture, Source, data_folder, open_source
from synthesizer_attention.data.tokenizer import NUM_SENTINELS, Template, train_tokenizer
from synthesizer_attention.errors import UserError, listed
from synthesizer_attention.metrics import glue, labels
from synthesizer_attention.metrics.labels import DOCUMENTS, accuracy_statistics
from synthesizer_attention.metrics.scores import base_metric, score
from synthesizer_attention.run.recipe import Recipe
from synthesizer_attention.tasks.glue import WORDINGS, Member, number_of, same_referent
from synthesizer_attention.tasks.pairs import PairTask, pair_limits
from synthesizer_attention.tasks.task import Built, Outputs, Scores, load_ragged

Array = NDArray[Any]
HeldOut = tuple[str, str, str, list[str]]  # task, group, prompt and answers


class TextToText(PairTask):
    """Many tasks as prompts and answers; each counts by its examples, up to data.cap.

    The main metric is the share of right answers averaged over tasks, so that each task counts
    the same; the official metrics and averages are reported too. Test is the development sets,
    which the paper reports; validation is cut from train (data.holdout), or test where that is 0.
    """

    main_metric = "accuracy"

    def __init__(self, recipe: Recipe, tokenizer_dir: str | Path | None = None) -> None:
        self._members = WORDINGS[recipe.data.wording]
        self._sources = _open(recipe, self._members)
        super().__init__(recipe, tokenizer_dir, Mixture(self._sources))
        test: list[HeldOut] = self._meta["test"]
        self._rows = {"validation": self._meta["validation"] or test, "test": test}

    def score(self, split: str, outputs: Outputs) -> Scores:
        """Each task's official metrics, and both averages where all their tasks are present.

        Of train the share of right answers alone: its groups and other answers are not kept.
        """
        if split == "train":
            return self._score_train(outputs)
        chosen = [self._rows[split][index] for index in self._indices(split)]
        rows = [(*row, text.strip()) for row, text in zip(chosen, outputs.texts, strict=True)]
        names = list(dict.fromkeys(row[0] for row in rows))
        statistics: dict[str, Array] = {}
        for name in names:
            mine = [row[1:] for row in rows if row[0] == name]
            for metric, table in judge(self._members[name], mine).items():
                statistics[f"{name}_{metric}"] = table
        metrics = {key: score(base_metric(key), table) for key, table in statistics.items()}
        averages = {suite: glue.suite_average(suite, metrics) for suite in glue.SUITES}
        metrics |= {suite: value for suite, value in averages.items() if value is not None}
        right = np.array([self._is_right(*row) for row in rows], dtype=np.float64)
        counts = Counter(row[0] for row in rows)
        weights = np.array([1 / counts[row[0]] for row in rows])
        statistics["accuracy"] = np.column_stack([right * weights, weights])
        keys = [_document(*row[:2]) or f"{place}" for place, row in enumerate(chosen)]
        statistics[DOCUMENTS] = np.unique(keys, return_inverse=True)[1]
        metrics["accuracy"] = score("accuracy", statistics["accuracy"])
        metrics["loss"] = outputs.loss
        shown = [rows[[row[0] for row in rows].index(name)] for name in names]
        samples = [
            {"source": row[2], "reference": " | ".join(row[3]), "output": row[-1]} for row in shown
        ]
        return Scores(metrics, {}, statistics, samples)

    def _score_train(self, outputs: Outputs) -> Scores:
        groups, answers = self._arrays["train.groups"], self._decode(self._lists("train")[1])
        pairs = zip(outputs.texts, answers, strict=True)
        right = np.array([text.strip() == answer for text, answer in pairs], dtype=np.float64)
        weights = 1 / np.bincount(groups)[groups]
        rows = np.column_stack([right * weights, weights])
        metrics = {"accuracy": score("accuracy", rows), "loss": outputs.loss}
        for number, name in enumerate(self._recipe.data.tasks):
            metrics[f"{name}_accuracy"] = float(100 * right[groups == number].mean())
        return Scores(metrics, {}, {"accuracy": rows})

    def _is_right(self, name: str, group: str, _: str, answers: list[str], output: str) -> bool:
        """Whether an output is one of the answers, or names a noun if and only if it is meant."""
        if self._members[name].names_referents:
            return same_referent(output, answers[0]) == (group == "1")
        return output in answers

    def _lists(self, split: str) -> list[Ragged]:
        if split == "train":
            return super()._lists(split)
        home = split if self._meta[split] else "test"
        lists = [load_ragged(self._arrays, f"{home}.{side}") for side in self.sides]
        return [ragged.take(self._indices(split)) for ragged in lists]

    def _indices(self, split: str) -> list[int]:
        """Which held-out examples a split has: for validation the first of each set."""
        sets: dict[tuple[str, str], list[int]] = {}
        for index, (name, group, *_) in enumerate(self._rows[split]):
            half = group if group in self._members[name].held_out else ""
            sets.setdefault((name, half), []).append(index)
        return [index for indices in sets.values() for index in indices[: self._limit(split)]]

    def _build(self, source: Source, given: PreTrainedTokenizerFast | None) -> Built:
        recipe = self._recipe
        report: dict[str, Any] = {"origin": {}, "examples": {}, "bad_rows": {}}
        validation: list[HeldOut] = []
        train = Table.of(self._read_train(report, validation))
        tokenizer = given or train_tokenizer(
            recipe.text,
            tokenizer_texts(recipe.text, train, [0, 1], report),
            Template(sentinels=NUM_SENTINELS),
        )
        fitter = Fitter(tokenizer, pair_limits(recipe), recipe.data, closed=True)
        arrays: dict[str, Array] = {}
        lists, kept = fitter.encode("train", train)
        self._store(arrays, "train", lists)
        arrays["train.groups"] = np.fromiter(map(int, kept.column(2)), np.int64)
        test = [*self._read_held_out(report)]
        held_out = {"validation": validation, "test": test}
        for split, rows in held_out.items():
            if not rows:
                continue
            lists, _ = fitter.encode(split, Table.of((row[2], row[3][0]) for row in rows))
            self._store(arrays, split, lists)
        report |= {"overlong": fitter.report, "vocab_size": len(tokenizer)}
        report["commonest_answer"] = {"test": self._score_commonest(train, test)}
        return tokenizer, Entry(arrays, {**held_out, "report": report})

    def _score_commonest(self, train: Table, rows: Sequence[HeldOut]) -> float:
        """The main metric of the answer that each task's train has most often."""
        counts: dict[str, Counter[str]] = {}
        for answer, number in zip(train.column(1), train.column(2), strict=True):
            counts.setdefault(self._recipe.data.tasks[int(number)], Counter())[answer] += 1
        right: dict[str, list[bool]] = {}
        for row in rows:
            said = counts[row[0]].most_common(1)[0][0] if row[0] in counts else ""
            right.setdefault(row[0], []).append(self._is_right(*row, said))
        return float(100 * np.mean([np.mean(each) for each in right.values()]))

    def _read_train(self, report: dict[str, Any], validation: list[HeldOut]) -> Iterator[Fields]:
        """Prompt, answer and the number of the task, of every example but those of validation.

        Prompts that are equal, and those about one paragraph, stay on one side of the cut.
        """
        held_out = self._recipe.data.holdout
        share = held_out["validation"] if isinstance(held_out, dict) else held_out
        for number, name in enumerate(self._recipe.data.tasks):
            member = self._members[name]
            rows = self._rows_of(name, member.held_out[0], "train", report)
            homes = np.zeros(len(rows), np.int64)
            if share:
                keys = b"".join(hash_text(_document(*row[:2]) or row[2]) for row, _ in rows)
                homes = cut_splits(keys, ["validation"], share)
                report["cut_from_train"] = {"splits": ["validation"], "share": share}
            for (row, is_example), home in zip(rows, homes, strict=True):
                _, group, prompt, answers = row
                if home:
                    half = member.held_out[len(validation) % len(member.held_out)]  # both of MNLI's
                    half = half if len(member.held_out) > 1 else ""
                    validation.append((name, group or half, prompt, answers))
                elif is_example:
                    yield from ((prompt, answer, str(number)) for answer in answers)
            report["examples"][f"{name} train"] = sum(
                is_example and not home for (_, is_example), home in zip(rows, homes, strict=True)
            )

    def _read_held_out(self, report: dict[str, Any]) -> Iterator[HeldOut]:
        """Task, group, prompt and answers of each example; a group keeps MNLI's halves apart."""
        for name in self._recipe.data.tasks:
            for held_out in self._members[name].held_out:
                half = held_out if len(self._members[name].held_out) > 1 else ""
                rows = self._rows_of(name, held_out, "test", report)
                for (_, group, prompt, answers), _ in rows:
                    yield name, group or half, prompt, answers
                report["examples"][f"{name} {held_out}"] = len(rows)

    def _rows_of(
        self, name: str, held_out: str, split: str, report: dict[str, Any]
    ) -> list[tuple[HeldOut, bool]]:
        """What a set of rows asks, and whether each may be trained on."""
        member, faults = self._members[name], Faults(self._recipe.data.skip_bad)
        source = self._sources[f"{name} {held_out}"]

        def read(row: Row) -> tuple[HeldOut, bool]:
            asked = name, member.group(row), member.prompt(row), member.references(row)
            return asked, member.trains_on(row)

        if split not in source.splits:
            raise UserError(
                f"{source.origin} has no '{held_out}' split; {name} is scored on it: add the file, "
                f"or leave {name} out of data.tasks"
            )
        found = list(read_rows(source.splits[split](), read, faults))
        key = f"{name} {split if split == 'train' else held_out}"
        report["origin"][name] = source.origin
        if faults.counts:
            report["bad_rows"][key] = dict(faults.counts)
        return found


def judge(member: Member, rows: list[tuple[str, str, list[str], str]]) -> dict[str, Array]:
    """Statistics of a task's official metrics from rows of group, prompt, answers and output."""
    groups, _, answers, outputs = (list(column) for column in zip(*rows, strict=True))
    if member.name in ("record", "squad"):
        return glue.record_statistics(outputs, answers)
    pairs = [(text, each[0]) for text, each in zip(outputs, answers, strict=True)]
    if member.name == "dpr":
        return {"accuracy": accuracy_statistics([a == b for a, b in pairs], [True] * len(pairs))}
    if member.names_referents:
        named = [int(same_referent(*pair)) for pair in pairs]
        return {"accuracy": accuracy_statistics(named, [int(group) for group in groups])}
    if member.name == "stsb":
        numbers = [number_of(text) for text in outputs]
        targets = [float(answer[0]) for answer in answers]
        return {
            "pearson": labels.pearson_statistics(numbers, targets),
            "spearman": labels.spearman_statistics(numbers, targets),
        }
    known = {answer: number for number, answer in enumerate(member.answers)}
    predictions = [known.get(text, labels.NO_LABEL) for text in outputs]
    meant = [known[answer[0]] for answer in answers]
    if member.name == "multirc":
        return glue.multirc_statistics(predictions, meant, groups)
    if member.name == "mnli":
        both = list(zip(predictions, meant, groups, strict=True))
        return {
            f"accuracy{half}": accuracy_statistics(
                *zip(*((p, t) for p, t, group in both if group.endswith(half)), strict=True)
            )
            for half in ("_matched", "_mismatched")
        }
    confusion = labels.confusion_statistics(predictions, meant, num_labels=len(member.answers))
    accuracy = accuracy_statistics(predictions, meant)
    names = glue.SUITES[member.suite][member.name]
    return {name: accuracy if name == "accuracy" else confusion for name in names}


def _open(recipe: Recipe, members: dict[str, Member]) -> dict[str, Source]:
    """The source of each task, by its name and held-out split."""
    tasks = recipe.data.tasks
    unknown = [name for name in tasks if name not in members]
    if unknown or not tasks:
        raise UserError(
            f"data.tasks has {listed(unknown) or 'no task'}; choose from {', '.join(members)}"
        )
    opened = {}
    for name in tasks:
        for held_out in members[name].held_out:
            try:
                source = open_source(members[name].data(recipe.data, held_out), data_folder())
            except UserError as error:
                raise UserError(f"{error}; or leave {name} out of data.tasks") from None
            opened[f"{name} {held_out}"] = source
    return opened


def _document(name: str, group: str) -> str:
    """What examples have in common that are about one paragraph; empty where each is its own."""
    return f"{name} {group.split()[0]}" if name == "superglue_multirc" else ""


build = TextToText
