"""Data on disk: memory holds a chunk, the rest is mapped."""

import mmap

import numpy as np
import pytest

from synthesizer_attention.data import cache, prepare
from synthesizer_attention.data.cache import CHUNK, Entry, Numbers, RaggedWriter, Table, fetch
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe import load_recipe
from synthesizer_attention.tasks import build_task


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
    assert [*table.column(0)] == [text for text, _ in rows]
    assert [*table.column(0, step=7)] == [text for text, _ in rows][::7]
    chosen = np.array([label == "1" for _, label in rows])
    chosen[:CHUNK] = False  # a chunk of which nothing is left
    kept = table.take(chosen)
    assert [*kept.column(0)] == [text for (text, _), keep in zip(rows, chosen, strict=True) if keep]
    assert len(Table.of([])) == 0
    buffer = kept._batches[0].column(0).buffers()[2]
    assert len(kept) * 5 < kept.num_bytes(0)
    assert buffer.parent is not None or not buffer.is_mutable


def test_the_arrays_of_a_task_are_mapped_and_aligned(tmp_path, monkeypatch):
    monkeypatch.setenv("SYNTHESIZER_CACHE", str(tmp_path / "other"))
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"one {n}\tzwei {n}\n" for n in range(300)))
    recipe = load_recipe("translation", overrides=[f"data.train={path}", "text.vocab_size=300"])
    for _ in range(2):  # as it is made, and from the cache
        arrays = build_task(recipe)._arrays
        for name in ("train.source.flat", "train.source.offsets", "train.target.flat"):
            assert is_mapped(arrays[name]), name
            assert arrays[name].flags.aligned
            assert not arrays[name].flags.writeable


def test_every_shape_and_type_is_stored(tmp_path):
    arrays = {
        "none": np.empty((0, 3), np.float32),
        "one": np.array(5),
        "many": np.arange(24, dtype=np.int16).reshape(2, 3, 4),
        "turned": np.arange(6.0).reshape(2, 3).T,
    }
    entry = fetch(tmp_path, "key", lambda: Entry(arrays, {"a": 1}))
    for name, array in arrays.items():
        np.testing.assert_array_equal(entry.arrays[name], array)
        assert entry.arrays[name].dtype == array.dtype


def test_pieces_of_much_text_are_learned_from_a_sample_and_the_report_says_so(
    tmp_path, monkeypatch
):
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"word{n % 7} a{n},{n % 2}\n" for n in range(400)))
    changes = [f"data.train={path}", "text.vocab_size=300", "text.kind=bpe"]
    whole = build_task(load_recipe("classification", overrides=changes))
    assert "tokenizer_sample" not in whole.report
    monkeypatch.setattr(prepare, "MOST_PIECES", 2_000)
    monkeypatch.setattr(prepare, "PER_PIECE", 1)
    monkeypatch.setenv("SYNTHESIZER_CACHE", str(tmp_path / "other"))
    sampled = build_task(load_recipe("classification", overrides=changes))
    assert sampled.report["tokenizer_sample"].startswith("1 of ")
    words = build_task(load_recipe("classification", overrides=[*changes, "text.kind=word"]))
    assert "tokenizer_sample" not in words.report


def test_a_full_disk_is_one_line(monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.tempfile, "TemporaryFile", full)
    with pytest.raises(UserError, match=r"cannot write encoded data to .* \(No space left on dev"):
        Numbers(np.int32)


def test_a_cache_that_may_not_be_written_is_no_question_of_space(tmp_path, monkeypatch):
    def forbidden(*_, **__):
        raise OSError(13, "Permission denied")

    entry = Entry({"a": np.arange(3)}, {})
    folder = tmp_path / "cache"
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.mkdir", forbidden)
        with pytest.raises(UserError) as refused:
            fetch(folder, "key", lambda: entry)
    advice = "(Permission denied); set SYNTHESIZER_CACHE to a directory that can be written"
    assert str(refused.value) == f"cannot make the cache {folder} {advice}"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr("synthesizer_attention.run.run.os.replace", forbidden)
    with pytest.raises(UserError) as refused:
        fetch(folder, "key", lambda: entry)
    assert str(refused.value) == f"cannot write {folder / 'key.npz'} {advice}"
