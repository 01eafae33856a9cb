"""Run directories and model folders that version 0.1.0 wrote still load, score and resume."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from synthesizer_attention.cli import main

SAVED = Path(__file__).parent / "saved"
LAST_LOGITS = [0.39524, -0.97771, -1.15184, 1.69229, -1.2095, 2.12003, 1.30444]  # of 0.1.0


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """A copy of what was saved; the recipes name text.txt in the working directory."""
    shutil.copytree(SAVED, tmp_path / "saved")
    monkeypatch.chdir(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_saved_model_gives_the_logits_it_gave():
    from transformers import AutoModelForCausalLM

    import synthesizer_attention.models  # noqa: F401  as every saved model card says

    model = AutoModelForCausalLM.from_pretrained(SAVED / "finished" / "model").eval()
    with torch.no_grad():
        logits = model(torch.tensor([[3, 7, 2, 11, 20, 5]])).logits[0, -1]
    torch.testing.assert_close(logits[:7], torch.tensor(LAST_LOGITS), atol=2e-5, rtol=0)


def test_a_finished_run_scores_what_it_scored(saved, capsys):
    assert main(["evaluate", "finished"]) == 0, capsys.readouterr().err
    rows = dict(line.split("\t")[:2] for line in capsys.readouterr().out.splitlines())
    result = json.loads((saved / "finished" / "result.json").read_text())
    assert float(rows["bits_per_byte"]) == pytest.approx(
        result["metrics"]["bits_per_byte"], abs=1e-3
    )


def test_a_finished_run_stands_in_a_report(saved, capsys):
    assert main(["report", "finished", "--out", "report"]) == 0, capsys.readouterr().err
    assert "random+dot" in (saved / "report" / "report.md").read_text()


def test_an_interrupted_run_goes_on_as_it_would_have(saved, capsys):
    assert main(["train", "interrupted/recipe.toml", "--out", "interrupted", "--plain"]) == 0
    assert "resum" in capsys.readouterr().out
    text = (saved / "interrupted" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["step"] for line in lines] == [400, 700, 700]
    assert lines[1]["loss"] == pytest.approx(1.5578707273318748, rel=1e-4)
