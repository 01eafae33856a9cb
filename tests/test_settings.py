"""A user's own file: tokenizer, dropout and length are measured on validation, not guessed."""

import csv
import json
import random
import string
from dataclasses import replace

import pytest

from synthesizer_attention.study import compare
from synthesizer_attention.study.compare import conduct
from synthesizer_attention.study.plan import draw_up
from synthesizer_attention.study.rows import Asked
from synthesizer_attention.study.search import fit_to_data
from synthesizer_attention.tasks import build_task
from test_study import Here
from tiny import WORDS

TINY = ("model.d_model=8", "model.num_heads=2", "train.steps=2", "evaluate.every=1")


def write(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return str(path)


@pytest.fixture
def asked(tmp_path):
    rng = random.Random(1)
    rows = [(" ".join(rng.choices(WORDS, k=6)), n % 2) for n in range(80)]
    path = write(tmp_path / "rows.csv", [("text", "label"), *rows])
    return Asked(
        path,
        syntheses=("dot",),
        seeds=1,
        jobs="1",
        tune=0,
        opponent="configured",
        overrides=TINY,
        out=tmp_path / "study",
    )


class Told(Here):
    """A pool whose validation scores are told: words are better, and so is a dropout of 0.3."""

    def __init__(self):
        self.trained = []

    def perform(self, order):
        answer = super().perform(order)
        if order["do"] == "train" and order["split"] == "validation":
            self.trained.append(order)
            path = compare.Run(order["path"])
            better = ('kind = "word"' in order["recipe"]) + ("dropout = 0.3" in order["recipe"])
            result = {**path.result(), "validation": {"accuracy": 50.0 + better}}
            (path.path / "result.json").write_text(json.dumps(result))
            (path.path / "manifest.json").unlink()
        return answer


def conducted(asked, pool):
    said = []
    plan = draw_up(asked)
    plan.out.mkdir(exist_ok=True)
    return conduct(plan, pool, said.append, plain=True), said


def test_what_is_best_on_validation_is_chosen_recorded_and_not_tried_again(asked):
    pool = Told()
    plan, said = conducted(asked, pool)
    assert (plan.shared.text.kind, plan.shared.model.dropout) == ("word", 0.3)
    assert len(pool.trained) == 4  # two tokenizers; three dropouts, the first of them known
    assert any(
        line.startswith("tokenizer: word (dot on validation, one seed: bpe 50, word 51;")
        for line in said
    )
    assert "tokenizer: 2 trials of dot (bpe, word), chosen on validation" in said
    assert "1 of 3 trials finished before and not trained again" in said
    assert sum(" for these trials (2 runs left, 1 worker " in line for line in said) == 2
    assert sum(" for these runs (1 run left, 1 worker " in line for line in said) == 1
    study = json.loads((asked.out / "study.json").read_text())
    assert [one["choice"] for one in study["measured"]] == ["tokenizer", "dropout"]
    assert study["measured"][1]["chosen"] == ["model.dropout=0.3"]
    assert study["rows"][0]["label"] == "dot"
    assert 'kind = "word"' in study["shared"]
    again, said = conducted(asked, again_pool := Told())
    assert again.shared == plan.shared
    assert not again_pool.trained


def test_what_the_user_sets_is_not_tried(asked):
    sets = (*TINY, "text.kind=byte", "model.dropout=0.2")
    pool = Told()
    plan, _ = conducted(replace(asked, overrides=sets), pool)
    assert not pool.trained
    assert (plan.shared.text.kind, plan.shared.model.dropout) == ("byte", 0.2)
    assert plan.measured == ()


def test_a_quick_look_measures_nothing_and_says_so(asked):
    pool = Told()
    _, said = conducted(replace(asked, quick=True, seeds=None, tune=None), pool)
    assert not pool.trained
    assert "tokenizer: bpe, not measured in this kind of study" in said


def test_no_more_than_one_pair_in_a_hundred_is_cut(asked, tmp_path):
    rng = random.Random(2)

    def letters(count):
        return "".join(rng.choices(string.ascii_letters, k=count)) + " " + rng.choice(WORDS)

    rows = [(letters(rng.randint(20, 60)), letters(30)) for _ in range(300)]
    path = write(tmp_path / "pairs.csv", [("source", "target"), *rows])
    sets = (*TINY, "text.kind=bpe", "model.dropout=0.1", "text.vocab_size=300")
    plan = draw_up(replace(asked, recipe=path, overrides=sets))
    counts = build_task(plan.shared).report
    assert counts["overlong"]["train"]["truncated"] > 0.01 * counts["examples"]["train"]
    said = []
    fit_to_data(plan, Here(), said.append, plain=True)
    counts = build_task(plan.shared).report
    cut = counts["overlong"].get("train", {"truncated": 0})["truncated"]
    assert cut <= 0.01 * counts["examples"]["train"]
    assert said[0].startswith(f"max_len: {plan.shared.model.max_len} in place of")
    own = draw_up(replace(asked, recipe=path, overrides=(*sets, "model.max_len=32")))
    fit_to_data(own, Here(), said.append, plain=True)
    assert own.shared.model.max_len == 32


def test_a_run_on_a_users_file_stops_at_its_best_validation(asked):
    plan = draw_up(replace(asked, overrides=()))
    assert plan.shared.train.patience == 5
    assert plan.shared.evaluate.every <= plan.shared.train.steps // 10
