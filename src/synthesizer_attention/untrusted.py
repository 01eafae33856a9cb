"""What somebody else may have written: whose it is, what it is, how large it gets, what it shows.

    who_else_may_write(path)          a file to execute, or to trust unread
    check_regular_file(path)          a file to read: no device, pipe or socket, no hole of zeros
    read_regular(path)                its text
    check_expansion(path, expanded)   a compressed file, before it is read
    check_folder_name(name, what)     text that becomes a folder
    path_inside(folder, name)         text that names a folder in another
    check_links(folder)               a folder to write into or to delete from
    listed(names)                     a row of names, however many there are
    printable(text)                   text on its way to a terminal or a page
    plain(text), fenced(code)         the same in Markdown

Standard library alone: everything else may import this. SECURITY.md says what is promised.
"""

import errno
import os
import re
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from synthesizer_attention.errors import UserError

LIMIT = "SYNTHESIZER_MAX_BYTES"  # names what a small compressed file may expand to
MAX_BYTES = 2**30
MAX_RATIO = 100  # a file may always expand to so many times its size on disk
LONGEST_NAME = 200  # bytes of a folder's name; file systems end at 255
WINDOWS = os.name == "nt"
VIRTUAL = ("/proc/", "/sys/")  # regular files that are none

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_PORTABLE = str.maketrans('<>:"|?*', "()_'~!#")
_DEVICE = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d) *")  # which no folder may be called
_MARKUP = re.compile(r"([\\`*\[\]<>|&~])")
_ADDRESS = re.compile(r"(?i)(\w)(://|(?<=www)\.)")  # which some readers turn into links
_CONTROL_BUT_LINES = re.compile(rf"(?![\n\t]){_CONTROL.pattern}")


def who_else_may_write(path: Path) -> str | None:
    """How another user could have written or replaced a path, links resolved; None if none could.

    The path and every folder above it must belong to this user or to root. Others may write into
    a folder above the last only where its sticky bit keeps them from replacing what is not theirs.
    """
    if sys.platform == "win32":
        return None  # where a user's own folders are private and modes mean nothing
    real = Path(os.path.realpath(path))
    for place in (real, *real.parents):
        found = place.lstat()
        if found.st_uid not in (os.geteuid(), 0):
            return f"{place} belongs to user {found.st_uid}"
        sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        above = place not in (real, real.parent) if real.is_file() else place != real
        if sticky and above:
            continue
        if found.st_mode & stat.S_IWOTH or _group_may_write(place, found):
            return f"others may write {place} (mode {stat.S_IMODE(found.st_mode):04o})"
    return None


def _group_may_write(place: Path, found: os.stat_result) -> bool:
    """Whether anybody but this user may write as the group; an access list shows there, too."""
    if not found.st_mode & stat.S_IWGRP:
        return False
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(found.st_gid)
        listed = os.listxattr(place) if hasattr(os, "listxattr") else []
    except (KeyError, OSError):
        return True
    own = group.gr_gid == user.pw_gid and group.gr_name == user.pw_name
    return not own or bool({*group.gr_mem} - {user.pw_name}) or any("acl" in x for x in listed)


def check_regular_file(path: Path) -> None:
    """Refuse devices, pipes, sockets, what the kernel makes up, and a file that is mostly hole."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or os.path.realpath(path).startswith(VIRTUAL):
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a directory"}
        kind = kinds.get(stat.S_IFMT(found.st_mode), "a device or a file of the system")
        raise UserError(f"{path} is {kind}; expected a regular file: copy what it gives into one")
    on_disk = found.st_blocks * 512 if hasattr(found, "st_blocks") else found.st_size
    check_expansion(path, found.st_size, on_disk)
    if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def read_regular(path: Path) -> str:
    """The UTF-8 text of a regular file; a missing one is an OSError, as ever."""
    check_regular_file(path)
    return path.read_text(encoding="utf-8")


def check_expansion(path: Path, expanded: int, on_disk: int | None = None) -> None:
    """Refuse a small file that would fill the memory: a stated limit, or 100 times its size."""
    size = path.stat().st_size if on_disk is None else on_disk
    limit = expansion_limit(path, size)
    if expanded > limit:
        raise UserError(
            f"{path} has {size:,} bytes on disk and expands to {expanded:,} or more, over the "
            f"limit of {limit:,}; check where it comes from, or set {LIMIT}={expanded}"
        )


def expansion_limit(path: Path, on_disk: int | None = None) -> int:
    """How many bytes a file may become."""
    asked = os.environ.get(LIMIT, str(MAX_BYTES))
    if not asked.isdecimal():
        raise UserError(f"{LIMIT} is {asked!r}; expected a number of bytes")
    return max(int(asked), MAX_RATIO * (path.stat().st_size if on_disk is None else on_disk))


def check_folder_name(name: str, what: str) -> str:
    """A name that stays one folder, where it is put."""
    good = name.strip(". ") and len(name.encode("utf-8", "replace")) <= LONGEST_NAME
    if not good or "/" in name or "\\" in name or _CONTROL.search(name):
        raise UserError(
            f"{what} is {printable(name)[:200]!r}, which cannot name a folder; expected up to "
            f"{LONGEST_NAME} bytes without slashes, control characters or dots alone"
        )
    return portable(name) if WINDOWS else name  # elsewhere old studies go on under their names


def portable(name: str) -> str:
    """A folder's name as Windows takes it."""
    name = name.translate(_PORTABLE)
    name = name[:-1] + "_" if name.endswith((".", " ")) else name
    return f"_{name}" if _DEVICE.fullmatch(name.partition(".")[0]) else name


def path_inside(folder: Path, name: str) -> Path:
    """The path of a name that a record of a folder gives, links resolved: never outside of it."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{printable(name)[:200]!r} is outside of {folder}")
    return path


def check_links(folder: Path) -> None:
    """Refuse a folder that holds links out of it, pipes or devices: nothing is written there."""
    home = os.path.realpath(folder)
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            mode = os.lstat(path).st_mode
            if not any(kind(mode) for kind in (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)):
                raise UserError(f"{path} is a pipe, a socket or a device; remove it")
            target = os.path.realpath(path)
            if stat.S_ISLNK(mode) and not target.startswith(home + os.sep):
                raise UserError(
                    f"{path} is a link that leads out of {folder}, to {target}; "
                    "put a copy in its place, or remove it"
                )


def printable(text: str, *, lines: bool = False) -> str:
    r"""Text with control characters, terminal escapes and reversed writing spelled out, as \x1b.

    `lines` keeps line breaks and tabs.
    """
    pattern = _CONTROL_BUT_LINES if lines else _CONTROL
    return pattern.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def listed(names: Iterable[object], most: int = 10) -> str:
    """Names with commas between them; of many, and of long ones, the beginning."""
    every = [str(name) for name in names]
    shown = [name if len(name) <= 100 else f"{name[:100]}..." for name in every[:most]]
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return ", ".join(shown) + more


def plain(text: str) -> str:
    """Text as Markdown shows it: no link, no HTML, no emphasis, no new line."""
    return _ADDRESS.sub(r"\1&#8203;\2", _MARKUP.sub(r"\\\1", printable(text)))


def fenced(code: str, language: str = "") -> str:
    """Preformatted text in Markdown, in a longer fence than any that it holds."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
    return f"{fence}{language}\n{printable(code, lines=True)}\n{fence}"
