"""Compile every GPU kernel for an architecture without a device: python triton_compile.py 80."""

import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from synthesizer_attention.attention.masks import Visibility
from synthesizer_attention.attention.terms import Terms
from synthesizer_attention.kernels import triton as gpu

SMALLEST_SHARED_MEMORY = 99 * 1024  # of the architectures from sm_80 on (sm_86, sm_89)


def compile_launch(kernel, target, arguments, tile):
    """What a launch with these arguments compiles, by the very same path up to the driver."""
    backend = make_backend(target)
    options = {"TILE": tile, "num_warps": 4, "num_stages": tile.stages, "debug": False}
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, others = bind(*arguments, **options)
    parsed, *source = kernel._pack_args(backend, dict(options), bound, specialization, others)
    return triton.compile(ASTSource(kernel, *source), target=target, options=parsed.__dict__)


def compile_all(arch, dtype):
    target, launches = GPUTarget("cuda", arch, 32), []
    gpu._launch = lambda kernel, _, tile, *given: launches.append((kernel, given, tile))
    batch, heads, length, width, a = 2, 3, 37, 64, 7
    shapes = [(heads, batch, length, width), (heads, batch, length, width)]
    shapes += [(heads, 1, length, width), (heads, length, length), (heads,), (heads, length)]
    shapes += [(heads, batch, length, a), (heads, batch, length, a)]
    terms = Terms(*[torch.zeros(shape, dtype=dtype) for shape in shapes])
    stops = torch.ones(1, length, dtype=torch.int32)
    seen = Visibility(stops=stops, table_rows=stops.clone())
    output, sums = gpu.attend(terms, seen, length)
    gpu.attend_back(terms, seen, output, sums, output, (True,) * 8)
    for kernel, given, tile in launches:
        compiled = compile_launch(kernel, target, given, tile)
        shared = compiled.metadata.shared
        assert compiled.asm["cubin"]
        assert shared <= SMALLEST_SHARED_MEMORY, f"{kernel.__name__} wants {shared} bytes"
        sys.stdout.write(f"{kernel.__name__} {dtype} sm_{arch} {shared} bytes shared\n")


for each in (torch.bfloat16, torch.float32):
    compile_all(int(sys.argv[1]), each)
