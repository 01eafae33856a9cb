"""Whole token mixers in the place of attention: what one is, and how a spec comes to name it."""

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from synthesizer_attention.attention.layer import Inputs, TokenMixer, ValueCache
from synthesizer_attention.attention.masks import (
    check_inputs,
    is_readable,
    locate,
    without_hidden,
)
from synthesizer_attention.attention.registry import add_facts, check_declared
from synthesizer_attention.attention.synthesis import Size
from synthesizer_attention.errors import UserError
from synthesizer_attention.spec import Term, read_options, variants


class Mixer(TokenMixer):
    """A token mixer that makes no logits; the base class of every registered one.

    A subclass defines mix(), and says what it can do. What it cannot do is refused in a line, but
    for a cache: a causal mixer that keeps no state keeps its inputs and mixes all of them again.

    - `takes_causal`: where `self.causal` is set no output reads a later token
    - `takes_padding`: padding changes no output of a real token
    - `keeps_state`: mix() reads cache.keys and cache.values (None at first), and replaces them by
      cache.keep(keys, values, num_new): any tensors whose first axis is the batch
    - `any_length`: None if it has no table by length, so that every length and resize() are fine
    - `tables`, `weights`, `biases`: what its own parameters are, as Synthesis has it; submodules
      need no name

    Args:
        size: Width, number of heads and longest sequence of the layer.
        causal: Hide later tokens; refused without `takes_causal`.
        dropout: Dropout rate, for a subclass to use.
    """

    name: ClassVar[str] = ""
    tables: ClassVar[tuple[str, ...]] = ()
    weights: ClassVar[tuple[str, ...]] = ()
    biases: ClassVar[tuple[str, ...]] = ()
    takes_causal: ClassVar[bool] = False
    takes_padding: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False
    depends_on_input: ClassVar[bool] = True  # False: it weights tokens by their positions alone
    depends_on_pairs: ClassVar[bool] = False  # True: two tokens decide how much one gets of another

    def __init__(self, size: Size, causal: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        if causal and not self.takes_causal:
            raise UserError(
                f"{self.name} cannot be causal: its outputs read later tokens; use it in an "
                "encoder, and another spec for a decoder (decoder_synthesis)"
            )
        self.size, self.causal, self.dropout = size, causal, dropout

    def mix(
        self, x: Tensor, real: Tensor | None, positions: Tensor, cache: ValueCache | None
    ) -> Tensor:
        """Mix tokens (B, T, D) into outputs (B, T, D).

        Args:
            x: Tokens (B, T, D), zeros where one is padding.
            real: (B, T), True where a token is real; None where all are.
            positions: (T,) or (B, T), the real tokens counted, or what the caller gave.
            cache: None, or with `keeps_state` what earlier tokens left.
        """
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Initialize its own parameters; linear layers initialize themselves."""

    def resize(self, max_len: int) -> None:
        """Grow or crop to another max_len, keeping what was learned."""
        if self.any_length is False:
            raise UserError(f"{type(self).__name__} cannot be resized; define its resize(max_len)")
        self.size = Size(self.size.d_model, self.size.num_heads, max_len)

    def attend(self, x: Tensor, **inputs: object) -> NoReturn:
        raise UserError(
            f"{self.name!r} has no attention weights between tokens; "
            "leave output_attentions out, or choose a synthesizing function"
        )

    def run(self, x: Tensor, inputs: Inputs) -> Tensor:
        """Check the call, and mix what is to be mixed: new tokens, or all that were kept."""
        mask, cache, size = inputs.attention_mask, inputs.cache, self.size
        if cache is not None and not self.causal:
            raise UserError(
                f"{self.name!r} reads later tokens here, so it cannot use a cache; "
                "leave the cache out"
            )
        if inputs.bias is not None:
            raise UserError(
                f"{self.name!r} has no logits that a bias could be added to; "
                'choose other positions than "relative"'
            )
        past = 0 if cache is None else cache.get_seq_length()
        limit = size.max_len if self.any_length is False else None
        value = getattr(self, "value", self)
        num_keys = check_inputs(x, size.d_model, value, limit, past, mask, inputs.position_ids)
        if mask is not None and not self.takes_padding:
            if not (is_readable(mask) and bool(mask.all())):
                raise UserError(
                    f"{self.name!r} cannot leave padding out, and attention_mask hides tokens; "
                    "give batches of sequences of one length, without a mask"
                )
            mask = None
        new = None if mask is None else mask[:, past:].bool()
        positions = locate(mask, inputs.position_ids, num_keys, x.device)
        x, num_new = without_hidden(x, new), x.shape[1]
        if cache is None or self.keeps_state:
            return self.mix(x, new, positions[..., past:], cache)
        _, kept = cache.update(None, x[:, None])  # (B, 1, S, D)
        whole = None if mask is None else mask.bool()
        return self.mix(kept[:, 0], whole, positions, None)[:, num_keys - num_new :]

    def extra_repr(self) -> str:
        return f"{self.size}, causal={self.causal}, dropout={self.dropout}"


M = TypeVar("M", bound=type[Mixer])
MIXERS: dict[str, type[Mixer]] = {}
_HELD: set[tuple[type[Mixer], str]] = set()
"""Which of the user's mixers were found to do what they say."""


def register_mixer(name: str, *, parameters: str = "", paper: str = "") -> Callable[[M], M]:
    """Register a token mixer of your own, so that a spec may name it for all heads of a layer.

    Example::

        @register_mixer("pooling")
        class Pooling(Mixer): ...

    As with register_synthesis the first line of its docstring is its equation, and its keyword-only
    arguments, kept as attributes, are the options of a spec: "pooling:width=3".

    Args:
        name: The name in a spec.
        parameters: How many parameters it learns, as `synthesizer list` shows it: "2 D^2".
        paper: Who proposed it, as `synthesizer list` shows it.
    """

    def register(cls: M) -> M:
        is_one = issubclass(cls, Mixer)
        learns = is_one and (cls.tables or cls.weights or cls.biases)
        for method in ("mix", *(("reset_parameters",) if learns else ())):
            if not is_one or getattr(cls, method) is getattr(Mixer, method):
                raise UserError(
                    f"{cls.__name__}, to be registered as {name!r}, must be a class derived from "
                    f"synthesizer_attention.Mixer that defines {method}()"
                )
        add_facts(cls, name, parameters, paper, baseline=True)
        cls.name = name
        MIXERS[name] = cls
        return cls

    return register


def build_registered(term: Term, size: Size, causal: bool, dropout: float) -> Mixer:
    """A mixer by its name; the first of a user's own is held to what it says of itself."""
    cls = MIXERS[term.name]
    options = read_options(term, cls)
    mixer = cls(size, causal, dropout, **options)
    check_declared(mixer, term.name)
    key, device = (cls, f"{term} {causal}"), next(mixer.parameters(), torch.empty(0)).device
    if variants()[term.name].module and key not in _HELD and device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            _hold_to_its_word(cls, size, causal, options)
        _HELD.add(key)
    return mixer


@torch.no_grad()
def _hold_to_its_word(cls: type[Mixer], size: Size, causal: bool, options: dict[str, Any]) -> None:
    """Refuse a mixer whose causality, padding or state is not what it says, on random weights.

    One that does not run in float64 on a CPU is not asked.
    """
    length = min(size.max_len, 6)
    try:
        mixer = cls(size, causal, 0.0, **options).double().eval()
        for parameter in mixer.parameters():
            nn.init.normal_(parameter, std=0.5)
        x = torch.randn(2, length, size.d_model, dtype=torch.float64)
        whole = mixer(x)
    except Exception:  # it fails in its own words where it is used
        return
    if length < 3:
        return
    short, mask = x[:, :-1], torch.ones(2, length, dtype=torch.bool)
    mask[:, -1] = False
    wrong = ""
    if causal and not _same(mixer(short), whole[:, :-1]):
        wrong = "takes_causal=True, and its outputs change with a later token"
    elif cls.takes_padding and not _same(mixer(x, attention_mask=mask)[:, :-1], mixer(short)):
        wrong = "takes_padding=True, and its outputs change with padding behind them"
    elif causal and cls.keeps_state:
        cache = ValueCache()
        steps = [mixer(token, cache=cache) for token in x.split(1, dim=1)]
        if not _same(torch.cat(steps, dim=1), whole):
            wrong = "keeps_state=True, and token by token its outputs are others"
    if wrong:
        raise UserError(f"{cls.__name__} ({cls.name}) has {wrong}; correct mix(), or say False")


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, atol=1e-8, equal_nan=True)
