"""Gradients that are differentiated again, as under create_graph=True: exact, by autograd's own.

A fast gradient is numbers without a graph: a derivative of it would lack what it owes to the
tensors. So, asked for a graph, backward writes the attention out, (B, H, T, S) and all, and has
autograd differentiate that. Letters as in terms.py.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from synthesizer_attention.attention.masks import Visibility, masked_softmax
from synthesizer_attention.attention.terms import Terms


def gradients(
    attention: Callable[..., Tensor],
    tensors: Sequence[Tensor | None],
    wanted: Sequence[bool],
    grad: Tensor,
) -> list[Tensor | None]:
    """The gradients of attention(*tensors) that are wanted, each with a graph of its own."""
    # as views, so that no tensor's gradient runs on into another that it was made of
    own = [None if tensor is None else tensor.view_as(tensor) for tensor in tensors]
    pairs = zip(own, wanted, strict=True)
    chosen = [tensor for tensor, want in pairs if want and tensor is not None]
    given = {"create_graph": True, "allow_unused": True}
    found = iter(torch.autograd.grad(attention(*own), chosen, grad, **given))
    return [next(found) if want else None for want in wanted]


def gradients_of_terms(
    tensors: Sequence[Tensor | None], visibility: Visibility, grad: Tensor, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """The same of a sum of terms, given the gradient (B, T, H, K) of what written_out says."""

    def attention(*each: Tensor | None) -> Tensor:
        return written_out(Terms(*each), visibility, grad.shape[1])

    return gradients(attention, tensors, wanted, grad)


def written_out(terms: Terms, visibility: Visibility, num_queries: int) -> Tensor:
    """softmax(sum of terms over what is seen) values: (B, T, H, K); what sees nothing is zero."""
    values, rows = terms.values, visibility.table_rows
    assert values is not None
    terms.write_out(num_queries)
    if terms.table is not None and rows is not None:
        terms.table = terms.table[:, rows]
    num_keys = values.shape[2]
    visible = None
    if visibility.stops is not None:
        columns = torch.arange(num_keys, device=values.device)
        visible = columns < visibility.stops[..., None]  # (B or 1, T, S)
        if visibility.starts is not None:
            visible = visible & (columns >= visibility.starts[..., None])
        visible = visible[:, None]
    weights = masked_softmax(terms.logits(num_queries, num_keys), visible)
    return torch.einsum("bhts,hbsk->bthk", weights.to(values.dtype), values)
