import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpus import ENGLISH, SMALL
from synthesizer.data.batch import IGNORED
from synthesizer.data.columns import BadRow
from synthesizer.data.sources import Row
from synthesizer.errors import UserError
from synthesizer.experiment.recipe import load_recipe
from synthesizer.metrics import GLUE, SUPERGLUE, score
from synthesizer.tasks import Outputs, build_task
from synthesizer.tasks.glue import MEMBERS
from synthesizer.tasks.text_to_text import judge

TASKS = [
    "glue_cola",
    "glue_stsb",
    "glue_mnli",
    "superglue_cb",
    "superglue_multirc",
    "superglue_record",
]


def example(name, number):
    word = ENGLISH[number % 7]
    fields = {column: f"{word} {column} {number}" for column in MEMBERS[name].shown}
    fields["label"] = (
        number % 5 if name == "glue_stsb" else number % len(MEMBERS[name].answers or "x")
    )
    if name == "glue_stsb":
        fields["label"] += 0.13
    if name == "superglue_multirc":
        fields |= {"idx_paragraph": 0, "idx_question": number // 2}
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


def test_every_task_of_both_benchmarks_is_there():
    names = {f"glue_{name}" for name in GLUE} | {f"superglue_{name}" for name in SUPERGLUE}
    assert set(MEMBERS) == names


def test_a_row_becomes_a_prompt_and_an_answer():
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


def test_each_task_counts_the_same_in_the_main_metric(folder):
    task = build_task(recipe(["glue_cola", "glue_mnli"]))
    right = answers(task)
    wrong_cola = ["no idea"] * 6 + list(right[6:])
    scores = task.score("test", outputs(wrong_cola))
    assert scores.metrics["accuracy"] == pytest.approx(50)
    assert scores.metrics["glue_cola_matthews"] == 0


def test_any_right_answer_of_record_is_right(folder):
    task = build_task(recipe(["superglue_record"]))
    scores = task.score("test", outputs([text.upper() for text in answers(task)]))
    assert scores.metrics["superglue_record_exact_match"] == pytest.approx(100)
    assert scores.metrics["accuracy"] == pytest.approx(100)
    assert task.report["examples"] == {
        "superglue_record train": 40,
        "superglue_record validation": 6,
    }


def test_averages_appear_when_all_their_tasks_do(folder):
    from synthesizer.tasks.text_to_text import _averages

    metrics = {f"glue_{task}_{name}": 80.0 for task, names in GLUE.items() for name in names}
    assert _averages(metrics) == {"glue": pytest.approx(80)}
    del metrics["glue_qnli_accuracy"]
    assert _averages(metrics) == {}


def test_an_epoch_takes_at_most_the_cap_of_each_task(folder):
    task = build_task(
        recipe(["glue_cola", "superglue_cb"], "data.cap=10", "train.batch_tokens=100000")
    )
    (batch,) = itertools.islice(task.train_batches(), 1)
    texts = [task.tokenizer.decode(row) for row in batch.inputs["input_ids"]]
    assert sum(text.startswith("cola ") for text in texts) == 10
    assert sum(text.startswith("cb ") for text in texts) == 10


def test_validation_may_be_the_first_of_each_set(folder):
    task = build_task(recipe(["glue_cola", "glue_mnli"], "evaluate.limit=2"))
    assert len(answers(task, "validation")) == 6
    scores = task.score("validation", outputs(answers(task, "validation")))
    assert scores.metrics["accuracy"] == pytest.approx(100)


def test_a_missing_task_says_what_to_add_or_leave_out(folder, monkeypatch):
    import datasets

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


def test_an_unknown_task_is_refused():
    with pytest.raises(UserError, match=r"data.tasks has glue_coal; choose from glue_cola, "):
        build_task(recipe(["glue_coal"]))


@pytest.mark.parametrize("answer", ["nan", "inf", "-Infinity", "rubbish", ""])
def test_an_answer_that_is_no_finite_number_is_wrong_and_no_crash(answer):
    rows = [("", "", ["1.0"], "1.0"), ("", "", ["4.0"], "4.0"), ("", "", ["5.0"], answer)]
    judged = judge(MEMBERS["glue_stsb"], rows)
    for name in ("pearson", "spearman"):
        assert score(name, judged[name]) < 0  # the best pair got the lowest number
