import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpus import ENGLISH, SMALL
from synthesizer_attention.data.batch import IGNORED
from synthesizer_attention.data.columns import BadRow
from synthesizer_attention.data.files import Row
from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.glue import SUITES
from synthesizer_attention.metrics.scores import score
from synthesizer_attention.run.recipe import load_recipe
from synthesizer_attention.tasks import Outputs, build_task
from synthesizer_attention.tasks.glue import MEMBERS, WORDINGS, same_referent
from synthesizer_attention.tasks.mixture import judge

TASKS = ["glue_cola", "glue_stsb", "glue_mnli"]
TASKS += ["superglue_cb", "superglue_multirc", "superglue_record"]


def example(name, number):
    word = ENGLISH[number % 7]
    fields = {column: f"{word} {column} {number}" for column in MEMBERS[name].shown}
    fields["label"] = (
        number % 5 if name == "glue_stsb" else number % len(MEMBERS[name].answers or "x")
    )
    if name == "glue_stsb":
        fields["label"] += 0.13
    if name == "superglue_multirc":
        fields |= {"idx_paragraph": number // 4, "idx_question": number // 2}
    if name == "superglue_record":
        fields |= {"entities": ["cat", "dog"], "answers": [word, word.upper()]}
    return fields


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in TASKS:
        (tmp_path / name).mkdir()
        for split, count in {"train": 40, **dict.fromkeys(MEMBERS[name].held_out, 6)}.items():
            rows = [example(name, number) for number in range(count)]
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / name / f"{split}.parquet")
    monkeypatch.setenv("SYNTHESIZER_DATA", str(tmp_path))
    return tmp_path


def recipe(tasks, *more):
    listed = "[" + ", ".join(f'"{name}"' for name in tasks) + "]"
    options = [f"data.tasks={listed}", "text.vocab_size=500", "model.max_len=64", *more]
    return load_recipe("tiny-en-mix", overrides=[*SMALL, *options])


def answers(task, split="test"):
    rows = [row[row != IGNORED] for b in task.batches(split) for row in b.inputs["labels"]]
    return tuple(task.tokenizer.decode(row, skip_special_tokens=True) for row in rows)


def outputs(texts):
    counts = np.ones(len(texts))
    return Outputs(counts, counts, counts, texts=tuple(texts))


def test_a_row_becomes_a_prompt_and_an_answer():
    assert {*MEMBERS} == {f"{suite}_{name}" for suite in SUITES for name in SUITES[suite]}
    row = Row("file", 1, {"sentence": "The cat sat.", "label": 1})
    assert MEMBERS["glue_cola"].prompt(row) == "cola sentence: The cat sat."
    assert MEMBERS["glue_cola"].references(row) == ["acceptable"]
    score = Row("file", 1, {"sentence1": "a", "sentence2": "b", "label": 3.27})
    assert MEMBERS["glue_stsb"].references(score) == ["3.2"]
    hidden = Row("file", 1, {"sentence": "The cat sat.", "label": -1})
    with pytest.raises(BadRow, match="unknown label '-1'"):
        MEMBERS["glue_cola"].references(hidden)


def test_perfect_answers_score_100_in_every_metric(folder):
    task = build_task(recipe(TASKS))
    scores = task.score("test", outputs(answers(task)))
    expected = {
        "glue_cola_matthews", "glue_stsb_pearson", "glue_stsb_spearman",
        "glue_mnli_accuracy_matched", "glue_mnli_accuracy_mismatched",
        "superglue_cb_macro_f1", "superglue_cb_accuracy",
        "superglue_multirc_f1a", "superglue_multirc_exact_match",
        "superglue_record_token_f1", "superglue_record_exact_match", "accuracy",
    }  # fmt: skip
    assert scores.metrics.keys() == expected | {"loss"}
    assert all(scores.metrics[name] == pytest.approx(100) for name in expected)
    assert scores.statistics["superglue_multirc_exact_match"].shape == (3, 2)
    assert len(scores.samples) == len(TASKS)
    shouted = tuple(t.upper() if t in ENGLISH else t for t in answers(task))  # any of ReCoRD's
    scores = task.score("test", outputs(shouted))
    assert scores.metrics["superglue_record_exact_match"] == pytest.approx(100)
    assert scores.metrics["accuracy"] == pytest.approx(100)
    task = build_task(recipe(TASKS, "data.wording=t5", "evaluate.limit=2", "data.holdout=0"))
    assert task.score("test", outputs(answers(task))).metrics["superglue_multirc_f1a"] == 100
    assert task.report["examples"]["glue_cola train"] == 40
    assert len(answers(task, "validation")) == 2 * (len(TASKS) + 1), (
        "the first of each, as T5 has it"
    )
    scores = task.score("validation", outputs(answers(task, "validation")))
    assert scores.metrics["accuracy"] == pytest.approx(100)


def test_each_task_counts_the_same_in_the_main_metric(folder):
    task = build_task(recipe(["glue_cola", "glue_mnli"]))
    right = answers(task)
    wrong_cola = ["no idea"] * 6 + list(right[6:])
    scores = task.score("test", outputs(wrong_cola))
    assert scores.metrics["accuracy"] == pytest.approx(50)
    assert scores.metrics["glue_cola_matthews"] == 0


def test_an_epoch_takes_at_most_the_cap_of_each_task(folder):
    task = build_task(
        recipe(["glue_cola", "superglue_cb"], "data.cap=10", "train.batch_tokens=100000")
    )
    (batch,) = itertools.islice(task.train_batches(), 1)
    texts = [task.tokenizer.decode(row) for row in batch.inputs["input_ids"]]
    assert sum(text.startswith("cola ") for text in texts) == 10
    assert sum(text.startswith("cb ") for text in texts) == 10


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_validation_is_cut_from_train_and_test_is_the_development_sets(folder, share):
    """No prompt is in two splits, and all examples of a paragraph are in one."""
    task = build_task(recipe(TASKS, f"data.holdout={share}", "evaluate.limit=100"))
    prompts = {
        split: [
            task.tokenizer.decode(row[row != task.tokenizer.pad_token_id])
            for batch in task.batches(split)
            for row in batch.inputs["input_ids"]
        ]
        for split in ("train", "validation", "test")
    }
    assert not set(prompts["train"]) & set(prompts["validation"])
    assert len(prompts["test"]) == 6 * (len(TASKS) + 1)  # MNLI has two of them
    assert task.report["cut_from_train"] == {"splits": ["validation"], "share": share}
    held_out = {name: round(40 * share) for name in TASKS}
    held_out["superglue_multirc"] = 4 * max(1, round(10 * share))  # whole paragraphs
    assert task.report["examples"]["glue_cola train"] == 40 - held_out["glue_cola"]
    assert len(prompts["validation"]) == sum(held_out.values())
    scores = task.score("validation", outputs(answers(task, "validation")))
    assert scores.metrics["accuracy"] == pytest.approx(100)
    assert scores.metrics.keys() == task.score("test", outputs(answers(task))).metrics.keys()


def test_a_noun_that_is_not_meant_is_no_example_but_may_be_asked_in_validation(
    tmp_path, monkeypatch
):
    (tmp_path / "superglue_wsc").mkdir()
    for split, count in {"train": 60, "validation": 6}.items():
        rows = [
            {
                "text": f"{ENGLISH[n % 7]} and the dog {n} saw it",
                "span1_text": "the dog",
                "span2_text": "it",
                "span1_index": 0,
                "span2_index": len(ENGLISH[n % 7].split()) + 5,
                "label": n % 2,
            }
            for n in range(count)
        ]
        path = tmp_path / "superglue_wsc" / f"{split}.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path)
    monkeypatch.setenv("SYNTHESIZER_DATA", str(tmp_path))
    made = recipe(["superglue_wsc"], "data.wording=t5", "data.holdout=0.5", "evaluate.limit=99")
    task = build_task(made)
    assert len(answers(task, "validation")) == 30
    assert 0 < task.report["examples"]["superglue_wsc train"] < 30
    assert len(answers(task, "train")) == task.report["examples"]["superglue_wsc train"]


def test_a_missing_task_says_what_to_add_or_leave_out(folder, monkeypatch):
    import datasets

    with pytest.raises(UserError, match=r"data.tasks has glue_coal; choose from glue_cola, "):
        build_task(recipe(["glue_coal"]))

    def unreachable(*args, **options):
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(UserError) as error:
        build_task(recipe(["glue_cola", "glue_qqp"]))
    assert f"{folder}/glue_qqp/{{train,validation}}.parquet" in str(error.value)
    assert str(error.value).endswith("or leave glue_qqp out of data.tasks")
    (folder / "glue_cola" / "validation.parquet").unlink()
    with pytest.raises(UserError, match="has no 'validation' split; glue_cola is scored on it"):
        build_task(recipe(["glue_cola"]))


@pytest.mark.parametrize("answer", ["nan", "inf", "-Infinity", "rubbish", ""])
def test_an_answer_that_is_no_finite_number_is_wrong_and_no_crash(answer):
    rows = [("", "", ["1.0"], "1.0"), ("", "", ["4.0"], "4.0"), ("", "", ["5.0"], answer)]
    judged = judge(MEMBERS["glue_stsb"], rows)
    for name in ("pearson", "spearman"):
        assert score(name, judged[name]) < 0  # the best pair got the lowest number


def row_of(**fields):
    return Row("made", 1, fields)


WSC = {
    "text": "Pat gave him the map because he asked him for it , and he smiled .",
    "span1_text": "Pat",
    "span2_text": "him",
    "span2_index": 8,
    "label": 0,
}
RECORD = {
    "passage": "It rained.\n@highlight\nRivers rose\n@highlight\nBoats sank",
    "query": "Near @placeholder boats sank",
    "entities": ["Ulm", "Bonn"],
    "answers": ["Ulm", "Ulm", "Bonn"],
}
MULTIRC = {
    "paragraph": "<b>Sent 1: </b>A dog.<br><b>Sent 2: </b>A cat.",
    "question": "Who?",
    "answer": "A dog",
    "idx": {"paragraph": 3, "question": 41, "answer": 5},
    "label": 1,
}
T5_FORMS = [  # as T5's published preprocessors write them
    ("superglue_wsc", WSC, ["Pat"],
     "wsc: Pat gave him the map because he asked *him* for it , and he smiled ."),
    ("superglue_record", RECORD, ["Ulm", "Bonn"],
     "record query: Near @placeholder boats sank entities: Ulm, Bonn passage: It rained. "
     "Rivers rose. Boats sank"),
    ("superglue_multirc", MULTIRC, ["True"],
     "multirc question: Who? answer: A dog paragraph: Sent 1: A dog. Sent 2: A cat."),
    ("glue_mnli", {"premise": "It rains.", "hypothesis": "It is dry.", "label": 2, "idx": 0},
     ["contradiction"], "mnli hypothesis: It is dry. premise: It rains."),
    ("superglue_boolq", {"question": "is it", "passage": "It is.", "label": 1}, ["True"],
     "boolq passage: It is. question: is it"),
    ("superglue_wic",
     {"word": "bank", "sentence1": "A bank.", "sentence2": "The bank.", "label": 0},
     ["False"], "wic sentence1: A bank. sentence2: The bank. word: bank"),
    ("superglue_copa",
     {"premise": "P.", "question": "cause", "choice1": "A.", "choice2": "B.", "label": 1},
     ["choice2"], "copa choice1: A. choice2: B. premise: P. question: cause"),
    ("coref_dpr",
     {"sentence": "He said so: Bob asked Tom if he can go, and he can.", "pronoun": "he",
      "candidates": ["Bob", "Tom"], "label": 1},
     ["Tom"], "wsc: He said so: Bob asked Tom if *he* can go, and he can."),
    ("qa_squad",
     {"question": "Who?", "context": "The U.S. caf\u00e9's dog did.",
      "answers": {"text": ["U.S.", "dog", "U.S."], "answer_start": [4, 18, 4]}},
     ["U . S .", "dog"], "question: Who ? context: The U . S . caf \u00e9 ' s dog did ."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "fields", "references", "prompt"), T5_FORMS)
def test_t5s_wording_is_that_of_its_preprocessors(name, fields, references, prompt):
    member = WORDINGS["t5"][name]
    assert member.prompt(row_of(**fields)) == prompt
    assert member.references(row_of(**fields)) == references


def test_train_is_scored_on_its_own_examples_and_not_on_the_development_sets(folder):
    task = build_task(recipe(["glue_cola", "superglue_cb"]))
    right = answers(task, "train")
    assert len(right) == 76
    metrics = task.score("train", outputs(right)).metrics
    assert metrics["accuracy"] == metrics["glue_cola_accuracy"] == 100
    halved = [text if number < 38 else "rubbish" for number, text in enumerate(right)]
    metrics = task.score("train", outputs(halved)).metrics
    assert metrics["accuracy"] == pytest.approx(50)
    assert metrics["superglue_cb_accuracy"] == 0


def test_what_a_judge_must_know_of_a_row():
    assert MEMBERS["superglue_multirc"].group(row_of(**MULTIRC)) == "3 41"
    shown = MEMBERS["superglue_wsc"].prompt(row_of(**WSC))
    assert shown.endswith("he asked *him* for it , and he smiled ."), "the pronoun occurs twice"
    with pytest.raises(BadRow, match="the pronoun 'she' is not in the text"):
        MEMBERS["superglue_wsc"].prompt(row_of(**{**WSC, "span2_text": "she"}))


def test_nouns_are_judged_as_t5_does():
    assert same_referent("the dog", "dog")
    assert not same_referent("the", "the dog")
    assert same_referent("any", "any dog"), "no determiner of T5's"
    member = WORDINGS["t5"]["superglue_wsc"]
    assert not member.trains_on(row_of(**WSC))
    assert member.trains_on(row_of(**{**WSC, "label": 1}))
    rows = [
        ("1", "", ["the old dog"], "dog"),  # named, and meant
        ("0", "", ["Pat"], "the map"),  # another, and not meant
        ("0", "", ["Pat"], "Pat"),  # named, but not meant
        ("1", "", ["Bob"], "Bob's hat"),
    ]
    assert score("accuracy", judge(member, rows)["accuracy"]) == 50
    rows = [("", "", ["The bee"], "The bee"), ("", "", ["The bee"], "the bee")]
    exact = judge(WORDINGS["t5"]["coref_dpr"], rows)["accuracy"]
    assert score("accuracy", exact) == 50, "right only to the letter"
