"""What replacing heads saves: parameters, FLOPs, cache, and the time that a forward pass takes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from synthesizer.audit.converted import kept_keys
from synthesizer.audit.hook import Layer
from synthesizer.benchmark.clock import Timing, time_in_turn

LENGTHS = (64, 256, 512)  # timed where the user names none
MOST_TOKENS = 2048  # of a timed pass
MOST_WORK = 5e10  # its tokens times the model's parameters: large models are timed on fewer
ROUNDS = 3
_FLOAT = 4  # bytes


@dataclass(frozen=True)
class Size:
    """All attention layers together, biases aside."""

    parameters: int  # of projections and tables
    flops: int  # of a token in a text of this length
    cache_bytes: int  # of a decoded token


def size_with(
    layers: Sequence[Layer], d_model: int, length: int, replaced: Iterable[tuple[int, int]]
) -> Size:
    """The size of attention with these (layer, head)s replaced by tables of this length."""
    gone = {place: list(layer.tables) for place, layer in enumerate(layers)}
    for place, head in replaced:
        gone[place].append(head)
    parameters = flops = cache = 0
    for place, layer in enumerate(layers):
        facts = {**asdict(layer), "heads": gone[place]}
        dots, keys = layer.num_heads - len(facts["heads"]), len(kept_keys(facts))
        weights = d_model * layer.d_head * (dots + keys + layer.num_key_heads + layer.num_heads)
        parameters += weights + len(facts["heads"]) * (2 * length + 1)
        flops += 2 * weights + 2 * length * layer.d_head * (dots + layer.num_heads)
        cache += _FLOAT * layer.d_head * (keys + layer.num_key_heads) if layer.causal else 0
    return Size(parameters, flops, cache)


def random_texts(model: PreTrainedModel, length: int) -> dict[str, Tensor]:
    """Unpadded texts of random tokens: neither changes what is computed."""
    vocabulary = model.config.get_text_config().vocab_size
    ids = torch.randint(vocabulary, (num_timed(model, length), length))
    return {"input_ids": ids} | (
        {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    )


def num_timed(model: PreTrainedModel, length: int) -> int:
    """How many examples of this length a timed pass reads."""
    tokens = min(MOST_TOKENS, MOST_WORK / sum(p.numel() for p in model.parameters()))
    return max(1, int(tokens) // length)


def measure_speed(
    models: Mapping[int, PreTrainedModel], batches: Mapping[int, dict[str, Tensor]]
) -> list[dict[str, Any]]:
    """Milliseconds of a forward pass over a batch of each length, best of ROUNDS.

    Models are named by how many of their heads are replaced, and are timed in turn.
    """
    rows = []
    for length, inputs in batches.items():
        works = [partial(_forward, model, inputs) for model in models.values()]
        rounds = list(time_in_turn(works, ROUNDS, torch.device("cpu")))
        tokens = length * len(next(iter(inputs.values())))
        for replaced, seconds in zip(models, zip(*rounds, strict=True), strict=True):
            best = 1000 * Timing(seconds).best
            rows.append({"length": length, "tokens": tokens, "replaced": replaced, "ms": best})
    return rows


@torch.no_grad()
def _forward(model: PreTrainedModel, inputs: dict[str, Tensor]) -> object:
    return model(**inputs)
