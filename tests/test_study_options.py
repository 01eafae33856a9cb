"""Comparisons beyond one recipe: pretraining first, a varied key, rows against other rows."""

import json
import shutil
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpus import ENGLISH, SMALL
from synthesizer_attention.errors import UserError
from synthesizer_attention.report.load import read_studies
from synthesizer_attention.report.summary import summarize
from synthesizer_attention.report.write import text_of, write_report
from synthesizer_attention.run.recipe import load_recipe
from synthesizer_attention.run.run import Run
from synthesizer_attention.study.compare import list_commands
from synthesizer_attention.study.plan import draw_up
from synthesizer_attention.study.rows import Asked
from test_study import conducted, here, planned

SIZES = ("model.max_len=24", "model.decoder_max_len=16", "model.d_model=8", "model.num_heads=2")
SHORT = ("train.steps=2", "train.batch_tokens=200", "evaluate.every=2", "evaluate.limit=4")


@pytest.fixture
def transfer(tmp_path, monkeypatch):
    """A mixture of two tasks after span corruption on a text, in miniature."""
    monkeypatch.setenv("SYNTHESIZER_DATA", str(tmp_path / "sets"))
    for name, columns in (("glue_cola", 1), ("glue_rte", 2)):
        (tmp_path / "sets" / name).mkdir(parents=True)
        for split, count in (("train", 20), ("validation", 6)):
            rows = [
                {
                    **{f"sentence{n or ''}": ENGLISH[(i + n) % 7] for n in range(columns)},
                    **{f"sentence{n}": ENGLISH[(i + n) % 7] for n in range(1, columns + 1)},
                    "label": i % 2,
                    "idx": i,
                }
                for i in range(count)
            ]
            path = tmp_path / "sets" / name / f"{split}.parquet"
            pq.write_table(pa.Table.from_pylist(rows), path)
    (tmp_path / "text.txt").write_text("\n".join(ENGLISH * 30))
    before = (f"data.train={tmp_path / 'text.txt'}", "text.vocab_size=420", *SIZES, *SHORT)
    more = ("model.norm=rms", "model.positions=relative", "model.num_layers=1", "model.d_ff=16")
    after = ('data.tasks=["glue_cola", "glue_rte"]', *SIZES, *SHORT, "evaluate.max_new_tokens=2")
    return Asked(
        "tiny-en-mix",
        ("dot", "random"),
        seeds=1,
        jobs="1",
        pretrain="pretrain",
        overrides=(
            *(f"pretrain.{change}" for change in (*SMALL, *before, *more)),
            *(*SMALL, *after, *more[2:]),
        ),
        out=tmp_path / "study",
    )


def test_every_row_is_pretrained_then_fine_tuned_and_both_stages_resume(transfer, capsys):
    plan = conducted(transfer)
    for row in plan.rows:
        recipe = Run(plan.path(row, 1)).recipe()
        assert recipe.train.start_from == str(plan.path(row, 1, pretraining=True))
        before = Run(recipe.train.start_from)
        assert before.recipe().synthesis == recipe.synthesis == row.spec
        assert before.recipe().task == "span_corruption"
    (study,) = read_studies([transfer.out])
    assert [row.label for row in study.rows] == ["dot", "random"]
    assert all(row.finished for row in study.rows)
    assert study.facts["pretrain"]["recipe"] == "pretrain"
    assert summarize(study).lines[0].mean == 0  # a margin that is a share of dot's score is 0 too
    assert write_report([transfer.out]).exists()
    said = text_of([summarize(study)])
    assert "Every variant was pretrained first by pretrain, 2 steps" in said
    capsys.readouterr()
    conducted(transfer)
    assert capsys.readouterr().out.count("2 of 2 runs finished already") == 2


def test_a_pretrained_record_without_weights_goes_on(transfer):
    plan = conducted(replace(transfer, syntheses=("dot",)))
    shutil.rmtree(Run(plan.path(plan.rows[0], 1, pretraining=True)).model)
    conducted(transfer)
    (study,) = read_studies([transfer.out])
    assert all(row.finished for row in study.rows)


def test_of_two_pretrained_dot_products_the_better_on_validation_is_compared_with(transfer):
    """Neither can be searched beforehand: every trial would have to be pretrained."""
    transfer = replace(transfer, syntheses=("dot", "dot@model.positions=sinusoidal", "random"))
    conducted(transfer)
    (study,) = read_studies([transfer.out])
    assert study.facts["opponent"]["how"] == "its validation scores in this table"
    names = [row.label for row in study.rows]
    assert names == ["dot", "dot, sinusoidal", "random"]
    for best in names[:2]:
        for row in study.rows[:2]:
            row.runs[0].result["validation"]["accuracy"] = float(row.label == best)
        assert study.opponent().label == best


def test_a_pretrained_model_of_another_size_is_refused_before_anything_runs(transfer):
    with pytest.raises(UserError, match=r"makes another model than tiny-en-mix \(d_ff: 16 -> 32\)"):
        draw_up(replace(transfer, overrides=(*transfer.overrides, "model.d_ff=32")))
    with pytest.raises(UserError, match="--tune with --pretrain would pretrain every trial"):
        draw_up(replace(transfer, tune=2))
    with pytest.raises(UserError, match=r"--set pretrain.* changes nothing without --pretrain"):
        draw_up(replace(transfer, pretrain=None))


def test_the_commands_of_a_transfer_study_pretrain_first(transfer, monkeypatch):
    monkeypatch.setattr("synthesizer_attention.study.compare.open_pool", here)
    commands = list_commands(transfer, lambda line: None)
    assert [command.split()[2] for command in commands] == ["pretrain"] * 2 + ["tiny-en-mix"] * 2
    assert "train.start_from=" in commands[2]


def test_the_run_to_start_from_may_be_named_by_the_runs_own_synthesis_and_seed():
    recipe = load_recipe(
        "tiny-en-mix",
        synthesis="factorized_random:k=4",
        overrides=["train.start_from=runs/{synthesis}/seed{seed}", "seed=3"],
    )
    assert recipe.train.start_from == "runs/factorized_random_k=4/seed3"


def test_a_key_can_be_varied_and_each_value_has_its_own_dot(asked, tmp_path):
    varied = replace(asked, syntheses=("dot", "random"), vary=("model.num_heads=1,2",))
    plan = conducted(varied)
    heads = {row.label: plan.recipe(row, 1).model.num_heads for row in plan.rows}
    assert heads == {
        "dot, num_heads 1": 1,
        "dot, num_heads 2": 2,
        "random, num_heads 1": 1,
        "random, num_heads 2": 2,
    }
    assert {row.folder for row in plan.rows} >= {"dot-num_heads-1", "random-num_heads-2"}
    (study,) = read_studies([varied.out])
    summary = summarize(study)
    told = {line.row.label: line.comparison for line in summary.lines}
    assert told["dot, num_heads 2"] is None
    scores = {line.row.label: line.mean for line in summary.lines}
    difference = scores["random, num_heads 2"] - scores["dot, num_heads 2"]
    assert told["random, num_heads 2"].difference == pytest.approx(difference)
    assert "| variant | num\\_heads 1 | num\\_heads 2 |".replace("\\", "") in text_of(
        [summary]
    ).replace("\\", "")


def test_a_varied_number_is_named_whole(asked):
    """It was "dot, 1", in the folder dot-1, for model.dropout=0.1."""
    rows = draw_up(replace(asked, syntheses=("dot",), vary=("model.dropout=0.1,0.25",))).rows
    assert [row.label for row in rows] == ["dot, dropout 0.1", "dot, dropout 0.25"]
    assert [row.folder for row in rows] == ["dot-dropout-0.1", "dot-dropout-0.25"]


@pytest.mark.parametrize("text", ["model.num_heads", "model.num_heads=1", "model.num_heads="])
def test_a_varied_key_needs_two_values(asked, text):
    with pytest.raises(UserError, match=r"--vary got .* expected KEY=V1,V2 as in model\.num_heads"):
        draw_up(replace(asked, vary=(text,)))


def test_rows_can_be_judged_against_another_row(asked):
    chosen = replace(asked, syntheses=("dot", "random", "dense"), against=("D", "random"))
    plan = conducted(chosen)
    assert json.loads((plan.out / "study.json").read_text())["against"] == ["dense", "random"]
    (study,) = read_studies([plan.out])
    summary = summarize(study)
    assert [rival.label for rival in summary.rivals] == ["dense", "random"]
    scores = {line.row.label: line.mean for line in summary.lines}
    for opponent in summary.rivals:
        for label, comparison in opponent.compared.items():
            assert label != opponent.label
            found = scores[label] - scores[opponent.label]
            assert comparison.difference == pytest.approx(found)
    assert "## Against dense" in text_of([summary])
    with pytest.raises(UserError, match="--against lightconv is not a row; choose from dot, rand"):
        planned(replace(chosen, against=("lightconv",)))
