"""The user's rows, and what a pretrained model makes of them.

metric      rows                      what is measured per example
loss        texts, or pairs for an    the model's own loss: masked, next or answer token, in
            encoder-decoder           nats a token
accuracy    texts or pairs, a label   whether the class is right, in percent
spearman    pairs and a score         cosine of the mean embeddings, ranked as the scores are
agreement   texts                     cosine of the output and the original's, in percent
"""

import math
import random
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from synthesizer_attention.audit.converted import is_own
from synthesizer_attention.audit.load import (
    CLASSIFIERS,
    IMAGES,
    LANGUAGE_MODELS,
    SOUNDS,
    TEXTS,
    decoder_start,
    is_causal,
    reads_targets,
    what_is_read,
)
from synthesizer_attention.data.batch import Batch
from synthesizer_attention.data.columns import NAMES, BadRow, check_utf8
from synthesizer_attention.data.files import File, Row
from synthesizer_attention.data.sources import data_folder
from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.labels import (
    Statistics,
    Total,
    correlation_from_statistics,
    percent_from_statistics,
    spearman_statistics,
)
from synthesizer_attention.run.run import Run
from synthesizer_attention.tasks.task import Task, build_task
from synthesizer_attention.untrusted import listed

IGNORED = -100
_SCORE_NAMES = ("score", "similarity", "similarity_score", "label")
MASKED_SHARE = 0.15  # of a text's tokens, hidden from a masked language model
BATCH_TOKENS = 4096
_BATCH_LOGITS = 2**28  # of a language model: 1 GiB in float32


@dataclass(frozen=True)
class Metric:
    """What is said of a metric, and which models have it."""

    unit: str
    tasks: Mapping[str, str]  # as the hub calls them, by what is read
    models: tuple[str, ...] = ("",)  # how the names of their classes end
    called: str = "any model"
    higher_is_better: bool = True


_WRITTEN = {IMAGES: "image-to-text", SOUNDS: "automatic-speech-recognition"}
_CLASSES = {IMAGES: "image-classification", SOUNDS: "audio-classification"}
METRICS = {
    "loss": Metric(
        "nats a token", {TEXTS: "text-generation", **_WRITTEN}, LANGUAGE_MODELS,
        "a language model", higher_is_better=False,
    ),
    "accuracy": Metric(
        "points of accuracy", {TEXTS: "text-classification", **_CLASSES}, CLASSIFIERS,
        "a classifier",
    ),
    "spearman": Metric("points of Spearman's correlation", {TEXTS: "sentence-similarity"}),
    "agreement": Metric("points of agreement with the original", {TEXTS: "feature-extraction"}),
}  # fmt: skip


def guess_metric(model: PreTrainedModel) -> str:
    """What fits a model whose user named no metric."""
    name = type(model).__name__
    return next((m for m in ("loss", "accuracy") if name.endswith(METRICS[m].models)), "agreement")


def check_metric(metric: str, model: PreTrainedModel) -> None:
    """Refuse a metric that the model has no outputs for."""
    name, fits = type(model).__name__, METRICS[metric]
    if metric == "spearman" and what_is_read(model) != TEXTS:
        raise UserError(
            f"--metric spearman compares pairs of texts, and a {name} reads {what_is_read(model)}; "
            "choose --metric agreement"
        )
    if not name.endswith(fits.models):
        raise UserError(
            f"--metric {metric} needs {fits.called}, and the model is a {name}; "
            "choose --metric agreement, or spearman with pairs and a score"
        )


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
        return sum(len(chosen) for chosen, _ in self.batches) // (1 + (self.metric == "spearman"))

    def tensors(self) -> Iterator[Tensor]:
        """All that the model reads, and what it is measured by."""
        for _, inputs in self.batches:
            yield from inputs.values()
        if self.metric in ("accuracy", "spearman"):
            yield torch.tensor(self.targets)

    def inputs(self, model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
        """What the model reads, batch by batch; its decoder, if it has one, reads the labels."""
        for _, inputs in self.batches:
            yield _readable(model, inputs)

    def probe(self, model: PreTrainedModel) -> dict[str, Tensor]:
        """One batch whose encoder and decoder lengths differ."""
        _, inputs = self.batches[-1]
        width = inputs["input_ids"].shape[1] if "input_ids" in inputs else 0
        if "labels" in inputs and inputs["labels"].shape[1] == width and width > 1:
            inputs = inputs | {"labels": inputs["labels"][:, 1:].contiguous()}
        return _readable(model, inputs)

    def value(self, total: Total) -> float:
        """The metric from the sum of per-example statistics."""
        if self.metric == "loss":
            return float(total[0] / total[1])
        if self.metric == "spearman":
            return correlation_from_statistics(total)
        return percent_from_statistics(total)

    def shown(self, outcome: "Outcome", place: int) -> float:
        """What a reader compares of one example: its cosine, class, loss or agreement."""
        if self.metric == "spearman":
            pair = outcome.outputs[2 * place : 2 * place + 2]
            return float(torch.cosine_similarity(pair[0], pair[1], dim=0))
        if self.metric == "accuracy":
            return int(outcome.outputs[place].argmax())
        return float(outcome.statistics[place, 0] / outcome.statistics[place, 1])


@dataclass(frozen=True)
class Outcome:
    """What a model made of the examples."""

    statistics: Statistics  # (examples, columns)
    outputs: Tensor  # (examples, width): compared to see how far they moved

    def moved_from(self, original: "Outcome", metric: str) -> NDArray[np.float64]:
        """How far each example moved: nats a token, Kullback-Leibler of classes, or 1 - cosine."""
        if metric == "loss":
            ours, theirs = (o.statistics[:, 0] / o.statistics[:, 1] for o in (self, original))
            return np.asarray(ours - theirs)
        if metric == "accuracy":
            now, then = self.outputs.log_softmax(-1), original.outputs.log_softmax(-1)
            return (then.exp() * (then - now)).sum(-1).double().numpy()
        return (1 - torch.cosine_similarity(self.outputs, original.outputs)).double().numpy()


def draw(count: int, limit: int | None, seed: int) -> list[int]:
    """Which of so many are taken: all in their order, or some at random; fewer are among more."""
    if limit is None or limit >= count:
        return list(range(count))
    return random.Random(seed).sample(range(count), count)[:limit]


def found_path(path: Path, what: str) -> Path:
    """A path as it is, or below the folder of local data."""
    local = data_folder()
    if not path.exists() and local is not None and (local / path).exists():
        path = local / path
    if not path.exists():
        raise UserError(f"{path} does not exist; give {what}")
    return path


def read_examples(path: Path, metric: str) -> list[Example]:
    """The rows of a file that the metric can use."""
    path = found_path(path, "a file of texts")
    rows = [row for row in File(path).rows(None) if not row.fault]
    if not rows:
        raise UserError(f"{path} holds no rows; expected texts, one a line or row")
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
    names = list(rows[0].fields)
    if metric == "loss":  # a column named target is a text here, and no label
        sides = [
            next((name for name in names if name.lower() in NAMES[side]), "")
            for side in ("source", "target")
        ]
        if all(sides):
            return sides, ""
    known = _SCORE_NAMES if metric == "spearman" else NAMES["label"]
    target = next((name for name in names if name.lower() in known), "")
    texts = [
        name
        for name in names
        if name != target
        and all(isinstance(row.fields.get(name), str) for row in rows)
        and not all(is_number(row.fields[name]) for row in rows)
    ]
    if metric in ("accuracy", "spearman") and not target:
        raise UserError(
            f"--metric {metric} needs a column named {', '.join(known[:3])} or the like, and "
            f"{path} has {listed(names)}; rename the column, or choose another metric"
        )
    needed = 2 if metric == "spearman" else 1
    if len(texts) < needed:
        raise UserError(
            f"--metric {metric} needs {needed} column{'s' * (needed > 1)} of text, and {path} has "
            f"{len(texts)} among {listed(names)}; give such a file, or choose another metric"
        )
    return texts[:2], target


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


@torch.no_grad()
def run(model: PreTrainedModel, examples: Examples) -> Outcome:
    """Let the model read every example."""
    read: dict[str, Callable[[Any, dict[str, Tensor]], Tensor]] = {
        "loss": partial(_token_losses, causal=is_causal(model)),
        "accuracy": lambda output, _: output.logits,
    }
    parts: dict[int, Tensor] = {}
    for chosen, inputs in examples.batches:
        output = read.get(examples.metric, _pooled)(model(**_readable(model, inputs)), inputs)
        parts.update(zip(chosen, output.float(), strict=True))
    outputs = torch.stack([parts[place] for place in range(len(parts))])
    return Outcome(_statistics(outputs, examples), outputs)


def _readable(model: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inputs of a forward pass: an encoder-decoder needs tokens on both sides."""
    if not reads_targets(model):
        return {key: value for key, value in inputs.items() if key != "labels"}
    if "labels" in inputs:
        return inputs
    shape = len(inputs[model.main_input_name]), 1
    return inputs | {"decoder_input_ids": torch.full(shape, decoder_start(model))}


def _token_losses(
    output: Any, inputs: dict[str, Tensor], *, causal: bool  # noqa: ANN401
) -> Tensor:  # fmt: skip
    """(B, 2): the summed loss of an example's tokens, and how many they are."""
    labels = inputs["labels"]
    if causal:  # labels move to their queries, not logits: cutting these would copy them all
        labels = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    losses = torch.nn.functional.cross_entropy(
        output.logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED,
        reduction="none",
    ).view_as(labels)  # fmt: skip
    return torch.stack([losses.sum(1), (labels != IGNORED).sum(1).float()], 1)


def _pooled(output: Any, inputs: dict[str, Tensor]) -> Tensor:  # noqa: ANN401
    """The mean of the last hidden states, or the logits, over real tokens."""
    states = getattr(output, "last_hidden_state", None)
    states = output.logits if states is None else states
    mask = inputs.get("attention_mask")
    if states.dim() == 2:
        return states
    if mask is None or mask.shape[1] != states.shape[1]:  # of images, sounds and one first token
        return states.flatten(1, -2).mean(1)
    return torch.einsum("btd,bt->bd", states, mask.to(states.dtype)) / mask.sum(1, keepdim=True)


def _statistics(outputs: Tensor, examples: Examples) -> Statistics:
    if examples.metric == "loss":
        return outputs.double().numpy()
    if examples.metric == "spearman":
        first, second = outputs[0::2], outputs[1::2]
        cosines = torch.cosine_similarity(first, second).tolist()
        return spearman_statistics(cosines, examples.targets)
    if examples.metric == "accuracy":
        right = outputs.argmax(-1) == torch.tensor(examples.targets)
        return np.column_stack([right.double().numpy(), np.ones(len(right))])
    return np.column_stack([np.ones(len(outputs)), np.ones(len(outputs))])


def agreement_statistics(outcome: Outcome, original: Outcome) -> Statistics:
    """Columns (cosine, 1) of the outputs with the original's."""
    cosines = torch.cosine_similarity(outcome.outputs, original.outputs).double().numpy()
    return np.column_stack([cosines, np.ones(len(cosines))])


def encode(
    examples: Sequence[Example],
    metric: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    max_len: int,
    limit: int | None = None,
    seed: int = 0,
) -> Examples:
    """Tokens in batches of similar length; the first `limit` rows, or so many windows drawn."""
    drawn_from = len(examples)
    if metric == "loss" and is_causal(model):
        windows, num_cut = _windows(examples, model, tokenizer, max_len), 0
        drawn_from = len(windows)
        rows = [windows[place] for place in draw(drawn_from, limit, seed)]
        examples = [Example((tokenizer.decode(row["input_ids"]),)) for row in rows]
    else:
        examples = examples[:limit]
        rows, num_cut = _rows(examples, metric, model, tokenizer, max_len)
    if not rows:
        raise _too_short(max_len)
    largest = max(max(row["input_ids"], default=0) for row in rows)
    known = _num_embeddings(model) or largest + 1
    if largest >= known:
        raise UserError(
            f"the tokenizer gives token {largest} and the model has embeddings for {known}; put "
            "the tokenizer that belongs to the model into its folder"
        )
    targets = [example.target for example in examples]
    if metric == "accuracy":
        targets = [class_number(target, model.config) for target in targets]
    if metric == "spearman":
        targets = [_score(target) for target in targets]
    lengths = [len(row["input_ids"]) for row in rows]
    most = min(BATCH_TOKENS, _BATCH_LOGITS // known) if metric == "loss" else BATCH_TOKENS
    order = sorted(range(len(rows)), key=lengths.__getitem__)
    batches: list[tuple[list[int], dict[str, Tensor]]] = []
    chosen: list[int] = []
    for place in order:
        if chosen and lengths[place] * (len(chosen) + 1) > most:
            batches.append((chosen, pad([rows[i] for i in chosen], tokenizer)))
            chosen = []
        chosen.append(place)
    batches.append((chosen, pad([rows[i] for i in chosen], tokenizer)))
    texts = [example.texts for example in examples]
    return Examples(metric, batches, targets, num_cut, texts, drawn_from)


def _num_embeddings(model: PreTrainedModel) -> int | None:
    """How many tokens a model knows; None where it does not say."""
    try:
        return getattr(model.get_input_embeddings(), "num_embeddings", None)
    except NotImplementedError:  # a model of two towers
        return None


def tuning_rows(
    examples: Sequence[Example],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    max_len: int,
) -> list[dict[str, list[int]]]:
    """Every text as a row of its own, cut at max_len; of a causal language model, windows.

    An encoder-decoder's row is a text and, as its decoder reads it, the target.
    """
    if reads_targets(model):
        pairs = _rows(examples, "loss", model, tokenizer, max_len)[0]
        return [decoder_row(row["input_ids"], row["labels"], model) for row in pairs]
    alone = [Example((text,)) for example in examples for text in example.texts]
    if not is_causal(model):
        return _rows(alone, "agreement", model, tokenizer, max_len)[0]
    windows = _windows(alone, model, tokenizer, max_len)
    if not windows:
        raise _too_short(max_len)
    return [{"input_ids": row["input_ids"]} for row in windows]


@dataclass(frozen=True)
class Rows:
    """What is tuned on."""

    lengths: Sequence[int]  # in tokens; rows of similar length make a batch
    batch: Callable[[Sequence[int]], dict[str, Tensor]]  # the inputs of chosen rows


def token_rows(rows: Sequence[dict[str, list[int]]], tokenizer: PreTrainedTokenizerBase) -> Rows:
    """Texts to tune on."""
    lengths = [len(row["input_ids"]) for row in rows]
    return Rows(lengths, lambda chosen: pad([dict(rows[place]) for place in chosen], tokenizer))


def decoder_row(
    source: list[int], target: list[int], model: PreTrainedModel
) -> dict[str, list[int]]:
    """What both sides of an encoder-decoder read: the target is shifted behind the start token."""
    return {"input_ids": source, "decoder_input_ids": [decoder_start(model), *target[:-1]]}


def _too_short(max_len: int) -> UserError:
    return UserError(
        f"the texts are shorter than one window of {max_len} tokens; give more text, or a "
        "smaller --max-len"
    )


class _Windows(Sequence[dict[str, list[int]]]):
    """One stream of tokens, cut into windows when they are asked for."""

    def __init__(self, stream: "array[int]", size: int, start: list[int]) -> None:
        self.stream, self.size, self.start = stream, size, start

    def __len__(self) -> int:
        return len(self.stream) // self.size

    def __getitem__(self, place: Any) -> Any:  # noqa: ANN401  an int; typed as Sequence asks
        at = range(len(self))[place] * self.size
        ids = [*self.start, *self.stream[at : at + self.size]]
        return {"input_ids": ids, "labels": ids}


def _windows(
    examples: Sequence[Example],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    max_len: int,
) -> _Windows:
    """One stream of all texts, cut into windows that each begin as the model's texts do."""
    first = model.config.bos_token_id if is_own(model) else tokenizer.bos_token_id
    start = [] if first is None else [first]
    stream = array("q")
    for example in examples:
        text = example.texts[0] if example.texts[0].endswith("\n") else example.texts[0] + "\n"
        stream.extend(tokenizer(text, add_special_tokens=False)["input_ids"])
    return _Windows(stream, max_len - len(start), start)


def _rows(
    examples: Sequence[Example],
    metric: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    max_len: int,
) -> tuple[list[dict[str, list[int]]], int]:
    """One row per text; the two texts of a pair to be compared are rows of their own."""
    if metric == "spearman":
        parts: list[tuple[str, ...]] = [(text,) for ex in examples for text in ex.texts]
    elif reads_targets(model):
        parts = [example.texts[:1] for example in examples]
    else:
        parts = [example.texts for example in examples]
    full = [tokenizer(*part, return_special_tokens_mask=True) for part in parts]
    num_cut = sum(len(row["input_ids"]) > max_len for row in full)
    rows: list[dict[str, list[int]]] = []
    for place, (part, row) in enumerate(zip(parts, full, strict=True)):
        kept = row
        if len(row["input_ids"]) > max_len:
            kept = tokenizer(
                *part, return_special_tokens_mask=True, truncation=True, max_length=max_len
            )
        special = kept.pop("special_tokens_mask")
        rows.append(dict(kept))
        if metric == "loss" and reads_targets(model):
            rows[-1]["labels"] = target_tokens(examples[place], tokenizer, max_len)
        elif metric == "loss":
            rows[-1] |= _masked(rows[-1]["input_ids"], special, tokenizer, place)
    return rows, num_cut


def target_tokens(
    example: Example, tokenizer: PreTrainedTokenizerBase, max_len: int | None
) -> list[int]:
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
    ids: list[int], special: list[int], tokenizer: PreTrainedTokenizerBase, seed: int
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


def pad(rows: list[dict[str, list[int]]], tokenizer: PreTrainedTokenizerBase) -> dict[str, Tensor]:
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


def _score(target: Any) -> float:  # noqa: ANN401
    """How similar a pair is."""
    if not is_number(str(target)) or not math.isfinite(float(target)):
        raise UserError(
            f"score {target!r} is not a number; give one for every pair, or leave the row out"
        )
    return float(target)


def class_number(target: Any, config: Any) -> int:  # noqa: ANN401
    """The model's number of a label, by its name or as it is."""
    if str(target) in config.label2id:
        return int(config.label2id[str(target)])
    if is_number(str(target)) and 0 <= float(target) < config.num_labels:
        return int(float(target))
    raise UserError(
        f"label {target!r} is none of the model's {config.num_labels} classes "
        f"({', '.join(list(config.label2id)[:5])}, ...); use its names or numbers"
    )


class RunData:
    """Examples of one run's splits."""

    def __init__(self, run: Run, metric: str) -> None:
        if metric == "spearman":
            raise UserError(
                "--metric spearman needs pairs and a score, which a run's own data have not; give "
                "a file of them as DATA"
            )
        self.recipe, self.metric = run.recipe(), metric
        self.task: Task = build_task(self.recipe, tokenizer_dir=run.model)

    def fitting(self, limit: int) -> Examples:
        """The first examples that training saw, which drew them."""
        return self._examples(self.task.train_batches(), set(range(limit)))

    def judging(self, limit: int | None, seed: int) -> Examples:
        """Those of test, or some of them at random."""
        batches = list(self.task.batches("test"))
        count = sum(len(batch.inputs["input_ids"]) for batch in batches)
        found = self._examples(batches, set(draw(count, limit, seed)))
        return replace(found, drawn_from=count)

    def rows(self, model: PreTrainedModel) -> list[dict[str, list[int]]]:
        """Train's examples to tune on: of an encoder-decoder with targets, of others without."""
        found: list[dict[str, list[int]]] = []
        for batch in self.task.batches("train"):
            ids, mask = batch.inputs["input_ids"], batch.inputs.get("attention_mask")
            real = [len(row) for row in ids] if mask is None else mask.sum(1).tolist()
            sources = [row[:n].tolist() for row, n in zip(ids, real, strict=True)]
            if not reads_targets(model):
                found += [{"input_ids": source} for source in sources]
                continue
            targets = [row[row != IGNORED].tolist() for row in batch.inputs["labels"]]
            both = zip(sources, targets, strict=True)
            found += [decoder_row(source, target, model) for source, target in both]
        return found

    def _examples(self, batches: Iterable[Batch], wanted: set[int]) -> Examples:
        """Those whose places, counted over all batches, are wanted."""
        kept: list[tuple[list[int], dict[str, Tensor]]] = []
        targets: list[Any] = []
        texts: list[tuple[str, ...]] = []
        seen = 0
        for batch in batches:
            size = len(batch.inputs["input_ids"])
            rows = [row for row in range(size) if seen + row in wanted]
            seen += size
            if not rows:
                continue
            inputs = {key: value[rows] for key, value in batch.inputs.items()}
            labels = inputs["labels"]
            if self.metric != "loss":  # a label is right or wrong, and read by no model
                del inputs["labels"]
            first = len(texts)
            texts += self._texts(inputs["input_ids"], labels)
            targets += labels.tolist() if labels.dim() == 1 else [None] * len(labels)
            kept.append((list(range(first, len(texts))), inputs))
            if len(texts) == len(wanted):
                break
        return Examples(self.metric, kept, targets, 0, texts)

    def _texts(self, ids: Tensor, labels: Tensor) -> list[tuple[str, ...]]:
        """What a reader sees of each example: its text, and that of an encoder-decoder's target."""
        sides = [ids]
        if self.task.kind == "encoder_decoder":
            sides.append(labels.masked_fill(labels == IGNORED, self.task.tokenizer.pad_token_id))
        decoded = [self.task.tokenizer.batch_decode(s, skip_special_tokens=True) for s in sides]
        return list(zip(*decoded, strict=True))
