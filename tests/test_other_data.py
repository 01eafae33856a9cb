"""Data have an identity: what began with some goes on with them, and is compared on them, alone."""

import json
import os
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from studies import conducted, study_of
from synthesizer_attention.cli import main
from synthesizer_attention.data.corpora import CORPORA
from synthesizer_attention.data.files import File
from synthesizer_attention.data.sources import Mixture, open_source
from synthesizer_attention.errors import UserError
from synthesizer_attention.report.load import read_studies
from synthesizer_attention.report.summary import summarize
from synthesizer_attention.run.progress import Interrupted
from synthesizer_attention.run.recipe import change, dump, load_recipe
from synthesizer_attention.run.recipe_keys import Data
from synthesizer_attention.run.run import Run
from synthesizer_attention.study.plan import draw_up
from synthesizer_attention.tasks import build_task
from synthesizer_attention.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from synthesizer_attention.training.loop import fit
from test_training import Told, assert_same_outcome
from tiny import SIZE, WORDS, language_model

STEPS = ("train.steps=12", "train.checkpoint_every=4", "evaluate.every=6", "train.log_every=3")


def reviews(path, *, rows=150, swapped=False, more=()):
    """Texts with a label that their words tell; `swapped` tells the opposite."""
    rng = random.Random(3)
    lines = ["text,label"]
    for number in range(rows):
        good = number % 2 == 0
        words = [*rng.choices(WORDS, k=4), "good" if good else "bad"]
        lines.append(f"{' '.join(words)},{'yes' if good != swapped else 'no'}")
    path.write_text("\n".join([*lines, *more]) + "\n")
    return path


def classifier(folder, *changes):
    """A tiny classifier of reviews."""
    overrides = [f"data.train={folder / 'reviews.csv'}", *(f"model.{size}" for size in SIZE)]
    overrides += ["train.batch_tokens=64", "data.holdout=0.2", *STEPS, *changes]
    return load_recipe("classification", synthesis="random", overrides=overrides)


def interrupted(recipe, run, step=6):
    """A run that was stopped on its way."""
    with pytest.raises(Interrupted):
        fit(recipe, run, Told(at=step, act=lambda: os.kill(os.getpid(), 15)))
    return run


@pytest.mark.parametrize("change", [{"swapped": True}, {"rows": 190, "more": ["new words,no"]}])
def test_a_run_does_not_go_on_with_other_data(tmp_path, change):
    path = reviews(tmp_path / "reviews.csv")
    recipe, run, whole = classifier(tmp_path), Run(tmp_path / "run"), Run(tmp_path / "whole")
    fit(recipe, whole)
    interrupted(recipe, run)
    before = {file: file.read_bytes() for file in run.checkpoints.iterdir()}
    reviews(path, **change)
    with pytest.raises(UserError, match=r"began with other data .* restore them, choose another"):
        fit(recipe, run)
    assert {file: file.read_bytes() for file in run.checkpoints.iterdir()} == before
    reviews(path)
    fit(recipe, run)
    assert_same_outcome(run, whole)


def test_a_checkpoint_of_an_older_version_goes_on_without_a_word(tmp_path):
    recipe, run = language_model(tmp_path), Run(tmp_path / "run")
    interrupted(recipe, run)
    for path in run.checkpoints.glob("step-*"):
        checkpoint = read_checkpoint(path)
        meta = {key: value for key, value in checkpoint.meta.items() if key != "data"}
        assert meta != checkpoint.meta
        write_checkpoint(path, Checkpoint(checkpoint.tensors, meta))
    told = Told()
    assert fit(recipe, run, told)["steps"] == 12
    assert told.said[0] == f"resuming {run.path} at step 7"


def test_evaluate_says_that_the_data_are_others(tmp_path, capsys):
    path, run = reviews(tmp_path / "reviews.csv"), Run(tmp_path / "run")
    fit(classifier(tmp_path), run)
    capsys.readouterr()
    assert main(["evaluate", str(run.path)]) == 0
    out, aside = capsys.readouterr()
    assert aside == ""
    reviews(path, swapped=True)
    assert main(["evaluate", str(run.path)]) == 0
    other, aside = capsys.readouterr()
    assert other != out
    assert aside.startswith(f"the data are not those that {run.path} was trained on (identity ")
    assert aside.count("\n") == 1
    reviews(path, more=["a cat,neither"] * 20)
    assert main(["evaluate", str(run.path)]) == 2
    assert "the data have other labels than those" in capsys.readouterr().err
    forget(run)
    assert main(["evaluate", str(reviews(path, swapped=True) and run.path)]) == 0
    assert capsys.readouterr().err == "", "a run of an older version does not know"


def forget(run):
    """Make a result as older versions wrote it."""
    result = run.result()
    del result["data"]["identity"]
    (run.path / "result.json").write_text(json.dumps(result))


def test_a_report_compares_no_runs_of_other_data_and_names_them(tmp_path):
    path = reviews(tmp_path / "reviews.csv")
    recipe = classifier(tmp_path)
    for synthesis, seed, swapped in (
        ("dot", 1, False),
        ("random", 1, False),
        ("dot", 2, False),
        ("random", 2, True),
    ):
        reviews(path, swapped=swapped)
        own = change(recipe, [f"synthesis={synthesis}", f"seed={seed}"])
        fit(own, Run(tmp_path / "runs" / synthesis / f"seed{seed}"))
    (study,) = read_studies([tmp_path / "runs"])
    states = {(run.spec, run.seed): run.state for run in study.runs}
    assert states.pop(("random", 2)).startswith("trained on other data than the rest (identity ")
    assert set(states.values()) == {"finished"}
    lines = {line.row.label: line for line in summarize(study).lines}
    assert [len(lines[name].row.finished) for name in ("dot", "random")] == [2, 1]
    assert "seed 2 trained on other data" in lines["random"].state
    forget(Run(tmp_path / "runs" / "random" / "seed2"))
    (study,) = read_studies([tmp_path / "runs"])
    assert {run.state for run in study.runs} == {"finished"}


def test_a_comparison_whose_data_change_under_it_stops_and_keeps_what_it_has(tmp_path, forks):
    path = reviews(tmp_path / "reviews.csv")
    (tmp_path / "own.toml").write_text(dump(classifier(tmp_path, "train.steps=100")))
    command = ["compare", "own.toml", "--synthesis", "dot", "--synthesis", "random", "--plain"]
    command += ["--seeds", "2", "--jobs", "1", "--tune", "0", "--opponent", "configured"]
    command += ["--out", "study"]
    running = forks.start(*command, cwd=tmp_path)
    running.wait_for("dot seed 1: step 3")
    reviews(path, swapped=True)
    code, _, error = running.wait()
    assert code == 2
    assert "began with other data (identity " in error.splitlines()[-1]
    (finished,) = tmp_path.glob("study/*/seed*/result.json")
    study = json.loads((tmp_path / "study" / "study.json").read_text())
    assert json.loads(finished.read_text())["data"]["identity"] == study["identity"]
    assert all(row["error"] is None for row in study["rows"])


def corpus(word="good"):
    rows = [{"text": f"{word} {' '.join(WORDS[n % 7 :])}"} for n in range(60)]
    return {"train": rows, "validation": rows[:9], "test": rows[9:20]}


@pytest.fixture
def built_in(asked, tmp_path, monkeypatch):
    """A comparison on a corpus of the package."""
    monkeypatch.setitem(CORPORA, "recall", corpus)
    recipe = language_model(tmp_path, "data.builtin=recall", "data.train=[]")
    Path(asked.recipe).write_text(dump(recipe))
    return replace(asked, syntheses=("dot", "random"))


def test_a_corpus_is_the_same_under_another_python_and_another_with_other_rows(
    built_in, monkeypatch
):
    conducted(replace(built_in, syntheses=("dot",)))
    began = study_of(built_in)
    monkeypatch.setattr(sys, "version", "3.99.1 (of tomorrow)")
    monkeypatch.setattr("platform.python_version", lambda: "3.99.1")
    conducted(built_in)
    assert study_of(built_in)["identity"] == began["identity"] is not None
    monkeypatch.setitem(CORPORA, "recall", lambda: corpus("bad"))
    monkeypatch.setattr(sys, "version", "3.99.2 (of tomorrow)")
    with pytest.raises(UserError, match="began with other data"):
        conducted(replace(built_in, seeds=2))
    assert not list(built_in.out.glob("*/seed2"))


def test_a_study_of_an_older_version_goes_on(built_in, monkeypatch):
    conducted(replace(built_in, syntheses=("dot",)))
    path = built_in.out / "study.json"
    study = study_of(built_in)
    del study["identity"]
    made = f"of synthesizer {study_version()} on Python {sys.version.split()[0]}"
    path.write_text(json.dumps({**study, "data": f"recall, draw 1 {made}"}))
    forget(Run(built_in.out / "dot" / "seed1"))
    conducted(built_in)
    assert study_of(built_in)["identity"]
    path.write_text(json.dumps({**study, "data": f"recall, draw 0 {made}"}))
    with pytest.raises(UserError, match="the data have changed"):
        draw_up(built_in)


def study_version():
    from synthesizer_attention import __version__

    return __version__


def test_runs_of_a_comparison_that_vary_their_data_have_data_of_their_own(built_in, monkeypatch):
    monkeypatch.setitem(CORPORA, "shift", lambda: corpus("bad"))
    conducted(replace(built_in, syntheses=("dot",), vary=("data.builtin=recall,shift",)))
    (study,) = read_studies([built_in.out])
    assert {run.state for run in study.runs} == {"finished"}
    assert len({run.identity for run in study.runs}) == 2


def test_the_identity_is_of_the_content_wherever_it_lies(tmp_path):
    def identity(path):
        return open_source(Data(train=str(path)), None).identity

    (tmp_path / "elsewhere").mkdir()
    before = identity(reviews(tmp_path / "reviews.csv"))
    assert identity(reviews(tmp_path / "elsewhere" / "moved.csv")) == before
    assert identity(reviews(tmp_path / "reviews.csv", swapped=True)) != before


def test_the_identity_of_a_hub_set_is_of_its_rows_not_of_this_machines_files(tmp_path, monkeypatch):
    import datasets

    def identity(*texts, path="here"):
        split = datasets.Dataset.from_list([{"text": text} for text in texts])
        datasets.DatasetDict({"train": split}).save_to_disk(tmp_path / path)
        loaded = datasets.load_from_disk(tmp_path / path)
        monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: loaded)
        return open_source(Data(hub="some/set"), None).identity

    assert identity("a", "b") == identity("a", "b", path="there") != identity("b", "a", path="new")


def test_a_mixture_has_the_identity_of_its_parts(tmp_path):
    def mixed(**how):
        own = open_source(Data(train=str(reviews(tmp_path / "a.csv", **how))), None)
        return Mixture({"own": own, "drawn": open_source(Data(builtin="shift"), None)}).identity

    assert mixed() == mixed() != mixed(swapped=True)


def test_a_file_that_changes_between_its_hash_and_its_rows_is_refused(tmp_path, monkeypatch):
    """What was read is neither trained on nor kept in the cache under the hash of the other."""
    path = reviews(tmp_path / "reviews.csv")
    rows = File.rows

    def changed(file, header=None):
        with path.open("a") as opened:
            opened.write("one more,no\n")
        return rows(file, header)

    recipe = classifier(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(File, "rows", changed)
        with pytest.raises(UserError, match="changed while being read"):
            build_task(recipe)
    reviews(path)
    assert sum(build_task(recipe).report["examples"].values()) == 150


def test_a_second_train_command_reports_what_the_first_one_finished(tmp_path, forks):
    """It said that result.json is gone, and to delete the directory."""
    recipe, run = language_model(tmp_path), Run(tmp_path / "run")
    (tmp_path / "own.toml").write_text(dump(recipe))
    others = []

    def start_another():
        others.append(forks.start("train", "own.toml", "--out", "run", "--plain", cwd=tmp_path))
        others[0].wait_for("waiting for process")

    result = fit(recipe, run, Told(at=6, act=start_another))
    code, out, error = others[0].wait()
    assert (code, error) == (0, "")
    metric = f"{result['main_metric']} {result['metrics'][result['main_metric']]:.4f}"
    assert out.splitlines()[1:] == ["run is finished; nothing to do", f"run  test {metric}"]
