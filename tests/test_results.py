"""What the committed comparisons say, judged anew from their records."""

import csv
import json
import runpy
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from synthesizer_attention.audit.cost import Point, most_heads, sentence
from synthesizer_attention.report.load import read_run
from synthesizer_attention.report.notes import notes
from synthesizer_attention.report.write import summarize_all, text_of
from synthesizer_attention.run.recipe import load_recipe
from synthesizer_attention.run.records import opened

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
STUDIES = sorted(path.stem for path in RESULTS.glob("*.zip"))


def verdicts(name):
    (summary,) = summarize_all([RESULTS / f"{name}.zip"])
    assert all(len(line.scores) == 3 for line in summary.lines)
    return {line.row.label: line.comparison.word for line in summary.lines if line.comparison}


def test_positions_solve_shift_whatever_dot_they_are_measured_by():
    words = verdicts("shift")
    assert words["random"] == words["random+dot"] == "no worse"
    assert words["none"] == "worse"
    (summary,) = summarize_all([RESULTS / "shift.zip"])
    assert "WEAK" not in "\n".join(notes(summary))  # sinusoids were searched beside two others


def test_a_table_fetches_as_many_distances_as_it_has_heads():
    (summary,) = summarize_all([RESULTS / "distance-copying.zip"])
    lines = {line.row.label: line for line in summary.lines}
    assert lines["random, difficulty 4"].mean > 99  # four heads
    assert lines["random, difficulty 8"].comparison.word == "worse"
    for name in ("dot", "random+dot"):
        assert lines[f"{name}, difficulty 8"].mean == 100


def test_recall_needs_content_so_random_is_worse_than_dot():
    words = verdicts("recall")
    assert words["random"] == words["dense"] == words["none"] == "worse"
    assert words["random+dot"] != "worse"


def test_grammar_ende_needs_self_attention_of_any_kind():
    (summary,) = summarize_all([RESULTS / "grammar-ende.zip"])
    lines = {line.row.label: line for line in summary.lines}
    assert summary.opponent.label == "dot, sinusoidal+rotary"
    assert summary.opponent.label in lines
    assert lines["dot"].mean >= 90
    assert lines["dot"].comparison.word == "worse"  # sinusoids alone: the opponent of older records
    assert lines["none"].mean <= 70
    assert lines["none"].comparison.word == "worse"
    assert lines["random"].comparison.word != "worse"
    assert "Without any network, a word-by-word dictionary" in "\n".join(notes(summary))


def test_pairs_of_sentences_need_dot_product():
    (summary,) = summarize_all([RESULTS / "pairs.zip"])
    assert summary.opponent.label == "dot, sinusoidal+relative, equal_qk_init=true"
    assert summary.answer.startswith("Yes: on paraphrases all 4 rows without dot product are worse")
    lines = {line.row.label: line for line in summary.lines}
    assert lines["random"].mean < lines["dot"].mean < lines["random+dot"].mean
    assert lines["dot, sinusoidal+relative"].comparison.word == "worse"  # drawn apart


def test_pairs_are_balanced_and_share_no_sentence_between_splits(tmp_path, monkeypatch):
    """Three sentences of each translation, one of which has a second translation."""
    table = {"en": [], "de": []}
    for number in range(300):
        table["en"] += [f"{word} {number % 7} is number {number}." for word in "abc"]
        table["de"] += [f"Zahl {number}"] * 3
    table["en"].append(table["en"][0])  # it stays with the first
    table["de"].append("Zahl 1")
    (tmp_path / "tatoeba_en_de").mkdir()
    pq.write_table(pa.table(table), tmp_path / "tatoeba_en_de" / "train.parquet")
    monkeypatch.setenv("SYNTHESIZER_DATA", str(tmp_path))
    path = ROOT / "tools" / "paraphrases.py"
    runpy.run_path(str(path))["main"](tmp_path / "pairs")
    seen = {}
    for split in ("train", "validation", "test"):
        with (tmp_path / "pairs" / f"{split}.csv").open(newline="") as file:
            rows = [(*row["text"].split(" || "), row["label"]) for row in csv.DictReader(file)]
        seen[split] = {sentence for row in rows for sentence in row[:2]}
        assert sum(label == "same" for *_, label in rows) == len(rows) / 2
        for first, second, label in rows:
            assert (first.split()[-1] == second.split()[-1]) == (label == "same")
    assert not seen["train"] & seen["test"]
    assert not seen["validation"] & (seen["train"] | seen["test"])
    assert load_recipe(tmp_path / "pairs" / "paraphrases.toml").name == "paraphrases"


@pytest.fixture(scope="module")
def folders():
    """Every packed study as a folder."""
    assert len(STUDIES) >= 30
    return [opened(RESULTS / f"{name}.zip") for name in STUDIES]


@pytest.mark.parametrize("name", STUDIES)
def test_the_report_beside_a_packed_study_is_what_its_records_say(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    written = text_of(summarize_all([Path("results") / f"{name}.zip"]))
    stale = f"run python tools/pack.py results/{name}.zip and commit results/{name}.md"
    assert written == (RESULTS / f"{name}.md").read_text(), stale


def test_every_committed_run_is_read_from_its_record_alone(folders):
    runs = [path.parent for folder in folders for path in folder.rglob("result.json")]
    assert len(runs) > 1000
    assert {str(run): trouble for run in runs if (trouble := read_run(run).trouble)} == {}


def test_records_come_from_clean_commits_but_for_those_the_page_names(folders):
    """Runs of a tree with uncommitted changes cannot be made again; old ones are listed."""
    named = (RESULTS / "README.md").read_text().split("uncommitted changes: ")[1].split(".")[0]
    for folder in folders:
        for path in folder.rglob("result.json"):
            dirty = json.loads(path.read_text())["commit"].endswith("-dirty")
            assert not dirty or f"`{folder.name}`" in named, path


def test_records_are_few_and_small():
    """Neither weights nor thousands of files: a clone is quick."""
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert len(files) <= 150
    assert sum(path.stat().st_size for path in files) < 45_000_000
    assert {path.name.split(".")[0] for path in RESULTS.glob("*.md")} == {*STUDIES, "README"}


def test_a_row_that_was_left_out_keeps_its_name():
    (summary,) = summarize_all([RESULTS / "grammar-ende-sinusoidal.zip"])
    (line,) = [line for line in summary.lines if line.row.label == "universal"]
    assert line.paper_name == "Universal Transformer"
    assert line.state.startswith("left out: universal=True with num_layers=1")


def test_the_audit_of_minilm_says_what_its_curve_shows():
    record = json.loads((RESULTS / "audit-minilm" / "audit.json").read_text())
    points = [Point(**point) for point in record["curve"]]
    best = most_heads(points, record["margin"])
    assert (best.replaced, len(record["order"])) == (42, 72)
    assert sentence(best, 72, record["margin"], record["metric"]) == record["sentence"]
    assert most_heads(points, 1.0).replaced == 48
    control = {point["replaced"]: point["value"] for point in record["control"]}
    for point in points:
        assert point.value > control.get(point.replaced, 0) + 1


def test_tuned_heads_score_what_the_docs_say():
    rows = json.loads((RESULTS / "audit-minilm" / "converted.json").read_text())
    found = {
        (row["model"].split(" --texts")[0], row["split"]): row["spearman"]
        for row in rows
        if "before cosines" not in row["model"]
    }
    for heads, rate, scores in ((48, "1e-4", ("86.70", "83.00")), (72, "4e-4", ("85.02", "80.39"))):
        tuned = f"convert --heads {heads} --tune 200 --tune-all --tune-rate {rate}"
        assert tuple(f"{found[tuned, split]:.2f}" for split in ("validation", "test")) == scores


def test_the_atom_mapping_head_is_called_a_content_head():
    record = json.loads((RESULTS / "audit-rxnmapper" / "audit.json").read_text())
    (head,) = [h for h in record["heads"] if (h["layer"], h["head"]) == (10, 5)]
    assert head["kind"] == "content"
    assert max(head["by_offset"], head["by_position"]) < 0.15


def test_the_audit_of_gemma_says_what_its_curve_shows():
    record = json.loads((RESULTS / "audit-gemma" / "audit.json").read_text())
    best = most_heads([Point(**point) for point in record["curve"]], record["margin"])
    assert best.replaced == 12
    assert sentence(best, 72, record["margin"], record["metric"]) == record["sentence"]
    assert record["most_moved"] == []  # no text of the data set
