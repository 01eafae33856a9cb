"""Batch: what one step of a model is fed; the only code that pads, packs or shifts."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Inputs of one forward pass, and what they amount to."""

    inputs: dict[str, Tensor]  # the model's keyword arguments: input_ids, attention_mask, labels
    num_targets: int  # that count in the loss: what it is divided by, summed over processes
    num_tokens: int  # real ones, of inputs and targets
    indices: tuple[int, ...]  # which examples or windows of the split, in order
