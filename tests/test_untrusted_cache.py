"""A cache that somebody else may write: nothing of it is executed, and nothing believed."""

import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from synthesizer_attention.attention.layer import SyntheticAttention
from synthesizer_attention.data import cache
from synthesizer_attention.data.cache import Entry, fetch
from synthesizer_attention.errors import UserError
from synthesizer_attention.kernels import cpu as kernel
from synthesizer_attention.run.files import who_else_may_write
from tiny import environment

NOBODY = 65534
PAYLOAD = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void run(void) { fclose(fopen(getenv("MARKER"), "w")); }
void attend(void *call) {}
void attend_back(void *call) {}
long workspace(void *call) { return 0; }
long decode_workspace(void *step) { return 0; }
void project(void *call) {}
"""


@pytest.fixture(autouse=True)
def _kernel_is_wanted(monkeypatch):
    monkeypatch.delenv(kernel.WANTED)


QUICK = ("-O0", "-march=native")  # flags
needs_compiler = pytest.mark.skipif(
    not shutil.which("cc") or kernel._gemm() is None, reason="no C compiler, or no BLAS to lend"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture(scope="module")
def payload(tmp_path_factory):
    """A library that writes a file as soon as it is loaded."""
    folder = tmp_path_factory.mktemp("payload")
    (folder / "payload.c").write_text(PAYLOAD)
    built = folder / "payload.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, folder / "payload.c"], check=True)
    return built


@pytest.fixture
def planted(payload, tmp_path, monkeypatch):
    """The payload under the expected name, with its sha256, in a folder of this user's own."""
    monkeypatch.setenv("MARKER", str(tmp_path / "executed"))
    home = tmp_path / "above" / "cache"
    home.mkdir(parents=True, mode=0o700)
    monkeypatch.setenv(kernel.HOME, str(home))
    library = kernel.built_path(str(home))
    shutil.copy(payload, library)
    library.chmod(0o700)
    digest = kernel._digest_path(library)
    digest.write_text(hashlib.sha256(library.read_bytes()).hexdigest())
    digest.chmod(0o600)
    kernel.loaded.cache_clear()
    yield library
    kernel.loaded.cache_clear()


@needs_compiler
def test_the_payload_is_live_where_it_is_this_users_own(planted, tmp_path):
    """Without this, the tests below could pass because the payload never works."""
    assert kernel.loaded(str(planted.parent)) is not None
    assert (tmp_path / "executed").exists()


def chown(path):
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def through_a_link(library):
    """The folder is a link to one that anybody may write."""
    theirs = library.parent.with_name("theirs")
    library.parent.rename(theirs)
    theirs.chmod(0o777)
    library.parent.symlink_to(theirs)


def as_a_link(library):
    """The library is a link into a folder that anybody may write."""
    theirs = library.parent.with_name("theirs")
    theirs.mkdir()
    theirs.chmod(0o777)
    library.rename(theirs / "kernel.so")
    library.symlink_to(theirs / "kernel.so")


def exchanged(library):
    with library.open("ab") as file:
        file.write(b"\0")


ATTACKS = {
    "anybody may write the folder": (lambda p: p.parent.chmod(0o777), "others may write .*0777"),
    "sticky, but shared": (lambda p: p.parent.chmod(0o1777), "others may write .*1777"),
    "anybody may write above": (lambda p: p.parent.parent.chmod(0o777), "others may write .*above"),
    "anybody may write the file": (lambda p: p.chmod(0o666), "others may write .*0666"),
    "a folder that is a link": (through_a_link, "others may write .*theirs"),
    "a file that is a link": (as_a_link, "others may write .*theirs"),
    "another library": (exchanged, "is not what was built: its sha256 differs"),
    "no sha256": (lambda p: kernel._digest_path(p).unlink(), "sha256 cannot be read .No such"),
    "a sha256 of anybody": (lambda p: kernel._digest_path(p).chmod(0o666), "its sha256 differs"),
    "a pipe": (lambda p: (p.unlink(), os.mkfifo(p, 0o600)), "is not a regular file"),
    "a folder of that name": (
        lambda p: (p.unlink(), p.mkdir(0o700)),
        "cannot be read .Is a directory",
    ),
    "a dangling link": (lambda p: (p.unlink(), p.symlink_to("gone")), "cannot be read"),
}
GIVEN_AWAY = {
    "a file of another user": (chown, "belongs to user 65534"),
    "a folder of another user": (lambda p: chown(p.parent), "belongs to user 65534"),
    "a sha256 of another user": (lambda p: chown(kernel._digest_path(p)), "its sha256 differs"),
    "a group that may write": (
        lambda p: (os.chown(p.parent, 0, NOBODY), p.parent.chmod(0o770)),
        "others may write .*0770",
    ),
}


def refused(planted, attack, words, tmp_path, caplog):
    attack(planted)
    with caplog.at_level(logging.WARNING):
        assert kernel.loaded(str(planted.parent)) is None
    assert not (tmp_path / "executed").exists()
    (record,) = caplog.records
    line = record.getMessage()
    assert re.search(words, line)
    assert line.startswith("the compiled kernel is not used: ")
    assert "\n" not in line
    layer = SyntheticAttention(12, 3, 7, "random+dot", path="fast")
    assert layer(torch.zeros(2, 7, 12)).shape == (2, 7, 12)  # torch's blocks take over


@needs_compiler
@pytest.mark.parametrize("name", ATTACKS)
def test_a_library_that_others_could_have_put_there_is_not_loaded(name, planted, tmp_path, caplog):
    refused(planted, *ATTACKS[name], tmp_path, caplog)


@needs_root
@needs_compiler
@pytest.mark.parametrize("name", GIVEN_AWAY)
def test_a_library_of_another_user_is_not_loaded(name, planted, tmp_path, caplog):
    refused(planted, *GIVEN_AWAY[name], tmp_path, caplog)


@needs_compiler
def test_a_link_that_is_exchanged_after_the_check_leads_nowhere(planted, tmp_path, monkeypatch):
    """The cache is a link in a folder of everybody, turned to another library in the midst."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    mine, theirs = planted.parent, planted.parent.with_name("theirs")
    shutil.copytree(mine, theirs)
    exchanged(theirs / planted.name)
    digest = kernel._digest_path(theirs / planted.name)
    digest.write_text(hashlib.sha256((theirs / planted.name).read_bytes()).hexdigest())
    (shared / "cache").symlink_to(mine)

    def check_then_exchange(path):
        found = who_else_may_write(path)
        (shared / "cache").unlink()
        (shared / "cache").symlink_to(theirs)
        return found

    monkeypatch.setattr(kernel, "who_else_may_write", check_then_exchange)
    handle = kernel._open_checked(shared / "cache" / planted.name)
    assert os.fstat(handle).st_ino == planted.stat().st_ino
    os.close(handle)


@needs_compiler
def test_nothing_is_built_where_others_may_write(tmp_path, monkeypatch):
    home = tmp_path / "cache"
    home.mkdir()
    home.chmod(0o777)
    monkeypatch.setenv(kernel.HOME, str(home))
    with pytest.raises(UserError, match=r"the kernel is not built: others may write .*0777"):
        kernel.build()
    assert not any(home.iterdir())


@pytest.fixture
def quick_builds(monkeypatch):
    """Who may write a library is the same of one that is slow."""
    monkeypatch.setattr(kernel, "FLAGS", QUICK)


@needs_compiler
@pytest.mark.usefixtures("quick_builds")
def test_building_does_not_write_through_a_link(tmp_path, monkeypatch):
    home, victim = tmp_path / "cache", tmp_path / "victim"
    home.mkdir(mode=0o700)
    victim.write_text("mine")
    monkeypatch.setenv(kernel.HOME, str(home))
    path = kernel.built_path(str(home))
    for name in (path, kernel._digest_path(path)):
        name.symlink_to(victim)
    assert kernel.build() == path
    assert victim.read_text() == "mine"
    assert not path.is_symlink()
    (home / ".kernel.lock").unlink()
    (home / ".kernel.lock").symlink_to(victim)
    with pytest.raises(UserError, match=r"cannot write .*cache"):
        kernel.build()


@needs_compiler
@pytest.mark.usefixtures("quick_builds")
def test_what_is_built_is_private_whatever_the_umask(tmp_path, monkeypatch):
    monkeypatch.setenv(kernel.HOME, str(tmp_path / "cache"))
    before = os.umask(0)
    try:
        path = kernel.build()
    finally:
        os.umask(before)
    assert who_else_may_write(path) is None
    assert path.parent.stat().st_mode & 0o777 == 0o700
    kernel.loaded.cache_clear()
    assert kernel.loaded(str(path.parent)) is not None
    kernel.loaded.cache_clear()


@pytest.mark.slow
@needs_compiler
def test_processes_that_build_at_once_leave_one_kernel_that_loads(tmp_path, monkeypatch):
    home = tmp_path / "cache"
    env = {**environment(), kernel.HOME: str(home)}
    monkeypatch.setattr(kernel, "FLAGS", QUICK)
    script = "from synthesizer_attention.kernels import cpu as kernel; import sys;" \
        f"kernel.FLAGS = {QUICK};" \
        "path = kernel.build(); sys.exit(kernel.loaded(str(path.parent)) is None)"  # fmt: skip
    many = [subprocess.Popen([sys.executable, "-c", script], env=env) for _ in range(2)]
    assert [process.wait(200) for process in many] == [0, 0]
    names = sorted(path.name for path in home.iterdir())
    library = kernel.built_path(str(home)).name
    assert names == [".kernel.lock", library, f"{library}.sha256"]


@needs_compiler
@pytest.mark.usefixtures("quick_builds")
def test_a_whole_kernel_is_not_built_again(tmp_path, monkeypatch):
    monkeypatch.setenv(kernel.HOME, str(tmp_path / "cache"))
    path = kernel.build()
    first = path.stat()
    assert kernel.build().stat() == first
    exchanged(path)
    assert kernel.build().stat().st_ino != first.st_ino


def test_a_sticky_folder_above_is_fine_and_a_shared_group_is_not(tmp_path):
    own = tmp_path / "shared" / "own"
    own.mkdir(parents=True, mode=0o700)
    (tmp_path / "shared").chmod(0o1777)
    assert who_else_may_write(own) is None
    (own / "file").write_text("")
    (own / "file").chmod(0o600)
    assert who_else_may_write(own / "file") is None
    (tmp_path / "shared").chmod(0o777)
    assert "shared" in who_else_may_write(own)


def entry(number):
    return Entry({"ids": np.full(3, number)}, {"number": number})


@pytest.fixture(autouse=True)
def _look_again():
    cache._is_own.cache_clear()


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_encoded_data_of_a_shared_folder_are_neither_believed_nor_replaced(tmp_path, caplog, mode):
    home = tmp_path / "cache"
    fetch(home, "key", lambda: entry(666))
    poisoned = (home / "key.npz").read_bytes()
    home.chmod(mode)
    cache._is_own.cache_clear()
    for _ in range(2):
        assert fetch(home, "key", lambda: entry(1)).meta == {"number": 1}
    assert [path.name for path in home.iterdir()] == ["key.npz"]
    assert (home / "key.npz").read_bytes() == poisoned
    (record,) = caplog.records  # told once
    assert record.getMessage().startswith(
        f"the cache of encoded data is not used: others may write {home} (mode {mode:04o}); "
    )


@needs_root
def test_encoded_data_of_another_user_are_built_again(tmp_path):
    home = tmp_path / "cache"
    fetch(home, "key", lambda: entry(666))
    chown(home / "key.npz")
    assert fetch(home, "key", lambda: entry(1)).meta == {"number": 1}
    assert fetch(home, "key", lambda: entry(2)).meta == {"number": 1}


def test_a_new_cache_is_this_users_alone(tmp_path):
    fetch(tmp_path / "cache", "key", lambda: entry(1))
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
