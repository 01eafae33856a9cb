"""Fit the tables of a converted model to the original, on texts without labels.

First the states after every layer are brought near the original's, then its outputs: what a table
gets wrong in one layer is corrected there before later layers learn to make up for it.

A step depends on its number alone, so that a tuning which was stopped goes on from its newest
checkpoint and ends with the same weights. Some texts are held out, to say how near it came.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from synthesizer_attention.attention.synthesis import Random, Relative
from synthesizer_attention.audit.examples import TuningRows
from synthesizer_attention.audit.load import attend_fast
from synthesizer_attention.audit.record import Say
from synthesizer_attention.audit.tables import HeadTables
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.progress import Pace, clock
from synthesizer_attention.training.checkpoint import (
    OPTIMIZER,
    WEIGHTS,
    Checkpoint,
    read_checkpoint,
    write_checkpoint,
)

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
    tables = table_parameters(converted)
    chosen = set(map(id, tables))
    others = [p for p in converted.parameters() if id(p) not in chosen]
    for parameter in others:
        parameter.requires_grad_(tuning.everything)
    rates = [(tables, tuning.table_rate), (others if tuning.everything else [], tuning.rate)]
    before = _held_out_distance(original, converted, rows, held_out)
    batches = Batches([lengths[row] for row in kept], tuning.batch, tuning.seed)

    def loss_of(step: int) -> Tensor:
        inputs = rows.batch([kept[place] for place in batches(step)])
        return _distance(original, converted, inputs, by_layer=step <= tuning.steps // 3)

    losses = train(
        converted, rates, tuning.steps, loss_of, say,
        path=None if folder is None else folder / CHECKPOINT,
        facts={**asdict(tuning), "rows": len(kept), "before": before},
        advice=f"give a lower --tune-rate than {tuning.rate}",
    )  # fmt: skip
    after = _held_out_distance(original, converted, rows, held_out)
    if held_out:
        say(f"distance from the original on {count} held-out examples: {before:.4f} to {after:.4f}")
    return Tuned(losses, before, after)


def table_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The tables of converted models and of ours, which learn at a rate of their own."""
    kinds = (HeadTables, Relative, Random)
    modules = [module for module in model.modules() if isinstance(module, kinds)]
    return [p for module in modules for p in module.parameters(recurse=False)]


class Batches:
    """The rows of every step: each once an epoch, in random order; similar lengths together."""

    def __init__(self, lengths: Sequence[int], size: int, seed: int) -> None:
        self.lengths, self.size, self.seed = lengths, size, seed
        self._epoch = lru_cache(1)(self._draw)

    def __call__(self, step: int) -> list[int]:
        epoch, at = divmod(step - 1, -(-len(self.lengths) // self.size))
        return self._epoch(epoch)[at]

    def _draw(self, epoch: int) -> list[list[int]]:
        generator = random.Random(f"{self.seed} {epoch}")
        order = generator.sample(range(len(self.lengths)), len(self.lengths))
        batches, size = [], self.size
        for start in range(0, len(order), POOL * size):
            pool = sorted(order[start : start + POOL * size], key=self.lengths.__getitem__)
            batches += [pool[at : at + size] for at in range(0, len(pool), size)]
        generator.shuffle(batches)
        return batches


def train(
    model: nn.Module,
    rates: Sequence[tuple[Sequence[nn.Parameter], float]],
    steps: int,
    loss_of: Callable[[int], Tensor],
    say: Say,
    *,
    path: Path | None,
    facts: Mapping[str, Any],
    advice: str,
    what: str = "tuning",
    after: Callable[[int], None] = lambda step: None,
) -> list[float]:
    """Train groups of parameters at their rates; the loss of every step is returned.

    path    of a checkpoint, from which it goes on if facts are the same; the caller removes it
    after   is called behind each step, before its checkpoint is written
    """
    groups = [{"params": list(each), "lr": rate, "peak": rate} for each, rate in rates if each]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    losses = _resume(path, model, optimizer, facts, say, what)
    rising, pace = max(1, round(WARMUP * steps)), Pace(len(losses))
    for step in range(len(losses) + 1, steps + 1):
        share = step / rising if step < rising else (steps - step + 1) / (steps - rising + 1)
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * share
        loss = loss_of(step)
        if not torch.isfinite(loss):
            raise UserError(f"the loss of {what} step {step} is {loss.item()}; {advice}")
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % SAID_EVERY == 0 or step == steps:
            left = clock(pace.seconds_per_step(step) * (steps - step))
            say(f"{what} step {step} of {steps}: loss {losses[-1]:.4f}, {left} left")
        after(step)
        if path is not None and step % SAVED_EVERY == 0 and step < steps:
            tensors = trained(model)
            for index, state in optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer/{index}/{key}": value for key, value in state.items()}
            write_checkpoint(path, Checkpoint(tensors, {**facts, "losses": losses}))
    return losses


def trained(model: nn.Module) -> dict[str, Tensor]:
    """The weights that are trained, as a checkpoint names them."""
    named = model.named_parameters()
    return {f"{WEIGHTS}{name}": p.detach() for name, p in named if p.requires_grad}


def _resume(
    path: Path | None,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    facts: Mapping[str, Any],
    say: Say,
    what: str,
) -> list[float]:
    """Go back to the newest checkpoint, if there is one; the losses so far are returned."""
    if path is None or not path.exists():
        return []
    checkpoint = read_checkpoint(path)
    if checkpoint is None:
        raise UserError(f"{path} is damaged; delete it to repeat the {what} from the beginning")
    meta = dict(checkpoint.meta)
    losses: list[float] = meta.pop("losses")
    if meta != facts:
        raise UserError(
            f"{path} is of a {what} with other options or texts; repeat those, or "
            "name another --out"
        )
    load_trained(model, checkpoint)
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in checkpoint.part(OPTIMIZER).items():
        index, _, key = name.partition("/")
        state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    say(f"going on from {what} step {len(losses)}")
    return losses


@torch.no_grad()
def load_trained(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Put the weights of a checkpoint into a model, which may have more."""
    named = dict(model.named_parameters())
    for name, tensor in checkpoint.part(WEIGHTS).items():
        named[name].copy_(tensor)


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
