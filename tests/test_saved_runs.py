"""Run directories and model folders that version 0.1.0 wrote still load, score and resume."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from synthesizer.cli import main

SAVED = Path(__file__).parent / "saved"
LAST_LOGITS = [0.3095, -0.43811, -1.44868, 1.96824, -1.57282, 2.50688, 1.55718]  # of 0.1.0


def test_a_saved_model_gives_the_logits_it_gave():
    from transformers import AutoModelForCausalLM

    import synthesizer.models  # noqa: F401  as every saved model card says

    model = AutoModelForCausalLM.from_pretrained(SAVED / "finished" / "model").eval()
    with torch.no_grad():
        logits = model(torch.tensor([[3, 7, 2, 11, 20, 5]])).logits[0, -1]
    torch.testing.assert_close(logits[:7], torch.tensor(LAST_LOGITS), atol=2e-5, rtol=0)


def test_a_finished_run_scores_what_it_scored(tmp_path, capsys):
    shutil.copytree(SAVED / "finished", tmp_path / "run")
    assert main(["evaluate", str(tmp_path / "run")]) == 0, capsys.readouterr().err
    rows = dict(line.split("\t")[:2] for line in capsys.readouterr().out.splitlines())
    result = json.loads((SAVED / "finished" / "result.json").read_text())
    assert float(rows["token_accuracy"]) == pytest.approx(
        result["metrics"]["token_accuracy"], abs=1e-3
    )


def test_a_finished_run_stands_in_a_report(tmp_path, capsys):
    shutil.copytree(SAVED / "finished", tmp_path / "random+dot" / "seed1")
    assert main(["report", str(tmp_path)]) == 0, capsys.readouterr().err
    assert "random+dot" in (tmp_path / "report.md").read_text()


def test_an_interrupted_run_goes_on_as_it_would_have(tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(SAVED / "interrupted", run)
    assert main(["train", str(run / "recipe.toml"), "--out", str(run), "--plain"]) == 0
    assert "resum" in capsys.readouterr().out
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [400, 520, 520]
    assert lines[1]["loss"] == pytest.approx(1.2119695613781611, rel=1e-4)
