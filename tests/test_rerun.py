"""A study that two commits made: one seed is run again and its bits are compared."""

from dataclasses import replace

import pytest

from synthesizer.experiment.run import Run, provenance
from synthesizer.report.reliability import reliability
from synthesizer.report.write import summarize_all
from synthesizer.study.rerun import same_bits
from test_study import conducted, study_of


@pytest.fixture
def commit(monkeypatch):
    """Name the commit that the runs to come are made by, as another process would find it."""

    def name(commit):
        provenance.cache_clear()
        monkeypatch.setattr("synthesizer.experiment.run._commit", lambda: commit)

    yield name
    provenance.cache_clear()


def test_a_study_of_two_commits_runs_one_seed_again(asked, commit, capsys):
    chosen = replace(asked, syntheses=("dot", "none"))
    commit("first")
    plan = conducted(chosen)
    assert study_of(chosen)["rerun"] is None
    assert not (plan.out / "rerun").exists()
    commit("second")
    for _ in range(2):  # the second finds it done, and compares again
        plan = conducted(replace(chosen, seeds=2))
        assert study_of(chosen)["rerun"] == {"row": "dot", "seed": 1, "equal": True}
    again = plan.out / "rerun" / "dot" / "seed1"
    assert Run(again).result()["commit"] == "second"
    assert "the runs come from two commits: dot, seed 1, is run again" in capsys.readouterr().out
    (summary,) = summarize_all([plan.out])
    assert len(summary.finished) == 4, "the repeated run is not a seed of the table"
    told = "\n".join(reliability(summary))
    assert "seed 1 of dot was run again and is bit for bit equal" in told
    assert not same_bits(again, plan.out / "none" / "seed1")


def test_what_seeds_can_decide_is_said_before_they_are_run(asked, capsys):
    conducted(replace(asked, syntheses=("dot", "none"), seeds=3))
    said = capsys.readouterr().out
    told = "Of 100 rows equal to dot, each one of 1, 3 seeds decide as many as"
    assert said.index(told) < said.index("[0/6]")
