"""The body of every model: embeddings, an encoder and a decoder, in Hugging Face's terms.

Rows may hold several sequences, as training without padding packs them: positions that start again
at 0 say where one begins, and cu_seq_lens_q, its ends in a row, says the same. Each sequence then
goes through the layers in a row of its own, and its states return to where it lay.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqModelOutput,
)
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from synthesizer_attention.attention.baselines import SharedKernel, spec_of_mixer
from synthesizer_attention.attention.hook import kernels
from synthesizer_attention.attention.layer import Inputs
from synthesizer_attention.attention.masks import (
    check_mask,
    check_tensor,
    is_readable,
    is_transformed,
    locate,
    real_tokens,
    too_long,
)
from synthesizer_attention.attention.mixers import Mixer
from synthesizer_attention.attention.synthesis import Size, Synthesis
from synthesizer_attention.errors import UserError
from synthesizer_attention.models.config import SynthesizerConfig
from synthesizer_attention.models.generation import SynthesizerCache, new_cache
from synthesizer_attention.models.layers import Context, RelativeBias, Stack, StackOutput
from synthesizer_attention.models.universal import Halting, UniversalStack, build_stack
from synthesizer_attention.run.files import CONVERTED, MANIFEST, find_damage, remedy
from synthesizer_attention.spec import NONE, expand_layers

DRAW_THEMSELVES = (
    *(Synthesis, Mixer, SharedKernel, RelativeBias, Halting),
    *(nn.LayerNorm, nn.RMSNorm),
)
CUMULATIVE = ("cu_seq_lens_q", "cu_seq_lens_k")
PACKING = (*CUMULATIVE, "max_length_q", "max_length_k", "seq_idx")
"""What Hugging Face's and TRL's collators call sequences that share a row."""

ADVICE = "give each sequence a row of its own (packing=False, padding_free=False)"


@dataclass
class StatesOutput(BaseModelOutputWithPastAndCrossAttentions):
    """Of one stack, and how deep a universal one went."""

    num_steps: Tensor | None = None  # (B,), steps that an example's real tokens took on average
    ponder_cost: Tensor | None = None  # (B,), what they cost, as it enters the loss in training


@dataclass
class Seq2SeqStatesOutput(Seq2SeqModelOutput):
    """Of an encoder and a decoder; the cost is of both."""

    num_steps: Tensor | None = None
    encoder_num_steps: Tensor | None = None
    ponder_cost: Tensor | None = None


class Wanted(NamedTuple):
    """What a caller asked for beside the last states."""

    cache: bool
    attentions: bool
    states: bool


class Kept(PreTrainedModel):
    """A model whose folder is compared with the hashes in its converted.json, where it has one."""

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any  # noqa: ANN401
    ) -> Self:  # fmt: skip
        """As transformers does; files that are not as they were written are refused."""
        folder = Path(str(pretrained_model_name_or_path), kwargs.get("subfolder") or "")
        if damage := find_damage(folder / CONVERTED, ("",)):
            what = remedy(damage, "write the folder again by synthesizer convert")
            raise UserError(f"{folder}: {damage}; {what}")
        loaded: Self = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        return loaded

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """As transformers does; what is known of other files there is void."""
        for name in (CONVERTED, MANIFEST):
            Path(save_directory, name).unlink(missing_ok=True)
        super().save_pretrained(save_directory, *args, **kwargs)


class SynthesizerPreTrainedModel(Kept):
    """What all Synthesizer models share: their config, how they start, how they grow."""

    config_class = SynthesizerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True  # num_items_in_batch, which a Trainer counts over its processes
    _no_split_modules = ["Layer"]  # noqa: RUF012

    def _init_weights(self, module: nn.Module) -> None:
        """Draw one module anew, unless a checkpoint has filled it.

        Newer transformers skip filled modules; 5.4 marks their parameters alone.
        """
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if own and all(getattr(tensor, "_is_hf_initialized", False) for tensor in own):
            return
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
    """Embeddings and stacks, without a head: a decoder, an encoder, or both.

    Args:
        config: The settings of the model.
    """

    encoder: Stack | UniversalStack
    decoder: Stack | UniversalStack

    def __init__(self, config: SynthesizerConfig) -> None:
        super().__init__(config.of_kind(config.kind or "decoder"))
        config = self.config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        specs = expand_layers(config.synthesis, config.num_layers)
        first = build_stack(config.shape(), specs)
        if config.kind == "decoder":
            self.decoder = first
        else:
            self.encoder = first
        if config.kind == "encoder_decoder":
            specs = expand_layers(config.decoder_synthesis, config.num_decoder_layers)
            self.decoder = build_stack(config.shape(cross=True), specs)
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
            position_ids = packed_positions(self.config.kind, packing, position_ids, tokens)
        for name in packing:
            message = f"SynthesizerModel.forward() got an unexpected keyword argument '{name}'"
            raise TypeError(message)
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

    def _encode(
        self, x: Tensor, mask: Tensor | None, position_ids: Tensor | None, wanted: Wanted
    ) -> BaseModelOutput:
        context = self._context(self.encoder, x, _as_booleans(mask), position_ids, 0, wanted)
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
        attention_mask, memory_mask = map(_as_booleans, (attention_mask, memory_mask))
        wants_more = wanted.attentions or wanted.states or torch.compiler.is_compiling()
        own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        if isinstance(own, SynthesizerCache) and not wants_more:
            given = (attention_mask, position_ids, memory_mask)
            states = kernels().decode_token(self.decoder, x, cache, *given)
            if states is not None:
                return StatesOutput(last_hidden_state=states, past_key_values=cache)
        if memory is None and position_ids is not None:
            packing = find_packing(position_ids, attention_mask, *x.shape[:2])
            if packing is not None:
                return self._decode_packed(x, packing, cache, wanted)
        if cache is None and wanted.cache:
            cache = new_cache(self.decoder.num_steps, memory is not None)
            own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        if own is not None and not isinstance(own, SynthesizerCache):
            raise UserError(
                f"past_key_values is a {type(own).__name__}, which cannot leave keys out; "
                "pass a SynthesizerCache, or nothing and use_cache=True"
            )
        past = 0 if own is None else own.get_seq_length()
        context = self._context(self.decoder, x, attention_mask, position_ids, past, wanted)
        if own is not None:
            context = replace(context, caches=own.layers)
        if memory is not None:
            if memory_mask is not None:
                check_mask(memory_mask, x.shape[0], memory.shape[1])
                memory_mask = _unless_all_real(memory_mask)
            context = replace(context, memory=memory, memory_mask=memory_mask, memory_cache=cache)
        return _as_output(self.decoder(x, context), wanted, cache)

    def _decode_packed(
        self, x: Tensor, packing: "Packing", cache: Cache | None, wanted: Wanted
    ) -> StatesOutput:
        """Decode sequences that share rows as if each had its own; there is no cache of them."""
        unfit = {
            "past_key_values": cache is not None,
            "output_attentions": wanted.attentions,
            "a universal model": isinstance(self.decoder, UniversalStack),
        }
        for what in [name for name, is_asked in unfit.items() if is_asked]:
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
        mask: Tensor | None,
        position_ids: Tensor | None,
        past: int,
        wanted: Wanted,
    ) -> Context:
        num_keys = past + x.shape[1]
        if num_keys > stack.shape.max_len and not stack.any_length:
            raise too_long(num_keys, stack.shape.max_len)
        if mask is not None:
            check_mask(mask, x.shape[0], num_keys)
            mask = _unless_all_real(mask)
        counted = positions = locate(mask, None, num_keys, x.device)
        if position_ids is not None:
            positions = _reconcile(position_ids, counted, mask, past)
        inputs = Inputs(mask, None if positions is counted else positions)
        return Context(inputs, positions, keep_weights=wanted.attentions)

    def _embed(self, ids: Tensor | None, embeds: Tensor | None, side: str = "") -> Tensor:
        if (ids is None) == (embeds is None):
            raise UserError(f"give {side}input_ids or {side}inputs_embeds, and not both")
        name = "input_ids" if embeds is None else "inputs_embeds"
        check_tensor(f"{side}{name}", ids if embeds is None else embeds)
        return (self.embedding(ids) if embeds is None else embeds) * self.config.d_model**0.5

    def _wanted(self, cache: bool | None, attentions: bool | None, states: bool | None) -> Wanted:
        config = self.config
        if cache is None:  # an exported program returns tensors alone
            exporting = torch.compiler.is_exporting()
            cache = config.use_cache and not self.training and not exporting
        if cache and self.training:  # a checkpointed layer would write its cache twice
            cache = not any(getattr(m, "gradient_checkpointing", False) for m in self.modules())
        return Wanted(
            cache=cache,
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
    mixers = [layer.attention for layer in stack.layers]
    specs = [NONE if mixer is None else spec_of_mixer(mixer) for mixer in mixers]
    return specs[0] if len(set(specs)) == 1 else ",".join(specs)


def _as_booleans(attention_mask: Tensor | None) -> Tensor | None:
    """Read a mask once for all layers; one of another shape than (B, S) is refused later."""
    if attention_mask is None:
        return None
    check_tensor("attention_mask", attention_mask)
    return real_tokens(attention_mask) if attention_mask.dim() == 2 else attention_mask


def _unless_all_real(attention_mask: Tensor) -> Tensor | None:
    """Drop a mask that hides nothing, where it may be asked."""
    is_known = is_readable(attention_mask)
    return None if is_known and bool(attention_mask.all()) else attention_mask


def _reconcile(
    position_ids: Tensor, counted: Tensor, attention_mask: Tensor | None, past: int
) -> Tensor:
    """Choose the positions of all keys: those given for x, unless the mask counts the same."""
    num_queries = counted.shape[-1] - past
    if is_readable(position_ids):
        differs = position_ids != counted[..., past:]
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
    has_memory = wanted.attentions and output.cross_weights[0] is not None
    return StatesOutput(
        last_hidden_state=output.x,
        past_key_values=cache,
        hidden_states=tuple(output.states) if wanted.states else None,
        attentions=tuple(output.weights) if wanted.attentions else None,
        cross_attentions=tuple(output.cross_weights) if has_memory else None,
        num_steps=output.num_steps,
        ponder_cost=output.ponder_cost,
    )


class Packing(NamedTuple):
    """Where the N sequences of a batch (B, S) lie, one behind the other."""

    starts: Tensor  # (B, S), True where a sequence begins
    taken: Tensor  # (N, longest), False behind the end of a sequence
    mask: Tensor  # the same, False also at tokens that attention_mask hides

    def split(self, x: Tensor) -> Tensor:
        """(B, S, D) -> (N, longest, D), each sequence in a row of its own."""
        rows = x.new_zeros(*self.taken.shape, x.shape[-1])
        rows[self.taken] = x.flatten(0, 1)
        return rows

    def join(self, rows: Tensor) -> Tensor:
        """(N, longest, D) -> (B, S, D)."""
        return rows[self.taken].unflatten(0, self.starts.shape)


def find_packing(
    position_ids: Tensor, attention_mask: Tensor | None, batch: int, length: int
) -> Packing | None:
    """How rows are packed; None where each is one sequence, or positions are not 0, 1, 2, ..."""
    if length < 2 or position_ids.shape[-1] != length:
        return None
    if attention_mask is not None and attention_mask.shape != (batch, length):
        return None  # it counts cached tokens, too, or will be refused
    positions = position_ids.expand(batch, length)
    starts = positions == 0
    if not is_readable(position_ids):
        # A compiled graph refuses what it cannot split: its shapes do not depend on values.
        if not (torch.compiler.is_exporting() or starts.is_meta or is_transformed()):
            again = starts[:, 1:]
            if attention_mask is not None:
                again = again & attention_mask[:, 1:].bool() & attention_mask[:, :-1].bool()
            torch._assert_async(
                ~again.any(),
                "position_ids start again within a row: a compiled model takes no packed ones; "
                f"{ADVICE}",
            )
        return None
    follows = positions[:, 1:] == positions[:, :-1] + 1
    if not bool(starts[:, 1:].any() & (starts[:, 1:] | follows).all()):
        return None
    real = torch.ones_like(starts) if attention_mask is None else attention_mask.bool()
    counted = locate(attention_mask, None, length, positions.device)
    if bool(((positions == counted) | ~real).all()):  # padding alone is at position 0 again
        return None
    if not bool(starts[:, 0].all()):
        raise UserError(
            f"position_ids begin at {int(positions[:, 0].max())} and start again at 0 within a "
            "row; have each sequence of it begin at 0"
        )
    begins = starts.flatten().nonzero()[:, 0]
    lengths = begins.diff(append=begins.new_tensor([starts.numel()]))
    taken = torch.arange(int(lengths.max()), device=lengths.device) < lengths[:, None]
    mask = taken.clone()
    mask[taken] = real.flatten()
    return Packing(starts, taken, mask)


def packed_positions(
    kind: str | None, options: Any, position_ids: Tensor | None, tokens: Tensor | None  # noqa: ANN401
) -> Tensor | None:  # fmt: skip
    """Take from a call's options what says how a row is packed, as position_ids (1, S)."""
    said = {name: options.pop(name, None) for name in PACKING}
    ends, key_ends = (said[name] for name in CUMULATIVE)
    names = [name for name in PACKING if said[name] is not None]
    if names and (kind != "decoder" or tokens is None):
        raise UserError(
            f"{names[0]} says that a row holds several packed sequences, which only a causal "
            f"language model keeps apart; {ADVICE}"
        )
    if tokens is None or not names or (position_ids is not None and ends is None):
        return position_ids
    if ends is None:
        raise UserError(
            f"{names[0]} says that a row holds several sequences, and not where they begin; give "
            "cu_seq_lens_q, or position_ids that start again at 0"
        )
    if key_ends is not None and not (isinstance(key_ends, Tensor) and torch.equal(ends, key_ends)):
        raise UserError(
            "cu_seq_lens_q and cu_seq_lens_k differ, as for keys of a cache in pages, which a "
            f"Synthesizer does not have; {ADVICE}"
        )
    (batch, length), rising = tokens.shape[:2], bool((ends.diff() > 0).all())
    if batch != 1 or not rising or (int(ends[0]), int(ends[-1])) != (0, length):
        raise UserError(
            f"cu_seq_lens_q runs from {int(ends[0])} to {int(ends[-1])} over {batch} rows of "
            f"{length} tokens; expected one row, and numbers that rise from 0 to its length"
        )
    slots = torch.arange(length, device=ends.device)
    positions = (slots - ends[:-1].repeat_interleave(ends.diff()))[None]
    if position_ids is not None and not torch.equal(position_ids.expand(1, length), positions):
        raise UserError("position_ids and cu_seq_lens_q disagree; leave one of them out")
    return positions
