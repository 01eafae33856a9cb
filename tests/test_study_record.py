"""study.json as anybody may have written it: all is checked, also against the runs it lists."""

import copy
import json

import pytest

from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError
from synthesizer_attention.report.load import read_run, read_studies
from synthesizer_attention.report.write import summarize_all, text_of
from synthesizer_attention.run.records import Study
from test_report import make_run

ODD = (None, [], {}, "x", 1, -1, float("inf"), True, "left out")
TRIAL = {"run": "trials/a/trial1", "changes": ["train.lr=0.1"], "seed": 0, "validation": 1.0}
TRIAL |= {"higher_is_better": True, "best_step": 3}


def make_whole_study(home):
    """Three seeds of two rows at one varied value, and every field that a study may have."""
    rows = []
    for spec, share in (("dot", 0.9), ("random", 0.85)):
        runs = [f"{spec}/seed{seed}" for seed in (1, 2, 3)]
        for seed, run in enumerate(runs, start=1):
            make_run(home / run, spec, seed, share, sets=["model.d_ff=40", "train.lr=0.1"])
        row = {"label": f"{spec}, d_ff 40", "spec": spec, "runs": runs, "left_out": None}
        row |= {"error": None, "note": None, "varied": ["model.d_ff=40"], "trials": [TRIAL]}
        rows.append(row | {"settings": ["model.d_ff=40", "train.lr=0.1"], "candidate": False})
    tried = {"row": "dot, d_ff 40", "positions": "sinusoidal", **TRIAL}
    study = {
        "command": "synthesizer compare shift",
        "recipe": "shift",
        "chosen_for": "dot",
        "rows": rows,
        "rule": "holm",
        "primary": "random, d_ff 40",
        "margin": 2.0,
        "match": "none",
        "tune": 2,
        "search": {"repeated": 2, "seeds": [0, 100_000], "every_row": True},
        "quick": False,
        "against": ["random, d_ff 40"],
        "ladder": None,
        "pretrain": {"recipe": "tiny-chats", "steps": 1000, "folder": "pretrained"},
        "opponent": {
            "label": "dot, d_ff 40",
            "configured": "dot, d_ff 40",
            "how": "asked for",
            "trials": [tried],
        },
        "looks": {"planned": [3, 5], "taken": [3]},
        "inferred": None,
        "measured": [
            {"choice": "tokenizer", "row": "dot", "trials": [TRIAL], "chosen": ["text.kind=byte"]}
        ],
        "rerun": {"row": "dot, d_ff 40", "seed": 1, "equal": True},
        "shared": (home / "dot/seed1/recipe.toml").read_text(),
        "data": "shift",
        "identity": "0123abc",
    }
    (home / "study.json").write_text(json.dumps(study))
    return home


@pytest.fixture
def home(tmp_path):
    return make_whole_study(tmp_path / "shift")


def rewrite(home, change):
    """Change study.json in place."""
    study = json.loads((home / "study.json").read_text())
    change(study)
    (home / "study.json").write_text(json.dumps(study))


def places(value, at=()):
    """Where every value within a record is; of a list, the first alone."""
    if at:
        yield at
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value[:1]):
            yield from places(child, (*at, key))


def with_odd(study, at, odd):
    study = copy.deepcopy(study)
    parent = study
    for key in at[:-1]:
        parent = parent[key]
    if odd == "left out":
        del parent[at[-1]]
    else:
        parent[at[-1]] = odd
    return study


def test_any_wrong_value_is_one_line_with_the_file_and_the_field(home, monkeypatch):
    """Every value is replaced by odd ones, every key left out; a report is made or refused."""
    study = json.loads((home / "study.json").read_text())
    assert set(study) == set(Study.model_fields), "each field of a study is tried"
    runs = {path.parent: read_run(path.parent) for path in home.rglob("recipe.toml")}
    monkeypatch.setattr(
        "synthesizer_attention.report.load.read_run", lambda path, verify: runs[path]
    )
    monkeypatch.setattr(
        "synthesizer_attention.study.stats.DRAWS", 4
    )  # which takes most of the time
    refused = 0
    for at in places(study):
        for odd in ODD:
            (home / "study.json").write_text(json.dumps(with_odd(study, at, odd)))
            said = refusal(home)
            refused += said is not None
            field = at[-1] if isinstance(at[-1], str) else at[-2]
            assert said is None or said.startswith(f"{home / 'study.json'}"), (at, odd)
            assert said is None or field in said or "rows" in said or "opponent.label" in said
            assert said is None or "\n" not in said, (at, odd)
    assert refused > 300


def refusal(home):
    """What a report says instead of being made; None where it is made."""
    try:
        assert text_of(summarize_all([home]))
    except UserError as error:
        return str(error)
    return None


def exchange(study):
    first, second = study["rows"]
    first["runs"], second["runs"] = second["runs"], first["runs"]


CONTRADICTIONS = {
    "exchanged runs": (exchange, r"rows.0, 'dot, d_ff 40', lists .*random/seed1, whose recipe.toml "
                       "has synthesis 'random' where the row has 'dot'"),
    "an unknown spec": (lambda s: s["rows"][1].update(spec="sparse"),
                        "has synthesis 'random' where the row has 'sparse'"),
    "another setting": (lambda s: s["rows"][1]["settings"].append("train.lr=0.2"),
                        "has train.lr 0.1 where the row has train.lr=0.2"),
    "another varied value": (lambda s: [r.update(varied=["model.d_ff=80"]) for r in s["rows"]],
                             "rows.0: varied is 'model.d_ff=80', which is not among its settings"),
    "a row of some other dot": (lambda s: s["opponent"].update(label="random, d_ff 40"),
                                "opponent.label: 'random, d_ff 40' is no row of dot products"),
    "a run in two rows": (lambda s: s["rows"][1]["runs"].append("dot/seed1"),
                          "rows: two have the run 'dot/seed1'"),
    "looks in no order": (lambda s: s["looks"].update(taken=[5]), r"looks were taken at \[5\]"),
    "a rule of tomorrow": (lambda s: s.update(rule="cusum"), "rule is 'cusum', by which this"),
    "no look": (lambda s: s["looks"].update(taken=[]), r"looks were taken at \[\]"),
    "a margin beyond the scale": (lambda s: s.update(margin=1000), "margin is 1000 points of "
                                  "token_accuracy; expected more than 0 and less than 100"),
    "a margin without an end": (lambda s: s.update(margin=float("inf")), "margin: .* finite"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_study_that_its_runs_contradict_is_refused(home, name, capsys):
    change, expected = CONTRADICTIONS[name]
    assert read_studies([home])
    rewrite(home, change)
    with pytest.raises(UserError, match=expected):
        summarize_all([home])
    assert main(["report", str(home)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"synthesizer: error: {home / 'study.json'}")
    assert error.count("\n") == 1
    assert not (home / "report.html").exists()


def test_a_look_that_was_not_planned_is_owned_up_to(home):
    assert "at most 10%" not in text_of(summarize_all([home]))
    rewrite(home, lambda study: study["looks"].update(unplanned=[3]))
    (summary,) = summarize_all([home])
    assert "first judged with 3 seeds, as if no more were to come." in text_of([summary])
    assert "is not 5% but at most 10%." in text_of([summary])
