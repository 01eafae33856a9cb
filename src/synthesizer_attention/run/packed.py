"""Studies packed as one .zip each: `tools/pack.py` makes them of folders of run records.

opened(path)     a .zip as a temporary folder, for reading
named(path)      what lies in such a folder, by the name it has once it is unpacked
unpack(folder)   folder.zip as a folder beside it, for going on
"""

import atexit
import shutil
import tempfile
import zipfile
import zlib
from pathlib import Path

from synthesizer_attention.errors import UserError
from synthesizer_attention.untrusted import check_expansion, check_regular_file

SUFFIX = ".zip"
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)
_opened: dict[tuple[Path, int], Path] = {}


def opened(path: Path) -> Path:
    """A folder as it is; a .zip as a folder of the same name, removed when the process ends."""
    if path.suffix != SUFFIX or path.is_dir():
        return path
    try:
        check_regular_file(path)
        key = path, path.stat().st_mtime_ns
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); name a folder or a .zip") from None
    if key not in _opened:
        home = tempfile.mkdtemp(prefix="synthesizer-")
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        _opened[key] = _extract(path, Path(home) / path.stem)
    return _opened[key]


def named(path: Path) -> Path:
    """A path within an opened .zip as it is within the unpacked folder; any other as it is."""
    for (packed, _), home in _opened.items():
        if path.is_relative_to(home):
            return packed.with_suffix("") / path.relative_to(home)
    return path


def unpack(folder: Path) -> bool:
    """Make folder.zip a folder again where there is none; whether that was done."""
    packed = folder.with_name(folder.name + SUFFIX)
    if folder.exists() or not packed.is_file():
        return False
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _extract(packed, beside / folder.name).rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return True


def _extract(path: Path, home: Path) -> Path:
    """Write every member below `home`; zipfile checks their sums and keeps their names inside."""
    try:
        if path.read_bytes()[-22:-18] != b"PK\5\6":  # or the .npz inside would be taken for it
            raise zipfile.BadZipFile("its end is missing")
        with zipfile.ZipFile(path) as file:
            check_expansion(path, sum(member.file_size for member in file.infolist()))
            home.mkdir()
            file.extractall(home)
    except _DAMAGE as error:
        raise UserError(
            f"{path} is damaged ({type(error).__name__}: {error}); restore it from a copy"
        ) from None
    return home
