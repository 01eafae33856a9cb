"""Where attention logits come from: the synthesizing functions of the paper, one class each.

    keys(x) -> Tensor | None            what a cache must keep of the keys' tokens
    terms(x, keys, places, scale) -> Terms
                                        the equation: what the logits are the sum of (terms.py)
    resize(max_len)                     grow or crop: what both lengths share is kept
    reset_parameters()                  initialize

    x              (B, T, D)            the query tokens
    keys           (B, H, S, d_keys)    what keys(x) gave for the key tokens
    places                              where tables are read for T queries and S keys
    scale          (H,) or None         a mixture's weight of this part

Calling one writes the sum out: (B, H, T, S), or (1, H, T, S) if equal for all examples. A function
that is no such sum defines forward(x, keys, positions, key_positions) instead of terms:

    positions      (T,) or (B, T)       positions of the queries
    key_positions  (S,) or (B, S)       positions of the keys

With has_last, forward takes is_last, too: (S,) or (B, S), True at the last real token.

Masks, softmax, dropout and values are layer.py's, written there once.
Letters: B batch, T queries, S keys, D model, H heads, K head width, N max_len, R rank.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from synthesizer_attention.attention.hook import few_rows
from synthesizer_attention.attention.terms import Places, Terms, add, outer_product, read, scaled
from synthesizer_attention.errors import UserError
from synthesizer_attention.spec import RotaryOptions, require_positive


@dataclass(frozen=True)
class Size:
    """The numbers every synthesizing function is built from.

    Args:
        d_model: Width D of the tokens.
        num_heads: Number of heads H.
        max_len: Longest sequence N.
        head_width: K, where these are some of a layer's heads; by default D / H.
        first_head: The first of them, in the layer.
    """

    d_model: int
    num_heads: int
    max_len: int
    head_width: int | None = None
    first_head: int = 0

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

    - `tables`: learned per position or head, not per feature: step size train.table_rate times
      the learning rate, no weight decay
    - `weights`: trained as the weight of a linear layer
    - `biases`: trained as the bias of a linear layer: no weight decay
    - `zeroed`: those that make all logits zero where they are; none: it cannot start at zero
    - `decoded`: (term of decode.c, parameter), so that one call decodes a token; none: it does not
    """

    zeroed: ClassVar[tuple[str, ...]] = ()
    decoded: ClassVar[tuple[tuple[str, str], ...]] = ()
    tables: ClassVar[tuple[str, ...]] = ()
    weights: ClassVar[tuple[str, ...]] = ()
    biases: ClassVar[tuple[str, ...]] = ()
    depends_on_input: bool = True  # False: logits are (1, H, T, S), whatever x holds
    depends_on_pairs: bool = False  # True: a logit reads the key's token too, through keys
    d_keys: int = 0  # the width of what keys(x) returns
    any_length: bool | None = False  # True: also past max_len; None: it reads no positions
    has_last: bool = False  # True: the last token has logits of its own
    biased: bool = True  # False: a bias, as that of relative positions, is not added to its logits
    has_terms: bool = False  # whether it defines terms, and not forward
    takes_positions: ClassVar[bool] = False  # whether keys() takes those that dot products turn to
    num_outer: int = 0  # how many outer products it adds

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init_subclass__(**kwargs)
        own = vars(cls).keys()
        if "forward" in own and "terms" not in own:  # a parent's are not its own
            cls.terms = Synthesis.terms  # type: ignore[method-assign]
        if own & {"forward", "terms", "keys"} and "decoded" not in own:
            cls.decoded = ()
        cls.has_terms = cls.terms is not Synthesis.terms

    def keys(self, x: Tensor) -> Tensor | None:
        """What a cache keeps of the tokens x (B, S, D): (B, H, S, d_keys), or nothing."""
        return None

    def forward(
        self,
        x: Tensor,
        keys: Tensor | None,
        positions: Tensor,
        key_positions: Tensor,
        is_last: Tensor | None = None,
    ) -> Tensor:
        """The logits, written out: (B or 1, H, T, S).

        Args:
            x: Query tokens (B, T, D).
            keys: What keys(x) gave for the key tokens: (B, H, S, d_keys), or None.
            positions: Positions (T,) or (B, T) of the queries.
            key_positions: Positions (S,) or (B, S) of the keys.
            is_last: With `has_last`: (S,) or (B, S), True at the last real token.
        """
        return self.terms(x, keys, Places(positions, key_positions, positions, is_last)).logits()

    def terms(
        self, x: Tensor, keys: Tensor | None, places: Places, scale: Tensor | None = None
    ) -> Terms:
        """What the logits are the sum of; of a function that defines forward, one table."""
        return written_terms(self, x, keys, places, scale)

    def reset_parameters(self) -> None:
        """Initialize every parameter and buffer of this module's own."""
        if self.tables:
            raise NotImplementedError(f"{type(self).__name__} defines no reset_parameters()")
        for name in self.weights:
            draw_weight(getattr(self, name))
        for name in self.biases:
            nn.init.zeros_(getattr(self, name))

    def resize(self, max_len: int) -> None:
        """Grow or crop to another max_len."""
        raise UserError(f"{type(self).__name__} cannot be resized; define its resize(max_len)")


def joint_length(parts: Iterable[Synthesis]) -> bool | None:
    """Whether logits made of several parts exist past max_len: where none of them forbids it."""
    said = {part.any_length for part in parts}
    return None if said == {None} else False not in said


def unwrapped(module: nn.Module) -> Synthesis:
    """A synthesizing function itself, where an adapter (PEFT's, on a parameter) stands for it.

    The adapter acts while its forward runs; keys are made outside.
    """
    adapted = set()
    while not isinstance(module, Synthesis):
        adapted.add(cast("str", module.parameter_name))
        module = cast("nn.Module", module.base_layer)
    if module.d_keys and (missed := adapted & set(module.weights)):
        raise UserError(
            f"an adapter on {min(missed)} of {type(module).__name__} does not reach its keys; "
            "adapt other tables, or the value and output layers"
        )
    return module


def keys_at(module: nn.Module, x: Tensor, positions: Tensor | None) -> Tensor | None:
    """The keys of x; those of dot products are turned to rotary positions, where some are given."""
    synthesis: Any = module if isinstance(module, Synthesis) else unwrapped(module)
    at = () if positions is None or not synthesis.takes_positions else (positions,)
    return cast("Tensor | None", synthesis.keys(x, *at))


def written_terms(
    module: nn.Module, x: Tensor, keys: Tensor | None, places: Places, scale: Tensor | None
) -> Terms:
    """What forward computes, as a table."""
    rows, columns = places.positions(x.device)
    logits = logits_of(module, x, keys, rows, columns, places.is_last)
    if logits.shape[0] == 1:
        return Terms(table=logits[0], weight=scale)
    if not unwrapped(module).depends_on_input and rows.dim() == 1:
        raise UserError(
            f"{type(module).__name__} has depends_on_input=False, and its logits have a batch of "
            f"{logits.shape[0]}; return (1, H, T, S), or set depends_on_input=True"
        )
    return Terms(table=logits.transpose(0, 1), weight=scale)


def logits_of(
    module: nn.Module, x: Tensor, keys: Tensor | None, rows: Tensor, columns: Tensor,
    is_last: Tensor | None,
) -> Tensor:  # fmt: skip
    """Call a synthesizing function, which may know nothing of the last token, or its adapter."""
    if unwrapped(module).has_last:
        return module(x, keys, rows, columns, is_last)
    return module(x, keys, rows, columns)


def project_heads(x: Tensor, weight: Tensor) -> Tensor:
    """x (B, T, D) times weight (H, D, K): (B, H, T, K), by one product for all heads."""
    heads = few_rows(x, weight) if x.shape[1] == 1 else None
    if heads is None:
        heads = x @ weight.transpose(0, 1).flatten(1)
    return heads.unflatten(-1, (len(weight), -1)).transpose(1, 2)


def hidden_units(x: Tensor, w1: Tensor, b1: Tensor, first_head: int = 0) -> Tensor:
    """relu(x W1 + b1) per head, heads first, by one product for all heads: (H, B, T, K).

    W1 (H, K, K) reads of x the slice of each head, W1 (H, D, K) all of it.
    """
    heads, width = w1.shape[:2]
    if width != x.shape[-1]:
        own = x[..., first_head * width : (first_head + heads) * width].unflatten(-1, (heads, -1))
        return (torch.einsum("bthd,hdk->hbtk", own, w1) + b1[:, None, None]).relu()
    if x.shape[1] == 1:  # a row, as in decoding, is smaller than the weight
        return (project_heads(x, w1) + b1[:, None]).relu().transpose(0, 1)
    hidden = F.linear(x, w1.mT.flatten(0, 1), b1.flatten())
    return hidden.relu().unflatten(-1, (len(w1), -1)).permute(2, 0, 1, 3)


def of_each_head(shared: Tensor, num_heads: int) -> Tensor:
    """What all heads share, (1, ...), as each has it: (H, ...); what each has stays as it is."""
    return shared if len(shared) == num_heads else shared.expand(num_heads, *shared.shape[1:])


def empty(*shape: int) -> nn.Parameter:
    """A parameter of this shape, to be initialized."""
    return nn.Parameter(torch.empty(*shape))


def draw_weight(weight: Tensor) -> None:
    """Keep the variance of what a (H, in, out) weight multiplies."""
    nn.init.normal_(weight, std=weight.shape[-2] ** -0.5)


def resized(
    old: Tensor, axes: tuple[int, ...], length: int, draw: Callable[[Tensor], object]
) -> Tensor:
    """A new tensor of another length along axes, with the overlap copied from old."""
    fresh = old.detach().new_empty([length if i in axes else n for i, n in enumerate(old.shape)])
    draw(fresh)
    corner = tuple(slice(min(pair)) for pair in zip(fresh.shape, old.shape, strict=True))
    fresh[corner] = old.detach()[corner]
    return fresh


class Rotary:
    """Rotary positions: q[i]·k[j] becomes (R_i q[i])·(R_j k[j]) = q[i]·(R_(j-i) k[j]).

    R_p turns feature n together with feature n + W/2 by the angle p base^(-2n/W), for the first W
    features of a head. Keys are turned before they are cached, queries before any path sees them,
    so that every path computes a plain dot product.
    """

    def __init__(self, options: RotaryOptions, d_head: int) -> None:
        self.options = options
        self.width = 2 * int(d_head * options.share / 2)  # W
        if self.width == 0:
            raise UserError(
                f"rotary positions with share={options.share:g} turn no pair of features in heads "
                f"of width {d_head}; use fewer heads or a larger share"
            )

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """R_p x for features x (..., K) and positions that broadcast to all axes before the last.

        Angles are computed in float32 at least: in half precision far positions would coincide.
        """
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        angles = positions[..., None].to(dtype) * self.angles(x.device, dtype)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        half = self.width // 2
        first, second, rest = x.split([half, half, x.shape[-1] - self.width], dim=-1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos, rest], dim=-1)

    def angles(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """base^(-2n/W), the angles of position 1: (W / 2)."""
        n = torch.arange(0, self.width, 2, device=device, dtype=dtype)
        return self.options.base ** (-n / self.width)


class DotProduct(Synthesis):
    """B[i,j] = (x[i] Wq)·(x[j] Wk) / sqrt(K): dot-product attention."""

    weights = ("wq", "wk")
    decoded = (("query", "wq"), ("key", "wk"))
    depends_on_pairs = True
    any_length = None
    takes_positions = True
    rotary: Rotary | None = None
    starts_equal: bool = False

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.wq = empty(size.num_heads, size.d_model, size.d_head)  # (H, D, K)
        self.wk = empty(size.num_heads, size.d_model, size.d_head)  # (H, D, K)
        self.d_keys = size.d_head
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.starts_equal:  # the logit of a token with its copies is then |q|^2
            self.wk.data.copy_(self.wq.data)

    def keys(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """As they are cached: turned already, where rotary positions (S,) or (B, S) turn them."""
        keys = project_heads(x, self.wk)
        if self.rotary is None or positions is None:
            return keys
        return self.rotary.turn(keys, positions if positions.dim() == 1 else positions[:, None])

    def terms(
        self, x: Tensor, keys: Tensor | None, places: Places, scale: Tensor | None = None
    ) -> Terms:
        assert keys is not None
        factor = self.d_keys**-0.5 if scale is None else scale[:, None, None] * self.d_keys**-0.5
        if x.shape[1] == 1:  # a row, as in decoding, is smaller than the weight
            queries = project_heads(x, self.wq) * factor
        else:
            queries = project_heads(x, self.wq * factor)
        queries = queries.transpose(0, 1)
        if self.rotary is not None and places.turns is not None:
            queries = self.rotary.turn(queries, places.turns)
        return Terms(queries=queries, keys=keys.transpose(0, 1))

    def resize(self, max_len: int) -> None:
        """No parameter depends on the length."""


LARGE_TABLE = 2**30  # bytes of one layer from which `random` says what it takes


class TablePerHead(Synthesis):
    """An (N, N) table per head, drawn from N(0, std^2)."""

    decoded = (("table", "table"),)
    depends_on_input = False
    table: Tensor  # (H, N, N)
    std: float

    def reset_parameters(self) -> None:
        self._draw(self.table)

    def terms(
        self, x: Tensor, keys: Tensor | None, places: Places, scale: Tensor | None = None
    ) -> Terms:
        return Terms(table=places.pairs(self.table), weight=scale)

    def resize(self, max_len: int) -> None:
        table = resized(self.table, (1, 2), max_len, self._draw)
        self.table = nn.Parameter(table) if "table" in self.tables else table

    def _draw(self, table: Tensor) -> None:
        nn.init.normal_(table, std=self.std)


class Random(TablePerHead):
    """B = R, a learned (N, N) table per head."""

    tables = zeroed = ("table",)

    def __init__(self, size: Size, *, std: float = 0.02) -> None:
        """Start near zero: attention begins almost uniform, as in the authors' code."""
        super().__init__()
        self.std = std
        self.table = empty(size.num_heads, size.max_len, size.max_len)
        if self.table.nbytes >= LARGE_TABLE and not self.table.is_meta:
            warnings.warn(
                f"a table of random takes {self.table.nbytes / 1e9:.1f} GB at max_len "
                f"{size.max_len}, and its gradient as much; factorized_random and relative need "
                "no table of all pairs",
                stacklevel=2,
            )
        self.reset_parameters()


class FixedRandom(TablePerHead):
    """B = R, an (N, N) table per head, drawn once, saved and never trained."""

    def __init__(self, size: Size, *, std: float = 1.0) -> None:
        """Draw from N(0, 1): a table near zero that never moves would be mean pooling."""
        super().__init__()
        self.std = std
        self.register_buffer("table", empty(size.num_heads, size.max_len, size.max_len).data)
        self.reset_parameters()


class FactorizedRandom(Synthesis):
    """B = R1 R2^T, both (N, k) and learned, k << N."""

    tables, zeroed = ("rows", "columns"), ("rows",)
    decoded = (("queries", "rows"), ("keys", "columns"))
    depends_on_input = False

    def __init__(self, size: Size, *, k: int = 8, std: float = 0.02) -> None:
        super().__init__()
        require_positive("factorized_random", k=k)
        self.k, self.std = k, std
        self.rows = empty(size.num_heads, size.max_len, k)  # (H, N, R)
        self.columns = empty(size.num_heads, size.max_len, k)  # (H, N, R)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw both factors so that their product starts with the spread of a Random table."""
        self._draw(self.rows)
        self._draw(self.columns)

    def terms(
        self, x: Tensor, keys: Tensor | None, places: Places, scale: Tensor | None = None
    ) -> Terms:
        rows = scaled(read(self.rows.mT, places.rows), scale)
        return Terms(queries=rows, keys=read(self.columns.mT, places.columns))

    def resize(self, max_len: int) -> None:
        self.rows = nn.Parameter(resized(self.rows, (1,), max_len, self._draw))
        self.columns = nn.Parameter(resized(self.columns, (1,), max_len, self._draw))

    def _draw(self, factor: Tensor) -> None:
        nn.init.normal_(factor, std=(self.std / math.sqrt(self.k)) ** 0.5)


def input_width(name: str, input: str, size: Size) -> int:
    """How much of a token the first layer of a head reads: all of it, or the head's own slice."""
    widths = {"model": size.d_model, "head": size.d_head}
    if input not in widths:
        raise UserError(f"{name}:input={input}; choose from {', '.join(widths)}")
    return widths[input]


class Dense(Synthesis):
    """B[i] = relu(x[i] W1 + b1) W2 + b2: each token predicts its own row of logits.

    input  "model", or "head": a head reads its own slice of x, as wide as itself
    share  1: all heads have the same W2 and b2
    """

    weights, biases = ("w1", "w2"), ("b1", "b2")
    zeroed = ("w2", "b2")
    decoded = (("hidden", "w1"), ("hidden_bias", "b1"), ("columns", "w2"), ("offsets", "b2"))

    def __init__(self, size: Size, *, input: str = "model", share: bool = False) -> None:
        super().__init__()
        self.input, self.share, self.first_head = input, share, size.first_head
        wide, groups = input_width("dense", input, size), 1 if share else size.num_heads
        self.w1 = empty(size.num_heads, wide, size.d_head)  # (H, D or K, K)
        self.b1 = empty(size.num_heads, size.d_head)  # (H, K)
        self.w2 = empty(groups, size.d_head, size.max_len)  # (H or 1, K, N)
        self.b2 = empty(groups, size.max_len)  # (H or 1, N)
        self.reset_parameters()

    def terms(
        self, x: Tensor, keys: Tensor | None, places: Places, scale: Tensor | None = None
    ) -> Terms:
        w2, b2 = (of_each_head(shared, len(self.w1)) for shared in (self.w2, self.b2))
        columns = scaled(read(w2, places.columns), scale)  # (H, 1 or B, S, K)
        offsets = scaled(b2[:, places.columns], scale)
        hidden = hidden_units(x, self.w1, self.b1, self.first_head)
        return Terms(queries=hidden, keys=columns, offsets=offsets)

    def resize(self, max_len: int) -> None:
        self.w2 = nn.Parameter(resized(self.w2, (2,), max_len, draw_weight))
        self.b2 = nn.Parameter(resized(self.b2, (1,), max_len, nn.init.zeros_))


def outer_sides(max_len: int, a: int | None, b: int | None) -> tuple[int, int]:
    """The sides of the outer product: as given, or as square as max_len allows."""
    for given in ({"a": a}, {"b": b}):
        require_positive("factorized_dense", **{k: v for k, v in given.items() if v is not None})
    if a is None:
        a = math.isqrt(max_len - 1) + 1 if b is None else -(-max_len // b)
    if b is None:
        b = -(-max_len // a)
    if a * b < max_len:
        raise UserError(
            f"factorized_dense with a={a}, b={b} covers {a * b} positions but max_len={max_len}; "
            f"choose a*b of at least {max_len}"
        )
    return a, b


class FactorizedDense(Synthesis):
    """B[i,j] = F[i, j mod a] G[i, j div a], F, G = linear(relu(x[i] W1 + b1)).

    input, share  as Dense has them; the layers behind W1 are those that heads may share
    """

    weights, biases = ("w1", "wa", "wb"), ("b1", "ba", "bb")
    zeroed = ("wb", "bb")
    decoded = (
        *(("hidden", "w1"), ("hidden_bias", "b1"), ("tiled", "wa"), ("tiled_bias", "ba")),
        *(("repeated", "wb"), ("repeated_bias", "bb")),
    )
    num_outer = 1

    def __init__(
        self,
        size: Size,
        *,
        a: int | None = None,
        b: int | None = None,
        input: str = "model",
        share: bool = False,
    ) -> None:
        super().__init__()
        self.a, self.b = outer_sides(size.max_len, a, b)
        self.input, self.share, self.first_head = input, share, size.first_head
        wide = input_width("factorized_dense", input, size)
        groups = 1 if share else size.num_heads
        self.w1 = empty(size.num_heads, wide, size.d_head)  # (H, D or K, K)
        self.b1 = empty(size.num_heads, size.d_head)  # (H, K)
        self.wa = empty(groups, size.d_head, self.a)  # (H or 1, K, a)
        self.ba = empty(groups, self.a)  # (H or 1, a)
        self.wb = empty(groups, size.d_head, self.b)  # (H or 1, K, b)
        self.bb = empty(groups, self.b)  # (H or 1, b)
        self.reset_parameters()

    def terms(
        self, x: Tensor, keys: Tensor | None, places: Places, scale: Tensor | None = None
    ) -> Terms:
        """Tile one factor, repeat the other, and multiply: all a b columns differ."""
        hidden = hidden_units(x, self.w1, self.b1, self.first_head)  # (H, B, T, K)
        shared = (self.wa, self.wb, self.ba, self.bb)
        wa, wb, ba, bb = (of_each_head(one, len(self.w1)) for one in shared)
        weight = torch.cat([wa, scaled(wb, scale)], -1)
        bias = torch.cat([ba, scaled(bb, scale)], -1)
        both = torch.baddbmm(bias[:, None], hidden.flatten(1, 2), weight)  # (H, B T, a + b)
        tiled, repeated = both.unflatten(1, hidden.shape[1:3]).split([self.a, self.b], -1)
        if isinstance(places.columns, slice):
            return Terms(tiled=tiled, repeated=repeated)
        return Terms(table=outer_product(tiled, repeated, places.columns))

    def resize(self, max_len: int) -> None:
        """Keep a, so that every learned column stays where it was, and grow or crop b."""
        self.b = -(-max_len // self.a)
        self.wb = nn.Parameter(resized(self.wb, (2,), self.b, draw_weight))
        self.bb = nn.Parameter(resized(self.bb, (1,), self.b, nn.init.zeros_))


class Relative(Synthesis):
    """B[i,j] = r[j - i], clipped at N - 1, and one logit for the first token: a sink.

    sinks   1, or 2: the last real token has a logit, too (not in causal attention, where every
            step has another last token)
    biased  0: no bias, as that of relative positions, is added to these heads, so that a sink has
            one logit at any distance

    A longer sequence than max_len reads the ends of r.
    """

    tables, zeroed = ("offsets", "first", "last"), ("offsets", "first")
    decoded = (("distances", "offsets"), ("first", "first"))
    depends_on_input = False
    any_length = True

    def __init__(
        self, size: Size, *, std: float = 0.02, sinks: int = 1, biased: bool = True
    ) -> None:
        super().__init__()
        if sinks not in (1, 2):
            raise UserError(
                f"relative:sinks={sinks}; choose 1 (the first token) or 2 (the first and the last)"
            )
        self.std, self.sinks, self.has_last, self.biased = std, sinks, sinks == 2, biased
        self.offsets = empty(size.num_heads, 2 * size.max_len - 1)  # (H, 2N - 1), j - i = 1 - N ...
        self.first = empty(size.num_heads, 1)  # (H, 1)
        self.last = empty(size.num_heads, 1) if self.has_last else None  # (H, 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start near zero, as Random does."""
        nn.init.normal_(self.offsets, std=self.std)
        nn.init.normal_(self.first, std=self.std)
        if self.last is not None:
            nn.init.normal_(self.last, std=self.std)

    def terms(
        self, x: Tensor, keys: Tensor | None, places: Places, scale: Tensor | None = None
    ) -> Terms:
        if isinstance(places.rows, slice) and self.last is None:
            num_queries, num_keys = places.rows.stop - places.rows.start, places.rows.stop
            return Terms(distances=scaled(numbers_by_distance(self, num_queries, num_keys), scale))
        rows, columns = places.positions(self.offsets.device)
        sinks = self.first if self.last is None else torch.cat([self.first, self.last], 1)
        distance, is_last = columns[..., None, :] - rows[..., :, None], places.is_last
        logits = relative_logits(self.offsets, sinks, distance, columns == 0, is_last)
        batched = distance.dim() == 3 or (is_last is not None and is_last.dim() == 2)
        return Terms(table=logits.transpose(0, 1) if batched else logits[0], weight=scale)

    def resize(self, max_len: int) -> None:
        """Farther distances begin where the farthest known one is, which they read until now."""
        more = max_len - 1 - self.offsets.shape[1] // 2
        self.offsets = nn.Parameter(stretched(self.offsets.detach(), more))


def relative_logits(
    offsets: Tensor, sinks: Tensor, distance: Tensor, is_first: Tensor, is_last: Tensor | None
) -> Tensor:
    """B[i,j] = sinks[0] where j is the first token, sinks[1] where it is the last, else r[j - i].

    offsets    (H, 2N - 1)           r, from -(N - 1) to N - 1; farther distances read its ends
    sinks      (H, 1 or 2)           the first token's logit and, where it has one, the last's
    distance   (T, S) or (B, T, S)   j - i, in tokens
    is_first   (S,) or (B, S)        True at the first token
    is_last    (S,) or (B, S)        True at the last token; None where it is like any other
    """
    reach = offsets.shape[1] // 2
    logits = offsets[:, distance.clamp(-reach, reach) + reach].movedim(0, -3)  # (B?, H, T, S)
    logits = logits if logits.dim() == 4 else logits[None]
    for column, where in enumerate((is_first, is_last)):
        if where is not None:
            at = where[..., None, None, :] if where.dim() == 2 else where
            logits = torch.where(at, sinks[:, column, None, None], logits)
    return logits


def numbers_by_distance(part: Relative, num_queries: int, num_keys: int) -> Tensor:
    """All that T queries, the last of S tokens, read: (H, T + S), the sink, r[1 - S] to r[T - 1].

    Row i of the logits is numbers[T - i :] but for key 0, which has numbers[0].
    """
    offsets = stretched(part.offsets, num_keys - 1 - part.offsets.shape[1] // 2)
    return torch.cat([part.first, offsets[:, : num_queries + num_keys - 1]], 1)


def stretched(offsets: Tensor, more: int) -> Tensor:
    """Distances up to `more` farther on both sides, which read the ends; or fewer of them."""
    if more <= 0:
        return offsets[:, -more : offsets.shape[1] + more].contiguous()
    left, right = offsets[:, :1].expand(-1, more), offsets[:, -1:].expand(-1, more)
    return torch.cat([left, offsets, right], 1)


class Mixture(Synthesis):
    """B = alpha_1 S_1 + alpha_2 S_2 + ..., the alphas learned per head and summing to one."""

    tables = ("mix",)
    takes_positions = True
    parts: Sequence[Synthesis]

    def __init__(self, parts: Sequence[Synthesis], num_heads: int) -> None:
        super().__init__()
        if not all(part.biased for part in parts):
            raise UserError(
                "biased=0 in a mixture, whose logits are one sum; write it for heads of their own, "
                "as in relative:biased=0@2|dot@2"
            )
        self.parts = nn.ModuleList(parts)  # type: ignore[assignment]
        self.mix = empty(num_heads, len(parts))  # (H, parts)
        self.widths = [part.d_keys for part in parts]
        self.d_keys = sum(self.widths)
        self.depends_on_input = any(part.depends_on_input for part in parts)
        self.depends_on_pairs = any(part.depends_on_pairs for part in parts)
        self.any_length = joint_length(parts)
        self.has_last = any(part.has_last for part in parts)
        self.num_outer = sum(part.num_outer for part in parts)
        known = all(part.has_terms or not part.depends_on_input for part in parts)
        self.has_terms = known and self.num_outer < 2  # two outer products have no common form
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.mix)

    def alphas(self) -> Tensor:
        """The weight of each part: (H, parts), rows sum to one."""
        return self.mix.softmax(-1)

    def keys(self, x: Tensor, positions: Tensor | None = None) -> Tensor | None:
        pairs = zip(self.parts, self.widths, strict=True)
        each = [keys_at(part, x, positions) for part, width in pairs if width]
        kept = [keys for keys in each if keys is not None]
        return torch.cat(kept, dim=-1) if len(kept) > 1 else next(iter(kept), None)

    def terms(
        self, x: Tensor, keys: Tensor | None, places: Places, scale: Tensor | None = None
    ) -> Terms:
        assert scale is None
        each, alphas = [], self.alphas().unbind(-1)
        parts: Sequence[nn.Module] = self.parts
        of_each: Sequence[Tensor | None] = [keys if width else None for width in self.widths]
        if keys is not None and keys.shape[-1] not in self.widths:  # of more parts than one
            of_each = keys.split(self.widths, dim=-1)
        for part, kept, alpha in zip(parts, of_each, alphas, strict=True):
            if not isinstance(part, Synthesis):  # an adapter, which acts while its forward runs
                each.append(written_terms(part, x, kept, places, alpha))
                continue
            made = part.terms(x, kept, places, alpha)
            if made.queries is not None and self.depends_on_input and not part.depends_on_input:
                made = made.as_table()  # beside terms of the tokens: it has no batch
            each.append(made)
        return add(each)

    def resize(self, max_len: int) -> None:
        for part in self.parts:
            part.resize(max_len)


class Grouped(Synthesis):
    """The logits of each group of heads, made by a synthesis of its own, heads side by side."""

    takes_positions = True
    groups: Sequence[Synthesis]

    def __init__(self, groups: Sequence[Synthesis], heads: Sequence[int]) -> None:
        super().__init__()
        self.groups = nn.ModuleList(groups)  # type: ignore[assignment]
        self.heads = list(heads)
        widths = {group.d_keys for group in groups if group.d_keys}
        if len(widths) > 1:
            raise UserError(
                f"groups of heads keep keys of different widths ({', '.join(map(str, widths))}); "
                "give every group with a dot product as many of them"
            )
        self.d_keys = max(widths, default=0)
        self.depends_on_input = any(group.depends_on_input for group in groups)
        self.depends_on_pairs = any(group.depends_on_pairs for group in groups)
        self.any_length = joint_length(groups)
        self.has_last = any(group.has_last for group in groups)

    def reset_parameters(self) -> None:
        """Every group initializes its own."""

    def keys(self, x: Tensor, positions: Tensor | None = None) -> Tensor | None:
        """Of the heads that need any, (B, some of H, S, d_keys)."""
        each = [keys_at(group, x, positions) for group in self.groups]
        kept = [keys for keys in each if keys is not None]
        return torch.cat(kept, dim=1) if kept else None

    def split_keys(self, keys: Tensor | None) -> list[Tensor | None]:
        """The keys of each group."""
        needs = [bool(unwrapped(group).d_keys) for group in self.groups]
        counts = [n if needed else 0 for needed, n in zip(needs, self.heads, strict=True)]
        each = [None] * len(counts) if keys is None else keys.split(counts, dim=1)
        return [kept if needed else None for needed, kept in zip(needs, each, strict=True)]

    def forward(
        self,
        x: Tensor,
        keys: Tensor | None,
        positions: Tensor,
        key_positions: Tensor,
        is_last: Tensor | None = None,
    ) -> Tensor:
        parts = zip(self.groups, self.split_keys(keys), strict=True)
        each = [logits_of(g, x, kept, positions, key_positions, is_last) for g, kept in parts]
        batch = torch.broadcast_shapes(*(logits.shape[:1] for logits in each))[0]
        return torch.cat([logits.expand(batch, -1, -1, -1) for logits in each], dim=1)

    def resize(self, max_len: int) -> None:
        for group in self.groups:
            group.resize(max_len)
