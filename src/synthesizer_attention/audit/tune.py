"""Fit the tables of a converted model to the original, on texts without labels.

First the states after every layer are brought near the original's, then its outputs: what a table
gets wrong in one layer is corrected there before later layers learn to make up for it.

A step depends on its number alone, so that a tuning which was stopped goes on from its newest
checkpoint and ends with the same weights. Some texts are held out, to say how near it came.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from synthesizer_attention.attention.synthesis import Random, Relative
from synthesizer_attention.audit.examples import TuningRows
from synthesizer_attention.audit.load import attend_fast
from synthesizer_attention.audit.record import Say
from synthesizer_attention.audit.tables import HeadTables
from synthesizer_attention.errors import UserError
from synthesizer_attention.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint

CHECKPOINT = "tuning.safetensors"
SAVED_EVERY = 100  # steps
SAID_EVERY = 20
WARMUP = 0.05  # of the steps: rates rise, then fall linearly to zero
POOL = 16  # batches whose texts are sorted by length, so that little is padding
HELD_OUT = 64  # texts at most, and a twentieth of all


@dataclass(frozen=True)
class Tuning:
    """The options of a tuning."""

    steps: int
    everything: bool = False  # all weights, not the tables alone
    batch: int = 32  # texts
    table_rate: float = 0.03
    rate: float = 3e-4  # of the other weights
    seed: int = 0


@dataclass(frozen=True)
class Tuned:
    """The loss of every step, and how far outputs are from the original's on held-out texts."""

    losses: list[float]
    before: float
    after: float


def tune(
    original: PreTrainedModel,
    converted: PreTrainedModel,
    rows: TuningRows,
    tuning: Tuning,
    say: Say,
    folder: Path | None = None,
) -> Tuned:
    """Train in place on rows; a folder, if given, holds a checkpoint until removed."""
    lengths = rows.lengths
    order = random.Random(tuning.seed).sample(range(len(lengths)), len(lengths))
    count = min(HELD_OUT, len(order) // 20)
    held_out, kept = order[:count], order[count:]
    attend_fast(original)
    converted.eval()  # no dropout: the original's outputs have none
    optimizer = _optimizer(converted, tuning)
    before = _held_out_distance(original, converted, rows, held_out)
    facts = {**asdict(tuning), "rows": len(kept), "before": before}
    losses = _resume(folder, converted, optimizer, facts, say)
    batches = lru_cache(1)(partial(_batches, [lengths[row] for row in kept], tuning))
    steps = tuning.steps
    rising = max(1, round(WARMUP * steps))
    for step in range(len(losses) + 1, steps + 1):
        share = step / rising if step < rising else (steps - step + 1) / (steps - rising + 1)
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * share
        epoch, at = divmod(step - 1, -(-len(kept) // tuning.batch))
        inputs = rows.batch([kept[place] for place in batches(epoch)[at]])
        loss = _distance(original, converted, inputs, by_layer=step <= steps // 3)
        if not torch.isfinite(loss):
            raise UserError(
                f"the loss of tuning step {step} is {loss.item()}; give a lower --tune-rate than "
                f"{tuning.rate}"
            )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(converted.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % SAID_EVERY == 0 or step == steps:
            say(f"tuning step {step} of {steps}: loss {losses[-1]:.4f}")
        if folder is not None and step % SAVED_EVERY == 0 and step < steps:
            _save(folder, converted, optimizer, {**facts, "losses": losses})
    after = _held_out_distance(original, converted, rows, held_out)
    if held_out:
        say(f"distance from the original on {count} held-out examples: {before:.4f} to {after:.4f}")
    return Tuned(losses, before, after)


def _optimizer(model: PreTrainedModel, tuning: Tuning) -> torch.optim.Optimizer:
    kinds = (HeadTables, Relative, Random)  # of converted models and of ours
    modules = [module for module in model.modules() if isinstance(module, kinds)]
    tables = [p for module in modules for p in module.parameters(recurse=False)]
    chosen = set(map(id, tables))
    others = [p for p in model.parameters() if id(p) not in chosen]
    for parameter in others:
        parameter.requires_grad_(tuning.everything)
    groups = [{"params": tables, "lr": tuning.table_rate, "peak": tuning.table_rate}]
    if tuning.everything:
        groups.append({"params": others, "lr": tuning.rate, "peak": tuning.rate})
    return torch.optim.AdamW(groups, weight_decay=0.0)


def _batches(lengths: Sequence[int], tuning: Tuning, epoch: int) -> list[list[int]]:
    """The rows of every step of an epoch, all once, in random order; similar lengths together."""
    generator = random.Random(f"{tuning.seed} {epoch}")
    order = generator.sample(range(len(lengths)), len(lengths))
    batches, size = [], tuning.batch
    for start in range(0, len(order), POOL * size):
        pool = sorted(order[start : start + POOL * size], key=lengths.__getitem__)
        batches += [pool[at : at + size] for at in range(0, len(pool), size)]
    generator.shuffle(batches)
    return batches


def _save(
    folder: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer, facts: Mapping[str, Any]
) -> None:
    """Weights and the optimizer's state, in one atomic file."""
    tensors = {f"weights/{name}": p.detach() for name, p in model.named_parameters()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{key}": value for key, value in state.items()}
    write_checkpoint(folder / CHECKPOINT, Checkpoint(tensors, dict(facts)))


def _resume(
    folder: Path | None,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    facts: Mapping[str, Any],
    say: Say,
) -> list[float]:
    """Go back to the newest checkpoint, if there is one; the losses so far are returned."""
    if folder is None or not (folder / CHECKPOINT).exists():
        return []
    checkpoint = read_checkpoint(folder / CHECKPOINT)
    if checkpoint is None:
        raise UserError(f"{folder / CHECKPOINT} is damaged; delete it to tune from the beginning")
    meta = dict(checkpoint.meta)
    losses: list[float] = meta.pop("losses")
    if meta != facts:
        raise UserError(
            f"{folder / CHECKPOINT} is of a tuning with other options or texts; repeat those, or "
            "name another --out"
        )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(checkpoint.tensors[f"weights/{name}"])
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in checkpoint.part("optimizer/").items():
        index, _, key = name.partition("/")
        state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    say(f"going on from tuning step {len(losses)}")
    return losses


@torch.no_grad()
def _held_out_distance(
    original: PreTrainedModel, converted: PreTrainedModel, rows: TuningRows, held_out: Sequence[int]
) -> float:
    if not held_out:
        return 0.0
    return _distance(original, converted, rows.batch(held_out), by_layer=False).item()


def _distance(
    original: PreTrainedModel, converted: PreTrainedModel, inputs: dict[str, Tensor], *,
    by_layer: bool,
) -> Tensor:  # fmt: skip
    """The distance of states after every layer, or of outputs.

    Logits are compared by Kullback-Leibler divergence. Embeddings by their states, as a share of
    the original's variance, by the cosine of their means, and by the cosines among all texts of
    the batch: what similarities are ranked by.
    """
    with torch.no_grad():
        theirs = original(**inputs, output_hidden_states=True)
    ours = converted(**inputs, output_hidden_states=True)
    mask = inputs.get("attention_mask")  # none of images and sounds: all is real
    sides = {"hidden_states": mask}
    if "decoder_hidden_states" in theirs:  # a decoder that reads the source has its mask
        sides = {"encoder_hidden_states": mask}
        sides["decoder_hidden_states"] = inputs.get("decoder_attention_mask", mask)
    apart, last, real = list[Tensor](), (torch.empty(0), torch.empty(0)), torch.empty(0)
    for key, mask in sides.items():
        states = theirs[key][-1]
        real = torch.ones(states.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
        for last in list(zip(ours[key], theirs[key], strict=True))[1:]:
            if by_layer:
                apart.append(_states_apart(*last, real))
    if by_layer:
        return torch.stack(apart).mean()
    if "logits" in theirs:
        now, then = ours.logits.log_softmax(-1), theirs.logits.log_softmax(-1)
        divergence = (then.exp() * (then - now)).sum(-1)
        return divergence[real].mean() if divergence.dim() == 2 else divergence.mean()
    terms = [_states_apart(*last, real)]
    now, then = (
        torch.nn.functional.normalize(torch.einsum("btd,bt->bd", each, real.to(each.dtype)), dim=-1)
        for each in last
    )
    terms.append(1 - (now * then).sum(-1).mean())
    among = now @ now.mT - then @ then.mT  # cosines of all pairs of texts
    terms.append(10 * (among**2).mean())  # of about 0.1 each, where the other terms are near 1
    return torch.stack(terms).mean()


def _states_apart(now: Tensor, then: Tensor, real: Tensor) -> Tensor:
    return ((now - then)[real] ** 2).mean() / then[real].var()
