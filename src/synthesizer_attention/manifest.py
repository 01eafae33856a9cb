"""manifest.json: the size and sha256 of every file that is read back from a finished run.

    {"files": {"recipe.toml": {"bytes": 1210, "sha256": "..."}, ...}, "sha256": "... of files"}

It is written when all of them are on disk, just before result.json, whose text it knows: a run with
a result.json has a manifest, unless it was made before there were any.
"""

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from synthesizer_attention.untrusted import read_regular

MANIFEST = "manifest.json"
SMALL = 2**20  # bytes; the hash of such a file costs nothing and is always compared
PASSING = ("checkpoints", "tensorboard", "tracking", "wandb")  # directories: resuming, trackers
WEIGHTS = ("model", "checkpoints")  # directories that a record may be kept without
UNREAD = ("README.md",)  # of model/: users edit it, and nothing reads it
REMEDY = (
    "restore it from a copy, or delete the directory and train again "
    f"(if you changed the file yourself, delete {MANIFEST})"
)

FORBIDDEN = "may not be read"
_ASK = "ask its owner for the right to read it (chmod a+r)"


def remedy(damage: str) -> str:
    """What to do about what find_damage found."""
    return _ASK if FORBIDDEN in damage else REMEDY


def manifest_text(folder: Path, more: dict[str, str]) -> str:
    """The manifest of all files below a folder, and of those about to be written with `more` text.

    What is hashed is synced too: a power cut cannot take what the manifest vouches for.
    """
    kept = [path for path in sorted(folder.rglob("*")) if _is_kept(path, folder)]
    offered = sorted((folder / "checkpoints").glob("*.safetensors"))
    kept += [path for path in offered if "-" not in path.stem]  # step-N and best-N will be deleted
    files: dict[str, dict[str, Any]] = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": sha256(path, sync=True),
        }
        for path in kept
    }
    for name, text in more.items():
        content = text.encode()
        files[name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return json.dumps({"files": files, "sha256": _own_hash(files)}, indent=1) + "\n"


def _is_kept(path: Path, folder: Path) -> bool:
    """Whether a file is a result of the run, checkpoints aside."""
    first = path.relative_to(folder).parts[0]
    own = path.name not in UNREAD and not path.name.startswith(".") and first not in PASSING
    return own and first != MANIFEST and path.is_file()


def find_damage(
    folder: Path, large: tuple[str, ...] = (), *, hashes: bool = True, spared: tuple[str, ...] = ()
) -> str | None:
    """The first file that is not as the manifest says, and how; None where all are, or it has none.

    Sizes are always compared. Hashes are compared of small files and of those whose name begins
    with one of `large`, unless `hashes` is off. Directories of `spared` may be absent as a whole:
    a record that is kept without weights is no damage to whoever reads none.
    """
    try:
        files = _read(folder / MANIFEST)
    except FileNotFoundError:
        return None
    except PermissionError:
        return f"{MANIFEST} {FORBIDDEN}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{MANIFEST} is damaged" if folder.is_dir() else None
    absent = tuple(f"{name}/" for name in spared if not os.path.lexists(folder / name))
    for name, entry in files.items():
        if name.startswith(absent):
            continue
        try:
            found = (folder / name).lstat()
        except PermissionError:
            return f"{name} {FORBIDDEN}"
        except OSError:
            return f"{name} is missing"
        if not stat.S_ISREG(found.st_mode):
            return f"{name} is not a regular file"
        if found.st_size != entry["bytes"]:
            return f"{name} is damaged ({found.st_size:,} bytes, {entry['bytes']:,} when written)"
        if hashes and (found.st_size <= SMALL or name.startswith(large or "\0")):
            try:
                same = sha256(folder / name) == entry["sha256"]
            except PermissionError:
                return f"{name} {FORBIDDEN}"
            except OSError as error:
                return f"{name} cannot be read ({error.strerror})"
            if not same:
                return f"{name} is damaged (its sha256 is not the one in {MANIFEST})"
    return None


def _read(path: Path) -> dict[str, dict[str, Any]]:
    stored = json.loads(read_regular(path))
    files: dict[str, dict[str, Any]] = stored["files"]
    if stored["sha256"] != _own_hash(files):
        raise ValueError("its own sha256 differs")
    for name in files:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{name} is outside")
    return files


def _own_hash(files: dict[str, dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def sha256(path: Path, *, sync: bool = False) -> str:
    """Of a file of any size."""
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()
