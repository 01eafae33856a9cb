"""An optional compiled softmax for blocks, in C and without torch's headers: kernel.c.

    python -m synthesizer.fast      compile it for this machine, once, in a second

Nothing is compiled otherwise. What was compiled lies in the user's cache under a name made of the
source, the flags and the processor, and is used from then on, for float32 on a CPU by one thread;
without it, softmax.py says the same in torch. Letters as in terms.py.
"""

import ctypes
import hashlib
import os
import platform
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import which

import torch
from torch import Tensor

from synthesizer.errors import UserError

SOURCE = Path(__file__).with_suffix(".c")
FLAGS = ("-O3", "-march=native", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math")


@dataclass(frozen=True)
class Rows:
    """Some rows of some examples: what they see and which rows of a table they read."""

    fewest: int  # the least that any of them sees
    most: int  # and the greatest
    counts: Tensor | None = None  # (examples or 1, rows), int32; None: all see `most`
    places: Tensor | None = None  # (examples, rows), int32; None: the table's rows are theirs


class Block(ctypes.Structure):
    """What kernel.c calls a Block."""

    _fields_ = (
        *[(name, ctypes.c_int64) for name in ("heads", "examples", "rows", "width", "seen")],
        *[(name, ctypes.c_int64) for name in ("table_head", "table_row", "offsets_head")],
        *[(name, ctypes.c_int64) for name in ("counts_example", "places_example")],
        *[(name, ctypes.c_void_p) for name in ("counts", "places")],
    )


class Kernel:
    """The compiled functions; every tensor is float32 on a CPU, its last axis without gaps."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        pointer = ctypes.c_void_p
        self._soften, self._soften_back = library.soften, library.soften_back
        self._soften.argtypes = [pointer] * 3 + [ctypes.c_int, ctypes.POINTER(Block)]
        self._soften_back.argtypes = [pointer] * 4 + [ctypes.POINTER(Block)]
        self._soften.restype = self._soften_back.restype = None

    def soften(
        self,
        logits: Tensor,
        table: Tensor | None,
        offsets: Tensor | None,
        rows: Rows,
        fresh: bool,
    ) -> None:
        """Turn a block's logits into weights; a fresh block holds none yet."""
        block = _block(logits, table, offsets, rows)
        self._soften(_address(logits), _address(table), _address(offsets), fresh, block)

    def soften_back(
        self,
        down: Tensor,
        weights: Tensor,
        table: Tensor | None,
        offsets: Tensor | None,
        rows: Rows,
    ) -> None:
        """Turn the gradient of weights into that of logits, and add it to table and offsets."""
        block = _block(down, table, offsets, rows)
        self._soften_back(
            _address(down), _address(weights), _address(table), _address(offsets), block
        )


def kernel_for(tensor: Tensor) -> Kernel | None:
    """The kernel, where it has been built and does what this tensor wants."""
    fits = tensor.dtype == torch.float32 and tensor.device.type == "cpu"
    return loaded(built_path()) if fits and torch.get_num_threads() == 1 else None


@cache
def loaded(path: Path) -> Kernel | None:
    """The kernel of a file, looked for once in a process."""
    return Kernel(path) if path.exists() else None


@cache
def built_path() -> Path:
    """Where the kernel of this source, these flags and this processor lies, or would."""
    facts = (SOURCE.read_text(), *FLAGS, platform.machine(), _processor())
    name = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "synthesizer" / f"kernel-{name}.so"


def build() -> Path:
    """Compile the kernel for this machine and return where it lies."""
    compiler = next(filter(None, map(which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise UserError("no C compiler was found (cc, gcc, clang); install one, or do without")
    path = built_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    told = subprocess.run(
        [compiler, *FLAGS, "-shared", "-fPIC", "-o", str(fresh), str(SOURCE)],
        capture_output=True,
        text=True,
    )
    if told.returncode:
        raise UserError(f"{compiler} failed: {told.stderr.strip()}; the torch path still works")
    fresh.replace(path)
    loaded.cache_clear()
    return path


def _processor() -> str:
    """What -march=native depends on."""
    facts = Path("/proc/cpuinfo")
    if not facts.exists():
        return platform.processor()
    lines = facts.read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _block(
    logits: Tensor,
    table: Tensor | None,
    offsets: Tensor | None,
    rows: Rows,
) -> Block:
    counts, places = rows.counts, rows.places
    return Block(
        *logits.shape,
        rows.most,
        *((0, 0) if table is None else table.stride()[:2]),
        0 if offsets is None else offsets.stride(0),
        0 if counts is None or counts.shape[0] == 1 else counts.stride(0),
        0 if places is None else places.stride(0),
        _address(counts),
        _address(places),
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
