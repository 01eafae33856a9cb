"""Fit the tables of a converted model to the original, on texts without labels.

First the states after every layer are brought near the original's, then its outputs: what a table
gets wrong in one layer is corrected there before later layers learn to make up for it.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from synthesizer.audit.cost import Say
from synthesizer.audit.examples import Example
from synthesizer.errors import UserError

SAID_EVERY = 20  # steps


@dataclass(frozen=True)
class Tuning:
    """How long and how fast."""

    steps: int
    everything: bool = False  # all weights, not the tables alone
    batch: int = 32  # texts
    table_rate: float = 0.03
    rate: float = 5e-5  # of the other weights
    seed: int = 0


def tune(
    original: PreTrainedModel,
    converted: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    max_len: int,
    tuning: Tuning,
    say: Say,
) -> list[float]:
    """Train in place; the loss of every step is returned."""
    if original.config.is_encoder_decoder:
        raise UserError("--tune works on encoders and decoders, not on an encoder-decoder yet")
    original.set_attn_implementation("sdpa")
    optimizer = _optimizer(converted, tuning)
    batches = _batches([text for e in examples for text in e.texts], tokenizer, max_len, tuning)
    losses = []
    converted.eval()  # no dropout: the original's outputs have none
    for step in range(1, tuning.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = group["start"] * (1 - (step - 1) / tuning.steps)
        inputs = next(batches)
        with torch.no_grad():
            theirs = original(**inputs, output_hidden_states=True)
        ours = converted(**inputs, output_hidden_states=True)
        by_layer = step <= tuning.steps // 2
        loss = _distance(ours, theirs, inputs["attention_mask"].bool(), by_layer=by_layer)
        if not torch.isfinite(loss):
            raise UserError(f"the loss of tuning step {step} is {loss.item()}; lower the rate")
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(converted.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % SAID_EVERY == 0 or step == tuning.steps:
            say(f"tuning step {step} of {tuning.steps}: loss {losses[-1]:.4f}")
    return losses


def _optimizer(model: PreTrainedModel, tuning: Tuning) -> torch.optim.Optimizer:
    tables = [p for name, p in model.named_parameters() if ".tables." in name]
    chosen = set(map(id, tables))
    others = [p for p in model.parameters() if id(p) not in chosen]
    for parameter in others:
        parameter.requires_grad_(tuning.everything)
    groups = [{"params": tables, "lr": tuning.table_rate, "start": tuning.table_rate}]
    if tuning.everything:
        groups.append({"params": others, "lr": tuning.rate, "start": tuning.rate})
    return torch.optim.AdamW(groups, weight_decay=0.0)


def _batches(
    texts: list[str], tokenizer: PreTrainedTokenizerBase, max_len: int, tuning: Tuning
) -> Iterator[dict[str, Tensor]]:
    """Texts in random order, again and again."""
    generator = random.Random(tuning.seed)
    while True:
        order = generator.sample(texts, len(texts))
        for start in range(0, len(order), tuning.batch):
            yield dict(
                tokenizer(
                    order[start : start + tuning.batch],
                    padding=True,
                    truncation=True,
                    max_length=max_len,
                    return_tensors="pt",
                )
            )


def _distance(ours: Any, theirs: Any, real: Tensor, *, by_layer: bool) -> Tensor:  # noqa: ANN401
    """Of states after every layer, or of outputs, as a share of the original's variance."""
    if not by_layer and "logits" in theirs:
        now, then = ours.logits.log_softmax(-1), theirs.logits.log_softmax(-1)
        apart = (then.exp() * (then - now)).sum(-1)
        return apart[real].mean() if apart.dim() == 2 else apart.mean()
    pairs = list(zip(ours.hidden_states, theirs.hidden_states, strict=True))[1:]
    pairs = pairs if by_layer else pairs[-1:]
    terms = [((now - then)[real] ** 2).mean() / then[real].var() for now, then in pairs]
    if not by_layer:  # what embeddings are compared by
        now, then = (torch.einsum("btd,bt->bd", each, real.to(each.dtype)) for each in pairs[-1])
        terms.append(1 - torch.cosine_similarity(now, then).mean())
    return torch.stack(terms).mean()
