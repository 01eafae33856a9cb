"""The softmax of a block of rows and its gradient, in place, in torch.

    weights = softmax(logits + table + offsets) over the keys that a row sees, 0 elsewhere
    d logits = weights (d weights - sum over keys of weights d weights)

A block is (heads, examples, rows, columns), contiguous; its columns are the keys of its span, and
may be more, to fill up the period of an outer product. Table and offsets have no batch; table_rows,
if given, say which row of the table each example's row reads. Letters as in terms.py.
"""

import torch
from torch import Tensor

from synthesizer_attention.attention.masks import KeySpan, Visibility


def soften(
    logits: Tensor,
    table: Tensor | None,
    offsets: Tensor | None,
    visibility: Visibility,
    examples: slice,
    rows: slice,
    span: KeySpan,
) -> None:
    """Turn a block's logits into weights; table (heads, rows, width) and offsets (heads, width)."""
    width = span.last - span.first
    seen = logits[..., :width]
    if table is not None and visibility.table_rows is None:
        seen += table[:, None]
    elif table is not None and visibility.table_rows is not None:
        seen += table[:, visibility.table_rows[examples, rows]]
    if offsets is not None:
        seen += offsets[:, None, None]
    logits[..., width:] = -torch.inf
    visibility.hide(seen, rows, span, examples)
    torch.softmax(logits, -1, out=logits)
    if visibility.stops is not None and span.full_to == 0:  # some row sees no key: not NaN but 0
        stops = visibility.stops[examples if len(visibility.stops) > 1 else slice(0, 1), rows]
        logits.masked_fill_((stops == 0)[..., None], 0.0)


def soften_back(
    down: Tensor,
    weights: Tensor,
    grad_table: Tensor | None,
    grad_offsets: Tensor | None,
    table_rows: Tensor | None,
    width: int,
) -> None:
    """Turn the gradient of weights into that of logits; add it to those of table and offsets."""
    down[..., width:] = 0.0
    torch._softmax_backward_data(down, weights, -1, down.dtype, grad_input=down)
    seen = down[..., :width]
    if grad_table is not None and table_rows is not None:
        grad_table.index_add_(1, table_rows.flatten(), seen.flatten(1, 2))
    elif grad_table is not None:
        for example in seen.unbind(1):  # twice as fast as one sum over the examples
            grad_table += example
    if grad_offsets is not None:
        grad_offsets += seen.sum((1, 2))
