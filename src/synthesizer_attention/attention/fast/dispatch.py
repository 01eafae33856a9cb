"""The same attention by the cheapest exact path: what layer.py defines, faster.

`choose` says which path a call takes and why; `attend` takes it, or returns None where only the
plain path is exact. Letters as in terms.py.

    frozen   a table whose softmax was taken beforehand
    table    the logits do not depend on the input: one softmax for all examples
    fused    a bilinear term alone: PyTorch's fused kernel
    groups   heads of different kinds, each group by its own path
    row      a single query, as in decoding: PyTorch's fused kernel, all but the product as a bias
    short    any other sum of terms, its probabilities kept for backward
    blocks   any other sum of terms, block by block, made again for backward
    plain    layer.py itself
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from synthesizer_attention.attention import hook
from synthesizer_attention.attention.fast.operator import block_attention
from synthesizer_attention.attention.fast.short import LONGEST, ShortAttention
from synthesizer_attention.attention.fast.table import (
    frozen_attention,
    masked_table_attention,
    probabilities,
    table_attention,
)
from synthesizer_attention.attention.hook import kernels, uses_kernel
from synthesizer_attention.attention.masks import (
    COUNTED,
    EXPLICIT,
    SLOT,
    Visibility,
    is_transformed,
    known_visibility,
    visibility_of,
    visible_keys,
)
from synthesizer_attention.attention.synthesis import DotProduct, Grouped, Mixture, Synthesis
from synthesizer_attention.attention.terms import Places, Terms

PATHS = ("auto", "fast", "plain")
SHORT = 64  # up to here a tensor of all pairs fits the cache, and blocks only cost
EXACT = (torch.float32, torch.float64)  # types in which a softmax may be taken in place


@dataclass(frozen=True)
class Call:
    """One call of an attention: T queries, the last of S keys, and what belongs to the keys."""

    x: Tensor  # (B, T, D)
    keys: Tensor | None  # (B, H, S, W)
    values: Tensor  # (B, H, S, K)
    mask: Tensor | None = None  # (B, S), True where a token is real
    positions: Tensor | None = None  # (S,) or (B, S), where they were given
    source: str = SLOT  # where positions come from, as masks.py says
    bias: Tensor | None = None  # (1 or B, H, T, S)
    query_positions: Tensor | None = None  # (T,) or (B, T), where queries turn: rotary.py
    causal: bool = False
    window: int | None = None
    dropout: float = 0.0
    frozen: Tensor | None = None  # (H, N, N), the probabilities that freeze() held

    @property
    def num_queries(self) -> int:
        """T."""
        return self.x.shape[1]

    @property
    def num_keys(self) -> int:
        """S."""
        return self.values.shape[2]

    @property
    def is_torn(self) -> bool:
        """Whether moving real tokens to the front would tear apart what belongs to their slots."""
        whole = self.num_queries == self.num_keys and self.bias is None and self.dropout == 0.0
        return not whole


class Choice(NamedTuple):
    """A path, and why."""

    path: str
    reason: str


def choose(synthesis: Synthesis, call: Call, path: str = "auto") -> Choice:
    """Which path computes this call; all give the same result.

    First what the layer allows, whatever the call; then what this call asks for.
    """
    if path == "plain":
        return Choice("plain", "asked for")
    if is_transformed():
        return Choice("plain", "torch.func and forward mode know PyTorch's own operations alone")
    if isinstance(synthesis, Grouped) and synthesis.depends_on_input:
        each = [choose(*part, path) for part in _groups(synthesis, call)]
        plain = next((choice for choice in each if choice.path == "plain"), None)
        return plain or Choice("groups", ", ".join(f"heads by {choice.path}" for choice in each))
    if not is_known(synthesis):
        return Choice("plain", "not a sum of the known terms")
    if call.x.shape[0] == 0 or call.x.is_meta:
        return Choice("plain", "nothing to compute")
    if isinstance(synthesis, DotProduct) and _is_fused(call):
        return Choice("fused", "one bilinear term, whatever the positions")
    if torch.compiler.is_exporting():
        return Choice("plain", "an exported program has PyTorch's own operators alone")
    if call.source == EXPLICIT:
        return Choice("plain", "each example has positions of its own")
    if call.bias is not None and call.bias.shape[0] > 1:
        return Choice("plain", "each example has a bias of its own")
    of_kind = _choose_for_tokens if synthesis.depends_on_input else _choose_for_table
    return of_kind(synthesis, call, path)


def _is_fused(call: Call) -> bool:
    """Whether PyTorch's kernel takes a dot product: not where a window lets blocks skip much."""
    if call.bias is not None or call.dropout > 0.0:
        return False
    num_queries = call.num_queries
    skips = call.window is not None and num_queries > max(2 * call.window, 4 * SHORT)
    skips = skips and num_queries == call.num_keys and call.source != EXPLICIT
    return not skips or torch.compiler.is_compiling()


def _choose_for_table(synthesis: Synthesis, call: Call, path: str) -> Choice:
    """Of logits that do not depend on the input."""
    num_queries, num_keys = call.x.shape[1], call.values.shape[2]
    if call.frozen is not None and call.mask is None and call.bias is None:
        length = call.frozen.shape[-1]
        fits = num_keys <= length if call.causal else num_keys == length
        # what is held has no gradient
        if fits and not (torch.is_grad_enabled() or torch.compiler.is_compiling()):
            return Choice("frozen", "freeze() holds its probabilities")
    if path == "auto" and 1 < num_queries <= SHORT and not uses_kernel(call.values, num_queries):
        return Choice("plain", "so short that all pairs fit the cache")
    if call.source == COUNTED and call.is_torn:
        return Choice("plain", "a mask moves positions under a cache, a bias or dropout")
    # behind padding, a window is not the same for all examples
    if call.mask is None or call.window is None:
        return Choice("table", "the logits do not depend on the input")
    if call.dropout > 0.0:
        return Choice("plain", "dropout draws for every pair of every example")
    return Choice("blocks", "terms of the tokens")


def _choose_for_tokens(synthesis: Synthesis, call: Call, path: str) -> Choice:
    """Of logits that tokens have a say in."""
    num_queries, values = call.x.shape[1], call.values
    compiling = torch.compiler.is_compiling()
    if path == "auto" and num_queries == 1:
        fits = call.mask is None and call.window is None and call.dropout == 0.0
        fits = fits and not (compiling or torch.is_grad_enabled() or synthesis.num_outer)
        if fits and not torch.is_autocast_enabled(call.x.device.type):
            return Choice("row", "a single row of products and what is added to them")
        return Choice("plain", "a single row, small at any length")
    short = path == "auto" and num_queries <= LONGEST and not uses_kernel(values, num_queries)
    keeps = short and call.dropout == 0.0 and not compiling
    keeps = keeps and values.device.type == "cpu" and values.dtype in EXACT
    if short and not keeps and num_queries <= SHORT and not synthesis.num_outer:
        return Choice("plain", "so short that all pairs fit the cache")
    if call.source == COUNTED and call.is_torn:
        return Choice("plain", "a mask moves positions under a cache, a bias or dropout")
    if call.dropout > 0.0:
        return Choice("plain", "dropout draws for every pair of every example")
    if keeps:
        return Choice("short", "so short that its probabilities are kept")
    return Choice("blocks", "terms of the tokens")


def is_known(synthesis: Synthesis) -> bool:
    """Whether a synthesis is a sum of terms that the fast paths take.

    Not where an adapter stands for a part, since its forward alone knows the parameters, nor where
    forward writes a table of the tokens; and two outer products have no common form.
    """
    parts: Sequence[nn.Module] = synthesis.parts if isinstance(synthesis, Mixture) else [synthesis]
    known = (
        isinstance(part, Synthesis) and (part.has_terms or not part.depends_on_input)
        for part in parts
    )
    return all(known) and synthesis.num_outer < 2


def attend(synthesis: Synthesis, call: Call, path: str = "auto") -> Tensor | None:
    """The heads' outputs side by side, (B, T, D); None where the plain path has to be taken."""
    chosen = choose(synthesis, call, path).path
    if chosen == "plain":
        return None
    if chosen == "groups":
        assert isinstance(synthesis, Grouped)
        each = [attend(*part, path) for part in _groups(synthesis, call)]
        found = [output for output in each if output is not None]
        return torch.cat(found, -1) if len(found) == len(each) else None
    x, keys, values, mask = call.x, call.keys, call.values, call.mask
    num_queries, num_keys, device = x.shape[1], values.shape[2], x.device
    rule = (num_queries, num_keys, call.causal, call.window)
    compiling = torch.compiler.is_compiling()
    if chosen == "fused":
        assert isinstance(synthesis, DotProduct)
        assert keys is not None
        # asked in this order, an export with any length is not bound to more than one token
        is_square = bool(num_queries == num_keys)
        if mask is None and call.window is None and (is_square or num_queries == 1):
            # the kernel knows causality and nothing else
            is_causal = call.causal and is_square
            return _fused(synthesis, x, keys, values, None, is_causal, call.query_positions)
        visible = visible_keys(mask, call.causal, num_queries, num_keys, device, call.window)
        return _fused(synthesis, x, keys, values, visible, False, call.query_positions)
    # not kept where tensors are stand-ins, as in tracing, or belong to a stream of a GPU
    if mask is None and type(x) is Tensor and device.type == "cpu" and not compiling:
        visibility = known_visibility(*rule, device)
    else:
        visibility = visibility_of(mask, *rule, call.source, device)
    if chosen == "frozen":
        assert call.frozen is not None
        return frozen_attention(values, call.frozen, visibility, num_queries).flatten(-2)
    if visibility.order is not None:
        keys, values = visibility.packed(keys), visibility.packed(values)
    heads = values.shape[1]
    terms = synthesis.terms(x, keys, Places.slots(num_queries, num_keys, call.query_positions))
    if call.bias is not None:
        terms.add_bias(call.bias, heads, num_queries, num_keys)
    terms.values = values.transpose(0, 1)
    if terms.other_queries is not None and not (
        chosen == "blocks" and uses_kernel(values, num_queries)
    ):
        terms.join()
    if chosen == "row":
        return _row(terms)
    with torch.autocast(device.type, enabled=False):
        if chosen == "table":
            if mask is None:
                return table_attention(terms, visibility, num_queries, call.dropout).flatten(-2)
            # the shared softmax asks what vanishes: not while compiling, nor of a GPU
            on_gpu = device.type in hook.GPUS and kernels().takes_on_gpu(terms)
            if not (compiling or on_gpu):
                output = _by_masked_table(terms, call, visibility)
                if output is not None or call.dropout > 0.0:
                    return output
            elif call.dropout > 0.0:
                return None
        if not synthesis.depends_on_input:  # examples read other rows of it: write it out
            terms = Terms(terms.values, table=terms.logits(num_queries)[0])
        if chosen == "short":
            if terms.distances is not None:
                terms.write_out(num_queries)
            for name in ("values", "queries", "keys"):  # copied here, kept once for both backwards
                part = getattr(terms, name)
                setattr(terms, name, None if part is None else part.contiguous())
            every = vars(terms).values()
            return ShortAttention.apply(visibility, num_queries, call.causal, *every).flatten(-2)
        return block_attention(terms, visibility, num_queries).flatten(-2)


def _groups(synthesis: Grouped, call: Call) -> list[tuple[Synthesis, Call]]:
    """Each group of heads, and the call of its own heads alone."""
    parts = zip(synthesis.groups, synthesis.heads, synthesis.split_keys(call.keys), strict=True)
    each: list[tuple[Synthesis, Call]] = []
    first = 0
    for group, count, keys in parts:
        heads = slice(first, first + count)
        bias = call.bias
        if bias is not None and bias.shape[1] > 1:
            bias = bias[:, heads]
        each.append((group, replace(call, keys=keys, values=call.values[:, heads], bias=bias)))
        first += count
    return each


def _by_masked_table(terms: Terms, call: Call, visibility: Visibility) -> Tensor | None:
    assert call.mask is not None
    num_queries, num_keys = call.num_queries, call.num_keys
    shared = visibility_of(None, num_queries, num_keys, call.causal, None, SLOT, call.x.device)
    real = call.mask.sort(-1, descending=True)[0]  # the real tokens in front
    output = masked_table_attention(terms, shared, num_queries, call.dropout, real)
    return None if output is None else visibility.at_positions(output.flatten(-2), call.mask)


def has_kernel(device: torch.device) -> bool:
    """Whether float32 on this device goes through the compiled kernel, where it fits."""
    return uses_kernel(torch.empty(0, device=device), 2)


def attend_across(
    synthesis: DotProduct, x: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None
) -> Tensor:
    """A dot product with a memory, by the fused kernel: (B, T, D)."""
    return _fused(synthesis, x, keys, values, visible)


def _fused(
    synthesis: DotProduct,
    x: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor | None,
    is_causal: bool = False,
    query_positions: Tensor | None = None,
) -> Tensor:
    places = Places.slots(x.shape[1], keys.shape[2], query_positions)
    queries = synthesis.terms(x, keys, places).queries
    assert queries is not None
    output = F.scaled_dot_product_attention(
        queries.transpose(0, 1), keys, values, attn_mask=visible, is_causal=is_causal, scale=1.0
    )
    return output.transpose(1, 2).flatten(-2)


def _row(terms: Terms) -> Tensor:
    """A single query of a bilinear term and all else as a bias, without gradients: (B, 1, D)."""
    values, queries, keys = terms.values, terms.queries, terms.keys
    assert values is not None
    assert queries is not None
    assert keys is not None
    terms.write_out(num_queries=1)
    bias = terms.table
    if terms.offsets is not None:
        offsets = terms.offsets[:, None]
        bias = offsets if bias is None else bias + offsets
    output = F.scaled_dot_product_attention(
        queries.transpose(0, 1).to(values.dtype),
        keys.transpose(0, 1).to(values.dtype).expand(values.shape[1], -1, -1, -1),
        values.transpose(0, 1),
        attn_mask=None if bias is None else bias[None].to(values.dtype),
        scale=1.0,
    )
    return output.transpose(1, 2).flatten(-2)


def freeze(
    synthesis: Synthesis, length: int, causal: bool, window: int | None = None
) -> Tensor | None:
    """The probabilities (H, length, length) of logits that do not depend on the input."""
    if not is_known(synthesis) or synthesis.depends_on_input:
        return None
    with torch.no_grad():
        tensors = [*synthesis.parameters(), *synthesis.buffers(), torch.empty(0)]
        x = tensors[0].new_empty(0, length, 0)
        visibility = visibility_of(None, length, length, causal, window, SLOT, x.device)
        return probabilities(
            synthesis.terms(x, None, Places.slots(length, length)), visibility, length
        )
