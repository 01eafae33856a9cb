"""Time and power of a study, before its first run."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from studies import Here, study_of
from synthesizer_attention.run.recipe import parse_recipe
from synthesizer_attention.study import budget
from synthesizer_attention.study.compare import check_plan
from synthesizer_attention.study.plan import draw_up
from synthesizer_attention.study.rows import QUICK_ROWS, Asked
from synthesizer_attention.study.tune import TRIALS


class Timed(Here):
    """Workers whose step takes so many seconds."""

    capacity = 2

    def __init__(self, step):
        self.step = step

    def perform(self, order):
        if order["do"] == "precision":
            return {"precision": "bfloat16", "why": "precision: bfloat16 (faster)"}
        assert order["do"] == "prepare", "nothing is trained"
        assert parse_recipe(order["recipe"]).train.precision != "auto"
        counts = {"validation": 30, "test": 30}
        found = {"examples": counts, "tokens": counts, "seconds_per_answer": 0.0}
        return {**found, "seconds_per_step": self.step, "metric": "accuracy"}


@pytest.fixture
def reviews(tmp_path):
    """A user's file."""
    rows = [f"film number {n} was {'good' if n % 2 else 'bad'},{n % 2}" for n in range(400)]
    path = tmp_path / "reviews.csv"
    path.write_text("\n".join(["text,label", *rows]))
    return Asked(str(path), out=tmp_path / "study")


def shortened(asked, step):
    said = []
    plan = draw_up(asked)
    budget.fit_budget(plan, Timed(step), said.append)
    return plan, said


@pytest.mark.parametrize(
    ("step", "trials", "few", "whole"),
    [
        (0.01, TRIALS, False, True),
        (0.6, 4, False, True),
        (0.8, TRIALS, True, True),
        (60, 3, True, False),
    ],
)
def test_a_users_study_fits_an_evening_and_goes_on_as_it_began(reviews, step, trials, few, whole):
    plan, said = shortened(reviews, step)
    steps = plan.shared.train.steps
    assert plan.asked.trials == trials
    assert ({row.spec for row in plan.rows} == {*QUICK_ROWS}) == few
    assert (steps == draw_up(reviews).shared.train.steps) == whole
    assert any(line.startswith("to fit an evening, 3.0 h: ") for line in said) == (step > 0.01)
    each = steps * step + budget.SETTLING
    if steps > budget.FEWEST_STEPS:
        assert budget.num_runs(plan) * each / 2 < 1.05 * budget.EVENING
    plan.out.mkdir()
    plan.write()
    later, again = shortened(reviews, 0.01)
    assert not any(line.startswith("to fit an evening") for line in again)
    assert (later.shared, later.asked.trials) == (plan.shared, trials)
    assert [row.label for row in later.rows] == [row.label for row in plan.rows]
    assert study_of(reviews)["tune"] == trials


def test_what_a_user_sets_is_not_shortened(reviews):
    mine = replace(reviews, tune=5, syntheses=("dot", "random"), overrides=("train.steps=300",))
    plan, said = shortened(mine, 60)
    assert (plan.asked.trials, plan.shared.train.steps) == (5, 300)
    assert not any("evening" in line for line in said)
    # dot with three kinds of positions, random with two, the best two again; dropout, tokenizer
    assert "(46 runs); --quick: " in said[-1]
    assert said[-1].startswith("about 115.0 h on 2 workers of one thread (46 runs)")


def test_auto_is_one_precision_for_all_rows_and_later_seeds(reviews):
    asked = replace(reviews, overrides=("train.precision=auto",))
    plan, said = shortened(asked, 0.01)
    assert "precision: bfloat16 (faster)" in said
    assert {plan.recipe(*run).train.precision for run in plan.runs} == {"bfloat16"}
    assert "precision=bfloat16" in plan.command(*plan.runs[0])
    plan.out.mkdir()
    plan.write()
    later = draw_up(asked)  # goes on: nothing is timed again
    assert later.shared == plan.shared
    assert 'precision = "auto"' in study_of(asked)["inferred"]


def test_check_says_power_time_and_rows_and_writes_nothing(asked, monkeypatch):
    @contextmanager
    def timed(folder, jobs, say):
        assert folder != asked.out
        yield Timed(0.1)

    monkeypatch.setattr("synthesizer_attention.study.compare.open_pool", timed)
    said = []
    check_plan(replace(asked, seeds=3, quick=True), said.append)
    assert not asked.out.exists()
    power, time, rows = said[-3:]
    assert power.startswith("With 3 seeds and 4 rows (dot has 6 seeds), a row equal to dot")
    assert time == "about 1 min on 1 worker of one thread (18 runs)"
    assert rows == "rows and their seeds: dot 6; random 3; dense 3; random+dot 3; none 3"


def test_where_texts_are_compared_dot_may_start_with_equal_queries_and_keys(tmp_path):
    rows = [f"what is number {n} of a,is it {n * 7 % 13} of things {n},{n % 2}" for n in range(400)]
    path = tmp_path / "pairs.csv"
    path.write_text("\n".join(["question1,question2,is_duplicate", *rows]))
    plan = draw_up(Asked(str(path), syntheses=("dot", "random+dot"), out=tmp_path / "study"))
    start, own = "equal_qk_init=true", "sinusoidal+relative"
    dots = [row.label for row in plan.rows if row.candidate]
    assert {f"dot, {start}", f"dot, {own}, {start}"} < {*dots}
