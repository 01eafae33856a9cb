"""What attention/hook.py finds: every compiled kernel behind one class."""

import os
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from synthesizer.attention.hook import Kernels
from synthesizer.attention.masks import Visibility
from synthesizer.attention.terms import Terms
from synthesizer.kernels import attend, cpu, triton


class Compiled(Kernels):
    """The kernels of this folder."""

    def prepare(self) -> None:
        cpu.prepare()

    def is_built(self) -> bool:
        return cpu.loaded(os.environ.get(cpu.HOME)) is not None

    def attend(
        self,
        terms: Terms,
        visibility: Visibility,
        output: Tensor,
        *,
        ready: bool = False,
        grads: Terms | None = None,
    ) -> None:
        kernel = cpu.loaded(os.environ.get(cpu.HOME))
        assert kernel is not None
        attend.run(kernel, terms, visibility, output, ready=ready, grads=grads)

    def few_rows(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        return attend.few_rows(x, weight, bias)

    def decode_token(
        self,
        stack: nn.Module,
        x: Tensor,
        caches: Sequence[Any],
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
    ) -> Tensor | None:
        from synthesizer.kernels import decoding  # which imports the models

        return decoding.decode_token(stack, x, caches, attention_mask, position_ids)

    def takes_on_gpu(self, terms: Terms) -> bool:
        return triton.takes(terms)

    def attend_on_gpu(
        self, terms: Terms, visibility: Visibility, num_queries: int
    ) -> tuple[Tensor, Tensor]:
        return triton.attend(terms, visibility, num_queries)

    def attend_back_on_gpu(
        self,
        terms: Terms,
        visibility: Visibility,
        output: Tensor,
        kept: Tensor,
        grad: Tensor,
        wanted: Sequence[bool],
    ) -> Terms:
        return triton.attend_back(terms, visibility, output, kept, grad, wanted)
