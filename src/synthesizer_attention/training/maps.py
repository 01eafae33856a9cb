"""The attention weights of a trained model, small enough to keep with every run: attention.npz.

    <stack>.map         (layers, H, T, T)  uint8, 255 is a weight of one: the first example's corner
    <stack>.sharpness   (layers, H)        1 - entropy / log(visible keys), mean over tokens
    <stack>.histogram   (2, layers, bins)  how many weights are how large, at start and end
    <stack>.alphas      (layers, H, parts) of mixtures, as many parts as the widest has; others NaN
    <stack>.layers      (layers,)          which layers have attention at all
    <stack>.tokens      (bytes,)           uint8: the map's tokens, UTF-8, a zero behind each
    edges               (bins + 1,)        of the histograms, in powers of ten

A stack is "encoder" or "decoder". Tokens are kept where samples.txt shows texts, too.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from synthesizer_attention.attention.layer import SyntheticAttention
from synthesizer_attention.attention.synthesis import Mixture
from synthesizer_attention.data.batch import IGNORED
from synthesizer_attention.models.backbone import SynthesizerPreTrainedModel
from synthesizer_attention.training.evaluate import evaluating, unlabelled

Array = NDArray[Any]

EDGES = np.linspace(-6.0, 0.0, 49)
MAP_BYTES = 48_000  # of all maps together, before compression


Seen = tuple[int, Tensor]
"""A layer, and the weights (B, H, T, S) that it gave."""


def inspect(
    start: SynthesizerPreTrainedModel, end: SynthesizerPreTrainedModel, inputs: dict[str, Tensor]
) -> dict[str, Array]:
    """All that attention.npz keeps of a model at its start and its end, on a few examples."""
    before, after = look_at(start, inputs), look_at(end, inputs)
    shown = sum(len(seen) * seen[0][1].shape[1] for seen in after.values() if seen)
    side = int((MAP_BYTES / max(1, shown)) ** 0.5)
    arrays: dict[str, Array] = {"edges": EDGES}
    for stack, layers in after.items():
        if not layers:
            continue
        mask = mask_of(end, stack, inputs)
        length = min(side, int(mask[0].sum()))
        corners = [weights[0, :, :length, :length] for _, weights in layers]
        arrays[f"{stack}.map"] = np.stack(
            [(corner * 255).round().to(torch.uint8).cpu().numpy() for corner in corners]
        )
        arrays[f"{stack}.sharpness"] = np.stack([sharpness(seen, mask) for _, seen in layers])
        arrays[f"{stack}.histogram"] = np.stack(
            [[histogram(seen, mask) for _, seen in moment] for moment in (before[stack], layers)]
        )
        arrays[f"{stack}.layers"] = np.array([layer for layer, _ in layers], dtype=np.int64)
        alphas = alphas_of(end, stack)
        if alphas is not None:
            arrays[f"{stack}.alphas"] = alphas
    return arrays


def tokens_of(
    model: SynthesizerPreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    inputs: dict[str, Tensor],
    arrays: dict[str, Array],
) -> dict[str, Array]:
    """What the rows and columns of the maps stand for."""
    found = {}
    for stack in ("encoder", "decoder"):
        if f"{stack}.map" not in arrays:
            continue
        ids = inputs["input_ids"][0].tolist()
        if stack == "decoder" and model.config.kind == "encoder_decoder":  # reads its labels later
            ids = [model.config.decoder_start_token_id, *inputs["labels"][0].tolist()]
        length = arrays[f"{stack}.map"].shape[-1]
        words = [str(tokenizer.decode([one])).replace("\0", " ") + "\0" for one in ids[:length]]
        found[f"{stack}.tokens"] = np.frombuffer("".join(words).encode(), dtype=np.uint8)
    return found


def look_at(model: SynthesizerPreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, list[Seen]]:
    """The weights of every attention layer, stack by stack; other token mixers have none."""
    kind = model.config.kind
    stacks = ("encoder", "decoder") if kind == "encoder_decoder" else (kind,)
    found: dict[str, list[Seen]] = {stack: [] for stack in stacks}
    given = dict(inputs) if kind == "encoder_decoder" else unlabelled(inputs)
    with ExitStack() as hooks, evaluating(model):
        for stack in stacks:
            for index, attention in _attentions(model, stack):
                watch = partial(_watch, found[stack], index)
                handle = attention.register_forward_pre_hook(watch, with_kwargs=True)
                hooks.callback(handle.remove)
        model(**given)
    return found


def sharpness(weights: Tensor, mask: Tensor) -> Array:
    """1 - entropy / log(visible keys) per head, mean over real tokens that see more than one."""
    weights, real = weights.double(), mask.bool()
    entropy = -(weights * weights.clamp(min=1e-300).log()).sum(-1)  # (B, H, T)
    visible = (weights > 0).sum(-1)
    counted = real[:, None] & (visible > 1)
    share = 1 - entropy / visible.clamp(min=2).double().log()
    total = (share * counted).sum((0, 2)) / counted.sum((0, 2)).clamp(min=1)
    return np.asarray(total.cpu().numpy(), dtype=np.float32)


def histogram(weights: Tensor, mask: Tensor) -> Array:
    """How many of the weights that real tokens give fall between two EDGES, in powers of ten."""
    rows = weights.transpose(1, 2)[mask.bool()]  # (tokens, H, S)
    seen = rows[rows > 0].double().log10().clamp(min=EDGES[0], max=EDGES[-1])
    return np.histogram(seen.cpu().numpy(), EDGES)[0]


def alphas_of(model: SynthesizerPreTrainedModel, stack: str) -> Array | None:
    """The weights of the parts of every mixture, NaN where a layer has fewer or none."""
    mixtures = {
        index: attention.synthesis.alphas().detach().cpu().numpy()
        for index, attention in _attentions(model, stack)
        if isinstance(attention.synthesis, Mixture)
    }
    nothing = np.empty((model.config.num_heads, 0))
    whole = getattr(model.base_model, stack)
    found = [mixtures.get(step % len(whole.layers), nothing) for step in range(whole.num_steps)]
    widest = max(part.shape[1] for part in found)
    if widest == 0:
        return None
    pads = [((0, 0), (0, widest - part.shape[1])) for part in found]
    padded = [np.pad(a, pad, constant_values=np.nan) for a, pad in zip(found, pads, strict=True)]
    return np.stack(padded).astype(np.float32)


def mean_sharpness(arrays: dict[str, Array]) -> dict[str, float]:
    """One number per stack, for result.json."""
    return {
        name.removesuffix(".sharpness"): float(values.mean())
        for name, values in arrays.items()
        if name.endswith(".sharpness")
    }


def _attentions(
    model: SynthesizerPreTrainedModel, stack: str
) -> Iterator[tuple[int, SyntheticAttention]]:
    for index, layer in enumerate(getattr(model.base_model, stack).layers):
        if isinstance(layer.attention, SyntheticAttention):
            yield index, layer.attention


def _watch(
    found: list[Seen],
    layer: int,
    attention: SyntheticAttention,
    args: tuple[Tensor],
    given: dict[str, Any],
) -> None:
    """Note the weights of a call to come; a universal layer is called at each step."""
    asked: dict[str, Any] = {name: value for name, value in given.items() if name != "cache"}
    step = sum(seen >= layer for seen, _ in found)
    found.append((layer + step, attention.weights(args[0], **asked)))


def mask_of(model: SynthesizerPreTrainedModel, stack: str, inputs: dict[str, Tensor]) -> Tensor:
    """Which tokens of a stack are real."""
    if stack == "decoder" and model.config.kind == "encoder_decoder":
        return inputs["labels"] != IGNORED
    mask = inputs.get("attention_mask")
    return torch.ones_like(inputs["input_ids"], dtype=torch.bool) if mask is None else mask.bool()
