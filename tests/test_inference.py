"""A user's own file in one line: what is guessed from it, and that it can be trained on."""

import csv
import json
import random
import re
import subprocess
import sys

import pytest

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe import list_settings, load_recipe
from synthesizer_attention.study.guess import infer_recipe, is_data
from synthesizer_attention.study.plan import draw_up
from synthesizer_attention.study.rows import Asked
from synthesizer_attention.tasks import build_task
from tiny import WORDS, environment


def sentence(rng, least=4, most=9):
    return " ".join(rng.choices(WORDS, k=rng.randint(least, most)))


def write_csv(path, rows, delimiter=","):
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


def reviews(path, rows=90):
    """Sorted by label, as many files are, with a number that identifies each row."""
    rng = random.Random(1)
    body = [(f"r{n}", sentence(rng), "bad" if n < rows / 2 else "good") for n in range(rows)]
    return write_csv(path, [("id", "review", "sentiment"), *body])


def pairs(path, ratio=1, rows=60):
    rng = random.Random(2)
    body = [(sentence(rng, 4 * ratio, 8 * ratio), sentence(rng)) for _ in range(rows)]
    return write_csv(path, body, "\t")


def guess(path, **given):
    found = infer_recipe(str(path), **given)
    return found, load_recipe(found.recipe, overrides=list_settings(found.settings))


def test_a_table_with_a_label_is_classified(tmp_path):
    found, recipe = guess(reviews(tmp_path / "reviews.csv"))
    assert found.reasons[0] == "task: classification ('sentiment' has 2 different values)"
    assert (recipe.name, recipe.task) == ("reviews", "classification")
    task = build_task(recipe)
    assert task.labels == ["bad", "good"]
    assert next(task.train_batches()).inputs["input_ids"].shape[1] <= recipe.model.max_len


def test_pairs_without_a_header_are_translated(tmp_path):
    found, recipe = guess(pairs(tmp_path / "pairs.tsv"))
    assert found.reasons[0] == "task: translation ('1' and '2' are texts of similar length)"
    assert recipe.data.columns == {"source": "1", "target": "2"}
    assert build_task(recipe).report["examples"]["train"] > 40


def test_a_short_second_text_is_a_summary(tmp_path):
    found, recipe = guess(pairs(tmp_path / "notes.tsv", ratio=5))
    assert found.reasons[0] == "task: summarization ('2' is less than a third as long as '1')"
    assert recipe.model.max_len > 48


def test_a_book_is_modelled_byte_by_byte(tmp_path):
    path, rng = tmp_path / "book.txt", random.Random(3)
    path.write_text("\n\n".join(sentence(rng) for _ in range(99)))
    found, recipe = guess(path)
    assert found.reasons[0] == "task: language_modeling ('text' is text and nothing else is)"
    assert (recipe.text.kind, recipe.model.max_len, recipe.model.d_model) == ("byte", 64, 64)
    assert build_task(recipe).main_metric == "bits_per_byte"


def test_lists_of_turns_are_dialogue(tmp_path):
    path, rng = tmp_path / "talks.jsonl", random.Random(4)
    rows = [{"dialog": [sentence(rng) for _ in range(4)]} for _ in range(30)]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert guess(path)[1].task == "dialogue"


def test_files_beside_train_are_its_other_splits(tmp_path):
    for split in ("train", "dev", "test"):
        reviews(tmp_path / f"{split}.csv")
    found, recipe = guess(tmp_path / "train.csv")
    assert recipe.data.validation == str(tmp_path / "dev.csv")
    assert recipe.data.test == str(tmp_path / "test.csv")
    assert "dev.csv" in found.reasons[2]
    assert recipe.name == tmp_path.name


def test_what_was_guessed_can_be_set(tmp_path):
    path = reviews(tmp_path / "reviews.csv")
    changes = ("task=language_modeling", "train.steps=7", "data.columns.text=review")
    plan = draw_up(Asked(str(path), overrides=changes, out=tmp_path / "out"))
    assert plan.shared.task == "language_modeling"
    assert plan.shared.train.steps == 7
    assert plan.words[0] == "task: language_modeling (as you set it)"


@pytest.mark.parametrize("make", [reviews, pairs])
def test_steps_that_the_user_sets_are_said_and_followed(tmp_path, make):
    """The first evaluation of a translation was inferred beyond the last step."""
    path = make(tmp_path / "rows.tsv" if make is pairs else tmp_path / "rows.csv")
    plan = draw_up(Asked(str(path), overrides=("train.steps=60",), out=tmp_path / "out"))
    recipe = plan.shared
    assert (recipe.train.steps, recipe.train.warmup, recipe.evaluate.every) == (60, 6, 20)
    assert "steps: 60 of 2,048 tokens (as you set it)" in plan.words
    assert any("looked at every 20 steps" in line for line in plan.words)
    few = draw_up(Asked(str(path), overrides=("train.steps=7",), out=tmp_path / "few"))
    assert few.shared.evaluate.every == 7


def test_sizes_that_the_user_sets_are_those_that_are_said(tmp_path):
    path = reviews(tmp_path / "reviews.csv")
    changes = ("model.max_len=24", "model.d_model=32", "evaluate.every=11", "train.patience=2")
    changes += ("text.vocab_size=300", "train.batch_tokens=1_024")
    words = draw_up(Asked(str(path), overrides=changes, out=tmp_path / "out")).words
    assert words[2].endswith("as bpe tokens of a vocabulary of 300")
    assert words[3:5] == (
        "max_len: 24 (as you set it)",
        "model: 2 layers of width 32 (as you set it)",
    )
    assert words[5].startswith("steps: 200 of 1,024 tokens (about ")
    assert "looked at every 11 steps; 2 looks without" in words[6]


def test_text_is_counted_in_the_columns_that_are_trained_on(tmp_path):
    """Not in the names of columns, identifiers and labels: steps follow from it."""
    rng = random.Random(11)
    texts = [f"\N{LATIN SMALL LETTER E WITH ACUTE} {sentence(rng)}" for _ in range(90)]
    rows = [
        {"text": text, "label": n % 2, "identifier": "0123456789abcdef" * 20}
        for n, text in enumerate(texts)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found, _ = guess(path)
    size = sum(len(text.encode()) for text in texts)
    assert found.reasons[2].startswith(f"text: {size / 1000:.1f} thousand bytes, as bpe tokens")


def test_a_table_without_text_is_refused(tmp_path):
    path = write_csv(tmp_path / "numbers.csv", [("a", "b"), *((n, n * n) for n in range(20))])
    with pytest.raises(UserError, match=r"has the columns a, b and none of text; expected text"):
        infer_recipe(str(path))
    with pytest.raises(UserError, match="task=probe cannot be inferred from a file; choose from"):
        infer_recipe(str(reviews(tmp_path / "reviews.csv")), "probe")


def test_two_rows_are_too_few_not_without_text(tmp_path):
    body = [("text", "label"), ("a fine film", "good"), ("a dull film", "bad")]
    path = write_csv(tmp_path / "two.csv", body)
    with pytest.raises(UserError) as refused:
        infer_recipe(str(path))
    assert str(refused.value) == (
        f"{path} has too few rows (2) to tell text from labels; expected hundreds, of which some "
        "are held out: give more rows"
    )


def write_labelled(path, labels, name="label"):
    rng = random.Random(5)
    return write_csv(path, [("text", name), *((sentence(rng), label) for label in labels)])


@pytest.mark.parametrize("number", [2, 200])
def test_labels_may_be_two_or_two_hundred(tmp_path, number):
    labels = [f"class {n % number}" for n in range(5 * number)]
    random.Random(6).shuffle(labels)
    found, _ = guess(write_labelled(tmp_path / "rows.csv", labels, "kind of thing"))
    assert found.reasons[0] == (
        f"task: classification ('kind of thing' has {number} different values)"
    )


@pytest.mark.parametrize("name", ["label", "kind of thing"])
@pytest.mark.parametrize(
    "labels",
    [
        ["good", "bad"] * 4_000,
        [f"class {n % 7}" for n in range(14_000)],
        ["a"] * 51_000 + ["b"] * 9_000,
    ],
    ids=["two in turn", "seven in turn", "sorted"],
)
def test_the_order_of_a_file_does_not_change_what_is_guessed(tmp_path, labels, name):
    shuffled = random.Random(6).sample(labels, len(labels))
    one, other = (
        guess(write_labelled(tmp_path / f"{place}.csv", order, name))[0].reasons[0]
        for place, order in enumerate((labels, shuffled))
    )
    assert one == other
    assert one == f"task: classification ('{name}' has {len(set(labels))} different values)"


def test_the_first_row_need_not_have_every_column(tmp_path):
    path, rng = tmp_path / "rows.jsonl", random.Random(9)
    rows = [{"text": sentence(rng), "mood": rng.choice("ab")} for _ in range(60)]
    rows[0] = {"text": "nobody said", "source": "a guest"}
    path.write_text("\n".join(map(json.dumps, rows)))
    assert guess(path)[0].reasons[0] == "task: classification ('mood' has 3 different values)"


def test_columns_of_a_recipe_are_told_from_the_whole_of_a_sorted_file(tmp_path):
    """Its first rows are of one kind, and from one shop."""
    rng = random.Random(10)
    rows = [(sentence(rng), f"shop {n // 1500}", "xy"[n >= 2000]) for n in range(4000)]
    path = write_csv(tmp_path / "train.csv", [("opinion", "shop", "kind"), *rows])
    recipe = load_recipe("classification", overrides=[f"data.train={path}"])
    assert build_task(recipe).report["columns"] == {"text": "opinion", "label": "kind"}


def test_conversations_are_told_behind_a_damaged_first_row(tmp_path):
    path, rng = tmp_path / "talk.jsonl", random.Random(11)
    rows = [{"dialog": [sentence(rng) for _ in range(4)]} for _ in range(30)]
    path.write_text("\n".join(["{damaged", *map(json.dumps, rows)]))
    names = [f"data.train={path}", "data.skip_bad=true"]
    report = build_task(load_recipe("dialogue", overrides=names)).report
    assert report["columns"] == {"dialog": "dialog"}
    assert report["bad_rows"] == {"train": {"not valid JSON": 1}}


@pytest.mark.parametrize(
    ("labels", "name", "words"),
    [
        (["good"] * 30, "label", "'good' in every row looked at; a classifier needs two"),
        (["good"], "label", "'good' in every row looked at; a classifier needs two"),
        ([n / 7 for n in range(30)], "score", "30 different values in 30 rows; a classifier needs"),
        ([f"id{n}" for n in range(30)], "category", "30 different values in 30 rows; a classifier"),
    ],
)
def test_a_label_that_cannot_be_one_is_not_left_out_in_silence(tmp_path, labels, name, words):
    path = write_labelled(tmp_path / "rows.csv", labels, name)
    with pytest.raises(UserError, match=re.escape(f"column '{name}' has {words}")):
        infer_recipe(str(path))
    assert guess(path, task="language_modeling")[1].task == "language_modeling"


def test_columns_that_are_not_used_are_named(tmp_path):
    found, _ = guess(reviews(tmp_path / "reviews.csv"))
    assert found.reasons[1] == "columns: text 'review', label 'sentiment'; not used: id"


def test_a_second_text_beside_a_label_is_not_left_out_in_silence(tmp_path):
    """A pair of sentences, as in GLUE: its label cannot be told from one of them."""
    rng = random.Random(7)
    body = [[sentence(rng), sentence(rng), rng.choice("xy")] for _ in range(60)]
    path = write_csv(tmp_path / "pairs.csv", [("sentence1", "sentence2", "label"), *body])
    found, _ = guess(path)
    assert found.reasons[1].endswith(
        "not used: sentence1 (if the label depends on two texts, join them in one column)"
    )


def test_of_three_texts_the_user_chooses(tmp_path):
    rng = random.Random(7)
    body = [[sentence(rng) for _ in range(3)] for _ in range(30)]
    path = write_csv(tmp_path / "three.csv", [("a", "b", "c"), *body])
    with pytest.raises(UserError) as refused:
        infer_recipe(str(path))
    assert str(refused.value) == (
        f"{path} has 3 columns of text (a, b, c); say which to use: --set data.columns.source=a "
        "--set data.columns.target=b, or --set data.columns.text=a for one alone"
    )
    pair = ("data.columns.source=c", "data.columns.target=a")
    plan = draw_up(Asked(str(path), overrides=pair, out=tmp_path / "pair"))
    assert plan.words[:2] == (
        "task: translation ('c' and 'a' are texts of similar length)",
        "columns: source 'c', target 'a'; not used: b",
    )
    plan = draw_up(Asked(str(path), overrides=("data.columns.text=b",), out=tmp_path / "one"))
    assert plan.shared.task == "language_modeling"


def test_a_file_that_is_no_table_is_refused(tmp_path):
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)) * 40)
    with pytest.raises(
        UserError, match=r"binary\.csv is not a readable table \(.*\); check its format"
    ):
        infer_recipe(str(tmp_path / "binary.csv"))


def test_a_users_file_is_opened_twice_before_training_and_planning_draws_nothing(tmp_path):
    """Once to plan and once to prepare; each hashes and parses through one handle."""
    path = reviews(tmp_path / "reviews.csv")
    script = f"""
import sys
opened = []
sys.addaudithook(
    lambda event, args: event == "open" and args[0] == {str(path)!r} and opened.append(args)
)
from pathlib import Path
from synthesizer_attention.study import compare
from synthesizer_attention.study.rows import Asked
from synthesizer_attention.study.plan import draw_up
plan = draw_up(Asked({str(path)!r}, out=Path({str(tmp_path / "out")!r})))
assert len(opened) == 1, opened
assert not {{"matplotlib", "torch", "transformers"}} & set(sys.modules)
from synthesizer_attention.tasks import build_task
task = build_task(plan.recipe(plan.rows[0], 1))
assert len(opened) == 2, opened
assert task.report["columns"] == {{"text": "review", "label": "sentiment"}}
assert plan.shared.data.columns == task.report["columns"]  # prepare infers nothing
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**environment(), "SYNTHESIZER_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_data_that_the_user_sets_are_the_data_of_the_study(tmp_path):
    one, other = reviews(tmp_path / "reviews.csv"), reviews(tmp_path / "other.csv", rows=80)
    plans = [
        draw_up(Asked(str(one), overrides=sets, out=tmp_path / "out"))
        for sets in ((), (f"data.train={other}",))
    ]
    assert plans[0].fingerprint != plans[1].fingerprint


def test_records_of_two_languages_are_translated(tmp_path):
    """The shape of the hub's own translation sets."""
    path, rng = tmp_path / "pairs.jsonl", random.Random(8)
    rows = [{"translation": {"fr": sentence(rng), "en": sentence(rng)}} for _ in range(60)]
    path.write_text("\n".join(map(json.dumps, rows)))
    _, recipe = guess(path)
    assert recipe.data.columns == {"source": "translation.en", "target": "translation.fr"}
    assert build_task(recipe).report["examples"]["train"] > 40


def test_several_labels_a_row_are_refused(tmp_path):
    path, rng = tmp_path / "rows.jsonl", random.Random(9)
    rows = [{"text": sentence(rng), "labels": ["a", "b"][: 1 + n % 2]} for n in range(30)]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UserError, match=r"row 1: column 'labels' holds a list; a classifier needs"):
        infer_recipe(str(path))


@pytest.mark.parametrize(("rows", "share"), [(300, 0.1), (6000, 0.083), (12_000, 0.05)])
def test_a_small_file_holds_out_enough_to_measure_on(tmp_path, rows, share):
    found, recipe = guess(reviews(tmp_path / "reviews.csv", rows))
    assert recipe.data.holdout == share
    assert (f"held out: {share:.0%} of the rows for each split cut" in found.reasons) == (
        share > 0.05
    )


def test_a_word_that_is_no_file_is_a_recipe(tmp_path):
    assert is_data("missing.csv")
    assert not is_data("python-docs")
    assert not is_data("own.toml")
    with pytest.raises(UserError, match=r"missing\.csv does not exist; name a data file, a .toml"):
        draw_up(Asked("missing.csv"))
    with pytest.raises(UserError, match=r"no recipe 'pyton-docs'.*did you mean 'python-docs'"):
        draw_up(Asked("pyton-docs"))
