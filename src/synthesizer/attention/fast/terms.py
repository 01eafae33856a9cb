"""What the logits of a synthesis are made of: tables, bilinear terms and outer products.

    logits[b,h,i,j] = weight[h] table[h,i,j] + rows[h,i]·columns[h,j]
                      + queries[b,h,i]·keys[b,h,j] + offsets[h,j]
                      + tiled[b,h,i,j mod a] repeated[b,h,i,j div a]

Every synthesizing function is one of these terms, and a mixture scales and adds them. Nothing of
(B, H, T, S) is written here. Tokens stand in their slots: T queries are the last of S keys.
Letters as in synthesis.py; W is the width of what a bilinear term compares, a b an outer one's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from synthesizer.attention.fast.table import corner
from synthesizer.attention.synthesis import (
    Dense,
    DotProduct,
    FactorizedDense,
    FactorizedRandom,
    FixedRandom,
    Mixture,
    Random,
    Synthesis,
)
from synthesizer.errors import UserError


class Factors(NamedTuple):
    """Two tensors whose product along the last axis is a term."""

    left: Tensor
    right: Tensor


@dataclass(frozen=True)
class Terms:
    """A sum of terms; what is None is not in it."""

    table: Tensor | None = None  # (H, T, S), or whole (H, N, N)
    weight: Tensor | None = None  # (H,), what the table is multiplied by
    rank: Factors | None = None  # rows (H, T, R), columns (H, S, R)
    bilinear: Factors | None = None  # queries (B, H, T, W), keys (B or 1, H, S, W)
    offsets: Tensor | None = None  # (H, S)
    outer: Factors | None = None  # tiled (B, H, T, a), repeated (B, H, T, b)

    def weighed_table(self) -> Tensor:
        """The table times its weight, written out."""
        assert self.table is not None
        return self.table if self.weight is None else self.table * self.weight[:, None, None]


class Scene(NamedTuple):
    """The tokens, and how one part of a mixture is weighed."""

    x: Tensor  # (B, T, D)
    keys: Tensor | None  # (B, H, S, W)
    num_keys: int
    alpha: Tensor | None  # (H,)

    def scale(self, weight: Tensor) -> Tensor:
        """Multiply what is linear in the logits, (H, ...), by alpha."""
        if self.alpha is None:
            return weight
        return weight * self.alpha.view(-1, *[1] * (weight.dim() - 1))


def terms_of(synthesis: Synthesis, x: Tensor, keys: Tensor | None, num_keys: int) -> Terms:
    """The terms whose sum is what synthesis(x, keys, ...) would write out."""
    if not isinstance(synthesis, Mixture):
        return _TERMS.get(type(synthesis), _users)(synthesis, Scene(x, keys, num_keys, None))
    kept = [None] * len(synthesis.widths) if keys is None else keys.split(synthesis.widths, dim=-1)
    parts = [
        _TERMS.get(type(part), _users)(part, Scene(x, own, num_keys, alpha))
        for part, own, alpha in zip(
            synthesis.parts, kept, synthesis.alphas().unbind(-1), strict=True
        )
    ]
    return add(parts)


def is_known(synthesis: Synthesis) -> bool:
    """Whether every part is a sum of terms; a user's function is one if it ignores the input."""
    parts = synthesis.parts if isinstance(synthesis, Mixture) else [synthesis]
    return all(type(part) in _TERMS or not part.depends_on_input for part in parts)


def add(parts: Sequence[Terms]) -> Terms:
    """Add sums of terms; two outer products have no common form and are never asked for."""
    tables = [part for part in parts if part.table is not None]
    offsets = [part.offsets for part in parts if part.offsets is not None]
    outers = [part.outer for part in parts if part.outer is not None]
    assert len(outers) <= 1
    alone = len(tables) == 1
    return Terms(
        table=tables[0].table if alone else _sum([part.weighed_table() for part in tables]),
        weight=tables[0].weight if alone else None,
        rank=_join([part.rank for part in parts if part.rank is not None]),
        bilinear=_join([part.bilinear for part in parts if part.bilinear is not None]),
        offsets=_sum(offsets),
        outer=outers[0] if outers else None,
    )


def num_outer(synthesis: Synthesis) -> int:
    """How many outer products a synthesis adds."""
    parts = synthesis.parts if isinstance(synthesis, Mixture) else [synthesis]
    return sum(isinstance(part, FactorizedDense) for part in parts)


def _dot(part: DotProduct, scene: Scene) -> Terms:
    assert scene.keys is not None
    weight = scene.scale(part.wq * part.d_keys**-0.5)
    queries = torch.einsum("btd,hdk->bhtk", scene.x, weight)
    return Terms(bilinear=Factors(queries, scene.keys))


def _table(part: Random | FixedRandom, scene: Scene) -> Terms:
    if scene.alpha is None:
        return Terms(table=part.table)
    table = corner(part.table, scene.x.shape[1], scene.num_keys)
    return Terms(table=table, weight=scene.alpha)


def _users(part: Synthesis, scene: Scene) -> Terms:
    """A user's function that does not depend on the input: what it computes is a table."""
    positions = torch.arange(scene.num_keys, device=scene.x.device)
    logits = part(scene.x, None, positions[scene.num_keys - scene.x.shape[1] :], positions)
    if logits.shape[0] != 1:
        raise UserError(
            f"{type(part).__name__} has depends_on_input=False, and its logits have a batch of "
            f"{logits.shape[0]}; return (1, H, T, S), or set depends_on_input=True"
        )
    return Terms(table=logits[0], weight=scene.alpha)


def _factorized_table(part: FactorizedRandom, scene: Scene) -> Terms:
    first = scene.num_keys - scene.x.shape[1]
    rows = part.rows[:, first : scene.num_keys]
    return Terms(rank=Factors(scene.scale(rows), part.columns[:, : scene.num_keys]))


def _dense(part: Dense, scene: Scene) -> Terms:
    columns = scene.scale(part.w2[..., : scene.num_keys])  # (H, K, S)
    offsets = scene.scale(part.b2[:, : scene.num_keys])
    return Terms(bilinear=Factors(_hidden(part, scene.x), columns.mT[None]), offsets=offsets)


def _factorized_dense(part: FactorizedDense, scene: Scene) -> Terms:
    hidden = _hidden(part, scene.x)
    width = -(-scene.num_keys // part.a)
    wb, bb = scene.scale(part.wb[..., :width]), scene.scale(part.bb[:, :width])
    tiled = torch.einsum("bhtk,hkn->bhtn", hidden, part.wa) + part.ba[:, None]
    repeated = torch.einsum("bhtk,hkn->bhtn", hidden, wb) + bb[:, None]
    return Terms(outer=Factors(tiled, repeated))


def _hidden(part: Dense | FactorizedDense, x: Tensor) -> Tensor:
    """relu(x W1 + b1) per head, (B, H, T, K), by one product for all heads."""
    hidden = F.linear(x, part.w1.mT.flatten(0, 1), part.b1.flatten())
    return hidden.relu_().unflatten(-1, (len(part.w1), -1)).transpose(1, 2)


_TERMS: dict[type, Callable[[Any, Scene], Terms]] = {
    DotProduct: _dot,
    Random: _table,
    FixedRandom: _table,
    FactorizedRandom: _factorized_table,
    Dense: _dense,
    FactorizedDense: _factorized_dense,
}


def _sum(tensors: Sequence[Tensor]) -> Tensor | None:
    return sum(tensors[1:], start=tensors[0]) if tensors else None


def _join(pairs: Sequence[Factors]) -> Factors | None:
    """Lay products side by side: their sum is one product of the joint width."""
    if len(pairs) < 2:
        return pairs[0] if pairs else None
    batch = max(pair.right.shape[0] for pair in pairs)
    right = [pair.right.expand(batch, *pair.right.shape[1:]) for pair in pairs]
    return Factors(torch.cat([pair.left for pair in pairs], -1), torch.cat(right, -1))
