"""An audit from a folder and a file to an answer, a page and a converted model; mistakes."""

import json
import random
import resource
import shutil
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    BartConfig,
    BartForSequenceClassification,
    BertForMaskedLM,
    GPT2ForSequenceClassification,
    MPNetConfig,
    MPNetModel,
    RobertaConfig,
    RobertaForMaskedLM,
    T5EncoderModel,
)

import browser
from pretrained import (
    CASES,
    SMALL,
    TEXT,
    VOCAB,
    build,
    found_layers,
    inputs,
    sentences,
    spread,
    tokenizer,
    value_of,
)
from synthesizer_attention.audit import projections
from synthesizer_attention.audit.averages import _explained, measure_averages
from synthesizer_attention.audit.convert import convert
from synthesizer_attention.audit.converted import build_converted
from synthesizer_attention.audit.cost import (
    Point,
    change,
    checkpoints_of,
    most_heads,
    sentence,
    why_ended,
)
from synthesizer_attention.audit.examples import METRICS, Example, Metric, encode, read_examples
from synthesizer_attention.audit.hook import Hook
from synthesizer_attention.audit.load import load_model, load_tokenizer, num_positions
from synthesizer_attention.audit.projections import LAYOUTS, Projection
from synthesizer_attention.audit.run import Asked, audit, read_subject
from synthesizer_attention.audit.tables import HeadTables
from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError


@pytest.mark.parametrize("metric", METRICS)
def test_an_audit_ranks_all_heads_and_measures_the_curve(audits, metric):
    _, record = audits.finished(metric)
    assert sorted(map(tuple, record["order"])) == [(la, h) for la in range(2) for h in range(3)]
    assert [point["replaced"] for point in record["curve"]] == [0, 1, 2, 4, 6]
    assert record["curve"][0]["cost"] == record["curve"][0]["high"] == 0
    assert all(point["low"] <= point["cost"] <= point["high"] for point in record["curve"])
    assert metric == "accuracy" or record["curve"][-1]["value"] != record["value"]
    assert record["heads"][-1]["moved"] > 0
    assert record["num_judge"] == 20
    assert record["speed"] == []  # the model has 16 positions


def test_speed_is_measured_along_the_curve_and_shown_with_what_moved(audits, tmp_path, monkeypatch):
    monkeypatch.setattr("synthesizer_attention.audit.record.SAID_EVERY", 0)
    said = []
    record = audits.measured("agreement", tmp_path, said.append, lengths=(4, 16), keep=0.2)
    timed = [(row["length"], row["replaced"]) for row in record["speed"]]
    counts = sorted({0, 2, 4, 6, record["answer"]["replaced"]})
    assert timed == [(length, count) for length in (4, 16) for count in counts]
    assert all(row["ms"] > 0 for row in record["speed"])
    assert record["sizes"][-1]["flops"] < record["sizes"][0]["flops"]
    for example in record["most_moved"]:
        assert example["before"] == pytest.approx(1)
        assert example["before"] - example["after"] == pytest.approx(example["moved"], abs=1e-5)
    page = (tmp_path / "report.html").read_text()
    assert "none: the original" in page
    assert f"Which heads of {audits.home.name}/bare need dot products?" in page
    assert "5 of 6 heads measured, 0 minutes to go" in said


@pytest.mark.parametrize(("metric", "auto"), [
    ("loss", AutoModelForMaskedLM), ("accuracy", AutoModelForSequenceClassification),
])  # fmt: skip
def test_the_converted_folder_scores_what_the_audit_said(audits, tmp_path, metric, auto):
    audited, record = audits.finished(metric)
    assert convert(audited, tmp_path / "model", print, heads=4) == 4
    model = auto.from_pretrained(tmp_path / "model").eval()
    rows = read_examples(audits.home / CASES[metric][1], metric)
    rows = random.Random(0).sample(rows, len(rows))
    judge = encode(rows[20:], metric, model, load_tokenizer(str(tmp_path / "model")), 12)
    assert value_of(judge, model) == pytest.approx(record["curve"][3]["value"], rel=1e-4)
    assert sum(len(facts["heads"]) for facts in model.config.replaced.values()) == 4
    card = ModelCard.load(tmp_path / "model" / "README.md")
    tasks = {
        "loss": "fill-mask",
        "accuracy": "text-classification",
        "spearman": "sentence-similarity",
    }
    assert card.data.pipeline_tag == tasks.get(metric, "feature-extraction")
    assert (card.data.license, card.data.library_name) == ("unknown", "transformers")
    (result,) = card.data.eval_results
    assert (result.task_type, result.metric_type) == (card.data.pipeline_tag, metric)
    assert result.metric_value == pytest.approx(record["curve"][3]["value"], abs=1e-4)
    assert "import synthesizer_attention.models" in card.text


def test_the_original_class_refuses_a_converted_folder_and_names_what_opens_it(tmp_path):
    """Of layers without a dot product it would find no weights, and draw them anew."""
    model = build("bert")
    layers = found_layers(model, inputs("bert"))
    tables = {place: HeadTables(range(3), 8) for place in range(2)}
    build_converted(model, layers, tables).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="models and open this folder by an Auto class"):
        BertForMaskedLM.from_pretrained(tmp_path)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path)
    again.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "config.json").read_text() == (
        tmp_path / "config.json"
    ).read_text()


def test_a_converted_model_keeps_its_original_license_and_task(audits, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(audits.model("masked"), home / "masked")
    shutil.copy(audits.home / "texts.txt", home)
    front = "license: apache-2.0\npipeline_tag: feature-extraction\ndatasets: [secret]"
    (home / "masked" / "README.md").write_text(f"---\n{front}\n---\n# A model\n")
    audits.measured("loss", tmp_path / "out", home=home)
    convert(tmp_path / "out", tmp_path / "model", print, heads=1)
    data = ModelCard.load(tmp_path / "model" / "README.md").data
    assert (data.license, data.pipeline_tag) == ("apache-2.0", "feature-extraction")
    assert data.datasets is None


def test_from_a_folder_to_a_folder_and_on(audits, tmp_path, capsys):
    """T5: 5 heads, audited again, 5 more: the loaded folder scores what the second audit said."""
    half, out, data = tmp_path / "half", tmp_path / "again", audits.home / "pairs.csv"
    audited, first = audits.finished("t5")
    assert first["metric"] == "loss"
    assert len(first["order"]) == 12
    convert(audited, half, print, heads=5)
    words = ["audit", str(half), str(data), "--out", str(out), "--max-len", "12"]
    words += ["--rank-examples", "4", "--rankings", "1", "--steps", "3", "--length", "4"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "5 heads are tables already, and stay as they are" in said.err
    assert "5 of its heads are tables already." in said.out
    record = json.loads((out / "audit.json").read_text())
    assert len(record["order"]) == 7
    assert not {tuple(head) for head in record["order"]} & {tuple(h) for h in first["order"][:5]}
    assert record["architecture"] == "ConvertedT5ForConditionalGeneration"
    assert {row["replaced"] for row in record["speed"]} >= {0, 7}
    assert "t, table: 5 heads, replaced before" in (out / "report.html").read_text()
    assert main(["convert", str(out), "--heads", "8", "--out", str(tmp_path / "no")]) == 2
    assert "the model has 7 that are dot products: give 1 to 7" in capsys.readouterr().err
    point = next(point for point in record["curve"] if point["replaced"] == 5)
    convert(out, tmp_path / "more", print, heads=5)
    assert "10 of 12 heads as tables" in (tmp_path / "more" / "README.md").read_text()
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "more").eval()
    assert sum(len(facts["heads"]) for facts in loaded.config.replaced.values()) == 10
    asked = Asked(model=str(half), data=data, out=tmp_path / "third", max_len=12)
    assert value_of(read_subject(asked).judge, loaded) == pytest.approx(point["value"], rel=1e-4)
    with pytest.raises(UserError, match=r"--table is random and the tables of .* are relative"):
        audit(Asked(str(half), data, tmp_path / "third", table="random"), print)


def test_the_page_stands_alone(audits, tmp_path):
    if browser.PATH is None:
        pytest.skip("no Chromium")
    audited, record = audits.finished("spearman")
    seen = browser.look(audited / "report.html", tmp_path / "profile", width=400, scheme="dark")
    assert record["sentence"] in seen.text
    assert seen.width <= 400
    assert not seen.complaints
    assert [url for url in seen.requests if not url.startswith(("file:", "data:"))] == []


# what is computed


def test_averages_are_those_of_a_loop():
    model, batch = build("bert"), inputs("bert")
    kept = {}
    with torch.no_grad(), Hook(model) as hook:
        hook.discover(batch)
        averages = measure_averages(hook, [batch], 8)
        hook.read([batch], lambda layer, weights, visible: kept.update({layer: weights}))
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
    model, batch = build("gpt2"), inputs("gpt2")
    with torch.no_grad(), Hook(model) as hook:
        hook.discover(batch)
        average, _ = measure_averages(hook, [batch], 8)
    assert average.sink_counts.tolist() == [12, 0]  # a causal head has no last token
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
        "(measured: 0.1 worse; interval: 0 to 0.3 worse)."
    )
    assert change(Point(2, 9, -0.06, -0.2, 0.08)) == ("0.06 better", "0.2 better to 0.08 worse")
    assert change(Point(2, 9, -0.06, -0.2, -0.01)) == ("0.06 better", "0.01 to 0.2 better")
    assert sentence(points[0], 6, 1.0, "accuracy").startswith("No head can be shown to be a table")
    assert why_ended(points, best, 1.0, "accuracy") == (
        "With 4 heads the measured loss is within it, and its interval is not: 0.5 points of "
        "accuracy (interval: 0.2 to 1.2 worse). More examples would narrow it."
    )
    assert why_ended(points, points[0], 0.05, "accuracy") == (
        "With 2 heads the loss is more than that: 0.1 points of accuracy "
        "(interval: 0 to 0.3 worse)."
    )
    assert why_ended(points, points[-1], 1.0, "accuracy") == ""
    # the first step is halved, so that "no head" is said of one head, not of twelve
    assert checkpoints_of(72, 6) == [0, 1, 3, 6, 12, 24, 36, 48, 60, 72]
    assert checkpoints_of(8, 12) == list(range(9))
    assert checkpoints_of(1, 4) == [0, 1]


@pytest.mark.parametrize("causal", [True, False])
def test_the_loss_of_an_example_is_that_of_a_loop_over_its_labels(causal):
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    labels[0, 3:] = labels[1, 0] = -100
    output = SimpleNamespace(logits=logits)
    found = METRICS["loss"].outputs(output, {"labels": labels}, causal=causal)
    for example in range(2):
        losses = [
            -logits[example, at - causal].log_softmax(-1)[label].item()
            for at, label in enumerate(labels[example].tolist())
            if label != -100 and at >= causal
        ]
        assert found[example].tolist() == pytest.approx([sum(losses), len(losses)])


def test_a_metric_is_added_by_one_class(audits, tmp_path, monkeypatch):
    class Same(Metric):
        """Whether the largest number of the output is where the original's is."""

        unit = "points of sameness"
        tasks: ClassVar = {"texts": "feature-extraction"}

        def statistics(self, outputs, original, targets):
            same = (outputs.argmax(-1) == original.argmax(-1)).double().numpy()
            return np.column_stack([same, np.ones(len(same))])

    monkeypatch.setitem(METRICS, "same", Same())
    record = audits.measured("agreement", tmp_path / "audit", metric="same")
    assert record["value"] == 100
    assert record["curve"][-1]["value"] < 100
    assert "points of sameness" in record["sentence"]
    assert convert(tmp_path / "audit", tmp_path / "m", print, heads=1) == 1


def test_a_large_vocabulary_has_smaller_batches(monkeypatch):
    """Logits of 4,096 tokens and 262,144 words would take 4 GiB."""
    model, rows = build("bert"), [Example((text,)) for text in sentences(20)]
    monkeypatch.setattr("synthesizer_attention.audit.examples._BATCH_LOGITS", 24 * VOCAB)
    for metric, least in (("loss", 5), ("agreement", 1)):
        batches = encode(rows, metric, model, tokenizer(), 12).batches
        assert len(batches) >= least
        assert metric != "loss" or max(b["input_ids"].numel() for _, b in batches) <= 24
        assert sorted(place for chosen, _ in batches for place in chosen) == list(range(20))


def test_a_classifier_of_two_stacks_reads_pairs():
    """Its decoder reads the source, so that both stacks have the same length."""
    torch.manual_seed(0)
    config = BartConfig(
        **{**build("bart").config.to_dict(), "id2label": {0: "no", 1: "yes"}}, num_labels=2
    )
    model, tok = spread(BartForSequenceClassification(config)), tokenizer()
    pairs = enumerate(zip(sentences(8), sentences(8, 1), strict=True))
    examples = [Example((a, b), n % 2) for n, (a, b) in pairs]
    judge = encode(examples, "accuracy", model, tok, 16)
    first = tok(*examples[0].texts)["input_ids"]
    assert any(
        first == row[: len(first)].tolist() for _, b in judge.batches for row in b["input_ids"]
    )
    assert [layer.causal for layer in found_layers(model, judge.probe(model))] == [0, 0, 1, 1]
    assert len(judge.run(model)) == 8


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_some_examples_are_drawn_from_all_of_an_ordered_file(audits, tmp_path, name):
    """The first 300 pairs of STS-B's validation are one genre, and easier than the others."""
    for part, count in (("fit", 60), ("judge", 200)):  # one word first, then another
        rows = ["w1 w2 w3 w4" if n < count // 2 else "w5 w6 w7 w8" for n in range(count)]
        (tmp_path / f"{part}.txt").write_text("\n".join(rows))

    def read(**more):
        given = {"fit": tmp_path / "fit.txt", "examples": 20, "rank_examples": 10} | more
        asked = Asked(
            model=str(audits.model(name)), data=tmp_path / "judge.txt", out=tmp_path / "out",
            metric="loss", max_len=8, fit_examples=20, rankings=1, steps=1, **given,
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
    if name == "bert":  # half of an ordered file judges all of it
        judged = [texts[0] for texts in read(fit=None, examples=None)[0].judge.texts]
        assert 20 <= judged.count("w5 w6 w7 w8") <= 80


# other models, odd models and mistakes


TINY = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Folders of models as a user may have them, and files as a user may have them."""
    home = tmp_path_factory.mktemp("own")
    torch.manual_seed(0)
    gpt2 = build("gpt2").config
    gpt2.num_labels, gpt2.pad_token_id = 2, None
    roberta = RobertaConfig(**TEXT, type_vocab_size=1, **TINY)
    models = {
        "sentence-t5": T5EncoderModel(build("t5").config),
        "gpt2-classifier": GPT2ForSequenceClassification(gpt2),
        "unpadded": GPT2ForSequenceClassification(gpt2),
        "vit": build("vit"),
        "bert": build("bert"),
        "half": build("bert"),
        "roberta": RobertaForMaskedLM(roberta),
        "mpnet": MPNetModel(MPNetConfig(vocab_size=VOCAB, **TINY)),
    }
    for name, model in models.items():
        model.save_pretrained(home / name)
        words = tokenizer()
        words.pad_token = None if name == "unpadded" else words.pad_token
        if name != "vit":
            words.save_pretrained(home / name)
    weights = load_file(home / "half" / "model.safetensors")
    kept = {key: value for key, value in weights.items() if ".layer.1." not in key}
    save_file(kept, home / "half" / "model.safetensors", metadata={"format": "pt"})
    (home / "nothing").mkdir()
    texts = sentences(12)
    (home / "empty.txt").write_text("")
    (home / "texts.txt").write_text("\n".join(texts))
    (home / "long.txt").write_text("\n".join([" ".join(texts)] * 8))
    for name, head, row in (
        ("labels", "text,label", "{t},{n}"), ("words", "a,b,score", "{t},{t},high"),
        ("pairs", "a,b,score", "{t},{t},{n}"), ("gap", "a,b,score", "{t},{t},"),
        ("nan", "text,label", "{t},nan"),
    ):  # fmt: skip
        lines = [row.format(t=text, n=number % 2) for number, text in enumerate(texts)]
        (home / f"{name}.csv").write_text("\n".join([head, *lines]))
    return home


def audited(home, out, model, data, *options):
    words = ["audit", str(home / model), str(home / data), "--rankings", "1", "--rank-examples"]
    return main([*words, "2", "--steps", "1", "--length", "4", *options, "--out", str(out)])


READ = {
    "an encoder alone": ("sentence-t5", "pairs.csv", "--metric", "spearman"),
    "a decoder that classifies": ("gpt2-classifier", "labels.csv"),
    "texts longer than positions": ("roberta", "long.txt"),
}


@pytest.mark.parametrize("case", READ)
def test_an_audit_works_with(home, tmp_path, case, capsys):
    assert audited(home, tmp_path / "out", *READ[case]) == 0, capsys.readouterr().err
    record = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert record["max_len"] == (15 if READ[case][0] == "roberta" else record["max_len"])
    assert record["num_cut"] == (8 if "long.txt" in READ[case] else 0)
    out = ["--out", str(tmp_path / "m")]
    assert main(["convert", str(tmp_path / "out"), "--heads", "1", *out]) == 0
    model = load_model(str(tmp_path / "m"), record["metric"])
    assert type(model).__name__ == f"Converted{record['architecture']}"


def test_positions_are_those_behind_padding(home):
    assert num_positions(load_model(str(home / "roberta"), None)) == 15
    assert num_positions(load_model(str(home / "bert"), None)) == 16


REFUSED = {
    "metric": (
        ["bert", "texts.txt", "--metric", "bleu"],
        "--metric is 'bleu'; choose from loss, accuracy, spearman, agreement\n",
    ),
    "unfit": (
        ["bert", "labels.csv", "--metric", "accuracy"],
        "--metric accuracy needs a classifier, and the model is a BertForMaskedLM; "
        "choose --metric agreement, or spearman with pairs and a score\n",
    ),
    "no column": (
        ["bert", "texts.txt", "--metric", "spearman"],
        "--metric spearman needs a column named score, similarity, similarity_score or the like, "
        "and {home}/texts.txt has text; rename the column, or choose another metric\n",
    ),
    "too long": (
        ["bert", "texts.txt", "--max-len", "99"],
        "--max-len is 99 and the model has positions for 16 tokens; "
        "give at most 16: longer texts are cut there, and counted\n",
    ),
    "timed too long": (
        ["bert", "texts.txt", "--length", "99"],
        "--length is 99 and the model has positions for 16 tokens; give at most 16\n",
    ),
    "keep": (
        ["bert", "texts.txt", "--keep", "2"],
        "--keep is 2.0; give the share of quality to keep, as in 0.99\n",
    ),
    "no interface": (
        ["mpnet", "texts.txt"],
        "MPNetModel computes attention in its own code, not through transformers' attention "
        "interface, so its heads cannot be reached; choose another architecture\n",
    ),
    "no data": (["bert", "empty.txt"], "{home}/empty.txt holds no rows; expected texts"),
    "no file": (["bert", "no.csv"], "{home}/no.csv does not exist; give a file of texts\n"),
    "no path": (
        ["nowhere", "texts.txt"],
        "cannot load a model from {home}/nowhere (no such path, and as a name of the hub: ",
    ),
    "no model": (["nothing", "texts.txt"], "cannot load a model from {home}/nothing ("),
    "images": (["vit", "texts.txt"], "cannot load a processor of images from {home}/vit ("),
    "half a model": (
        ["half", "texts.txt"],
        "{home}/half holds no weights for 16 parameters of a BertForMaskedLM, such as "
        "bert.encoder.layer.1.attention.output.LayerNorm.bias; give the folder of a whole model\n",
    ),
    "no padding": (
        ["unpadded", "labels.csv"],
        "GPT2ForSequenceClassification needs a padding token to read several texts at once",
    ),
    "scores in words": (
        ["bert", "words.csv", "--metric", "spearman"],
        "score 'high' is not a number; give one for every pair, or leave the row out\n",
    ),
    "no score": (["bert", "gap.csv", "--metric", "spearman"], "score "),
    "no class": (["gpt2-classifier", "nan.csv"], "label "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_one_line_refuses(home, tmp_path, case, capsys):
    words, begin = REFUSED[case]
    assert audited(home, tmp_path / "out", *words) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"synthesizer: error: {begin.format(home=home)}")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_place_of_out_is_seen_before_anything_is_measured(home, tmp_path, capsys):
    (tmp_path / "out").write_text("mine")
    assert audited(home, tmp_path / "out", "bert", "texts.txt") == 2
    said = capsys.readouterr().err
    assert said == f"synthesizer: error: {tmp_path}/out is not a directory; name another --out\n"
    (tmp_path / "texts.txt").write_bytes(b"w1 w2\nw3 \xe9 w4\n")
    with pytest.raises(UserError, match=r"texts.txt, row 2: column .* is not UTF-8; save the file"):
        read_examples(tmp_path / "texts.txt", "loss")


def changed(home, tmp_path, name, **values):
    """A copy of a model's folder with other values in its config.json."""
    shutil.copytree(home / name, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return tmp_path / "model"


ODD = {
    "no heads": {"n_head": 0},
    "heads below zero": {"n_head": -4},
    "layers in a text": {"n_layer": "2"},
    "half a layer": {"n_layer": 2.5},
    "null layers": {"n_layer": None},
    "padding beyond the vocabulary": {"pad_token_id": 10**9},
    "a milliard classes": {"num_labels": 10**9},
    "a milliard positions": {"n_positions": 10**9},
    "a milliard numbers": {"n_embd": 10**9},
}


@pytest.mark.parametrize("case", ODD)
def test_an_odd_config_is_one_line_and_takes_no_memory(home, tmp_path, case, capsys):
    model = changed(home, tmp_path, "gpt2-classifier", **ODD[case])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert audited(home, tmp_path / "out", model, "labels.csv") == 2
    said = capsys.readouterr().err.splitlines()
    assert [line[:18] for line in said] == ["synthesizer: error"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB


@pytest.mark.parametrize(
    ("key", "value"), [("num_heads", 10**9), ("num_heads", None), ("d_head", 0), ("heads", [7]),
                       ("max_len", 10**9), ("max_len", "2"), ("kind", {})],
)  # fmt: skip
def test_an_odd_converted_model_is_refused(home, tmp_path, key, value, capsys):
    bert = build("bert")
    layers = found_layers(bert, inputs("bert"))
    build_converted(bert, layers, {0: HeadTables((1,), 16)}).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    (facts,) = config["replaced"].values()
    facts[key] = value
    path.write_text(json.dumps(config))
    assert audited(home, tmp_path / "out", tmp_path / "model", "texts.txt") == 2
    assert capsys.readouterr().err.count("synthesizer: error: ") == 1


@pytest.mark.parametrize(
    ("name", "data", "metric"),
    [("bert", "texts.txt", "loss"), ("bert", "texts.txt", "agreement"),
     ("gpt2-classifier", "labels.csv", "accuracy")],
)  # fmt: skip
def test_a_model_whose_outputs_are_no_numbers_is_refused_before_the_first_head(
    home, tmp_path, name, data, metric, capsys
):
    model = changed(home, tmp_path, name)
    weights = load_file(model / "model.safetensors")
    key = next(key for key in weights if key.endswith(("LayerNorm.weight", "ln_f.weight")))
    weights[key][0] = float("nan")
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    assert audited(home, tmp_path / "out", model, data, "--metric", metric) == 2
    said = capsys.readouterr().err
    assert f"the model's own {metric} is nan" in said
    assert "alone" not in said  # no head was replaced


def test_an_audit_says_at_its_start_what_convert_will_do(home, tmp_path, capsys, monkeypatch):
    """Of layers that share one attention, of an unknown layout, and of one that is read wrongly."""
    albert = AlbertForMaskedLM(AlbertConfig(**SMALL | TEXT, embedding_size=8))
    wrong = {"query_key_value": Projection("qkv")}  # all of each head, read as all queries first
    for number, (model, layouts, reason) in enumerate((
        (albert, LAYOUTS, "AlbertForMaskedLM calls one attention more than once"),
        (build("neox"), (), "GPTNeoXAttention has query_key_value, dense and no projections"),
        (build("neox"), (wrong,), "a GPTNeoXForCausalLM computes something else with heads left"),
        (build("neox"), LAYOUTS, ""),
        (build("olmo2"), LAYOUTS, ""),
    )):  # fmt: skip
        monkeypatch.setattr(projections, "LAYOUTS", layouts)
        folder, out = tmp_path / f"model{number}", tmp_path / f"out{number}"
        spread(model).save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        assert audited(home, out, folder, "long.txt") == 0
        said = capsys.readouterr().err.splitlines()
        record = json.loads((out / "audit.json").read_text())
        line = next(at for at, text in enumerate(said) if "convert " in text)
        assert line < next(at for at, text in enumerate(said) if "averaging" in text)
        command = ["convert", str(out), "--heads", "1", "--out", str(tmp_path / f"m{number}")]
        if not reason:
            assert (
                f"convert can replace heads{'; it keeps' if number == 4 else ', and'}" in said[line]
            )
            assert record["speed"]
            assert main(command) == 0
            continue
        assert f"convert will refuse this model: {reason}" in said[line]
        assert record["speed"] == []
        assert record["untimed"].startswith(reason)
        assert reason in (out / "report.html").read_text()
        if layouts != (wrong,):
            assert main(command) == 2
            assert "audit works, convert does not" in capsys.readouterr().err
            assert not (tmp_path / f"m{number}").exists()


def test_convert_refuses_what_it_cannot_do(audits, tmp_path, capsys):
    assert main(["convert", str(tmp_path), "--heads", "2", "--out", str(tmp_path / "m")]) == 2
    assert "holds no audit.json, so it is not an audit" in capsys.readouterr().err
    done, _ = audits.finished("loss")
    for options, said in (
        (["--heads", "9"], "--heads is 9; the model has 6: give 1 to 6"),
        ([], "give either --heads N or --keep SHARE"),
        (["--heads", "2", "--tune", "3"], "--tune needs texts to tune on; name them with --texts"),
    ):
        assert main(["convert", str(done), "--out", str(tmp_path / "m"), *options]) == 2
        assert said in capsys.readouterr().err


def test_a_model_that_shares_its_attention_is_audited_and_not_converted():
    config = AlbertConfig(**SMALL | TEXT, embedding_size=8)
    for model, batch in (
        (AlbertForMaskedLM(config).eval(), inputs("bert")),
        (build("decoder", universal=True), inputs("decoder")),
    ):
        layers = found_layers(model, batch)
        assert len(layers) == 2
        with pytest.raises(UserError, match="calls one attention more than once"):
            build_converted(model, layers, {0: HeadTables((0,), 8)})
