"""An audit from a folder and a file to an answer, a page and a converted model."""

import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    BertModel,
    MPNetConfig,
    MPNetModel,
    PreTrainedTokenizerFast,
)

import browser
from pretrained import VOCAB, build, found_layers, inputs
from synthesizer_attention.audit.averages import _explained, measure_averages
from synthesizer_attention.audit.convert import convert
from synthesizer_attention.audit.converted import build_converted
from synthesizer_attention.audit.cost import Point, checkpoints_of, most_heads, sentence, why_ended
from synthesizer_attention.audit.examples import (
    Example,
    _token_losses,
    encode,
    read_examples,
    run,
    token_rows,
    tuning_rows,
)
from synthesizer_attention.audit.hook import Hook
from synthesizer_attention.audit.load import load_model, load_tokenizer
from synthesizer_attention.audit.run import Asked, audit, read_subject
from synthesizer_attention.audit.tables import HeadTables
from synthesizer_attention.audit.tune import Tuning, tune
from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError

WORDS = [f"w{number}" for number in range(VOCAB - 5)]


def tokenizer():
    special = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"]
    vocabulary = {word: number for number, word in enumerate(special + WORDS)}
    plain = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    plain.pre_tokenizer = Whitespace()
    ends = [("[CLS]", 1), ("[SEP]", 2)]
    plain.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ends
    )
    names = {
        "pad_token": "[PAD]", "mask_token": "[MASK]", "unk_token": "[UNK]", "cls_token": "[CLS]",
        "sep_token": "[SEP]",
    }  # fmt: skip
    return PreTrainedTokenizerFast(tokenizer_object=plain, **names)


def sentences(count, seed=0):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) for _ in range(count)]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Folders of a masked language model, a classifier and a bare encoder, and their data."""
    home = tmp_path_factory.mktemp("audit")
    masked = build("bert")
    torch.manual_seed(0)
    classifier, bare = BertForSequenceClassification(masked.config), BertModel(masked.config)
    for name, model in (("masked", masked), ("classifier", classifier), ("bare", bare)):
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.4)
        model.save_pretrained(home / name)
        tokenizer().save_pretrained(home / name)
    config = MPNetConfig(
        vocab_size=VOCAB,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
    )
    MPNetModel(config).save_pretrained(home / "mpnet")
    texts = sentences(40)
    (home / "texts.txt").write_text("\n".join(texts))
    rows = [f"{text},{n % 2}" for n, text in enumerate(texts)]
    (home / "labels.csv").write_text("\n".join(["text,label", *rows]))
    pairs = [
        f"{a}\t{b}\t{n % 7}" for n, (a, b) in enumerate(zip(texts, sentences(40, 1), strict=True))
    ]
    (home / "pairs.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *pairs]))
    return home


CASES = {
    "loss": ("masked", "texts.txt"),
    "accuracy": ("classifier", "labels.csv"),
    "spearman": ("bare", "pairs.tsv"),
    "agreement": ("bare", "texts.txt"),
}


def measured(home, metric, out, say=lambda text: None, **more):
    model, data = CASES[metric]
    asked = Asked(
        model=str(home / model), data=home / data, out=out, metric=metric, max_len=12,
        rank_examples=4, fit_examples=20, rankings=2, steps=3, **more,
    )  # fmt: skip
    return audit(asked, say)


def finished(home, metric):
    """The folder of one audit that tests share, and its record."""
    out = home / f"{metric}-audit"
    if not out.exists():
        measured(home, metric, out)
    return out, json.loads((out / "audit.json").read_text())


@pytest.mark.parametrize("metric", CASES)
def test_an_audit_ranks_all_heads_and_measures_the_curve(home, metric):
    _, record = finished(home, metric)
    assert sorted(map(tuple, record["order"])) == [(la, h) for la in range(2) for h in range(3)]
    assert [point["replaced"] for point in record["curve"]] == [0, 1, 2, 4, 6]
    assert record["curve"][0]["cost"] == record["curve"][0]["high"] == 0
    assert all(point["low"] <= point["cost"] <= point["high"] for point in record["curve"])
    assert metric == "accuracy" or record["curve"][-1]["value"] != record["value"]
    assert record["heads"][-1]["moved"] > 0
    assert record["num_judge"] == 20
    assert {row["length"] for row in record["speed"]} == set()  # the model has 16 positions


def test_speed_is_measured_along_the_curve_at_the_lengths_asked_for(home, tmp_path):
    record = measured(home, "loss", tmp_path, lengths=(4, 16), keep=0.2)
    timed = [(row["length"], row["replaced"]) for row in record["speed"]]
    counts = sorted({0, 2, 4, 6, record["answer"]["replaced"]})
    assert timed == [(length, count) for length in (4, 16) for count in counts]
    assert all(row["ms"] > 0 for row in record["speed"])
    sizes = record["sizes"]
    assert sizes[-1]["flops"] < sizes[0]["flops"]
    page = (tmp_path / "report.html").read_text()
    assert "none: the original" in page
    assert f"Which heads of {home.name}/masked need dot products?" in page


@pytest.mark.parametrize(("metric", "auto"), [
    ("loss", AutoModelForMaskedLM), ("accuracy", AutoModelForSequenceClassification),
])  # fmt: skip
def test_the_converted_folder_scores_what_the_audit_said(home, tmp_path, metric, auto):
    audited, record = finished(home, metric)
    assert convert(audited, tmp_path / "model", print, heads=4) == 4
    model = auto.from_pretrained(tmp_path / "model").eval()
    rows = read_examples(home / CASES[metric][1], metric)
    rows = random.Random(0).sample(rows, len(rows))
    judge = encode(rows[20:], metric, model, load_tokenizer(str(tmp_path / "model")), 12)
    value = judge.value(run(model, judge).statistics.sum(0))
    assert value == pytest.approx(record["curve"][3]["value"], rel=1e-4)
    replaced = model.config.replaced
    assert sum(len(facts["heads"]) for facts in replaced.values()) == 4
    card = (tmp_path / "model" / "README.md").read_text()
    assert '"model-index"' not in card
    assert "model-index: [" in card
    assert "import synthesizer_attention.models" in card


def test_averages_are_those_of_a_loop():
    model, batch = build("bert"), inputs("bert")
    kept = {}
    with torch.no_grad(), Hook(model) as hook:
        hook.discover(batch)
        averages = measure_averages(hook, [batch], 8)
        hook.observe = lambda layer, weights, visible: kept.update({layer: weights})
        model(**batch)
    lengths = batch["attention_mask"].sum(-1).tolist()
    for layer, average in enumerate(averages):
        for head in range(3):
            by_offset, first, last = {}, [], []
            for example, length in enumerate(lengths):
                for i in range(length):
                    for j in range(length):
                        weight = float(kept[layer][example, head, i, j])
                        if j == 0:
                            first.append(weight)
                        elif j == length - 1:
                            last.append(weight)
                        else:
                            by_offset.setdefault(j - i, []).append(weight)
            tables = average.tables("relative").pick([head])
            for offset, weights in by_offset.items():
                assert tables.offsets[0, offset + 7].exp() == pytest.approx(np.mean(weights))
            assert tables.sinks[0].exp().tolist() == pytest.approx([np.mean(first), np.mean(last)])
            assert -7 not in by_offset
            assert tables.offsets[0, 0] == tables.offsets[0, 7 + min(by_offset)]


def test_a_causal_head_has_no_last_token():
    model, batch = build("gpt2"), inputs("gpt2")
    with torch.no_grad(), Hook(model) as hook:
        hook.discover(batch)
        (average, _) = measure_averages(hook, [batch], 8)
    assert average.sink_counts.tolist() == [12, 0]
    assert average.offset_counts[8:].sum() == 0


@pytest.mark.parametrize(("left", "kind"), [
    ((10.0, 0.5, 0.4, 0.4, 0.4), "uniform"),
    ((10.0, 8.0, 0.5, 0.6, 0.5), "sink"),
    ((10.0, 8.0, 1.0, 7.0, 1.0), "positional"),
    ((10.0, 8.0, 7.0, 7.5, 6.0), "content"),
])  # fmt: skip
def test_a_head_is_called_by_what_explains_it(left, kind):
    assert _explained(*left).kind == kind


def test_the_walk_ends_at_the_first_point_that_may_lose_too_much():
    points = [Point(0, 9, 0, 0, 0), Point(2, 9, 0.1, 0, 0.3), Point(4, 8, 0.5, 0.2, 1.2),
              Point(6, 9, 0.1, 0.0, 0.2)]  # fmt: skip
    best = most_heads(points, 1.0)
    assert best.replaced == 2
    assert sentence(best, 6, 1.0, "accuracy") == (
        "2 of 6 heads can be tables at a loss of at most 1 points of accuracy "
        "(measured 0.1, interval 0 to 0.3)."
    )
    assert sentence(points[0], 6, 1.0, "accuracy").startswith("No head can be shown to be a table")
    assert why_ended(points, best, 1.0, "accuracy") == (
        "With 4 heads the measured loss is within it, and its interval is not: 0.5 points of "
        "accuracy (interval 0.2 to 1.2). More examples would narrow it."
    )
    assert why_ended(points, points[0], 0.05, "accuracy") == (
        "With 2 heads the loss is more than that: 0.1 points of accuracy (interval 0 to 0.3)."
    )
    assert why_ended(points, points[-1], 1.0, "accuracy") == ""


def test_the_first_step_of_the_curve_is_halved_down_to_one_head():
    """So that "no head can be shown to be a table" is said of one head, not of twelve."""
    assert checkpoints_of(72, 6) == [0, 1, 3, 6, 12, 24, 36, 48, 60, 72]
    assert checkpoints_of(8, 12) == list(range(9))
    assert checkpoints_of(1, 4) == [0, 1]


@pytest.mark.parametrize("causal", [True, False])
def test_the_loss_of_an_example_is_that_of_a_loop_over_its_labels(causal):
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    labels[0, 3:] = labels[1, 0] = -100
    found = _token_losses(SimpleNamespace(logits=logits), {"labels": labels}, causal=causal)
    for example in range(2):
        losses = [
            -logits[example, at - causal].log_softmax(-1)[label].item()
            for at, label in enumerate(labels[example].tolist())
            if label != -100 and at >= causal
        ]
        assert found[example].tolist() == pytest.approx([sum(losses), len(losses)])


def test_a_large_vocabulary_has_smaller_batches(monkeypatch):
    """Logits of 4,096 tokens and 262,144 words would take 4 GiB."""
    model, rows = build("bert"), [Example((text,)) for text in sentences(20)]
    monkeypatch.setattr("synthesizer_attention.audit.examples._BATCH_LOGITS", 24 * VOCAB)
    for metric, least in (("loss", 5), ("agreement", 1)):
        batches = encode(rows, metric, model, tokenizer(), 12).batches
        assert len(batches) >= least
        assert metric != "loss" or max(b["input_ids"].numel() for _, b in batches) <= 24
        assert sorted(place for chosen, _ in batches for place in chosen) == list(range(20))


def test_tuning_brings_outputs_nearer(home, tmp_path):
    convert(finished(home, "agreement")[0], tmp_path / "model", print, heads=6)
    original = load_model(str(home / "bare"), None)
    converted = AutoModel.from_pretrained(tmp_path / "model").eval()
    before = {name: p.clone() for name, p in converted.named_parameters()}
    texts = [Example((text,)) for text in sentences(40)]
    rows = tuning_rows(texts, original, tokenizer(), 12)
    tuned = tune(original, converted, token_rows(rows, tokenizer()), Tuning(40, batch=8), print)
    assert np.mean(tuned.losses[8:13]) < np.mean(tuned.losses[:5])  # a third brings layers nearer
    assert tuned.after < tuned.before
    moved = {name for name, p in converted.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if ".tables." in name}


def test_a_stopped_tuning_ends_with_the_same_weights(home, tmp_path, monkeypatch):
    monkeypatch.setattr("synthesizer_attention.audit.tune.SAVED_EVERY", 3)
    tuning = Tuning(8, everything=True, batch=4)

    def converted(name, say):
        how = {"heads": 5, "tuning": tuning, "texts": home / "texts.txt"}
        convert(finished(home, "agreement")[0], tmp_path / name, say, **how)
        assert not (tmp_path / name / "tuning.safetensors").exists()
        return AutoModel.from_pretrained(tmp_path / name).state_dict()

    steps = []
    monkeypatch.setattr("synthesizer_attention.audit.tune.SAID_EVERY", 1)

    def stop(text):
        steps.append(text)
        if text.startswith("tuning step 7"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        converted("stopped", stop)
    whole, resumed = converted("whole", print), converted("stopped", steps.append)
    assert "going on from tuning step 6" in steps
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    card = (tmp_path / "whole" / "README.md").read_text()
    assert "Tuned for 8 steps after conversion: on held-out texts the distance" in card


def test_another_tuning_is_not_gone_on_with(home, tmp_path, monkeypatch):
    monkeypatch.setattr("synthesizer_attention.audit.tune.SAVED_EVERY", 1)
    original = load_model(str(home / "bare"), None)
    rows = tuning_rows([Example((t,)) for t in sentences(8)], original, tokenizer(), 12)
    layers = found_layers(original, inputs("bert"))

    def tuned(**options):
        model = build_converted(original, layers, {0: HeadTables((0, 1), 12)})
        tuned = token_rows(rows, tokenizer())
        return tune(original, model, tuned, Tuning(**options), print, tmp_path)

    tuned(steps=2)
    with pytest.raises(UserError, match="is of a tuning with other options or texts"):
        tuned(steps=3)
    (tmp_path / "tuning.safetensors").write_bytes(b"half")
    with pytest.raises(UserError, match="is damaged; delete it to tune from the beginning"):
        tuned(steps=2)
    (tmp_path / "tuning.safetensors").unlink()
    with pytest.raises(UserError, match="the loss of tuning step 2 is nan; give a lower"):
        tuned(steps=4, everything=True, rate=float("inf"))


def test_a_causal_model_is_tuned_on_windows_of_its_texts():
    """Its tokenizer has no padding token, and its texts begin with one of their own."""
    original, plain = build("gpt2"), tokenizer()
    plain.pad_token, plain.bos_token = None, "[CLS]"
    with Hook(original) as hook:
        hook.discover(inputs("gpt2"))
        converted = build_converted(original, hook.layers, {0: HeadTables((0, 1, 2), 12)})
    texts = [Example((text,)) for text in sentences(60)]
    rows = tuning_rows(texts, original, plain, 12)
    assert all(row["input_ids"][0] == 1 for row in rows)
    tuned = tune(original, converted, token_rows(rows, plain), Tuning(30, batch=4), print)
    assert tuned.after < tuned.before
    with pytest.raises(UserError, match="shorter than one window of 12 tokens"):
        tuning_rows(texts[:1], original, plain, 12)


def test_the_page_stands_alone(home, tmp_path):
    if browser.PATH is None:
        pytest.skip("no Chromium")
    audited, record = finished(home, "spearman")
    seen = browser.look(audited / "report.html", tmp_path / "profile", width=400, scheme="dark")
    assert record["sentence"] in seen.text
    assert seen.width <= 400
    assert not seen.complaints
    assert [url for url in seen.requests if not url.startswith(("file:", "data:"))] == []


ERRORS = {
    "metric": (
        ["masked", "texts.txt", "--metric", "bleu"],
        "--metric is 'bleu'; choose from loss, accuracy, spearman, agreement",
    ),
    "unfit": (
        ["masked", "labels.csv", "--metric", "accuracy"],
        "--metric accuracy needs a classifier, and the model is a BertForMaskedLM; "
        "choose --metric agreement, or spearman with pairs and a score",
    ),
    "no score": (
        ["bare", "texts.txt", "--metric", "spearman"],
        "--metric spearman needs a column named score, similarity, similarity_score or the like, "
        "and {home}/texts.txt has text; rename the column, or choose another metric",
    ),
    "too long": (
        ["masked", "texts.txt", "--max-len", "99"],
        "--max-len is 99 and the model has positions for 16 tokens; "
        "give at most 16: longer texts are cut there, and counted",
    ),
    "keep": (
        ["masked", "texts.txt", "--keep", "2"],
        "--keep is 2.0; give the share of quality to keep, as in 0.99",
    ),
    "timed too long": (
        ["masked", "texts.txt", "--length", "99"],
        "--length is 99 and the model has positions for 16 tokens; give at most 16",
    ),
    "no interface": (
        ["mpnet", "texts.txt"],
        "MPNetModel computes attention in its own code, not through transformers' attention "
        "interface, so its heads cannot be reached; choose another architecture",
    ),
    "no data": (["masked", "empty.txt"], "{home}/empty.txt holds no rows; expected texts"),
    "no model": (
        ["nowhere", "texts.txt"],
        "cannot load a model from {home}/nowhere (no such path, and as a name of the hub: ",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_a_mistake_is_one_line(home, tmp_path, capsys, case):
    (model, data, *options), expected = ERRORS[case]
    (home / "empty.txt").write_text("")
    out = ["--out", str(tmp_path / "out")]
    assert main(["audit", str(home / model), str(home / data), *options, *out]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"synthesizer: error: {expected.format(home=home)}")
    assert said.count("\n") == 1


def test_convert_refuses_what_it_cannot_do(home, tmp_path, capsys):
    assert main(["convert", str(tmp_path), "--heads", "2", "--out", str(tmp_path / "m")]) == 2
    assert "holds no audit.json, so it is not an audit" in capsys.readouterr().err
    audited, _ = finished(home, "loss")
    for options, said in (
        (["--heads", "9"], "--heads is 9; the model has 6: give 1 to 6"),
        ([], "give either --heads N or --keep SHARE"),
        (
            ["--heads", "2", "--tune", "3"],
            "--tune needs texts to tune on; name them with --texts",
        ),
    ):
        arguments = ["convert", str(audited), "--out", str(tmp_path / "m"), *options]
        assert main(arguments) == 2
        assert said in capsys.readouterr().err


def test_a_model_that_shares_its_attention_is_audited_and_not_converted():
    config = AlbertConfig(
        vocab_size=VOCAB, embedding_size=8, hidden_size=24, num_hidden_layers=3,
        num_attention_heads=3, intermediate_size=20, max_position_embeddings=16,
    )  # fmt: skip
    model = AlbertForMaskedLM(config).eval()
    with Hook(model) as hook:
        assert len(hook.discover(inputs("bert"))) == 3
        with pytest.raises(UserError, match="shares one attention among its layers"):
            build_converted(model, hook.layers, {0: HeadTables((0,), 8)})


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_some_examples_are_drawn_from_all_of_an_ordered_file(tmp_path, name):
    """The first 300 pairs of STS-B's validation are one genre, and easier than the others."""
    build(name).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    for part, count in (("fit", 60), ("judge", 200)):  # one word first, then another
        rows = ["w1 w2 w3 w4" if n < count // 2 else "w5 w6 w7 w8" for n in range(count)]
        (tmp_path / f"{part}.txt").write_text("\n".join(rows))

    def read(**more):
        asked = Asked(
            model=str(tmp_path / "model"), data=tmp_path / "judge.txt", fit=tmp_path / "fit.txt",
            out=tmp_path / "out", metric="loss", max_len=8, examples=20, fit_examples=20,
            rank_examples=10, rankings=1, steps=1, **more,
        )  # fmt: skip
        return read_subject(asked), asked

    subject, asked = read()
    for part in (subject.fit, subject.rank, subject.judge):
        late = sum("w5" in texts[0] for texts in part.texts)
        assert 0.2 * len(part) <= late <= 0.8 * len(part)
    assert subject.rank.texts == subject.fit.texts[:10]
    assert subject.judge.texts == read()[0].judge.texts
    assert subject.judge.texts != read(seed=1)[0].judge.texts
    record = audit(asked, lambda text: None)
    total = 200 if name == "bert" else subject.judge.drawn_from
    assert (record["num_judge"], record["num_judge_rows"], record["seed"]) == (20, total, 0)
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"20 other examples of judge.txt, drawn at random from {total} (seed 0)" in page


def test_half_of_an_ordered_file_judges_all_of_it(home, tmp_path):
    """A masked language model reads rows, not one stream: they need not keep their order."""
    (tmp_path / "texts.txt").write_text("\n".join(["w1 w2"] * 20 + ["w5 w6"] * 20))
    asked = Asked(
        model=str(home / "masked"), data=tmp_path / "texts.txt", out=tmp_path / "out", max_len=8
    )
    judged = [texts[0] for texts in read_subject(asked).judge.texts]
    assert 4 <= judged.count("w5 w6") <= 16
