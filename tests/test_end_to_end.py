"""Every task from made-up data through the command line: train, evaluate, generate."""

import io
import json
import random
import sys

import numpy as np
import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from synthesizer_attention.cli import main
from synthesizer_attention.metrics.scores import score
from tiny import SIZE, WORDS, write_text

FEW = ("train.steps=4", "train.warmup=1", "train.log_every=2", "train.batch_tokens=256")
LONG = "the red cat " * 40  # which Hugging Face's pipelines have cut to what a model takes
PIECES = ("text.vocab_size=300", "evaluate.beam=2", "evaluate.every=4", "evaluate.limit=4")


@pytest.fixture
def trained(tmp_path, monkeypatch, capsys):
    """train(recipe, keys...) -> the result of a run in tmp_path/run."""
    monkeypatch.chdir(tmp_path)

    def train(recipe, *changes, synthesis="random+dot", out="run"):
        overrides = [*(f"model.{size}" for size in SIZE), *FEW, *changes]
        keys = [word for change in overrides for word in ("--set", change)]
        code = main(["train", recipe, "--synthesis", synthesis, "--out", out, "--plain", *keys])
        assert code == 0, capsys.readouterr().err
        return json.loads((tmp_path / out / "result.json").read_text())

    return train


@pytest.fixture
def answers(tmp_path, monkeypatch, capsys):
    """answers(text, options...) -> (lines of stdout, lines of stderr) of generate."""

    def generate(text, *options):
        stdin = io.TextIOWrapper(io.BytesIO(text if isinstance(text, bytes) else text.encode()))
        monkeypatch.setattr(sys, "stdin", stdin)
        capsys.readouterr()
        assert main(["generate", str(tmp_path / "run"), "--max-new-tokens", "4", *options]) == 0
        streams = capsys.readouterr()
        return streams.out.split("\n")[:-1], streams.err.splitlines()

    return generate


def evaluated(tmp_path, capsys, *options):
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), *options]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    return {row[0]: row[1:] for row in rows}


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def sentence(rng):
    return " ".join(rng.choices(WORDS, k=rng.randint(2, 4)))


def test_translation(tmp_path, trained, answers, capsys):
    rng = random.Random(0)
    rows = [{"en": (text := sentence(rng)), "de": text.upper()} for _ in range(60)]
    write_rows(tmp_path / "pairs.jsonl", rows)
    result = trained("translation", "data.train=pairs.jsonl", "model.decoder_max_len=9", *PIECES)
    assert "nrefs:1" in result["signatures"]["bleu"]
    assert {"bleu", "chrf", "perplexity"} <= result["metrics"].keys()
    assert abs(result["source_gap"]) < 1
    assert result["decoding_tokens_per_second"] > 0
    again = evaluated(tmp_path, capsys)
    assert float(again["bleu"][0]) == pytest.approx(result["metrics"]["bleu"], abs=1e-3)
    assert "nrefs:1" in again["bleu"][1]
    assert 0 <= float(evaluated(tmp_path, capsys, "--split", "train")["bleu"][0]) <= 100
    validation = ["--split", "validation", "--set", "evaluate.beam=1"]
    fewer = evaluated(tmp_path, capsys, *validation, "--set", "evaluate.limit=1")
    assert fewer["loss"] != evaluated(tmp_path, capsys, *validation)["loss"]
    assert main(["evaluate", str(tmp_path / "run"), "--set", "train.steps=3"]) == 2
    assert "only keys of [evaluate] can be changed" in capsys.readouterr().err
    lines, errors = answers("the red cat\n\nthe dog\n" + "cat " * 40 + "\n", "--batch-size", "3")
    assert len(lines) == 4
    assert lines[1] == lines[3] == ""
    assert errors[0] == "synthesizer: line 2: the line is empty; expected a text"
    assert errors[1].startswith("synthesizer: line 4: the line has ")
    alone, _ = answers("the dog\n", "--batch-size", "1")
    assert alone[0] == lines[2]
    assert (tmp_path / "run" / "samples.txt").read_text().startswith("source: ")
    tokenizer = AutoTokenizer.from_pretrained("run/model")
    inputs = tokenizer(LONG, truncation=True, return_tensors="pt")
    assert inputs["input_ids"].shape == (1, 12)
    assert inputs["input_ids"][0, -1] == tokenizer.eos_token_id
    AutoModelForSeq2SeqLM.from_pretrained("run/model").generate(**inputs, max_new_tokens=3)


def test_language_modeling(tmp_path, trained, answers, capsys):
    write_text(tmp_path / "text.txt")
    result = trained(
        "language_modeling", "data.train=text.txt", "text.kind=byte", *PIECES[2:], "train.average=2"
    )
    assert {"perplexity", "word_perplexity", "bits_per_byte"} <= result["metrics"].keys()
    last = evaluated(tmp_path, capsys, "--checkpoint", "last", "--split", "validation")
    assert float(last["bits_per_byte"][0]) > 0
    assert float(evaluated(tmp_path, capsys, "--split", "train")["word_perplexity"][0]) > 1
    greedy, _ = answers("the ca\nthe do\n")
    drawn, _ = answers("the ca\nthe do\n", "--sample", "--seed", "2")
    assert len(greedy) == len(drawn) == 2
    _, errors = answers(b"\xff\xfe\nabcdefghij\n")
    assert errors[0] == "synthesizer: line 1: the line is not UTF-8; write it in UTF-8"
    assert "leaves 1 of 12 for 4 new ones; shorten it or lower --max-new-tokens" in errors[1]
    write = pipeline("text-generation", model="run/model", device="cpu")
    how = {"max_new_tokens": 3, "do_sample": False, "handle_long_generation": "hole"}
    assert write(LONG, **how)[0]["generated_text"].startswith(LONG)


@pytest.mark.parametrize(
    ("recipe", "columns", "synthesis", "metrics"),
    [
        ("summarization", ("document", "summary"), "random+dot",
         {"rouge1", "rouge2", "rougeL", "rougeLsum"}),
        ("dialogue", ("context", "response"), "dense", {"bleu1", "bleu4", "rougeL", "cider"}),
    ],
)  # fmt: skip
def test_text_to_text(recipe, columns, synthesis, metrics, tmp_path, trained, answers):
    rng = random.Random(1)
    rows = [{name: sentence(rng) for name in columns} for _ in range(60)]
    write_rows(tmp_path / "rows.jsonl", rows)
    result = trained(recipe, "data.train=rows.jsonl", *PIECES, synthesis=synthesis)
    assert metrics <= result["metrics"].keys()
    assert len(answers("hello\nhow are you\n")[0]) == 2


def test_classification(tmp_path, trained, answers, capsys):
    rng = random.Random(3)
    lines = ["text,label"]
    for _ in range(80):
        text = sentence(rng)
        lines.append(f"{text},{'cat' if 'cat' in text.split() else 'other'}")
    (tmp_path / "my.csv").write_text("\n".join(lines) + "\n")
    result = trained(
        "classification", "data.train=my.csv", "text.kind=word", "text.vocab_size=60",
        "train.steps=60", "train.lr=0.01", synthesis="random",
    )  # fmt: skip
    assert result["metrics"]["accuracy"] >= 75
    assert result["cache_bytes_per_token"] is None
    (line,), _ = answers("the cat\n")
    label, probability, *others = line.split("\t")
    assert label == "cat"
    assert float(probability) > 0.5
    assert others[0] == "other"
    statistics = np.load(tmp_path / "run" / "statistics.npz", allow_pickle=False)
    assert statistics["accuracy"].dtype == np.float32
    assert score("accuracy", statistics["accuracy"]) == pytest.approx(
        result["metrics"]["accuracy"], rel=1e-12
    )
    classify = pipeline("text-classification", model="run/model", device="cpu")
    assert classify(LONG, truncation=True) == classify("the red cat " * 5, truncation=True)


def test_a_probe(trained):
    result = trained("shift", "model.max_len=33", "train.batch_tokens=132", "evaluate.limit=8")
    assert 0 <= result["metrics"]["token_accuracy"] <= 100


def test_pretraining_then_a_glue_mixture(tmp_path, monkeypatch, trained):
    monkeypatch.setenv("SYNTHESIZER_DATA", str(tmp_path / "sets"))
    write_glue(tmp_path / "sets")
    write_text(tmp_path / "text.txt")
    pretrained = trained("pretrain", "data.train=text.txt", "text.vocab_size=420", out="pre")
    assert pretrained["metrics"]["loss"] > 0
    mixture = 'data.tasks=["glue_rte", "glue_cola"]'
    result = trained("tiny-en-mix", mixture, "train.start_from=pre", *PIECES[1:])
    assert any("rte" in name for name in result["metrics"])


def write_glue(folder):
    """Two tasks in the hub's column names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = random.Random(4)
    sets = {
        "glue_rte": lambda: {"sentence1": sentence(rng), "sentence2": sentence(rng)},
        "glue_cola": lambda: {"sentence": sentence(rng)},
    }
    for name, draw in sets.items():
        (folder / name).mkdir(parents=True)
        for split, size in {"train": 30, "validation": 8}.items():
            rows = [{**draw(), "label": index % 2, "idx": index} for index in range(size)]
            pq.write_table(pa.Table.from_pylist(rows), folder / name / f"{split}.parquet")
