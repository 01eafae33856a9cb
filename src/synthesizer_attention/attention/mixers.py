"""Token mixers: attention, or what replaces it in a layer.

SyntheticAttention, for every synthesizing function and mixture; or a baseline.
"""

from synthesizer_attention.attention.baselines import BASELINES, Linformer
from synthesizer_attention.attention.convolution import Convolution
from synthesizer_attention.attention.layer import SyntheticAttention
from synthesizer_attention.attention.registry import spec_of
from synthesizer_attention.attention.synthesis import Size
from synthesizer_attention.errors import UserError
from synthesizer_attention.sizes import RotaryOptions
from synthesizer_attention.spec import parse_spec, read_options, term_of

Mixer = SyntheticAttention | Convolution | Linformer


def build_mixer(
    spec: str,
    size: Size,
    *,
    causal: bool = False,
    window: int | None = None,
    equal_qk_init: bool = False,
    rotary: RotaryOptions | None = None,
    dropout: float = 0.0,
) -> Mixer:
    """Turn 'random+dot', 'dynamicconv:kernel=7' or 'linformer:k=64' into a token mixer.

    Rotary positions and equal_qk_init are for the dot products of a synthesis; a baseline has none.
    """
    term = parse_spec(spec)[0]
    if term.name not in BASELINES:
        return SyntheticAttention(
            size.d_model,
            size.num_heads,
            size.max_len,
            spec,
            causal=causal,
            window=window,
            equal_qk_init=equal_qk_init,
            rotary=rotary,
            dropout=dropout,
        )
    if window is not None:
        raise UserError(
            f"window={window} with {term.name!r}, which has no attention weights to limit; "
            "leave window out, or choose a synthesizing function"
        )
    cls = BASELINES[term.name]
    options = read_options(term, cls)
    if issubclass(cls, Linformer):
        return cls(size, causal, dropout, **options)
    return Convolution(size, cls(size, **options), causal=causal, dropout=dropout)


def spec_of_mixer(mixer: Mixer) -> str:
    """Write the spec that builds this mixer, with the options that differ from their defaults."""
    if isinstance(mixer, SyntheticAttention):
        return spec_of(mixer.synthesis)
    return str(term_of(mixer.name, mixer if isinstance(mixer, Linformer) else mixer.synthesis))
