"""Data on disk: memory holds a chunk, the rest is mapped, and damage is noticed."""

import mmap
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import synthesizer_attention
from synthesizer_attention.data import cache, prepare
from synthesizer_attention.data.cache import (
    CHUNK,
    Entry,
    Numbers,
    RaggedWriter,
    Table,
    cache_folder,
    cache_key,
    fetch,
    hash_code,
)
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe import load_recipe
from synthesizer_attention.tasks import build_task

PACKAGE = Path(synthesizer_attention.__file__).parent
PARTS = ("data", "metrics", "tasks")


class Builder:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return Entry({"ids": np.arange(1000, dtype=np.int32)}, {"text": "Grüße", "n": self.calls})


@pytest.mark.parametrize("damage", [None, "cut", "flip", "empty", "text"])
def test_an_entry_is_built_once_and_again_where_it_is_damaged(tmp_path, damage):
    build = Builder()
    fetch(tmp_path, "key", build)
    assert [path.name for path in tmp_path.iterdir()] == ["key.npz"], "nothing half written"
    path = tmp_path / "key.npz"
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    kinds = {"cut": content[:300], "empty": b"", "text": b"no"}
    path.write_bytes(kinds.get(damage, content))
    for _ in range(2):
        entry = fetch(tmp_path, "key", build)
        assert build.calls == (2 if damage else 1)
        np.testing.assert_array_equal(entry.arrays["ids"], np.arange(1000))
        assert entry.meta == {"text": "Grüße", "n": build.calls}


@pytest.mark.parametrize("folder", PARTS)
def test_a_key_changes_with_each_part_and_every_file_that_makes_the_content(tmp_path, folder):
    """A stale entry once served the vectors and bigram scores of code that had changed."""
    assert cache_key("a", "b") != cache_key("a", "c") != cache_key("ab")
    for part in PARTS:
        shutil.copytree(PACKAGE / part, tmp_path / "a" / part)
    before = hash_code(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert hash_code(tmp_path / "b") == before
    for path in sorted(each for each in (tmp_path / "b" / folder).iterdir() if each.suffix):
        content = path.read_bytes()
        path.write_bytes(content + b"\n")
        hash_code.cache_clear()
        assert hash_code(tmp_path / "b") != before, path
        path.write_bytes(content)


def test_what_encodes_and_scores_lies_where_the_key_looks():
    """A task may reach only into these folders, the recipe (part of the key) and errors."""
    found = set()
    for path in (path for part in PARTS for path in (PACKAGE / part).rglob("*.py")):
        found |= {*re.findall(r"(?:from|import) synthesizer_attention\.(\w+)", path.read_text())}
    assert found <= {*PARTS, "run", "errors"}


def test_the_folder_is_the_one_named(monkeypatch, tmp_path):
    monkeypatch.setenv("SYNTHESIZER_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("SYNTHESIZER_CACHE")
    assert cache_folder().name == "synthesizer"


def test_a_folder_or_disk_that_refuses_is_one_line(tmp_path, monkeypatch):
    def refuse(number, text):
        def refused(*_, **__):
            raise OSError(number, text)

        return refused

    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="set SYNTHESIZER_CACHE to a directory that can be"):
        fetch(tmp_path / "file" / "cache", "key", Builder())
    folder = tmp_path / "cache"
    advice = "(Permission denied); set SYNTHESIZER_CACHE to a directory that can be written"
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.mkdir", refuse(13, "Permission denied"))
        with pytest.raises(UserError) as error:
            fetch(folder, "key", Builder())
    assert str(error.value) == f"cannot make the cache {folder} {advice}"
    folder.mkdir(mode=0o700)
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", refuse(13, "Permission denied"))
        with pytest.raises(UserError) as error:
            fetch(folder, "key", Builder())
    assert str(error.value) == f"cannot write {folder / 'key.npz'} {advice}"
    monkeypatch.setattr(cache.tempfile, "TemporaryFile", refuse(28, "No space left on device"))
    with pytest.raises(UserError, match=r"cannot write encoded data to .* \(No space left on dev"):
        Numbers(np.int32)


def is_mapped(array):
    """Whether an array's memory is that of a file."""
    while isinstance(array, np.ndarray | memoryview):
        array = array.obj if isinstance(array, memoryview) else array.base
    return isinstance(array, mmap.mmap)


def test_numbers_and_lists_come_back_from_disk():
    numbers, lists = Numbers(np.int32), RaggedWriter()
    for begin in (0, 3):
        numbers.append(np.arange(begin, begin + 3))
        lists.append([[begin], [], [begin, begin + 1]])
    assert numbers.array().tolist() == [0, 1, 2, 3, 4, 5]
    found = lists.ragged()
    assert [found[n].tolist() for n in range(len(found))] == [[0], [], [0, 1], [3], [], [3, 4]]
    assert is_mapped(found.flat)
    assert is_mapped(found.offsets)
    assert Numbers(np.int32).array().tolist() == []


def test_a_table_is_columns_on_disk():
    rows = [(f"text {n} ü", str(n % 3)) for n in range(2 * CHUNK + 5)]
    table = Table.of(iter(rows))
    assert len(table) == len(rows)
    assert [row for chunk in table.chunks() for row in chunk] == rows
    assert [*table.column(0, step=7)] == [text for text, _ in rows][::7]
    chosen = np.array([label == "1" for _, label in rows])
    chosen[:CHUNK] = False  # a chunk of which nothing is left
    kept = table.take(chosen)
    assert [*kept.column(0)] == [text for (text, _), keep in zip(rows, chosen, strict=True) if keep]
    assert len(Table.of([])) == 0
    buffer = kept._batches[0].column(0).buffers()[2]
    assert len(kept) * 5 < kept.num_bytes(0)
    assert buffer.parent is not None or not buffer.is_mutable


def test_the_arrays_of_an_entry_are_mapped_and_aligned_whatever_their_shape(tmp_path):
    arrays = {
        "none": np.empty((0, 3), np.float32),
        "one": np.array(5),
        "many": np.arange(24, dtype=np.int16).reshape(2, 3, 4),
        "turned": np.arange(6.0).reshape(2, 3).T,
    }
    entry = fetch(tmp_path / "cache", "key", lambda: Entry(arrays, {"a": 1}))
    for name, array in arrays.items():
        np.testing.assert_array_equal(entry.arrays[name], array)
        assert entry.arrays[name].dtype == array.dtype
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"one {n}\tzwei {n}\n" for n in range(300)))
    recipe = load_recipe("translation", overrides=[f"data.train={path}", "text.vocab_size=300"])
    for _ in range(2):  # as it is made, and from the cache
        arrays = build_task(recipe)._arrays
        for name in ("train.source.flat", "train.source.offsets", "train.target.flat"):
            assert is_mapped(arrays[name]), name
            assert arrays[name].flags.aligned
            assert not arrays[name].flags.writeable


def test_pieces_of_much_text_are_learned_from_a_sample_and_the_report_says_so(
    tmp_path, monkeypatch
):
    path = tmp_path / "rows.tsv"
    path.write_text("source\ttarget\n" + "".join(f"word{n % 7} a{n}\tb\n" for n in range(200)))
    changes = [f"data.train={path}", "text.vocab_size=300", "text.kind=bpe"]
    assert (
        "tokenizer_sample" not in build_task(load_recipe("translation", overrides=changes)).report
    )
    monkeypatch.setattr(prepare, "MOST_PIECES", 1_000)
    monkeypatch.setattr(prepare, "PER_PIECE", 1)
    for kind, sampled in (("bpe", True), ("word", False)):
        changes[-1:] = [f"text.kind={kind}", "text.vocab_size=301"]
        report = build_task(load_recipe("translation", overrides=changes)).report
        assert ("tokenizer_sample" in report) == sampled
        assert not sampled or report["tokenizer_sample"].startswith("1 of ")
