"""What decoding keeps, in Hugging Face's terms: values, and keys where a dot product needs them."""

from collections.abc import Callable

from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache

from synthesizer_attention.attention.layer import CrossAttention, ValueCache
from synthesizer_attention.errors import UserError


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

    def get_seq_length(self) -> int:
        return self.num_tokens

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
    """One ValueLayer per layer of a decoder."""

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[ValueLayer() for _ in range(num_layers)])


class PairedCache(EncoderDecoderCache):
    """The caches of a decoder with cross-attention, which can be cropped and chosen from."""

    def check_dynamic_cache(self, method: str) -> None:
        """Allow what Hugging Face allows of its own class alone: ValueLayer has every method."""


def encoder_decoder_cache(num_layers: int) -> EncoderDecoderCache:
    """The cache of a decoder with cross-attention."""
    return PairedCache(SynthesizerCache(num_layers), DynamicCache())


def remember(
    cache: EncoderDecoderCache | None,
    index: int,
    cross: CrossAttention,
    memory: Tensor,
    attention_mask: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Keys and values of a memory for one layer, projected once per cache."""
    if cache is None:
        return cross.project(memory, attention_mask)
    if not cache.is_updated.get(index, False):
        cache.cross_attention_cache.update(*cross.project(memory, attention_mask), index)
        cache.is_updated[index] = True
    kept = cache.cross_attention_cache.layers[index]
    return kept.keys, kept.values
