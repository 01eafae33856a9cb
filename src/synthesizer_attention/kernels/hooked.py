"""What attention/hook.py finds: every compiled kernel behind one class."""

import os
from typing import Any

from torch import Tensor

from synthesizer_attention.attention.hook import Kernels
from synthesizer_attention.kernels import attend, cpu, triton


class Compiled(Kernels):
    """The kernels of this folder; Kernels says what each method is for."""

    prepare = staticmethod(cpu.prepare)
    few_rows = staticmethod(attend.few_rows)
    takes_on_gpu = staticmethod(triton.takes)
    attend_on_gpu = staticmethod(triton.attend)
    attend_back_on_gpu = staticmethod(triton.attend_back)

    def is_built(self) -> bool:
        return cpu.loaded(os.environ.get(cpu.HOME)) is not None

    def attend(self, *given: Any, **named: Any) -> None:  # noqa: ANN401
        kernel = cpu.loaded(os.environ.get(cpu.HOME))
        assert kernel is not None
        attend.run(kernel, *given, **named)

    def decode_token(self, *given: Any) -> Tensor | None:  # noqa: ANN401
        from synthesizer_attention.kernels import decoding  # which imports the models

        return decoding.decode_token(*given)
