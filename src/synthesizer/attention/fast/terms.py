"""What the logits of a synthesis are made of: tables, bilinear terms and outer products.

    logits[b,h,i,j] = weight[h] table[h,i,j] + queries[b,h,i]·keys[b,h,j] + offsets[h,j]
                      + other_queries[b,h,i]·other_keys[b,h,j]
                      + tiled[b,h,i,j mod a] repeated[b,h,i,j div a] + distances[h, T - i + j]

Every synthesizing function is one of these terms, and a mixture scales and adds them. Nothing of
(B, H, T, S) is written here. Positions are slots: T queries are the last of S keys.
Letters as in synthesis.py; W is the width of what a bilinear term compares, a b an outer one's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from synthesizer.attention.relative import Relative, lay_out, numbers_by_distance
from synthesizer.attention.synthesis import (
    Dense,
    DotProduct,
    FactorizedDense,
    FactorizedRandom,
    FixedRandom,
    Mixture,
    Random,
    Synthesis,
    hidden_units,
    project_heads,
)
from synthesizer.errors import UserError


@dataclass
class Terms:
    """The tensors of a sum of terms, and the values, heads first; or the gradients of them all."""

    values: Tensor | None = None  # (H, B, S, K)
    queries: Tensor | None = None  # (H, B or 1, T, W)
    keys: Tensor | None = None  # (H, B or 1, S, W)
    table: Tensor | None = None  # (H, T, S)
    weight: Tensor | None = None  # (H,), what the table is multiplied by
    offsets: Tensor | None = None  # (H, S)
    tiled: Tensor | None = None  # (H, B, T, a)
    repeated: Tensor | None = None  # (H, B, T, b)
    distances: Tensor | None = None  # (H, T + S), of which key 0 reads the first: relative.py
    other_queries: Tensor | None = None  # (H, B or 1, T, W), of a second bilinear term
    other_keys: Tensor | None = None  # (H, B or 1, S, W)

    def join(self) -> None:
        """Make one bilinear term of two, of the joint width; the compiled kernel takes two."""
        if self.queries is None or self.keys is None:
            return
        if self.other_queries is not None and self.other_keys is not None:
            self.queries, self.keys = _joined(
                [self.queries, self.other_queries], [self.keys, self.other_keys]
            )
            self.other_queries = self.other_keys = None

    def weighted_table(self) -> Tensor | None:
        """The table times its weight, written out."""
        if self.table is None or self.weight is None:
            return self.table
        return self.table * self.weight[:, None, None]

    def write_out(self, num_queries: int) -> None:
        """Make one table of the table, its weight and the distances."""
        table, distances = self.weighted_table(), self.distances
        if distances is not None:
            rows, keys = slice(0, num_queries), slice(0, distances.shape[1] - num_queries)
            written = lay_out(distances, num_queries, rows, keys)
            table = written if table is None else table + written
        self.table, self.weight, self.distances = table, None, None

    def whole_table(self, num_queries: int) -> Tensor:
        """The sum of all terms, where none depends on the input: (H, T, S)."""
        self.write_out(num_queries)
        self.join()
        table = self.table
        if self.queries is not None and self.keys is not None:
            low_rank = (self.queries @ self.keys.mT)[:, 0]
            table = low_rank if table is None else low_rank + table
        assert table is not None
        return table


def terms_of(
    synthesis: Synthesis,
    x: Tensor,
    keys: Tensor | None,
    num_keys: int,
    bias: Tensor | None = None,
    num_heads: int = 1,
    query_positions: Tensor | None = None,
) -> Terms:
    """The terms whose sum is what synthesis(x, keys, ...) + bias (1, H, T, S) would write out.

    query_positions  (T,) or (B, T), where a dot product turns (rotary.py); its keys are turned
    """
    if not isinstance(synthesis, Mixture):
        terms = _TERMS.get(type(synthesis), _written_table)(synthesis, x, keys, num_keys, None)
        if query_positions is not None:
            _turn(terms, synthesis, query_positions)
    else:
        own, each = synthesis.split_keys(keys), []
        for part, kept, alpha in zip(
            synthesis.parts, own, synthesis.alphas().unbind(-1), strict=True
        ):
            made = _TERMS.get(type(part), _written_table)(part, x, kept, num_keys, alpha)
            if query_positions is not None:
                _turn(made, part, query_positions)
            if isinstance(part, FactorizedRandom) and synthesis.depends_on_input:
                # beside terms of the tokens, a low rank is one more table: it has no batch
                assert made.queries is not None
                assert made.keys is not None
                made = Terms(table=(made.queries @ made.keys.mT)[:, 0])
            each.append(made)
        terms = _add(each)
    if bias is not None:
        bias = bias[0].expand(num_heads, x.shape[1], num_keys)
        table = terms.weighted_table()
        terms.table, terms.weight = bias.contiguous() if table is None else table + bias, None
    return terms


def is_known(synthesis: Synthesis) -> bool:
    """Whether a synthesis is a sum of terms: two outer products have no common form."""
    num_outer = 0
    parts: Sequence[nn.Module] = synthesis.parts if isinstance(synthesis, Mixture) else [synthesis]
    for part in parts:
        if not isinstance(part, Synthesis):
            return False  # an adapter stands for a part: its forward alone knows the parameters
        if type(part) not in _TERMS and part.depends_on_input:
            return False
        num_outer += type(part) is FactorizedDense
    return num_outer < 2


def has_outer(synthesis: Synthesis) -> bool:
    """Whether a synthesis holds an outer product."""
    parts = synthesis.parts if isinstance(synthesis, Mixture) else [synthesis]
    return any(type(part) is FactorizedDense for part in parts)


class _Corner(torch.autograd.Function):
    """table[:, start:stop, :stop]; two slices would fill a whole gradient with zeros twice."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, start: int, stop: int) -> Tensor:  # noqa: ANN401
        ctx.shape, ctx.start, ctx.stop = table.shape, start, stop
        return table[:, start:stop, :stop]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        whole = grad.new_zeros(ctx.shape)
        whole[:, ctx.start : ctx.stop, : ctx.stop] = grad
        return whole, None, None


def _add(each: list[Terms]) -> Terms:
    """Add sums of terms."""
    tables = [part for part in each if part.table is not None]
    queries = [part.queries for part in each if part.queries is not None]
    keys = [part.keys for part in each if part.keys is not None]
    offsets = [part.offsets for part in each if part.offsets is not None]
    distances = [part.distances for part in each if part.distances is not None]
    total = next((part for part in each if part.tiled is not None), Terms())
    if len(tables) == 1:  # the weight stays apart: the compiled kernel applies it on the way
        total.table, total.weight = tables[0].table, tables[0].weight
    elif tables:
        total.table = torch.stack([part.weighted_table() for part in tables]).sum(0)  # type: ignore[misc]
    if queries:
        total.queries, total.keys = queries[0], keys[0]
    if len(queries) == 2:
        total.other_queries, total.other_keys = queries[1], keys[1]
    elif len(queries) > 2:
        total.other_queries, total.other_keys = _joined(queries[1:], keys[1:])
    if offsets:
        total.offsets = torch.stack(offsets).sum(0)
    if distances:
        total.distances = torch.stack(distances).sum(0)
    return total


def _joined(queries: list[Tensor], keys: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Bilinear terms side by side, as one product of the joint width."""
    batch = max(part.shape[1] for part in keys)
    return torch.cat(queries, -1), torch.cat([k.expand(-1, batch, -1, -1) for k in keys], -1)


def _turn(terms: Terms, part: Synthesis, positions: Tensor) -> None:
    """Turn the queries of a dot product, (H, B, T, W), to (T,) or (B, T)."""
    if isinstance(part, DotProduct) and part.rotary is not None:
        assert terms.queries is not None
        terms.queries = part.rotary.turn(terms.queries, positions)


def _dot(part: DotProduct, x: Tensor, keys: Tensor, num_keys: int, alpha: Tensor | None) -> Terms:
    scale = part.d_keys**-0.5 if alpha is None else alpha[:, None, None] * part.d_keys**-0.5
    if x.shape[1] == 1:  # a row, as in decoding, is smaller than the weight
        queries = (project_heads(x, part.wq) * scale).transpose(0, 1)
    else:
        queries = project_heads(x, part.wq * scale).transpose(0, 1)
    return Terms(queries=queries, keys=keys.transpose(0, 1))


def _table(
    part: Random | FixedRandom, x: Tensor, keys: None, num_keys: int, alpha: Tensor | None
) -> Terms:
    """The corner of a table that the last T of S slots read."""
    table, first = part.table, num_keys - x.shape[1]
    if table.shape[1:] != (x.shape[1], num_keys):
        learns = table.requires_grad and torch.is_grad_enabled()
        learns = learns and not torch.compiler.is_compiling()  # which joins the two slices itself
        table = (
            _Corner.apply(table, first, num_keys) if learns else table[:, first:num_keys, :num_keys]
        )
    return Terms(table=table, weight=alpha)


def _written_table(
    part: Synthesis, x: Tensor, keys: None, num_keys: int, alpha: Tensor | None
) -> Terms:
    """A user's function that does not depend on the input: what it computes is a table."""
    positions = torch.arange(num_keys, device=x.device)
    logits = part(x, None, positions[num_keys - x.shape[1] :], positions)
    if logits.shape[0] != 1:
        raise UserError(
            f"{type(part).__name__} has depends_on_input=False, and its logits have a batch of "
            f"{logits.shape[0]}; return (1, H, T, S), or set depends_on_input=True"
        )
    return Terms(table=logits[0], weight=alpha)


def _low_rank(
    part: FactorizedRandom, x: Tensor, keys: None, num_keys: int, alpha: Tensor | None
) -> Terms:
    rows = _scaled(part.rows[:, num_keys - x.shape[1] : num_keys], alpha)
    return Terms(queries=rows[:, None], keys=part.columns[:, None, :num_keys])


def _distances(part: Relative, x: Tensor, keys: None, num_keys: int, alpha: Tensor | None) -> Terms:
    return Terms(distances=_scaled(numbers_by_distance(part, x.shape[1], num_keys), alpha))


def _dense(part: Dense, x: Tensor, keys: None, num_keys: int, alpha: Tensor | None) -> Terms:
    columns = _scaled(part.w2[..., :num_keys], alpha)  # (H, K, S)
    offsets = _scaled(part.b2[:, :num_keys], alpha)
    return Terms(queries=_hidden(part, x), keys=columns.mT[:, None], offsets=offsets)


def _outer(
    part: FactorizedDense, x: Tensor, keys: None, num_keys: int, alpha: Tensor | None
) -> Terms:
    hidden, wb, bb = _hidden(part, x), _scaled(part.wb, alpha), _scaled(part.bb, alpha)
    weight, bias = torch.cat([part.wa, wb], -1), torch.cat([part.ba, bb], -1)
    both = torch.baddbmm(bias[:, None], hidden.flatten(1, 2), weight)  # (H, B T, a + b)
    tiled, repeated = both.unflatten(1, hidden.shape[1:3]).split([part.a, part.b], -1)
    return Terms(tiled=tiled, repeated=repeated)


def _scaled(weight: Tensor, alpha: Tensor | None) -> Tensor:
    """Multiply what is linear in the logits, (H, ...), by a part's weight in the mixture."""
    return weight if alpha is None else weight * alpha.view(-1, *[1] * (weight.dim() - 1))


def _hidden(part: Dense | FactorizedDense, x: Tensor) -> Tensor:
    """relu(x W1 + b1) per head, (H, B, T, K), by one product for all heads."""
    if x.shape[1] == 1:
        return hidden_units(x, part.w1, part.b1).transpose(0, 1)
    hidden = F.linear(x, part.w1.mT.flatten(0, 1), part.b1.flatten())
    return hidden.relu().unflatten(-1, (len(part.w1), -1)).permute(2, 0, 1, 3)


_TERMS: dict[type, Callable[..., Terms]] = {
    DotProduct: _dot,
    Random: _table,
    FixedRandom: _table,
    FactorizedRandom: _low_rank,
    Relative: _distances,
    Dense: _dense,
    FactorizedDense: _outer,
}
