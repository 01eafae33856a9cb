"""What others run: a Slurm script, and the live table of its run directories."""

import json
import os
import re
import shlex
import subprocess
import sys
import time

import pytest

from synthesizer.errors import UserError
from synthesizer.experiment.interruption import Interrupted
from synthesizer.experiment.recipe import dump
from synthesizer.experiment.run import STUDY
from synthesizer.study.asked import Asked
from synthesizer.study.command import name_plan
from synthesizer.study.compare import list_commands
from synthesizer.study.slurm import array_script
from synthesizer.study.watch import watch
from test_report import make_run
from tiny import language_model

TRAINING = """\
import pathlib, signal, sys, time
kept = pathlib.Path("kept")
signal.signal(signal.SIGTERM, lambda *_: (kept.write_text("step 5"), sys.exit(130)))
if kept.exists():
    print("resumed at", kept.read_text())
    sys.exit(0)
print("training", flush=True)
time.sleep(60)
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A script of one run, and the commands that Slurm would have: scontrol notes its words."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "scontrol").write_text('#!/bin/sh\necho "$@" >> requeued\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "77")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    script = array_script([["false"], ["synthesizer again"]], tmp_path / "study", jobs=3, gpus=1)
    program = shlex.join([sys.executable, "-P", "-m", "synthesizer"])
    path = tmp_path / "script.sh"
    path.write_text(script.replace(f"{program} again", f"{sys.executable} train.py"))
    return path


def test_a_slurm_task_that_is_told_to_stop_saves_is_queued_again_and_resumes(slurm):
    text = slurm.read_text()
    for option in ("--array=1-2%3", "--requeue", "--signal=B:TERM@120", "--gpus-per-task=1"):
        assert f"#SBATCH {option}\n" in text
    with subprocess.Popen(["bash", str(slurm)], stdout=subprocess.PIPE, text=True) as task:
        assert task.stdout.readline() == "training\n"
        task.terminate()
    assert task.returncode == 130
    assert (slurm.parent / "requeued").read_text() == "requeue 77_2\n"
    again = subprocess.run(["bash", str(slurm)], capture_output=True, text=True)
    assert (again.returncode, again.stdout) == (0, "resumed at step 5\n")
    assert (slurm.parent / "requeued").read_text() == "requeue 77_2\n"


def test_a_slurm_task_that_fails_is_not_queued_again(slurm):
    (slurm.parent / "train.py").write_text("raise SystemExit(2)")
    assert subprocess.run(["bash", str(slurm)]).returncode == 2
    assert not (slurm.parent / "requeued").exists()


def test_a_plan_alone_lists_commands():
    assert name_plan(["compare", "--plan"]) == ["compare", "--plan", "commands"]
    assert name_plan(["--plan", "a.csv"]) == ["--plan", "commands", "a.csv"]
    assert name_plan(["--plan", "slurm", "a.csv"]) == ["--plan", "slurm", "a.csv"]


def test_a_script_has_a_task_for_every_run(tmp_path):
    commands = [["synthesizer train a", "synthesizer train b"], ["synthesizer train c"]]
    text = array_script(commands, tmp_path / "a study", jobs=None, gpus=None)
    program = shlex.join([sys.executable, "-P", "-m", "synthesizer"])
    assert f"1)\n  run {program} train a\n  run {program} train b\n  ;;\n2)\n" in text
    assert "#SBATCH --array=1-2\n" in text
    assert "gpus" not in text
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0


def test_commands_are_listed_stage_by_stage(tmp_path, monkeypatch):
    runs = [["pretrain a", "train a"], ["pretrain b", "train b"]]
    monkeypatch.setattr(
        "synthesizer.study.compare._commands_by_run", lambda asked, say: (None, runs)
    )
    assert list_commands(Asked(), print) == ["pretrain a", "pretrain b", "train a", "train b"]


def test_a_plan_for_a_cluster_is_refused(tmp_path):
    with pytest.raises(UserError, match="--plan runs nothing on a cluster"):
        list_commands(Asked(cluster="auto"), print)


@pytest.fixture
def study(tmp_path):
    """A finished run, one on its way, and one that waits."""
    home = tmp_path / "study"
    make_run(home / "dot/seed1", "dot", 1, 0.9)
    (home / "random/seed1").parent.mkdir(parents=True)
    make_run(home / "random/seed1", "random", 1, 0.9, finished=False)
    laps = [{"step": step, "seconds": 2.0, "tokens": 1000} for step in (50, 100, 150)]
    text = "".join(json.dumps(lap) + "\n" for lap in laps)
    (home / "random/seed1/timing.jsonl").write_text(text)
    rows = [
        {"label": spec, "spec": spec, "runs": [f"{spec}/seed1"]}
        for spec in ("dot", "random", "none")
    ]
    shared = dump(language_model(tmp_path, "train.steps=300"))
    (home / STUDY).write_text(json.dumps({"rows": rows, "shared": shared}))
    return home


def test_watching_shows_runs_that_others_make(study, monkeypatch, capsys):
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) == 1:
            make_run(study / "none/seed1", "none", 1, 0.1)
        elif len(looks) == 2:
            old = time.time() - 400
            os.utime(study / "random/seed1/metrics.jsonl", (old, old))
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr("synthesizer.study.watch.time.sleep", sleep)
    with pytest.raises(Interrupted, match=r"watching stopped; the runs of .* go on"):
        watch(study, plain=True)
    lines = capsys.readouterr().out
    assert "[1/3] dot seed 1: test token_accuracy 90.0000" in lines
    assert re.search(
        r"1/3. random seed 1: step 150/\d+  loss 2\.2500  validation 90\.0000  500 tokens/s  "
        r"(\d:\d\d) left, (?!\1)",  # with the run that waits
        lines,
    )
    assert "[2/3] none seed 1: test token_accuracy 10.0000" in lines
    assert f"{study / 'random/seed1'}: nothing new for 6:4" in lines


def test_watching_ends_with_the_last_run(study, monkeypatch):
    (study / "random").rename(study / "old")
    make_run(study / "random/seed1", "random", 1, 0.9)
    make_run(study / "none/seed1", "none", 1, 0.1)
    monkeypatch.setattr("synthesizer.study.watch.EVERY", 0.0)
    watch(study, plain=True)


def test_a_directory_without_a_study_is_not_watched(tmp_path):
    with pytest.raises(UserError, match=r"study\.json is not the record .*\(No such file"):
        watch(tmp_path)
