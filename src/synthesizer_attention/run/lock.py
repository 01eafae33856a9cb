"""One process at a time in a directory, on one machine or on a disk that several share (no torch).

The lock ends with the process that holds it, however it ends. Its file names the holder (pid, then
host), so that whoever waits can say for whom.
"""

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.disk import cannot_write
from synthesizer_attention.untrusted import read_regular

PATIENCE = (
    150.0  # seconds: a stopped worker saves for 120, a file server keeps a dead host's for 90
)
POLL = 0.25  # seconds between attempts


@contextmanager
def locked(folder: Path, activity: str, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a directory; wait for another holder a while, and name it."""
    path = folder / ".lock"  # which is not a link: check_links
    lock: BaseFileLock = FileLock(path)
    holder = _holder(path)  # read first: old versions of filelock empty the file as they try
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            holder = _holder(path) or holder
            say(f"waiting for {holder or 'another process'}, which is {activity} in {folder}")
            lock.acquire(timeout=PATIENCE, poll_interval=POLL)
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
