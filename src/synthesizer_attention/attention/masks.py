"""Which keys a query may attend to, and the positions of tokens; bad inputs are refused here.

`visible_range` alone says who may look: count the real tokens of an example in their order; a query
sees those after number `start`, up to number `stop`. Causality, windows, padding on either side and
holes all have this form. A new kind of mask is a function under `register_mask`, in any file. The
plain path reads the range as a mask (`visible_keys`), the fast paths read it as it is
(`Visibility`). Letters as in synthesis.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from synthesizer_attention.errors import UserError
from synthesizer_attention.spec import Term, options_of, read_options

SLOT, COUNTED, EXPLICIT = "slot", "counted from the mask", "explicit"
"""Position source: the slot's own index, the real tokens counted, or what the caller gives."""

MASK_VALUES = (
    "expected 1 (or True) for real tokens and 0 (or False) for padding; "
    "of a mask that is added to logits (0 and -1e9), give mask == 0"
)
AUTOCAST = (torch.float32, torch.float16, torch.bfloat16)  # types that autocast changes itself
NUM_BLOCKS, FEWEST_ROWS = 8, 64  # how finely rows are cut where they see different keys

T = TypeVar("T", Tensor, Tensor | None)
Window = int | str | None  # a sliding window, or a kind of mask with its options: "chunk:size=64"
Range = tuple[Tensor, Tensor]
Kind = Callable[..., Range]
_PARSED: dict[int | str, Kind] = {}  # what mask_kind has read already


def register_mask(name: str) -> Callable[[Kind], Kind]:
    """Register a kind of mask, so that a layer's and a model's `window` may name it.

    Example::

        @register_mask("chunk")
        def chunk(here: Tensor, last: Tensor, *, size: int) -> tuple[Tensor, Tensor]:
            start = (here - 1) // size * size
            return start, start + size

    A query sees the real tokens after number `start`, up to number `stop`. `here` (1 or B, T) is
    the number of the query's own token, `last` (1 or B, 1) that of the last token; neither result
    may fall from one query to the next. What lies outside the sequence is cut off, and so is what
    lies behind the query in causal attention. The options are the keyword-only arguments.

    Args:
        name: The name in `window="chunk:size=64"`.
    """

    def register(kind: Kind) -> Kind:
        MASKS[name] = kind
        _PARSED.clear()
        known_visibility.cache_clear()
        return kind

    return register


def mask_kind(window: int | str) -> Kind:
    """The kind of mask that `window` names; a number is the size of a sliding window."""
    if isinstance(window, str):
        name, *options = window.split(":")
        if name not in MASKS:
            raise UserError(f"window={window!r}; give a number, or choose from {', '.join(MASKS)}")
        kind, pairs = MASKS[name], [option.partition("=")[::2] for option in options]
        given = read_options(Term(name, tuple(pairs)), kind, "mask")
        needed = [key for key, p in options_of(kind).items() if p.default is p.empty]
        if missing := [key for key in needed if key not in given]:
            raise UserError(f"window={window!r} lacks {missing[0]}; write {name}:{missing[0]}=64")
    else:
        kind, given = sliding, {"size": window}
        if window < 1:
            raise UserError(f"window={window}; it must be at least 1, or None for no window")
    return _PARSED.setdefault(window, partial(kind, **given))


def sliding(here: Tensor, last: Tensor, *, size: int) -> Range:
    """The token itself, `size` - 1 tokens before it and, unless causal, as many after it."""
    return here - size, here + size - 1


MASKS: dict[str, Kind] = {"sliding": sliding}


def visible_range(
    mask: Tensor | None,
    num_queries: int,
    num_keys: int,
    causal: bool,
    window: Window,
    device: torch.device,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Number of each real token (1 or B, S), start (None: 0) and stop (1 or B, T or 1) of queries.

    The T queries are the last of S slots. A hidden query sees what a token in its slot would.
    Padding does not narrow a window, and position_ids do not matter.
    """
    slots = torch.arange(1, num_keys + 1, device=device)[None]
    number = slots if mask is None else mask.cumsum(-1)
    here, last = number[:, num_keys - num_queries :], number[:, -1:]
    if window is None:
        return number, None, here if causal else last
    start, stop = (_PARSED.get(window) or mask_kind(window))(here, last)
    return number, start.clamp(min=0), stop.minimum(here if causal else last).clamp(min=0)


def visible_keys(
    attention_mask: Tensor | None,
    causal: bool,
    num_queries: int,
    num_keys: int,
    device: torch.device,
    window: Window = None,
) -> Tensor | None:
    """True where a query may look, (1 or B, 1, T or 1, S); None where it may look everywhere."""
    mask = None if attention_mask is None else attention_mask.bool()
    if window is None and (not causal or num_queries == 1):
        return None if mask is None else mask[:, None, None]  # the last query sees all real tokens
    number, start, stop = visible_range(mask, num_queries, num_keys, causal, window, device)
    visible = number[:, None] <= stop[..., None]
    if start is not None:
        visible = visible & (number[:, None] > start[..., None])
    return (visible if mask is None else visible & mask[:, None])[:, None]


def masked_softmax(logits: Tensor, visible: Tensor | None) -> Tensor:
    """Softmax over the visible keys; hidden keys get exactly zero, so a row with none is zero."""
    if visible is None:
        return logits.softmax(-1)
    lowest = torch.finfo(logits.dtype).min
    return logits.masked_fill(~visible, lowest).softmax(-1).masked_fill(~visible, 0.0)


def without_hidden(x: Tensor, attention_mask: Tensor | None) -> Tensor:
    """x (B, T, D), the last of S tokens, with zeros for hidden ones: what they hold, NaN and inf
    included, reaches neither an output nor a gradient (0 x NaN would)."""
    if attention_mask is None:
        return x
    real = attention_mask[:, attention_mask.shape[1] - x.shape[1] :].bool()
    return x.masked_fill(~real[..., None], 0.0)


class KeySpan(NamedTuple):
    """The keys first to last - 1 that some rows see, of which all see full_from to full_to - 1."""

    first: int
    full_from: int
    full_to: int
    last: int


@dataclass(frozen=True)
class Visibility:
    """What every query sees once the real tokens of each example are moved to the front.

    The keys then have positions 0, 1, 2, ..., so that tables are read in order.
    """

    stops: Tensor | None = None  # (B or 1, T), int32; None where all see all S keys
    starts: Tensor | None = None  # the same; None without a window
    order: Tensor | None = None  # (B, S), the slots of the real tokens first; None: as they are
    table_rows: Tensor | None = None  # (B, T), int32, the row of a table to read; None: its own
    grows: bool = False  # whether rows see different keys
    is_shared: bool = True  # whether every example sees the same

    def packed(self, tokens: T) -> T:
        """Keys or values (B, H, S, n), if any, with the real ones in front."""
        if self.order is None or tokens is None:
            return tokens
        return tokens.gather(2, self.order[:, None, :, None].expand_as(tokens))

    def row_blocks(
        self, num_queries: int, num_keys: int, most_rows: int
    ) -> list[tuple[slice, list[KeySpan]]]:
        """Cut T rows into blocks, and say of each the keys that each example (or all) sees there.

        Where rows see different keys, short blocks save work: a block skips what none of its rows
        sees. Starts and stops never fall from one row to the next: its first and last row tell all.
        """
        if self.grows:
            size = 1 if self.starts is not None else -(-num_queries // NUM_BLOCKS)
            most_rows = min(most_rows, max(FEWEST_ROWS, size))
        rows = [
            slice(at, min(at + most_rows, num_queries)) for at in range(0, num_queries, most_rows)
        ]
        if self.stops is None:
            return [(block, [KeySpan(0, 0, num_keys, num_keys)]) for block in rows]
        ends = [[block.start, block.stop - 1] for block in rows]
        stops = self.stops[:, ends]  # (B or 1, blocks, 2)
        starts = torch.zeros_like(stops) if self.starts is None else self.starts[:, ends]
        each = torch.cat([starts, stops], -1).transpose(0, 1).tolist()
        spans = [[KeySpan(*example) for example in block] for block in each]
        return list(zip(rows, spans, strict=True))

    def hide(self, logits: Tensor, rows: slice, span: KeySpan, examples: slice) -> None:
        """Write -inf where a block's rows may not look: logits (..., B or 1, rows, first to last).

        Only columns that not all rows see are compared.
        """
        if self.stops is None:
            return
        examples = examples if len(self.stops) > 1 else slice(0, 1)
        stops = self.stops[examples, rows, None]
        right = slice(max(span.full_to, span.first), span.last)
        if right.start < right.stop:
            columns = torch.arange(right.start, right.stop, device=logits.device, dtype=stops.dtype)
            part = logits[..., right.start - span.first :]
            part.masked_fill_(columns >= stops, -torch.inf)
        left = slice(span.first, min(span.full_from, span.last))
        if self.starts is not None and left.start < left.stop:
            columns = torch.arange(left.start, left.stop, device=logits.device, dtype=stops.dtype)
            part = logits[..., : left.stop - span.first]
            part.masked_fill_(columns < self.starts[examples, rows, None], -torch.inf)

    def at_positions(self, output: Tensor, mask: Tensor) -> Tensor | None:
        """Map outputs by position, (B, S, D), to the queries at these positions.

        None where a position does not determine what its query sees: in a hole before real tokens.
        """
        if self.table_rows is None or self.stops is None:
            return output
        num_real = mask.sum(-1, keepdim=True)
        if bool((~mask & (self.stops > 0) & (self.stops < num_real)).any()):
            return None
        rows = self.table_rows.long()[..., None].expand(-1, -1, output.shape[-1])
        return output.gather(1, rows).masked_fill((self.stops == 0)[..., None], 0.0)


def visibility_of(
    mask: Tensor | None,
    num_queries: int,
    num_keys: int,
    causal: bool,
    window: Window,
    source: str,
    device: torch.device,
) -> Visibility:
    """The ranges of a mask (B, S), counted over its real tokens moved to the front."""
    if mask is None and window is None and (num_queries == 1 or not causal):
        return Visibility()
    _, start, stop = visible_range(mask, num_queries, num_keys, causal, window, device)
    stops = stop.expand(-1, num_queries).int().contiguous()
    starts = None if start is None else start.int().contiguous()
    grows = causal or window is not None
    if source != COUNTED:
        return Visibility(stops, starts, grows=grows, is_shared=mask is None)
    assert mask is not None
    order = (~mask).int().argsort(dim=-1, stable=True)
    positions = locate(mask, None, num_keys, device).expand(mask.shape)
    return Visibility(stops, starts, order, positions.int().contiguous(), grows, is_shared=False)


@lru_cache(maxsize=64)
def known_visibility(
    num_queries: int, num_keys: int, causal: bool, window: Window, device: torch.device
) -> Visibility:
    """The same without a mask, kept from call to call: nobody writes into it."""
    with torch.inference_mode(False):  # what a later call trains with was not made for inference
        return visibility_of(None, num_queries, num_keys, causal, window, SLOT, device)


def locate(
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    num_keys: int,
    device: torch.device,
) -> Tensor:
    """The positions of all keys, (S,) or (B, S): as given, or the real tokens counted.

    A hidden token keeps its slot's index: no query sees it, and right padding moves no position.
    """
    if position_ids is not None:
        return position_ids
    slots = torch.arange(num_keys, device=device)
    if attention_mask is None or hides_only_the_end(attention_mask):
        return slots
    real = attention_mask.bool()
    return torch.where(real, real.cumsum(-1) - 1, slots)


def position_source(
    attention_mask: Tensor | None, position_ids: Tensor | None, num_keys: int
) -> str:
    """Where positions come from; EXPLICIT where the values cannot be read."""
    if position_ids is None:
        in_order = attention_mask is None or hides_only_the_end(attention_mask)
        return SLOT if in_order else COUNTED
    if not is_readable(position_ids):
        return EXPLICIT
    slots = torch.arange(num_keys, device=position_ids.device)
    return SLOT if bool((position_ids == slots).all()) else EXPLICIT


def last_real(mask: Tensor | None, num_keys: int, count: int, device: torch.device) -> Tensor:
    """The slots, in order, of each example's last `count` real tokens: (1 or B, count).

    Where an example has fewer, hidden slots come first.
    """
    if mask is None:
        return torch.arange(num_keys - count, num_keys, device=device)[None]
    return mask.int().argsort(dim=-1, stable=True)[:, num_keys - count :]


def check_inputs(
    x: object,
    d_model: int,
    value: nn.Module,
    max_len: int | None,
    past: int,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
) -> int:
    """Return S; refuse tokens, masks and positions of the wrong kind, shape or type, and a sequence
    that is too long. `value` is the layer that projects these tokens."""
    if not isinstance(x, Tensor):
        raise not_a_tensor("x", x)
    if x.dim() != 3 or x.shape[2] != d_model:
        raise UserError(f"x has shape {tuple(x.shape)}; expected (batch, length, {d_model})")
    if x.shape[1] == 0:
        raise UserError("x has no tokens; give each sequence at least one")
    expected = value.weight.dtype if type(value) is nn.Linear else x.dtype
    fits = x.dtype == expected or (x.dtype in AUTOCAST and torch.is_autocast_enabled(x.device.type))
    if not (fits or x.is_floating_point()):
        raise UserError(f"x holds {x.dtype}; expected embeddings of {expected}")
    if not fits:
        raise UserError(
            f"x holds {x.dtype} and the weights {expected}; give x.to({expected}), "
            f"or have the layer in another type: layer.to({x.dtype})"
        )
    num_keys = past + x.shape[1]
    if max_len is not None and num_keys > max_len:
        raise too_long(num_keys, max_len)
    if attention_mask is not None:
        check_mask(attention_mask, x.shape[0], num_keys)
    if position_ids is not None and max_len is not None:
        check_positions(position_ids, x.shape[0], num_keys, max_len)
    return num_keys


def check_tensor(name: str, value: object) -> None:
    """Refuse a list or an array."""
    if not isinstance(value, Tensor):
        raise not_a_tensor(name, value)


def not_a_tensor(name: str, value: object) -> UserError:
    """The error for a list or an array."""
    return UserError(f"{name} is a {type(value).__name__}; give a tensor: torch.tensor({name})")


def too_long(length: int, max_len: int) -> UserError:
    """The error for a sequence longer than the tables."""
    return UserError(
        f"a sequence of {length} tokens met a model built for max_len={max_len}; "
        "truncate the data, raise max_len, or resize the model"
    )


def check_mask(attention_mask: Tensor, batch: int, num_keys: int) -> None:
    """Refuse a mask of another shape than one value per key, or of other values than 0 and 1."""
    check_tensor("attention_mask", attention_mask)
    if attention_mask.shape != (batch, num_keys):
        raise UserError(
            f"attention_mask has shape {tuple(attention_mask.shape)}; "
            f"expected ({batch}, {num_keys}), True where a token is real, cached tokens included"
        )
    real_tokens(attention_mask)


def real_tokens(attention_mask: Tensor) -> Tensor:
    """The mask as booleans; one of other numbers than 0 and 1 is refused.

    Read at once on a CPU. A GPU is not waited for: like a compiled graph, it asserts by itself.
    What cannot be told, in an exported program or under torch.func, is not checked.
    """
    real, is_boolean = attention_mask.bool(), attention_mask.dtype == torch.bool
    if is_boolean or torch.compiler.is_exporting() or is_transformed():
        return real
    is_sound = (attention_mask == real).all()
    if attention_mask.is_cuda or torch.compiler.is_compiling():
        torch._assert_async(is_sound, f"attention_mask holds other numbers; {MASK_VALUES}")
    elif not (attention_mask.is_meta or bool(is_sound)):
        found = attention_mask[attention_mask != real][0].item()
        raise UserError(f"attention_mask holds {found:g}; {MASK_VALUES}")
    return real


def check_positions(position_ids: Tensor, batch: int, num_keys: int, max_len: int) -> None:
    """Refuse positions of the wrong shape, or (where values can be read) outside the tables."""
    check_tensor("position_ids", position_ids)
    if position_ids.shape not in ((num_keys,), (1, num_keys), (batch, num_keys)):
        raise UserError(
            f"position_ids has shape {tuple(position_ids.shape)}; "
            f"expected ({num_keys},) or ({batch}, {num_keys})"
        )
    if not is_readable(position_ids) or position_ids.numel() == 0:
        return
    low, high = int(position_ids.min()), int(position_ids.max())
    if low < 0 or high >= max_len:
        raise UserError(
            f"position_ids run from {low} to {high} in a model built for max_len={max_len}; "
            f"keep them between 0 and {max_len - 1}"
        )


def hides_only_the_end(attention_mask: Tensor) -> bool:
    """Whether this is right padding, so that slots are positions; False if it cannot be read."""
    if not is_readable(attention_mask):
        return False
    real = attention_mask.bool()
    return bool((real[:, 1:] <= real[:, :-1]).all())


def is_readable(tensor: Tensor) -> bool:
    """Whether a decision may depend on a tensor's numbers."""
    return not (torch.compiler.is_compiling() or tensor.is_meta or is_transformed())


def is_transformed() -> bool:
    """Whether torch.func (vmap, grad, jvp) or forward mode is at work: they follow PyTorch's own
    operations alone, and their tensors are wrappers, which have no memory to hand to a kernel."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
