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

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
    Window,
    is_transformed,
    known_visibility,
    visibility_of,
    visible_keys,
)
from synthesizer_attention.attention.synthesis import DotProduct, Grouped, Synthesis
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
    query_positions: Tensor | None = None  # (T,) or (B, T), where rotary positions turn queries
    is_last: Tensor | None = None  # (S,) or (B, S), where the last token has logits of its own
    causal: bool = False
    window: Window = None
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


class Choice(NamedTuple):
    """A path, and why."""

    path: str
    reason: str


def choose(synthesis: nn.Module, call: Call, path: str = "auto") -> Choice:
    """Which path computes this call; all give the same result.

    What the logits are was decided when the layer was built; a call adds mask, bias and gradient.
    """
    if path == "plain":
        return Choice("plain", "asked for")
    if is_transformed():
        return Choice("plain", "torch.func and forward mode know PyTorch's own operations alone")
    if not isinstance(synthesis, Synthesis):
        return Choice("plain", "an adapter acts while its forward runs")
    values, dropout = call.values, call.dropout
    num_queries, is_table = call.x.shape[1], not synthesis.depends_on_input
    compiling, auto = torch.compiler.is_compiling(), path == "auto"
    if isinstance(synthesis, Grouped) and not is_table:
        each = [choose(*part, path) for part in _groups(synthesis, call)]
        plain = next((choice for choice in each if choice.path == "plain"), None)
        return plain or Choice("groups", ", ".join(f"heads by {choice.path}" for choice in each))
    if not (synthesis.has_terms or is_table):
        return Choice("plain", "not a sum of the known terms")
    if call.x.shape[0] == 0 or call.x.is_meta:
        return Choice("plain", "nothing to compute")
    if isinstance(synthesis, DotProduct) and call.bias is None and dropout == 0.0:
        # a window lets blocks skip much of a long sequence
        skips = isinstance(call.window, int) and num_queries > max(2 * call.window, 4 * SHORT)
        skips = skips and num_queries == call.num_keys and call.source != EXPLICIT
        skips = skips and not compiling
        if not (skips or _beats_fused(call)):
            return Choice("fused", "one bilinear term, whatever the positions")
    if torch.compiler.is_exporting():
        return Choice("plain", "an exported program has PyTorch's own operators alone")
    if call.source == EXPLICIT:
        return Choice("plain", "each example has positions of its own")
    if call.bias is not None and call.bias.shape[0] > 1:
        return Choice("plain", "each example has a bias of its own")
    if is_table and call.frozen is not None and call.mask is None and call.bias is None:
        length, num_keys = call.frozen.shape[-1], call.num_keys
        fits = num_keys <= length if call.causal else num_keys == length
        if fits and not (torch.is_grad_enabled() or compiling):  # it has no gradient
            return Choice("frozen", "freeze() holds its probabilities")
    if auto and num_queries == 1 and not is_table:
        fits = call.mask is None and call.window is None and dropout == 0.0
        fits = fits and not (compiling or torch.is_grad_enabled() or synthesis.num_outer)
        if fits and not torch.is_autocast_enabled(call.x.device.type):
            return Choice("row", "a single row of products and what is added to them")
        return Choice("plain", "a single row, small at any length")
    short = auto and 1 < num_queries <= LONGEST and not uses_kernel(values, num_queries)
    keeps = short and not is_table and dropout == 0.0 and not compiling
    keeps = keeps and values.device.type == "cpu" and values.dtype in EXACT
    if short and not keeps and num_queries <= SHORT and not synthesis.num_outer:
        return Choice("plain", "so short that all pairs fit the cache")
    # moving real tokens to the front would tear apart what belongs to their slots
    torn = num_queries != call.num_keys or call.bias is not None or dropout > 0.0
    if call.source == COUNTED and torn:
        return Choice("plain", "a mask moves positions under a cache, a bias or dropout")
    if is_table and (call.mask is None or call.window is None):
        return Choice("table", "the logits do not depend on the input")
    if dropout > 0.0:
        return Choice("plain", "dropout draws for every pair of every example")
    if keeps:
        return Choice("short", "so short that its probabilities are kept")
    return Choice("blocks", "terms of the tokens")


def attend(synthesis: nn.Module, call: Call, path: str = "auto") -> Tensor | None:
    """The heads' outputs side by side, (B, T, D); None where the plain path has to be taken."""
    chosen = choose(synthesis, call, path).path
    if chosen == "plain":
        return None
    assert isinstance(synthesis, Synthesis)
    if chosen == "groups":
        assert isinstance(synthesis, Grouped)
        each = [attend(*part, path) for part in _groups(synthesis, call)]
        found = [output for output in each if output is not None]
        return torch.cat(found, -1) if len(found) == len(each) else None
    x, keys, values, mask = call.x, call.keys, call.values, call.mask
    num_queries, num_keys, device = x.shape[1], values.shape[2], x.device
    rule = (num_queries, num_keys, call.causal, call.window)
    if chosen == "fused":
        assert isinstance(synthesis, DotProduct)
        assert keys is not None
        # asked in this order, an export with any length is not bound to more than one token
        is_square = bool(num_queries == num_keys)
        if mask is None and call.window is None and (is_square or num_queries == 1):
            seen: dict[str, Any] = {"is_causal": call.causal and is_square}  # all the kernel knows
        else:
            visible = visible_keys(mask, call.causal, num_queries, num_keys, device, call.window)
            seen = {"attn_mask": visible}
        return fused(synthesis, x, keys, values, call.query_positions, **seen)
    compiling = torch.compiler.is_compiling()
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
    places = Places.slots(num_queries, num_keys, call.query_positions, call.is_last)
    terms = synthesis.terms(x, keys, places)
    if terms.table is not None and terms.table.dim() == 4:  # an adapter's, of the tokens
        return None
    if call.bias is not None:
        terms.add_bias(call.bias, values.shape[1], num_queries, num_keys)
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
            output = None
            if not (compiling or on_gpu):
                shared = visibility_of(None, *rule, SLOT, device)
                given = (terms, shared, num_queries, call.dropout, mask)
                output = masked_table_attention(*given, visibility)
            if output is not None or call.dropout > 0.0:
                return output
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


def _beats_fused(call: Call) -> bool:
    """Whether the compiled kernel is faster than PyTorch's: in bfloat16 on a CPU."""
    fits = call.values.dtype == torch.bfloat16 and uses_kernel(call.values, call.num_queries)
    fits = fits and not torch.compiler.is_exporting()
    return fits and (call.source == SLOT or call.num_queries == call.num_keys)


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


def has_kernel(device: torch.device) -> bool:
    """Whether float32 on this device goes through the compiled kernel, where it fits."""
    return uses_kernel(torch.empty(0, device=device), 2)


def fused(
    synthesis: DotProduct,
    x: Tensor,
    keys: Tensor,
    values: Tensor,
    turns: Tensor | None = None,
    **seen: Any,  # noqa: ANN401
) -> Tensor:
    """A dot product by PyTorch's fused kernel, also with a memory: (B, T, D)."""
    queries = synthesis.terms(x, keys, Places.slots(x.shape[1], keys.shape[2], turns)).queries
    assert queries is not None
    q, k, v = queries.transpose(0, 1), keys, values
    if values.dtype == torch.bfloat16 and values.device.type == "cpu" and keys.shape[2] <= LONGEST:
        # of few keys PyTorch's kernel is up to four times as slow as in float32
        with torch.autocast("cpu", enabled=False):
            q, k, v = q.float(), k.float(), v.float()
            output = F.scaled_dot_product_attention(q, k, v, scale=1.0, **seen).to(values.dtype)
    else:
        output = F.scaled_dot_product_attention(q, k, v, scale=1.0, **seen)
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


def freeze(synthesis: nn.Module, length: int, causal: bool, window: Window = None) -> Tensor | None:
    """The probabilities (H, length, length) of logits that do not depend on the input."""
    if not isinstance(synthesis, Synthesis) or synthesis.depends_on_input:
        return None
    with torch.no_grad():
        tensors = [*synthesis.parameters(), *synthesis.buffers(), torch.empty(0)]
        x = tensors[0].new_empty(0, length, 0)
        visibility = visibility_of(None, length, length, causal, window, SLOT, x.device)
        is_last = torch.arange(length, device=x.device) == length - 1
        places = Places.slots(length, length, None, is_last)
        return probabilities(synthesis.terms(x, None, places), visibility, length)
