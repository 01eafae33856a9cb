"""What every synthesizing function is built from and is: its size, and its base class."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, cast

from torch import Tensor, nn

from synthesizer.errors import UserError


@dataclass(frozen=True)
class Size:
    """The numbers every synthesizing function is built from."""

    d_model: int
    num_heads: int
    max_len: int
    head_width: int | None = None  # K where these are some of a layer's heads

    def __post_init__(self) -> None:
        whole = self.head_width is None and self.d_model % max(1, self.num_heads)
        if self.num_heads < 1 or self.d_model < 1 or whole:
            raise UserError(
                f"d_model={self.d_model} does not divide into num_heads={self.num_heads}; "
                "choose a d_model that is a multiple of num_heads"
            )
        if self.max_len < 1:
            raise UserError(f"max_len={self.max_len}; it must be at least 1")

    @property
    def d_head(self) -> int:
        """K, the width of one head."""
        return self.head_width or self.d_model // self.num_heads


class Synthesis(nn.Module):
    """Makes attention logits and nothing else; the base class of every synthesizing function.

    A subclass says what each of its own parameters is. One that it does not name is refused, so
    that none is trained with another's settings:

        tables   learned per position or head, not per feature: step size train.table_rate times
                 the learning rate, no weight decay
        weights  trained as the weight of a linear layer
        biases   trained as the bias of a linear layer: no weight decay
    """

    tables: ClassVar[tuple[str, ...]] = ()
    weights: ClassVar[tuple[str, ...]] = ()
    biases: ClassVar[tuple[str, ...]] = ()
    depends_on_input: bool = True  # False: logits are (1, H, T, S), whatever x holds
    depends_on_pairs: bool = False  # True: a logit reads the key's token too, through keys
    d_keys: int = 0  # the width of what keys(x) returns
    any_length: bool | None = False  # True: also past max_len; None: it reads no positions
    has_last: bool = False  # True: the last token has logits of its own, from last_column
    biased: bool = True  # False: a bias, as that of relative positions, is not added to its logits

    def keys(self, x: Tensor) -> Tensor | None:
        """What a cache keeps of the tokens x (B, S, D): (B, H, S, d_keys), or nothing."""
        return None

    def turn_keys(self, keys: Tensor, positions: Tensor) -> Tensor:
        """Rotary positions (S,) or (B, S) turn the keys of dot products, and no other's."""
        return keys

    def last_column(
        self, x: Tensor, positions: Tensor, key_positions: Tensor, is_last: Tensor
    ) -> Tensor | None:
        """What to add to forward's logits at the last token, (B or 1, H, T, S); None: nothing.

        is_last (S,) or (B, S) is True at the last real token, which positions alone do not tell.
        """
        return None

    def reset_parameters(self) -> None:
        """Initialize every parameter and buffer of this module's own."""
        raise NotImplementedError(f"{type(self).__name__} defines no reset_parameters()")

    def resize(self, max_len: int) -> None:
        """Grow or crop to another max_len."""
        raise UserError(f"{type(self).__name__} cannot be resized; define its resize(max_len)")


def joint_length(parts: Iterable[Synthesis]) -> bool | None:
    """Whether logits made of several parts exist past max_len: where none of them forbids it."""
    said = {part.any_length for part in parts}
    return None if said == {None} else False not in said


def unwrapped(module: nn.Module) -> Synthesis:
    """A synthesizing function itself, where an adapter (PEFT's, on a parameter) stands for it.

    The adapter acts while its forward runs: keys and the last token's logits are made outside.
    """
    adapted = []
    while not isinstance(module, Synthesis):
        adapted.append(cast("str", module.parameter_name))
        module = cast("nn.Module", module.base_layer)
    missed = set(adapted) if module.has_last else set(adapted) & set(module.weights)
    if missed and (module.d_keys or module.has_last):
        raise UserError(
            f"an adapter on {min(missed)} of {type(module).__name__} does not reach its "
            f"{'last sink' if module.has_last else 'keys'}; adapt other tables, or the value and "
            "output layers"
        )
    return module
