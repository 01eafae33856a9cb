"""What Windows lacks is not needed: simulated on Linux, since nobody has tested it there."""

import os
import re
import subprocess
import sys

import pytest

from synthesizer_attention.run.files import check_folder_name, portable, remove_leftovers
from synthesizer_attention.run.recipe import load_recipe
from synthesizer_attention.run.run import spec_folder
from synthesizer_attention.spec import has_logits, variants
from synthesizer_attention.study.rows import make_row, parse_row
from tiny import environment

LACKING = """
import builtins, pkgutil, signal, sys, types
from pathlib import Path

lacking = {"fcntl", "grp", "pwd", "resource"}
poor = types.SimpleNamespace(
    **{n: getattr(signal, n) for n in dir(signal) if n not in ("SIGKILL", "SIGHUP", "SIGUSR1")}
)
real = builtins.__import__


def import_as_windows(name, globals=None, *rest, **named):
    if (globals or {}).get("__name__", "").startswith("synthesizer_attention"):
        if name in lacking:
            raise ImportError(name)
        if name == "signal":
            return poor
    return real(name, globals, *rest, **named)


builtins.__import__ = import_as_windows
import synthesizer_attention

for module in pkgutil.walk_packages(synthesizer_attention.__path__, "synthesizer_attention."):
    if not module.name.endswith(("__main__", "triton_kernel")):
        __import__(module.name)
from synthesizer_attention.kernels.cpu import _alone_in

with _alone_in(Path(sys.argv[1])):
    print("alone")
"""


def test_no_module_needs_what_windows_lacks(tmp_path):
    (tmp_path / "home").mkdir(mode=0o700)
    command = [sys.executable, "-c", LACKING, str(tmp_path / "home")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "alone\n"), done.stderr


def specs():
    """Every variant alone, in layers, in a mixture and in groups of heads, and rows of settings."""
    for name in sorted(variants()):
        yield from (name, f"{name}*2")
        if has_logits(name) and name != "dot":
            yield from (f"{name}+dot", f"{name}@1|dot@1")
    yield from ("factorized_random:k=4", "random@train.lr=1e-3", 'dot@model.activation="relu"')
    yield "dot@train.lr=1."


def test_every_folder_of_a_row_can_be_made_on_windows(monkeypatch):
    monkeypatch.setattr("synthesizer_attention.run.files.WINDOWS", True)
    recipe, made = load_recipe("shift"), {}
    for text in specs():
        folder = make_row(*parse_row(text), recipe).folder
        assert not re.search(r'[<>:"/\\|?*\x00-\x1f]|[. ]$', folder), folder
        made.setdefault(folder, text)
    assert list(made.values()) == list(specs())  # no two share a folder


def test_elsewhere_folders_keep_the_names_that_studies_have():
    recipe = load_recipe("shift", synthesis="random*1,dot*1")
    assert spec_folder(recipe) == "random*1,dot*1"
    assert portable("random*1,dot*1") == "random#1,dot#1"


@pytest.mark.parametrize("name", ["con", "NUL.txt", "com1"])
def test_a_folder_is_not_called_like_a_device(monkeypatch, name):
    monkeypatch.setattr("synthesizer_attention.run.files.WINDOWS", True)
    assert check_folder_name(name, "it") == f"_{name}"


def test_a_leftover_of_a_process_is_not_asked_after_by_killing_it(tmp_path, monkeypatch):
    """os.kill(process, 0) ends it on Windows."""
    monkeypatch.setattr("synthesizer_attention.run.files.WINDOWS", True)
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("killed"))
    leftover = tmp_path / f".study.json.{os.getpid()}.partial"
    leftover.write_text("half")
    remove_leftovers(tmp_path)
    assert leftover.exists()
