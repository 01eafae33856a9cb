import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synthesizer_attention.data.files import File, looks_like_header
from synthesizer_attention.data.files import read_files as read_opened_files
from synthesizer_attention.data.sources import data_folder, open_source
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe_keys import Data

ROWS = [{"en": "a cat", "de": "eine Katze"}, {"en": "two dogs", "de": "zwei Hunde"}]


def read_files(paths, **options):
    return read_opened_files([File(path) for path in paths], **options)


def fields(path, **options):
    return [row.fields for row in read_files((path,), **options)]


def test_parquet_jsonl_csv_and_tsv_hold_the_same_rows(tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS))
    (tmp_path / "a.csv").write_text('en,de\n"a cat",eine Katze\ntwo dogs,zwei Hunde\n')
    (tmp_path / "a.tsv").write_text("en\tde\na cat\teine Katze\ntwo dogs\tzwei Hunde\n")
    for suffix in ("parquet", "jsonl", "csv", "tsv"):
        assert fields(tmp_path / f"a.{suffix}") == ROWS


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("quote.tsv", 'text\tlabel\n"so" it\t1\n', [{"text": '"so" it', "label": "1"}]),
        ("lines.csv", 'text,label\n"one\ntwo, a",1\n', [{"text": "one\ntwo, a", "label": "1"}]),
        ("b.tsv", "Go.\tGeh.\nHi!\tHe!\n", [{"1": "Go.", "2": "Geh."}, {"1": "Hi!", "2": "He!"}]),
        ("pandas.csv", ",text,label\n0,a,pos\n", [{"index": "0", "text": "a", "label": "pos"}]),
        ("semicolon.csv", 'text;label\n"good; film";pos\nbad, too;neg\n',
         [{"text": "good; film", "label": "pos"}, {"text": "bad, too", "label": "neg"}]),
        ("comma.csv", "text\na; b\n", [{"text": "a; b"}]),
        ("bom.csv", "\ufefftext,label\nx,1\n", [{"text": "x", "label": "1"}]),
        ("book.txt", "one\ntwo\n\n\nthree\n", [{"text": "one\ntwo"}, {"text": "three"}]),
        ("lines.txt", "one\ntwo\n", [{"text": "one"}, {"text": "two"}]),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value[-5:] else "",
)  # fmt: skip
def test_what_a_file_holds(tmp_path, name, content, rows):
    (tmp_path / name).write_text(content)
    assert fields(tmp_path / name) == rows


def test_a_first_row_of_plain_distinct_words_is_a_header_unless_it_is_said(tmp_path):
    assert looks_like_header(["review text", "stars"])
    for cells in (["5", "great"], ["same", "same"], ["", "0"]):
        assert not looks_like_header(cells)
    (tmp_path / "a.csv").write_text("good,bad\nworse,best\n")
    assert len(fields(tmp_path / "a.csv", header=False)) == 2
    assert len(fields(tmp_path / "a.csv", header=True)) == 1


def test_a_folder_is_a_document_per_file(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.txt").write_text("inside\n\nstill")
    (tmp_path / "a.md").write_text("first")
    (tmp_path / ".hidden").write_text("no")
    assert [row["text"] for row in fields(tmp_path)] == ["first", "inside\n\nstill"]


def test_parallel_text_files_pair_line_by_line(tmp_path):
    """Splitting at U+2028 or a lone carriage return would move every later pair."""
    en, de = tmp_path / "train.en", tmp_path / "train.de"
    en.write_bytes("a\u2028b\rc\nd\ne\n".encode())
    de.write_text("eins\r\nzwei", newline="")
    *pairs, last = read_files((en, de))
    wanted = [{"en": "a\u2028b\rc", "de": "eins"}, {"en": "d", "de": "zwei"}]
    assert [row.fields for row in pairs] == wanted
    assert (last.file, last.number) == (str(en), 3)
    assert last.fault.endswith("train.de has no such line; the files must pair line by line")


def test_bad_lines_become_rows_with_a_fault(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\nnot json\n[1]\n')
    rows = list(read_files((tmp_path / "a.jsonl",)))
    assert [row.fault for row in rows] == [None, "not valid JSON", "not a JSON object"]
    assert [row.number for row in rows] == [1, 2, 3]
    (tmp_path / "a.csv").write_text("a,b\n1,2\n1\n1,2,3\n")
    faults = [row.fault for row in read_files((tmp_path / "a.csv",))]
    assert faults == [None, "1 fields where 2 are expected", "3 fields where 2 are expected"]


def test_two_readers_of_one_file_do_not_disturb_each_other(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(5000)))
    source = open_source(Data(train=str(tmp_path / "a.txt")), None)
    one, other = source.splits["train"](), source.splits["train"]()
    ahead = [next(one) for _ in range(3000)]
    pairs = list(zip(one, other, strict=False))
    assert ahead[-1].fields == {"text": "line 2999"}
    assert [(a.number, b.number) for a, b in pairs] == [(n + 3000, n) for n in range(1, 2001)]
    assert len(list(source.splits["train"]())) == 5000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.xlsx", b"", "cannot read .*a.xlsx; expected .parquet, .jsonl, .json, .csv, .tsv, .txt"),
        ("a.parquet", b"no", "a.parquet is not a readable parquet file"),
        ("a.csv", b"", "a.csv is empty; expected rows"),
        ("a.csv", "text,label\n".encode("utf-16"), r"a\.csv is UTF-16; save it as UTF-8"),
        ("a.csv", "\ufefftext,label\n".encode("utf-16-be"), r"a\.csv is UTF-16; save it"),
    ],
)
def test_an_unreadable_file_says_what_was_expected(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(read_files((tmp_path / name,)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"train": "/dev/zero"}, "/dev/zero is not a regular file; copy what it gives"),
        ({"train": "none.csv"}, r"none.csv does not exist; check"),
        ({}, r"names no data; set data.train to a file"),
        ({"builtin": "shifty"}, r"unknown corpus 'shifty'; choose data.builtin from"),
    ],
)
def test_data_that_are_not_there_are_refused(data, message):
    with pytest.raises(UserError, match=message):
        open_source(Data(**data), None)


def test_a_local_copy_comes_before_the_hub(tmp_path):
    place = tmp_path / "glue_cola"
    place.mkdir()
    for split in ("train", "validation"):
        pq.write_table(pa.Table.from_pylist([{"sentence": split}]), place / f"{split}.parquet")
    source = open_source(Data(hub="nyu-mll/glue", config="cola"), tmp_path)
    assert source.origin == "local copy glue_cola"
    assert list(source.splits) == ["train", "validation"]
    named = Data(hub="x/y", local=("none", "glue_cola"), splits={"test": "validation"})
    source = open_source(named, tmp_path)
    assert [row.fields["sentence"] for row in source.splits["test"]()] == ["validation"]


def test_a_split_of_several_files_is_read_in_order(tmp_path):
    place = tmp_path / "set"
    place.mkdir()
    for number in range(2):
        pq.write_table(
            pa.Table.from_pylist([{"text": str(number)}]),
            place / f"train-0000{number}-of-00002.parquet",
        )
    pq.write_table(pa.Table.from_pylist([{"text": "x"}]), place / "train_extra.parquet")
    source = open_source(Data(local=str(place)), None)
    assert [row.fields["text"] for row in source.splits["train"]()] == ["0", "1"]


def test_an_unreachable_hub_names_the_files_that_would_serve(monkeypatch, tmp_path):
    import datasets

    def unreachable(*args, **options):
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(UserError) as error:
        open_source(Data(hub="nyu-mll/glue", config="cola"), tmp_path)
    assert str(error.value).startswith("cannot load nyu-mll/glue cola from the hub (Couldn't reach")
    assert f"{tmp_path}/glue_cola/{{train,validation,test}}.parquet" in str(error.value)


def test_a_revision_of_a_hub_set_is_asked_for_and_is_other_data(monkeypatch):
    import datasets

    asked = []

    def load(*names, **options):
        asked.append((names, options["revision"]))
        return datasets.DatasetDict({"train": datasets.Dataset.from_list([{"text": "a"}])})

    monkeypatch.setattr(datasets, "load_dataset", load)
    plain = open_source(Data(hub="some/set"), None)
    other = open_source(Data(hub="some/set", revision="refs/convert/parquet"), None)
    assert asked == [(("some/set", None), None), (("some/set", None), "refs/convert/parquet")]
    assert plain.fingerprint != other.fingerprint


def test_a_hub_set_is_read_by_its_own_split_names(monkeypatch):
    import datasets

    loaded = datasets.DatasetDict(
        {
            "train": datasets.Dataset.from_list([{"text": "a"}, {"text": "b"}]),
            "dev": datasets.Dataset.from_list([{"text": "c"}]),
        }
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: loaded)
    source = open_source(Data(hub="some/set", splits={"validation": "dev"}), None)
    assert list(source.splits) == ["train", "validation"]
    rows = list(source.splits["train"]())
    assert [(row.file, row.number, row.fields["text"]) for row in rows] == [
        ("some/set train", 1, "a"),
        ("some/set train", 2, "b"),
    ]
    with pytest.raises(UserError, match="has the splits train, dev and no 'training'"):
        open_source(Data(hub="some/set", splits={"train": "training"}), None)


def test_the_fingerprint_follows_the_content(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\nx,1\n")
    before = open_source(Data(train=str(path)), None).fingerprint
    assert open_source(Data(train=str(path)), None).fingerprint == before
    path.write_text("text,label\ny,1\n")
    assert open_source(Data(train=str(path)), None).fingerprint != before


def test_a_wrong_data_folder_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("SYNTHESIZER_DATA", str(tmp_path / "none"))
    with pytest.raises(UserError, match=r"SYNTHESIZER_DATA is .*none, which is not a directory"):
        data_folder()
