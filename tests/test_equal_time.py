"""Equal seconds (--match time), and rows that are trained longer (--confirm 3x)."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from synthesizer.errors import UserError
from synthesizer.experiment.recipe import parse_recipe
from synthesizer.experiment.run import Run
from synthesizer.report.sections import notes, sections
from synthesizer.report.write import summarize_all
from synthesizer.study import confirm as confirming
from synthesizer.study.confirm import confirm, lengthen, parse_times
from synthesizer.study.match_time import fit_steps
from synthesizer.study.plan import draw_up
from synthesizer.training import preview
from test_study import Here, conducted, planned, study_of

SECONDS = {"dot": 0.04, "random": 0.02, "random+dot": 0.05, "none": 0.0799}


class Timed(Here):
    """A pool whose steps take what SECONDS says."""

    def __init__(self):
        self.timed = []

    def ask(self, order):
        if order["do"] != "time":
            return super().ask(order)
        own, dots = (parse_recipe(order[key]).synthesis for key in ("recipe", "beside"))
        self.timed.append((own, dots))
        slow = (1.0, 1.0, 7.0, 1.0, 3.0)  # what else the machine does
        return {"seconds": [(SECONDS[own] * load, SECONDS[dots] * load) for load in slow]}


def test_rows_train_for_as_many_seconds_as_dot_and_the_steps_are_recorded(asked):
    chosen = replace(asked, match="time", syntheses=tuple(SECONDS), controls=True, seeds=3)
    plan = planned(chosen)
    plan.out.mkdir()
    pool = Timed()
    found = fit_steps(plan, pool, lambda line: None)
    recipes = {row.label: found.recipe(row, 1) for row in found.rows}
    steps = {label: recipe.train.steps for label, recipe in recipes.items()}
    alike = {"dot": 12, "dot, other seeds": 12, "dot, as large as random+dot": 12}
    assert steps == {**alike, "random": 24, "random+dot": 10, "none": 6}
    assert recipes["random"].evaluate.every == 2 * recipes["dot"].evaluate.every
    (random,) = [row for row in found.rows if row.label == "random"]
    timed = "24 steps of 20 ms, as long as 12 of dot's 40 ms (in turns; two halves differ by 0.0%)"
    assert random.note == timed
    # the size control is a dot of its own, and is timed beside dot as well
    assert pool.timed == [(name, "dot") for name in ("random", "random+dot", "none", "dot")]
    later = Timed()
    assert fit_steps(planned(chosen), later, lambda line: None).rows == found.rows
    assert later.timed == [], "a study that goes on reads its record"
    assert {row["label"]: row["note"] for row in study_of(chosen)["rows"]}["random"] == random.note


def test_one_slow_step_does_not_move_the_number_of_steps(asked):
    class Disturbed(Timed):
        def ask(self, order):
            found = super().ask(order)
            if order["do"] == "time":
                found["seconds"][2] = (found["seconds"][2][0] * 50, found["seconds"][2][1])
            return found

    chosen = replace(asked, match="time", syntheses=("dot", "random"), seeds=3)
    plan = planned(chosen)
    plan.out.mkdir()
    rows = fit_steps(plan, Disturbed(), lambda line: None).rows
    assert "train.steps=24" in rows[1].changes


def test_two_recipes_take_their_steps_in_turns(asked, monkeypatch):
    taken = []
    take_step = preview.Loop.take_step

    def recorded(loop, batch):
        taken.append(loop.recipe.synthesis)
        return take_step(loop, batch)

    monkeypatch.setattr(preview, "TIMED", 4)
    monkeypatch.setattr(preview.Loop, "take_step", recorded)
    plan = planned(replace(asked, syntheses=("dot", "none")))
    dot, none = (plan.recipe(row, 1) for row in plan.rows[:2])
    found = preview.time_beside(none, dot)
    assert taken == ["dot", "none", "none", "dot", "dot", "none", "none", "dot"]
    assert len(found) == 3, "the first step warms up"
    assert all(seconds > 0 for pair in found for seconds in pair)


def test_a_study_of_equal_time_times_real_steps_and_says_so(asked):
    chosen = replace(asked, match="time", syntheses=("dot", "none"))
    plan = conducted(chosen)
    none = plan.recipe(plan.rows[1], 1)
    assert Run(plan.path(plan.rows[1], 1)).result()["steps"] == none.train.steps
    (summary,) = summarize_all([plan.out])
    assert "trained for as many seconds as dot" in "\n".join(notes(summary))
    steps = plan.recipe(plan.rows[0], 1).train.steps
    assert f"{steps} steps (of dot; the others train as long) of " in summary.scope
    (curves,) = [s.body for s in sections(summary) if s.heading == "Learning curves"]
    assert "by seconds of training, one curve per row" in curves


def test_a_confirmation_is_a_study_of_its_own_with_more_steps(asked, monkeypatch):
    plan = conducted(replace(asked, syntheses=("dot", "random", "none")))
    longer = lengthen(plan, {"dot", "random"}, 3)
    assert [row.label for row in longer.rows] == ["dot", "random"]
    assert [longer.recipe(row, 1).train.steps for row in longer.rows] == [36, 36]
    assert longer.shared.evaluate.every == 18

    def open_here(plan, say):
        plan.out.mkdir(exist_ok=True)
        return nullcontext(Here())

    monkeypatch.setattr(confirming, "open_workers", open_here)
    said = []
    assert confirm(plan, ["dot"], [], 3, said.append, plain=True) is None
    assert said == ["nothing to confirm: no decided row still comes closer to dot"]
    for _ in range(2):  # the second finds all of it done
        done = confirm(plan, ["dot"], ["random"], 3, said.append, plain=True)
    assert done.out == plan.out / "confirm-3x"
    first, second = summarize_all([plan.out])
    assert [line.row.label for line in first.lines if line.scores] != []
    assert second.study.name.endswith(" with 3 times the steps")
    assert {line.row.label for line in second.lines} == {"dot", "random"}
    assert "2 of 2 runs finished already" in said


@pytest.mark.parametrize("text", ["3", "1x", "x", "-2x"])
def test_how_much_longer_is_a_whole_number_of_times(text):
    assert parse_times("3x") == 3
    with pytest.raises(UserError, match=r"--confirm is .* expected how many times the steps"):
        parse_times(text)


def test_an_unknown_budget_is_refused(asked):
    with pytest.raises(UserError, match="choose from none, params, flops, time"):
        draw_up(replace(asked, match="energy"))
