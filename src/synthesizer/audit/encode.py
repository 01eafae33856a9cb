"""Texts to tokens in batches, as one model and one metric read them."""

import math
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from synthesizer.audit.examples import IGNORED, Example, Examples, draw, is_number
from synthesizer.audit.hook import is_own
from synthesizer.audit.load import decoder_start, is_causal, reads_targets
from synthesizer.errors import UserError

MASKED_SHARE = 0.15  # of a text's tokens, hidden from a masked language model
BATCH_TOKENS = 4096
_BATCH_LOGITS = 2**28  # of a language model: 1 GiB in float32


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
class TokenRows:
    """Texts to tune on."""

    rows: Sequence[dict[str, list[int]]]
    tokenizer: PreTrainedTokenizerBase

    @property
    def lengths(self) -> list[int]:
        return [len(row["input_ids"]) for row in self.rows]

    def batch(self, chosen: Sequence[int]) -> dict[str, Tensor]:
        return pad([dict(self.rows[place]) for place in chosen], self.tokenizer)


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
