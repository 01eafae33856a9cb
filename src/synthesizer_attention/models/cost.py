"""What a model costs: parameters by part, arithmetic and memory per token."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers.cache_utils import Cache, EncoderDecoderCache

from synthesizer_attention.attention.layer import SyntheticAttention
from synthesizer_attention.attention.masks import visible_keys
from synthesizer_attention.attention.synthesis import Random
from synthesizer_attention.models.backbone import SynthesizerPreTrainedModel
from synthesizer_attention.models.config import SynthesizerConfig
from synthesizer_attention.models.heads import MODELS

PARTS = {
    "cross": "cross-attention",
    "synthesis": "attention logits",
    "attention": "attention values and output",
    "feed_forward": "feed-forward",
    "embedding": "embedding",
    "lm_head": "output head",
    "score": "output head",
}
"""Which module name makes a parameter part of what; the first that a name contains decides."""


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Trained parameters in total and by part, tied ones once."""
    counts = {"total": 0}
    for name, parameter in model.named_parameters():
        words = name.split(".")
        found = [part for word, part in PARTS.items() if word in words]
        part = "norms" if "norm" in name else next(iter(found), "positions")
        counts["total"] += parameter.numel()
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


def unread_parameters(model: nn.Module) -> int:
    """Entries of learned tables that no query can ever read, behind causality and windows."""
    count = 0
    for module in model.modules():
        if isinstance(module, SyntheticAttention):
            tables = [part for part in module.synthesis.modules() if isinstance(part, Random)]
            for table in tables:
                heads, length, _ = table.table.shape
                rule = (module.causal, length, length, torch.device("cpu"), module.window)
                seen = visible_keys(None, *rule)
                count += 0 if seen is None else heads * int((~seen).sum())
    return count


def flops_per_token(config: SynthesizerConfig) -> float:
    """Multiplications and additions of a forward pass over the longest sequence, per token.

    Counted on the plain path: the counter does not see into fused kernels.
    """
    model = sketch(config).requires_grad_(False)  # the counter hooks gradients, if there are any
    lengths = {"input_ids": config.max_len}
    if config.kind == "encoder_decoder":
        lengths["labels"] = config.decoder_max_len
    inputs = {
        name: torch.zeros(1, length, dtype=torch.long, device="meta")
        for name, length in lengths.items()
    }
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(**inputs)
    return counter.get_total_flops() / sum(lengths.values())


def cache_bytes_per_token(config: SynthesizerConfig) -> int | None:
    """What decoding keeps of each token, in float32; None where nothing decodes."""
    if config.kind == "encoder":
        return None
    return _cache_bytes(config, 2) - _cache_bytes(config, 1)  # a window does not grow


def sketch(config: SynthesizerConfig) -> SynthesizerPreTrainedModel:
    """A model on the meta device: shapes without memory."""
    with torch.device("meta"):
        model: SynthesizerPreTrainedModel = MODELS[str(config.kind)](config)
    return model.eval()


def _cache_bytes(config: SynthesizerConfig, length: int) -> int:
    ids = torch.zeros(1, length, dtype=torch.long, device="meta")
    given = {"labels": ids} if config.kind == "encoder_decoder" else {}
    with torch.no_grad():
        cache: Cache = sketch(config)(input_ids=ids, use_cache=True, **given).past_key_values
    own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    kept = [tensor for layer in own.layers for tensor in (layer.keys, layer.values)]
    return sum(tensor.numel() * 4 for tensor in kept if tensor is not None)
