"""What the paper reports: printed as published, and named as the recipes name it."""

import tomllib
from importlib import resources

from synthesizer_attention.metrics.glue import GLUE
from synthesizer_attention.report.tables import COLUMNS, paper_tables
from synthesizer_attention.run.recipe import load_recipe, paper, recipe_names
from synthesizer_attention.spec import normalize_spec
from synthesizer_attention.study.rows import make_row, size_control


def test_published_numbers_are_printed_as_published():
    (ours, rerun) = paper_tables("mt-wmt14-ende", ["dot", "random"])
    rows = {row[0]: row[1:] for row in ours.rows}
    assert rows["Synthesizer Factorized Random"] == ("\N{EN DASH}", "61M", "27.30")
    assert rows["Synthesizer Random"] == ("random", "67M", "27.27")
    assert "transcription" in ours.source
    assert "Narang" in rerun.source


def test_the_control_of_a_study_stands_beside_the_papers():
    recipe = load_recipe("tiny-wikitext2")
    control = size_control(make_row("dot", {}, recipe), recipe).label
    (ours, _) = paper_tables("mt-wmt14-ende", ["dot", "random+dot", control])
    rows = {row[0]: row[1] for row in ours.rows}
    assert rows["Transformer (Control)"] == control == "dot, as large as random+dot"
    assert rows["Transformer (our run)"] == "dot"


def test_of_the_linformer_comparison_what_is_known_is_shown():
    (table,) = paper_tables("classification-agnews", ["dot", "linformer"])
    assert [row[-1] for row in table.rows] == ["89.1"]
    assert "nor the rest of the table is known" in table.notes[0]


def test_the_mixture_has_the_papers_columns_in_its_order():
    heads = list(COLUMNS["text_to_text"])
    printed = [head.removeprefix("SuperGLUE ").removeprefix("GLUE ") for head in heads]
    known = [paper()["tables"][name]["columns"].values() for name in ("glue", "superglue")]
    assert printed == [*known[0], *known[1]]
    assert heads[:3] == ["GLUE", "GLUE CoLA", "GLUE SST"]
    keys = [key for keys in COLUMNS["text_to_text"].values() for key in keys]
    assert {f"glue_{task}_{name}" for task in GLUE for name in GLUE[task]} - {*keys} == {
        "glue_wnli_accuracy"
    }


def test_every_paper_key_and_every_column_is_known():
    stored = tomllib.loads((resources.files("synthesizer_attention") / "paper.toml").read_text())
    keys = {load_recipe(name).paper for name in recipe_names()} - {None}
    assert keys <= set(stored["recipes"])
    for choices in stored["recipes"].values():
        for choice in choices:
            columns = stored["tables"][choice["table"]]["columns"]
            assert set(choice.get("columns", [])) <= set(columns)
    for table in stored["tables"].values():
        assert table["source"] in stored["sources"]
        for row in table["rows"]:
            assert set(row) - {"name", "synthesis", "label"} <= set(table["columns"])
            assert normalize_spec(row.get("synthesis", "dot"))
