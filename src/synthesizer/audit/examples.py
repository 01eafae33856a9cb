"""The user's rows as batches of a pretrained model, and what the model makes of them.

metric      rows                      what is measured per example
loss        texts, or pairs for an    the model's own loss: masked, next or answer token, in
            encoder-decoder           nats a token
accuracy    texts or pairs, a label   whether the class is right, in percent
spearman    pairs and a score         cosine of the mean embeddings, ranked as the scores are
agreement   texts                     cosine of the output and the original's, in percent
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from synthesizer.data.columns import NAMES
from synthesizer.data.sources import File, Row, data_folder
from synthesizer.errors import UserError
from synthesizer.metrics.correlation import correlation_from_statistics, spearman_statistics
from synthesizer.metrics.per_example import Statistics, Total, percent_from_statistics
from synthesizer.models.table_heads import is_own

METRICS = ("loss", "accuracy", "spearman", "agreement")
MASKED_SHARE = 0.15  # of a text's tokens, hidden from a masked language model
IGNORED = -100
_SCORE_NAMES = ("score", "similarity", "similarity_score", "label")
_BATCH_TOKENS = 4096
_BATCH_LOGITS = 2**28  # of a language model: 1 GiB in float32


@dataclass(frozen=True)
class Example:
    """One row: a text or a pair, and what is right."""

    texts: tuple[str, ...]
    target: Any = None


@dataclass(frozen=True)
class Examples:
    """Examples encoded for one model and one metric."""

    metric: str
    batches: list[tuple[list[int], dict[str, Tensor]]]  # which examples, and the model's inputs
    targets: list[Any]
    num_cut: int  # texts cut at max_len
    texts: list[tuple[str, ...]]

    @property
    def higher_is_better(self) -> bool:
        return self.metric != "loss"

    def __len__(self) -> int:
        return sum(len(chosen) for chosen, _ in self.batches) // (1 + (self.metric == "spearman"))

    def inputs(self, model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
        """What the model reads, batch by batch; its decoder, if it has one, reads the labels."""
        for _, inputs in self.batches:
            yield _readable(model, inputs)

    def probe(self, model: PreTrainedModel) -> dict[str, Tensor]:
        """One batch whose encoder and decoder lengths differ."""
        (_, inputs), width = self.batches[-1], self.batches[-1][1]["input_ids"].shape[1]
        if "labels" in inputs and inputs["labels"].shape[1] == width and width > 1:
            inputs = inputs | {"labels": inputs["labels"][:, 1:]}
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


def read_examples(path: Path, metric: str) -> list[Example]:
    """The rows of a file that the metric can use."""
    local = data_folder()
    if not path.exists() and local is not None and (local / path).exists():
        path = local / path
    rows = [row for row in File(path).rows(None) if not row.fault]
    if not rows:
        raise UserError(f"{path} holds no rows; expected texts, one a line or row")
    texts, target = _columns(rows[:100], metric, path)
    return [
        Example(tuple(str(row.fields[name]) for name in texts), row.fields.get(target))
        for row in rows
        if all(str(row.fields.get(name) or "").strip() for name in texts)
    ]


def _columns(rows: Sequence[Row], metric: str, path: Path) -> tuple[list[str], str]:
    """The columns of texts, and of what is right."""
    names = list(rows[0].fields)
    known = _SCORE_NAMES if metric == "spearman" else NAMES["label"]
    target = next((name for name in names if name.lower() in known), "")
    texts = [
        name
        for name in names
        if name != target
        and all(isinstance(row.fields.get(name), str) for row in rows)
        and not all(_is_number(row.fields[name]) for row in rows)
    ]
    if metric in ("accuracy", "spearman") and not target:
        raise UserError(
            f"--metric {metric} needs a column named {', '.join(known[:3])} or the like, and "
            f"{path} has {', '.join(names)}; rename the column, or choose another metric"
        )
    needed = 2 if metric == "spearman" else 1
    if len(texts) < needed:
        raise UserError(
            f"--metric {metric} needs {needed} column{'s' * (needed > 1)} of text, and {path} has "
            f"{len(texts)} among {', '.join(names)}; give such a file, or choose another metric"
        )
    return texts[:2], target


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def encode(
    examples: Sequence[Example],
    metric: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    max_len: int,
    limit: int | None = None,
) -> Examples:
    """Tokens in batches of similar length; of windows and of rows, the first `limit`."""
    if metric == "loss" and _is_causal(model):
        rows, num_cut = _windows(examples, model, tokenizer, max_len, limit), 0
        examples = [Example((tokenizer.decode(row["input_ids"]),)) for row in rows]
    else:
        examples = examples[:limit]
        rows, num_cut = _rows(examples, metric, model, tokenizer, max_len)
    if not rows:
        raise _too_short(max_len)
    largest = max(max(row["input_ids"], default=0) for row in rows)
    known = getattr(model.get_input_embeddings(), "num_embeddings", largest + 1)
    if largest >= known:
        raise UserError(
            f"the tokenizer gives token {largest} and the model has embeddings for {known}; put "
            "the tokenizer that belongs to the model into its folder"
        )
    targets = [example.target for example in examples]
    if metric == "accuracy":
        targets = [_class_number(target, model.config) for target in targets]
    lengths = [len(row["input_ids"]) for row in rows]
    most = min(_BATCH_TOKENS, _BATCH_LOGITS // known) if metric == "loss" else _BATCH_TOKENS
    order = sorted(range(len(rows)), key=lengths.__getitem__)
    batches: list[tuple[list[int], dict[str, Tensor]]] = []
    chosen: list[int] = []
    for place in order:
        if chosen and lengths[place] * (len(chosen) + 1) > most:
            batches.append((chosen, pad([rows[i] for i in chosen], tokenizer)))
            chosen = []
        chosen.append(place)
    batches.append((chosen, pad([rows[i] for i in chosen], tokenizer)))
    return Examples(metric, batches, targets, num_cut, [example.texts for example in examples])


def tuning_rows(
    examples: Sequence[Example],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    max_len: int,
) -> list[dict[str, list[int]]]:
    """Every text as a row of its own, cut at max_len; of a causal language model, windows."""
    alone = [Example((text,)) for example in examples for text in example.texts]
    if not _is_causal(model):
        return _rows(alone, "agreement", model, tokenizer, max_len)[0]
    windows = _windows(alone, model, tokenizer, max_len, None)
    if not windows:
        raise _too_short(max_len)
    return [{"input_ids": row["input_ids"]} for row in windows]


def _too_short(max_len: int) -> UserError:
    return UserError(
        f"the texts are shorter than one window of {max_len} tokens; give more text, or a "
        "smaller --max-len"
    )


def _is_causal(model: PreTrainedModel) -> bool:
    name = type(model).__name__
    return name.endswith(("ForCausalLM", "LMHeadModel"))


def _windows(
    examples: Sequence[Example],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    max_len: int,
    limit: int | None,
) -> list[dict[str, list[int]]]:
    """One stream of all texts, cut into windows that each begin as the model's texts do."""
    first = model.config.bos_token_id if is_own(model) else tokenizer.bos_token_id
    start = [] if first is None else [first]
    stream: list[int] = []
    for example in examples:
        if limit is not None and len(stream) >= limit * max_len:
            break
        text = example.texts[0] if example.texts[0].endswith("\n") else example.texts[0] + "\n"
        stream += tokenizer(text, add_special_tokens=False)["input_ids"]
    size = max_len - len(start)
    cuts = range(0, len(stream) - size + 1, size)[:limit]
    return [
        {"input_ids": ids, "labels": ids} for ids in (start + stream[c : c + size] for c in cuts)
    ]


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
    elif model.config.is_encoder_decoder:
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
        if metric == "loss" and model.config.is_encoder_decoder:
            target = examples[place].texts[-1]
            answer = tokenizer(text_target=target, truncation=True, max_length=max_len)
            rows[-1]["labels"] = answer["input_ids"]
        elif metric == "loss":
            rows[-1] |= _masked(rows[-1]["input_ids"], special, tokenizer, place)
    return rows, num_cut


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
    fill = {"input_ids": tokenizer.pad_token_id or 0, "labels": IGNORED}
    for row in rows:
        row.setdefault("attention_mask", [1] * len(row["input_ids"]))
    batch = {}
    for key in rows[0]:
        longest = max(len(row[key]) for row in rows)
        padded = [row[key] + [fill.get(key, 0)] * (longest - len(row[key])) for row in rows]
        batch[key] = torch.tensor(padded)
    return batch


def _class_number(target: Any, config: Any) -> int:  # noqa: ANN401
    """The model's number of a label, by its name or as it is."""
    if str(target) in config.label2id:
        return int(config.label2id[str(target)])
    if _is_number(str(target)) and 0 <= int(float(target)) < config.num_labels:
        return int(float(target))
    raise UserError(
        f"label {target!r} is none of the model's {config.num_labels} classes "
        f"({', '.join(list(config.label2id)[:5])}, ...); use its names or numbers"
    )


@torch.no_grad()
def run(model: PreTrainedModel, examples: Examples) -> Outcome:
    """Let the model read every example."""
    read: dict[str, Callable[[Any, dict[str, Tensor]], Tensor]] = {
        "loss": partial(_token_losses, causal=_is_causal(model)),
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
    if not model.config.is_encoder_decoder:
        return {key: value for key, value in inputs.items() if key != "labels"}
    if "labels" in inputs:
        return inputs
    start = model.config.decoder_start_token_id
    first = inputs["input_ids"].new_full((len(inputs["input_ids"]), 1), start)
    return inputs | {"decoder_input_ids": first}


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
    if states.dim() == 2 or mask is None or mask.shape[1] != states.shape[1]:
        return states.flatten(1)
    return torch.einsum("btd,bt->bd", states, mask.to(states.dtype)) / mask.sum(1, keepdim=True)


def _statistics(outputs: Tensor, examples: Examples) -> Statistics:
    if examples.metric == "loss":
        return outputs.double().numpy()
    if examples.metric == "spearman":
        first, second = outputs[0::2], outputs[1::2]
        cosines = torch.cosine_similarity(first, second).tolist()
        return spearman_statistics(cosines, [float(target) for target in examples.targets])
    if examples.metric == "accuracy":
        right = outputs.argmax(-1) == torch.tensor(examples.targets)
        return np.column_stack([right.double().numpy(), np.ones(len(right))])
    return np.column_stack([np.ones(len(outputs)), np.ones(len(outputs))])


def agreement_statistics(outcome: Outcome, original: Outcome) -> Statistics:
    """Columns (cosine, 1) of the outputs with the original's."""
    cosines = torch.cosine_similarity(outcome.outputs, original.outputs).double().numpy()
    return np.column_stack([cosines, np.ones(len(cosines))])
