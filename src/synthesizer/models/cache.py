"""What decoding remembers, in Hugging Face's terms: values, and keys where a dot needs them."""

from collections.abc import Callable

from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache

from synthesizer.attention.layer import CrossAttention, append
from synthesizer.errors import UserError


class ValueLayer(DynamicLayer):
    """One layer's values (B, H, S, K), and its keys if it has any; or its window (B, W, D)."""

    keys: Tensor | None
    values: Tensor | None
    slid = 0

    def lazy_initialization(self, key_states: Tensor | None, value_states: Tensor) -> None:
        self.dtype, self.device = value_states.dtype, value_states.device
        self.is_initialized = True

    def update(
        self, key_states: Tensor | None, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor | None, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys = append(self.keys, key_states)
        self.values = values = append(self.values, value_states)
        return self.keys, values

    def window(self) -> Tensor | None:
        return self.values

    def slide(self, window: Tensor, num_tokens: int) -> None:
        self.lazy_initialization(None, window)
        self.values, self.slid = window, self.slid + num_tokens

    def get_seq_length(self) -> int:
        return self.slid or (0 if self.values is None else self.values.shape[-2])

    def offload(self) -> None:
        self._change(lambda kept: kept.to("cpu", non_blocking=True))

    def prefetch(self) -> None:
        self._change(lambda kept: kept.to(self.device, non_blocking=True))

    def reset(self) -> None:
        self.keys = self.values = None
        self.slid, self.is_initialized = 0, False

    def crop(self, max_length: int) -> None:
        """Cut to max_length tokens, or take -max_length away where it is negative."""
        length = max_length if max_length > 0 else self.get_seq_length() + max_length
        if length < self.slid:
            raise UserError(
                f"a convolution that has seen {self.slid} tokens cannot go back to {length}: it "
                "remembers its window alone; decode without an assistant"
            )
        if not self.slid:
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


def encoder_decoder_cache(num_layers: int) -> EncoderDecoderCache:
    """The cache of a decoder that also looks at a memory."""
    return EncoderDecoderCache(SynthesizerCache(num_layers), DynamicCache())


def remember(
    cache: EncoderDecoderCache | None, index: int, cross: CrossAttention, memory: Tensor
) -> tuple[Tensor, Tensor]:
    """Keys and values of a memory for one layer, projected once per cache."""
    if cache is None:
        return cross.project(memory)
    if not cache.is_updated.get(index, False):
        cache.cross_attention_cache.update(*cross.project(memory), index)
        cache.is_updated[index] = True
    kept = cache.cross_attention_cache.layers[index]
    return kept.keys, kept.values
