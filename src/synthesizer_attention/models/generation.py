"""Decoding as Hugging Face's `generate` wants it: the cache of each layer, and which limits hold.

A cache holds values, and keys only where a dot product needs them.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.generation import GenerationMode

from synthesizer_attention.attention.baselines import spec_of_mixer
from synthesizer_attention.attention.layer import SyntheticAttention, ValueCache
from synthesizer_attention.attention.masks import real_tokens
from synthesizer_attention.attention.mixers import Mixer
from synthesizer_attention.errors import UserError
from synthesizer_attention.models.config import SynthesizerConfig


class ValueLayer(ValueCache, DynamicLayer):
    """The cache of one layer, as Hugging Face's `generate` handles it."""

    def __init__(self) -> None:
        DynamicLayer.__init__(self)
        ValueCache.__init__(self)

    def lazy_initialization(self, key_states: Tensor | None, value_states: Tensor) -> None:
        self.dtype, self.device = value_states.dtype, value_states.device
        self.is_initialized = True

    def update(
        self, keys: Tensor | None, values: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor | None, Tensor]:
        self.lazy_initialization(keys, values)
        return super().update(keys, values)

    def keep(self, keys: Tensor | None, values: Tensor, num_new: int = 0) -> None:
        self.lazy_initialization(keys, values)
        super().keep(keys, values, num_new)

    def offload(self) -> None:
        self._change(lambda kept: kept.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        self._change(lambda kept: kept.to(self.device, non_blocking=True))

    def reset(self) -> None:
        ValueCache.__init__(self)
        self.is_initialized = False

    def crop(self, max_length: int) -> None:
        """Cut to max_length tokens, or take -max_length away where it is negative."""
        length = max_length if max_length > 0 else self.num_tokens + max_length
        if self.is_window and length < self.num_tokens:
            raise UserError(
                f"a cache of the last tokens alone, of {self.num_tokens} seen, cannot go back to "
                f"{length}; decode without an assistant"
            )
        if not self.is_window and length < self.num_tokens:
            self.num_tokens = length
            self._change(lambda kept: kept[..., :length, :])

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._change(lambda kept: kept.index_select(0, beam_idx.to(kept.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._change(lambda kept: kept.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._change(lambda kept: kept[indices])

    def _change(self, change: Callable[[Tensor], Tensor]) -> None:
        self.keys = None if self.keys is None else change(self.keys)
        self.values = None if self.values is None else change(self.values)


class SynthesizerCache(Cache):
    """The cache of a decoder as `generate` handles it: values, and keys where a layer needs them.

    Args:
        num_layers: Number of layers of the decoder.
    """

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[ValueLayer() for _ in range(num_layers)])


class PairedCache(EncoderDecoderCache):
    """The caches of a decoder with cross-attention, which can be cropped and chosen from."""

    def check_dynamic_cache(self, method: str) -> None:
        """Allow what Hugging Face allows of its own class alone: ValueLayer has every method."""


def new_cache(num_layers: int, has_memory: bool) -> Cache:
    """An empty cache of a decoder, and of what it reads of an encoder."""
    own = SynthesizerCache(num_layers)
    return PairedCache(own, DynamicCache()) if has_memory else own


class WuPenalty(float):
    """Beam search's length penalty of Wu et al. 2016, given as `length_penalty=WuPenalty(alpha)`.

    `generate` divides a hypothesis' log probability by length ** length_penalty, wherever lengths
    matter; of this exponent that power is ((5 + length) / 6)^alpha.
    """

    def __rpow__(self, length: float, modulo: None = None) -> float:
        return ((5 + length) / 6) ** float(self)


class SynthesizerGeneration:
    """Refuses what cannot be generated before the first token, and caches values only."""

    config: SynthesizerConfig
    base_model: Any  # the backbone

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: object,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        length = max_cache_length + 1  # with a prompt of embeddings, unlike max_length
        seq2seq: bool = self.config.is_encoder_decoder
        mask: Any = model_kwargs.get("attention_mask")
        self._check_length(length - 1 if seq2seq else length)  # a start token does not count
        is_padded = mask is not None and mask.dim() == 2 and not seq2seq
        if is_padded and not real_tokens(mask)[:, -1].all():
            raise UserError(
                "a prompt ends in padding (the last column of attention_mask holds a 0); pad on "
                "the left: tokenizer.padding_side = 'left'"
            )
        is_assisted = generation_mode == GenerationMode.ASSISTED_GENERATION
        if is_assisted or generation_config.is_assistant:
            self._check_going_back(length)
        kind = generation_config.cache_implementation
        if kind not in (None, "dynamic"):
            raise UserError(
                f"cache_implementation={kind!r} keeps keys that a Synthesizer does not have; "
                "leave it out"
            )
        if model_kwargs.get("past_key_values") is not None:
            model_kwargs["past_key_values"]._is_user_defined = True
        elif generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = new_cache(self.base_model.decoder.num_steps, seq2seq)

    @wraps(GenerationMixin.prepare_inputs_for_generation)  # `generate` asks its signature
    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401
        """Keep from the model what `generate` needs itself: the tokenizer of stop_strings."""
        kwargs.pop("tokenizer", None)
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(*args, **kwargs)  # type: ignore[misc]
        return inputs

    def _prepare_position_ids_for_generation(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """None: the model counts positions from the mask, as `generate` would, token by token."""

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ANN401
        """Refuse `generate_batch` and its like before anything runs."""
        raise UserError(
            "continuous batching keeps keys in pages, and a Synthesizer may have none; call "
            "generate with a batch of prompts that are padded on the left"
        )

    def _check_going_back(self, length: int) -> None:
        """Refuse an assistant where a rejected token cannot be taken back: its cache has gone."""
        for layer in self.base_model.decoder.layers:
            mixer, forgets = layer.attention, ""
            if isinstance(mixer, Mixer) and mixer.keeps_state:
                forgets = spec_of_mixer(mixer)
            elif isinstance(mixer, SyntheticAttention) and isinstance(mixer.window, int):
                forgets = f"window={mixer.window}" if mixer.window < length else ""
            if forgets:
                raise UserError(
                    f"{forgets} keeps the last tokens alone, and a token that an assistant "
                    "suggests may have to be taken back; generate without assistant_model and "
                    "prompt_lookup_num_tokens, and choose another model as an assistant"
                )

    def _check_length(self, length: int) -> None:
        """Refuse prompt + new tokens over max_len."""
        seq2seq = self.config.is_encoder_decoder
        name = "decoder_max_len" if seq2seq else "max_len"
        limit = getattr(self.config, name)
        if length > limit and not self.base_model.decoder.any_length:
            asked = "new tokens" if seq2seq else "tokens, prompt and new ones together,"
            raise UserError(
                f"generate was asked for {length} {asked} from a model built for {name}={limit}; "
                "lower max_new_tokens, shorten the prompt, or resize the model"
            )
