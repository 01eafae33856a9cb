"""evaluate(model, task, split): run a model on a split and score it by its task."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor
from torch.nn import functional as F

from synthesizer_attention.data.batch import IGNORED, Batch
from synthesizer_attention.models.backbone import SynthesizerPreTrainedModel
from synthesizer_attention.models.generation import WuPenalty
from synthesizer_attention.run.recipe_keys import Evaluate
from synthesizer_attention.tasks.task import Outputs, Scores, Task
from synthesizer_attention.training.accelerator import one_line_for_memory

SOURCE = {"input_ids", "attention_mask"}  # what an encoder reads
SWAPPED = 1000  # examples that read another's source


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
) -> Evaluation:
    """Score a model on each example of a split once; processes together share the batches out."""
    rank, world = (together.process_index, together.num_processes) if together else (0, 1)
    parts: list[tuple[int, _Measured]] = []
    lower = f"lower evaluate.batch_tokens, which is {settings.batch_tokens}"
    lower += f" (and evaluate.beam is {settings.beam})" if task.generates else ""
    with evaluating(model), one_line_for_memory(lambda: f" on {split}; {lower}"):
        for number, batch in enumerate(task.batches(split)):
            if number % world == rank:
                inputs = {name: tensor.to(model.device) for name, tensor in batch.inputs.items()}
                parts.append((number, _measure(model, task, inputs, settings)))
    if together:
        parts = gather_object(parts)
    measured = [part for _, part in sorted(parts, key=lambda part: part[0])]
    outputs = Outputs(
        losses=np.concatenate([part.losses for part in measured]),
        counts=np.concatenate([part.counts for part in measured]),
        correct=np.concatenate([part.correct for part in measured]),
        predictions=_join([part.predictions for part in measured]),
        texts=tuple(text for part in measured for text in part.texts),
    )
    return Evaluation(
        task.score(split, outputs),
        {
            stack: float(np.concatenate([part.steps[stack] for part in measured]).mean())
            for stack in measured[0].steps
        },
    )


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
            inputs = {name: tensor.to(model.device) for name, tensor in batch.inputs.items()}
            number = len(inputs["labels"])
            if seen >= most:
                break
            if number > 1:
                own = _measure_targets(model, "encoder_decoder", inputs)
                moved = {name: inputs[name].roll(number // 2, 0) for name in SOURCE & set(inputs)}
                other = _measure_targets(model, "encoder_decoder", {**inputs, **moved})
                more += float(other.losses.sum() - own.losses.sum())
                targets, seen = targets + int(own.counts.sum()), seen + number
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
    model: SynthesizerPreTrainedModel, inputs: dict[str, Tensor], settings: Evaluate
) -> list[list[int]]:
    """The token ids of each answer of an encoder-decoder, without start, end and padding."""
    limit = model.config.decoder_max_len
    written = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs.get("attention_mask"),
        max_new_tokens=min(settings.max_new_tokens or limit, limit),
        do_sample=False,
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


@dataclass(frozen=True)
class _Measured:
    """What a batch gave, example by example; texts where the task generates."""

    losses: np.ndarray
    counts: np.ndarray
    correct: np.ndarray
    predictions: np.ndarray | None
    steps: dict[str, np.ndarray]
    texts: Sequence[str] = ()


def _measure(
    model: SynthesizerPreTrainedModel, task: Task, inputs: dict[str, Tensor], settings: Evaluate
) -> _Measured:
    measured = _measure_targets(model, task.kind, inputs)
    if not task.generates:
        return measured
    answers = answer(model, inputs, settings)
    texts = task.tokenizer.batch_decode(answers, skip_special_tokens=True)
    return replace(measured, texts=texts)


def _measure_targets(
    model: SynthesizerPreTrainedModel, kind: str, inputs: dict[str, Tensor]
) -> _Measured:
    """Loss, count and hits of each example's scored targets."""
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
    steps = {"encoder": output.get("encoder_num_steps"), own: output.num_steps}
    return _Measured(
        losses=_array(losses.double().sum(-1)),
        counts=_array(scored.sum(-1)),
        correct=_array(((best == targets) & scored).sum(-1)),
        predictions=_array(best[:, 0]) if kind == "encoder" else None,
        steps={name: _array(taken) for name, taken in steps.items() if taken is not None},
    )


def unlabelled(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Inputs without their labels."""
    return {name: tensor for name, tensor in inputs.items() if name != "labels"}


def _array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.cpu().numpy()
    return array


def _join(parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if present else None


def first_examples(task: Task, split: str, count: int) -> Batch:
    """The first few examples of a split, as a batch of their own."""
    batch = next(iter(task.batches(split)))
    inputs = {name: tensor[:count] for name, tensor in batch.inputs.items()}
    return Batch(inputs, batch.num_targets, batch.num_tokens, batch.indices[:count])
