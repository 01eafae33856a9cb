import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import synthesizer_attention
from synthesizer_attention.data.cache import (
    Entry,
    cache_folder,
    cache_key,
    fetch,
    hash_code,
)
from synthesizer_attention.errors import UserError


class Builder:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return Entry({"ids": np.arange(1000, dtype=np.int32)}, {"text": "Grüße", "n": self.calls})


def test_the_second_time_is_read_not_built(tmp_path):
    build = Builder()
    first, second = (fetch(tmp_path, "key", build) for _ in range(2))
    assert build.calls == 1
    np.testing.assert_array_equal(first.arrays["ids"], second.arrays["ids"])
    assert first.meta == second.meta


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text"])
def test_a_damaged_entry_is_built_again(tmp_path, damage):
    build = Builder()
    fetch(tmp_path, "key", build)
    (path,) = tmp_path.glob("*.npz")
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    path.write_bytes({"cut": content[:300], "empty": b"", "text": b"no", "flip": content}[damage])
    entry = fetch(tmp_path, "key", build)
    assert build.calls == 2
    np.testing.assert_array_equal(entry.arrays["ids"], np.arange(1000))
    assert fetch(tmp_path, "key", build).meta["n"] == 2


def test_nothing_half_written_is_left_behind(tmp_path):
    fetch(tmp_path, "key", Builder())
    assert [path.name for path in tmp_path.iterdir()] == ["key.npz"]


def test_a_key_changes_with_each_part():
    assert cache_key("a", "b") != cache_key("a", "c") != cache_key("ab")


@pytest.mark.parametrize("folder", ["data", "metrics", "tasks"])
def test_a_key_changes_with_every_file_that_makes_the_content(tmp_path, folder):
    """A stale entry once served the vectors and bigram scores of code that had changed."""
    for part in ("data", "metrics", "tasks"):
        shutil.copytree(Path(synthesizer_attention.__file__).parent / part, tmp_path / "a" / part)
    before = hash_code(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert hash_code(tmp_path / "b") == before
    changed = sorted(path for path in (tmp_path / "b" / folder).iterdir() if path.suffix)
    for number, path in enumerate(changed):
        copy = tmp_path / f"c{number}"
        shutil.copytree(tmp_path / "b", copy)
        with (copy / folder / path.name).open("a") as file:
            file.write("\n")
        assert hash_code(copy) != before, path


def test_what_encodes_and_scores_lies_where_the_key_looks():
    """A task may reach only into these folders, the recipe (part of the key) and errors."""
    package = Path(synthesizer_attention.__file__).parent
    found = set()
    for part in ("data", "metrics", "tasks"):
        for path in (package / part).rglob("*.py"):
            found |= set(
                re.findall(r"(?:from|import) synthesizer_attention\.(\w+)", path.read_text())
            )
    assert found <= {"data", "metrics", "tasks", "run", "errors", "untrusted"}


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="set SYNTHESIZER_CACHE to a directory that can be"):
        fetch(tmp_path / "file" / "cache", "key", Builder())


def test_the_folder_is_the_one_named(monkeypatch, tmp_path):
    monkeypatch.setenv("SYNTHESIZER_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("SYNTHESIZER_CACHE")
    assert cache_folder().name == "synthesizer"
