import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synthesizer_attention.data.columns import (
    BadRow,
    Faults,
    cut_splits,
    hash_text,
    infer_columns,
    infer_labels,
    label_number,
    label_of,
    read_rows,
    text_of,
    texts_of,
)
from synthesizer_attention.data.files import Row
from synthesizer_attention.errors import UserError


def row(**fields):
    return Row("file.csv", 7, fields)


def rows(*values):
    return [Row("file.csv", number, fields) for number, fields in enumerate(values, start=1)]


@pytest.mark.parametrize(
    ("sample", "roles", "given_columns", "found"),
    [
        ([{"id": "1", "Text": "long", "Label": "x"}], ("text", "label"), {}, ["Text", "Label"]),
        ([{"said": f"opinion {i}", "kind": "ab"[i % 2]} for i in range(20)], ("text", "label"), {},
         ["said", "kind"]),
        ([{"Deutsch": "ja", "English": "yes"}], ("source", "target"), {}, ["English", "Deutsch"]),
        ([{"text": "a", "title": "b", "label": "x"}], ("text", "label"), {"text": "title"},
         ["title", "label"]),
        ([{"id": 1, "translation": {"fr": "oui", "en": "yes"}}], ("source", "target"), {},
         ["translation.en", "translation.fr"]),
    ],
    ids=["known names", "what they hold", "languages", "given", "a record in a record"],
)  # fmt: skip
def test_columns_are_found(sample, roles, given_columns, found):
    assert infer_columns(rows(*sample), roles, given_columns) == dict(
        zip(roles, found, strict=True)
    )


@pytest.mark.parametrize(
    ("given_columns", "message"),
    [
        ({"text": "body"}, "data.columns.text is 'body'; the data has the columns text, a.b"),
        ({"txt": "text"}, "data.columns names the role 'txt'; this task has text, label"),
        ({"text": "text", "label": "a.c"}, "data.columns.label is 'a.c'; the data has the columns"),
    ],
)
def test_a_wrong_column_is_an_error(given_columns, message):
    with pytest.raises(UserError, match=message):
        infer_columns(rows({"text": "a", "a": {"b": 1}}), ("text", "label"), given_columns)
    with pytest.raises(UserError, match=r"no column for the role 'target' among text"):
        infer_columns(rows({"text": "a"}), ("source", "target"), {})


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({}, "column 'text' is missing"),
        ({"text": None}, "column 'text' is empty"),
        ({"text": "  "}, "column 'text' is empty"),
        ({"text": 3}, "column 'text' holds int, not text"),
        ({"text": "caf\udce9"}, "column 'text' is not UTF-8"),
    ],
)
def test_a_bad_field_has_a_cause(fields, cause):
    with pytest.raises(BadRow, match=cause):
        text_of(row(**fields), "text")


def test_a_dotted_column_looks_into_a_struct_or_a_flat_copy():
    assert text_of(row(translation={"en": "yes"}), "translation.en") == "yes"
    assert text_of(row(en="yes"), "translation.en") == "yes"
    with pytest.raises(BadRow, match=r"column 'translation.fr' is missing"):
        text_of(row(translation={"en": "yes"}), "translation.fr")


def test_lists_of_text_are_joined_or_kept():
    assert text_of(row(source=["a", "b"]), "source") == "a b"
    assert texts_of(row(turns=["a ", "", "b"]), "turns") == ["a", "b"]
    with pytest.raises(BadRow, match="holds str, not a list of texts"):
        texts_of(row(turns="a"), "turns")


def test_the_first_bad_row_stops_with_file_row_and_cause():
    with pytest.raises(UserError) as error:
        list(read_rows([row(text="")], lambda one: text_of(one, "text"), Faults(skip=False)))
    assert str(error.value) == (
        "file.csv, row 7: column 'text' is empty; fix the row, or set data.skip_bad=true to leave "
        "such rows out and have them counted (1 of 1 rows, 100.0%)"
    )


def test_the_error_says_how_many_rows_are_bad_and_does_not_wait_for_an_end_that_never_comes():
    bad = [row(text="x"), row(text=""), row(text="x"), row(text=" ")]
    with pytest.raises(UserError, match=r"row 7: .* counted \(2 of 4 rows, 50.0%\)"):
        list(read_rows(bad, lambda one: text_of(one, "text"), Faults(skip=False)))
    streamed = read_rows(bad, lambda one: text_of(one, "text"), Faults(skip=False, endless=True))
    assert next(streamed) == "x"
    with pytest.raises(UserError, match=r"have them counted$"):
        next(streamed)


def test_a_label_is_one_value():
    with pytest.raises(BadRow, match="column 'labels' holds a list; expected one label a row"):
        label_of(row(labels=["a", "b"]), "labels")


def test_skipped_rows_are_counted_by_cause():
    faults = Faults(skip=True)
    bad = [row(text=""), row(), Row("f", 1, {}, "not valid JSON"), row(text="good"), row(text="")]
    assert list(read_rows(bad, lambda one: text_of(one, "text"), faults)) == ["good"]
    assert faults.counts == {
        "column 'text' is empty": 2,
        "column 'text' is missing": 1,
        "not valid JSON": 1,
    }


def test_labels_are_sorted_as_numbers_or_words():
    assert infer_labels(["10", "9", "10"], "label") == ("9", "10")
    assert infer_labels(["b", "a", "10"], "label") == ("10", "a", "b")
    assert label_of(row(label=1.0), "label") == "1"


def test_a_label_is_a_name_or_its_number():
    labels = ("World", "Sports")
    assert label_number("Sports", labels, "label") == 1
    assert label_number("0", labels, "label") == 0
    for unknown in ("2", "-1", "Weather"):
        with pytest.raises(BadRow, match=f"unknown label '{unknown}' in column 'label'"):
            label_number(unknown, labels, "label")


def test_too_many_or_too_few_labels_are_an_error():
    with pytest.raises(UserError, match="'id' has over 1,000 different values; expected classes"):
        infer_labels(map(str, range(2000)), "id")
    with pytest.raises(UserError, match="'x' has 1 label; a classifier needs two or more"):
        infer_labels(["a", "a"], "x")


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 60), st.floats(0.01, 0.3))
def test_cut_splits_are_disjoint_never_empty_and_leave_train(count, share):
    keys = [str(number) for number in range(count)]
    cut = cut_splits(b"".join(map(hash_text, keys + keys)), ["validation", "test"], share).tolist()
    assert cut[:count] == cut[count:]
    assert cut.count(1) == cut.count(2) >= 2
    assert cut.count(0) >= 2
    # the order of the hashes decides
    in_order = [split for _, split in sorted(zip(map(hash_text, keys), cut, strict=False))]
    assert in_order == sorted(in_order, key=lambda split: split or 3)


def test_each_split_may_have_a_share_of_its_own():
    hashes = b"".join(hash_text(str(number)) for number in range(200))
    cut = cut_splits(hashes, ["validation", "test"], {"validation": 0.1, "test": 0.25})
    assert np.bincount(cut).tolist() == [130, 20, 50]
    assert ((cut == 1) == (cut_splits(hashes, ["validation", "test"], 0.1) == 1)).all()


def test_the_cut_follows_content_not_order():
    keys = [f"example {number}" for number in range(100)]
    hashes = [*map(hash_text, keys)]
    forward, backward = (
        cut_splits(b"".join(order), ["test"], 0.1).tolist() for order in (hashes, hashes[::-1])
    )
    assert forward == backward[::-1]


def test_too_few_examples_cannot_be_cut():
    with pytest.raises(UserError, match="2 different examples, too few to cut validation and test"):
        cut_splits(hash_text("a") + hash_text("b"), ["validation", "test"], 0.1)
    with pytest.raises(UserError, match="0 different examples, too few to cut test"):
        cut_splits(b"", ["test"], 0.1)
