"""The benchmark: what it measures, what it refuses, what it writes."""

import csv
import json
import os

import pytest

from synthesizer_attention.benchmark import explain as explain_module
from synthesizer_attention.benchmark import measure
from synthesizer_attention.benchmark.cases import build_case, count_flops, saved_bytes
from synthesizer_attention.benchmark.clock import Timing
from synthesizer_attention.benchmark.command import _numbers
from synthesizer_attention.benchmark.explain import explain
from synthesizer_attention.benchmark.measure import Plan, bench
from synthesizer_attention.benchmark.write import write
from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError

TINY = {
    "lengths": (8,),
    "tokens": 16,
    "d_model": 12,
    "num_heads": 3,
    "num_layers": 1,
    "vocab_size": 20,
    "rounds": 2,
}


def only(plan):
    """The one setting of a plan."""
    (setting,) = plan.settings()
    return setting


def test_speed_is_told_by_best_rounds_and_its_spread_by_all():
    ours, dot = Timing((2.0, 1.0)), Timing((2.0, 4.0))
    assert ours.speed_of(dot) == (2.0, 1.0, 4.0)


@pytest.mark.parametrize("mode", ["train", "inference", "lm", "classifier", "seq2seq", "decode"])
def test_every_mode_measures_every_kind_of_variant(mode, tmp_path):
    variants = ("random", "factorized_dense", "lightconv:kernel=3", "random+dot")
    plan = Plan(variants=variants, modes=(mode,), views=("padded",), peers=True, **TINY)
    told = []
    result = bench(plan, lambda *what: told.append(what))
    rows = {row.variant: row for row in result.rows}
    assert set(variants) | {"dot"} <= set(rows)
    assert rows["dot"].speed == 1.0
    assert all(row.best_seconds > 0 and row.tokens_per_second > 0 for row in result.rows)
    assert told[-1][0] == told[-1][1]
    page = write(result, "synthesizer bench", tmp_path)
    assert page.read_text().startswith("<!doctype html>")
    told = json.loads((tmp_path / "bench.json").read_text())
    assert told["command"] == "synthesizer bench"
    assert told["machine"]["kernel"] == "none"
    with (tmp_path / "bench.csv").open() as stream:
        assert [row["variant"] for row in csv.DictReader(stream)] == list(rows)


def test_lengths_share_the_tokens():
    plan = Plan(**{**TINY, "lengths": (4, 8), "tokens": 16})
    assert {(s.length, s.batch) for s in plan.settings()} == {(4, 4), (8, 2)}


def test_flops_of_dot_are_its_formula():
    """Four projections and two products, forward; twice that again for backward."""
    plan = Plan(modes=("inference",), views=("full",), **TINY)
    batch, length, width = 2, 8, 12
    forward = 2 * batch * (4 * length * width**2 + 2 * length**2 * width)
    assert count_flops("dot", only(plan)) == forward


def test_what_is_saved_for_backward_is_counted_in_training_alone():
    settings = [
        only(Plan(modes=(mode,), views=("full",), **TINY)) for mode in ("train", "inference")
    ]
    kept = [saved_bytes(build_case("dot", setting)) for setting in settings]
    assert kept[0] > 0
    assert kept[1] is None


def test_explaining_names_a_path_and_a_reason_for_each_variant(monkeypatch):
    plan = Plan(variants=("random", "lightconv"), views=("causal", "padded"), lengths=(128,))
    lines = {(name, view): (path, reason) for name, view, _, path, reason in explain(plan)}
    assert lines["random", "causal"] == ("table", "the logits do not depend on the input")
    monkeypatch.setattr(explain_module.fast, "has_kernel", lambda device: True)
    compiled = {(name, view): reason for name, view, _, _, reason in explain(plan)}
    assert (
        compiled["random", "causal"]
        == "the logits do not depend on the input; by the compiled kernel"
    )
    assert compiled["dot", "causal"] == lines["dot", "causal"][1]
    assert lines["dot", "padded"][0] == "fused"
    assert lines["lightconv", "padded"][0] == "its own"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"modes": ("nap",)}, "unknown mode 'nap'; choose from train, inference, lm"),
        ({"views": ("up",)}, "unknown view 'up'; choose from causal, full, padded"),
        ({"rounds": 0}, "rounds, lengths and threads must be at least 1"),
    ],
)
def test_a_plan_that_cannot_be_measured_is_refused(wrong, message):
    with pytest.raises(UserError, match=message):
        Plan(**wrong)


def test_a_plan_measures_every_number_of_threads():
    settings = list(Plan(modes=("train",), views=("causal",), threads=(1, 2)).settings())
    assert [setting.threads for setting in settings] == [1, 2]


def test_only_sublayers_are_compiled():
    with pytest.raises(UserError, match="only the modes train and inference are compiled"):
        Plan(modes=("lm",), compiled=True)


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


def test_threads_that_are_no_numbers_are_refused():
    assert _numbers("1,2") == (1, 2)
    with pytest.raises(UserError, match=r"--threads is 'two'; expected numbers such as 1 or 1,2"):
        _numbers("two")
