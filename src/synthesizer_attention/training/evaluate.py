"""evaluate(model, task, split): run a model on a split and score it by its task."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor
from torch.nn import functional as F

from synthesizer_attention.data.batch import IGNORED, Batch
from synthesizer_attention.errors import one_line_for_memory
from synthesizer_attention.models.backbone import SynthesizerPreTrainedModel
from synthesizer_attention.models.generation import WuPenalty
from synthesizer_attention.run.recipe_keys import Evaluate
from synthesizer_attention.tasks.task import Outputs, Scores, Task
from synthesizer_attention.training.meter import now

SOURCE = {"input_ids", "attention_mask"}  # what an encoder reads
SWAPPED = 1000  # examples that read another's source
PROMPTS = 16  # decoded together to measure speed
NEW_TOKENS = 32  # of each, fewer where the model is too short for them
ROUNDS, SECONDS = 20, 1.0  # of timed decoding at most, after a round that warms up

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Evaluation:
    """The scores of one split, and how deep tokens went in each stack of a universal model."""

    scores: Scores
    steps_per_token: dict[str, float]


def evaluate(
    model: SynthesizerPreTrainedModel,
    task: Task,
    split: str,
    settings: Evaluate,
    together: Accelerator | None = None,
    *,
    sharded: bool = False,
) -> Evaluation:
    """Score a model on each example of a split once; processes together share the batches out.

    Sharded weights are gathered a layer at a time, so that all take the same number of passes.
    """
    rank, world = (together.process_index, together.num_processes) if together else (0, 1)
    parts: dict[int, tuple[Arrays, list[str]]] = {}
    lower = f"lower evaluate.batch_tokens, which is {settings.batch_tokens}"
    lower += f" (and evaluate.beam is {settings.beam})" if task.generates else ""
    with evaluating(model), one_line_for_memory(lambda: f" on {split}; {lower}"):
        for number, batch in _share_out(task.batches(split), rank, world, evenly=sharded):
            inputs = on_device(batch, model)
            measured, texts = _measure(model, task.kind, inputs), []
            if task.generates:
                written = answer(model, inputs, settings, sharded=sharded)
                texts = task.tokenizer.batch_decode(written, skip_special_tokens=True)
            parts[number] = measured, texts
    if together:
        parts = dict(gather_object([*parts.items()]))
    every = [parts[number] for number in sorted(parts)]
    joined = {name: np.concatenate([part[0][name] for part in every]) for name in every[0][0]}
    steps = {stack: joined.pop(f"{stack} steps", None) for stack in ("encoder", "decoder")}
    outputs = Outputs(
        losses=joined["losses"],
        counts=joined["counts"],
        correct=joined["correct"],
        predictions=joined.get("predictions"),
        texts=tuple(text for _, texts in every for text in texts),
    )
    deep = {stack: float(taken.mean()) for stack, taken in steps.items() if taken is not None}
    return Evaluation(task.score(split, outputs), deep)


def _share_out(
    batches: Iterable[Batch], rank: int, world: int, *, evenly: bool
) -> Iterator[tuple[int, Batch]]:
    """A process's batches with their numbers; evenly, some repeat the last one of all."""
    for number, batch in enumerate(batches):
        if number % world == rank:
            yield number, batch
    if evenly and number % world < rank:
        yield number, batch


def source_gap(
    model: SynthesizerPreTrainedModel, task: Task, split: str, most: int = SWAPPED
) -> float | None:
    """Loss with a shuffled source minus loss with the right one, in nats per target.

    Sources are rolled by half a batch: examples of one conversation are neighbours. Near zero, the
    output does not depend on the source. None where no batch has two examples.
    """
    more, targets, seen = 0.0, 0, 0
    with evaluating(model):
        for batch in task.batches(split):
            inputs = on_device(batch, model)
            number = len(inputs["labels"])
            if seen >= most:
                break
            if number > 1:
                own = _measure(model, "encoder_decoder", inputs)
                moved = {name: inputs[name].roll(number // 2, 0) for name in SOURCE & set(inputs)}
                other = _measure(model, "encoder_decoder", {**inputs, **moved})
                more += float(other["losses"].sum() - own["losses"].sum())
                targets, seen = targets + int(own["counts"].sum()), seen + number
    return more / targets if targets else None


@contextmanager
def evaluating(model: SynthesizerPreTrainedModel) -> Iterator[None]:
    """Without dropout and gradients; training goes on as it was."""
    before = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(before)


def answer(
    model: SynthesizerPreTrainedModel,
    inputs: dict[str, Tensor],
    settings: Evaluate,
    *,
    sharded: bool = False,
) -> list[list[int]]:
    """The token ids of each answer of an encoder-decoder, without start, end and padding."""
    limit = model.config.decoder_max_len
    written = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs.get("attention_mask"),
        max_new_tokens=min(settings.max_new_tokens or limit, limit),
        do_sample=False,
        synced_gpus=sharded,
        **beam_search(settings, settings.beam),
    )
    return [until_end(ids, model.config.eos_token_id) for ids in written[:, 1:].tolist()]


def beam_search(settings: Evaluate, beam: int) -> dict[str, float]:
    """The beam search arguments of `generate`; none for a beam of one."""
    if beam == 1:
        return {}
    penalty = WuPenalty if settings.length_penalty_form == "wu" else float
    return {"num_beams": beam, "length_penalty": penalty(settings.length_penalty)}


def until_end(ids: list[int], end: int) -> list[int]:
    """Token ids before the first end token."""
    return ids[: ids.index(end)] if end in ids else ids


def _measure(model: SynthesizerPreTrainedModel, kind: str, inputs: dict[str, Tensor]) -> Arrays:
    """Loss, count and hits of each example's scored targets; steps of a universal model."""
    labels = inputs["labels"]
    if kind == "encoder_decoder":
        output = model(**inputs, use_cache=False)
        logits, targets = output.logits, labels
    elif kind == "decoder":
        output = model(**unlabelled(inputs), use_cache=False)
        logits, targets = output.logits[:, :-1], labels[:, 1:]
    else:
        output = model(**unlabelled(inputs))
        logits, targets = output.logits[:, None], labels[:, None]
    losses = F.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="none"
    ).unflatten(0, targets.shape)
    best, scored = logits.argmax(-1), targets != IGNORED
    own = "encoder" if kind == "encoder" else "decoder"
    found: dict[str, Tensor | None] = {
        "losses": losses.double().sum(-1),
        "counts": scored.sum(-1),
        "correct": ((best == targets) & scored).sum(-1),
        "predictions": best[:, 0] if kind == "encoder" else None,
        "encoder steps": output.get("encoder_num_steps"),
    }
    found[f"{own} steps"] = output.num_steps
    return {name: tensor.cpu().numpy() for name, tensor in found.items() if tensor is not None}


def on_device(batch: Batch, model: SynthesizerPreTrainedModel) -> dict[str, Tensor]:
    """A batch's tensors where the model is."""
    return {name: tensor.to(model.device) for name, tensor in batch.inputs.items()}


def unlabelled(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Inputs without their labels."""
    return {name: tensor for name, tensor in inputs.items() if name != "labels"}


def first_examples(task: Task, split: str, count: int) -> Batch:
    """The first few examples of a split, as a batch of their own."""
    batch = next(iter(task.batches(split)))
    inputs = {name: tensor[:count] for name, tensor in batch.inputs.items()}
    return Batch(inputs, batch.num_targets, batch.num_tokens, batch.indices[:count])


@dataclass(frozen=True)
class Decoded:
    """Generated tokens, and their speed."""

    tokens_per_second: float
    rows: Tensor  # (B,), of the batch
    prompts: Tensor  # (B, T)
    written: Tensor  # (B, new tokens)


def decode(model: SynthesizerPreTrainedModel, batch: Batch) -> Decoded:
    """Time greedy decoding with the cache; the best time counts.

    Every variant gets the same prompts and writes the same number of tokens, past every end token.
    """
    inputs = on_device(batch, model)
    is_decoder = model.config.kind == "decoder"
    room = model.config.max_len if is_decoder else model.config.decoder_max_len
    new = min(NEW_TOKENS, room // 2 if is_decoder else room)
    prompts = inputs["input_ids"]
    rows = torch.arange(len(prompts), device=prompts.device)
    given = {}
    if is_decoder:  # by texts alone: a short one ends in padding
        real = inputs.get("attention_mask", torch.ones_like(prompts)).long().cumprod(1).sum(1)
        length = min(NEW_TOKENS, room - new, int(real.max()))
        rows = rows[real >= length]
        prompts = prompts[:, :length]
    rows = rows[:PROMPTS]
    prompts = prompts[rows]
    if not is_decoder and "attention_mask" in inputs:
        given = {"attention_mask": inputs["attention_mask"][rows]}
    options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "num_beams": 1}
    times: list[float] = []
    with evaluating(model):
        while len(times) < 2 or (len(times) <= ROUNDS and sum(times) < SECONDS):
            begin = now(model.device)
            output = model.generate(prompts, **given, **options)
            times.append(now(model.device) - begin)
    return Decoded(len(prompts) * new / min(times), rows, prompts, output[:, -new:])


def continuations(task: Task, batch: Batch, decoded: Decoded) -> list[dict[str, str]]:
    """What a decoder wrote behind the beginning of test texts, beside how they go on."""
    begin, new = decoded.prompts.shape[1], decoded.written.shape[1]
    texts = {
        "source": decoded.prompts,
        "reference": batch.inputs["input_ids"][decoded.rows.cpu(), begin : begin + new],
        "output": decoded.written,
    }
    spelled = {
        name: task.tokenizer.batch_decode(ids, skip_special_tokens=True)
        for name, ids in texts.items()
    }
    return [dict(zip(spelled, row, strict=True)) for row in zip(*spelled.values(), strict=True)]
