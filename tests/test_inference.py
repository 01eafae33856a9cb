"""A user's own file: what is guessed from it, said, refused, and measured on validation."""

import csv
import gzip
import json
import random
import re
import string
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from studies import Here, conducted
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe import change, list_settings, load_recipe
from synthesizer_attention.run.run import Run
from synthesizer_attention.study.guess import infer_recipe, is_data
from synthesizer_attention.study.plan import draw_up
from synthesizer_attention.study.rows import Asked
from synthesizer_attention.study.search import fit_length, fit_to_data
from synthesizer_attention.tasks import build_task
from tiny import WORDS, environment


def sentence(rng, least=4, most=9):
    return " ".join(rng.choices(WORDS, k=rng.randint(least, most)))


def write_csv(path, rows, delimiter=","):
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


def write_lines(path, rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
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


def labelled(path, labels, name="label"):
    rng = random.Random(5)
    return write_csv(path, [("text", name), *((sentence(rng), label) for label in labels)])


def talks(path, first=()):
    rng = random.Random(4)
    turns = [{"dialog": [sentence(rng) for _ in range(4)]} for _ in range(30)]
    return write_lines(path, [*first, *turns])


def records(path):
    """The shape of the hub's own translation sets."""
    rng = random.Random(8)
    both = ({"fr": sentence(rng), "en": sentence(rng)} for _ in range(60))
    return write_lines(path, [{"translation": pair} for pair in both])


def moods(path):
    """The first row need not have every column."""
    rng = random.Random(9)
    rows = [{"text": sentence(rng), "mood": rng.choice("ab")} for _ in range(60)]
    return write_lines(path, [{"text": "nobody said", "source": "a guest"}, *rows[1:]])


def book(path):
    rng = random.Random(3)
    return write_lines(path, [line for _ in range(99) for line in (sentence(rng), "")])


def guess(path, **given):
    found = infer_recipe(str(path), **given)
    return found, load_recipe(found.recipe, overrides=list_settings(found.settings))


FILES = {
    "reviews.csv": (reviews, "classification ('sentiment' has 2 different values)",
                    "columns: text 'review', label 'sentiment'; not used: id"),
    "pairs.tsv": (pairs, "translation ('1' and '2' are texts of similar length)",
                  "columns: source '1', target '2'"),
    "notes.tsv": (lambda path: pairs(path, ratio=5),
                  "summarization ('2' is less than a third as long as '1')",
                  "columns: source '1', target '2'"),
    "book.txt": (book, "language_modeling ('text' is text and nothing else is)",
                 "columns: text 'text'"),
    "talks.jsonl": (talks, "dialogue ('dialog' holds lists of turns)", None),
    "moods.jsonl": (moods, "classification ('mood' has 3 different values)",
                    "columns: text 'text', label 'mood'"),
    "records.jsonl": (records, None, "columns: source 'translation.en', target 'translation.fr'"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_task_and_columns_are_guessed_and_can_be_trained_on(tmp_path, name):
    make, task, columns = FILES[name]
    found, recipe = guess(make(tmp_path / name))
    assert recipe.name == name.partition(".")[0]
    assert task is None or found.reasons[0] == f"task: {task}"
    assert columns is None or found.reasons[1] == columns
    if make is moods:  # its first row has no label, which training refuses
        return
    built = build_task(recipe)
    assert next(built.train_batches()).inputs["input_ids"].shape[1] <= recipe.model.max_len
    if recipe.task == "classification":
        assert built.labels == ["bad", "good"]
    if recipe.task == "language_modeling":
        assert (recipe.text.kind, recipe.model.max_len, recipe.model.d_model) == ("byte", 64, 64)
        assert built.main_metric == "bits_per_byte"
    if recipe.task == "summarization":
        assert recipe.model.max_len > 48


def test_files_beside_train_are_its_other_splits(tmp_path):
    for split in ("train", "dev", "test"):
        reviews(tmp_path / f"{split}.csv")
    found, recipe = guess(tmp_path / "train.csv")
    assert recipe.data.validation == str(tmp_path / "dev.csv")
    assert recipe.data.test == str(tmp_path / "test.csv")
    assert "dev.csv" in found.reasons[2]
    assert recipe.name == tmp_path.name


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


def test_what_the_user_sets_is_what_is_said(tmp_path):
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
    changes = ("task=language_modeling", "data.columns.text=review")
    plan = draw_up(Asked(str(path), overrides=changes, out=tmp_path / "out"))
    assert plan.shared.task == "language_modeling"
    assert plan.words[0] == "task: language_modeling (as you set it)"
    other = f"data.train={reviews(tmp_path / 'other.csv', rows=80)}"
    changed = draw_up(Asked(str(path), overrides=(other,), out=tmp_path / "out"))
    assert changed.fingerprint != plan.fingerprint


def test_text_is_counted_in_the_columns_that_are_trained_on(tmp_path):
    """Not in the names of columns, identifiers and labels: steps follow from it."""
    rng = random.Random(11)
    texts = [f"\N{LATIN SMALL LETTER E WITH ACUTE} {sentence(rng)}" for _ in range(90)]
    rows = [
        {"text": text, "label": n % 2, "identifier": "0123456789abcdef" * 20}
        for n, text in enumerate(texts)
    ]
    found, _ = guess(write_lines(tmp_path / "rows.jsonl", rows))
    size = sum(len(text.encode()) for text in texts)
    assert found.reasons[2].startswith(f"text: {size / 1000:.1f} thousand bytes, as bpe tokens")


REFUSED = {
    "numbers": ([("a", "b"), *((n, n * n) for n in range(20))],
                r"has the columns a, b and none of text; expected text"),
    "two rows": ([("text", "label"), ("a fine film", "good"), ("a dull film", "bad")],
                 r"has too few rows \(2\) to tell text from labels; expected hundreds, of which "
                 r"some are held out: give more rows$"),
    "three texts": ([("a", "b", "c"), *(("one text", f"two {n}", f"three {n}") for n in range(30))],
                    r"has 3 columns of text \(a, b, c\); say which to use: --set data\.columns\."
                    r"source=a --set data\.columns\.target=b, or --set data\.columns\.text=a for"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_that_is_no_task_is_refused(tmp_path, name):
    rows, said = REFUSED[name]
    if name == "three texts":
        rng = random.Random(7)
        rows = [rows[0], *([sentence(rng) for _ in range(3)] for _ in range(30))]
    path = write_csv(tmp_path / "rows.csv", rows)
    with pytest.raises(UserError, match=said):
        infer_recipe(str(path))
    if name == "three texts":
        pair = ("data.columns.source=c", "data.columns.target=a")
        plan = draw_up(Asked(str(path), overrides=pair, out=tmp_path / "pair"))
        assert plan.words[:2] == (
            "task: translation ('c' and 'a' are texts of similar length)",
            "columns: source 'c', target 'a'; not used: b",
        )
        plan = draw_up(Asked(str(path), overrides=("data.columns.text=b",), out=tmp_path / "one"))
        assert plan.shared.task == "language_modeling"


def test_what_cannot_be_read_or_inferred_is_refused(tmp_path):
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)) * 40)
    with pytest.raises(UserError, match=r"binary\.csv is not a readable table \(.*\); check its"):
        infer_recipe(str(tmp_path / "binary.csv"))
    with pytest.raises(UserError, match="task=probe cannot be inferred from a file; choose from"):
        infer_recipe(str(reviews(tmp_path / "reviews.csv")), "probe")
    rng = random.Random(9)
    rows = [{"text": sentence(rng), "labels": ["a", "b"][: 1 + n % 2]} for n in range(30)]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    with pytest.raises(UserError, match=r"row 1: column 'labels' holds a list; a classifier needs"):
        infer_recipe(str(path))


@pytest.mark.parametrize("name", ["label", "kind of thing"])
@pytest.mark.parametrize(
    "labels",
    [
        ["good", "bad"] * 4_000,
        [f"class {n % 7}" for n in range(14_000)],
        ["a"] * 51_000 + ["b"] * 9_000,
        [f"class {n % 200}" for n in range(1000)],
    ],
    ids=["two in turn", "seven in turn", "sorted", "two hundred"],
)
def test_the_order_of_a_file_does_not_change_what_is_guessed(tmp_path, labels, name):
    shuffled = random.Random(6).sample(labels, len(labels))
    for place, order in enumerate((labels, shuffled)):
        found, _ = guess(labelled(tmp_path / f"{place}.csv", order, name))
        number = len(set(labels))
        assert found.reasons[0] == f"task: classification ('{name}' has {number} different values)"


def test_columns_of_a_recipe_are_told_from_the_whole_of_a_sorted_file(tmp_path):
    """Its first rows are of one kind, and from one shop; or the first is damaged."""
    rng = random.Random(10)
    rows = [(sentence(rng), f"shop {n // 1500}", "xy"[n >= 2000]) for n in range(4000)]
    path = write_csv(tmp_path / "train.csv", [("opinion", "shop", "kind"), *rows])
    recipe = load_recipe("classification", overrides=[f"data.train={path}"])
    assert build_task(recipe).report["columns"] == {"text": "opinion", "label": "kind"}
    path = talks(tmp_path / "talk.jsonl", first=["{damaged"])
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
    path = labelled(tmp_path / "rows.csv", labels, name)
    with pytest.raises(UserError, match=re.escape(f"column '{name}' has {words}")):
        infer_recipe(str(path))
    assert guess(path, task="language_modeling")[1].task == "language_modeling"


def two_texts(path, names, label, rows=60, other=WORDS, times=1):
    """Two texts and a label that only both together tell."""
    rng = random.Random(7)
    body = []
    for n in range(rows):
        second = " ".join(rng.choices(other, k=rng.randint(4, 9) * times))
        body.append((f"id{n}", sentence(rng), second, n % 2))
    return write_csv(path, [("id", *names, label), *body])


ROLES = ("text", "text_pair", "label")
FOREIGN = [f"{word}o" for word in WORDS]
TOGETHER = "classification ('{2}' has 2 different values for the texts '{0}' and '{1}' together"
TWO_TEXTS = {
    "numbered": (("question1", "question2", "is_duplicate"), {}, TOGETHER),
    "lettered": (("sentence_a", "sentence_b", "label"), {"times": 9}, TOGETHER),
    "similar": (("first", "then", "gold"), {}, TOGETHER),
    "heading": (("subject", "mail", "folder"), {"times": 9}, TOGETHER),
    "question": (("question", "passage", "yes"), {"times": 9}, TOGETHER),
    "foreign": (("here", "there", "domain"), {"other": FOREIGN}, "translation ('here' and 'there'"),
    "languages": (("en", "de", "domain"), {}, "translation ('en' and 'de' are texts of similar"),
    "longer": (("claimant", "report", "folder"), {"times": 9}, "translation ('report' is longer"),
}


@pytest.mark.parametrize("name", TWO_TEXTS)
def test_two_texts_with_a_label_are_told_from_a_text_and_its_translation(tmp_path, name):
    names, how, task = TWO_TEXTS[name]
    found, recipe = guess(two_texts(tmp_path / "rows.csv", names[:2], names[2], **how))
    assert found.reasons[0].startswith("task: " + task.format(*names))
    if recipe.task == "translation":
        return
    asked = "; to write" in found.reasons[0]
    assert asked == (names[2] != "label")
    used = f"columns: text '{names[0]}', text_pair '{names[1]}', label '{names[2]}'; not used: id"
    assert found.reasons[1] == used
    task = build_task(recipe)
    text = task.tokenizer.decode(next(iter(task.batches("test"))).inputs["input_ids"][0])
    assert " || " in text
    changed = guess(tmp_path / "rows.csv", task="translation")[1]
    assert changed.task == "translation"


def test_a_text_that_may_be_no_part_of_a_pair_is_not_left_out_in_silence(tmp_path):
    path = two_texts(tmp_path / "rows.csv", ("author", "text"), "label", times=9)
    found, recipe = guess(path)
    assert recipe.data.columns == {"text": "text", "label": "label"}
    said = "; not used: id, author (to read both texts: --set data.columns.text_pair=author)"
    assert found.reasons[1].endswith(said)
    _, recipe = guess(path, given={"data.columns.text_pair": "author"})
    assert recipe.data.columns == {"text": "text", "text_pair": "author", "label": "label"}


def test_one_of_two_texts_may_be_empty_but_not_both(tmp_path):
    rows = [("", "a b", "x"), ("c d", "", "y")] * 20
    names = ("subject", "body", "label")
    path = write_csv(tmp_path / "mails.csv", [names, *rows, ("", " ", "x")])
    columns = [f"data.columns.{role}={name}" for role, name in zip(ROLES, names, strict=True)]
    recipe = load_recipe("classification", overrides=[f"data.train={path}", *columns])
    with pytest.raises(UserError, match="row 42: columns subject, body are empty; fix the row"):
        build_task(recipe)


def packed(path, make, name):
    plain = make(path.with_name(name))
    path.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    return path


def array(path):
    rows = [json.loads(line) for line in talks(path).read_text().splitlines()]
    path.write_text(json.dumps(rows, indent=1))
    return path


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("rows.csv.gz", lambda path: packed(path, reviews, "rows.csv")),
        ("rows.tsv.gz", lambda path: packed(path, pairs, "rows.tsv")),
        ("rows.jsonl.gz", lambda path: packed(path, talks, "rows.jsonl")),
        ("rows.json", array),
        ("rows.json", talks),  # an object a line is called so, too
    ],
)
def test_packed_files_and_arrays_are_read(tmp_path, name, make):
    _, recipe = guess(make(tmp_path / name))
    assert recipe.name == "rows"
    tasks = {"rows.csv.gz": "classification", "rows.tsv.gz": "translation"}
    assert recipe.task == tasks.get(name, "dialogue")
    assert build_task(recipe).report["examples"]["train"] > 20


def test_what_is_no_table_of_rows_is_refused_in_one_line(tmp_path):
    packed(whole := tmp_path / "rows.csv.gz", reviews, "rows.csv")
    whole.write_bytes(whole.read_bytes()[:-20])
    (tmp_path / "one.json").write_text('{"rows":\n [{"text": "a b"}]}')
    (tmp_path / "broken.json").write_text('[{"text": "a b"},')
    for name, said in (
        ("rows.csv.gz", "is not a readable gzip file (Compressed file ended before"),
        ("one.json", "is one JSON dict; expected an array of objects, or one object a line"),
        ("broken.json", "is not valid JSON (Expecting value: line 1 column 18"),
    ):
        with pytest.raises(UserError, match=re.escape(f"{name} {said}")):
            infer_recipe(str(tmp_path / name))


def test_a_folder_of_split_files_is_its_splits(tmp_path):
    folder = tmp_path / "mails"
    folder.mkdir()
    reviews(folder / "train.csv")
    packed(folder / "valid.csv.gz", reviews, "valid.csv")
    (folder / "README.md").write_text("what it is")
    write_csv(folder / "test.csv", [("id", "review"), ("r1", "a fine film")])  # to be guessed
    found, recipe = guess(folder)
    assert recipe.name == "mails"
    assert recipe.data.train == str(folder / "train.csv")
    assert recipe.data.validation == str(folder / "valid.csv.gz")
    assert recipe.data.test is None
    said = f"{folder / 'test.csv'} has no column 'sentiment', so test is cut from train"
    assert found.reasons[2].endswith(said)
    reviews(folder / "test.csv")
    assert guess(folder)[1].data.test == str(folder / "test.csv")
    (folder / "train.csv").rename(folder / "rows.csv")
    with pytest.raises(UserError, match=r"mails holds rows.csv, test.csv, valid.csv.gz; expected"):
        infer_recipe(str(folder))


def test_a_users_file_is_opened_twice_before_training_and_planning_draws_nothing(tmp_path):
    """Once to plan and once to prepare; each hashes and parses through one handle."""
    path = reviews(tmp_path / "reviews.csv")
    script = f"""
import sys
opened = []
def hook(event, args):
    if event == "open" and args[0] == {str(path)!r}:
        frame = sys._getframe()
        while frame and frame.f_code.co_name != "check_regular_file":  # which reads nothing
            frame = frame.f_back
        opened.extend([] if frame else [args])
sys.addaudithook(hook)
from pathlib import Path
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
    own = {**environment(), "SYNTHESIZER_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("rows", "validation", "test"), [(300, 0.1, 0.25), (10_000, 0.05, 0.25), (40_000, 0.013, 0.095)]
)
def test_a_file_holds_out_as_many_rows_as_its_margin_needs(tmp_path, rows, validation, test):
    """Ten thousand labelled rows had 500 for test, on which hardly a row can be decided."""
    found, recipe = guess(reviews(tmp_path / "reviews.csv", rows))
    assert recipe.data.holdout == {"validation": validation, "test": test}
    (said,) = [line for line in found.reasons if line.startswith("held out: ")]
    counts = [f"about {share * rows:,.0f} rows" for share in (validation, test)]
    assert said.startswith(f"held out: {counts[0]} for validation and {counts[1]} for test (3,800")
    assert ("fewer decide less" in said) == (rows < 15_200)
    mine = {"data.holdout": "0.1"}
    assert not any(key.startswith("data.holdout") for key in guess(
        tmp_path / "reviews.csv", given=mine)[0].settings)  # fmt: skip
    book(tmp_path / "book.txt")  # a text's words say more of a row than a label does
    assert guess(tmp_path / "book.txt")[1].data.holdout["test"] == 0.25


def test_the_first_rows_held_out_from_a_sorted_file_are_a_sample(tmp_path):
    _, recipe = guess(reviews(tmp_path / "reviews.csv", 600))
    task = build_task(change(recipe, ["evaluate.limit=30"]))
    seen = torch.cat([batch.inputs["labels"] for batch in task.batches("validation")])
    assert len(seen) == 30
    assert 8 <= seen.sum() <= 22
    again = build_task(change(recipe, ["evaluate.limit=10"]))
    first = torch.cat([batch.inputs["labels"] for batch in again.batches("validation")])
    assert torch.equal(first, seen[:10])


def test_a_word_that_is_no_file_is_a_recipe():
    assert [is_data(name) for name in ("missing.csv", "python-docs", "own.toml")] == [True, 0, 0]
    with pytest.raises(UserError, match=r"missing\.csv does not exist; name a data file, a .toml"):
        draw_up(Asked("missing.csv"))
    with pytest.raises(UserError, match=r"no recipe 'pyton-docs'.*did you mean 'python-docs'"):
        draw_up(Asked("pyton-docs"))


TINY = ("model.d_model=8", "model.num_heads=2", "train.steps=2", "evaluate.every=1")


@pytest.fixture
def own(asked, tmp_path):
    """A comparison on a small table; tokenizer, dropout and length are measured, not guessed."""
    path = labelled(tmp_path / "rows.csv", [n % 2 for n in range(80)])
    return replace(asked, recipe=str(path), syntheses=("dot",), overrides=TINY)


class Told(Here):
    """A pool whose validation scores are told: words are better, and so is a dropout of 0.3."""

    def __init__(self):
        self.trained = []

    def perform(self, order):
        answer = super().perform(order)
        if order["do"] == "train" and order["split"] == "validation":
            self.trained.append(order)
            run = Run(order["path"])
            better = ('kind = "word"' in order["recipe"]) + ("dropout = 0.3" in order["recipe"])
            result = {**run.result(), "validation": {"accuracy": 50.0 + better}}
            (run.path / "result.json").write_text(json.dumps(result))
        return answer


def test_what_is_best_on_validation_is_chosen_recorded_and_not_tried_again(own):
    pool, said = Told(), []
    plan = conducted(own, pool, said.append)
    assert (plan.shared.text.kind, plan.shared.model.dropout) == ("word", 0.3)
    assert (plan.shared.train.patience, len(pool.trained)) == (5, 4)
    # two tokenizers; three dropouts, the first of them known
    assert any(
        line.startswith("tokenizer: word (dot on validation, one seed: bpe 50, word 51;")
        for line in said
    )
    assert "tokenizer: 2 trials of dot (bpe, word), chosen on validation" in said
    assert "1 of 3 trials finished before and not trained again" in said
    assert sum(" for these trials (2 runs left, 1 worker " in line for line in said) == 2
    assert sum(" for these runs (1 run left, 1 worker " in line for line in said) == 1
    study = json.loads((own.out / "study.json").read_text())
    assert [one["choice"] for one in study["measured"]] == ["tokenizer", "dropout"]
    assert study["measured"][1]["chosen"] == ["model.dropout=0.3"]
    assert study["rows"][0]["label"] == "dot"
    assert 'kind = "word"' in study["shared"]
    again = conducted(own, again_pool := Told())
    assert again.shared == plan.shared
    assert not again_pool.trained


def test_what_the_user_sets_is_not_tried_and_a_quick_look_measures_nothing(own):
    for changes, kind, dropout, expected in (
        ({"overrides": (*TINY, "text.kind=byte", "model.dropout=0.2")}, "byte", 0.2, []),
        ({"quick": True, "seeds": None, "tune": None}, "bpe", 0.1, ["bpe", "0.1"]),
    ):
        plan, pool, said = draw_up(replace(own, **changes)), Told(), []
        fit_to_data(plan, pool, said.append, plain=True)
        assert not pool.trained
        assert (plan.shared.text.kind, plan.shared.model.dropout) == (kind, dropout)
        assert plan.measured == ()
        words = zip(("tokenizer", "dropout"), expected, strict=False)
        assert said == [f"{n}: {v}, not measured in this kind of study" for n, v in words]


def test_no_more_than_one_pair_in_a_hundred_is_cut(own, tmp_path):
    rng = random.Random(2)

    def letters(count):
        return "".join(rng.choices(string.ascii_letters, k=count)) + " " + rng.choice(WORDS)

    rows = [(letters(rng.randint(20, 60)), letters(30)) for _ in range(300)]
    path = str(write_csv(tmp_path / "pairs.csv", [("source", "target"), *rows]))
    sets = (*TINY, "text.kind=bpe", "model.dropout=0.1", "text.vocab_size=300")
    plan, said = draw_up(replace(own, recipe=path, overrides=sets)), []
    before = build_task(plan.shared).report
    assert before["overlong"]["train"]["truncated"] > 0.01 * before["examples"]["train"]
    fit_length(plan, Here(), said.append)
    counts = build_task(plan.shared).report
    cut = counts["overlong"].get("train", {"truncated": 0})["truncated"]
    assert cut <= 0.01 * counts["examples"]["train"]
    assert said[0].startswith(f"max_len: {plan.shared.model.max_len} in place of")
    mine = draw_up(replace(own, recipe=path, overrides=(*sets, "model.max_len=32")))
    fit_length(mine, Here(), said.append)
    assert mine.shared.model.max_len == 32
