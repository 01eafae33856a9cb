"""Writing that is whole or not at all, and what to do about disks that refuse (no torch)."""

import errno
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from synthesizer_attention.errors import UserError

INTACT = "the old file is intact"
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
_GONE = (
    "its directory was deleted or moved: put it back, or run the same command again to begin anew"
)
_OF_RUST = re.compile(r"\(os error (\d+)\)")


def write_atomically(
    path: Path,
    fill: Callable[[Path], None],
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
        with beside.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
        _sync(path.parent)
    except Exception as error:
        with suppress(OSError):  # a read-only disk refuses this, too
            beside.unlink(missing_ok=True)
        cause = disk_error(error)
        if cause is None:
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
        for file in beside.rglob("*"):
            if file.is_file():
                with file.open("rb+") as content:
                    os.fsync(content.fileno())
        _sync(beside)
        make_room()
        if path.exists():
            path.rmdir()
        beside.rename(path)
        _sync(path.parent)
    except Exception as error:
        shutil.rmtree(beside, ignore_errors=True)
        cause = disk_error(error)
        if cause is None:
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


def disk_error(error: Exception) -> OSError | None:
    """The disk's error behind an exception; safetensors and tokenizers have their own for it."""
    if isinstance(error, OSError):
        return error
    found = _OF_RUST.search(str(error))
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
        return _GONE
    return f"{kept}: {DISK.get(error.errno or 0, 'see to it, and run the same command again')}"


def _sync(folder: Path) -> None:
    if os.name == "posix":
        directory = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
