"""Comparisons: fair by construction; nothing lost, mixed or hidden when something goes wrong."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from corpus import ENGLISH, SMALL
from studies import Here, conducted, here, planned, rewrite, study_of
from synthesizer_attention.errors import UserError
from synthesizer_attention.report.load import read_studies
from synthesizer_attention.report.summary import summarize
from synthesizer_attention.report.write import text_of, write_report
from synthesizer_attention.run.progress import Interrupted
from synthesizer_attention.run.recipe import dump, load_recipe
from synthesizer_attention.run.run import Run
from synthesizer_attention.study.compare import list_commands
from synthesizer_attention.study.plan import draw_up
from synthesizer_attention.study.rows import Asked
from synthesizer_attention.study.search import settle
from synthesizer_attention.study.tune import TRIAL_SEEDS, settings_of
from synthesizer_attention.study.worker import at_width, count, match_width
from synthesizer_attention.tasks import build_task
from synthesizer_attention.training.build import build_model
from synthesizer_attention.training.loop import fit
from tiny import environment, language_model

ROTARY, RELATIVE = "sinusoidal+rotary", "sinusoidal+relative"


def made(folder, **asked):
    """A comparison that is run once for all tests, and its plan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYNTHESIZER_CACHE", str(folder / "cache"))
        if "recipe" not in asked:
            asked["recipe"] = str(folder / "tiny.toml")
            few = ("train.steps=4", "evaluate.every=4", "train.warmup=1")
            Path(asked["recipe"]).write_text(dump(language_model(folder, *few)))
        done = Asked(out=folder / "study", seeds=1, jobs="1", **asked)
        said = []
        return done, conducted(done, say=said.append), said


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Learning rates and dot's positions were searched, three trials each; two rows were asked."""
    folder = tmp_path_factory.mktemp("searched")
    return made(folder, syntheses=("dot", "random"), tune=3)


@pytest.fixture
def searched(finished, tmp_path):
    """A copy of it, to change."""
    asked = replace(finished[0], out=tmp_path / "copy")
    shutil.copytree(finished[0].out, asked.out)
    return asked


def test_rows_are_the_papers_table_and_two_controls_or_those_asked_for(asked):
    labels = [row.label for row in planned(asked).rows]
    assert labels[0] == "dot"
    assert len(labels) == 12
    controls = ["dot, other seeds", "dot, as large as random+dot"]
    assert labels[-3:] == ["none", *controls]
    chosen = replace(asked, syntheses=("dot", "random"))
    assert [row.label for row in planned(chosen).rows] == ["dot", "random"]
    labels = [row.label for row in planned(replace(chosen, controls=True)).rows]
    assert labels == ["dot", "random", *controls]


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


@pytest.mark.parametrize(
    ("measure", "specs"), [("params", ()), ("flops", ("dot", "dense", "none"))]
)
def test_matching_meets_the_budget_within_rounding(asked, measure, specs):
    plan = planned(replace(asked, match=measure, syntheses=specs, controls=True))
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


def test_a_row_too_large_to_match_is_named(tmp_path):
    sizes = ("model.max_len=64", "model.d_ff=8")
    small, dot = (language_model(tmp_path, *sizes, synthesis=spec) for spec in ("random", "dot"))
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
    assert len(paths) == 10  # a quick look has five rows


def test_a_list_of_commands_cannot_know_what_is_chosen_later(asked):
    with pytest.raises(UserError, match="--plan cannot list the runs of --tune"):
        list_commands(replace(asked, tune=3), print)
    with pytest.raises(UserError, match="--plan runs nothing on a cluster"):
        list_commands(replace(asked, jobs="ray:auto"), print)


def test_a_row_has_settings_of_its_own(asked):
    specs = ("dot@model.positions=rotary", "V@model.d_ff=40", "random@1|dot@1@model.d_ff=40")
    specs += ("R@1|V@1", "dot@model.positions=rotary@model.equal_qk_init=true")
    plan = draw_up(replace(asked, syntheses=specs))
    assert [row.label for row in plan.rows] == [
        "dot, rotary",
        "dot, d_ff=40",
        "random@1|dot@1, d_ff=40",  # a number of heads is no setting
        "random@1|dot@1",
        "dot, rotary, equal_qk_init=true",
    ]
    assert [row.candidate for row in plan.rows] == [True, False, False, False, True]
    models = [plan.recipe(row, 1).model for row in plan.rows]
    assert [model.positions for model in models[:3]] == ["rotary", "sinusoidal", "sinusoidal"]
    assert [model.d_ff for model in models[:4]] == [32, 40, 40, 32]
    assert plan.path(plan.rows[0], 1) == asked.out / "dot-positions=rotary" / "seed1"
    plan.out.mkdir()
    plan.write()
    assert study_of(asked)["rows"][0]["settings"] == ["model.positions=rotary"]
    for setting in ("data.holdout=0.5", "seed=3", "model.positions", "model.kind=x"):
        with pytest.raises(UserError, match=r"a row may set keys of \[model\] and \[train\], as"):
            draw_up(replace(asked, syntheses=(f"dot@{setting}",)))


def test_the_best_trials_of_each_row_are_trained_again_and_the_mean_chooses(finished):
    asked, plan, said = finished
    search = "search: 3 trials per variant, the best 2 of each again under a second seed"
    assert any(line.startswith(search) for line in said)
    assert any("for these trials (25 runs left, 1 worker" in line for line in said)
    study = study_of(asked)
    assert study["search"] == {"repeated": 2, "seeds": [*TRIAL_SEEDS], "every_row": True}
    assert study["rule"] == "graph"
    for row, record in zip(plan.rows, study["rows"], strict=True):
        scores = {}
        for trial in record["trials"]:
            run = Run(asked.out / trial["run"])
            assert run.recipe().seed == trial["seed"]
            assert run.result()["split"] == "validation"
            assert run.result()["metrics"]["bits_per_byte"] == pytest.approx(trial["validation"])
            setting = run.recipe().model.positions, *trial["changes"]
            scores.setdefault(setting, []).append(trial["validation"])
        for kind in {positions for positions, *_ in scores}:
            first = sorted((s for s in scores if s[0] == kind), key=lambda one: scores[one][0])
            assert [len(scores[one]) for one in first] == [2, 2, 1]
        twice = [one for one in scores if len(scores[one]) == 2]
        chosen = min(twice, key=lambda one: sum(scores[one]))
        recipe = Run(plan.path(row, 1)).recipe()
        train = recipe.train
        rates = f"train.lr={train.lr:.3g}", f"train.table_rate={train.table_rate:.3g}"
        assert chosen == (recipe.model.positions, *rates)
        assert Run(plan.path(row, 1)).result()["split"] == "test"


def test_the_opponent_is_the_best_dot_product_on_validation_and_the_configured_one_stays(finished):
    asked, plan, _ = finished
    study = study_of(asked)
    told = study["opponent"]
    assert (told["how"], told["configured"]) == ("chosen on validation", "dot")
    tried = {}
    for trial in told["trials"]:
        assert Run(asked.out / trial["run"]).recipe().model.positions == trial["positions"]
        key = trial["positions"], tuple(trial["changes"])
        tried.setdefault(key, []).append(trial["validation"])
    assert {kind for kind, _ in tried} == {"sinusoidal", RELATIVE, ROTARY}
    twice = {key: scores for key, scores in tried.items() if len(scores) == 2}
    best, _ = min(twice, key=lambda key: sum(twice[key]))
    assert told["label"] == ("dot" if best == "sinusoidal" else f"dot, {best}")
    labels = [row["label"] for row in study["rows"]]
    assert labels == list(dict.fromkeys(["dot", "random", told["label"]]))
    row = plan.rows[labels.index(told["label"])]
    assert Run(plan.path(row, 1)).recipe().model.positions == best


def test_a_record_without_its_trials_goes_on_and_a_damaged_one_does_not(searched, capsys):
    """study.json knows what they reached, also those of a dot product that is no row."""
    record = study_of(searched)
    shutil.rmtree(searched.out / "trials")
    conducted(searched)
    said = capsys.readouterr().out
    assert "15 of the trials are known from study.json" in said
    assert f"{len(record['rows'])} of {len(record['rows'])} runs finished already" in said
    assert not (searched.out / "trials").exists()
    assert study_of(searched) == record
    rewrite(searched, lambda s: s["rows"][1]["trials"][0].update(validation="good"))
    with pytest.raises(UserError, match=r"study\.json is not .* \(rows\.1\.trials\.0\.validation"):
        draw_up(searched)


def test_a_larger_search_goes_on_where_a_smaller_one_ended(searched):
    first = [Run(path.parent) for path in searched.out.glob("trials/*/*/result.json")]
    times = [(run.path / "result.json").stat().st_mtime_ns for run in first]
    for run in first:  # as records are kept
        shutil.rmtree(run.model)
        shutil.rmtree(run.checkpoints)
    conducted(replace(searched, tune=4))
    trials = [trial["run"] for row in study_of(searched)["rows"] for trial in row["trials"]]
    assert {"trials/dot/trial4", "trials/random/trial4", "trials/dot/trial1"} <= {*trials}
    assert [(run.path / "result.json").stat().st_mtime_ns for run in first] == times
    for fewer in (3, 0):
        with pytest.raises(UserError, match=f"--tune: 4 -> {fewer}"):
            draw_up(replace(searched, tune=fewer))


def test_a_study_that_began_with_one_search_seed_goes_on_with_it(searched):
    """Other settings would make another study of it, after its verdict was seen."""
    for path in searched.out.glob("trials/*/*-again"):
        shutil.rmtree(path)

    def as_it_was(study):
        del study["search"]
        for holder in (*study["rows"], study["opponent"]):
            holder["trials"] = [trial for trial in holder["trials"] if not trial["seed"]]

    rewrite(searched, as_it_was)
    later = conducted(replace(searched, tune=None))
    assert (later.repeated, later.asked.trials) == (0, 3)
    assert not list(searched.out.glob("trials/*/*-again"))
    assert study_of(searched)["search"] == {"repeated": 0, "seeds": [0], "every_row": False}


def test_rows_can_be_judged_against_another_row(searched):
    conducted(replace(searched, against=("R",)))
    assert study_of(searched)["against"] == ["random"]
    (study,) = read_studies([searched.out])
    summary = summarize(study)
    (opponent,) = summary.rivals
    assert opponent.label == "random"
    assert "random" not in opponent.compared
    scores = {line.row.label: line.mean for line in summary.lines}
    for label, comparison in opponent.compared.items():
        assert comparison.difference == pytest.approx(scores[label] - scores["random"])
    assert "## Against random" in text_of([summary])
    with pytest.raises(UserError, match="--against lightconv is not a row; choose from dot, rand"):
        draw_up(replace(searched, against=("lightconv",)))


def test_every_kind_of_positions_is_searched_as_any_other_row_is(asked):
    plan = draw_up(replace(asked, opponent="auto", tune=4, syntheses=("dot", "random")))
    assert [row.label for row in plan.rows] == [
        "dot",
        "random",
        f"dot, {RELATIVE}",
        f"dot, {ROTARY}",
        f"random, {RELATIVE}",  # rotary positions turn queries, which it has none of
    ]
    settings = [settings_of(plan.shared, number) for number in range(4)]
    tried = [[plan.recipe(row, 0, one) for one in settings] for row in plan.rows]
    rates = [[(recipe.train.lr, recipe.train.table_rate) for recipe in row] for row in tried]
    assert rates == [rates[0]] * 5
    assert [row[0].model.positions for row in tried[2:]] == [RELATIVE, ROTARY, RELATIVE]


def test_mixtures_take_dots_settings_and_the_best_row_without_dot_is_primary(asked):
    specs = ("dot", "none", "random", "dense", "random+dot", "dense+dot@model.positions=rotary")
    plan = draw_up(replace(asked, opponent="auto", tune=2, syntheses=specs))
    reached = {f"dot, {ROTARY}": 1.0, f"random, {RELATIVE}": 2.0, "none": 0.5, "random+dot": 0.5}
    plan.rows = tuple(
        replace(
            row,
            trials=(
                {
                    "run": f"trials/{row.folder}/trial1",
                    "changes": [],
                    "validation": reached.get(row.label, 3.0),
                    "higher_is_better": False,
                },
            ),
        )
        for row in plan.rows
    )
    said = []
    settle(plan, said.append)
    assert plan.opponent["label"] == f"dot, {ROTARY}"
    positions = {row.label: plan.recipe(row, 1).model.positions for row in plan.rows}
    assert positions == {
        "dot": "sinusoidal",
        "none": "sinusoidal",
        "random": RELATIVE,
        "dense": "sinusoidal",
        "random+dot": ROTARY,
        "dense+dot, rotary": "rotary",
        f"dot, {ROTARY}": ROTARY,
    }
    notes = {row.label: row.note for row in plan.rows}
    assert notes["random+dot"] == f"{ROTARY}, as dot, {ROTARY}"
    assert notes["random"] == f"{RELATIVE}, chosen on validation"
    assert plan.primary == "random"
    assert "primary row: random, without dot product and best on validation" in said[-1]


def test_the_primary_row_and_dots_seeds_are_planned_once(asked):
    asked = replace(asked, syntheses=("dot", "random", "dense", "none", "random+dot"), seeds=3)
    plan = begin(asked, 3)
    assert plan.primary == study_of(asked)["primary"] == "random", "the first without dot"
    seeds = {row.label: plan.seeds_of(row) for row in plan.rows}
    assert seeds.pop("dot") == (1, 2, 3, 4, 5, 6)
    assert {*seeds.values()} == {(1, 2, 3)}
    assert [seed for row, seed in plan.runs if row.label == "dot"] == [1, 2, 3, 4, 5, 6]
    lightconv = replace(asked, syntheses=(*asked.syntheses, "lightconv", "factorized_random"))
    for later in (planned(asked), planned(lightconv)):
        assert later.primary == "random"
        assert later.seeds_of(later.rows[0]) == (1, 2, 3, 4, 5, 6)
    with pytest.raises(
        UserError, match=r"the primary row random .*; --primary dense would be chos"
    ):
        draw_up(replace(asked, primary="dense"))
    with pytest.raises(
        UserError, match=r"--primary linear is not a row .* choose from random, den"
    ):
        draw_up(replace(asked, primary="linear"))
    fresh = replace(asked, out=asked.out.parent / "fresh", primary="D")
    assert planned(fresh).primary == "dense"
    rewrite(asked, lambda study: study.update(rule="holm", primary=None))
    rewrite(asked, lambda study: study["rows"][0].update(runs=study["rows"][0]["runs"][:3]))
    old = planned(asked)
    assert (old.primary, {old.seeds_of(row) for row in old.rows}) == (None, {(1, 2, 3)})


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
    plan = planned(replace(asked, opponent="auto", lists_commands=True, tune=None))
    dots = [row.label for row in plan.rows if row.candidate]
    assert dots == ["dot", f"dot, {RELATIVE}", f"dot, {ROTARY}"]
    assert plan.opponent["label"] is None
    assert {plan.seeds_of(row) for row in plan.rows} == {(1,)}, "no dot has more seeds"
    assert plan.asked.trials == 0
    monkeypatch.setattr("synthesizer_attention.study.compare.open_pool", here)
    assert list_commands(replace(asked, opponent="auto", tune=None), print)


def test_seeds_are_added_at_planned_looks_and_decided_rows_are_trained_no_further(
    asked, monkeypatch, capsys
):
    few = ("train.steps=2", "evaluate.every=2")
    asked = replace(asked, seeds=None, until_decided=True, overrides=few)
    asked = replace(asked, syntheses=("dot", "random", "none"))
    said = iter([["worse", "undecided"], ["worse", "better"]])

    def judged(dot, rows, **how):
        words = next(said)
        assert how["primary"] == "random"
        assert [row.label for row in rows] == ["random", "none"]
        return [
            SimpleNamespace(label=row.label, word=w) for row, w in zip(rows, words, strict=True)
        ]

    monkeypatch.setattr("synthesizer_attention.study.compare.judge", judged)
    conducted(asked)
    printed = capsys.readouterr().out
    told = "With 3 seeds and 2 rows (dot has 4 seeds), a row equal to dot is decided in "
    assert printed.index(told) < printed.index("[0/10]"), "before they are run"
    study = study_of(asked)
    assert study["looks"] == {"planned": [3, 5, 8, 12], "taken": [3, 5]}
    runs = {row["label"]: len(row["runs"]) for row in study["rows"]}
    assert runs == {"dot": 7, "random": 3, "none": 5}
    with pytest.raises(UserError, match="--until-decided looks at 3, 5, 8, 12 seeds; leave out"):
        draw_up(replace(asked, seeds=4))


def begin(asked, seeds):
    """A study that was killed once so many seeds of every row were finished."""
    plan = planned(asked)
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
    rewrite(asked, lambda study: study["looks"].update(unplanned=[3]))
    draw_up(asked).write()
    assert study_of(asked)["looks"] == {"planned": [3, 5, 8, 12], "taken": [3], "unplanned": [3]}


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
    plan = planned(replace(asked, quick=True, seeds=None, opponent="auto", tune=None))
    assert [row.spec for row in plan.rows] == ["dot", "random", "dense", "random+dot", "none"]
    assert [len(plan.seeds_of(row)) for row in plan.rows] == [6, 3, 3, 3, 3]
    assert {plan.recipe(row, 1).model.positions for row in plan.rows} == {RELATIVE}
    assert plan.opponent["label"] == "dot"
    assert plan.shared.train.steps == 2
    assert plan.words[0].startswith(
        f"quick: 5 rows, 2 steps where the recipe has 12, all with {RELATIVE} positions;"
    )


def test_it_is_said_for_which_row_the_rates_were_chosen(asked):
    said = "learning rates of all rows: lr 0.001, tables x30;"
    unknown = f"{said} tuned for none of them (--tune K gives each its own)"
    assert draw_up(asked).words == (unknown,)
    assert draw_up(replace(asked, overrides=("chosen_for=dot",))).words == (
        f"{said} chosen for dot",
    )
    assert draw_up(replace(asked, tune=2)).words == ()


WRONG = {
    "--match is 'size'; choose from none, params, flops": {"match": "size"},
    "unknown synthesis 'randum'": {"syntheses": ("randum",)},
    "--tune with --pretrain would pretrain every trial": {"pretrain": "pretrain", "tune": 2},
    r"--set pretrain.* changes nothing without": {"overrides": ("pretrain.train.steps=2",)},
    "seed 0 chooses learning rates and is never reported": {"tune": 2, "overrides": ("seed=0",)},
    r"--margin is 0; expected a number of points above 0": {"margin": 0.0},
    r"--margin is nan; expected a number of points": {"margin": float("nan")},
    "--vary got 'model.num_heads'; expected KEY=V1,V2": {"vary": ("model.num_heads",)},
    "--vary got 'model.num_heads=1'; expected": {"vary": ("model.num_heads=1",)},
    "--jobs is 'two'; expected a number": {"jobs": "two"},
}


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_option_is_refused_before_anything_runs(asked, said):
    with pytest.raises(UserError, match=said):
        draw_up(replace(asked, **WRONG[said]))
    assert not asked.out.exists()


def test_what_a_worker_refuses_leaves_no_comparison_behind(asked):
    """So that the next try, with another setting, may have the same place."""
    draw_up(replace(asked, tune=0, overrides=("seed=0",)))
    with pytest.raises(UserError, match="factorized_random"):
        planned(replace(asked, syntheses=("factorized_random:k=no",)))
    with pytest.raises(UserError, match=r"data\.columns\.text is 'missing'"):
        conducted(replace(asked, overrides=("data.columns.text=missing",)))
    assert not (asked.out / "study.json").exists()


class Interrupting(Here):
    """Ctrl-C once so many runs were waited for."""

    def __init__(self, runs):
        self.left = runs

    def submit(self, do, **arguments):
        if do == "train" and not self.left:
            raise Interrupted("interrupted")
        self.left -= do == "train"
        return super().submit(do, **arguments)


def test_a_failed_row_is_reported_and_the_others_go_on(asked, capsys, monkeypatch):
    """One row's directory is in use; once it is free, the same command does that row alone."""
    monkeypatch.setattr("synthesizer_attention.run.files.PATIENCE", 0.0)
    asked = replace(asked, syntheses=("dot", "random", "none"))
    plan = draw_up(asked)
    plan.out.mkdir()
    plan.write()
    dot, random, none = (Run(plan.path(row, 1)) for row in plan.rows)
    with pytest.raises(Interrupted, match="interrupted with 1 of 3 runs finished; run the same"):
        conducted(asked, Interrupting(1))
    with random.held(random_recipe := plan.recipe(plan.rows[1], 1)):
        conducted(asked)
    said = capsys.readouterr().out
    assert "1 of 3 runs finished already" in said
    assert f"[2/3] random seed 1 failed: process {os.getpid()} on " in said
    errors = [row["error"] for row in study_of(asked)["rows"]]
    assert errors[0] is None
    assert errors[1].startswith("seed 1: process ")
    assert (dot.is_finished, random.is_finished, none.is_finished) == (True, False, True)
    first = (dot.path / "result.json").stat().st_mtime_ns

    conducted(asked)
    assert "2 of 3 runs finished already" in capsys.readouterr().out
    assert [row["error"] for row in study_of(asked)["rows"]] == [None] * 3
    assert (dot.path / "result.json").stat().st_mtime_ns == first
    assert random.recipe() == random_recipe


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
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_key_can_be_varied_and_each_value_has_its_own_dot(asked):
    varied = replace(asked, syntheses=("dot", "random"), vary=("model.num_heads=1,2",))
    plan = conducted(varied)
    heads = {row.label: plan.recipe(row, 1).model.num_heads for row in plan.rows}
    labels = [f"{spec}, num_heads {n}" for spec in ("dot", "random") for n in (1, 2)]
    assert heads == dict(zip(labels, (1, 2, 1, 2), strict=True))
    assert {row.folder for row in plan.rows} >= {"dot-num_heads-1", "random-num_heads-2"}
    (study,) = read_studies([varied.out])
    summary = summarize(study)
    told = {line.row.label: line.comparison for line in summary.lines}
    assert told["dot, num_heads 2"] is None
    scores = {line.row.label: line.mean for line in summary.lines}
    difference = scores["random, num_heads 2"] - scores["dot, num_heads 2"]
    assert told["random, num_heads 2"].difference == pytest.approx(difference)
    assert "| variant | num_heads 1 | num_heads 2 |" in text_of([summary]).replace("\\", "")
    rows = draw_up(replace(asked, syntheses=("dot",), vary=("model.dropout=0.1,0.25",))).rows
    assert [row.label for row in rows] == ["dot, dropout 0.1", "dot, dropout 0.25"]
    assert [row.folder for row in rows] == ["dot-dropout-0.1", "dot-dropout-0.25"]


SIZES = ("model.max_len=24", "model.decoder_max_len=16", "model.d_model=8", "model.num_heads=2")
SHORT = ("train.steps=2", "train.batch_tokens=200", "evaluate.every=2", "evaluate.limit=4")


@pytest.fixture(scope="module")
def transferred(tmp_path_factory):
    """A mixture of two tasks after span corruption on a text, in miniature."""
    folder = tmp_path_factory.mktemp("transfer")
    for name, columns in (("glue_cola", 1), ("glue_rte", 2)):
        (folder / "sets" / name).mkdir(parents=True)
        for split, number in (("train", 20), ("validation", 6)):
            rows = [
                {
                    **{f"sentence{n or ''}": ENGLISH[(i + n) % 7] for n in range(columns)},
                    **{f"sentence{n}": ENGLISH[(i + n) % 7] for n in range(1, columns + 1)},
                    "label": i % 2,
                    "idx": i,
                }
                for i in range(number)
            ]
            pq.write_table(pa.Table.from_pylist(rows), folder / "sets" / name / f"{split}.parquet")
    (folder / "text.txt").write_text("\n".join(ENGLISH * 30))
    before = (f"data.train={folder / 'text.txt'}", "text.vocab_size=420", *SIZES, *SHORT)
    more = ("model.norm=rms", "model.positions=relative", "model.num_layers=1", "model.d_ff=16")
    after = ('data.tasks=["glue_cola", "glue_rte"]', *SIZES, *SHORT, "evaluate.max_new_tokens=2")
    overrides = [f"pretrain.{change}" for change in (*SMALL, *before, *more)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYNTHESIZER_DATA", str(folder / "sets"))
        return made(
            folder,
            recipe="tiny-en-mix",
            syntheses=("dot", "dot@model.positions=sinusoidal", "random"),
            pretrain="pretrain",
            overrides=(*overrides, *SMALL, *after, *more[2:]),
        )


@pytest.fixture
def transfer(transferred, monkeypatch):
    """Where its data are."""
    folder = transferred[0].out.parent
    monkeypatch.setenv("SYNTHESIZER_DATA", str(folder / "sets"))
    monkeypatch.setenv("SYNTHESIZER_CACHE", str(folder / "cache"))
    return transferred[0]


def test_every_row_is_pretrained_then_fine_tuned_and_both_stages_resume(
    transferred, transfer, capsys
):
    plan = transferred[1]
    for row in plan.rows:
        recipe = Run(plan.path(row, 1)).recipe()
        assert recipe.train.start_from == str(plan.path(row, 1, pretraining=True))
        before = Run(recipe.train.start_from)
        assert before.recipe().synthesis == recipe.synthesis == row.spec
        assert before.recipe().task == "span_corruption"
    shutil.rmtree(Run(plan.path(plan.rows[0], 1, pretraining=True)).model)  # as records are kept
    shutil.rmtree(plan.path(plan.rows[2], 1))
    conducted(transfer)
    said = capsys.readouterr().out
    assert "3 of 3 runs finished already" in said
    assert "2 of 3 runs finished already" in said
    (study,) = read_studies([transfer.out])
    names = ["dot", "dot, sinusoidal", "random"]
    assert [row.label for row in study.rows] == names
    assert all(row.finished for row in study.rows)
    assert study.facts["pretrain"]["recipe"] == "pretrain"
    assert summarize(study).lines[0].mean == 0  # a margin that is a share of dot's score is 0 too
    assert write_report([transfer.out]).exists()
    said = text_of([summarize(study)])
    assert "Every variant was pretrained first by pretrain, 2 steps" in said
    # Neither dot could be searched beforehand: every trial would have to be pretrained.
    assert study.facts["opponent"]["how"] == "its validation scores in this table"
    for best in names[:2]:
        for row in study.rows[:2]:
            row.runs[0].result["validation"]["accuracy"] = float(row.label == best)
        assert study.opponent().label == best


def test_what_a_transfer_study_lists_and_refuses(transfer, monkeypatch, tmp_path):
    monkeypatch.setattr("synthesizer_attention.study.compare.open_pool", here)
    transfer = replace(transfer, out=tmp_path / "other")
    with pytest.raises(UserError, match=r"makes another model than tiny-en-mix \(d_ff: 16 -> 32\)"):
        draw_up(replace(transfer, overrides=(*transfer.overrides, "model.d_ff=32")))
    commands = list_commands(replace(transfer, syntheses=("dot", "random")), lambda line: None)
    assert [command.split()[2] for command in commands] == ["pretrain"] * 2 + ["tiny-en-mix"] * 2
    assert "train.start_from=" in commands[2]
    sets = ["train.start_from=runs/{synthesis}/seed{seed}", "seed=3"]
    recipe = load_recipe("tiny-en-mix", synthesis="factorized_random:k=4", overrides=sets)
    assert recipe.train.start_from == "runs/factorized_random_k=4/seed3"


def start(asked, *words):
    """compare as a process of its own."""
    command = [sys.executable, "-m", "synthesizer_attention", "compare", asked.recipe, "--plain"]
    command += ["--seeds", "1", "--jobs", "1", "--tune", "0", "--opponent", "configured"]
    rows = [word for spec in ("dot", "random") for word in ("--synthesis", spec)]
    return subprocess.Popen(
        [*command, *rows, "--out", str(asked.out), *words],
        env=environment(),
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


@pytest.mark.slow
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
