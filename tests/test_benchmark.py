"""The benchmark: what it measures, what it refuses, what it writes."""

import csv
import json
import os
from dataclasses import replace

import pytest
import torch

from synthesizer_attention.bench import cases, measure, page
from synthesizer_attention.bench import plan as plans
from synthesizer_attention.bench.plan import Plan
from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError
from synthesizer_attention.training.meter import clock_name, now, peak_memory

CPU = torch.device("cpu")
TINY = {"lengths": (8,), "tokens": 16, "d_model": 12, "num_heads": 3, "num_layers": 1}
TINY |= {"vocab_size": 20, "rounds": 2}


@pytest.mark.parametrize("mode", plans.MODES)
def test_every_mode_measures_every_kind_of_variant(mode, tmp_path):
    variants = ("random", "factorized_dense", "lightconv:kernel=3", "random+dot")
    plan = Plan(variants=variants, modes=(mode,), views=("padded",), peers=True, **TINY)
    told = []
    result = measure.bench(plan, lambda *what: told.append(what))
    rows = {row.variant: row for row in result.rows}
    assert {*variants, "dot"} <= {*rows}
    assert rows["dot"].speed == rows["dot"].speed_low == rows["dot"].speed_high == 1.0
    for row in result.rows:
        assert row.best_seconds <= row.median_seconds
        assert row.speed == pytest.approx(rows["dot"].best_seconds / row.best_seconds)
        assert (row.saved_bytes is None) == (mode in ("inference", "decode", "translate"))
    assert told[-1][0] == told[-1][1]
    written = page.write(result, "synthesizer bench", tmp_path)
    shown = written.read_text()
    assert "All variants ran in turn for 2 rounds" in shown
    assert shown.count("<svg") == 1 + (rows["dot"].saved_bytes is not None)
    told = json.loads((tmp_path / "bench.json").read_text())
    assert (told["command"], told["machine"]["kernel"]) == ("synthesizer bench", "none")
    with (tmp_path / "bench.csv").open() as stream:
        assert [row["variant"] for row in csv.DictReader(stream)] == [*rows]


def test_lengths_share_the_tokens_and_every_number_of_threads_is_measured():
    plan = Plan(**{**TINY, "lengths": (4, 8), "tokens": 16, "threads": "1,2"})
    found = {(s.length, s.batch, s.threads) for s in plan.settings()}
    assert found == {(4, 4, 1), (4, 4, 2), (8, 2, 1), (8, 2, 2)}


def test_flops_of_dot_are_its_formula():
    """Four projections and two products, forward."""
    (setting,) = Plan(modes=("inference",), views=("full",), **TINY).settings()
    batch, length, width = 2, 8, 12
    forward = 2 * batch * (4 * length * width**2 + 2 * length**2 * width)
    assert cases.count_flops("dot", setting) == forward


def test_both_precisions_are_measured_each_beside_its_own_dot():
    plan = Plan(variants=("dense",), modes=("train",), views=("causal",), peers=True,
                precision="float32,bfloat16", **{**TINY, "rounds": 1})  # fmt: skip
    rows = [
        *measure.bench(plan).rows,
        *measure.bench(replace(plan, modes=("lm",), peers=False)).rows,
    ]
    assert {row.precision for row in rows} == {"float32", "bfloat16"}
    assert [row.speed for row in rows if row.variant == "dot"] == [1.0] * 4
    assert sum(row.variant == plans.FUSED for row in rows) == 2
    saved = {row.precision: row.saved_bytes for row in rows if row.variant == plans.FUSED}
    assert saved["bfloat16"] < saved["float32"]


def test_explaining_names_a_path_and_a_reason_for_each_variant(monkeypatch):
    plan = Plan(variants=("random", "lightconv"), views=("causal", "padded"), lengths=(128,))
    lines = {(name, view): (path, why) for name, view, _, path, why in cases.explain(plan)}
    assert lines["random", "causal"] == ("table", "the logits do not depend on the input")
    assert lines["dot", "padded"][0] == "fused"
    assert lines["lightconv", "padded"][0] == "its own"
    monkeypatch.setattr(cases.fast, "has_kernel", lambda device: True)
    compiled = {(name, view): why for name, view, _, _, why in cases.explain(plan)}
    by_kernel = "the logits do not depend on the input; by the compiled kernel"
    assert compiled["random", "causal"] == by_kernel
    assert compiled["dot", "causal"] == lines["dot", "causal"][1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"modes": ("nap",)}, "unknown mode 'nap'; choose from train, inference, lm"),
        ({"views": ("up",)}, "unknown view 'up'; choose from causal, full, padded"),
        ({"threads": "two"}, "--threads is 'two'; expected numbers such as 1 or 1,2"),
        ({"threads": "0"}, "--threads is '0'"),
        ({"precision": "half"}, "--precision is 'half'; expected float32, bfloat16 or float32,"),
        ({"device": "abacus"}, "torch has no device 'abacus' here"),
    ],
)
def test_a_plan_that_cannot_be_measured_is_refused(wrong, message):
    with pytest.raises(UserError, match=message):
        Plan(**wrong)


def test_a_file_where_results_should_go_is_refused_before_anything_is_timed(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(measure, "bench", lambda *_: pytest.fail("timed"))
    (tmp_path / "out").write_text("mine")
    assert main(["bench", "--out", str(tmp_path / "out")]) == 2
    assert f"{tmp_path / 'out'} is not a directory; name another --out" in capsys.readouterr().err
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr("os.access", lambda path, mode, **_: mode != os.W_OK)
    assert main(["bench", "--out", str(tmp_path / "closed")]) == 2
    assert f"{tmp_path / 'closed'} may not be written; make it writable" in capsys.readouterr().err


def test_memory_is_the_most_that_new_tensors_take_at_once():
    """A process that has had the memory before says the same."""
    standing = torch.zeros(10_000_000)
    for _ in range(2):
        with peak_memory(CPU) as memory:
            first = torch.zeros(1_000_000)
            second = torch.zeros(2_000_000)
            del first
            third = torch.zeros(500_000)
        assert memory.peak == 4 * 3_000_000
        del second, third
    assert standing.numel() == 10_000_000
    with peak_memory(CPU) as memory:
        pass
    assert memory.peak == 0


def test_one_thread_reads_its_own_clock_and_more_the_walls(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert clock_name(CPU) == "wall clock"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert clock_name(CPU) == "processor time of one thread"
    begin = now(CPU)
    assert now(CPU) >= begin


def test_growth_takes_one_sequence_of_each_length_then_width(monkeypatch, tmp_path):
    monkeypatch.setattr(plans, "LENGTHS", (4, 8))
    monkeypatch.setattr(plans, "WIDTHS", (6, 12))
    monkeypatch.setattr(plans, "MOST_BYTES", 8 * 4**2)  # a table of length 8 takes more
    plan = Plan(variants=("random", "dense"), modes=("train",), views=("causal",), growth=True,
                **{**TINY, "num_heads": 1})  # fmt: skip
    result = measure.bench(plan)
    found = [(row.variant, row.length, row.d_model, row.batch) for row in result.rows]
    assert [each[1:] for each in found if each[0] == "dense"] == [(4, 12, 1), (8, 12, 1), (8, 6, 1)]
    assert [each[1:3] for each in found if each[0] == "random"] == [(4, 12)]
    shown = page.write(result, "synthesizer bench", tmp_path).read_text()
    assert shown.count("<svg") == 2


def test_compiled_variants_run_in_the_rounds_of_eager_ones():
    plan = Plan(variants=("random",), compiled=True, peers=True, **TINY)
    by_mode = {setting.mode: plan.names(setting) for setting in plan.settings()}
    assert by_mode["train"][:4] == ["dot", "random", "dot, compiled", "random, compiled"]
    (setting,) = Plan(modes=("lm",), compiled=True, **TINY).settings()
    assert "Hugging Face GPT-2, compiled" in replace(plan, modes=("lm",)).names(setting)
