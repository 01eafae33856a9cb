"""The ladder: laws of simulated rows, words for them, and a small real one."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from corpus import pairs, small, write_tsv
from studies import conducted, here
from synthesizer_attention.errors import UserError
from synthesizer_attention.report import ladder
from synthesizer_attention.report.ladder import sentence
from synthesizer_attention.report.load import Record, Row, Study
from synthesizer_attention.report.page import Section
from synthesizer_attention.report.page import page as page_of
from synthesizer_attention.report.write import write_report
from synthesizer_attention.run.recipe import load_recipe
from synthesizer_attention.run.run import Run
from synthesizer_attention.study.compare import list_commands
from synthesizer_attention.study.ladder import (
    GROWS,
    LEVEL,
    SHRINKS,
    STAYS,
    UNKNOWN,
    Measured,
    find_lawless,
    fit_ladder,
)
from synthesizer_attention.study.plan import draw_up
from synthesizer_attention.study.rows import make_rungs
from synthesizer_attention.tasks import build_task
from tiny import language_model

COMPUTE = (1e12, 4e12, 1.6e13, 6.4e13)
SEEDS = (8, 8, 6, 3)
FLOOR = 2.0
DOT = (2.0, 0.15, 1.0)  # above the floor at the smallest rung, exponent, share of dot's FLOPs


def loss(law, compute):
    above, power, _ = law
    return FLOOR + above * (compute / COMPUTE[0]) ** -power


def simulated(laws, sd, rng, *, drift=0.0, rungs=4):
    """Rows whose seeds spread by a share of their loss that drifts from rung to rung."""
    rows = []
    for law in laws:
        compute = tuple(law[2] * c for c in COMPUTE[:rungs])
        losses = tuple(
            tuple(loss(law, c) * (1 + sd * np.exp(drift * (k - 1.5)) * rng.standard_normal(n)))
            for k, (c, n) in enumerate(zip(compute, SEEDS, strict=False))
        )
        rows.append(Measured(compute, losses))
    return rows


def test_laws_are_recovered():
    rng = np.random.default_rng(0)
    laws = [DOT, (1.6, 0.10, 0.7), (2.6, 0.22, 1.3)]
    found = fit_ladder(simulated(laws, 1e-5, rng), 0)
    assert found.floor.value == pytest.approx(FLOOR, abs=0.02)
    for row, law in enumerate(laws):
        assert found.power[row].value == pytest.approx(law[1], abs=0.005)
        grid = np.geomspace(1e12, 1e15, 5)  # beyond the ladder, too
        expected = [loss(law, c) for c in grid]
        np.testing.assert_allclose(found.loss(row, grid), expected, rtol=2e-3)
    crossing = found.trends[1].crossing.value
    exact = 1e12 * (1.6 / 2.0) ** (1 / (0.10 - 0.15))
    assert math.log(crossing) == pytest.approx(math.log(exact), abs=0.1)


WORDS = {
    SHRINKS: (1.6, 0.12, 0.8),
    GROWS: (1.95, 0.18, 1.0),
    STAYS: (1.7, 0.15, 0.8),
}


@pytest.mark.parametrize("word", [*WORDS, UNKNOWN])
def test_the_word_is_that_of_the_simulated_law_and_noise_gives_none(word):
    rng, law = np.random.default_rng(3), WORDS.get(word, (1.99, 0.15, 1.0))
    sd = 0.02 if word == UNKNOWN else 0.002
    fits = (fit_ladder(simulated([DOT, law], sd, rng), 0, draws=300) for _ in range(20))
    assert Counter(found.trends[1].word for found in fits)[word] >= 18


@pytest.mark.parametrize("drift", [0.0, 0.35])
def test_intervals_cover_what_was_simulated(drift):
    """Also where the spread grows threefold over the ladder, which the fit takes for constant."""
    rng, trials = np.random.default_rng(5), 50
    laws = [DOT, (1.9, 0.13, 0.8), (2.6, 0.05, 0.6)]
    missed = np.zeros(4)
    for number in range(trials):
        found = fit_ladder(simulated(laws, 0.006, rng, drift=drift), 0, seed=number, draws=200)
        for law, trend in zip(laws[1:], found.trends[1:], strict=True):
            gaps = [loss(law, c) - loss(DOT, c) for c in (COMPUTE[0], COMPUTE[-1])]
            crossing = COMPUTE[0] * (law[0] / DOT[0]) ** (1 / (law[1] - DOT[1]))
            pairs = [(trend.slope, DOT[1] - law[1]), (trend.bottom, gaps[0]), (trend.top, gaps[1])]
            pairs += [(trend.crossing, crossing)] if trend.crossing else []
            for place, (interval, truth) in enumerate(pairs):
                missed[place] += not interval.low <= truth <= interval.high
    stated = LEVEL / 2 * 2 * trials  # per row and interval, times the rows
    assert (missed <= stated + 3 * math.sqrt(stated) * (1 if drift == 0 else 2)).all()


def bent(row, rung, factor):
    """A row whose losses at one rung are off its law."""
    losses = [tuple(x * (factor if k == rung else 1) for x in s) for k, s in enumerate(row.losses)]
    return Measured(row.compute, tuple(losses))


LAWS = [DOT, (1.9, 0.13, 0.8), (2.6, 0.05, 0.6), (2.2, 0.15, 1.0), (1.7, 0.1, 1.2)]


@pytest.mark.parametrize("rung", range(4))
def test_a_row_that_follows_no_law_is_found_and_spares_the_others(rung):
    rng = np.random.default_rng(7)
    whole = simulated(LAWS, 0.006, rng)
    broken = [*whole[:2], bent(whole[2], rung, 1.15), *whole[3:]]
    assert find_lawless(broken, 0) == [2]
    kept = [row for number, row in enumerate(broken) if number != 2]
    assert fit_ladder(kept, 0, draws=50).misfit < 1.5 < fit_ladder(broken, 0, draws=50).misfit
    again = [*broken[:4], bent(whole[4], 1, 1.4)]
    assert set(find_lawless(again, 0)) == {2, 4}


def test_rows_that_follow_laws_are_kept_and_the_opponent_always():
    rng = np.random.default_rng(8)
    left_out = [find_lawless(simulated(LAWS, 0.006, rng), 0) for _ in range(60)]
    assert sum(map(bool, left_out)) <= 2  # one ladder of a hundred, by chance
    rows = simulated(LAWS, 0.006, rng)
    assert 0 not in find_lawless([bent(rows[0], 1, 1.2), *rows[1:]], 0)
    assert find_lawless(rows[:2], 0) == []  # two rows: neither can be told from the other


def test_two_rungs_or_single_seeds_have_no_law():
    rng = np.random.default_rng(6)
    assert fit_ladder(simulated([DOT, WORDS[GROWS]], 0.01, rng, rungs=2), 0) is None
    rows = [Measured(COMPUTE, tuple((loss(law, c),) for c in COMPUTE)) for law in (DOT, DOT)]
    assert fit_ladder(rows, 0) is None


def test_sentences_name_the_leader_the_trend_and_the_crossing():
    rng = np.random.default_rng(7)

    def said(law, sd):
        trend = fit_ladder(simulated([DOT, law], sd, rng), 0).trends[1]
        return sentence("random", "dot", trend, "nats per target", "The next rung costs a lot.")

    shrinks = said(WORDS[SHRINKS], 0.001)
    assert shrinks.startswith("random leads dot by 0.")
    assert "its lead shrinks with compute: the lines would cross near 1." in shrinks
    assert "times the largest rung, if the laws hold that far." in shrinks
    assert said(WORDS[GROWS], 0.001).endswith("and its lead grows with compute.")
    behind = said((1.9, 0.10, 1.0), 0.0005)
    assert behind.startswith("dot leads random by")
    assert "its lead grows with compute; the lines crossed near 2." in behind
    assert "its lead holds" in said(WORDS[STAYS], 0.001)
    unknown = said((1.99, 0.15, 1.0), 0.02)
    assert unknown.startswith("random and dot are not told apart at the largest rung")
    assert unknown.endswith("cannot be told. The next rung costs a lot.")


def test_rungs_halve_data_steps_and_parameters():
    recipe = load_recipe("python-docs", overrides=["model.d_model=128", "model.num_heads=8"])
    rungs = make_rungs(recipe, 4, 3)
    values = [settings for settings, _ in rungs]
    assert [v["model.d_model"] for v in values] == ["128", "96", "64", "48"]
    assert [v["model.num_heads"] for v in values] == ["8", "6", "4", "3"]
    steps = recipe.train.steps
    assert [int(v["train.steps"]) for v in values] == [steps, steps // 2, steps // 4, steps // 8]
    assert [float(v["train.data_share"]) for v in values] == [1, 0.5, 0.25, 0.125]
    assert [seeds for _, seeds in rungs] == [3, 6, 8, 8]
    with pytest.raises(UserError, match="gives two rungs the same width; ask for fewer"):
        make_rungs(recipe.model_copy(update={"model": recipe.model.model_copy(
            update={"num_heads": 2})}), 4, 3)  # fmt: skip


def test_a_share_of_train_is_fixed_and_lies_within_larger_ones(tmp_path):
    path = write_tsv(tmp_path / "pairs.tsv", [("english", "german"), *pairs(120)])

    def seen(*changes):
        task = build_task(small("translation", f"data.train={path}", *changes))
        batches = task.train_batches()
        return {i for _ in range(60) for i in next(batches).indices}

    whole, half, quarter = (seen(f"train.data_share={share}") for share in (1.0, 0.5, 0.25))
    assert quarter < half < whole
    assert len(whole) == 108
    assert len(half) == 54
    assert half == seen("train.data_share=0.5", "seed=7")
    text = language_model(tmp_path, "train.data_share=0.25")
    task, whole = build_task(text), build_task(language_model(tmp_path))
    batches, all_batches = task.train_batches(), whole.train_batches()
    seen_early = {i for _ in range(300) for i in next(batches).indices}
    seen_all = {i for _ in range(300) for i in next(all_batches).indices}
    assert seen_early == set(range(len(seen_early)))
    assert len(seen_early) == pytest.approx(len(seen_all) / 4, abs=1)
    assert task.tokenizer.get_vocab() == whole.tokenizer.get_vocab()
    with pytest.raises(UserError, match=r"data_share is 0\.5 and data\.streaming reads"):
        language_model(tmp_path, "train.data_share=0.5", "data.streaming=true")


@pytest.fixture
def climbed(asked):
    return replace(asked, syntheses=("dot", "random"), tune=None, opponent="auto", ladder=2)


def test_a_small_ladder_from_end_to_end(climbed):
    plan = draw_up(climbed)
    assert [row.label for row in plan.rows] == [
        "dot, d_model 8, steps 12",
        "random, d_model 8, steps 12",
        "dot, d_model 4, steps 6",
        "random, d_model 4, steps 6",
    ]
    assert [len(plan.seeds_of(row)) for row in plan.rows] == [1, 1, 2, 2]
    plan = conducted(climbed)
    small_run = Run(plan.path(plan.rows[2], 2))
    recipe = small_run.recipe()
    assert (recipe.model.d_model, recipe.model.num_heads, recipe.model.d_ff) == (4, 1, 16)
    assert (recipe.train.steps, recipe.train.data_share, recipe.evaluate.every) == (6, 0.5, 3)
    times = (small_run.path / "result.json").stat().st_mtime_ns
    conducted(climbed)
    assert (small_run.path / "result.json").stat().st_mtime_ns == times

    page = write_report([plan.out]).read_text()
    text = (plan.out / "report.md").read_text()
    assert "## Ladder" in text
    assert "Cannot tell where gaps go: a law needs 3 finished rungs" in text
    assert "for its 2 runs, and twice the training examples." in text
    assert "What is fitted is the loss on test" in text
    assert "<h2>Ladder</h2>" in page
    for name in ("report.html", "report.md", "table.csv"):
        (plan.out / name).unlink()
    assert write_report([plan.out]).read_text() == page
    assert (plan.out / "report.md").read_text() == text


def reported(laws, sd, **facts):
    """A study as a report reads it, of simulated rows."""
    rng, rows = np.random.default_rng(8), []
    for name, row in zip(laws, simulated(laws.values(), sd, rng), strict=True):
        for rung, (compute, losses) in enumerate(zip(row.compute, row.losses, strict=True)):
            steps = 100 * 2**rung
            train = {"steps": steps, "batch_tokens": 10, "data_share": 2.0 ** (rung - 3)}
            recipe = {"seed": 1, "synthesis": name, "train": train}
            result = {"steps": steps, "flops_per_token": compute / (3 * steps * 10)}
            result |= {"training_seconds": 4.0**rung, "main_metric": "bleu"}
            runs = [
                Record(Path(), recipe, {
                    **result, "higher_is_better": True, "metrics": {"bleu": 30.0, "loss": value}
                }) for value in losses
            ]  # fmt: skip
            varied = (f"model.d_model={8 * rung}", f"train.steps={steps}")
            label = f"{name}, d_model {8 * rung}, steps {steps}"
            rows.append(
                (rung, Row(label, name, tuple(runs), varied=varied, candidate=name == "dot"))
            )
    ordered = tuple(row for _, row in sorted(rows, key=lambda pair: -pair[0]))
    return Study("made-up", Path(), ordered, facts={"ladder": 4, **facts})


def test_the_report_shows_laws_gaps_and_costs():
    laws = {"dot": DOT, "random": WORDS[SHRINKS], "dense": WORDS[STAYS], "noise": (1.99, 0.15, 1.0)}
    found = ladder.read_ladder(reported(laws, 0.003))
    assert found.fitted == ["dot", "random", "dense", "noise"]
    shrinks, stays, unknown = ladder.sentences(found)
    assert "its lead shrinks with compute" in shrinks
    assert "its lead holds" in stays
    assert unknown.endswith(
        "The next rung would take about 4:16 of one worker a run, 51:12 for its 12 runs, and twice "
        "the training examples."
    )
    head, rows = ladder.rung_table(found)
    assert head[:2] == ["rung", "share of train"]
    assert rows[0][:5] == ["d_model 0, steps 100", "0.125", "1.00e+12", "0:01", "8"]
    page = page_of("", [Section("ladder", ladder.blocks(found, plots=True))])
    assert page.count("<svg ") == 4
    assert "Gap of random to dot by compute" in page
    assert any("What is fitted is the loss on test" in said for said in ladder.remarks(found))


def test_the_report_names_a_row_without_a_law():
    """Its means are drawn and no line, and the others' sentences do without it."""
    laws = {"dot": DOT, "random": WORDS[SHRINKS], "dense": WORDS[STAYS], "odd": (1.99, 0.15, 1.0)}
    study = reported(laws, 0.003)
    for row in study.rows:
        if row.name == "odd" and "steps 200" in row.label:
            for run in row.runs:
                run.result["metrics"]["loss"] *= 1.2
    found = ladder.read_ladder(study)
    assert (found.fitted, found.lawless) == (["dot", "random", "dense"], ["odd"])
    assert len(list(ladder.sentences(found))) == 2
    assert any("No power law beside the others: odd" in said for said in ladder.remarks(found))
    page = page_of("", [Section("ladder", ladder.blocks(found, plots=True))])
    assert page.count("<svg ") == 3
    assert "Gap of odd" not in page


@pytest.mark.parametrize(("missing", "rung"), [("dense, d_model 24", 3), ("random, d_model 8,", 1)])
def test_a_row_that_is_not_at_every_rung_has_no_runs_there(missing, rung):
    laws = {"dot": DOT, "random": WORDS[SHRINKS], "dense": WORDS[STAYS]}
    study = reported(laws, 0.003)
    kept = tuple(row for row in study.rows if not row.label.startswith(missing))
    assert len(kept) == len(study.rows) - 1
    found = ladder.read_ladder(replace(study, rows=kept))
    head, rows = ladder.rung_table(found)
    column = head.index(missing.partition(",")[0])
    assert [row[column] for row in rows].count("\N{EN DASH}") == 1
    assert rows[rung][column] == "\N{EN DASH}"
    assert page_of("", [Section("ladder", ladder.blocks(found, plots=True))])


def test_without_a_loss_the_error_is_fitted():
    study = reported({"dot": DOT, "random": WORDS[GROWS]}, 0.001)
    for row in study.rows:
        for run in row.runs:
            value = run.result["metrics"].pop("loss")
            run.result["metrics"]["bleu"] = 100 - value
    found = ladder.read_ladder(study)
    assert "so what is fitted is points of 100" in ladder.remarks(found)[0]
    assert "its lead grows with compute" in next(ladder.sentences(found))


def test_a_ladder_refuses_what_it_cannot_do(climbed):
    for changes, said in (
        ({"vary": ("model.num_layers=1,2",)}, "--ladder cannot be combined with --vary"),
        ({"until_decided": True, "seeds": None}, "--ladder cannot be combined with --until-decid"),
        ({"syntheses": ("random",)}, "--ladder shows gaps to dot and none of its rows is"),
        ({"syntheses": ("dot", "random@model.d_ff=9")}, r"sets model\.d_ff, which --ladder scales"),
    ):
        with pytest.raises(UserError, match=said):
            draw_up(replace(climbed, **changes))
    plan = draw_up(replace(climbed, ladder=None, tune=0))
    plan.out.mkdir()
    plan.write()
    with pytest.raises(UserError, match=r"another comparison \(--ladder: None -> 2"):
        draw_up(climbed)


def test_a_ladder_lists_its_runs_and_its_dot_may_have_positions_of_its_own(climbed, monkeypatch):
    plan = draw_up(replace(climbed, opponent="sinusoidal+relative"))
    assert [row.label for row in plan.rows if row.candidate] == [
        "dot, sinusoidal+relative, d_model 8, steps 12",
        "dot, sinusoidal+relative, d_model 4, steps 6",
    ]
    assert len(plan.rows) == 6
    monkeypatch.setattr("synthesizer_attention.study.compare.open_pool", here)
    assert len(list_commands(climbed, print)) == 6
