"""The models: a causal LM, an encoder-decoder, a classifier, and the body without a head.

They behave as any other Hugging Face model; importing this file registers the Auto classes.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypedDict, Unpack, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    GenerationMixin,
)
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    Seq2SeqLMOutput,
    SequenceClassifierOutput,
)
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from synthesizer_attention.attention.hook import linear
from synthesizer_attention.errors import UserError
from synthesizer_attention.models.backbone import (
    SynthesizerModel,
    SynthesizerPreTrainedModel,
    find_packing,
    packed_positions,
)
from synthesizer_attention.models.config import SynthesizerConfig
from synthesizer_attention.models.generation import SynthesizerGeneration
from synthesizer_attention.models.layers import HOOK

IGNORED = -100


@dataclass
class CausalLMOutput(CausalLMOutputWithPast):
    """Of a causal language model; num_steps as in StatesOutput."""

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


class Options(TypedDict, total=False):
    """Keywords that every model passes on to its body."""

    output_attentions: bool | None
    output_hidden_states: bool | None


class CausalOptions(Options, total=False):
    """Of these a Trainer must not see shift_labels as an argument: it would ask for them, too."""

    shift_labels: Tensor | None


class LanguageModel(SynthesizerPreTrainedModel, SynthesizerGeneration, GenerationMixin):
    """A body and a head over the vocabulary."""

    kind: ClassVar[str]
    _tied_weights_keys = {"lm_head.weight": "model.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: SynthesizerConfig) -> None:
        super().__init__(config.of_kind(self.kind))
        self.model = SynthesizerModel(self.config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    def _logits(self, states: Tensor, kept: int) -> Tensor:
        """Of the last `kept` states (B, T, D), or of all where it is 0: (B, T, vocabulary)."""
        is_hooked = HOOK in vars(self.lm_head)  # its weight may be there only while it is called
        head = self.lm_head if is_hooked else partial(linear, self.lm_head)
        return cast(Tensor, head(states[:, -kept:]))


class SynthesizerForCausalLM(LanguageModel, GenerationMixin):
    """A decoder that predicts each next token.

    Args:
        config: The settings of the model.
    """

    kind = "decoder"

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: Tensor | int | None = None,
        **options: Unpack[CausalOptions],
    ) -> CausalLMOutput:
        """Labels are the inputs themselves: the model shifts them; -100 is not scored.

        shift_labels, already shifted, take their place where they are given. Rows may hold several
        sequences: position_ids that start again at 0, or cu_seq_lens_q, say where they begin.
        """
        shift_labels = options.pop("shift_labels", None)
        tokens = inputs_embeds if input_ids is None else input_ids
        if tokens is not None and options:
            position_ids = packed_positions(self.kind, options, position_ids, tokens)
        given = {"past_key_values": past_key_values, "use_cache": use_cache, **options}
        output = self.model(
            input_ids, attention_mask, position_ids, inputs_embeds=inputs_embeds, **given
        )
        logits = self._logits(output.last_hidden_state, logits_to_keep)
        loss = None
        if labels is not None and shift_labels is None:
            # the labels move, not the logits: cutting off their last row would copy them all
            shift_labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
            packing = None
            if position_ids is not None:
                packing = find_packing(position_ids, attention_mask, *labels.shape)
            if packing is not None:  # no sequence predicts the first token of the next
                next_starts = F.pad(packing.starts[:, 1:], (0, 1))
                shift_labels = shift_labels.masked_fill(next_starts, IGNORED)
        if shift_labels is not None:
            loss = model_loss(self, logits, shift_labels, num_items_in_batch, output.ponder_cost)
        return CausalLMOutput(loss=loss, logits=logits, **_beside_states(output))


class SynthesizerForConditionalGeneration(LanguageModel, GenerationMixin):
    """An encoder and a decoder: from one text to another.

    Args:
        config: The settings of the model.
    """

    kind = "encoder_decoder"

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self.model.get_encoder()

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Shift labels (B, T) right behind the start token; what is not scored becomes padding."""
        start, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None or pad is None:
            raise UserError("to make decoder inputs of labels, set the config's pad_token_id")
        shifted = torch.cat([labels.new_full((labels.shape[0], 1), start), labels[:, :-1]], dim=1)
        return shifted.masked_fill(shifted == IGNORED, pad)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: Tensor | int | None = None,
        **options: Unpack[Options],
    ) -> ConditionalOutput:
        """Labels are the target tokens, last one eos; -100 is not scored."""
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        output = self.model(
            *(input_ids, attention_mask, None, decoder_input_ids, decoder_attention_mask),
            *(encoder_outputs, past_key_values, inputs_embeds, decoder_inputs_embeds, use_cache),
            **options,
        )
        logits = self._logits(output.last_hidden_state, logits_to_keep)
        loss = None
        if labels is not None:
            loss = model_loss(self, logits, labels, num_items_in_batch, output.ponder_cost)
        return ConditionalOutput(loss=loss, logits=logits, **_beside_states(output))


class SynthesizerForSequenceClassification(SynthesizerPreTrainedModel):
    """An encoder whose pooled states name a class, or a number where num_labels is 1.

    Labels (B, num_labels) of 0 and 1 are several labels at once. The config's problem_type, if
    given, decides: "regression", "single_label_classification", "multi_label_classification".

    Args:
        config: The settings of the model; its `num_labels` counts the classes.
    """

    def __init__(self, config: SynthesizerConfig) -> None:
        super().__init__(config.of_kind("encoder"))
        self.model = SynthesizerModel(self.config)
        self.dropout = nn.Dropout(config.dropout)
        self.score = nn.Linear(config.d_model, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **options: Unpack[Options],
    ) -> ClassifierOutput:
        output = self.model(
            input_ids, attention_mask, position_ids, inputs_embeds=inputs_embeds, **options
        )
        pooled = pool(output.last_hidden_state, attention_mask, self.config.pooling)
        logits = self.score(self.dropout(pooled))
        loss = None
        if labels is not None:
            loss = self._loss(logits, labels, num_items_in_batch, output.ponder_cost)
        return ClassifierOutput(loss=loss, logits=logits, **_beside_states(output))

    def _loss(
        self,
        logits: Tensor,
        labels: Tensor,
        num_items: Tensor | int | None,
        ponder_cost: Tensor | None,
    ) -> Tensor:
        problem = self.config.problem_type
        if problem is None and self.config.num_labels == 1:
            problem = "regression"
        if problem is None:
            kind = "single" if labels.numel() == labels.shape[0] else "multi"
            problem = f"{kind}_label_classification"
        if problem == "single_label_classification":
            return model_loss(self, logits, labels, num_items, ponder_cost)
        if labels.numel() != logits.numel():
            raise UserError(
                f"labels have shape {tuple(labels.shape)} for {problem}; expected "
                f"{tuple(logits.shape)}, a number for each example and label"
            )
        is_regression = problem == "regression"
        distance = F.mse_loss if is_regression else F.binary_cross_entropy_with_logits
        count = labels.numel() if num_items is None else num_items
        loss = distance(logits, labels.to(logits.dtype).view_as(logits), reduction="sum") / count
        return with_ponder_cost(self, loss, labels, num_items, ponder_cost)


def _beside_states(output: ModelOutput) -> dict[str, Any]:
    """What a model with a head returns of its body's output."""
    return {n: v for n, v in output.items() if n not in ("last_hidden_state", "ponder_cost")}


def model_loss(
    model: SynthesizerPreTrainedModel,
    logits: Tensor,
    targets: Tensor,
    num_items: Tensor | int | None,
    ponder_cost: Tensor | None,
) -> Tensor:
    """The loss of targets; in training smoothed, and with the cost (B,) of a universal model."""
    smoothing = model.config.label_smoothing if model.training else 0.0
    loss = token_loss(logits, targets, smoothing, num_items)
    return with_ponder_cost(model, loss, targets, num_items, ponder_cost)


def token_loss(
    logits: Tensor, targets: Tensor, smoothing: float, num_items: Tensor | int | None
) -> Tensor:
    """Cross-entropy summed over the scored targets and divided by num_items, or by their count."""
    loss = F.cross_entropy(
        logits.flatten(0, -2).float(),
        targets.flatten(),
        ignore_index=IGNORED,
        label_smoothing=smoothing,
        reduction="sum",
    )
    return loss / ((targets != IGNORED).sum().clamp(min=1) if num_items is None else num_items)


def with_ponder_cost(
    model: SynthesizerPreTrainedModel,
    loss: Tensor,
    targets: Tensor,
    num_items: Tensor | int | None,
    cost: Tensor | None,
) -> Tensor:
    """Add the mean cost (B,) of examples, each counted as often as it has scored targets.

    So it is divided as the loss of the targets is, and sums over parts of a batch as that does.
    """
    if cost is None or not model.training:
        return loss
    scored = (targets != IGNORED).reshape(targets.shape[0], -1).sum(1)
    count = scored.sum().clamp(min=1) if num_items is None else num_items
    return loss + model.config.ponder_cost * ((cost * scored).sum() / count)


def pool(x: Tensor, attention_mask: Tensor | None, pooling: str) -> Tensor:
    """(B, T, D) -> (B, D): the first real token, or the mean of the real tokens."""
    if attention_mask is None:
        attention_mask = x.new_ones(x.shape[:2])
    if pooling == "cls":
        return x[torch.arange(x.shape[0], device=x.device), attention_mask.int().argmax(-1)]
    real = attention_mask.to(x.dtype)[..., None]
    return (x * real).sum(1) / real.sum(1).clamp(min=1)


MODELS: dict[str, type[SynthesizerPreTrainedModel]] = {
    "decoder": SynthesizerForCausalLM,
    "encoder_decoder": SynthesizerForConditionalGeneration,
    "encoder": SynthesizerForSequenceClassification,
}

AutoConfig.register("synthesizer", SynthesizerConfig, exist_ok=True)
AutoModel.register(SynthesizerConfig, SynthesizerModel, exist_ok=True)
AutoModelForCausalLM.register(SynthesizerConfig, SynthesizerForCausalLM, exist_ok=True)
AutoModelForSeq2SeqLM.register(
    SynthesizerConfig, SynthesizerForConditionalGeneration, exist_ok=True
)
AutoModelForSequenceClassification.register(
    SynthesizerConfig, SynthesizerForSequenceClassification, exist_ok=True
)
