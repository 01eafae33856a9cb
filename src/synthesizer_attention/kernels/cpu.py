"""The optional kernel in C, without torch's headers: how it is compiled, loaded and called.

The first process that could use it has it compiled for this machine in the background (a second of
gcc or clang, where there is one) and computes without it; later ones use it. A training run
compiles before its first step. SYNTHESIZER_KERNEL=0 forbids both;
`python -m synthesizer_attention.kernels.cpu` compiles at once. The library lies in the user's
cache under a name made of the source, the flags and the processor. It is used for float32 on a
CPU with more than one row, if torch lends its BLAS (and its threads, else there is one).

A library is code, so one is loaded only from a folder and a file that nobody else may write, and
only with the sha256 that was written beside it when it was built.

`attend` computes the attention of any sum of terms, or its gradient; `few_rows` multiplies a few
rows by a weight. The structures are those of the C files. Letters as in attention/terms.py.
"""

import ctypes
import hashlib
import logging
import os
import platform
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple

import torch
from torch import Tensor

from synthesizer_attention.attention.hook import Kernels
from synthesizer_attention.attention.masks import Visibility, is_transformed
from synthesizer_attention.attention.terms import Terms
from synthesizer_attention.errors import UserError, printable
from synthesizer_attention.kernels import triton
from synthesizer_attention.run.files import who_else_may_write

FILES = ("kernel.c", "rows.c", "decode.c", "bfloat.h", "vectors.h")
SOURCES = [Path(__file__).with_name(name) for name in FILES]
FLAGS = ("-O3", "-march=native", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math")
FAILED = ".failed"  # what ends the name of a compiler's message
WANTED = "SYNTHESIZER_KERNEL"  # 0: neither compile the kernel unasked nor use it
HOME = "SYNTHESIZER_CACHE"  # names the folder of what was compiled; by default the user's cache
RUNTIME = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")
CACHED = 2**17  # numbers of a block's logits: they and their gradient stay in the second cache
FEWEST_ROWS, MOST_ROWS = 64, 256
BESIDE = 2**20  # numbers of the values that stand side by side
SMALL = 256  # keys up to which matrices are so small that kernel.c multiplies them itself
LANES = 16  # of the kernel's vectors


class Kernel(NamedTuple):
    """What was compiled, and what of torch it is lent."""

    library: ctypes.CDLL
    gemm: int  # address of torch's matrix product
    runtime: tuple[int, ...]  # what starts torch's threads, as RUNTIME; zeros: there is one


@cache
def loaded(home: str | None) -> Kernel | None:
    """The kernel of a folder, looked for once in a process."""
    path, gemm = built_path(home), _gemm()
    if gemm is None or os.environ.get(WANTED) == "0":
        return None
    if not os.path.lexists(path):
        # This process does without it to its end: results must not change in the midst of a run.
        if _may_build(path):
            _tell(f"{path} is compiled in the background, for the next process")
            words = [sys.executable, "-P", "-m", "synthesizer_attention.kernels.cpu"]
            none = subprocess.DEVNULL
            subprocess.Popen(words, stdin=none, stdout=none, stderr=none, start_new_session=True)
        return None
    try:
        handle = _open_checked(path)
    except UserError as error:
        logging.getLogger(__name__).warning("the compiled kernel is not used: %s", error)
        return None
    # The handle stays open: it is the file that was checked, whatever the path names by now, and
    # the loader tells libraries apart by their names.
    checked = Path(f"/proc/self/fd/{handle}")
    library = ctypes.CDLL(str(checked if checked.exists() else path))
    library.workspace.restype = library.decode_workspace.restype = ctypes.c_int64
    return Kernel(library, gemm, _runtime())


def in_use() -> Kernel | None:
    """The kernel of this process."""
    return loaded(os.environ.get(HOME))


def prepare() -> None:
    """Compile now where it may be, so that a run computes alike from its first step to its last."""
    path = built_path(os.environ.get(HOME))
    if os.environ.get(WANTED) == "0" or os.path.lexists(path) or not _may_build(path):
        return
    _tell(f"{path} is compiled, once")
    try:
        build()
    except UserError as error:
        logging.getLogger(__name__).warning("%s", error)


def _may_build(path: Path) -> bool:
    """Whether it can be compiled unasked, and was not tried in vain before."""
    return bool(
        _compiler() and _gemm() and sys.executable and not path.with_suffix(FAILED).exists()
    )


def _tell(what: str) -> None:
    words = "a faster kernel %s; %s=0 says no"
    logging.getLogger(__name__).warning(words, what, WANTED)


def _compiler() -> str | None:
    return next(filter(None, map(which, ("cc", "gcc", "clang"))), None)


def _open_checked(path: Path) -> int:
    """Open a library that nobody else can have written and that is as it was built."""
    again = (
        f"set {HOME} to a folder of your own and run python -m synthesizer_attention.kernels.cpu"
    )
    try:
        # Resolved once: nobody else can exchange a link between the check and the opening.
        home, real = Path(os.path.realpath(path.parent)), os.path.realpath(path)
        problem = who_else_may_write(Path(real))
        if problem is not None:
            raise UserError(f"{problem}; {again}")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with os.fdopen(os.open(real, flags), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_uid not in (os.geteuid(), 0):
                raise UserError(f"{path} is not a regular file of this user; {again}")
            beside = _digest_path(home / path.name)
            written = "" if who_else_may_write(beside) else beside.read_text(encoding="ascii")
            if hashlib.file_digest(file, "sha256").hexdigest() != written.strip():
                raise UserError(f"{path} is not what was built: its sha256 differs; {again}")
            return os.dup(file.fileno())
    except OSError as error:
        why = f"{path} or its sha256 cannot be read ({error.strerror})"
        raise UserError(f"{why}; {again}") from None


def _digest_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def built_path(home: str | None) -> Path:
    """Where the kernel of this source, these flags and this processor lies, or would."""
    told, processor = Path("/proc/cpuinfo"), platform.processor()  # what -march=native depends on
    if told.exists():
        lines = told.read_text().splitlines()
        processor = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    texts = [source.read_text() for source in SOURCES]
    facts = (*texts, *FLAGS, platform.machine(), processor)
    name = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    return Path(home or os.path.expanduser("~/.cache/synthesizer")) / f"kernel-{name}.so"


def build() -> Path:
    """Compile the kernel for this machine, unless it is there, and return where it lies."""
    compiler = _compiler()
    if compiler is None:
        raise UserError("no C compiler was found (cc, gcc, clang); install one, or do without")
    if _gemm() is None:
        raise UserError("torch shows no matrix product on this system; the torch path works")
    path = built_path(os.environ.get(HOME))
    with _alone_in(path.parent):
        try:
            os.close(_open_checked(path))
        except UserError:
            _compile(compiler, path)
    loaded.cache_clear()
    return path


def _compile(compiler: str, path: Path) -> None:
    """Compile in a folder of its own, then move the sha256 and the library into place."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".build-") as folder:
        fresh, digest = Path(folder, "kernel.so"), Path(folder, "sha256")
        files = [str(source) for source in SOURCES if source.suffix == ".c"]
        words = [compiler, *FLAGS, "-shared", "-fPIC", "-o", str(fresh), *files, "-lm"]
        told = subprocess.run(words, capture_output=True, text=True)
        if told.returncode:
            said = " / ".join(told.stderr.split("\n")[:3]).strip()
            path.with_suffix(FAILED).write_text(told.stderr)
            raise UserError(f"{compiler} failed: {said}; the torch path still works")
        fresh.chmod(0o700)
        digest.write_text(hashlib.sha256(fresh.read_bytes()).hexdigest() + "\n", encoding="ascii")
        digest.chmod(0o600)
        # In this order a reader never meets a new library without its sha256.
        digest.replace(_digest_path(path))
        fresh.replace(path)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Make a folder of this user's own, and let one process at a time build in it."""
    from filelock import FileLock

    lock = FileLock(folder / ".kernel.lock", mode=0o600)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = who_else_may_write(folder)
        if problem is not None:
            raise UserError(
                f"the kernel is not built: {problem}; set {HOME} to a folder of your own"
            )
        lock.acquire()
    except OSError as error:
        raise UserError(
            f"cannot write {folder} ({error.strerror}); set {HOME} to a folder of your own"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _gemm() -> int | None:
    """The address of the matrix product that torch carries, where it shows one."""
    return _address("sgemm_")


def _runtime() -> tuple[int, ...]:
    """What starts torch's own threads, where torch shows it; else the kernel takes one thread."""
    found = [_address(name) or 0 for name in RUNTIME]
    return tuple(found) if all(found) else (0,) * len(found)


def _address(name: str) -> int | None:
    """Where a function of torch's library, or of one that it needs, lies in this process."""
    file = {"linux": "libtorch_cpu.so", "darwin": "libtorch_cpu.dylib"}.get(
        platform.system().lower()
    )
    library = None if file is None else Path(torch.__file__).parent / "lib" / file
    if library is None or not library.exists():
        return None
    found = getattr(ctypes.CDLL(str(library)), name, None)
    return None if found is None else ctypes.cast(found, ctypes.c_void_p).value


class Strided(ctypes.Structure):
    """What kernel.c calls Strided: (H, B, rows, n), the last without gaps; shared axes step 0."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("head", "example", "row")],
    )


class Numbers(ctypes.Structure):
    """What kernel.c calls Numbers: (B or 1, T), int32, the last without gaps."""

    _fields_ = (("data", ctypes.c_void_p), ("example", ctypes.c_int64))


class KernelCall(ctypes.Structure):
    """What kernel.c calls a Call."""

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("gemm", *RUNTIME)],
        *[(name, ctypes.c_int64) for name in ("threads", "heads", "batch", "beside")],
        *[(name, ctypes.c_int64) for name in ("num_queries", "num_keys", "width", "value_width")],
        *[(name, ctypes.c_int64) for name in ("rows", "a", "b", "ready", "small")],
        *[(name, ctypes.c_int64) for name in ("first_width", "half")],
        *[(name, Strided) for name in vars(Terms())],
        ("output", Strided),
        *[(f"grad_{name}", Strided) for name in vars(Terms())],
        *[(name, Numbers) for name in ("starts", "stops", "table_rows")],
        ("room", ctypes.c_void_p),
    )


def attend(
    terms: Terms,
    visibility: Visibility,
    output: Tensor,
    *,
    ready: bool = False,
    grads: Terms | None = None,
) -> None:
    """Write softmax(terms over what is seen) values, (H, B, T, K); ready: weights, no terms.

    With grads, output is the output's gradient, and what grads has room for is written; that of
    the table is added.
    """
    kernel = in_use()
    assert kernel is not None
    assert terms.values is not None
    half = terms.values.dtype == torch.bfloat16
    if half and not kernel.library.has_bfloat16():
        _attend_in_float32(terms, visibility, output, grads)
        return
    num_heads, batch, num_queries, value_width = output.shape
    num_keys, queries, tiled = terms.values.shape[2], terms.queries, terms.tiled
    sides = (queries, terms.other_queries, tiled, terms.repeated)
    first, other, a, b = [0 if part is None else part.shape[-1] for part in sides]
    alike = queries is None or (queries.shape[1] == 1 and terms.other_queries is None)
    alike = alike and tiled is None and visibility.is_shared
    beside = min(max(1, batch), max(1, BESIDE // (num_keys * value_width))) if alike else 1
    budget = CACHED // 2 if visibility.grows else CACHED
    rows = min(max(FEWEST_ROWS, budget // num_keys), MOST_ROWS, num_queries)
    if half and visibility.grows:
        rows = min(rows, FEWEST_ROWS)
    threads = torch.get_num_threads() if kernel.runtime[0] else 1
    sizes = (threads, num_heads, batch, beside, num_queries, num_keys, first + other, value_width)
    call = KernelCall(kernel.gemm, *kernel.runtime, *sizes, rows, a, b, ready, SMALL, first, half)
    given = {"output": output, **vars(terms)}
    summed = {}  # gradients of queries that examples share: sums in float32
    if grads is not None:
        given |= {f"grad_{name}": tensor for name, tensor in vars(grads).items()}
        for name in ("grad_queries", "grad_other_queries") if half else ():
            tensor = given[name]
            if tensor is not None and tensor.shape[1] == 1:
                summed[name] = tensor
                given[name] = torch.empty_like(tensor, dtype=torch.float32)
    for name, tensor in given.items():
        if tensor is not None:
            (heads, *others), steps = tensor.shape, tensor.stride()  # an axis of one is shared
            example = steps[1] if len(others) == 3 and others[0] > 1 else 0
            row = steps[-2] if len(others) > 1 else 0
            head = steps[0] if heads > 1 else 0
            setattr(call, name, Strided(tensor.data_ptr(), head, example, row))
    for name in ("starts", "stops", "table_rows"):
        numbers = getattr(visibility, name)
        if numbers is not None:
            step = numbers.stride(0) if len(numbers) > 1 else 0
            setattr(call, name, Numbers(numbers.data_ptr(), step))
    library, pointer = kernel.library, ctypes.byref(call)
    room = output.new_empty(threads * library.workspace(pointer), dtype=torch.float32)
    call.room = room.data_ptr()
    (library.attend if grads is None else library.attend_back)(pointer)
    for name, tensor in summed.items():
        tensor.copy_(given[name])


def _attend_in_float32(
    terms: Terms, visibility: Visibility, output: Tensor, grads: Terms | None
) -> None:
    """The same for bfloat16 on a processor that cannot multiply it."""

    def widened(part: Terms) -> Terms:
        return Terms(*[None if each is None else each.float() for each in vars(part).values()])

    wide, room = None if grads is None else widened(grads), output.float()
    attend(widened(terms), visibility, room, grads=wide)
    if grads is None or wide is None:
        output.copy_(room)
        return
    for grad, found in zip(vars(grads).values(), vars(wide).values(), strict=True):
        if grad is not None and grad is not found:
            grad.copy_(found)


class RowsCall(ctypes.Structure):
    """What rows.c calls Rows."""

    _fields_ = (
        ("runtime", ctypes.c_void_p * 4),
        *[(name, ctypes.c_int64) for name in ("threads", "rows", "inputs", "outputs", "heads")],
        *[(name, ctypes.c_void_p) for name in ("x", "weight", "bias", "y")],
    )


def few_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """x (..., D) by a weight (N, D), or (H, D, K) side by side; None where torch has to do it."""
    if (
        (weight.dim() == 3 and weight.shape[-1] % LANES)
        or is_transformed()
        or torch.jit.is_tracing()  # type: ignore[attr-defined]
        or torch.is_autocast_enabled("cpu")
        or any(
            part is not None and (part.dtype != torch.float32 or part.device.type != "cpu")
            for part in (x, weight, bias)
        )
        or type(x) is not Tensor
        or not weight.is_contiguous()
    ):
        return None
    kernel = in_use()
    if kernel is None:
        return None
    x, heads = x.contiguous(), weight.shape[0] if weight.dim() == 3 else 0
    outputs = weight.shape[-1 if heads else 0]
    y = x.new_empty(*x.shape[:-1], outputs * max(1, heads))
    threads = torch.get_num_threads() if kernel.runtime[0] else 1
    sizes = (threads, x.numel() // x.shape[-1], x.shape[-1], outputs, heads)
    data = (x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr())
    kernel.library.project(ctypes.byref(RowsCall(kernel.runtime, *sizes, *data, y.data_ptr())))
    return y


class Compiled(Kernels):
    """Every kernel of this folder, as attention/hook.py finds them; Kernels says what each does."""

    prepare = staticmethod(prepare)
    few_rows = staticmethod(few_rows)
    takes_on_gpu = staticmethod(triton.takes)
    attend_on_gpu = staticmethod(triton.attend)
    attend_back_on_gpu = staticmethod(triton.attend_back)

    def is_built(self) -> bool:
        return in_use() is not None

    def attend(self, *given: Any, **named: Any) -> None:  # noqa: ANN401
        attend(*given, **named)

    def decode_token(self, *given: Any) -> Tensor | None:  # noqa: ANN401
        from synthesizer_attention.kernels import decoding  # which imports the models

        return decoding.decode_token(*given)


def main() -> int:
    """Compile the kernel and say where it lies."""
    try:
        sys.stdout.write(f"{build()}\n")
    except UserError as error:
        sys.stderr.write(f"synthesizer: error: {printable(str(error))}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
