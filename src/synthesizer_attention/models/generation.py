"""What Hugging Face's `generate` needs of a Synthesizer: its length limit and its cache."""

from functools import wraps
from typing import Any, NoReturn

from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import GenerationMode

from synthesizer_attention.attention.baselines import Convolution, spec_of_mixer
from synthesizer_attention.attention.layer import SyntheticAttention
from synthesizer_attention.attention.masks import real_tokens
from synthesizer_attention.errors import UserError
from synthesizer_attention.models.cache import SynthesizerCache, encoder_decoder_cache
from synthesizer_attention.models.config import SynthesizerConfig


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
        self._check_length(max_cache_length + 1)  # with a prompt of embeddings, unlike max_length
        self._check_padding(model_kwargs.get("attention_mask"))
        is_assisted = generation_mode == GenerationMode.ASSISTED_GENERATION
        if is_assisted or generation_config.is_assistant:
            self._check_going_back(max_cache_length + 1)
        kind = generation_config.cache_implementation
        if kind not in (None, "dynamic"):
            raise UserError(
                f"cache_implementation={kind!r} keeps keys that a Synthesizer does not have; "
                "leave it out"
            )
        if model_kwargs.get("past_key_values") is not None:
            model_kwargs["past_key_values"]._is_user_defined = True
        elif generation_config.use_cache is not False:
            seq2seq = self.config.is_encoder_decoder
            new = encoder_decoder_cache if seq2seq else SynthesizerCache
            layers = self.config.num_decoder_layers if seq2seq else self.config.num_layers
            model_kwargs["past_key_values"] = new(layers)

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

    def _check_padding(self, mask: Tensor | None) -> None:
        """Refuse prompts that end in padding: the next token would stand behind it."""
        if self.config.is_encoder_decoder or mask is None or mask.dim() != 2:
            return
        if not real_tokens(mask)[:, -1].all():
            raise UserError(
                "a prompt ends in padding (the last column of attention_mask holds a 0); pad on "
                "the left: tokenizer.padding_side = 'left'"
            )

    def _check_going_back(self, length: int) -> None:
        """Refuse an assistant where a rejected token cannot be taken back: its cache has gone."""
        for layer in self.base_model.decoder.layers:
            mixer, forgets = layer.attention, ""
            if isinstance(mixer, Convolution):
                forgets = spec_of_mixer(mixer)
            elif isinstance(mixer, SyntheticAttention) and (mixer.window or length) < length:
                forgets = f"window={mixer.window}"
            if forgets:
                raise UserError(
                    f"{forgets} keeps the last tokens alone, and a token that an assistant "
                    "suggests may have to be taken back; generate without assistant_model and "
                    "prompt_lookup_num_tokens, and choose another model as an assistant"
                )

    def _check_length(self, length: int) -> None:
        """Refuse prompt + new tokens over max_len; a start token does not count."""
        if self.base_model.decoder.any_length:
            return
        seq2seq = self.config.is_encoder_decoder
        name = "decoder_max_len" if seq2seq else "max_len"
        limit, wanted = getattr(self.config, name), length - 1 if seq2seq else length
        if wanted > limit:
            asked = "new tokens" if seq2seq else "tokens, prompt and new ones together,"
            raise UserError(
                f"generate was asked for {wanted} {asked} from a model built for {name}={limit}; "
                "lower max_new_tokens, shorten the prompt, or resize the model"
            )
