"""Where attention logits come from: the synthesizing functions of the paper, one class each.

    keys(x) -> Tensor | None            what a cache must keep of the keys' tokens
    forward(x, keys, positions, key_positions) -> logits
                                        (B, H, T, S), or (1, H, T, S) if equal for all examples
    resize(max_len)                     grow or crop: what both lengths share is kept
    reset_parameters()                  initialize

    x              (B, T, D)            the query tokens
    keys           (B, H, S, d_keys)    what keys(x) gave for the key tokens
    positions      (T,) or (B, T)       positions of the queries
    key_positions  (S,) or (B, S)       positions of the keys

Masks, softmax, dropout and values are layer.py's, written there once.
Letters: B batch, T queries, S keys, D model, H heads, K head width, N max_len, R rank.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from synthesizer.attention.base import Size as Size
from synthesizer.attention.base import Synthesis as Synthesis
from synthesizer.attention.base import joint_length, unwrapped
from synthesizer.attention.groups import Grouped
from synthesizer.attention.reading import (
    draw_weight,
    empty,
    look_up,
    outer_sides,
    pick,
    read_at,
)
from synthesizer.attention.relative import Relative
from synthesizer.attention.resize import resized
from synthesizer.attention.rotary import Rotary
from synthesizer.attention.rows import few_rows
from synthesizer.errors import UserError
from synthesizer.spec import (
    NONE,
    Term,
    Variant,
    defining_module,
    parse_spec,
    read_options,
    register_variant,
    require_positive,
    split_groups,
    term_of,
)


def project_heads(x: Tensor, weight: Tensor) -> Tensor:
    """x (B, T, D) times weight (H, D, K): (B, H, T, K), by one product for all heads."""
    heads = few_rows(x, weight) if x.shape[1] == 1 else None
    if heads is None:
        heads = x @ weight.transpose(0, 1).flatten(1)
    return heads.unflatten(-1, (len(weight), -1)).transpose(1, 2)


def hidden_units(x: Tensor, w1: Tensor, b1: Tensor) -> Tensor:
    """relu(x W1 + b1) per head: (B, H, T, K)."""
    return (project_heads(x, w1) + b1[:, None]).relu()


class DotProduct(Synthesis):
    """B[i,j] = (x[i] Wq)·(x[j] Wk) / sqrt(K): dot-product attention."""

    weights = ("wq", "wk")
    depends_on_pairs = True
    any_length = None
    rotary: Rotary | None = None

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.wq = empty(size.num_heads, size.d_model, size.d_head)  # (H, D, K)
        self.wk = empty(size.num_heads, size.d_model, size.d_head)  # (H, D, K)
        self.d_keys = size.d_head
        self.reset_parameters()

    def reset_parameters(self) -> None:
        draw_weight(self.wq)
        draw_weight(self.wk)

    def keys(self, x: Tensor) -> Tensor:
        return project_heads(x, self.wk)

    def turn_keys(self, keys: Tensor, positions: Tensor) -> Tensor:
        if self.rotary is None:
            return keys
        return self.rotary.turn(keys, positions if positions.dim() == 1 else positions[:, None])

    def forward(
        self, x: Tensor, keys: Tensor, positions: Tensor | None, key_positions: Tensor | None
    ) -> Tensor:
        queries = project_heads(x, self.wq) * self.d_keys**-0.5
        if self.rotary is not None and positions is not None:
            queries = self.turn_keys(queries, positions)  # keys were turned before they were cached
        return torch.einsum("bhtk,bhsk->bhts", queries, keys)

    def resize(self, max_len: int) -> None:
        """No parameter depends on the length."""


class TablePerHead(Synthesis):
    """An (N, N) table per head, drawn from N(0, std^2)."""

    depends_on_input = False
    table: Tensor  # (H, N, N)
    std: float

    def reset_parameters(self) -> None:
        self._draw(self.table)

    def forward(self, x: Tensor, keys: None, positions: Tensor, key_positions: Tensor) -> Tensor:
        return look_up(self.table, positions, key_positions)

    def resize(self, max_len: int) -> None:
        table = resized(self.table, (1, 2), max_len, self._draw)
        self.table = nn.Parameter(table) if "table" in self.tables else table

    def _draw(self, table: Tensor) -> None:
        nn.init.normal_(table, std=self.std)


class Random(TablePerHead):
    """B = R, a learned (N, N) table per head."""

    tables = ("table",)

    def __init__(self, size: Size, *, std: float = 0.02) -> None:
        """Start near zero: attention begins almost uniform, as in the authors' code."""
        super().__init__()
        self.std = std
        self.table = empty(size.num_heads, size.max_len, size.max_len)
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

    tables = ("rows", "columns")
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

    def forward(self, x: Tensor, keys: None, positions: Tensor, key_positions: Tensor) -> Tensor:
        rows, columns = read_at(self.rows.mT, positions), read_at(self.columns.mT, key_positions)
        return torch.einsum("bhrt,bhrs->bhts", rows, columns)

    def resize(self, max_len: int) -> None:
        self.rows = nn.Parameter(resized(self.rows, (1,), max_len, self._draw))
        self.columns = nn.Parameter(resized(self.columns, (1,), max_len, self._draw))

    def _draw(self, factor: Tensor) -> None:
        nn.init.normal_(factor, std=(self.std / math.sqrt(self.k)) ** 0.5)


class Dense(Synthesis):
    """B[i] = relu(x[i] W1 + b1) W2 + b2: each token predicts its own row of logits."""

    weights = ("w1", "w2")
    biases = ("b1", "b2")

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.w1 = empty(size.num_heads, size.d_model, size.d_head)  # (H, D, K)
        self.b1 = empty(size.num_heads, size.d_head)  # (H, K)
        self.w2 = empty(size.num_heads, size.d_head, size.max_len)  # (H, K, N)
        self.b2 = empty(size.num_heads, size.max_len)  # (H, N)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        draw_weight(self.w1)
        draw_weight(self.w2)
        nn.init.zeros_(self.b1)
        nn.init.zeros_(self.b2)

    def forward(self, x: Tensor, keys: None, positions: Tensor, key_positions: Tensor) -> Tensor:
        hidden = hidden_units(x, self.w1, self.b1)  # (B, H, T, K)
        columns, offsets = read_at(self.w2, key_positions), read_at(self.b2, key_positions)
        return torch.einsum("bhtk,bhks->bhts", hidden, columns) + offsets[:, :, None]

    def resize(self, max_len: int) -> None:
        self.w2 = nn.Parameter(resized(self.w2, (2,), max_len, draw_weight))
        self.b2 = nn.Parameter(resized(self.b2, (1,), max_len, nn.init.zeros_))


class FactorizedDense(Synthesis):
    """B[i,j] = F[i, j mod a] G[i, j div a], F, G = linear(relu(x[i] W1 + b1))."""

    weights = ("w1", "wa", "wb")
    biases = ("b1", "ba", "bb")

    def __init__(self, size: Size, *, a: int | None = None, b: int | None = None) -> None:
        super().__init__()
        self.a, self.b = outer_sides(size.max_len, a, b)
        self.w1 = empty(size.num_heads, size.d_model, size.d_head)  # (H, D, K)
        self.b1 = empty(size.num_heads, size.d_head)  # (H, K)
        self.wa = empty(size.num_heads, size.d_head, self.a)  # (H, K, a)
        self.ba = empty(size.num_heads, self.a)  # (H, a)
        self.wb = empty(size.num_heads, size.d_head, self.b)  # (H, K, b)
        self.bb = empty(size.num_heads, self.b)  # (H, b)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.w1, self.wa, self.wb):
            draw_weight(weight)
        for bias in (self.b1, self.ba, self.bb):
            nn.init.zeros_(bias)

    def forward(self, x: Tensor, keys: None, positions: Tensor, key_positions: Tensor) -> Tensor:
        """Tile one factor, repeat the other, and multiply: all a b columns differ."""
        hidden = hidden_units(x, self.w1, self.b1)  # (B, H, T, K)
        tiled = torch.einsum("bhtk,hkn->bhtn", hidden, self.wa) + self.ba[:, None]
        repeated = torch.einsum("bhtk,hkn->bhtn", hidden, self.wb) + self.bb[:, None]
        return pick(tiled, key_positions % self.a) * pick(repeated, key_positions // self.a)

    def resize(self, max_len: int) -> None:
        """Keep a, so that every learned column stays where it was, and grow or crop b."""
        self.b = -(-max_len // self.a)
        self.wb = nn.Parameter(resized(self.wb, (2,), self.b, draw_weight))
        self.bb = nn.Parameter(resized(self.bb, (1,), self.b, nn.init.zeros_))


SYNTHESES: dict[str, type[Synthesis]] = {
    "dot": DotProduct,
    "random": Random,
    "fixed_random": FixedRandom,
    "factorized_random": FactorizedRandom,
    "dense": Dense,
    "factorized_dense": FactorizedDense,
    "relative": Relative,
}


class Mixture(Synthesis):
    """B = alpha_1 S_1 + alpha_2 S_2 + ..., the alphas learned per head and summing to one."""

    tables = ("mix",)
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
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.mix)

    def alphas(self) -> Tensor:
        """The weight of each part: (H, parts), rows sum to one."""
        return self.mix.softmax(-1)

    def keys(self, x: Tensor) -> Tensor | None:
        each = [unwrapped(part).keys(x) for part in self.parts]
        kept = [keys for keys in each if keys is not None]
        return torch.cat(kept, dim=-1) if len(kept) > 1 else next(iter(kept), None)

    def turn_keys(self, keys: Tensor, positions: Tensor) -> Tensor:
        parts = zip(self.parts, self.split_keys(keys), strict=True)
        turned = [
            unwrapped(part).turn_keys(kept, positions) for part, kept in parts if kept is not None
        ]
        return torch.cat(turned, dim=-1) if len(turned) > 1 else turned[0]

    def split_keys(self, keys: Tensor | None) -> Sequence[Tensor | None]:
        """The keys of each part, if it has any; those of a single one are not cut out of them."""
        if keys is None or keys.shape[-1] in self.widths:
            return [keys if width else None for width in self.widths]
        return keys.split(self.widths, dim=-1)

    def forward(
        self, x: Tensor, keys: Tensor | None, positions: Tensor, key_positions: Tensor
    ) -> Tensor:
        split, alphas = self.split_keys(keys), self.alphas().unbind(-1)
        logits = [
            alpha[:, None, None] * part(x, kept, positions, key_positions)
            for alpha, part, kept in zip(alphas, self.parts, split, strict=True)
        ]
        return sum(logits[1:], start=logits[0])

    def last_column(
        self, x: Tensor, positions: Tensor, key_positions: Tensor, is_last: Tensor
    ) -> Tensor | None:
        given = (x, positions, key_positions, is_last)
        columns = [
            alpha[:, None, None] * column
            for alpha, part in zip(self.alphas().unbind(-1), self.parts, strict=True)
            if (column := unwrapped(part).last_column(*given)) is not None
        ]
        return sum(columns[1:], start=columns[0]) if columns else None

    def resize(self, max_len: int) -> None:
        for part in self.parts:
            part.resize(max_len)


S = TypeVar("S", bound=type[Synthesis])


def register_synthesis(name: str, *, parameters: str = "", paper: str = "") -> Callable[[S], S]:
    """Register a synthesizing function of your own, so that a spec may name it.

        @register_synthesis("decay", parameters="H")
        class Decay(Synthesis): ...

    The first line of its docstring is its equation in `synthesizer list`; `parameters` counts what
    it learns and `paper` cites it, both for display. Its keyword-only arguments, kept as
    attributes, are the options of a spec: "decay:k=3".
    """

    def register(cls: S) -> S:
        for method in ("forward", "reset_parameters"):
            if not issubclass(cls, Synthesis) or method not in vars(cls):
                raise UserError(
                    f"{cls.__name__}, to be registered as {name!r}, must be a class derived from "
                    f"synthesizer.Synthesis that defines {method}()"
                )
        facts = (name, paper, (cls.__doc__ or "").split("\n")[0], parameters)
        reads = (cls.depends_on_input, cls.depends_on_pairs)
        register_variant(Variant(*facts, *reads, module=defining_module(cls)))
        SYNTHESES[name] = cls
        return cls

    return register


def build_synthesis(spec: str, size: Size) -> Synthesis:
    """Turn 'dense', 'factorized_random:k=16', 'dense+dot' or 'random@2|dot@1' into a module."""
    terms = parse_spec(spec)
    if groups := split_groups(spec):
        heads = [count for _, count in groups]
        if sum(heads) != size.num_heads:
            raise UserError(
                f"synthesis {spec!r} is for {sum(heads)} heads and the layer has {size.num_heads}; "
                "let the groups add up"
            )
        sizes = [replace(size, num_heads=count, head_width=size.d_head) for count in heads]
        built = [build_synthesis(g, own) for (g, _), own in zip(groups, sizes, strict=True)]
        return built[0] if len(built) == 1 else Grouped(built, heads)
    if terms[0].name == NONE:
        raise UserError(
            "synthesis 'none' makes no logits; it leaves the attention sublayer out of a model"
        )
    parts = [_build_part(term, size) for term in terms]
    return parts[0] if len(parts) == 1 else Mixture(parts, size.num_heads)


def spec_of(synthesis: Synthesis) -> str:
    """Write the spec that builds this module, with the options that differ from their defaults."""
    if isinstance(synthesis, Mixture):
        return "+".join(spec_of(part) for part in synthesis.parts)
    if isinstance(synthesis, Grouped):
        parts = zip(synthesis.groups, synthesis.heads, strict=True)
        return "|".join(f"{spec_of(group)}@{count}" for group, count in parts)
    name = next(name for name, cls in SYNTHESES.items() if type(synthesis) is cls)
    return str(term_of(name, synthesis))


def _build_part(term: Term, size: Size) -> Synthesis:
    if term.name not in SYNTHESES:
        raise UserError(
            f"synthesis {term.name!r} is a baseline and makes no logits; "
            "build it with build_mixer, or in a model"
        )
    cls = SYNTHESES[term.name]
    part = cls(size, **read_options(term, cls))
    declared = {*part.tables, *part.weights, *part.biases}
    for name, _ in part.named_parameters(recurse=False):
        if name not in declared:
            raise UserError(
                f"synthesis {term.name!r} does not say what its parameter {name!r} is; name it in "
                f"{cls.__name__}.tables, .weights or .biases"
            )
    return part
