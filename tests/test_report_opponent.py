"""The report names the dot product it measures by, what that gains, and which gaps still close."""

import json
from dataclasses import replace

import pytest

from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError
from synthesizer_attention.report.notes import notes
from synthesizer_attention.report.style import LONGEST, shortened
from synthesizer_attention.report.tables import search_table, trial_table
from synthesizer_attention.report.write import summarize_all, write_report
from test_report import make_run

RELATIVE = "sinusoidal+relative"
CURVES = {  # validation after one, two and three thirds of the steps
    "dot": (30.0, 40.0, 50.0),
    f"dot, {RELATIVE}": (50.0, 80.0, 90.0),
    "random": (10.0, 20.0, 60.0),
    "dense": (40.0, 75.0, 60.0),
}
EQUAL = "equal_qk_init=true"


def make_study(home, opponent, *, candidate=True):
    """Three seeds of four rows with curves; scores are near the last point of each."""
    rows = []
    for label, curve in CURVES.items():
        spec, *own = label.split(", ")
        sets = [f"model.{text}" if "=" in text else f"model.positions={text}" for text in own]
        folder = "-".join([spec, *own])
        runs = []
        for seed in (1, 2, 3):
            runs.append(f"{folder}/seed{seed}")
            share = curve[-1] / 100 + seed / 1000
            path = make_run(home / runs[-1], spec, seed, share, sets=[*sets, "train.steps=300"])
            lines = [
                {"step": step, "validation": {"token_accuracy": value}}
                for step, value in zip((100, 200, 300), curve, strict=True)
            ]
            (path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
            result = json.loads((path / "result.json").read_text())
            result["validation"] = {"token_accuracy": curve[-1]}
            (path / "result.json").write_text(json.dumps(result))
        row = {"label": label, "spec": spec, "runs": runs}
        rows.append({**row, "candidate": candidate and spec == "dot"})
    (home / "study.json").write_text(json.dumps({"rows": rows, "opponent": opponent}))
    (summary,) = summarize_all([home])
    return summary


@pytest.fixture
def record():
    trials = [
        {"changes": [], "positions": "sinusoidal", "validation": 51.0},
        {"changes": [f"model.positions={RELATIVE}"], "positions": RELATIVE, "validation": 88.0},
    ]
    found = {"label": f"dot, {RELATIVE}", "configured": "dot", "how": "chosen on validation"}
    return {**found, "trials": trials}


def test_the_verb_names_the_row_that_dot_means(tmp_path, record, capsys):
    make_study(tmp_path, record)
    assert main(["report", str(tmp_path)]) == 0
    said = capsys.readouterr()
    head, *_, answer, _ = said.out.splitlines()
    assert f"vs dot, {RELATIVE}" in head
    assert answer.endswith(f" Here dot is the row dot, {RELATIVE}.")
    assert said.err == "writing the report ...\n"
    make_study(tmp_path / "plain", {**record, "label": "dot"})
    assert main(["report", str(tmp_path / "plain")]) == 0
    head, *_, answer, _ = capsys.readouterr().out.splitlines()
    assert "vs dot " in head
    assert "Here dot" not in answer


def test_without_a_search_of_rates_the_report_has_no_table_of_rates(tmp_path, record):
    """The page had its head without a row."""
    make_study(tmp_path, record)
    study = json.loads((tmp_path / "study.json").read_text())
    for row in study["rows"]:
        row["trials"] = record["trials"][:1]
    (tmp_path / "study.json").write_text(json.dumps({**study, "tune": 0}))
    assert "best learning rate" not in write_report([tmp_path]).read_text()
    (tmp_path / "study.json").write_text(json.dumps({**study, "tune": 1}))
    assert "best learning rate" in write_report([tmp_path]).read_text()


def test_differences_are_against_the_recorded_opponent_and_its_gain_is_named(tmp_path, record):
    summary = make_study(tmp_path, record)
    lines = {line.row.label: line for line in summary.lines}
    assert summary.opponent.label == f"dot, {RELATIVE}"
    assert lines[f"dot, {RELATIVE}"].comparison is None
    assert lines["random"].comparison.difference == pytest.approx(-30.0)
    assert lines["dot"].comparison.word == "worse"
    said = "\n".join(notes(summary))
    assert f"against dot, {RELATIVE} ({RELATIVE}; chosen on validation)" in said
    assert f"on validation: sinusoidal 51.00, {RELATIVE} 88.00." in said
    assert f"with {RELATIVE} positions dot gains 40.00 token accuracy" in said
    assert "WEAK" not in said


def test_what_else_the_opponent_sets_is_named_beside_its_positions(tmp_path, record, monkeypatch):
    """Two dot products of the same positions were listed as one."""
    label = f"dot, {RELATIVE}, {EQUAL}"
    monkeypatch.setitem(CURVES, label, (60.0, 90.0, 95.0))
    tried = [
        {**trial, "row": row, "positions": row.split(", ")[1], "changes": [], "validation": value}
        for row, trial, value in (
            (f"dot, {RELATIVE}", record["trials"][1], 88.0),
            (label, record["trials"][1], 93.0),
        )
    ]
    trials = [record["trials"][0], *tried]
    summary = make_study(tmp_path, {**record, "label": label, "trials": trials})
    assert summary.opponent.label == label
    said = "\n".join(notes(summary))
    assert "Its settings were searched" in said
    assert f"sinusoidal 51.00, {RELATIVE} 88.00, {RELATIVE}, {EQUAL} 93.00." in said
    assert f"with {RELATIVE} positions and {EQUAL} dot gains 45.00 token accuracy" in said


def test_without_a_recorded_opponent_the_best_candidate_on_validation_is_taken(tmp_path, record):
    assert make_study(tmp_path / "a", None).opponent.label == f"dot, {RELATIVE}"
    unknown = {**record, "label": None}
    assert make_study(tmp_path / "b", unknown).opponent.label == f"dot, {RELATIVE}"
    assert make_study(tmp_path / "c", None, candidate=False).opponent.label == "dot"
    with pytest.raises(UserError, match="opponent: Input should be a valid dictionary"):
        make_study(tmp_path / "d", ["broken"])


def test_a_gap_that_still_closes_makes_a_word_a_word_so_far(tmp_path, record):
    summary = make_study(tmp_path, record)
    lines = {line.row.label: line for line in summary.lines}
    assert lines["random"].gaps == (-40.0, -60.0, -30.0)
    assert lines["random"].is_closing
    assert not lines["dense"].is_closing  # its gap grows in the last third
    assert "So far: random still comes closer to dot." in summary.answer
    said = "\n".join(notes(summary))
    assert "still shrinks for random (-40.00, -60.00, -30.00)" in said
    assert "Longer training may change these verdicts." in said


def test_a_closed_gap_does_not_close_any_further(tmp_path, record):
    """Both at the top: what is left of a lead says nothing of longer training."""
    line = next(x for x in make_study(tmp_path, record).lines if x.row.label == "random")
    even = replace(line.comparison, word="no worse", margin=1.0)
    assert not replace(line, comparison=even, gaps=(48.0, 1.1, 0.02)).is_closing
    assert replace(line, comparison=even, gaps=(48.0, 1.1, 0.5)).is_closing
    better = replace(even, word="better")
    assert replace(line, comparison=better, gaps=(48.0, 1.1, 0.02)).is_closing


def test_sinusoids_that_won_a_search_are_not_called_weak(tmp_path, record):
    make_study(tmp_path, {**record, "label": "dot"})
    study = json.loads((tmp_path / "study.json").read_text())
    study["rows"] = [row for row in study["rows"] if RELATIVE not in row["label"]]
    (tmp_path / "study.json").write_text(json.dumps(study))  # what lost the search is not a row
    (summary,) = summarize_all([tmp_path])
    said = "\n".join(notes(summary))
    assert "against dot (sinusoidal; chosen on validation)" in said
    assert "WEAK" not in said


def test_a_dot_product_with_sinusoids_alone_is_called_what_it_is(tmp_path):
    for spec in ("dot", "random"):
        for seed in (1, 2, 3):
            make_run(tmp_path / spec / f"seed{seed}", spec, seed, 0.5)
    (summary,) = summarize_all([tmp_path])
    said = "\n".join(notes(summary))
    assert "THE OPPONENT MAY BE WEAK: dot is compared with sinusoidal positions alone." in said
    assert search_table(summary)[1] == []


def test_both_seeds_of_a_search_are_shown_and_the_rule_that_chose_is_named(tmp_path, record):
    make_study(tmp_path, record)
    stored = json.loads((tmp_path / "study.json").read_text())
    low, high = ["train.lr=0.1", "train.table_rate=3"], ["train.lr=0.2", "train.table_rate=2"]
    trials = [
        {"changes": low, "validation": 60.0, "seed": 0},
        {"changes": high, "validation": 64.0, "seed": 0},
        {"changes": low, "validation": 61.0, "seed": 100_000},
        {"changes": high, "validation": 55.0, "seed": 100_000},
    ]
    (random,) = [row for row in stored["rows"] if row["spec"] == "random"]
    random["trials"] = trials
    beaten = [{**trial, "row": "dot, rotary", "positions": "rotary"} for trial in trials]
    stored["opponent"]["trials"] = beaten
    told = {**stored, "tune": 2, "search": {"repeated": 2}}
    (tmp_path / "study.json").write_text(json.dumps(told))
    (summary,) = summarize_all([tmp_path])
    head, rows = trial_table(summary)
    assert head[-4:] == ["validation token accuracy, %", "second seed", "mean", ""]
    dash = "\N{EN DASH}"
    assert rows[0] == ["random", "0.1", "3", dash, "60.00", "61.00", "60.50", "chosen"]
    assert rows[1] == ["random", "0.2", "2", dash, "64.00", "55.00", "59.50", ""]
    assert [row[0::7] for row in rows[2:]] == [["dot, rotary", "its best"], ["dot, rotary", ""]]
    said = "\n".join(notes(summary))
    assert "its best 2 again under a second one; it uses those with the best mean" in said
    assert (
        "searched with two seeds of its own (the mean decides), on validation: rotary 60.5" in said
    )
    (tmp_path / "study.json").write_text(json.dumps({**stored, "tune": 2}))
    (older,) = summarize_all([tmp_path])
    assert "One seed chose, which is not reported" in "\n".join(notes(older))


def test_a_long_name_in_a_plot_keeps_the_end_that_tells_it_from_others():
    names = ["dot", f"dot, {RELATIVE}", f"dot, {RELATIVE}, {EQUAL}", f"random, {RELATIVE}"]
    short = [shortened(name) for name in names]
    assert short[0] == "dot"
    assert len(set(short)) == len(names)
    assert {len(text) for text in short[1:]} == {LONGEST}
