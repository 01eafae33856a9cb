"""The same attention by the cheapest exact path: what attention.py defines, sooner.

`choose` says which path a call takes and why; `attend` takes it, or returns None where only the
plain path is exact. Letters as in terms.py. What a mask lets a query see is one number: sight.py.

    frozen   the same, its softmax taken beforehand
    table    the logits have no batch in them: one softmax for all examples, one product per head
    fused    a bilinear term alone: PyTorch's fused kernel
    blocks   any other sum of terms, block by block, made again for backward
    plain    attention.py itself
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from synthesizer.attention.fast.blocks import block_attention
from synthesizer.attention.fast.kernel import kernel_for
from synthesizer.attention.fast.shared import frozen_attention, masked_attention, shared_attention
from synthesizer.attention.fast.table import TableLogits, corner, probabilities
from synthesizer.attention.fast.tensors import Parts
from synthesizer.attention.fast.terms import Terms, is_known, num_outer, terms_of
from synthesizer.attention.fast.visibility import Sight, packed_sight, sight_of
from synthesizer.attention.masks import COUNTED, TOLD, visible_keys
from synthesizer.attention.synthesis import DotProduct, Synthesis

PATHS = ("auto", "fast", "plain")
SHORT = 64  # up to here a tensor of all pairs fits the cache, and blocks only cost


@dataclass(frozen=True)
class Call:
    """One call of an attention, its tokens in their slots: T queries are the last of S keys."""

    x: Tensor  # (B, T, D)
    keys: Tensor | None  # (B, H, S, W)
    values: Tensor  # (B, H, S, K)
    causal: bool
    mask: Tensor | None  # (B, S), True where a token is real
    bias: Tensor | None  # (1 or B, H, T, S)
    dropout: float
    standing: str  # where the tokens stand, one of places.STANDINGS
    frozen: Tensor | None = None  # (H, N, N), the probabilities that freeze() held

    @property
    def num_queries(self) -> int:
        """T."""
        return self.x.shape[1]

    @property
    def num_keys(self) -> int:
        """S."""
        return self.values.shape[2]


class Choice(NamedTuple):
    """A path, and why."""

    path: str
    reason: str


def choose(synthesis: Synthesis, call: Call, path: str = "auto") -> Choice:
    """Which path computes this call; all give the same result."""
    if path == "plain":
        return Choice("plain", "asked for")
    if not is_known(synthesis) or num_outer(synthesis) > 1:
        return Choice("plain", "no sum of the known terms")
    if call.x.shape[0] == 0 or call.x.is_meta:
        return Choice("plain", "nothing to compute")
    if isinstance(synthesis, DotProduct) and call.bias is None and call.dropout == 0.0:
        return Choice("fused", "one bilinear term, whatever the positions")
    if torch.compiler.is_compiling():
        return Choice("plain", "compiling: the paths below look at what a mask holds")
    if call.standing == TOLD:
        return Choice("plain", "each example has positions of its own")
    if call.bias is not None and call.bias.shape[0] > 1:
        return Choice("plain", "each example has a bias of its own")
    return _choose_by_kind(synthesis, call, path)


def _choose_by_kind(synthesis: Synthesis, call: Call, path: str) -> Choice:
    if _is_held(call):
        return Choice("frozen", "freeze() holds its probabilities")
    if path == "auto" and _is_small(synthesis, call):
        return Choice("plain", "so short that all pairs fit the cache")
    if call.standing == COUNTED and _cannot_pack(call):
        return Choice("plain", "a mask moves positions under a cache, a bias or dropout")
    if not synthesis.depends_on_input:
        return Choice("table", "the logits do not depend on the input")
    if call.dropout > 0.0:
        return Choice("plain", "dropout draws for every pair of every example")
    return Choice("blocks", "terms of the tokens")


def _is_small(synthesis: Synthesis, call: Call) -> bool:
    """Whether blocks would only cost; a single row, as in decoding, is small at any length."""
    if call.num_queries == 1:
        return synthesis.depends_on_input
    return call.num_queries <= SHORT and not num_outer(synthesis)


def _is_held(call: Call) -> bool:
    """Whether what freeze() held answers this call, and no gradient is lost by it."""
    if call.frozen is None or torch.is_grad_enabled() or call.mask is not None:
        return False
    length = call.frozen.shape[-1]
    fits = call.num_keys <= length if call.causal else call.num_keys == length
    return fits and call.bias is None


def _cannot_pack(call: Call) -> bool:
    """Whether moving the real tokens to the front would tear apart what belongs to their slots."""
    return call.num_queries < call.num_keys or call.bias is not None or call.dropout > 0.0


def attend(synthesis: Synthesis, call: Call, path: str = "auto") -> Tensor | None:
    """The heads' outputs side by side, (B, T, D); None where the plain path has to be taken."""
    chosen = choose(synthesis, call, path).path
    if chosen == "plain":
        return None
    if chosen == "frozen":
        assert call.frozen is not None
        held = frozen_attention(call.values, call.frozen, call.num_queries, call.causal)
        return held.flatten(-2)
    if chosen == "fused":
        terms = terms_of(synthesis, call.x, call.keys, call.num_keys)
        return _fused(terms, call.values, *_visible(call))
    sight = _sight(call)
    call = replace(call, keys=sight.packed(call.keys), values=sight.packed(call.values))
    terms = terms_of(synthesis, call.x, call.keys, call.num_keys)
    with torch.autocast(call.values.device.type, enabled=False):
        output = _by_table(terms, call, sight) if chosen == "table" else None
        blocks = output is None and call.dropout == 0.0
        return _by_blocks(terms, call, sight) if blocks else output


def has_kernel(device: torch.device) -> bool:
    """Whether float32 on this device goes through the compiled kernel, where it fits."""
    return kernel_for(torch.empty(0, device=device)) is not None


def attend_across(
    synthesis: DotProduct, x: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None
) -> Tensor:
    """A dot product with a memory, by the fused kernel: (B, T, D)."""
    return _fused(terms_of(synthesis, x, keys, keys.shape[2]), values, visible, is_causal=False)


def _fused(terms: Terms, values: Tensor, visible: Tensor | None, is_causal: bool) -> Tensor:
    assert terms.bilinear is not None
    output = F.scaled_dot_product_attention(
        *terms.bilinear, values, attn_mask=visible, is_causal=is_causal, scale=1.0
    )
    return output.transpose(1, 2).flatten(-2)


def _visible(call: Call) -> tuple[Tensor | None, bool]:
    """What the fused kernel is told of a mask, or that it is the causal one and nothing else."""
    if call.mask is None and (not call.causal or call.num_queries in (1, call.num_keys)):
        return None, call.causal and call.num_queries > 1
    sizes = (call.num_queries, call.num_keys)
    return visible_keys(call.mask, call.causal, *sizes, call.x.device), False


def _by_table(terms: Terms, call: Call, sight: Sight) -> Tensor | None:
    """One softmax for all examples; None where some example's share of it is no good."""
    logits = TableLogits(_whole_table(terms, call), *(terms.rank or (None, None)))
    if call.mask is None:
        return shared_attention(call.values, logits, call.causal, call.dropout).flatten(-2)
    if not sight.by_position(call.mask):
        return None
    real = call.mask.sort(-1, descending=True)[0]
    output = masked_attention(call.values, logits, call.causal, call.dropout, real)
    return None if output is None else sight.at_places(output.flatten(-2))


def _by_blocks(terms: Terms, call: Call, sight: Sight) -> Tensor:
    dtype, weight = call.values.dtype, None
    if terms.rank is None and call.bias is None:
        weight = terms.weight
        terms = replace(terms, weight=None)
    table = _whole_table(terms, call)
    if terms.rank is not None:
        product = terms.rank.left @ terms.rank.right.mT
        table = product if table is None else table + product
    queries, keys = terms.bilinear or (None, None)
    tiled, repeated = terms.outer or (None, None)
    by_head = [
        None if part is None else part.to(dtype).transpose(0, 1)
        for part in (call.values, queries, keys, tiled, repeated)
    ]
    parts = Parts(
        values=by_head[0],
        queries=by_head[1],
        keys=by_head[2],
        table=None if table is None else table.to(dtype),
        weight=None if weight is None else weight.to(dtype),
        offsets=None if terms.offsets is None else terms.offsets.to(dtype),
        tiled=by_head[3],
        repeated=by_head[4],
    )
    return block_attention(parts, sight, call.num_queries).permute(1, 2, 0, 3).flatten(-2)


def _sight(call: Call) -> Sight:
    if call.standing == COUNTED:
        assert call.mask is not None
        return packed_sight(call.mask, call.causal)
    return sight_of(call.mask, call.causal, call.num_queries, call.values)


def _whole_table(terms: Terms, call: Call) -> Tensor | None:
    """The table that T queries read, with the bias added: (H, T, S)."""
    table = None
    if terms.table is not None:
        table = corner(terms.weighed_table(), call.num_queries, call.num_keys)
    if call.bias is None:
        return table
    bias = call.bias[0].expand(call.values.shape[1], call.num_queries, call.num_keys)
    return bias.contiguous() if table is None else table + bias


def freeze(synthesis: Synthesis, length: int, causal: bool) -> Tensor | None:
    """The probabilities (H, length, length) of a synthesis that no token has a say in."""
    if not is_known(synthesis) or synthesis.depends_on_input:
        return None
    with torch.no_grad():
        anything = next(synthesis.parameters(), None)
        x = torch.empty(0, length, 0) if anything is None else anything.new_empty(0, length, 0)
        terms = terms_of(synthesis, x, None, length)
        table = None if terms.table is None else corner(terms.weighed_table(), length, length)
        return probabilities(TableLogits(table, *(terms.rank or (None, None))), causal)
