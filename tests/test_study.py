"""Comparisons: fair by construction; nothing lost, mixed or hidden when something goes wrong."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import synthesizer_attention
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe import dump, load_recipe
from synthesizer_attention.run.run import Run
from synthesizer_attention.study.compare import conduct, fit_widths, list_commands, settle
from synthesizer_attention.study.plan import draw_up
from synthesizer_attention.study.tune import TRIAL_SEEDS, settings_of
from synthesizer_attention.study.worker import at_width, count, match_width, perform
from synthesizer_attention.study.workers import Task
from synthesizer_attention.tasks import build_task
from synthesizer_attention.training.build import build_model
from synthesizer_attention.training.loop import fit
from tiny import language_model


class Here:
    """An executor in this process, where torch is imported already."""

    capacity, place, notices = 1, "of one thread", ()

    def grow(self, size):
        pass

    def submit(self, do, **arguments):
        task = Task(do, **arguments)
        task.notes.append({"event": "start"})
        try:
            task.set_result(self.perform(task.order))
        except UserError as error:
            task.set_exception(error)
        return task

    def wait(self, tasks):
        return {*tasks}

    def perform(self, order):
        return perform(order)


@contextmanager
def here(folder, jobs, say=print):
    """A pool that starts no process, in the place of `open_pool`."""
    folder.mkdir(parents=True, exist_ok=True)
    yield Here()


def planned(asked):
    plan = draw_up(asked)
    settle(plan, lambda line: None)
    fit_widths(plan, Here(), lambda line: None)
    return plan


def conducted(asked):
    plan = draw_up(asked)
    plan.out.mkdir(exist_ok=True)
    return conduct(plan, Here(), print, plain=True)


def study_of(asked):
    return json.loads((asked.out / "study.json").read_text())


def test_the_default_rows_are_the_papers_table_and_two_controls(asked):
    labels = [row.label for row in planned(asked).rows]
    assert labels[0] == "dot"
    assert len(labels) == 12
    assert labels[-3:] == ["none", "dot, other seeds", "dot, as large as random+dot"]


def test_chosen_rows_have_the_two_controls_where_they_are_asked_for(asked):
    chosen = replace(asked, syntheses=("dot", "random"))
    assert [row.label for row in planned(chosen).rows] == ["dot", "random"]
    labels = [row.label for row in planned(replace(chosen, controls=True)).rows]
    assert labels == ["dot", "random", "dot, other seeds", "dot, as large as random+dot"]


def test_parameters_that_rows_share_start_equal_and_rows_see_equal_batches(asked):
    plan = planned(asked)
    starts, batches = [], []
    for row in plan.rows[:-2]:
        recipe = plan.recipe(row, 1)
        task = build_task(recipe)
        starts.append(build_model(recipe, task.tokenizer, task.labels).state_dict())
        stream = task.train_batches()
        batches.append([next(stream).inputs["input_ids"] for _ in range(5)])
    shared = set.intersection(*(set(start) for start in starts))
    assert any("feed_forward" in name for name in shared)
    for start in starts[1:]:
        both = start.keys() & starts[0].keys()
        assert all(torch.equal(start[name], starts[0][name]) for name in both)
    specs = {row.spec: start for row, start in zip(plan.rows, starts, strict=False)}
    place = "model.decoder.layers.0.attention.synthesis."
    for mixture, parts in (
        ("random+dot", ("random", "dot")),
        ("random+dense", ("random", "dense")),
    ):
        for number, part in enumerate(parts):
            names = [name for name in specs[part] if name.startswith(place)]
            assert names
            for name in names:
                inside = name.replace(place, f"{place}parts.{number}.")
                assert torch.equal(specs[mixture][inside], specs[part][name])
    for others in batches[1:]:
        assert all(torch.equal(*pair) for pair in zip(batches[0], others, strict=True))


def test_rows_differ_in_nothing_but_the_synthesis(asked):
    plan = planned(asked)
    recipes = [plan.recipe(row, 1) for row in plan.rows]
    bare = {dump(recipe.model_copy(update={"synthesis": "dot"})) for recipe in recipes[:-2]}
    assert len(bare) == 1
    assert recipes[-1].model.d_ff > recipes[0].model.d_ff


@pytest.mark.parametrize("measure", ["params", "flops"])
def test_matching_meets_the_budget_within_rounding(asked, measure):
    plan = planned(replace(asked, match=measure))
    assert [row.label for row in plan.rows][-2:] == ["none", "dot, other seeds"]
    dot, *others = [plan.recipe(row, 1) for row in plan.rows]
    budget = count(dot, measure)
    for recipe in others:
        slope = count(at_width(recipe, 2), measure) - count(at_width(recipe, 1), measure)
        assert abs(count(recipe, measure) - budget) <= slope / 2


def test_entries_of_a_causal_table_that_are_never_read_do_not_count(tmp_path):
    dot, random = (language_model(tmp_path, synthesis=spec) for spec in ("dot", "random"))
    layers, heads, length = dot.model.num_layers, dot.model.num_heads, dot.model.max_len
    tables = layers * heads * length * (length + 1) // 2
    queries_and_keys = layers * 2 * dot.model.d_model**2
    assert count(random, "params") - count(dot, "params") == tables - queries_and_keys
    window = language_model(tmp_path, "model.window=2", synthesis="random")
    assert count(random, "params") - count(window, "params") == tables - layers * heads * (
        2 * length - 1
    )


def test_a_row_too_large_to_match_is_named(asked, tmp_path):
    small = language_model(tmp_path, "model.max_len=64", "model.d_ff=8", synthesis="random")
    dot = language_model(tmp_path, "model.max_len=64", "model.d_ff=8", synthesis="dot")
    with pytest.raises(UserError, match=r"random has [\d,]+ params .* more than the [\d,]+ of dot"):
        match_width(small, dot, "params")


def test_the_listed_commands_make_the_runs_of_the_comparison(asked):
    plan = planned(replace(asked, seeds=2, quick=True, overrides=("train.steps=9",)))
    for row in plan.rows:
        for seed in plan.seeds:
            words = shlex.split(plan.command(row, seed))
            assert words[:2] == ["synthesizer", "train"]
            sets = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
            keys = [text.partition("=")[0] for text in sets]
            assert len(keys) == len(set(keys)), "each key once, as it ends up"
            spec = words[words.index("--synthesis") + 1]
            made = load_recipe(words[2], synthesis=spec, overrides=sets)
            assert made == plan.recipe(row, seed)
            assert Path(words[words.index("--out") + 1]) == plan.path(row, seed)
    paths = {plan.path(row, seed) for row in plan.rows for seed in plan.seeds}
    assert len(paths) == 22  # a quick look has no A/A row


def test_a_list_of_commands_cannot_know_what_tuning_chooses(asked):
    with pytest.raises(UserError, match="--plan cannot list the runs of --tune"):
        list_commands(replace(asked, tune=3), print)


ROTARY, RELATIVE = "sinusoidal+rotary", "sinusoidal+relative"


def test_a_row_has_settings_of_its_own(asked):
    asked = replace(asked, syntheses=("dot@model.positions=rotary", "V@model.d_ff=40", "random"))
    conducted(asked)
    rows = study_of(asked)["rows"]
    assert [row["label"] for row in rows] == ["dot, rotary", "dot, d_ff=40", "random"]
    assert rows[0]["runs"] == ["dot-positions=rotary/seed1"]
    assert rows[0]["settings"] == ["model.positions=rotary"]
    recipes = [Run(asked.out / row["runs"][0]).recipe() for row in rows]
    assert [recipe.model.positions for recipe in recipes] == ["rotary", "sinusoidal", "sinusoidal"]
    assert recipes[1].model.d_ff == 40
    assert draw_up(asked).rows[0].candidate
    assert not draw_up(asked).rows[1].candidate
    asked = replace(asked, syntheses=("dot@model.positions=rotary@model.equal_qk_init=true",))
    row = draw_up(asked).rows[0]
    assert (row.label, row.candidate) == ("dot, rotary, equal_qk_init=true", True)


@pytest.mark.parametrize(
    "setting", ["data.holdout=0.5", "seed=3", "model.positions", "model.kind=x"]
)
def test_a_row_cannot_set_what_all_rows_share(asked, setting):
    with pytest.raises(UserError, match=r"a row may set keys of \[model\] and \[train\], as in"):
        draw_up(replace(asked, syntheses=(f"dot@{setting}",)))


def test_a_number_of_heads_is_no_setting(asked):
    rows = draw_up(replace(asked, syntheses=("R@1|V@1@model.d_ff=40", "random@1|dot@1"))).rows
    assert [row.spec for row in rows] == ["random@1|dot@1"] * 2
    assert [row.label for row in rows] == ["random@1|dot@1, d_ff=40", "random@1|dot@1"]


def test_what_seeds_can_decide_is_said_before_they_are_run(asked, capsys):
    conducted(replace(asked, syntheses=("dot", "none"), seeds=3))
    said = capsys.readouterr().out
    told = "With 3 seeds and 1 row, a row equal to dot is decided in "
    assert said.index(told) < said.index("[0/6]")


def test_a_plan_for_a_cluster_is_refused(asked):
    with pytest.raises(UserError, match="--plan runs nothing on a cluster"):
        list_commands(replace(asked, jobs="ray:auto"), print)


def test_the_opponent_is_the_best_dot_product_on_validation_and_the_configured_one_stays(asked):
    """Trials have a seed of their own, and the controls follow the opponent."""
    conducted(asked := replace(asked, opponent="auto", syntheses=("dot", "random")))
    study = study_of(asked)
    told = study["opponent"]
    assert told["how"] == "chosen on validation"
    assert told["configured"] == "dot"
    trials = {}
    for trial in told["trials"]:
        run = Run(asked.out / trial["run"])
        assert run.recipe().seed == trial["seed"]
        assert run.result()["split"] == "validation"
        trials.setdefault(run.recipe().model.positions, {})[trial["seed"]] = trial["validation"]
    assert set(trials) == {"sinusoidal", RELATIVE, ROTARY}
    assert all(list(scores) == [*TRIAL_SEEDS] for scores in trials.values())
    best = min(trials, key=lambda kind: sum(trials[kind].values()))
    assert told["label"] == ("dot" if best == "sinusoidal" else f"dot, {best}")
    labels = [row["label"] for row in study["rows"]]
    assert labels == list(dict.fromkeys(["dot", "random", told["label"]]))
    shutil.move(asked.out / "trials", asked.out.parent / "elsewhere")
    conducted(asked)
    assert study_of(asked) == study, "also of a dot product that did not become a row"
    shutil.move(asked.out.parent / "elsewhere", asked.out / "trials")
    for row in study["rows"]:
        if row["label"] == told["label"]:
            assert Run(asked.out / row["runs"][0]).recipe().model.positions == best


def test_every_kind_of_positions_is_searched_as_any_other_row_is(asked):
    plan = draw_up(replace(asked, opponent="auto", tune=4, syntheses=("dot", "random")))
    assert [row.label for row in plan.rows] == [
        "dot",
        "random",
        f"dot, {RELATIVE}",
        f"dot, {ROTARY}",
    ]
    settings = [settings_of(plan.shared, number) for number in range(4)]
    tried = [[plan.recipe(row, 0, one) for one in settings] for row in plan.rows]
    rates = [[(recipe.train.lr, recipe.train.table_rate) for recipe in row] for row in tried]
    assert rates == [rates[0]] * 4
    assert [row[0].model.positions for row in tried[2:]] == [RELATIVE, ROTARY]


def test_controls_have_the_opponents_settings(asked):
    plan = planned(replace(asked, opponent=RELATIVE))
    rows = {row.label: row for row in plan.rows}
    assert plan.opponent["label"] == f"dot, {RELATIVE}"
    assert plan.opponent["how"] == "asked for"
    again, larger = rows["dot, other seeds"], rows["dot, as large as random+dot"]
    assert plan.recipe(again, 1).seed == 1001
    for row in (again, larger):
        assert plan.recipe(row, 1).model.positions == RELATIVE
    assert plan.recipe(larger, 1).model.d_ff > plan.shared.model.d_ff
    assert plan.recipe(rows["dot"], 1).model.positions == "sinusoidal"


def test_without_a_search_all_candidates_are_rows_and_the_report_chooses(asked, monkeypatch):
    plan = planned(replace(asked, opponent="auto", quick=True, tune=None))
    dots = [row.label for row in plan.rows if row.candidate]
    assert dots == ["dot", f"dot, {RELATIVE}", f"dot, {ROTARY}"]
    assert plan.opponent["label"] is None
    assert plan.asked.trials == 0
    monkeypatch.setattr("synthesizer_attention.study.compare.open_pool", here)
    assert list_commands(replace(asked, opponent="auto", tune=None), print)


def test_seeds_are_added_at_planned_looks_and_decided_rows_are_trained_no_further(
    asked, monkeypatch
):
    few = ("train.steps=2", "evaluate.every=2")
    asked = replace(asked, seeds=None, until_decided=True, overrides=few)
    asked = replace(asked, syntheses=("dot", "random", "none"))
    said = iter([["worse", "undecided"], ["worse", "better"]])

    def judged(dot, rows, **how):
        words = next(said)
        assert [row.label for row in rows] == ["random", "none"]
        return [
            SimpleNamespace(label=row.label, word=w) for row, w in zip(rows, words, strict=True)
        ]

    monkeypatch.setattr("synthesizer_attention.study.compare.judge", judged)
    conducted(asked)
    study = study_of(asked)
    assert study["looks"] == {"planned": [3, 5, 8, 12], "taken": [3, 5]}
    runs = {row["label"]: len(row["runs"]) for row in study["rows"]}
    assert runs == {"dot": 5, "random": 3, "none": 5}
    with pytest.raises(UserError, match="--until-decided looks at 3, 5, 8, 12 seeds; leave out"):
        draw_up(replace(asked, seeds=4))


def begin(asked, seeds):
    """A study that was killed once so many seeds of every row were finished."""
    plan = draw_up(asked)
    plan.out.mkdir(exist_ok=True)
    plan.write()
    for row in plan.rows:
        for seed in plan.seeds[:seeds]:
            path = plan.path(row, seed)
            path.mkdir(parents=True, exist_ok=True)
            (path / "result.json").write_text("{}")
    return plan


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"seeds": 5}, r"5 seeds \(seed1 to seed5\) now would be .*--set seed=6 --out DIR"),
        ({"seeds": 2}, r"2 seeds \(seed1 to seed2\) now would be"),
        ({"seeds": None, "until_decided": True}, "looks at 3, 5, 8, 12 seeds now would be"),
        ({"overrides": ("seed=7",)}, r"3 seeds \(seed7 to seed9\) now would be"),
    ],
)
def test_a_judged_study_gets_no_other_seeds(asked, other, said):
    asked = replace(asked, syntheses=("dot", "random"), seeds=3)
    begin(asked, 3)
    planned = r"was planned with 3 seeds \(seed1 to seed3\) and has runs to be judged by; "
    with pytest.raises(UserError, match=planned + said):
        draw_up(replace(asked, **other))
    assert draw_up(asked).seeds == (1, 2, 3)
    assert draw_up(replace(asked, syntheses=("dot", "random", "none"))).seeds == (1, 2, 3)


def test_a_study_that_nobody_could_judge_may_get_other_seeds(asked):
    """With fewer than three seeds there is no verdict that a change could follow."""
    asked = replace(asked, syntheses=("dot", "random"), seeds=5)
    begin(asked, 2)
    assert draw_up(replace(asked, seeds=3)).seeds == (1, 2, 3)
    assert draw_up(replace(asked, seeds=None, until_decided=True)).looks is not None
    begin(asked, 3)
    assert draw_up(asked).seeds == (1, 2, 3, 4, 5), "killed, it goes on"
    with pytest.raises(UserError, match=r"was planned with 5 seeds .* 3 seeds .* now would be"):
        draw_up(replace(asked, seeds=3))


def test_planned_looks_stay_and_say_what_was_not_planned(asked):
    asked = replace(asked, syntheses=("dot", "random"), seeds=None, until_decided=True)
    begin(asked, 3)
    with pytest.raises(UserError, match="was planned with looks at 3, 5, 8, 12 seeds and has"):
        draw_up(replace(asked, seeds=5, until_decided=False))
    study = study_of(asked)
    study["looks"]["unplanned"] = [3]
    (asked.out / "study.json").write_text(json.dumps(study))
    draw_up(asked).write()
    assert study_of(asked)["looks"] == {"planned": [3, 5, 8, 12], "taken": [3], "unplanned": [3]}


def test_a_larger_search_goes_on_where_a_smaller_one_ended(asked):
    asked = replace(asked, syntheses=("random",), tune=2)
    conducted(asked)
    first = [Run(asked.out / trial["run"]) for trial in study_of(asked)["rows"][0]["trials"]]
    times = [(run.path / "result.json").stat().st_mtime_ns for run in first]
    for run in first:  # as records are kept
        shutil.rmtree(run.model)
        shutil.rmtree(run.checkpoints)
    conducted(replace(asked, tune=3))
    trials = study_of(asked)["rows"][0]["trials"]
    found = {trial["run"]: trial["seed"] for trial in trials}
    assert found.keys() >= {str(run.path.relative_to(asked.out)) for run in first}
    assert [run.path.name for run in first] == ["trial1", "trial2", "trial1-again", "trial2-again"]
    assert [(run.path / "result.json").stat().st_mtime_ns for run in first] == times
    with pytest.raises(UserError, match="--tune: 3 -> 2"):
        draw_up(asked)
    with pytest.raises(UserError, match="--tune: 3 -> 0"):
        draw_up(replace(asked, tune=0))


def test_a_changed_recipe_goes_elsewhere_and_never_into_the_same_directory(asked):
    plan = draw_up(asked)
    plan.out.mkdir()
    plan.write()
    assert draw_up(replace(asked, seeds=5)).out == plan.out
    changed = replace(asked, overrides=("train.lr=0.5",))
    with pytest.raises(UserError, match=r"another comparison \(train\.lr: .* -> 0\.5\)"):
        draw_up(changed)
    with pytest.raises(UserError, match="--match: none -> params"):
        draw_up(replace(asked, match="params"))
    Path(plan.shared.data.train).write_text("other words\n" * 90)
    with pytest.raises(UserError, match="the data have changed"):
        draw_up(asked)
    assert draw_up(replace(asked, out=None)).out != draw_up(replace(changed, out=None)).out


def test_a_quick_look_says_what_it_leaves_out(asked):
    plan = draw_up(replace(asked, quick=True, seeds=None))
    assert plan.seeds == (1,)
    assert plan.shared.train.steps == 2
    assert plan.words[0] == "quick: one seed, 2 steps where the recipe has 12; no verdict"


def test_it_is_said_for_which_row_the_rates_were_chosen(asked):
    said = "learning rates of all rows: lr 0.001, tables x30;"
    unknown = f"{said} tuned for none of them (--tune K gives each its own)"
    assert draw_up(asked).words == (unknown,)
    assert draw_up(replace(asked, overrides=("chosen_for=dot",))).words == (
        f"{said} chosen for dot",
    )
    assert draw_up(replace(asked, tune=2)).words == ()


def test_a_wrong_option_is_refused_before_anything_runs(asked):
    with pytest.raises(UserError, match="--match is 'size'; choose from none, params, flops"):
        draw_up(replace(asked, match="size"))
    with pytest.raises(UserError, match="unknown synthesis 'randum'"):
        draw_up(replace(asked, syntheses=("randum",)))
    with pytest.raises(UserError, match="factorized_random"):
        planned(replace(asked, syntheses=("factorized_random:k=no",)))
    assert not asked.out.exists()


def test_data_that_cannot_be_read_leaves_no_comparison_behind(asked):
    """So that the next try, with another setting, may have the same place."""
    wrong = replace(asked, overrides=("data.columns.text=missing",))
    with pytest.raises(UserError, match=r"data\.columns\.text is 'missing'"):
        conducted(wrong)
    assert not (asked.out / "study.json").exists()


def test_a_failed_row_is_reported_and_the_others_go_on(asked, capsys, monkeypatch):
    """One row's directory is in use; once it is free, the same command does that row alone."""
    monkeypatch.setattr("synthesizer_attention.run.lock.PATIENCE", 0.0)
    asked = replace(asked, syntheses=("dot", "random", "none"))
    plan = draw_up(asked)
    plan.out.mkdir()
    plan.write()
    dot, random, none = (Run(plan.path(row, 1)) for row in plan.rows)
    with random.held(random_recipe := plan.recipe(plan.rows[1], 1)):
        conducted(asked)
    assert f"[2/3] random seed 1 failed: process {os.getpid()} on " in capsys.readouterr().out
    errors = [row["error"] for row in study_of(asked)["rows"]]
    assert errors[0] is None
    assert errors[1].startswith("seed 1: process ")
    assert dot.is_finished
    assert none.is_finished
    assert not random.is_finished
    first = (dot.path / "result.json").stat().st_mtime_ns

    conducted(asked)
    assert "2 of 3 runs finished already" in capsys.readouterr().out
    assert [row["error"] for row in study_of(asked)["rows"]] == [None] * 3
    assert (dot.path / "result.json").stat().st_mtime_ns == first
    assert random.recipe() == random_recipe


def test_the_best_trials_of_each_row_are_trained_again_and_the_mean_chooses(asked, capsys):
    plan = conducted(replace(asked, syntheses=("dot", "random"), tune=3))
    said = capsys.readouterr().out
    assert "search: 3 trials per variant, the best 2 of each again under a second seed" in said
    assert "for these trials (10 runs left, 1 worker" in said, "the second seeds are counted"
    for row, record in zip(plan.rows, study_of(asked)["rows"], strict=True):
        scores = {}
        for trial in record["trials"]:
            run = Run(asked.out / trial["run"])
            assert run.recipe().seed == trial["seed"]
            assert run.result()["split"] == "validation"
            assert run.result()["metrics"]["bits_per_byte"] == pytest.approx(trial["validation"])
            scores.setdefault(tuple(trial["changes"]), []).append(trial["validation"])
        first = sorted(scores, key=lambda changes: scores[changes][0])
        assert [len(scores[changes]) for changes in first] == [2, 2, 1]
        chosen = min(first[:2], key=lambda changes: sum(scores[changes]))
        train = Run(plan.path(row, 1)).recipe().train
        assert chosen == (f"train.lr={train.lr:.3g}", f"train.table_rate={train.table_rate:.3g}")
        assert Run(plan.path(row, 1)).result()["split"] == "test"
    assert study_of(asked)["search"] == {"repeated": 2, "seeds": [*TRIAL_SEEDS]}

    # a record is kept without its trials: study.json knows what they reached
    record = study_of(asked)
    shutil.rmtree(asked.out / "trials")
    conducted(asked := replace(asked, syntheses=("dot", "random"), tune=3))
    said = capsys.readouterr().out
    assert "6 of the trials are known from study.json" in said
    assert "2 of 2 runs finished already" in said
    assert not (asked.out / "trials").exists()
    assert study_of(asked) == record
    damaged = study_of(asked)
    damaged["rows"][1]["trials"][0]["validation"] = "good"
    (asked.out / "study.json").write_text(json.dumps(damaged))
    with pytest.raises(UserError, match=r"study\.json is not .* \(rows\.1\.trials\.0\.validation"):
        draw_up(asked)


def test_a_study_that_began_with_one_search_seed_goes_on_with_it(asked):
    """Other settings would make another study of it, after its verdict was seen."""
    asked = replace(asked, syntheses=("dot", "random"), tune=3)
    plan = draw_up(asked)
    plan.out.mkdir()
    conduct(replace(plan, repeated=0), Here(), print, plain=True)
    study = study_of(asked)
    del study["search"]  # as such studies were recorded
    (asked.out / "study.json").write_text(json.dumps(study))
    later = conducted(replace(asked, tune=None))
    assert (later.repeated, later.asked.trials) == (0, 3)
    assert not list(asked.out.glob("trials/*/*-again"))
    assert study_of(asked)["rows"] == study["rows"]
    assert study_of(asked)["search"] == {"repeated": 0, "seeds": [0]}


def test_no_seed_that_chooses_is_reported(asked):
    with pytest.raises(UserError, match="seed 0 chooses learning rates and is never reported; set"):
        draw_up(replace(asked, tune=2, overrides=("seed=0",)))
    draw_up(replace(asked, tune=0, overrides=("seed=0",)))


def test_other_systems_are_rows_too_where_they_can_be(asked):
    two = ("model.num_layers=2",)
    conducted(replace(asked, syntheses=("dot",), baselines=True, overrides=two))
    rows = {row["label"]: row for row in study_of(asked)["rows"]}
    left_out = rows.pop("linformer")
    assert "cannot be causal" in left_out["left_out"]
    assert left_out["error"] is None
    assert list(rows) == ["dot", "lightconv", "dynamicconv", "universal"]
    for row in rows.values():
        assert row["error"] is None
        assert Run(asked.out / row["runs"][0]).is_finished
    assert Run(asked.out / rows["universal"]["runs"][0]).recipe().model.universal


def test_planning_a_study_needs_neither_torch_nor_matplotlib():
    heavy = "{'torch', 'matplotlib'} & set(sys.modules)"
    script = f"import sys, synthesizer_attention.study.compare; print(sorted({heavy}))"
    home = str(Path(synthesizer_attention.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": home},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def start(asked, *words):
    """compare as a process of its own."""
    command = [sys.executable, "-m", "synthesizer_attention", "compare", asked.recipe, "--plain"]
    command += ["--seeds", "1", "--jobs", "1", "--tune", "0", "--opponent", "configured"]
    rows = [word for spec in ("dot", "random") for word in ("--synthesis", spec)]
    home = str(Path(synthesizer_attention.__file__).parents[1])
    return subprocess.Popen(
        [*command, *rows, "--out", str(asked.out), *words],
        env={**os.environ, "PYTHONPATH": home},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def workers_of(process):
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in children]


def wait_for(condition, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_study_killed_with_its_workers_goes_on_where_it_was(asked, tmp_path, capsys):
    """Killed in its second row by SIGKILL, then by Ctrl-C, then left to finish."""
    rare = ("train.steps=400", "train.checkpoint_every=20", "evaluate.every=200")
    Path(asked.recipe).write_text(dump(language_model(tmp_path, *rare)))
    undisturbed = Run(tmp_path / "undisturbed")
    fit(load_recipe(asked.recipe, synthesis="random"), undisturbed)
    dot, random = (Run(asked.out / spec / "seed1") for spec in ("dot", "random"))

    process = start(asked)
    wait_for(lambda: len(random.metrics()) > 3, process)
    for pid in [*workers_of(process), process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    assert dot.is_finished
    assert not random.is_finished
    first = (dot.path / "result.json").stat().st_mtime_ns

    process, begun = start(asked), len(random.metrics())
    wait_for(lambda: len(random.metrics()) > begun + 3, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert "interrupted with 1 of 2 runs finished; run the same command to continue" in said

    conducted(replace(asked, syntheses=("dot", "random")))
    assert "1 of 2 runs finished already" in capsys.readouterr().out
    assert (dot.path / "result.json").stat().st_mtime_ns == first
    undisturbed_lines = (undisturbed.path / "metrics.jsonl").read_text()
    assert (random.path / "metrics.jsonl").read_text() == undisturbed_lines
