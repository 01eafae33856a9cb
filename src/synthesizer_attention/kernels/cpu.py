"""How the optional kernel, in C and without torch's headers, is compiled and loaded.

The first process that could use it has it compiled for this machine in the background (a second of
gcc or clang, where there is one) and computes without it; later ones use it. A training run
compiles before its first step. SYNTHESIZER_KERNEL=0 forbids both;
`python -m synthesizer_attention.kernels.cpu` compiles at once. The library lies in the user's
cache under a name made of the source, the flags and the processor. It is used for float32 on a
CPU with more than one row, if torch lends its BLAS (and its threads, else there is one).

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
from typing import NamedTuple

import torch

from synthesizer_attention.errors import UserError
from synthesizer_attention.untrusted import printable, who_else_may_write

FILES = ("kernel.c", "rows.c", "decode.c", "vectors.h")
SOURCES = [Path(__file__).with_name(name) for name in FILES]
FLAGS = ("-O3", "-march=native", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math")
WANTED = "SYNTHESIZER_KERNEL"  # 0: neither compile the kernel unasked nor use it
HOME = "SYNTHESIZER_CACHE"  # names the folder of what was compiled; by default the user's cache
RUNTIME = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")


class Kernel(NamedTuple):
    """What was compiled, and what of torch it is lent: attend.py and decoding.py call it."""

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
            words, none = (
                [sys.executable, "-P", "-m", "synthesizer_attention.kernels.cpu"],
                subprocess.DEVNULL,
            )
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
    texts = [source.read_text() for source in SOURCES]
    facts = (*texts, *FLAGS, platform.machine(), _processor())
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


def _processor() -> str:
    """What -march=native depends on."""
    facts = Path("/proc/cpuinfo")
    if not facts.exists():
        return platform.processor()
    lines = facts.read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


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
