"""Tasks: what they read, batch and score, whatever their shape; and the floors of a study."""

import itertools

import numpy as np
import pytest
import torch

from corpus import ENGLISH, SMALL, pairs, small, write_jsonl, write_tsv
from synthesizer_attention.data.batch import IGNORED, Ragged
from synthesizer_attention.data.corpora import CORPORA
from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics import scores as table
from synthesizer_attention.metrics.scores import METRICS, Metric, score
from synthesizer_attention.metrics.text import rouge_statistics
from synthesizer_attention.report.summary import WITHOUT_A_NETWORK
from synthesizer_attention.run.recipe import load_recipe
from synthesizer_attention.tasks import Outputs, build_task, prompt
from synthesizer_attention.tasks.labels import BagOfWords
from synthesizer_attention.tasks.pairs import (
    TURN,
    conversations,
    first_sentences,
    principal_sentence,
    translate_by_dictionary,
)

SPLITS = ("train", "validation", "test")


@pytest.fixture
def translation(tmp_path):
    path = write_tsv(tmp_path / "pairs.tsv", [("english", "german"), *pairs(120)])
    return lambda *more: small("translation", f"data.train={path}", *more)


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("\n\n".join(" ".join(pair) for pair in pairs(120)))
    sizes = ["model.max_len=16", "model.decoder_max_len=16", "text.vocab_size=400"]
    return lambda name, *more: small(name, f"data.train={path}", *sizes, *more)


@pytest.fixture
def read(tmp_path):
    """A task on rows of its own."""

    def build(name, rows, *more):
        path = write_jsonl(tmp_path / "rows.jsonl", rows)
        return build_task(small(name, f"data.train={path}", "evaluate.batch_tokens=100000", *more))

    return build


def files_of(tmp_path, **splits):
    """Overrides that name a file of texts for each split."""
    return [
        f"data.{split}={write_jsonl(tmp_path / f'{split}.jsonl', [{'text': t} for t in texts])}"
        for split, texts in splits.items()
    ]


def outputs(task, split, texts=(), predictions=None):
    """What a model that knows nothing but the answers would give."""
    counts = [
        (batch.inputs["labels"] != IGNORED).reshape(len(batch.indices), -1).sum(1)
        for batch in task.batches(split)
    ]
    counts = torch.cat(counts).numpy()
    return Outputs(counts * np.log(2.0), counts, counts, predictions, tuple(texts))


def first(task, count=30, **options):
    return list(itertools.islice(task.train_batches(**options), count))


def same(one, other):
    assert one.indices == other.indices
    assert one.inputs.keys() == other.inputs.keys()
    for key, value in one.inputs.items():
        assert torch.equal(value, other.inputs[key])


def decoded(task, split):
    return [
        task.tokenizer.decode(row, skip_special_tokens=True)
        for batch in task.batches(split)
        for row in batch.inputs["input_ids"]
    ]


def references(task, split):
    labels = [row[row != IGNORED] for b in task.batches(split) for row in b.inputs["labels"]]
    return [task.tokenizer.decode(row, skip_special_tokens=True) for row in labels]


def perfect(task, split="test"):
    return task.score(split, outputs(task, split, references(task, split)))


def test_pairs_are_read_cut_reported_and_scored(translation):
    task = build_task(translation("text.vocab_size=500"))
    assert task.report["columns"] == {"source": "english", "target": "german"}
    assert task.report["examples"] == {"train": 108, "validation": 6, "test": 6}
    assert task.report["cut_from_train"]["splits"] == ["validation", "test"]
    sources = [text for split in SPLITS for text in decoded(task, split)]
    assert sorted(sources) == sorted(source for source, _ in pairs(120))
    for split in SPLITS:
        indices = [i for batch in task.batches(split) for i in batch.indices]
        assert indices == list(range(task.report["examples"][split]))
    pieces = {piece.replace("Ġ", "") for piece in task.tokenizer.get_vocab()}
    assert {"mouse", "Maus"} <= pieces, "learned from both sides"
    scores = perfect(task)
    assert scores.metrics["bleu"] == pytest.approx(100)
    assert scores.metrics["loss"] == pytest.approx(np.log(2))
    assert scores.statistics["bleu"].shape == (6, 10)
    assert "nrefs:1" in scores.signatures["bleu"]
    assert scores.samples[0].keys() == {"source", "reference", "output"}
    on_train = perfect(task, "train")  # whose texts are decoded from their tokens
    assert on_train.metrics["bleu"] == pytest.approx(100)
    assert on_train.samples[0]["reference"] == references(task, "train")[0]


def test_a_metric_that_names_a_task_is_recorded_by_it(translation, monkeypatch):
    """One line in METRICS is all that a metric needs."""

    def measure(outputs, references, _):
        lengths = [(len(a), len(b)) for a, b in zip(outputs, references, strict=True)]
        return np.array(lengths, dtype=float)

    line = Metric(
        table.percent_from_statistics, tasks=("translation",), measure=measure,
        sign=lambda *_: "letters",
    )  # fmt: skip
    monkeypatch.setitem(METRICS, "length_share", line)
    scores = perfect(build_task(translation()))
    assert scores.metrics["length_share"] == 100
    assert scores.statistics["length_share"].shape == (6, 2)
    assert scores.signatures["length_share"] == "letters"


@pytest.mark.parametrize("name", ["translation", "language_modeling", "pretrain"])
def test_training_resumes_at_any_batch_and_ranks_share_the_batches_of_one(name, translation, book):
    recipe = translation() if name == "translation" else book(name)
    task = build_task(recipe)
    whole = first(task, 60)
    for start in (1, 17, 59):
        same(next(task.train_batches(start)), whole[start])
    other = first(build_task(recipe.model_copy(update={"seed": 9})), 1)
    assert other[0].indices != whole[0].indices
    parts = [first(task, 20, rank=rank, world=3) for rank in range(3)]
    for batch, *shares in zip(whole, *parts, strict=False):
        assert sorted(i for share in shares for i in share.indices) == sorted(batch.indices)
        assert sum(share.num_targets for share in shares) == batch.num_targets
        assert sum(share.num_tokens for share in shares) == batch.num_tokens


def test_the_second_build_trains_no_tokenizer_and_encodes_nothing(translation, monkeypatch):
    before = build_task(translation())
    monkeypatch.setattr("synthesizer_attention.tasks.pairs.train_tokenizer", None)
    monkeypatch.setattr("synthesizer_attention.data.prepare.Encoder", None)
    after = build_task(translation())
    same(next(before.train_batches()), next(after.train_batches()))
    assert before.report == after.report
    assert before.tokenizer.get_vocab() == after.tokenizer.get_vocab()


def test_a_saved_tokenizer_serves_instead(translation, tmp_path):
    folder = tmp_path / "tokenizer"
    build_task(translation("text.kind=byte")).tokenizer.save_pretrained(folder)
    for task in (
        build_task(translation(), tokenizer_dir=folder),
        build_task(translation(f"text.tokenizer={folder}")),
    ):
        assert len(task.tokenizer) == task.report["vocab_size"] == 260


def test_over_long_examples_are_truncated_dropped_or_refused(tmp_path):
    long = ("cat " * 90, "Katze")
    path = write_tsv(tmp_path / "pairs.tsv", [("source", "target"), *pairs(60), long])
    held_out = [f"data.{split}={write_tsv(tmp_path / f'{split}.tsv', [('source', 'target'), long])}"
                for split in ("validation", "test")]  # fmt: skip
    recipe = [f"data.train={path}", *held_out, "model.max_len=40"]
    task = build_task(small("translation", *recipe))
    assert task.report["overlong"] == {split: {"truncated": 1} for split in SPLITS}
    assert max(len(row) for b in task.batches("train") for row in b.inputs["input_ids"]) == 40
    (batch,) = task.batches("test")
    assert batch.inputs["input_ids"][0, -1] == task.tokenizer.eos_token_id
    task = build_task(small("translation", *recipe, "data.overlong=drop"))
    assert task.report["overlong"]["train"] == {"dropped": 1}
    assert task.report["overlong"]["test"] == {"truncated": 1}
    with pytest.raises(UserError, match=r"train has \d+ tokens where model.max_len=40"):
        build_task(small("translation", *recipe, "data.overlong=error"))


def test_bad_rows_stop_or_are_counted(read):
    rows = [{"source": a, "target": b} for a, b in pairs(60)]
    rows[4]["target"] = " "
    del rows[9]["source"]
    with pytest.raises(UserError, match=r"rows.jsonl, row 5: column 'target' is empty; fix"):
        read("translation", rows)
    report = read("translation", rows, "data.skip_bad=true").report
    causes = {"column 'target' is empty": 1, "column 'source' is missing": 1}
    assert report["bad_rows"] == {"train": causes}
    assert sum(report["examples"].values()) == 58


def test_a_limit_shortens_validation_alone(translation):
    task = build_task(translation("evaluate.limit=2", "data.holdout=0.1"))
    assert sum(len(batch.indices) for batch in task.batches("validation")) == 2
    assert sum(len(batch.indices) for batch in task.batches("test")) == 12
    scores = task.score("validation", outputs(task, "validation", ["Katze", "Hund"]))
    assert len(scores.statistics["bleu"]) == 2


def test_a_prompt_begins_as_the_inputs_of_its_task_do(translation, book):
    recipe = translation("data.prefix=to German: ")
    task = build_task(recipe)
    assert all(text.startswith("to German:") for text in decoded(task, "test"))
    assert task.tokenizer.decode(prompt(recipe, task.tokenizer, "cat")) == "to German: cat</s>"
    recipe = book("language_modeling")
    task = build_task(recipe)
    assert task.tokenizer.decode(prompt(recipe, task.tokenizer, "cat")) == "</s>cat"
    with pytest.raises(UserError, match="the line is empty"):
        prompt(recipe, task.tokenizer, " ")
    with pytest.raises(UserError, match=r"the line has \d+ tokens and the model takes 16; shorten"):
        prompt(recipe, task.tokenizer, "zq" * 30)


def test_summaries_are_scored_by_rouge(read):
    rows = [{"id": n, "dialogue": a, "summary": b} for n, (a, b) in enumerate(pairs(60))]
    task = read("summarization", rows)
    assert task.report["columns"] == {"source": "dialogue", "target": "summary"}
    scores = perfect(task)
    assert scores.metrics["rouge1"] == scores.metrics["rougeLsum"] == pytest.approx(100)
    assert task.main_metric in scores.statistics
    assert scores.metrics["perplexity"] == pytest.approx(2)  # the loss is log 2 a token
    assert scores.statistics["perplexity"].sum(0)[1] == outputs(task, "test").counts.sum()


@pytest.mark.parametrize("as_list", [True, False])
def test_a_principal_sentence_is_to_be_copied_from_its_text(read, as_list):
    """Turns of a list, or lines of a text; a text of one turn, or of short ones, is no example."""
    talks = [
        [f"oh {a}", f"{a} and {b} met {n}", f"{a} {b}", "yes"] for n, (a, b) in enumerate(pairs(60))
    ]
    talks += [["only one turn here"], ["ah", "so it", "goes"]]
    rows = [{"chat": talk if as_list else "\r\n".join(talk)} for talk in talks]
    task = read("summarization", rows, "task=principal_sentence", 'data.columns={text = "chat"}')
    assert sum(task.report["examples"].values()) == 60
    assert all(" met " in reference for reference in references(task, "test"))
    assert perfect(task).metrics["rougeL"] == pytest.approx(100)
    assert task.report["first_sentence"]["test"] < 90


def test_the_principal_sentence_by_the_definition():
    """ROUGE-1 of every sentence with the rest, by the metric itself."""
    sentences = ["a b c d e", "b c d x y z", "c d q r", "a b c d", "u v w x y z"]

    def likeness(index):
        rest = " ".join(s for n, s in enumerate(sentences) if n != index)
        return score("rouge1", rouge_statistics("rouge1", [sentences[index]], [rest]))

    assert principal_sentence(sentences) == sentences[max(range(5), key=likeness)]
    assert principal_sentence(["a b c d e"]) is None
    assert principal_sentence(["a b c", "a b c"]) is None  # too short to be worth copying


def test_a_conversation_gives_an_example_per_reply(read):
    task = read("dialogue", [{"dialog": [a, b, f"{a} again"]} for a, b in pairs(60)])
    assert sum(task.report["examples"].values()) == 120
    opening, both = decoded(task, "test")[:2]
    assert both.split(TURN)[0] == opening
    assert references(task, "test")[:2] == [both.split(TURN)[1], f"{opening} again"]
    sources = ["a", f"a{TURN}b", f"a{TURN}b{TURN}c", "a", "ab"]
    assert conversations(sources, TURN).tolist() == [0, 0, 0, 1, 2], "one document"
    assert conversations(sources, None).tolist() == [0, 1, 2, 3, 4]


def test_a_persona_goes_with_the_replies_of_the_second_speaker_alone(read):
    talks = [
        {"dialog": [a, b, f"{a} again", f"{b} again"], "personality": [f"I like {b}."]}
        for a, b in pairs(60)
    ]
    task = read("dialogue", talks)
    assert (task.main_metric, task.higher_is_better) == ("perplexity", False)
    assert task.report["columns"] == {"dialog": "dialog", "persona": "personality"}
    assert sum(task.report["examples"].values()) == 120  # two of the three replies of each
    one, two = decoded(task, "test")[:2]
    persona, opening, reply, again = two.split(TURN)
    assert persona == f"I like {reply}."
    assert one == TURN.join([persona, opening])
    assert again == f"{opening} again"
    assert references(task, "test")[:2] == [reply, f"{reply} again"]
    scores = perfect(task)
    for metric in ("bleu1", "rougeL", "embedding_average"):
        assert scores.metrics[metric] == pytest.approx(100)
    assert {"bleu4", "cider", "meteor_exact_stem"} <= scores.metrics.keys()
    assert "training split" in scores.signatures["embedding_average"]


def test_a_long_history_keeps_its_end(read):
    rows = [{"history": f"{a} {'so ' * 30}{n}", "reply": b} for n, (a, b) in enumerate(pairs(60))]
    task = read("dialogue", rows, "model.max_len=20")
    assert decoded(task, "test")[0].split()[-1].isdecimal()
    assert task.report["overlong"]["test"]["truncated"] == task.report["examples"]["test"]


def test_labels_are_inferred_and_scored(tmp_path):
    """One word says the label, wherever it stands: a floor that needs no network."""
    rows = [(f"{a} good" if n % 3 else f"bad {a}", "ny"[n % 3 > 0]) for n, (a, _) in
            enumerate(pairs(300))]  # fmt: skip
    path = write_tsv(tmp_path / "moods.tsv", [("comment", "mood"), *rows])
    changes = ["data.holdout=0.2", "text.kind=word", "text.vocab_size=10"]
    task = build_task(small("classification", f"data.train={path}", *changes))
    assert task.report["columns"] == {"text": "comment", "label": "mood"}
    assert task.labels == ["n", "y"]
    assert task.report["unknown_tokens"]["train.text"] > 0
    targets = torch.cat([batch.inputs["labels"] for batch in task.batches("test")]).numpy()
    majority = 100 * (targets == 1).mean()
    assert task.report["majority"]["test"] == pytest.approx(majority, abs=0.01)
    assert task.report["bag_of_words"]["test"] > 95
    scores = task.score("test", outputs(task, "test", predictions=targets))
    assert scores.metrics["accuracy"] == scores.metrics["macro_f1"] == 100
    wrong = task.score("test", outputs(task, "test", predictions=1 - targets))
    assert wrong.metrics["accuracy"] == 0
    (batch, *_) = task.batches("test")
    assert (batch.inputs["input_ids"][:, 0] == task.tokenizer.cls_token_id).all()
    same(next(task.train_batches(11)), first(task, 12)[11])
    test = write_tsv(tmp_path / "test.tsv", [("comment", "mood"), ("a cat", "z")])
    with pytest.raises(UserError, match=r"test.tsv, row 2: unknown label 'z' in column 'mood'"):
        build_task(small("classification", f"data.train={path}", f"data.test={test}"))


def test_every_byte_and_word_of_the_text_is_counted_once(book):
    for kind in ("byte", "bpe", "word"):
        task = build_task(book("language_modeling", f"text.kind={kind}", "data.holdout=0.2"))
        result = outputs(task, "test")
        rows = task.score("test", result).statistics[task.main_metric].sum(0)
        stream, _ = task.split("test")
        ends = np.flatnonzero(stream == task.tokenizer.eos_token_id)
        texts = [task.tokenizer.decode(stream[a + 1 : b]) for a, b in itertools.pairwise(ends)]
        assert rows[3] == sum(len(text.encode()) for text in texts)
        assert rows[2] == sum(len(text.split()) + 1 for text in texts)
        assert rows[1] == task.report["tokens"]["test"] == result.counts.sum()
        assert len(texts) == task.report["examples"]["test"]


def test_bits_per_byte_of_a_uniform_guess(book):
    task = build_task(book("language_modeling", "text.kind=byte"))
    assert task.main_metric == "bits_per_byte"
    counts = outputs(task, "test").counts
    scores = task.score("test", Outputs(counts * np.log(256.0), counts, counts))
    documents, size = task.report["examples"]["test"], task.report["tokens"]["test"]
    assert scores.metrics["bits_per_byte"] == pytest.approx(8 * size / (size - documents))
    assert scores.metrics["perplexity"] == pytest.approx(256)
    assert 1 < task.report["bigram"]["test"] < 4


def test_blank_documents_count_where_they_are_kept(read):
    rows = [{"text": text} for pair in pairs(60) for text in (pair[0], "")]
    with pytest.raises(UserError, match="row 2: column 'text' is empty"):
        read("language_modeling", rows)
    task = read("language_modeling", rows, "data.keep_blank=true")
    assert sum(task.report["examples"].values()) == 120


def test_paragraphs_of_one_article_are_one_unit(tmp_path):
    texts = [" = Cats = ", "purr " * 19, " = = Food = = ", "they eat", " = Dogs = ", "dogs bark"]
    named = files_of(tmp_path, train=texts, validation=texts, test=texts)
    options = (*named, "text.kind=byte", "model.max_len=8")
    by_row = build_task(small("language_modeling", *options)).documents("test")
    assert [*np.unique(by_row)] == [0, 1, 2, 3, 4, 5]
    task = build_task(small("language_modeling", *options, "data.article_start='^ = [^=]'"))
    assert (task.documents("test") == np.where(by_row < 4, 1, 2)).all()
    with pytest.raises(UserError, match=r"article_start is '\('; expected a regular expression"):
        small("language_modeling", "data.article_start=(")


def test_every_window_has_the_document_that_most_of_it_lies_in(book):
    for name in ("language_modeling", "pretrain"):
        task = build_task(book(name))
        stream, windows = task.split("test")
        found = task.score("test", outputs(task, "test")).statistics["documents"]
        assert len(found) == len(windows)
        ends = [i for i, token in enumerate(stream) if token == task.tokenizer.eos_token_id][1:]
        owners = [sum(end < i for end in ends) for i in range(1, len(stream))]
        for place, document in enumerate(found):
            mine = owners[place * task._stride : (place + 1) * task._stride]
            assert mine.count(document) == max(map(mine.count, mine))
        assert len(set(found)) > 2


def test_a_streamed_train_split_resumes_goes_round_and_has_no_score(tmp_path, monkeypatch):
    monkeypatch.setattr("synthesizer_attention.tasks.stream.BLOCK", 16)
    texts = [f"{a} {b}" for a, b in pairs(60)]
    named = files_of(tmp_path, train=texts, validation=texts[:9], test=texts[:9])
    streamed = ["data.streaming=true", "model.max_len=16"]
    recipe = small("language_modeling", *named, *streamed)
    task = build_task(recipe)
    whole = first(task, 80)
    for start in (0, 13, 55):
        same(next(build_task(recipe).train_batches(start)), whole[start])
    shown = " ".join(task.tokenizer.decode(b.inputs["input_ids"].ravel()) for b in whole)
    assert {*ENGLISH} <= {*shown.replace("</s>", " ").split()}
    with pytest.raises(UserError, match=r"data\.streaming reads train as a stream, without an end"):
        next(task.batches("train"))
    with pytest.raises(UserError, match=r"data.streaming reads train as a stream and cannot cut"):
        build_task(small("language_modeling", named[0], "data.streaming=true"))
    report = build_task(small("language_modeling", *named, *streamed, "data.sample=5")).report
    assert report["examples"] == {"train": 5, "validation": 5, "test": 5}
    assert "first 5 documents" in report["streaming"]


def test_a_streamed_hub_set_goes_on_from_its_own_state_without_reading_what_came_before(
    tmp_path, monkeypatch
):
    import datasets

    monkeypatch.setattr("synthesizer_attention.tasks.stream.BLOCK", 16)
    monkeypatch.setattr("synthesizer_attention.tasks.stream.SAMPLE", 4)
    rows = [{"text": f"{a} {b} {n}"} for n, (a, b) in enumerate(pairs(160))]
    parts = {f"train-{shard}": rows[shard::4] for shard in range(4)}
    for name, part in {**parts, "validation-0": rows[:5], "test-0": rows[:5]}.items():
        write_jsonl(tmp_path / f"{name}.jsonl", part)
    files = {split: sorted(map(str, tmp_path.glob(f"{split}-*.jsonl"))) for split in SPLITS}
    read, load_json = [], datasets.load_dataset

    def note(fields):
        read.append(fields["text"])
        return fields

    def load(*names, **options):
        loaded = load_json("json", data_files=files, streaming=True)
        loaded["train"] = loaded["train"].map(note)
        return loaded

    monkeypatch.setattr(datasets, "load_dataset", load)
    recipe = small(
        "language_modeling", "data.hub=some/set", "data.streaming=true", "data.sample=20",
        "model.max_len=16",
    )  # fmt: skip
    whole = first(build_task(recipe), 60)
    for start in (0, 13, 41, 59):
        task = build_task(recipe)
        read.clear()
        same(next(task.train_batches(start)), whole[start])
        assert len(read) <= 4 + 2 * 16  # the sample of columns, and about a block


def test_validation_and_test_of_a_stream_never_share_a_document(tmp_path, monkeypatch):
    monkeypatch.setenv("SYNTHESIZER_DATA", str(tmp_path))
    (tmp_path / "one").mkdir()
    rows = [{"text": f"{a} {n}"} for n, (a, _) in enumerate(pairs(40))]
    write_jsonl(tmp_path / "one" / "train.jsonl", rows)
    write_jsonl(tmp_path / "one" / "test.jsonl", rows)
    only = "data.local=one", 'data.splits={ validation = "test" }'
    task = build_task(
        small("language_modeling", *only, "data.streaming=true", "data.sample=30", "text.kind=byte")
    )
    assert task.report["examples"] == {"train": 30, "validation": 3, "test": 27}
    assert "of test every tenth validates, the others test" in task.report["streaming"]
    texts = {
        split: set(task.tokenizer.decode(task.split(split)[0]).split("</s>")[1:-1])
        for split in ("validation", "test")
    }
    assert texts["validation"] == {rows[n]["text"] for n in (0, 10, 20)}
    assert not texts["validation"] & texts["test"]


def test_several_test_sets_are_scored_together_and_each_by_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("SYNTHESIZER_DATA", str(tmp_path))
    (tmp_path / "own").mkdir()
    body = [{"en": a, "de": b} for a, b in pairs(80)]
    for name, rows in (("train", body[:50]), ("validation", body[50:60]), ("test", body[60:68]),
                       ("test_2017", body[68:])):  # fmt: skip
        write_jsonl(tmp_path / "own" / f"{name}.jsonl", rows)
    names = 'data.splits={ test = ["test", "test_2017", "test_2018"] }'  # of which one is missing
    task = build_task(small("translation", "data.local=own", names))
    assert task.report["parts"] == {"test": {"test": 8, "test_2017": 12}}
    assert task.report["examples"]["test"] == 20
    written = references(task, "test")
    written[8:] = ["nothing like it"] * 12
    found = task.score("test", outputs(task, "test", written)).metrics
    assert found["bleu@test"] == pytest.approx(100)
    assert found["bleu@test_2017"] < 5 < found["bleu"] < 95
    assert not any("@" in name for name in task.score("validation", outputs(
        task, "validation", references(task, "validation"))).metrics)  # fmt: skip


def test_spans_are_corrupted_anew_each_epoch_and_alike_when_held_out(book):
    recipe = book("pretrain", "model.max_len=48", "text.kind=byte")
    task = build_task(recipe)
    assert not {*task.report} & {*WITHOUT_A_NETWORK}, "no bits per byte beside a perplexity"
    by_window = {}
    for batch in first(task, 200):
        for place, row in zip(batch.indices, batch.inputs["input_ids"], strict=True):
            by_window.setdefault(place, set()).add(task.tokenizer.decode(row))
    assert any(len(forms) > 1 for forms in by_window.values())
    assert all("<extra_id_0>" in form for forms in by_window.values() for form in forms)
    other = build_task(recipe.model_copy(update={"seed": 5}))
    for one, two in zip(task.batches("test"), other.batches("test"), strict=True):
        same(one, two)
    scores = task.score("test", outputs(task, "test"))
    assert scores.metrics["perplexity"] == pytest.approx(2)
    assert scores.metrics["token_accuracy"] == 100
    with pytest.raises(UserError, match=r"the tokenizer has 100 tokens <extra_id_0> ...; windows"):
        build_task(book("pretrain", "model.max_len=4000", "model.decoder_max_len=4000"))


def test_the_shift_probe_asks_for_the_token_three_back(monkeypatch):
    rows = CORPORA["shift"](train=200, validation=20, test=20)
    monkeypatch.setitem(CORPORA, "shift", lambda: rows)
    task = build_task(load_recipe("shift"))
    (batch, *_) = task.batches("test")
    ids, labels = batch.inputs["input_ids"], batch.inputs["labels"]
    asked = labels[:, 1:]  # of output i
    assert torch.equal(asked[:, 3:], ids[:, : 32 - 3])
    assert (asked[:, :3] == IGNORED).all()
    assert task.score("test", outputs(task, "test")).metrics["token_accuracy"] == 100
    assert 5 <= task.report["commonest_answer"]["test"] <= 8
    same(next(task.train_batches(7)), first(task, 8)[7])
    with pytest.raises(UserError, match=r"model.max_len must be the number of its tokens and one"):
        build_task(load_recipe("shift", overrides=["model.max_len=32"]))


def ragged(lists):
    offsets = np.cumsum([0, *map(len, lists)])
    return Ragged(np.concatenate([np.array(each, dtype=np.int64) for each in lists]), offsets)


def marked_texts(count, seed):
    """Token 1 or 2 says the label, among noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    return ragged([[1 + label, *rng.integers(5, 40, 6)] for label in labels]), labels


def test_a_bag_of_words_learns_what_single_tokens_say_and_knows_no_order():
    model = BagOfWords(40, 2)
    model.fit(*marked_texts(600, 0))
    held_out, labels = marked_texts(200, 1)
    assert (model.predict(held_out) == labels).mean() > 0.97
    turned = ragged([[1, 2], [2, 1]] * 100)
    model = BagOfWords(4, 2)
    model.fit(turned, np.array([0, 1] * 100))
    assert len(set(model.predict(turned))) == 1


def test_the_gradient_of_a_bag_of_words_is_that_of_the_cross_entropy():
    """One step from zero moves every weight against the difference quotient of the loss."""
    held, labels = marked_texts(1, 3)
    model = BagOfWords(40, 2)
    _, tokens, values = model._bags(held, np.array([0]))
    bag = np.zeros(40)
    bag[tokens] = values[:, 0]

    def loss(weights):
        scores = bag @ weights
        return np.log(np.exp(scores).sum()) - scores[labels[0]]

    model.fit(held, labels)
    for token, label in itertools.product(np.unique(held.flat), (0, 1)):
        moved = np.zeros((40, 2))
        moved[token, label] = 1e-6
        slope = (loss(moved) - loss(np.zeros((40, 2)))) / 1e-6
        assert np.sign(model.weights[token, label]) == -np.sign(slope)


def test_what_can_be_written_without_a_network():
    sources = ["One thing. And two!", "No end", "A line\nanother.", " Mr? yes."]
    assert first_sentences([], sources) == ["One thing.", "No end", "A line", "Mr?"]
    rows = [("red dog.", "Hund rot."), ("red cat.", "Katze rot."), ("old dog.", "Hund alt.")]
    assert translate_by_dictionary(rows, ["old red cat, dog."]) == ["alt rot Katze, Hund."]


@pytest.mark.parametrize("task", ["translation", "dialogue", "language_modeling"])
def test_every_study_has_a_floor_in_the_unit_of_its_main_metric(task, tmp_path, translation, book):
    if task == "dialogue":
        path = write_tsv(tmp_path / "talk.tsv", [("history", "reply"), *pairs(150)])
        recipe = load_recipe(task, overrides=[f"data.train={path}", "data.holdout=0.1", *SMALL])
    else:
        recipe = translation() if task == "translation" else book(task)
    known = build_task(recipe).report
    (name,) = set(known) & set(WITHOUT_A_NETWORK)
    low, high = {"translation": (99.9, 100.1), "dialogue": (3, 15), "language_modeling": (1, 300)}[
        task
    ]  # the pairs are word by word
    assert low <= known[name]["test"] <= high
