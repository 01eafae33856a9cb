"""A run directory: what training leaves behind and everything after it reads (no torch).

    recipe.toml      the resolved recipe       metrics.jsonl    no clock in it: equal after a resume
    timing.jsonl     how fast it went          result.json      written last: the run is finished
    manifest.json    sizes and hashes of all   samples.txt      what it writes
    statistics.npz   per example, no text      attention.npz    where the model looks
    model/           a Hugging Face model      checkpoints/     to resume, and the weights behind it

Every file is written atomically (a temporary file, then a rename), so a killed run is readable and
resumable.
"""

import errno
import glob
import hashlib
import json
import math
import os
import platform
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from synthesizer_attention.errors import UserError
from synthesizer_attention.manifest import MANIFEST, WEIGHTS, find_damage, manifest_text, remedy
from synthesizer_attention.run.disk import (
    FORBIDDEN,
    cannot_write,
    what_to_do,
    write_atomically,
)
from synthesizer_attention.run.lock import locked
from synthesizer_attention.run.recipe import Recipe, differences, dump, parse_recipe
from synthesizer_attention.run.records import Logged, Result
from synthesizer_attention.untrusted import (
    WINDOWS,
    check_expansion,
    check_folder_name,
    check_links,
    check_regular_file,
    read_regular,
)

STUDY = "study.json"  # what a comparison leaves beside its runs
_READABLE = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
LIBRARIES = ("torch", "transformers", "accelerate", "tokenizers", "numpy", "sacrebleu")


class Run:
    """One directory of one resolved recipe."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The Hugging Face model directory."""
        return self.path / "model"

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do."""
        return (self.path / "result.json").exists()

    def recipe(self) -> Recipe:
        """The recipe it was made with."""
        path = self.path / "recipe.toml"
        try:
            return parse_recipe(read_regular(path), str(path))
        except UnicodeDecodeError:
            raise self._damaged("recipe.toml is damaged (it is not UTF-8)") from None
        except PermissionError:
            raise
        except OSError:
            self.check(hashes=False)
            raise UserError(
                f"{self.path} holds no recipe.toml, so it is not a run; name a run directory"
            ) from None

    def result(self) -> dict[str, Any]:
        """What a finished run reached."""
        try:
            result = parse_result(read_regular(self.path / "result.json"))
        except PermissionError:
            raise
        except OSError:
            self.check(hashes=False)
            raise UserError(
                f"{self.path} holds no result.json; train the run to its end first"
            ) from None
        except UserError:
            raise
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = f"result.json is damaged ({type(error).__name__})"
            raise self._damaged(what) from None
        return result

    def check(self, *large: str, hashes: bool = True, spared: tuple[str, ...] = ()) -> None:
        """Refuse a run of which a file is not as manifest.json says: see find_damage."""
        damage = find_damage(self.path, large, hashes=hashes, spared=spared)
        if damage is not None and (self.is_finished or not self._may_resume()):
            raise self._damaged(damage)

    def _may_resume(self) -> bool:
        """Whether checkpoints are left to resume from: then the manifest will be written again."""
        return any(self.checkpoints.glob("step-*"))

    def _damaged(self, what: str) -> UserError:
        return UserError(f"{self.path}: {what}; {remedy(what)}")

    def claim(self, recipe: Recipe, *, record: bool = False) -> None:
        """Make the directory this recipe's, or refuse to mix it with what is there.

        record   of a finished run its record is enough: weights may have been left out of it
        """
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise UserError(f"{self.path} exists and is not a directory; choose another --out")
        self.check(spared=WEIGHTS if record and self.is_finished else ())
        if not self._is_begun():
            return
        if not (self.path / "recipe.toml").exists():
            raise UserError(f"{self.path} exists and is not a run; choose another --out")
        changed = differences(self.recipe(), recipe)
        if changed:
            raise UserError(
                f"{self.path} holds a run of another recipe ({'; '.join(changed)}); "
                "choose another --out, or delete the directory"
            )

    def _is_begun(self) -> bool:
        """Whether more is there than a run leaves that was killed, or refused, as it started."""
        own = {self.path / "recipe.toml"}
        if not any(self.checkpoints.glob("*")):
            own.add(self.checkpoints)
        return self.path.exists() and any(
            path not in own and not path.name.startswith(".") for path in self.path.iterdir()
        )

    @contextmanager
    def held(
        self, recipe: Recipe, say: Callable[[str], None] = lambda text: None
    ) -> Iterator[None]:
        """Make the directory, write the recipe, and keep other processes out until the end."""
        make_folder(self.checkpoints)
        check_links(self.path)
        with locked(self.path, "training", say):
            for pattern in (".*.partial", ".tmp*"):  # ours, and those of safetensors beneath them
                for leftover in self.path.rglob(pattern):  # of a killed process: the lock is ours
                    leftover.unlink(missing_ok=True)
            self.claim(recipe)  # again: the process that was waited for may have begun another
            if not self._is_begun():
                self.write("recipe.toml", dump(recipe))
            yield

    def log(self, step: int, values: Mapping[str, object]) -> None:
        """Add a line to metrics.jsonl."""
        append_line(self.path / "metrics.jsonl", {"step": step, **values})

    def log_time(self, step: int, values: Mapping[str, object]) -> None:
        """Add a line to timing.jsonl."""
        append_line(self.path / "timing.jsonl", {"step": step, **values})

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return self._lines("metrics.jsonl")

    def timing(self) -> list[dict[str, Any]]:
        """The lines of timing.jsonl."""
        return self._lines("timing.jsonl")

    def rewind(self, step: int, logged: str | None = None) -> None:
        """Forget what was logged after a step, and a last line that was cut off.

        `logged` is what the step's checkpoint knows of metrics.jsonl; older ones know nothing.
        """
        for name in ("metrics.jsonl", "timing.jsonl"):
            kept = [line for line in self._lines(name) if line["step"] <= step]
            text = "".join(json.dumps(line) + "\n" for line in kept)
            if name == "metrics.jsonl" and logged not in (None, digest_of(text)):
                raise self._damaged(f"{name} is not as the checkpoint of step {step} knows it")
            self.write(name, text)

    def digest_of_metrics(self) -> str:
        """What metrics.jsonl holds, for a checkpoint to know."""
        path = self.path / "metrics.jsonl"
        return digest_of(path.read_text(encoding="utf-8") if path.exists() else "")

    def write(self, name: str, text: str) -> None:
        """Write a text file atomically."""
        write_text(self.path / name, text)

    def finish(self, result: Mapping[str, object]) -> None:
        """Write the manifest of all that is there, then result.json: the run is finished."""
        text = json.dumps(result, indent=2) + "\n"
        self.write(MANIFEST, manifest_text(self.path, {"result.json": text}))
        self.write("result.json", text)

    def write_arrays(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write arrays atomically, as a compressed .npz."""

        def fill(path: Path) -> None:
            with path.open("wb") as file:
                np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

        write_atomically(self.path / name, fill)

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.path / name
        try:
            text = read_regular(path) if path.exists() else ""
        except UnicodeDecodeError:
            raise self._damaged(f"{name} is damaged (it is not UTF-8)") from None
        whole, _, _ = text.rpartition("\n")
        lines: list[dict[str, Any]] = []
        for number, line in enumerate(whole.split("\n") if whole else [], start=1):
            try:
                lines.append(json.loads(line))
                Logged.check(lines[-1])
            except (ValueError, RecursionError):
                raise self._damaged(f"line {number} of {name} is damaged") from None
        return lines


def digest_of(text: str) -> str:
    """The sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def append_line(path: Path, values: Mapping[str, object]) -> None:
    """Add a line to a .jsonl file, and see it on the disk."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise cannot_write(path, error) from None


def parse_result(text: str) -> dict[str, Any]:
    """The record in result.json; ValueError, KeyError or TypeError where it is none."""
    result: dict[str, Any] = json.loads(text)
    Result.check(result)
    float(result["metrics"][result["main_metric"]])
    return result


def default_path(recipe: Recipe) -> Path:
    """The default path of a run: runs/<recipe>/<synthesis>/seed<k>."""
    name = check_folder_name(recipe.name, "the recipe's name")
    return Path("runs") / name / spec_folder(recipe) / f"seed{recipe.seed}"


def spec_folder(recipe: Recipe) -> str:
    """What the runs of a recipe's synthesis are filed under."""
    specs = [spec for spec in (recipe.synthesis, recipe.decoder_synthesis) if spec]
    return check_folder_name("--".join(specs).replace(":", "_").replace("|", "~"), "the synthesis")


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz, once its directory and their headers say that they fit in memory."""
    check_regular_file(path)
    with path.open("rb") as stream:
        with zipfile.ZipFile(stream) as file:
            members = file.infolist()
            check_expansion(path, sum(member.file_size for member in members))
            for member in members:
                if member.flag_bits & 1 or member.compress_type not in _READABLE:
                    raise ValueError(f"{path}: {member.filename} is encrypted or packed otherwise")
                with file.open(member) as content:
                    read_header(content, member)
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as stored:
            return dict(stored)


def read_header(
    content: IO[bytes], member: zipfile.ZipInfo
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type of an array in an .npz; it must be as large as it says."""
    form = np.lib.format
    read = (
        form.read_array_header_1_0
        if form.read_magic(content) == (1, 0)
        else form.read_array_header_2_0
    )
    shape, is_fortran, dtype = read(content)
    if math.prod(shape) * dtype.itemsize > member.file_size:  # it would be allocated
        raise ValueError(f"{member.filename} is shorter than it says")
    return shape, is_fortran, dtype


def make_folder(path: Path) -> None:
    """Make an output directory; one that cannot be written is refused before there is work."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is not a directory; name another --out")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        ours = error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EEXIST, errno.ENAMETOOLONG)
        advice = "check --out" if ours else what_to_do(error, "nothing was written")
        raise UserError(f"cannot make {path} ({error.strerror}); {advice}") from None
    if not os.access(path, os.W_OK):
        raise UserError(f"{path} may not be written; {FORBIDDEN}")


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""

    def fill(beside: Path) -> None:
        with beside.open("w", encoding="utf-8", newline="") as file:
            file.write(text)

    write_atomically(path, fill)


def remove_leftovers(folder: Path, name: str = "") -> None:
    """Remove what killed writers of a name, or of any, left behind; no lock says that all were."""
    for path in folder.glob(f".{glob.escape(name)}*.partial"):
        writer = path.suffixes[-2].removeprefix(".") if len(path.suffixes) > 1 else ""
        if writer.isdecimal() and not _is_alive(int(writer)):
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_alive(process: int) -> bool:
    if WINDOWS:
        return True  # or so: os.kill would end it
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # somebody else's
    return True


@cache
def provenance() -> dict[str, Any]:
    """Which code and machine make a result: commit of a checkout, versions, host and processor.

    Asked once, when the process begins its work: the checkout may change under it.
    """
    from synthesizer_attention import __version__

    versions = {name: metadata.version(name) for name in LIBRARIES}
    return {
        "commit": _commit(),
        "versions": {"synthesizer": __version__, **versions},
        "host": platform.node(),
        "processor": _processor(),
    }


def _processor() -> str:
    """The CPU's model, as the system names it."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The checkout's commit, with a mark where files differ from it; None where it is installed."""
    home = Path(__file__).parents[1]
    known = _git(home, "ls-files", "--error-unmatch", __file__)
    commit = None if known is None else _git(home, "rev-parse", "HEAD")
    if commit is None:
        return None
    return commit + ("-dirty" if _git(home, "status", "--porcelain", ".") else "")


def _git(home: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(home), *words], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
