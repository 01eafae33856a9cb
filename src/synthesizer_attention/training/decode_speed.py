"""How fast a trained model decodes: the same prompts and number of new tokens for every variant."""

from dataclasses import dataclass

import torch
from torch import Tensor

from synthesizer_attention.data.batch import Batch
from synthesizer_attention.models.backbone import SynthesizerPreTrainedModel
from synthesizer_attention.tasks.task import Task
from synthesizer_attention.training.evaluate import evaluating
from synthesizer_attention.training.meter import now

PROMPTS = 16  # decoded together
NEW_TOKENS = 32  # of each, fewer where the model is too short for them
ROUNDS, SECONDS = 20, 1.0  # at most, after a round that warms up


@dataclass(frozen=True)
class Decoded:
    """Generated tokens, and their speed."""

    tokens_per_second: float
    rows: Tensor  # (B,), of the batch
    prompts: Tensor  # (B, T)
    written: Tensor  # (B, new tokens)


def decode(model: SynthesizerPreTrainedModel, batch: Batch) -> Decoded:
    """Decode greedily, with the cache and past every end token; the best time counts."""
    inputs = {name: tensor.to(model.device) for name, tensor in batch.inputs.items()}
    is_decoder = model.config.kind == "decoder"
    room = model.config.max_len if is_decoder else model.config.decoder_max_len
    new = min(NEW_TOKENS, room // 2) if is_decoder else min(NEW_TOKENS, room)
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
