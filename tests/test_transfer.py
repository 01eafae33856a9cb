"""transfer: swap, distil, fine-tune, judge; on a tiny BERT with random weights."""

import copy
import csv
import random

import numpy as np
import pytest
import torch

from pretrained import WORDS, build, inputs, tokenizer
from synthesizer_attention.audit import transfer as module
from synthesizer_attention.audit.transfer import Asked, Distance, Encoder, Task, swap, transfer
from synthesizer_attention.audit.tune import train
from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError
from synthesizer_attention.report.write import summarize_all
from synthesizer_attention.run.run import Run

TABLES = ("random", "random+dot")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model's folder and two files of pairs with a score: the words that they share."""
    home = tmp_path_factory.mktemp("transfer")
    build("bert").base_model.save_pretrained(home / "bert")
    tokenizer().save_pretrained(home / "bert")
    draw = random.Random(0)
    for name, count in (("train", 60), ("test", 24)):
        with (home / f"{name}.csv").open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerow(["sentence1", "sentence2", "label"])
            for _ in range(count):
                first, second = draw.sample(WORDS, 4), draw.sample(WORDS, 4)
                shared = draw.randrange(5)
                second[:shared] = first[:shared]
                lines.writerow([" ".join(first), " ".join(second), shared + 0.5])
    return home


def asked(home, out, **more):
    options = {"max_len": 11, "distil": 6, "steps": 6, "seeds": 1, "margin": 50.0} | more
    return Asked(str(home / "bert"), home / "train.csv", home / "test.csv", out, **options)


@pytest.mark.parametrize("row", ["dot", "dense", *TABLES])
def test_distillation_nears_the_original_and_moves_logits_alone(row):
    original = build("bert").base_model
    original.set_attn_implementation("sdpa")
    model = Encoder(copy.deepcopy(original), 1).eval()
    logits = swap(model.body, row, 11)
    theirs = dict(original.named_parameters())
    moved = {name for name, p in model.body.named_parameters()
             if name not in theirs or not torch.equal(p, theirs[name])}  # fmt: skip
    assert {id(dict(model.body.named_parameters())[name]) for name in moved} <= {*map(id, logits)}
    before, batch = copy.deepcopy(model.state_dict()), inputs("bert")
    distance = Distance(original, model.body)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parameter in logits:
        parameter.requires_grad_(True)
    losses = train(model, [(logits, 0.02)], 40, lambda step: distance(batch), lambda text: None,
                   path=None, facts={}, advice="")  # fmt: skip
    assert losses[-1] < 0.8 * losses[0]
    chosen = {name for name, p in model.named_parameters() if p.requires_grad}
    changed = {n for n, value in model.state_dict().items() if not torch.equal(value, before[n])}
    assert changed <= chosen
    assert changed


def test_the_original_has_no_distance_from_itself():
    original = build("bert").base_model
    original.set_attn_implementation("sdpa")
    assert Distance(original, copy.deepcopy(original))(inputs("bert")).item() == 0


def test_none_has_no_attention():
    model = build("bert").base_model
    assert swap(model, "none", 11) == []
    assert not any(
        word in name for name, _ in model.named_parameters() for word in ("query", "key")
    )
    batch = inputs("bert", padded=False)
    states = model(**batch).last_hidden_state
    batch["input_ids"][:, 3] = (batch["input_ids"][:, 3] + 1) % 20
    other = model(**batch).last_hidden_state
    same = [torch.equal(states[:, at], other[:, at]) for at in range(states.shape[1])]
    assert same == [at != 3 for at in range(len(same))]


def test_a_killed_transfer_ends_with_the_same_bits_and_rows_share_batches(
    home, tmp_path, monkeypatch
):
    monkeypatch.setattr("synthesizer_attention.audit.tune.SAVED_EVERY", 2)
    monkeypatch.setattr("synthesizer_attention.audit.tune.SAID_EVERY", 1)
    rows, read, batches = ("dot", *TABLES), Task.inputs, {}

    def recorded(self, split, chosen):
        batches.setdefault(row_of[0], []).append((split, tuple(chosen)))
        return read(self, split, chosen)

    row_of, one_run = [""], module.OneRun.perform

    def perform(self):
        row_of[0] = self.row
        return one_run(self)

    monkeypatch.setattr(module.OneRun, "perform", perform)
    with monkeypatch.context() as patched:
        patched.setattr(Task, "inputs", recorded)
        transfer(asked(home, tmp_path / "whole", synthesis=rows), print)
    assert batches["dot"] == batches["random"] == batches["random+dot"]
    for text in ("distilling step 3", "fine-tuning step 3", "fine-tuning step 5 "):

        def stop(said, text=text):
            if said.startswith(text) and row_of[0] == "random":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            transfer(asked(home, tmp_path / "killed", synthesis=rows), stop)
    said = []
    transfer(asked(home, tmp_path / "killed", synthesis=rows), said.append)
    assert "going on from fine-tuning step 4" in said
    for row in rows:
        one, other = (Run(tmp_path / name / row / "seed1") for name in ("whole", "killed"))
        for name in ("statistics.npz", "attention.npz"):
            with np.load(one.path / name) as a, np.load(other.path / name) as b:
                assert {*a} == {*b}
                assert all(np.array_equal(a[key], b[key]) for key in a)
        assert one.metrics() == other.metrics()
        assert one.result()["metrics"] == other.result()["metrics"]
        assert one.result()["distance"] == other.result()["distance"]
        assert not one.checkpoints.exists()
    with pytest.raises(UserError, match="holds a run of other options or data"):
        transfer(asked(home, tmp_path / "killed", synthesis=rows, rate=0.5), print)


@pytest.mark.parametrize("apart", [False, True])
def test_report_judges_rows_against_the_dot_product_drawn_anew(home, tmp_path, apart, capsys):
    words = [str(home / "bert"), str(home / "train.csv"), str(home / "test.csv"), "--max-len", "11"]
    words += ["--distil", "3", "--steps", "3", "--seeds", "3", "--margin", "90"]
    words += ["--apart"] * apart
    rows = [word for row in ("kept", "dot", "random", "none") for word in ("--synthesis", row)]
    out = tmp_path / "out"
    assert main(["transfer", *words, *rows, "--out", str(out)]) == 0
    assert "0:00 left" in capsys.readouterr().err
    (summary,) = summarize_all([out])
    assert summary.dot_name == "dot"
    found = {line.row.label: line.comparison for line in summary.lines}
    assert {*found} == {"dot, kept", "dot", "random", "none"}
    assert found["random"].is_primary
    assert found["random"].num_seeds == 3
    assert Run(out / "kept" / "seed2").result()["distance"] is None
    assert Run(out / "random" / "seed2").result()["distance"]["after"] > 0


@pytest.mark.parametrize(("file", "options", "said"), [
    ("a,4\n", {"metric": "accuracy"}, "has the label '4'"),
    ("a b,much\n", {"metric": "pearson"}, "score 'much'; expected a number"),
    ("a b,\n", {"metric": "accuracy"}, "rows have no label"),
    ("a,0.5\n", {"layers": 9}, "--layers is 9 and the model has 2"),
    ("a,0.5\n", {"max_len": 99}, "--max-len is 99 and the model has positions for"),
    ("a,0.5\n", {"synthesis": ("dot", "dot")}, "name each row once"),
    ("a,0.5\n", {"metric": "bleu"}, "--metric is 'bleu'; choose from accuracy"),
])  # fmt: skip
def test_what_cannot_be_done_is_refused(home, tmp_path, file, options, said):
    (tmp_path / "test.csv").write_text("text,label\n" + file)
    (tmp_path / "train.csv").write_text("text,label\n" + "w1 w2,0.5\nw3,1.5\n" * 10)
    files = {"train": tmp_path / "train.csv", "test": tmp_path / "test.csv"}
    with pytest.raises(UserError, match=said):
        transfer(Asked(str(home / "bert"), **files, out=tmp_path / "out",
                       **{"max_len": 11, **options}), print)  # fmt: skip
    assert not (tmp_path / "out").exists()
