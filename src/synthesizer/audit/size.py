"""What replacing heads saves: parameters, FLOPs, cache, and the time that a forward pass takes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from synthesizer.audit.hook import Layer
from synthesizer.benchmark.clock import Timing, time_in_turn
from synthesizer.models.converted import kept_keys

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


def measure_speed(
    models: Mapping[int, PreTrainedModel], lengths: Iterable[int]
) -> list[dict[str, Any]]:
    """Milliseconds of a forward pass at several lengths, all models in turn, best of ROUNDS.

    Models are named by how many of their heads are replaced. Texts are unpadded and their tokens
    random: neither changes what is computed.
    """
    rows = []
    original = models[0]
    vocabulary = original.config.get_text_config().vocab_size
    tokens = min(MOST_TOKENS, MOST_WORK / sum(p.numel() for p in original.parameters()))
    for length in lengths:
        ids = torch.randint(vocabulary, (max(1, int(tokens) // length), length))
        works = [partial(_forward, model, ids) for model in models.values()]
        rounds = list(time_in_turn(works, ROUNDS, torch.device("cpu")))
        for replaced, seconds in zip(models, zip(*rounds, strict=True), strict=True):
            best = 1000 * Timing(seconds).best
            rows.append({"length": length, "tokens": ids.numel(), "replaced": replaced, "ms": best})
    return rows


@torch.no_grad()
def _forward(model: PreTrainedModel, ids: torch.Tensor) -> object:
    inputs = {"input_ids": ids}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids
    return model(**inputs)
