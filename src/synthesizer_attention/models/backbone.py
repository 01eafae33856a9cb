"""The body of every model: embeddings, an encoder and a decoder, in Hugging Face's terms."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from synthesizer_attention.attention.baselines import BASELINES, spec_of_mixer
from synthesizer_attention.attention.hook import kernels
from synthesizer_attention.attention.layer import Inputs
from synthesizer_attention.attention.masks import (
    check_mask,
    check_tensor,
    is_readable,
    locate,
    real_tokens,
    too_long,
)
from synthesizer_attention.attention.synthesis import Size, Synthesis
from synthesizer_attention.errors import UserError
from synthesizer_attention.models.cache import SynthesizerCache, encoder_decoder_cache
from synthesizer_attention.models.config import SynthesizerConfig
from synthesizer_attention.models.kept import Kept
from synthesizer_attention.models.layers import (
    Context,
    RelativeBias,
    Stack,
    StackOutput,
)
from synthesizer_attention.models.outputs import Seq2SeqStatesOutput, StatesOutput
from synthesizer_attention.models.packed import (
    NAMES,
    Packing,
    find_packing,
    packed_positions,
    refuse_packed,
)
from synthesizer_attention.models.universal import Halting, UniversalStack, build_stack
from synthesizer_attention.spec import NONE, expand_layers

DRAW_THEMSELVES = (
    Synthesis,
    *BASELINES.values(),
    RelativeBias,
    Halting,
    nn.LayerNorm,
    nn.RMSNorm,
)


class Wanted(NamedTuple):
    """What a caller asked for beside the last states."""

    cache: bool
    attentions: bool
    states: bool


class SynthesizerPreTrainedModel(Kept):
    """What all Synthesizer models share: their config, how they start, how they grow."""

    config_class = SynthesizerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True  # num_items_in_batch, which a Trainer counts over its processes
    _no_split_modules = ["Layer"]  # noqa: RUF012

    def _init_weights(self, module: nn.Module) -> None:
        """Draw one module anew; Hugging Face skips what a checkpoint has filled."""
        if isinstance(module, DRAW_THEMSELVES):
            module.reset_parameters()
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.d_model**-0.5)

    def resize(self, max_len: int, decoder_max_len: int | None = None) -> None:
        """Grow or crop the longest sequence, keeping what was learned; the config follows."""
        config, bare = self.config, self.base_model
        decoder_max_len = decoder_max_len or max_len
        for length in (max_len, decoder_max_len):
            Size(config.d_model, config.num_heads, length)
        first = bare.decoder if config.kind == "decoder" else bare.encoder
        first.resize(max_len)
        config.max_len, config.synthesis = max_len, _specs_of(first)
        config.decoder_max_len = decoder_max_len
        if config.kind == "encoder_decoder":
            bare.decoder.resize(decoder_max_len)
            config.decoder_synthesis = _specs_of(bare.decoder)


class SynthesizerModel(SynthesizerPreTrainedModel):
    """Embeddings and stacks, without a head: a decoder, an encoder, or both."""

    encoder: Stack | UniversalStack
    decoder: Stack | UniversalStack

    def __init__(self, config: SynthesizerConfig) -> None:
        super().__init__(config.of_kind(config.kind or "decoder"))
        config = self.config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        specs = expand_layers(config.synthesis, config.num_layers)
        first = build_stack(config.encoder_shape(), specs)
        if config.kind == "decoder":
            self.decoder = first
        else:
            self.encoder = first
        if config.kind == "encoder_decoder":
            specs = expand_layers(config.decoder_synthesis, config.num_decoder_layers)
            self.decoder = build_stack(config.decoder_shape(), specs)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embedding = value

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        """The encoder as `generate` calls it: from token ids to states."""
        return EncoderOf(self)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **packing: object,
    ) -> BaseModelOutput | Seq2SeqStatesOutput:
        if packing:
            tokens = input_ids if inputs_embeds is None else inputs_embeds
            position_ids = self._read_packing(packing, position_ids, tokens)
        wanted = self._wanted(use_cache, output_attentions, output_hidden_states)
        given = decoder_input_ids is not None or decoder_inputs_embeds is not None
        if self.config.kind == "encoder_decoder" and not given:
            raise UserError("an encoder-decoder needs decoder_input_ids, or labels to make them of")
        if encoder_outputs is None:
            x = self._embed(input_ids, inputs_embeds)
            if self.config.kind == "decoder":
                return self._decode(x, attention_mask, position_ids, past_key_values, wanted)
            encoder_outputs = self._encode(x, attention_mask, position_ids, wanted)
            if self.config.kind == "encoder":
                return encoder_outputs
        if not isinstance(encoder_outputs, ModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        x = self._embed(decoder_input_ids, decoder_inputs_embeds, "decoder_")
        memory = encoder_outputs.last_hidden_state
        decoded = self._decode(
            x, decoder_attention_mask, None, past_key_values, wanted, memory, attention_mask
        )
        costs = [decoded.get("ponder_cost"), encoder_outputs.get("ponder_cost")]
        known = [cost for cost in costs if cost is not None]
        return Seq2SeqStatesOutput(
            last_hidden_state=decoded.last_hidden_state,
            past_key_values=decoded.past_key_values,
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=memory,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
            num_steps=decoded.num_steps,
            encoder_num_steps=encoder_outputs.get("num_steps"),
            ponder_cost=torch.stack(known).sum(0) if known else None,
        )

    def _read_packing(
        self, packing: dict[str, object], position_ids: Tensor | None, tokens: Tensor | None
    ) -> Tensor | None:
        """The position_ids that cu_seq_lens_q and its like say."""
        unknown = [name for name in packing if name not in NAMES]
        if unknown:
            raise TypeError(
                f"SynthesizerModel.forward() got an unexpected keyword argument '{unknown[0]}'"
            )
        if self.config.kind != "decoder" or tokens is None:
            refuse_packed(packing)
            return position_ids
        return packed_positions(packing, position_ids, *tokens.shape[:2])

    def _encode(
        self,
        x: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        wanted: Wanted,
    ) -> BaseModelOutput:
        attention_mask = _as_booleans(attention_mask)
        context = self._context(self.encoder, x, attention_mask, position_ids, 0, wanted)
        return _as_output(self.encoder(x, context), wanted, None)

    def _decode(
        self,
        x: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: Cache | None,
        wanted: Wanted,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> StatesOutput:
        attention_mask = _as_booleans(attention_mask)
        wants_more = wanted.attentions or wanted.states or torch.compiler.is_compiling()
        if isinstance(cache, SynthesizerCache) and not wants_more:
            given = (attention_mask, position_ids)
            states = kernels().decode_token(self.decoder, x, cache.layers, *given)
            if states is not None:
                return StatesOutput(last_hidden_state=states, past_key_values=cache)
        if memory is None and position_ids is not None:
            packing = find_packing(position_ids, attention_mask, *x.shape[:2])
            if packing is not None:
                return self._decode_packed(x, packing, cache, wanted)
        if cache is None and wanted.cache:
            new = SynthesizerCache if memory is None else encoder_decoder_cache
            cache = new(self.decoder.num_steps)
        own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        past = 0 if own is None else _past_of(own)
        context = self._context(self.decoder, x, attention_mask, position_ids, past, wanted)
        if own is not None:
            context = replace(context, caches=own.layers)
        if memory is not None:
            mask = _as_booleans(memory_mask)
            if mask is not None:
                check_mask(mask, x.shape[0], memory.shape[1])
                mask = _unless_all_real(mask)
            context = replace(context, memory=memory, memory_mask=mask, memory_cache=cache)
        return _as_output(self.decoder(x, context), wanted, cache)

    def _decode_packed(
        self, x: Tensor, packing: Packing, cache: Cache | None, wanted: Wanted
    ) -> StatesOutput:
        """Decode sequences that share rows as if each had its own; there is no cache of them."""
        unfit = {
            "past_key_values": cache is not None,
            "output_attentions": wanted.attentions,
            "a universal model": isinstance(self.decoder, UniversalStack),
        }
        for what, is_asked in unfit.items():
            if is_asked:
                raise UserError(
                    f"position_ids start again within a row: {what} cannot hold several sequences "
                    "in one; give each a row of its own"
                )
        wanted = wanted._replace(cache=False)
        output = self._decode(packing.split(x), packing.mask, None, None, wanted)
        output.last_hidden_state = packing.join(output.last_hidden_state)
        if output.hidden_states is not None:
            output.hidden_states = tuple(map(packing.join, output.hidden_states))
        return output

    def _context(
        self,
        stack: Stack | UniversalStack,
        x: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        past: int,
        wanted: Wanted,
    ) -> Context:
        num_keys = past + x.shape[1]
        if num_keys > stack.shape.max_len and not stack.any_length:
            raise too_long(num_keys, stack.shape.max_len)
        if attention_mask is not None:
            check_mask(attention_mask, x.shape[0], num_keys)
        mask = None if attention_mask is None else _unless_all_real(attention_mask)
        counted = positions = locate(mask, None, num_keys, x.device)
        if position_ids is not None:
            positions = _reconcile(position_ids, counted, mask, past)
        inputs = Inputs(mask, None if positions is counted else positions)
        return Context(inputs, positions, keep_weights=wanted.attentions)

    def _embed(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None, side: str = ""
    ) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise UserError(f"give {side}input_ids or {side}inputs_embeds, and not both")
        name = "input_ids" if inputs_embeds is None else "inputs_embeds"
        check_tensor(f"{side}{name}", input_ids if inputs_embeds is None else inputs_embeds)
        x = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        return x * self.config.d_model**0.5

    def _wanted(self, cache: bool | None, attentions: bool | None, states: bool | None) -> Wanted:
        config = self.config
        if cache is None:  # an exported program returns tensors alone
            exporting = torch.compiler.is_exporting()
            cache = config.use_cache and not self.training and not exporting
        return Wanted(
            cache=cache and not (self.training and self.is_gradient_checkpointing),
            attentions=config.output_attentions if attentions is None else attentions,
            states=config.output_hidden_states if states is None else states,
        )


class EncoderOf(nn.Module):
    """The encoder half of a model, embeddings included, without owning any of it."""

    def __init__(self, model: SynthesizerModel) -> None:
        super().__init__()
        self.__dict__["model"] = model

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool = True,
    ) -> BaseModelOutput:
        model: SynthesizerModel = self.__dict__["model"]
        wanted = model._wanted(False, output_attentions, output_hidden_states)
        return model._encode(model._embed(input_ids, inputs_embeds), attention_mask, None, wanted)


def _specs_of(stack: Stack | UniversalStack) -> str:
    specs = [
        NONE if layer.attention is None else spec_of_mixer(layer.attention)
        for layer in stack.layers
    ]
    return specs[0] if len(set(specs)) == 1 else ",".join(specs)


def _past_of(cache: Cache) -> int:
    if not isinstance(cache, SynthesizerCache):
        raise UserError(
            f"past_key_values is a {type(cache).__name__}, which cannot leave keys out; "
            "pass a SynthesizerCache, or nothing and use_cache=True"
        )
    return cache.get_seq_length()


def _as_booleans(attention_mask: Tensor | None) -> Tensor | None:
    """Read a mask once for all layers; one of another shape than (B, S) is refused later."""
    if attention_mask is None:
        return None
    check_tensor("attention_mask", attention_mask)
    return real_tokens(attention_mask) if attention_mask.dim() == 2 else attention_mask


def _unless_all_real(attention_mask: Tensor) -> Tensor | None:
    """Drop a mask that hides nothing, where it may be asked."""
    if not is_readable(attention_mask):
        return attention_mask
    return None if bool(attention_mask.all()) else attention_mask


def _reconcile(
    position_ids: Tensor, counted: Tensor, attention_mask: Tensor | None, past: int
) -> Tensor:
    """Choose the positions of all keys: those given for x, unless the mask counts the same."""
    num_queries = counted.shape[-1] - past
    here = counted[..., past:]
    if is_readable(position_ids):
        differs = position_ids != here
        if attention_mask is not None:
            differs = differs & attention_mask[:, past:].bool()
        if not bool(differs.any()):
            return counted
    if past:
        raise UserError(
            f"position_ids of {num_queries} tokens do not continue the {past} cached ones; "
            "leave them out: they are counted from attention_mask"
        )
    return position_ids


def _as_output(output: StackOutput, wanted: Wanted, cache: Cache | None) -> StatesOutput:
    return StatesOutput(
        last_hidden_state=output.x,
        past_key_values=cache,
        hidden_states=tuple(output.states) if wanted.states else None,
        attentions=tuple(output.weights) if wanted.attentions else None,
        cross_attentions=tuple(output.cross_weights) if wanted.attentions else None,
        num_steps=output.num_steps,
        ponder_cost=output.ponder_cost,
    )
