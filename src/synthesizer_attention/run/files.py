"""How every record is read and written: bounded, whole or not at all, with hashes and a lock.

The record that is written last (result.json, audit.json, converted.json) vouches for itself and for
the files beside it:

    {..., "files": {"recipe.toml": {"bytes": 1210, "sha256": "..."}, ...}, "checksum": "..."}

Directories of older versions have the same table in manifest.json, or none. SECURITY.md says what
is promised of files that somebody else wrote. Every folder may import this: it needs little more
than the standard library.
"""

import errno
import glob
import hashlib
import json
import os
import platform
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from synthesizer_attention.errors import UserError, printable

MANIFEST = "manifest.json"  # of older versions
CONVERTED = "converted.json"  # in the folder of a converted model
HOLDS = ("result.json", "audit.json", CONVERTED, "study.json")
UNREAD = ("README.md", MANIFEST, *HOLDS)  # users edit the first; the others hold hashes themselves
EDITABLE = ("model", "path", "checksum")  # keys of a record that its checksum leaves out
SMALL = 2**20  # bytes; the hash of such a file costs nothing and is always compared
MOST_TEXT = 2**30  # bytes of a text that is read at once
MOST_RATIO = 100  # a compressed file may always expand to so many times its size
LONGEST_NAME = 200  # bytes of a folder's name; file systems end at 255
PATIENCE = 150.0  # seconds that a lock is waited for: a stopped worker saves for up to 120
WINDOWS = os.name == "nt"

INTACT = "the old file is intact"
MAY_NOT_READ = "may not be read"
FORBIDDEN = "make it writable, or choose another --out"
DISK = {
    errno.ENAMETOOLONG: "choose another path",
    errno.ELOOP: "choose another path",
    errno.ENOSPC: "free some space and run the same command again",
    errno.EDQUOT: "free some of your quota and run the same command again",
    errno.EFBIG: "raise the limit of file sizes and run the same command again",
    errno.EROFS: "make it writable, or choose another path",
    errno.EACCES: "make it accessible, or choose another path",
    errno.EPERM: "make it accessible, or choose another path",
    errno.ENOTDIR: "choose another path",
    errno.EISDIR: "choose another path",
    errno.EIO: "the disk reports an error: check it, and run the same command again",
    errno.EMFILE: "raise the limit of open files and run the same command again",
    errno.ENOLCK: "this disk gives no locks: choose a path on another, or mount it with locks",
    errno.ESTALE: "the disk of a server was lost: mount it and run the same command again",
}
"""What a user can do about each error of the file system."""


def check_regular_file(path: Path) -> None:
    """Refuse devices, pipes and sockets, which may never end; OSError where it cannot be opened."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise UserError(f"{path} is not a regular file; copy what it gives into one")
    path.open("rb").close()


def read_regular(path: Path) -> str:
    """The UTF-8 text of a regular file; a missing one is an OSError, as ever."""
    check_regular_file(path)
    if (size := path.stat().st_size) > MOST_TEXT:
        raise UserError(f"{path} has {size:,} bytes; expected a text of {MOST_TEXT:,} at most")
    return path.read_text(encoding="utf-8")


def expansion_limit(path: Path) -> int:
    """How many bytes a compressed file may become."""
    return max(MOST_TEXT, MOST_RATIO * path.stat().st_size)


def check_expansion(path: Path, expanded: int) -> None:
    """Refuse a small compressed file that would fill the memory."""
    if expanded > (limit := expansion_limit(path)):
        raise UserError(
            f"{path} has {path.stat().st_size:,} bytes and expands to {expanded:,} or more, over "
            f"the limit of {limit:,}; check where it comes from, or unpack it yourself"
        )


def who_else_may_write(path: Path) -> str | None:
    """How another user could have written or replaced a path, links resolved; None if none could.

    The path and every folder above it must belong to this user or to root. Others may write into
    a folder above the last only where its sticky bit keeps them from replacing what is not theirs.
    """
    if WINDOWS:
        return None  # where a user's own folders are private and modes mean nothing
    real = Path(os.path.realpath(path))
    last = (real, real.parent) if real.is_file() else (real,)
    for place in (real, *real.parents):
        found = place.lstat()
        if found.st_uid not in (os.geteuid(), 0):
            return f"{place} belongs to user {found.st_uid}"
        if found.st_mode & stat.S_ISVTX and place not in last:
            continue
        shared = bool(found.st_mode & stat.S_IWOTH)
        if found.st_mode & stat.S_IWGRP:  # which a user's own private group may
            import grp
            import pwd

            with suppress(KeyError):
                owner, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(found.st_gid)
                shared |= group.gr_name != owner.pw_name or bool({*group.gr_mem} - {owner.pw_name})
        if shared:
            return f"others may write {place} (mode {stat.S_IMODE(found.st_mode):04o})"
    return None


def check_folder_name(name: str, what: str) -> str:
    """A name that stays one folder, where it is put."""
    good = name.strip(". ") and len(name.encode("utf-8", "replace")) <= LONGEST_NAME
    if not good or "/" in name or "\\" in name or printable(name) != name:
        raise UserError(
            f"{what} is {printable(name)[:200]!r}, which cannot name a folder; expected up to "
            f"{LONGEST_NAME} bytes without slashes, control characters or dots alone"
        )
    return portable(name) if WINDOWS else name  # elsewhere old studies go on under their names


def portable(name: str) -> str:
    """A folder's name as Windows takes it."""
    name = name.translate(str.maketrans('<>:"|?*', "()_'~!#"))
    name = name[:-1] + "_" if name.endswith((".", " ")) else name
    device = re.fullmatch(r"(?i)(con|prn|aux|nul|com\d|lpt\d) *", name.partition(".")[0])
    return f"_{name}" if device else name


def path_inside(folder: Path, name: str) -> Path:
    """The path of a name that a record of a folder gives, links resolved: never outside of it."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{printable(name)[:200]!r} is outside of {folder}")
    return path


def sha256(path: Path, *, sync: bool = False) -> str:
    """Of a file of any size."""
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(value: object) -> str:
    """The sha256 of a text, or of what JSON makes of a value."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def checksum(record: Mapping[str, Any]) -> str:
    """Of a record as it is read again; where an audited model is may be edited."""
    return digest({key: value for key, value in record.items() if key not in EDITABLE})


def files_of(folder: Path) -> list[Path]:
    """The files below a folder for which its record vouches."""
    every = (path for path in sorted(folder.rglob("*")) if path.name not in UNREAD)
    return [path for path in every if path.is_file() and not path.name.startswith(".")]


def write_record(path: Path, record: Mapping[str, Any], files: Iterable[Path] = ()) -> None:
    """Write a record that vouches for itself and for files beside it, which are all on the disk."""
    known = {
        file.relative_to(path.parent).as_posix(): {
            "bytes": file.stat().st_size,
            "sha256": sha256(file, sync=True),
        }
        for file in files
    }
    sealed = json.loads(json.dumps({**record, **({"files": known} if known else {})}))
    write_text(path, json.dumps({**sealed, "checksum": checksum(sealed)}, indent=2) + "\n")


def find_damage(
    record: Path, large: tuple[str, ...] = (), *, hashes: bool = True, spared: tuple[str, ...] = ()
) -> str | None:
    """The first file that is not as a record knows it, and how; None where all are as written.

    Sizes are always compared. Hashes are compared of small files and of those whose name begins
    with one of `large`, unless `hashes` is off. Directories of `spared` may be absent as a whole:
    a record that is kept without weights is no damage to whoever reads none.
    """
    folder, old = record.parent, record.with_name(MANIFEST)
    source = old if os.path.lexists(old) else record
    try:
        stored = json.loads(read_regular(source))
        files: dict[str, dict[str, Any]] = stored.get("files", {})
        known = stored["sha256"] if source == old else stored.get("checksum")
        if known and known != (digest(files) if source == old else checksum(stored)):
            return f"{source.name} is damaged (its checksum is another)"
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name in files):
            raise ValueError("it names a file outside")
    except FileNotFoundError:
        return None
    except PermissionError:
        return f"{source.name} {MAY_NOT_READ}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"unreadable {source.name} ({type(error).__name__})" if folder.is_dir() else None
    absent = tuple(f"{name}/" for name in spared if not os.path.lexists(folder / name))
    for name, entry in files.items():
        if name.startswith(absent):
            continue
        try:
            found = (folder / name).lstat()
            if not stat.S_ISREG(found.st_mode):
                return f"{name} is not a regular file"
            if (size := entry["bytes"]) != found.st_size:
                return f"{name} is damaged ({found.st_size:,} bytes, {size:,} when written)"
            hashed = hashes and (found.st_size <= SMALL or name.startswith(large or "\0"))
            if hashed and sha256(folder / name) != entry["sha256"]:
                return f"{name} is damaged (its sha256 is not the one in {source.name})"
        except PermissionError:
            return f"{name} {MAY_NOT_READ}"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return None


def remedy(damage: str, again: str = "delete the directory and train again") -> str:
    """What to do about what find_damage found."""
    if MAY_NOT_READ in damage:
        return "ask its owner for the right to read it (chmod a+r)"
    return (
        f"restore it from a copy, or {again} (if you changed the file yourself, delete {MANIFEST} "
        'or "files" and "checksum" in the record)'
    )


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
    write_atomically(path, lambda beside: beside.write_text(text, encoding="utf-8", newline=""))


def append_line(path: Path, values: Mapping[str, object]) -> None:
    """Add a line to a .jsonl file, and see it on the disk."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise cannot_write(path, error) from None


def write_atomically(
    path: Path,
    fill: Callable[[Path], object],
    advise: Callable[[OSError], str] | None = None,
) -> None:
    """Let `fill` write a file beside `path`, then move it there; on failure the old file stays.

    The process id keeps two writers apart. The directory is synced too: without that a power cut
    may forget the move although the content is on disk.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        beside.unlink(missing_ok=True)
        os.close(os.open(beside, os.O_CREAT | os.O_EXCL, 0o666))  # never through a planted link
        mode = beside.stat().st_mode  # as the umask has it
        fill(beside)
        beside.chmod(mode)
        _sync(beside)
        os.replace(beside, path)
        _sync(path.parent)
    except Exception as error:
        with suppress(OSError):  # a read-only disk refuses this, too
            beside.unlink(missing_ok=True)
        if (cause := disk_error(error)) is None:
            raise
        raise cannot_write(path, cause, advice=advise and advise(cause)) from None


def write_folder(
    path: Path, fill: Callable[[Path], None], make_room: Callable[[], None] = lambda: None
) -> None:
    """Let `fill` write a folder beside `path`, then move it there.

    make_room   empties a folder that is there, once the new one is whole
    """
    path = path.resolve()
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        beside.mkdir(parents=True)
        fill(beside)
        follow_umask(beside)
        for file in (*beside.rglob("*"), beside):
            _sync(file)
        make_room()
        if path.exists():
            path.rmdir()
        beside.rename(path)
        _sync(path.parent)
    except Exception as error:
        shutil.rmtree(beside, ignore_errors=True)
        if (cause := disk_error(error)) is None:
            raise
        raise cannot_write(path, cause, "nothing was written") from None


def follow_umask(folder: Path) -> None:
    """Give the files of a folder the mode of a new file: safetensors makes its own private."""
    probe = folder / f".mode.{os.getpid()}.partial"
    probe.touch()
    mode = probe.stat().st_mode
    probe.unlink()
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


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


def disk_error(error: Exception) -> OSError | None:
    """The disk's error behind an exception; safetensors and tokenizers have their own for it."""
    if isinstance(error, OSError):
        return error
    found = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(found[1]), os.strerror(int(found[1]))) if found else None


def cannot_write(
    path: Path, error: OSError, kept: str = INTACT, *, advice: str | None = None
) -> UserError:
    """One line for a disk that is full, read-only, forbidden, gone or without locks.

    kept     what is not lost
    advice   what to do, where that is not the same for every file
    """
    return UserError(
        f"cannot write {path} ({error.strerror or error}); {advice or what_to_do(error, kept)}"
    )


def what_to_do(error: OSError, kept: str = INTACT) -> str:
    """What a user can do where a file cannot be written, and what is not lost."""
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return FORBIDDEN
    if error.errno == errno.ENOENT:
        again = "put it back, or run the same command again to begin anew"
        return f"its directory was deleted or moved: {again}"
    return f"{kept}: {DISK.get(error.errno or 0, 'see to it, and run the same command again')}"


def _sync(path: Path) -> None:
    """See a file or a folder on the disk."""
    if path.is_dir() and os.name != "posix":
        return
    opened = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def locked(
    folder: Path,
    activity: str,
    say: Callable[[str], None],
    *,
    name: str = ".lock",
    patience: float | None = None,
) -> Iterator[None]:
    """Hold the lock of a directory, on one machine or on a disk that several share.

    It ends with the process that holds it, however it ends. Its file names the holder (pid, then
    host), so that whoever waits, PATIENCE or so many seconds (-1: without end), can say for whom.
    """
    path = folder / name
    lock: BaseFileLock = FileLock(path)
    holder = _holder(path)  # read first: old versions of filelock empty the file as they try
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            holder = _holder(path) or holder
            say(f"waiting for {holder or 'another process'}, which is {activity} in {folder}")
            lock.acquire(timeout=PATIENCE if patience is None else patience, poll_interval=0.25)
    except Timeout:
        raise UserError(
            f"{holder or 'another process'} is {activity} in {folder}; "
            "wait for it, stop it, or choose another --out"
        ) from None
    except OSError as error:
        raise cannot_write(path, error, "nothing was written") from None
    try:
        if not isinstance(lock, SoftFileLock):  # which writes the same, where a disk has no flock
            with suppress(OSError):  # Windows lets nobody else write while it is held
                path.write_text(f"{os.getpid()}\n{platform.node()}\n", encoding="utf-8")
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str | None:
    """Who holds a lock, as its file says."""
    try:
        pid, host = read_regular(path).split("\n")[:2]
        return f"process {int(pid)} on {host}" if host else None
    except (OSError, ValueError):
        return None
