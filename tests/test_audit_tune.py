"""Tuning after a conversion: nearer to the original, and the same when it was stopped."""

import pytest
import torch
from transformers import AutoModel, AutoModelForSeq2SeqLM

from pretrained import TRANSLATORS, build, found_layers, inputs, sentences, tokenizer
from synthesizer_attention.audit.convert import convert
from synthesizer_attention.audit.converted import build_converted
from synthesizer_attention.audit.examples import (
    Example,
    RunData,
    pad,
    read_examples,
    token_rows,
    tuning_rows,
)
from synthesizer_attention.audit.load import load_model
from synthesizer_attention.audit.tables import HeadTables
from synthesizer_attention.audit.tune import Tuning, _distance, tune
from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe import load_recipe
from synthesizer_attention.run.run import Run
from synthesizer_attention.training.loop import fit
from tiny import SIZE, write_text

every_model = pytest.mark.parametrize("name", TRANSLATORS)
LOADED = dict.fromkeys(TRANSLATORS, AutoModelForSeq2SeqLM) | {"agreement": AutoModel}


def converted(audits, case, out, say=print, **more):
    texts = audits.home / ("more.csv" if case in TRANSLATORS else "texts.txt")
    convert(audits.finished(case)[0], out, say, heads=5, texts=texts, **more)
    return LOADED[case].from_pretrained(out).eval()


@pytest.mark.parametrize(("case", "everything"), [
    ("agreement", False), ("t5", False), ("bart", True),
    pytest.param("t5", True, marks=pytest.mark.slow),
    pytest.param("bart", False, marks=pytest.mark.slow),
])  # fmt: skip
def test_tuning_brings_outputs_nearer(audits, tmp_path, case, everything):
    plain, said = converted(audits, case, tmp_path / "plain"), []
    tuning = Tuning(20, everything=everything, batch=4)
    state = converted(audits, case, tmp_path / "m", said.append, tuning=tuning).state_dict()
    before, after = map(float, said[-1].rpartition(": ")[2].split(" to "))
    assert after < before
    moved = {key for key, value in plain.state_dict().items() if not torch.equal(value, state[key])}
    tables = {key for key in state if ".tables." in key}
    assert moved > tables if everything else moved == tables
    sides = {key.partition("coder.")[0].removeprefix("model.") for key in tables}
    assert case not in TRANSLATORS or sides == {"en", "de"}
    assert "Tuned for 20 steps after conversion" in (tmp_path / "m" / "README.md").read_text()


@pytest.mark.parametrize("case", ["agreement", "t5"])
def test_a_stopped_tuning_ends_with_the_same_weights(audits, tmp_path, case, monkeypatch):
    monkeypatch.setattr("synthesizer_attention.audit.tune.SAVED_EVERY", 3)
    monkeypatch.setattr("synthesizer_attention.audit.tune.SAID_EVERY", 1)
    tuning, steps = Tuning(8, everything=True, batch=4), []

    def stop(text):
        if text.startswith("tuning step 7"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        converted(audits, case, tmp_path / "stopped", stop, tuning=tuning)
    whole = converted(audits, case, tmp_path / "whole", tuning=tuning).state_dict()
    resumed = converted(audits, case, tmp_path / "stopped", steps.append, tuning=tuning)
    assert "going on from tuning step 6" in steps
    assert all(torch.equal(whole[key], value) for key, value in resumed.state_dict().items())
    assert not (tmp_path / "stopped" / "tuning.safetensors").exists()


def test_another_tuning_is_not_gone_on_with(audits, tmp_path, monkeypatch):
    monkeypatch.setattr("synthesizer_attention.audit.tune.SAVED_EVERY", 1)
    original = load_model(str(audits.model("bare")), None)
    rows = tuning_rows([Example((t,)) for t in sentences(8)], original, tokenizer(), 12)
    layers = found_layers(original, inputs("bert"))

    def tuned(**options):
        model = build_converted(original, layers, {0: HeadTables((0, 1), 12)})
        given = token_rows(rows, tokenizer())
        return tune(original, model, given, Tuning(**options), print, tmp_path)

    tuned(steps=2)
    with pytest.raises(UserError, match="is of a tuning with other options or texts"):
        tuned(steps=3)
    (tmp_path / "tuning.safetensors").write_bytes(b"half")
    with pytest.raises(
        UserError, match="is damaged; delete it to repeat the tuning from the beginning"
    ):
        tuned(steps=2)
    (tmp_path / "tuning.safetensors").unlink()
    with pytest.raises(UserError, match="the loss of tuning step 2 is nan; give a lower"):
        tuned(steps=4, everything=True, rate=float("inf"))


def test_a_causal_model_is_tuned_on_windows_of_its_texts():
    """Its tokenizer has no padding token, and its texts begin with one of their own."""
    original, plain = build("gpt2"), tokenizer()
    plain.pad_token, plain.bos_token = None, "[CLS]"
    layers = found_layers(original, inputs("gpt2"))
    model = build_converted(original, layers, {0: HeadTables((0, 1, 2), 12)})
    texts = [Example((text,)) for text in sentences(60)]
    rows = tuning_rows(texts, original, plain, 12)
    assert all(row["input_ids"][0] == 1 and len(row["input_ids"]) == 12 for row in rows)
    tuned = tune(original, model, token_rows(rows, plain), Tuning(30, batch=4), print)
    assert tuned.after < tuned.before
    with pytest.raises(UserError, match="shorter than one window of 12 tokens"):
        tuning_rows(texts[:1], original, plain, 12)


@every_model
def test_the_decoder_reads_what_it_reads_in_training(audits, name):
    """Rows give the logits that labels give, and what stands at padding has no part in the loss."""
    model, other = build(name), build(name, seed=1)
    examples = read_examples(audits.home / "pairs.csv", "loss")[:4]
    assert examples[0].texts == (sentences(40)[0], sentences(40, 1)[0])  # columns by their names
    rows = tuning_rows(examples, model, tokenizer(), 12)
    batch = pad(rows, tokenizer())
    labels = [tokenizer()(example.texts[1])["input_ids"] for example in examples]
    with torch.no_grad():
        logits = model(**batch).logits
        for row, (source, target) in enumerate(zip(rows, labels, strict=True)):
            ids = torch.tensor([source["input_ids"]])
            alone = model(input_ids=ids, labels=torch.tensor([target])).logits[0]
            torch.testing.assert_close(logits[row, : len(target)], alone, rtol=1e-4, atol=1e-5)
        assert batch["decoder_attention_mask"].sum(1).tolist() == [len(t) for t in labels]
        losses = [_distance(model, other, batch, by_layer=by) for by in (True, False)]
        for side in ("", "decoder_"):
            hidden = batch[f"{side}attention_mask"] == 0
            batch[f"{side}input_ids"] = batch[f"{side}input_ids"].masked_fill(hidden, 9)
        for by_layer, loss in zip((True, False), losses, strict=True):
            torch.testing.assert_close(loss, _distance(model, other, batch, by_layer=by_layer))
            assert loss > 1e-3
            assert _distance(model, model, batch, by_layer=by_layer).abs() < 1e-6


def test_texts_without_targets_are_refused_in_one_line(audits, tmp_path, capsys):
    expected = (
        "synthesizer: error: an encoder-decoder needs two columns of text, a source and its "
        "target, and the data have one; give a .csv, .tsv or .jsonl file with both\n"
    )
    texts, out = str(audits.home / "texts.txt"), ["--out", str(tmp_path / "out")]
    tuning = ["--heads", "3", "--tune", "2", "--texts", texts]
    assert main(["convert", str(audits.finished("t5")[0]), *tuning, *out]) == 2
    assert capsys.readouterr().err == expected
    assert main(["audit", str(audits.model("t5")), texts, *out]) == 2
    assert capsys.readouterr().err == expected
    assert not (tmp_path / "out").exists()


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
    words = ["audit", str(tmp_path / "run"), *words, "--fit-examples", "40", "--examples", "20"]
    assert main([*words, "--out", out]) == 0, capsys.readouterr().err
    tuned = ["--heads", "4", "--tune", "20", "--out", str(tmp_path / "tuned")]
    assert main(["convert", out, *tuned]) == 0, capsys.readouterr().err
    said = capsys.readouterr().err
    before, after = map(float, said.rpartition("examples: ")[2].split(" to "))
    assert after < before
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "tuned")
    assert "relative" in loaded.config.synthesis
    assert "relative" in loaded.config.decoder_synthesis
