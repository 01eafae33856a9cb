"""What the models return: Hugging Face's outputs, and the depth of a universal model.

num_steps    (B,)    steps that the real tokens of an example took on average; None elsewhere
ponder_cost  (B,)    what they cost, as it enters the loss in training
"""

from dataclasses import dataclass

from torch import Tensor
from transformers.modeling_outputs import (
    BaseModelOutputWithPastAndCrossAttentions,
    CausalLMOutputWithPast,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
    SequenceClassifierOutput,
)


@dataclass
class StatesOutput(BaseModelOutputWithPastAndCrossAttentions):
    """Of one stack."""

    num_steps: Tensor | None = None
    ponder_cost: Tensor | None = None


@dataclass
class Seq2SeqStatesOutput(Seq2SeqModelOutput):
    """Of an encoder and a decoder; the cost is of both."""

    num_steps: Tensor | None = None
    encoder_num_steps: Tensor | None = None
    ponder_cost: Tensor | None = None


@dataclass
class CausalLMOutput(CausalLMOutputWithPast):
    """Of a causal language model."""

    num_steps: Tensor | None = None


@dataclass
class ConditionalOutput(Seq2SeqLMOutput):
    """Of an encoder-decoder with its head."""

    num_steps: Tensor | None = None
    encoder_num_steps: Tensor | None = None


@dataclass
class ClassifierOutput(SequenceClassifierOutput):
    """Of a classifier."""

    num_steps: Tensor | None = None
