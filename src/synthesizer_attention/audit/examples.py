"""The metrics of an audit, and the user's rows as a pretrained model reads them.

metric      rows                      measured per example
loss        texts, or pairs for an    the model's own loss: masked, next or answer token, in
            encoder-decoder           nats a token
accuracy    texts or pairs, a label   whether the class is right, in percent
spearman    pairs and a score         cosine of the mean embeddings, ranked as the scores are
agreement   texts                     cosine of the output and the original's, in percent

A new metric is a subclass of Metric, and its name in METRICS.
"""

import math
import random
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from synthesizer_attention.audit import load
from synthesizer_attention.audit.converted import is_own
from synthesizer_attention.data.batch import Batch
from synthesizer_attention.data.columns import NAMES, BadRow, check_utf8
from synthesizer_attention.data.files import File, Row
from synthesizer_attention.data.sources import data_folder
from synthesizer_attention.errors import UserError, listed
from synthesizer_attention.metrics.labels import (
    Statistics,
    Total,
    correlation_from_statistics,
    percent_from_statistics,
    spearman_statistics,
)
from synthesizer_attention.run.run import Run
from synthesizer_attention.tasks.task import Task, build_task

IGNORED = -100
MASKED_SHARE = 0.15  # of a text's tokens, hidden from a masked language model
BATCH_TOKENS = 4096
BATCH_PADDING = 64  # tokens of padding, at most, in a batch
_BATCH_LOGITS = 2**28  # of a language model: 1 GiB in float32
Rows = list[dict[str, list[int]]]


class Metric:
    """A metric: the models and rows that have it, and its value.

    Outputs are (rows, width), one row per text that the model reads; statistics (examples,
    columns), from whose sum over any examples the value follows.
    """

    unit: str
    models: tuple[str, ...] = ("",)  # how the names of their classes end
    called = "any model"
    higher_is_better = True
    column: tuple[str, ...] = ()  # names of the column that is right
    has_classes = False  # what is right is a class of the model
    has_pairs = False  # the two texts of a row are read apart, and compared
    has_tokens = False  # what is right are tokens: labels among the inputs

    def target(self, given: Any, config: Any) -> Any:  # noqa: ANN401
        """The target of an example, from the cell of a row."""
        return given

    def outputs(self, output: Any, inputs: dict[str, Tensor], *, causal: bool) -> Tensor:  # noqa: ANN401
        """Reduce a forward pass to one row per text: by default the mean of its last states."""
        states: Tensor | None = getattr(output, "last_hidden_state", None)
        states = output.logits if states is None else states
        assert states is not None
        mask = inputs.get("attention_mask")
        if states.dim() == 2:
            return states
        if mask is None or mask.shape[1] != states.shape[1]:  # images, sounds, one first token
            return states.flatten(1, -2).mean(1)
        return torch.einsum("btd,bt->bd", states, mask.to(states.dtype)) / mask.sum(1, keepdim=True)

    def statistics(self, outputs: Tensor, original: Tensor, targets: Sequence[Any]) -> Statistics:
        """Columns (right, 1), whose sum gives a percentage."""
        raise NotImplementedError

    def value(self, total: Total) -> float:
        """The metric from the sum of statistics."""
        return percent_from_statistics(total)

    def moved(self, now: Tensor, then: Tensor) -> NDArray[np.float64]:
        """The distance of each output from the original's."""
        return (1 - torch.cosine_similarity(now, then)).double().numpy()

    def shown(self, outputs: Tensor, original: Tensor, place: int) -> float:
        """The number of one example that the page shows."""
        row = self.statistics(outputs[place : place + 1], original[place : place + 1], [0])[0]
        return float(row[0] / row[1])


class Loss(Metric):
    """Outputs: the summed loss of an example's tokens, and how many they are."""

    unit = "nats a token"
    models, called, higher_is_better = load.LANGUAGE_MODELS, "a language model", False
    has_tokens = True

    def outputs(self, output: Any, inputs: dict[str, Tensor], *, causal: bool) -> Tensor:  # noqa: ANN401
        labels = inputs["labels"]
        if causal:  # labels move to their queries, not logits: cutting these would copy them all
            labels = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
        losses = torch.nn.functional.cross_entropy(
            output.logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED,
            reduction="none",
        ).view_as(labels)  # fmt: skip
        return torch.stack([losses.sum(1), (labels != IGNORED).sum(1).float()], 1)

    def statistics(self, outputs: Tensor, original: Tensor, targets: Sequence[Any]) -> Statistics:
        return outputs.double().numpy()

    def value(self, total: Total) -> float:
        return float(total[0] / total[1])

    def moved(self, now: Tensor, then: Tensor) -> NDArray[np.float64]:
        ours, theirs = (each.double().numpy() for each in (now, then))
        return np.asarray(ours[:, 0] / ours[:, 1] - theirs[:, 0] / theirs[:, 1])


class Accuracy(Metric):
    """Outputs: the logits of classes. They move by their Kullback-Leibler divergence."""

    unit = "points of accuracy"
    models, called = load.CLASSIFIERS, "a classifier"
    column, has_classes = NAMES["label"], True

    def target(self, given: Any, config: Any) -> int:  # noqa: ANN401
        """The model's number of a label, by its name or as it is."""
        if str(given) in config.label2id:
            return int(config.label2id[str(given)])
        if is_number(str(given)) and 0 <= float(given) < config.num_labels:
            return int(float(given))
        raise UserError(
            f"label {given!r} is none of the model's {config.num_labels} classes "
            f"({', '.join(list(config.label2id)[:5])}, ...); use its names or numbers"
        )

    def outputs(self, output: Any, inputs: dict[str, Tensor], *, causal: bool) -> Tensor:  # noqa: ANN401
        logits: Tensor = output.logits
        return logits

    def statistics(self, outputs: Tensor, original: Tensor, targets: Sequence[Any]) -> Statistics:
        right = outputs.argmax(-1) == torch.tensor(targets)
        return np.column_stack([right.double().numpy(), np.ones(len(right))])

    def moved(self, now: Tensor, then: Tensor) -> NDArray[np.float64]:
        now, then = now.log_softmax(-1), then.log_softmax(-1)
        return (then.exp() * (then - now)).sum(-1).double().numpy()

    def shown(self, outputs: Tensor, original: Tensor, place: int) -> float:
        return int(outputs[place].argmax())


class Spearman(Metric):
    """Outputs: mean embeddings, two rows a pair."""

    unit = "points of Spearman's correlation"
    column, has_pairs = ("score", "similarity", "similarity_score", "label"), True

    def target(self, given: Any, config: Any) -> float:  # noqa: ANN401
        """How similar a pair is."""
        if not is_number(str(given)) or not math.isfinite(float(given)):
            raise UserError(
                f"score {given!r} is not a number; give one for every pair, or leave the row out"
            )
        return float(given)

    def statistics(self, outputs: Tensor, original: Tensor, targets: Sequence[Any]) -> Statistics:
        cosines = torch.cosine_similarity(outputs[0::2], outputs[1::2]).tolist()
        return spearman_statistics(cosines, list(targets))

    def value(self, total: Total) -> float:
        return correlation_from_statistics(total)

    def shown(self, outputs: Tensor, original: Tensor, place: int) -> float:
        first, second = outputs[2 * place : 2 * place + 2]
        return float(torch.cosine_similarity(first, second, dim=0))


class Agreement(Metric):
    """Outputs: mean states, or logits."""

    unit = "points of agreement with the original"

    def statistics(self, outputs: Tensor, original: Tensor, targets: Sequence[Any]) -> Statistics:
        cosines = torch.cosine_similarity(outputs, original).double().numpy()
        return np.column_stack([cosines, np.ones(len(cosines))])


METRICS: dict[str, Metric] = {
    "loss": Loss(), "accuracy": Accuracy(), "spearman": Spearman(), "agreement": Agreement(),
}  # fmt: skip


def choose_metric(asked: str | None, model: PreTrainedModel) -> str:
    """The metric that was asked for, or the first that is made for such models.

    One that the model has no outputs for is refused.
    """
    name = type(model).__name__
    if asked is None:
        made = [key for key, m in METRICS.items() if m.called != Metric.called]
        return next((m for m in made if name.endswith(METRICS[m].models)), "agreement")
    if METRICS[asked].has_pairs and load.what_is_read(model) != load.TEXTS:
        raise UserError(
            f"--metric {asked} compares pairs of texts, and a {name} reads "
            f"{load.what_is_read(model)}; choose --metric agreement"
        )
    if not name.endswith(METRICS[asked].models):
        raise UserError(
            f"--metric {asked} needs {METRICS[asked].called}, and the model is a {name}; "
            "choose --metric agreement, or spearman with pairs and a score"
        )
    return asked


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Example:
    """One row: a text or a pair, and what is right; or a file, with its name as the text."""

    texts: tuple[str, ...]
    target: Any = None
    file: Path | bytes | None = None


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples encoded for one model and one metric."""

    metric: str
    batches: Sequence[tuple[list[int], dict[str, Tensor]]]  # which examples, and the model's inputs
    targets: list[Any]
    num_cut: int  # texts cut at max_len
    texts: list[tuple[str, ...]]
    drawn_from: int = 0  # rows or windows that there were to draw from

    def __len__(self) -> int:
        return sum(len(chosen) for chosen, _ in self.batches) // (
            1 + METRICS[self.metric].has_pairs
        )

    def tensors(self) -> Iterator[Tensor]:
        """All that the model reads, and what it is measured by."""
        for _, inputs in self.batches:
            yield from inputs.values()
        if METRICS[self.metric].column:
            yield torch.tensor(self.targets)

    def inputs(self, model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
        """The inputs of each batch; a decoder, if there is one, reads the labels."""
        for _, inputs in self.batches:
            yield _readable(model, inputs)

    def probe(self, model: PreTrainedModel) -> dict[str, Tensor]:
        """One batch whose encoder and decoder lengths differ."""
        _, inputs = self.batches[-1]
        width = inputs["input_ids"].shape[1] if "input_ids" in inputs else 0
        if "labels" in inputs and inputs["labels"].shape[1] == width and width > 1:
            inputs = inputs | {"labels": inputs["labels"][:, 1:].contiguous()}
        return _readable(model, inputs)

    @torch.no_grad()
    def run(self, model: PreTrainedModel, forward: Callable[..., Any] | None = None) -> Tensor:
        """The outputs of every example, (rows, width); `forward` runs the model on a batch."""
        metric, causal, parts = METRICS[self.metric], load.is_causal(model), dict[int, Tensor]()
        for chosen, inputs in self.batches:
            output = (forward or model)(**_readable(model, inputs))
            output = metric.outputs(output, inputs, causal=causal)
            parts.update(zip(chosen, output.float(), strict=True))
        return torch.stack([parts[place] for place in range(len(parts))])

    def statistics(self, outputs: Tensor, original: Tensor) -> Statistics:
        """The statistics of every example; the metric's value follows from their sum."""
        return METRICS[self.metric].statistics(outputs, original, self.targets)


def _readable(model: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inputs of a forward pass: an encoder-decoder needs tokens on both sides."""
    if not load.reads_targets(model):
        return {key: value for key, value in inputs.items() if key != "labels"}
    if "labels" in inputs:
        return inputs
    shape = len(inputs[model.main_input_name]), 1
    return inputs | {"decoder_input_ids": torch.full(shape, load.decoder_start(model))}


# a file's rows


def found_path(path: Path, what: str) -> Path:
    """A path as it is, or below the folder of local data."""
    local = data_folder()
    if not path.exists() and local is not None and (local / path).exists():
        path = local / path
    if not path.exists():
        raise UserError(f"{path} does not exist; give {what}")
    return path


def rows_of(path: Path, what: str) -> list[Row]:
    """The rows of a file that can be read; a file without any is refused."""
    rows = [row for row in File(path).rows(None) if not row.fault]
    if not rows:
        raise UserError(f"{path} holds no rows; expected {what}")
    return rows


def read_examples(path: Path, metric: str) -> list[Example]:
    """The rows of a file that the metric can use."""
    path = found_path(path, "a file of texts")
    rows = rows_of(path, "texts, one a line or row")
    texts, target = _columns(rows[:100], metric, path)
    for row in rows:
        try:
            for name in texts:
                check_utf8(str(row.fields.get(name)), name)
        except BadRow as error:
            raise UserError(f"{path}, row {row.number}: {error}; save the file as UTF-8") from None
    return [
        Example(tuple(str(row.fields[name]) for name in texts), row.fields.get(target))
        for row in rows
        if all(str(row.fields.get(name) or "").strip() for name in texts)
    ]


def _columns(rows: Sequence[Row], metric: str, path: Path) -> tuple[list[str], str]:
    """The columns of texts, and of what is right."""
    names, how = list(rows[0].fields), METRICS[metric]
    if how.has_tokens:  # a column named target is a text here, and no label
        sides = [
            next((name for name in names if name.lower() in NAMES[side]), "")
            for side in ("source", "target")
        ]
        if all(sides):
            return sides, ""
    known = how.column or NAMES["label"]
    target = next((name for name in names if name.lower() in known), "")
    texts = [
        name
        for name in names
        if name != target
        and all(isinstance(row.fields.get(name), str) for row in rows)
        and not all(is_number(row.fields[name]) for row in rows)
    ]
    if how.column and not target:
        raise UserError(
            f"--metric {metric} needs a column named {', '.join(known[:3])} or the like, and "
            f"{path} has {listed(names)}; rename the column, or choose another metric"
        )
    needed = 1 + how.has_pairs
    if len(texts) < needed:
        raise UserError(
            f"--metric {metric} needs {needed} column{'s' * (needed > 1)} of text, and {path} has "
            f"{len(texts)} among {listed(names)}; give such a file, or choose another metric"
        )
    return texts[:2], target


# texts as tokens


def draw(count: int, limit: int | None, seed: int) -> list[int]:
    """Which of so many are taken: all in their order, or some at random; fewer are among more."""
    if limit is None or limit >= count:
        return list(range(count))
    return random.Random(seed).sample(range(count), count)[:limit]


def encode(
    examples: Sequence[Example],
    metric: str,
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    max_len: int,
    limit: int | None = None,
    seed: int = 0,
) -> Examples:
    """Tokens in batches of similar length; the first `limit` rows, or so many windows drawn."""
    how, drawn_from, num_cut = METRICS[metric], len(examples), 0
    if how.has_tokens and load.is_causal(model):
        windows = _windows(examples, model, tokenizer, max_len)
        drawn_from = len(windows)
        chosen_ids = [windows[place].tolist() for place in draw(drawn_from, limit, seed)]
        rows: Rows = [{"input_ids": ids, "labels": ids} for ids in chosen_ids]
        examples = [Example((tokenizer.decode(ids),)) for ids in chosen_ids]
    else:
        examples = examples[:limit]
        rows, num_cut = encode_rows(examples, metric, model, tokenizer, max_len)
    largest = max(max(row["input_ids"], default=0) for row in rows)
    try:
        known = getattr(model.get_input_embeddings(), "num_embeddings", largest + 1)
    except NotImplementedError:  # a model of two towers
        known = largest + 1
    if largest >= known:
        raise UserError(
            f"the tokenizer gives token {largest} and the model has embeddings for {known}; put "
            "the tokenizer that belongs to the model into its folder"
        )
    lengths = [len(row["input_ids"]) for row in rows]
    most = min(BATCH_TOKENS, _BATCH_LOGITS // known) if how.has_tokens else BATCH_TOKENS
    groups: list[list[int]] = [[]]
    for place in sorted(range(len(rows)), key=lengths.__getitem__):
        tokens = lengths[place] * (len(groups[-1]) + 1)
        padding = tokens - lengths[place] - sum(lengths[other] for other in groups[-1])
        if groups[-1] and (tokens > most or padding > BATCH_PADDING):
            groups.append([])
        groups[-1].append(place)
    batches = [(chosen, pad([rows[i] for i in chosen], tokenizer)) for chosen in groups]
    targets = [how.target(example.target, model.config) for example in examples]
    return Examples(metric, batches, targets, num_cut, [e.texts for e in examples], drawn_from)


def _windows(
    examples: Sequence[Example], model: PreTrainedModel, tokenizer: Tokenizer, max_len: int
) -> Tensor:
    """One stream of all texts, cut into windows that each begin as the model's texts do."""
    first = model.config.bos_token_id if is_own(model) else tokenizer.bos_token_id
    start = [] if first is None else [first]
    stream = array("q")
    for example in examples:
        text = example.texts[0] if example.texts[0].endswith("\n") else example.texts[0] + "\n"
        stream.extend(tokenizer(text, add_special_tokens=False)["input_ids"])
    size = max_len - len(start)
    if len(stream) < size:
        raise UserError(
            f"the texts are shorter than one window of {max_len} tokens; give more text, or a "
            "smaller --max-len"
        )
    count = len(stream) // size
    windows = torch.frombuffer(stream, dtype=torch.int64)[: count * size].view(count, size)
    return torch.cat([windows.new_tensor(start).expand(count, -1), windows], 1)


def encode_rows(
    examples: Sequence[Example], metric: str, model: PreTrainedModel, tokenizer: Tokenizer,
    max_len: int,
) -> tuple[Rows, int]:  # fmt: skip
    """One row per text; the two texts of a pair to be compared are rows of their own."""
    how, parts = METRICS[metric], [example.texts for example in examples]
    if how.has_pairs:
        parts = [(text,) for example in examples for text in example.texts]
    elif load.reads_targets(model):
        parts = [texts[:1] for texts in parts]
    if not parts:
        raise UserError("every row of the data is empty; give texts")
    rows: Rows = []
    num_cut = 0
    for place, part in enumerate(parts):
        row = tokenizer(*part, return_special_tokens_mask=True)
        if len(row["input_ids"]) > max_len:
            num_cut += 1
            row = tokenizer(
                *part, return_special_tokens_mask=True, truncation=True, max_length=max_len
            )
        special = row.pop("special_tokens_mask")
        rows.append(dict(row))
        if how.has_tokens and load.reads_targets(model):
            rows[-1]["labels"] = target_tokens(examples[place], tokenizer, max_len)
        elif how.has_tokens:
            rows[-1] |= _masked(rows[-1]["input_ids"], special, tokenizer, place)
    return rows, num_cut


def target_tokens(example: Example, tokenizer: Tokenizer, max_len: int | None) -> list[int]:
    """The tokens that an encoder-decoder's decoder has to write."""
    if len(example.texts) < 2:
        raise UserError(
            "an encoder-decoder needs two columns of text, a source and its target, and the data "
            "have one; give a .csv, .tsv or .jsonl file with both"
        )
    cut = max_len is not None
    tokens = tokenizer(text_target=example.texts[1], truncation=cut, max_length=max_len)
    found: list[int] = tokens["input_ids"]
    return found


def _masked(
    ids: list[int], special: list[int], tokenizer: Tokenizer, seed: int
) -> dict[str, list[int]]:
    """Hide a fixed random share of a text's tokens."""
    if tokenizer.mask_token_id is None:
        raise UserError(
            "--metric loss needs a language model, and this model's tokenizer has no mask token; "
            "choose --metric agreement, or accuracy or spearman with a column that is right"
        )
    plain = [place for place, is_special in enumerate(special) if not is_special]
    count = max(1, round(MASKED_SHARE * len(plain)))
    hidden = set(random.Random(seed).sample(plain, min(count, len(plain))))
    return {
        "input_ids": [tokenizer.mask_token_id if i in hidden else t for i, t in enumerate(ids)],
        "labels": [t if i in hidden else IGNORED for i, t in enumerate(ids)],
    }


def pad(rows: Rows, tokenizer: Tokenizer) -> dict[str, Tensor]:
    """One batch of rows, padded on the right."""
    padding = tokenizer.pad_token_id or 0
    fill = {"input_ids": padding, "decoder_input_ids": padding, "labels": IGNORED}
    for row in rows:
        for side in ("", "decoder_"):
            if f"{side}input_ids" in row:
                row.setdefault(f"{side}attention_mask", [1] * len(row[f"{side}input_ids"]))
    batch = {}
    for key in rows[0]:
        longest = max(len(row[key]) for row in rows)
        padded = [row[key] + [fill.get(key, 0)] * (longest - len(row[key])) for row in rows]
        batch[key] = torch.tensor(padded)
    return batch


# rows to tune on


@dataclass(frozen=True)
class TuningRows:
    """Rows to tune on."""

    lengths: Sequence[int]  # in tokens; rows of similar length make a batch
    batch: Callable[[Sequence[int]], dict[str, Tensor]]  # the inputs of chosen rows


def token_rows(rows: Rows, tokenizer: Tokenizer) -> TuningRows:
    """Texts to tune on."""
    lengths = [len(row["input_ids"]) for row in rows]
    return TuningRows(lengths, lambda chosen: pad([dict(rows[i]) for i in chosen], tokenizer))


def tuning_rows(
    examples: Sequence[Example], model: PreTrainedModel, tokenizer: Tokenizer, max_len: int
) -> Rows:
    """Every text as a row of its own, cut at max_len; of a causal language model, windows.

    An encoder-decoder's row is a text and, as its decoder reads it, the target.
    """
    if load.reads_targets(model):
        pairs, _ = encode_rows(examples, "loss", model, tokenizer, max_len)
        return [decoder_row(row["input_ids"], row["labels"], model) for row in pairs]
    alone = [Example((text,)) for example in examples for text in example.texts]
    if load.is_causal(model):
        windows = _windows(alone, model, tokenizer, max_len).tolist()
        return [{"input_ids": window} for window in windows]
    return encode_rows(alone, "agreement", model, tokenizer, max_len)[0]


def decoder_row(
    source: list[int], target: list[int], model: PreTrainedModel
) -> dict[str, list[int]]:
    """The inputs of an encoder and a decoder, which reads the target behind the start token."""
    return {"input_ids": source, "decoder_input_ids": [load.decoder_start(model), *target[:-1]]}


class RunData:
    """Examples of one run's splits."""

    def __init__(self, run: Run, metric: str) -> None:
        if METRICS[metric].has_pairs:
            raise UserError(
                f"--metric {metric} needs pairs and a score, which a run's own data have not; give "
                "a file of them as DATA"
            )
        self.recipe, self.metric = run.recipe(), metric
        self.task: Task = build_task(self.recipe, tokenizer_dir=run.model)

    def fitting(self, limit: int) -> Examples:
        """The first examples that training saw, which drew them."""
        return self._examples(self.task.train_batches(), set(range(limit)))

    def judging(self, limit: int | None, seed: int) -> Examples:
        """Examples of the test split: all, or some at random."""
        batches = list(self.task.batches("test"))
        count = sum(len(batch.inputs["input_ids"]) for batch in batches)
        found = self._examples(batches, set(draw(count, limit, seed)))
        return replace(found, drawn_from=count)

    def rows(self, model: PreTrainedModel) -> Rows:
        """Train's examples to tune on: of an encoder-decoder with targets, of others without."""
        found: Rows = []
        for batch in self.task.batches("train"):
            ids, mask = batch.inputs["input_ids"], batch.inputs.get("attention_mask")
            real = [len(row) for row in ids] if mask is None else mask.sum(1).tolist()
            sources = [row[:n].tolist() for row, n in zip(ids, real, strict=True)]
            if not load.reads_targets(model):
                found += [{"input_ids": source} for source in sources]
                continue
            targets = [row[row != IGNORED].tolist() for row in batch.inputs["labels"]]
            both = zip(sources, targets, strict=True)
            found += [decoder_row(source, target, model) for source, target in both]
        return found

    def _examples(self, batches: Iterable[Batch], wanted: set[int]) -> Examples:
        """The examples whose places, counted over all batches, are wanted."""
        kept: list[tuple[list[int], dict[str, Tensor]]] = []
        targets: list[Any] = []
        texts: list[tuple[str, ...]] = []
        tokenizer, seen = self.task.tokenizer, 0
        for batch in batches:
            size = len(batch.inputs["input_ids"])
            rows = [row for row in range(size) if seen + row in wanted]
            seen += size
            if not rows:
                continue
            inputs = {key: value[rows] for key, value in batch.inputs.items()}
            labels = inputs["labels"]
            if not METRICS[self.metric].has_tokens:  # a label is right or wrong, and not read
                del inputs["labels"]
            first, sides = len(texts), [inputs["input_ids"]]
            if self.task.kind == "encoder_decoder":
                sides.append(labels.masked_fill(labels == IGNORED, tokenizer.pad_token_id))
            decoded = [tokenizer.batch_decode(side, skip_special_tokens=True) for side in sides]
            texts += zip(*decoded, strict=True)
            targets += labels.tolist() if labels.dim() == 1 else [None] * len(labels)
            kept.append((list(range(first, len(texts))), inputs))
            if len(texts) == len(wanted):
                break
        return Examples(self.metric, kept, targets, 0, texts)
