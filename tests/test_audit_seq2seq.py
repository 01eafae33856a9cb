"""Encoder-decoders in an audit: both stacks measured, converted, and tuned with their targets."""

import csv

import pytest
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForSequenceClassification,
)

from pretrained import TRANSLATORS, build
from synthesizer_attention.audit.convert import convert
from synthesizer_attention.audit.examples import (
    Example,
    RunData,
    encode,
    pad,
    read_examples,
    run,
    tuning_rows,
)
from synthesizer_attention.audit.hook import Hook
from synthesizer_attention.audit.load import load_model
from synthesizer_attention.audit.run import Asked, audit
from synthesizer_attention.audit.tune import Tuning, _loss
from synthesizer_attention.cli import main
from synthesizer_attention.run.recipe import load_recipe
from synthesizer_attention.run.run import Run
from synthesizer_attention.training.loop import fit
from test_audit import sentences, tokenizer
from tiny import SIZE, write_text

every_model = pytest.mark.parametrize("name", TRANSLATORS)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Both models with a tokenizer, pairs of texts, and an audit of each."""
    home = tmp_path_factory.mktemp("seq2seq")
    for name, count, seed in (("pairs.csv", 40, 0), ("more.csv", 400, 2)):
        pairs = zip(sentences(count, seed + 1), sentences(count, seed), strict=True)
        with (home / name).open("w", newline="") as file:
            csv.writer(file).writerows([("target", "source"), *pairs])
    (home / "texts.txt").write_text("\n".join(sentences(40)))
    for name in TRANSLATORS:
        build(name).save_pretrained(home / name)
        tokenizer().save_pretrained(home / name)
        asked = Asked(
            model=str(home / name), data=home / "pairs.csv", out=home / f"{name}-audit",
            max_len=12, rank_examples=4, fit_examples=20, rankings=1, steps=3, lengths=(4,),
        )  # fmt: skip
        record = audit(asked, print)
        assert record["metric"] == "loss"
        assert len(record["order"]) == 12
    return home


def converted(home, name, out, say=print, **more):
    convert(home / f"{name}-audit", out, say, heads=9, texts=home / "more.csv", **more)
    return AutoModelForSeq2SeqLM.from_pretrained(out).eval()


def test_the_source_and_the_target_are_found_by_their_names(home):
    first = read_examples(home / "pairs.csv", "loss")[0]
    assert first.texts == (sentences(40)[0], sentences(40, 1)[0])


@every_model
def test_the_decoder_reads_what_it_reads_in_training(home, name):
    """Rows to tune on give the logits that labels give, and padding changes none of them."""
    model = build(name)
    examples = read_examples(home / "pairs.csv", "loss")[:3]
    rows = tuning_rows(examples, model, tokenizer(), 12)
    batch = pad(rows, tokenizer())
    labels = [tokenizer()(example.texts[1])["input_ids"] for example in examples]
    with torch.no_grad():
        logits = model(**batch).logits
        for row, (source, target) in enumerate(zip(rows, labels, strict=True)):
            ids = torch.tensor([source["input_ids"]])
            alone = model(input_ids=ids, labels=torch.tensor([target])).logits[0]
            torch.testing.assert_close(logits[row, : len(target)], alone, rtol=1e-4, atol=1e-5)
    assert batch["decoder_attention_mask"].sum(1).tolist() == [len(target) for target in labels]


@every_model
@pytest.mark.parametrize("by_layer", [True, False])
def test_what_stands_at_padding_has_no_part_in_the_loss(home, name, by_layer):
    original, other = build(name), build(name, seed=1)
    rows = tuning_rows(read_examples(home / "pairs.csv", "loss")[:4], original, tokenizer(), 12)
    batch = pad(rows, tokenizer())
    with torch.no_grad():
        loss = _loss(original, other, batch, by_layer=by_layer)
        for side in ("", "decoder_"):
            hidden = batch[f"{side}attention_mask"] == 0
            batch[f"{side}input_ids"] = batch[f"{side}input_ids"].masked_fill(hidden, 9)
        again = _loss(original, other, batch, by_layer=by_layer)
        same = _loss(original, original, batch, by_layer=by_layer)
    torch.testing.assert_close(loss, again)
    assert loss > 1e-3
    assert same.abs() < 1e-6


@every_model
@pytest.mark.parametrize("everything", [True, False])
def test_tuning_brings_both_stacks_nearer(home, tmp_path, name, everything):
    plain = converted(home, name, tmp_path / "plain")
    said = []
    tuning = Tuning(60, everything=everything, batch=8)
    tuned = converted(home, name, tmp_path / "tuned", said.append, tuning=tuning)
    before, after = map(float, said[-1].rpartition(": ")[2].split(" to "))
    assert after < before
    state = tuned.state_dict()
    moved = {key for key, value in plain.state_dict().items() if not torch.equal(value, state[key])}
    tables = {key for key in state if ".tables." in key}
    assert {key.partition("coder.")[0].removeprefix("model.") for key in tables} == {"en", "de"}
    assert moved == tables if not everything else moved > tables


@every_model
def test_a_stopped_tuning_ends_with_the_same_weights(home, tmp_path, name, monkeypatch):
    monkeypatch.setattr("synthesizer_attention.audit.tune.SAVED_EVERY", 3)
    monkeypatch.setattr("synthesizer_attention.audit.tune.SAID_EVERY", 1)
    tuning = Tuning(8, everything=True, batch=4)
    steps = []

    def stop(text):
        if text.startswith("tuning step 7"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        converted(home, name, tmp_path / "stopped", stop, tuning=tuning)
    whole = converted(home, name, tmp_path / "whole", tuning=tuning).state_dict()
    resumed = converted(home, name, tmp_path / "stopped", steps.append, tuning=tuning).state_dict()
    assert "going on from tuning step 6" in steps
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)


@every_model
def test_texts_without_targets_are_refused_in_one_line(home, tmp_path, name, capsys):
    expected = (
        "synthesizer: error: an encoder-decoder needs two columns of text, a source and its "
        "target, and the data have one; give a .csv, .tsv or .jsonl file with both\n"
    )
    texts, out = str(home / "texts.txt"), ["--out", str(tmp_path / "out")]
    tuning = ["--heads", "3", "--tune", "2", "--texts", texts]
    assert main(["convert", str(home / f"{name}-audit"), *tuning, *out]) == 2
    assert capsys.readouterr().err == expected
    assert main(["audit", str(home / name), texts, *out]) == 2
    assert capsys.readouterr().err == expected
    assert not (tmp_path / "out").exists()


def classifier():
    """Its decoder reads the source, so that both stacks have the same length."""
    torch.manual_seed(0)
    config = BartConfig(
        **{**build("bart").config.to_dict(), "id2label": {0: "no", 1: "yes"}}, num_labels=2
    )
    model = BartForSequenceClassification(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    return model


def test_a_classifier_of_two_stacks_reads_pairs_and_is_tuned_without_targets():
    model, tok = classifier(), tokenizer()
    examples = [
        Example((a, b), n % 2)
        for n, (a, b) in enumerate(zip(sentences(8), sentences(8, 1), strict=True))
    ]
    judge = encode(examples, "accuracy", model, tok, 16)
    first = tok(*examples[0].texts)["input_ids"]
    assert any(
        first == row[: len(first)].tolist() for _, b in judge.batches for row in b["input_ids"]
    )
    with Hook(model) as hook:
        layers = hook.discover(judge.probe(model))
        assert [layer.causal for layer in layers] == [False, False, True, True]
        assert len(run(model, judge).outputs) == 8
    rows = tuning_rows(examples, model, tok, 16)
    assert "decoder_input_ids" not in rows[0]
    with torch.no_grad():
        for by_layer in (True, False):
            assert _loss(model, model, pad(rows, tok), by_layer=by_layer) < 1e-6


def test_a_translator_of_ours_is_tuned_on_its_own_train_split(tmp_path, capsys):
    """Its rows give what training read; tables alone move, and come nearer."""
    texts = [write_text(tmp_path / f"{side}.txt", seed=n) for n, side in enumerate("ab")]
    pairs = zip(*(text.read_text().splitlines() for text in texts), strict=True)
    (tmp_path / "pairs.tsv").write_text("\n".join(["source\ttarget", *map("\t".join, pairs)]))
    sizes = [f"model.{size}" for size in (*SIZE, "decoder_max_len=12")]
    short = ["train.steps=4", "train.batch_tokens=64", "evaluate.every=4", "text.kind=word"]
    more = [f"data.train={tmp_path / 'pairs.tsv'}", "data.holdout=0.1", "evaluate.limit=4"]
    recipe = load_recipe("translation", synthesis="dot", overrides=[*sizes, *short, *more])
    fit(recipe, Run(tmp_path / "run"))
    model = load_model(str(tmp_path / "run"), "loss")
    data = RunData(Run(tmp_path / "run"), "loss")
    rows, start = data.rows(model), model.config.decoder_start_token_id
    labels = [
        row[row != -100].tolist() for b in data.task.batches("train") for row in b.inputs["labels"]
    ]
    assert [row["decoder_input_ids"] for row in rows] == [[start, *row[:-1]] for row in labels]
    out = str(tmp_path / "audit")
    words = ["--rankings", "1", "--rank-examples", "4", "--steps", "1", "--length", "4"]
    assert main(["audit", str(tmp_path / "run"), *words, "--out", out]) == 0, (
        capsys.readouterr().err
    )
    tuned = ["--heads", "4", "--tune", "20", "--out", str(tmp_path / "tuned")]
    assert main(["convert", out, *tuned]) == 0, capsys.readouterr().err
    said = capsys.readouterr().err
    before, after = map(float, said.rpartition("examples: ")[2].split(" to "))
    assert after < before
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "tuned")
    assert "relative" in loaded.config.synthesis
    assert "relative" in loaded.config.decoder_synthesis
