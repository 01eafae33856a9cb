"""The one hook for compiled kernels: the folder synthesizer_attention/kernels, where there is one.

Everything works without it, in PyTorch alone. Letters as in synthesis.py.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from synthesizer_attention.attention.masks import Visibility
    from synthesizer_attention.attention.terms import Terms

FEW = 64  # rows, up to which the kernel multiplies faster than BLAS
GPUS = ("cuda",)  # ROCm is called that, too
LARGE = 2**16  # numbers of a weight, from which on a call of a kernel pays


class Kernels:
    """What an attention and a model ask of kernels. The answers here: there are none."""

    def prepare(self) -> None:
        """Compile now what may be compiled."""

    def is_built(self) -> bool:
        """Whether attend() can be called: float32 or bfloat16 on a CPU."""
        return False

    def attend(
        self,
        terms: "Terms",
        visibility: "Visibility",
        output: Tensor,
        *,
        ready: bool = False,
        grads: "Terms | None" = None,
    ) -> None:
        """Write softmax(terms over what is seen) values, (H, B, T, K), or the gradients.

        ready  the table holds weights: no softmax
        grads  to be filled, given the gradient of the output in its place
        """
        raise NotImplementedError

    def few_rows(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """A few rows by a weight, read once; None: torch has to do it."""
        return None

    def decode_token(
        self,
        stack: nn.Module,
        x: Tensor,
        cache: Any,  # noqa: ANN401
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        memory_mask: Tensor | None,
    ) -> Tensor | None:
        """One more token through a whole stack by one call; None: the stack has to be called."""
        return None

    def takes_on_gpu(self, terms: "Terms") -> bool:
        """Whether the kernels of a GPU, where these terms lie, take them."""
        return False

    def attend_on_gpu(
        self, terms: "Terms", visibility: "Visibility", num_queries: int
    ) -> tuple[Tensor, Tensor]:
        """softmax(terms over what is seen) values, (B, T, H, K), and what backward wants."""
        raise NotImplementedError

    def attend_back_on_gpu(
        self,
        terms: "Terms",
        visibility: "Visibility",
        output: Tensor,
        sums: Tensor,
        grad: Tensor,
        wanted: Sequence[bool],
    ) -> "Terms":
        """The gradients that are wanted, given that of the output."""
        raise NotImplementedError


_found: Kernels | None = None


def kernels() -> Kernels:
    """The installed kernels, looked for once."""
    global _found
    if _found is None:
        _found = _find()
    return _found


def _find() -> Kernels:
    try:
        from synthesizer_attention.kernels.cpu import Compiled
    except ModuleNotFoundError as error:
        if not str(error.name).startswith("synthesizer_attention.kernels"):
            raise
        return Kernels()
    return Compiled()


def uses_kernel(values: Tensor, num_queries: int) -> bool:
    """Whether the compiled kernel is there and fits; one row is not worth a call."""
    fits = values.dtype in (torch.float32, torch.bfloat16) and values.device.type == "cpu"
    if not fits or num_queries == 1:
        return False
    if torch.compiler.is_compiling():
        return _asked_while_compiling()
    return (_found or kernels()).is_built()


def _is_built() -> bool:
    return kernels().is_built()


# found out while compiling, not compiled
_asked_while_compiling: Callable[[], bool] = torch.compiler.assume_constant_result(_is_built)


def few_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """x (..., D) by a weight (N, D), or (H, D, K) side by side; None: torch has to do it.

    Such a product, as in decoding, has few rows beside the weight. The kernel needs no copy of
    (H, D, K), and reads every weight once per 16 rows.
    """
    # Sizes of x are asked last: a traced graph would be bound to the answer.
    if (
        weight.numel() < LARGE
        or torch.compiler.is_compiling()
        or torch.is_grad_enabled()
        or x.numel() > FEW * x.shape[-1]
    ):
        return None
    return kernels().few_rows(x, weight, bias)


def linear(layer: nn.Module, x: Tensor) -> Tensor:
    """layer(x), of an nn.Linear or of what a user has put in its place."""
    if type(layer) is nn.Linear and layer.in_features * layer.out_features >= LARGE:
        changed = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
        y = None if changed else few_rows(x, layer.weight, layer.bias)
        if y is not None:
            return y
    return layer(x)
