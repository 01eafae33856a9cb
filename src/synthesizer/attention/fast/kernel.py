"""An optional compiled way through the blocks, in C and without torch's headers: kernel.c.

The first process that could use it has it compiled for this machine in the background (a second of
gcc or clang, where there is one) and computes without it; later ones use it. A training run
compiles before its first step. SYNTHESIZER_KERNEL=0 says no to both, `python -m synthesizer.fast`
compiles at once. What was compiled lies in the user's cache under a name made of the source, the
flags and the processor, and is used where it fits: float32 on a CPU, more than one row, and a torch
that lends its BLAS (and its threads, else there is one). Elsewhere blocks.py does the same in
torch. Letters as in terms.py.

A library is code, so one is loaded only from a folder and a file that nobody else may write, and
only with the sha256 that was written beside it when it was built.
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
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from synthesizer.errors import UserError
from synthesizer.untrusted import who_else_may_write

if TYPE_CHECKING:
    from synthesizer.attention.fast.terms import Terms
    from synthesizer.attention.masks import Visibility

SOURCE = Path(__file__).with_suffix(".c")
FLAGS = ("-O3", "-march=native", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math")
WANTED = "SYNTHESIZER_KERNEL"  # 0: neither compile the kernel unasked nor use it
HOME = "SYNTHESIZER_CACHE"  # names the folder of what was compiled; by default the user's cache
CACHED = 2**17  # numbers of a block's logits: they and their gradient stay in the second cache
FEWEST_ROWS, MOST_ROWS = 64, 256
LANES = 16  # of kernel.c's vectors
BESIDE = 2**20  # numbers of the values that stand side by side
SMALL = 256  # keys up to which matrices are so small that kernel.c multiplies them itself


class Strided(ctypes.Structure):
    """What kernel.c calls Strided: (H, B, rows, n), the last without gaps; shared axes step 0."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("head", "example", "row")],
    )


class Numbers(ctypes.Structure):
    """What kernel.c calls Numbers: (B or 1, T), int32, the last without gaps."""

    _fields_ = (("data", ctypes.c_void_p), ("example", ctypes.c_int64))


RUNTIME = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")
AXES = {  # those that a tensor lacks to have four
    "table": (slice(None), None),
    "weight": (slice(None), None, None, None),
    "offsets": (slice(None), None, None),
}
TERMS = ("queries", "keys", "values", "table", "weight", "offsets", "tiled", "repeated")


class KernelCall(ctypes.Structure):
    """What kernel.c calls a Call."""

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("gemm", *RUNTIME)],
        *[
            (name, ctypes.c_int64)
            for name in ("threads", "heads", "batch", "beside", "num_queries")
        ],
        *[(name, ctypes.c_int64) for name in ("num_keys", "width", "value_width", "rows")],
        *[(name, ctypes.c_int64) for name in ("a", "b", "ready", "small")],
        *[(name, Strided) for name in (*TERMS, "output")],
        *[(f"grad_{name}", Strided) for name in TERMS],
        *[(name, Numbers) for name in ("starts", "stops", "table_rows")],
        ("room", ctypes.c_void_p),
    )


class RowsCall(ctypes.Structure):
    """What kernel.c calls Rows."""

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in RUNTIME],
        *[(name, ctypes.c_int64) for name in ("threads", "rows", "inputs", "outputs", "heads")],
        *[(name, ctypes.c_void_p) for name in ("x", "weight", "bias", "y")],
    )


class Kernel:
    """The compiled functions."""

    def __init__(self, path: Path, gemm: int) -> None:
        library = ctypes.CDLL(str(path))
        self._gemm, self._runtime = gemm, _runtime()
        self._attend, self._attend_back = library.attend, library.attend_back
        self._workspace = library.workspace
        for function in (self._attend, self._attend_back, self._workspace):
            function.argtypes, function.restype = [ctypes.POINTER(KernelCall)], None
        self._workspace.restype = ctypes.c_int64
        self._project = library.project
        self._project.argtypes, self._project.restype = [ctypes.POINTER(RowsCall)], None

    def attend(
        self,
        terms: "Terms",
        visibility: "Visibility",
        output: Tensor,
        ready: bool = False,
        grads: "Terms | None" = None,
    ) -> None:
        """Write softmax(terms over what is seen) values, (H, B, T, K); ready: weights, no terms.

        With grads, output is the output's gradient, and what grads has room for is written; that of
        the table is added.
        """
        assert terms.values is not None
        num_heads, batch, num_queries, value_width = output.shape
        num_keys, queries, tiled = terms.values.shape[2], terms.queries, terms.tiled
        widths = [
            0 if part is None else part.shape[-1] for part in (queries, tiled, terms.repeated)
        ]
        alike = (queries is None or queries.shape[1] == 1) and visibility.is_shared
        alike = alike and tiled is None
        beside = min(max(1, batch), max(1, BESIDE // (num_keys * value_width))) if alike else 1
        budget = CACHED // 2 if visibility.grows else CACHED
        rows = min(max(FEWEST_ROWS, budget // num_keys), MOST_ROWS, num_queries)
        threads = torch.get_num_threads() if self._runtime else 1
        sizes = (threads, num_heads, batch, beside, num_queries, num_keys, widths[0], value_width)
        runtime = self._runtime or [0] * len(RUNTIME)
        call = KernelCall(self._gemm, *runtime, *sizes, rows, *widths[1:], ready, SMALL)
        given = {"output": output, **vars(terms)}
        if grads is not None:
            given |= {f"grad_{name}": tensor for name, tensor in vars(grads).items()}
        for name, tensor in given.items():
            if tensor is not None:
                axes = AXES.get(name.removeprefix("grad_"), ...)
                steps = tensor[axes].expand(num_heads, batch, -1, -1).stride()
                setattr(call, name, Strided(tensor.data_ptr(), *steps[:3]))
        for name in ("starts", "stops", "table_rows"):
            numbers = getattr(visibility, name)
            if numbers is not None:
                step = numbers.expand(batch, -1).stride(0)
                setattr(call, name, Numbers(numbers.data_ptr(), step))
        room = output.new_empty(threads * self._workspace(call))
        call.room = room.data_ptr()
        (self._attend if grads is None else self._attend_back)(call)

    def project(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Rows of x (..., D) by a weight (N, D), or by each head's (H, D, N): (..., N or H N)."""
        x, heads = x.contiguous(), weight.shape[0] if weight.dim() == 3 else 0
        outputs = weight.shape[-1 if heads else 0]
        y = x.new_empty(*x.shape[:-1], outputs * max(1, heads))
        sizes = (x.numel() // x.shape[-1], x.shape[-1], outputs, heads)
        threads = torch.get_num_threads() if self._runtime else 1
        data = (x.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr())
        runtime = self._runtime or [0] * len(RUNTIME)
        self._project(RowsCall(*runtime, threads, *sizes, *data, y.data_ptr()))
        return y


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
            words, none = [sys.executable, "-P", "-m", "synthesizer.fast"], subprocess.DEVNULL
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
    return Kernel(checked if checked.exists() else path, gemm)


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
    return bool(_compiler() and _gemm() and sys.executable and not _failure(path).exists())


def _tell(what: str) -> None:
    words = "a faster kernel %s; %s=0 says no"
    logging.getLogger(__name__).warning(words, what, WANTED)


def _failure(path: Path) -> Path:
    return path.with_suffix(".failed")


def _compiler() -> str | None:
    return next(filter(None, map(which, ("cc", "gcc", "clang"))), None)


def _open_checked(path: Path) -> int:
    """Open a library that nobody else can have written and that is as it was built."""
    again = f"set {HOME} to a folder of your own and run python -m synthesizer.fast"
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
            if hashlib.file_digest(file, "sha256").hexdigest() != _written_digest(home / path.name):
                raise UserError(f"{path} is not what was built: its sha256 differs; {again}")
            return os.dup(file.fileno())
    except OSError as error:
        why = f"{path} or its sha256 cannot be read ({error.strerror})"
        raise UserError(f"{why}; {again}") from None


def _digest_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _written_digest(path: Path) -> str:
    """What stands beside a library, where nobody else can have written it."""
    beside = _digest_path(path)
    return "" if who_else_may_write(beside) else beside.read_text(encoding="ascii").strip()


def built_path(home: str | None) -> Path:
    """Where the kernel of this source, these flags and this processor lies, or would."""
    facts = (SOURCE.read_text(), *FLAGS, platform.machine(), _processor())
    name = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    return Path(home or os.path.expanduser("~/.cache/synthesizer")) / f"kernel-{name}.so"


def build() -> Path:
    """Compile the kernel for this machine, unless it is there, and return where it lies."""
    compiler = _compiler()
    if compiler is None:
        raise UserError("no C compiler was found (cc, gcc, clang); install one, or do without")
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
        words = [compiler, *FLAGS, "-shared", "-fPIC", "-o", str(fresh), str(SOURCE)]
        told = subprocess.run(words, capture_output=True, text=True)
        if told.returncode:
            said = " / ".join(told.stderr.split("\n")[:3]).strip()
            _failure(path).write_text(told.stderr)
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
    import fcntl

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = who_else_may_write(folder)
        if problem is not None:
            raise UserError(
                f"the kernel is not built: {problem}; set {HOME} to a folder of your own"
            )
        flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW
        handle = os.open(folder / ".kernel.lock", flags, 0o600)
    except OSError as error:
        raise UserError(
            f"cannot write {folder} ({error.strerror}); set {HOME} to a folder of your own"
        ) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _gemm() -> int | None:
    """The address of the matrix product that torch carries, where it shows one."""
    return _address("sgemm_")


def _runtime() -> list[int] | None:
    """What starts torch's own threads, where torch shows it; else the kernel takes one thread."""
    found = [_address(name) for name in RUNTIME]
    return None if None in found else [address for address in found if address is not None]


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


def _processor() -> str:
    """What -march=native depends on."""
    facts = Path("/proc/cpuinfo")
    if not facts.exists():
        return platform.processor()
    lines = facts.read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
