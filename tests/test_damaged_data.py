"""A user's file that is cut, flipped or mixed up: its rows, or one line that names it."""

import json
import random
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synthesizer_attention.data.files import File
from synthesizer_attention.errors import UserError
from synthesizer_attention.study.guess import infer_recipe

ROWS = [
    {"text": f"some text, {n} " + "w\u00f6rd " * (n % 7), "label": n % 3, "turns": [{"de": "ja"}]}
    for n in range(200)
]


def write(folder, name):
    """A good file: its suffix, and for parquet how it is packed."""
    path = folder / name
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path, compression=path.stem, row_group_size=80)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    else:
        between = "\t" if path.suffix == ".tsv" else ","
        lines = [f'"{row["text"]}"{between}{row["label"]}\n' for row in ROWS]
        path.write_text("".join([f"text{between}label\n", *lines]), encoding="utf-8")
    return path


def damage(content, rng):
    """Some bytes flipped, cut out or put in, or the end cut off."""
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 5, 30])):
        place = rng.randrange(len(content))
        near_end = -1 - rng.randrange(min(len(content), 500))  # the directory of a parquet file
        kind = rng.randrange(6)
        if kind < 2:
            content[near_end if kind else place] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del content[place : place + rng.choice([1, 10, 1000])]
        elif kind == 3:
            content[place:place] = rng.randbytes(rng.choice([1, 8, 100]))
        elif kind == 4:
            content[place:place] = b'\xff\xfe\x00"\r\n\n'
        else:
            del content[place + 1 :]
        content = content or bytearray(b"\n")
    return bytes(content)


NAMES = [f"{packed}.parquet" for packed in ("none", "snappy", "gzip", "zstd", "brotli")]


@pytest.mark.parametrize("name", [*NAMES, "a.csv", "a.tsv", "a.jsonl", "a.txt"])
def test_a_damaged_file_gives_rows_or_one_line_that_names_it(tmp_path, name):
    path, rng = write(tmp_path, name), random.Random(name)
    good, refused = path.read_bytes(), []
    for _ in range(60):
        path.write_bytes(damage(good, rng))
        try:
            assert all(row.file == str(path) and row.number > 0 for row in File(path).rows())
        except UserError as error:
            refused.append(str(error))
    assert refused or path.suffix != ".parquet"
    for line in refused:
        assert line.startswith(str(path))
        assert "\n" not in line
        assert len(line) < len(str(path)) + 400


def test_the_line_says_how_far_a_damaged_file_was_read(tmp_path):
    path, read = tmp_path / "a.parquet", []
    table = pa.table({"text": [f"text {n} " * 50 for n in range(2000)]})
    pq.write_table(table, path, compression="none", use_dictionary=False, data_page_size=5000)
    content = bytearray(path.read_bytes())
    begin, end = len(content) // 2, len(content) * 3 // 4
    content[begin:end] = b"\xff" * (end - begin)
    path.write_bytes(content)
    with pytest.raises(UserError) as refused:
        read.extend(row.number for row in File(path).rows())
    assert f"{path} is not a readable parquet file behind row {read[-1]:,}: " in str(refused.value)


def test_a_parquet_row_that_python_cannot_read_is_a_bad_row(tmp_path):
    """Bytes that are not UTF-8, and a date beyond its calendar: the others are read."""
    texts = pa.array([b"good", b"\xff\xfe", b"good"]).view(pa.string())
    dates = pa.array([0, 0, 2**62]).view(pa.timestamp("us"))
    pq.write_table(pa.table({"text": texts, "date": dates}), tmp_path / "a.parquet")
    rows = list(File(tmp_path / "a.parquet").rows())
    assert [row.number for row in rows] == [1, 2, 3]
    assert rows[0].fields == {"text": "good", "date": datetime(1970, 1, 1)}
    assert [row.fault is not None and "cannot be read" in row.fault for row in rows[1:]] == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("name", "head", "line"),
    [
        ("blank.csv", "\n\ntext,label\n", "a b {0},x{1}\n"),
        ("european.csv", "\n\ntext;label\n", "a b {0};x{1}\n"),
        ("huge.csv", "text,label\n" + "word " * 200_000 + ",x\n", "a b {0},x{1}\n"),
        ("mixed.jsonl", '{"text": "b a", "label": "x"}\n', '{{"text": "a b {0}", "label": {1}}}\n'),
    ],
)
def test_what_is_odd_and_whole_is_read(tmp_path, name, head, line):
    lines = [head, *(line.format(n, n % 2) for n in range(20))]
    (tmp_path / name).write_text("".join(lines), encoding="utf-8")
    assert infer_recipe(str(tmp_path / name)).recipe == "classification"
