import itertools

import numpy as np
import pytest
import torch

from corpus import ENGLISH, pairs, small, write_jsonl, write_tsv
from synthesizer_attention.data.batch import IGNORED
from synthesizer_attention.data.corpora import CORPORA
from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.scores import score
from synthesizer_attention.metrics.text import rouge_statistics
from synthesizer_attention.run.recipe import load_recipe
from synthesizer_attention.tasks import Outputs, build_task, prompt
from synthesizer_attention.tasks.pairs import TURN, conversations, principal_sentence

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


def references(task, split):
    labels = [row[row != IGNORED] for b in task.batches(split) for row in b.inputs["labels"]]
    return [task.tokenizer.decode(row, skip_special_tokens=True) for row in labels]


def test_pairs_are_read_cut_and_reported(translation):
    task = build_task(translation())
    assert task.report["columns"] == {"source": "english", "target": "german"}
    assert task.report["examples"] == {"train": 108, "validation": 6, "test": 6}
    assert task.report["cut_from_train"]["splits"] == ["validation", "test"]
    sources = {}
    for split in SPLITS:
        batches = list(task.batches(split))
        assert [i for b in batches for i in b.indices] == list(
            range(task.report["examples"][split])
        )
        sources[split] = {
            task.tokenizer.decode(row, skip_special_tokens=True)
            for batch in batches
            for row in batch.inputs["input_ids"]
        }
    assert set.union(*sources.values()) == {source for source, _ in pairs(120)}
    assert sum(map(len, sources.values())) == 120


def test_the_vocabulary_is_learned_from_both_sides(translation):
    """Generators made in a loop once all read the last side."""
    pieces = build_task(translation("text.vocab_size=500")).tokenizer.get_vocab()
    assert {"mouse", "Maus"} <= {piece.replace("Ġ", "") for piece in pieces}


def test_perfect_translations_score_100(translation):
    task = build_task(translation())
    scores = task.score("test", outputs(task, "test", references(task, "test")))
    assert scores.metrics["bleu"] == pytest.approx(100)
    assert scores.metrics["loss"] == pytest.approx(np.log(2))
    assert scores.statistics["bleu"].shape == (6, 10)
    assert "nrefs:1" in scores.signatures["bleu"]
    assert scores.samples[0].keys() == {"source", "reference", "output"}


def test_a_built_in_translation_prints_what_a_dictionary_reaches(monkeypatch):
    rows = [{"en": source, "de": target} for source, target in pairs(120)]
    splits = {"train": rows[:100], "validation": rows[100:110], "test": rows[110:]}
    monkeypatch.setitem(CORPORA, "tiny", lambda: splits)
    task = build_task(small("translation", "data.builtin=tiny"))
    assert task.report["origin"] == "built-in tiny"
    assert task.report["dictionary"]["test"] == pytest.approx(100)  # this corpus is word by word


@pytest.mark.parametrize("name", ["translation", "language_modeling", "pretrain"])
def test_training_resumes_at_any_batch(name, translation, book):
    recipe = translation() if name == "translation" else book(name)
    whole = first(build_task(recipe), 60)
    for start in (1, 17, 59):
        same(next(build_task(recipe).train_batches(start)), whole[start])
    other = first(build_task(recipe.model_copy(update={"seed": 9})), 1)
    assert other[0].indices != whole[0].indices


@pytest.mark.parametrize("name", ["translation", "language_modeling", "pretrain"])
def test_ranks_share_the_batches_of_one(name, translation, book):
    recipe = translation() if name == "translation" else book(name)
    task = build_task(recipe)
    parts = [first(task, 20, rank=rank, world=3) for rank in range(3)]
    for whole, *shares in zip(first(task, 20), *parts, strict=True):
        assert sorted(i for share in shares for i in share.indices) == sorted(whole.indices)
        assert sum(share.num_targets for share in shares) == whole.num_targets
        assert sum(share.num_tokens for share in shares) == whole.num_tokens


def test_a_rank_without_an_example_computes_without_targets(translation):
    task = build_task(translation("train.batch_tokens=1"))
    one, none = (next(task.train_batches(rank=rank, world=2)) for rank in range(2))
    assert (len(one.indices), none.indices, none.num_targets) == (1, (), 0)
    assert torch.equal(one.inputs["input_ids"], none.inputs["input_ids"])


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
        assert len(task.tokenizer) == 260
        assert task.report["vocab_size"] == 260


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


def test_bad_rows_stop_or_are_counted(tmp_path):
    rows = [{"source": a, "target": b} for a, b in pairs(60)]
    rows[4]["target"] = " "
    del rows[9]["source"]
    path = write_jsonl(tmp_path / "pairs.jsonl", rows)
    with pytest.raises(UserError, match=r"pairs.jsonl, row 5: column 'target' is empty; fix"):
        build_task(small("translation", f"data.train={path}"))
    task = build_task(small("translation", f"data.train={path}", "data.skip_bad=true"))
    assert task.report["bad_rows"] == {
        "train": {"column 'target' is empty": 1, "column 'source' is missing": 1}
    }
    assert sum(task.report["examples"].values()) == 58


def test_a_limit_shortens_validation_alone(translation):
    task = build_task(translation("evaluate.limit=2", "data.holdout=0.1"))
    assert sum(len(batch.indices) for batch in task.batches("validation")) == 2
    assert sum(len(batch.indices) for batch in task.batches("test")) == 12
    scores = task.score("validation", outputs(task, "validation", ["Katze", "Hund"]))
    assert len(scores.statistics["bleu"]) == 2


def test_a_prefix_opens_every_source(translation):
    recipe = translation("data.prefix=to German: ")
    task = build_task(recipe)
    (batch, *_) = task.batches("test")
    text = task.tokenizer.decode(batch.inputs["input_ids"][0])
    assert text.startswith("to German:")
    ids = prompt(recipe, task.tokenizer, "cat")
    assert task.tokenizer.decode(ids) == "to German: cat</s>"


def test_summaries_are_scored_by_rouge(tmp_path):
    rows = [{"id": n, "dialogue": a, "summary": b} for n, (a, b) in enumerate(pairs(60))]
    path = write_jsonl(tmp_path / "chats.jsonl", rows)
    task = build_task(small("summarization", f"data.train={path}"))
    assert task.report["columns"] == {"source": "dialogue", "target": "summary"}
    scores = task.score("test", outputs(task, "test", references(task, "test")))
    assert scores.metrics["rouge1"] == scores.metrics["rougeLsum"] == pytest.approx(100)
    assert task.main_metric in scores.statistics
    assert scores.metrics["perplexity"] == pytest.approx(2)  # the loss is log 2 a token
    assert scores.statistics["perplexity"].sum(0)[1] == outputs(task, "test").counts.sum()


@pytest.mark.parametrize("as_list", [True, False])
def test_a_principal_sentence_is_to_be_copied_from_its_text(tmp_path, as_list):
    """Turns of a list, or lines of a text; a text of one turn, or of short ones, is no example."""
    talks = [
        [f"oh {a}", f"{a} and {b} met {n}", f"{a} {b}", "yes"] for n, (a, b) in enumerate(pairs(60))
    ]
    talks += [["only one turn here"], ["ah", "so it", "goes"]]
    rows = [{"chat": talk if as_list else "\r\n".join(talk)} for talk in talks]
    path = write_jsonl(tmp_path / "chats.jsonl", rows)
    changes = ["task=principal_sentence", 'data.columns={text = "chat"}']
    task = build_task(small("summarization", f"data.train={path}", *changes))
    assert sum(task.report["examples"].values()) == 60
    assert all(" met " in reference for reference in references(task, "test"))
    scores = task.score("test", outputs(task, "test", references(task, "test")))
    assert scores.metrics["rougeL"] == pytest.approx(100)
    assert task.report["first_sentence"]["test"] < 90


def test_the_principal_sentence_by_the_definition():
    """ROUGE-1 of every sentence with the rest, by the metric itself."""
    sentences = ["a b c d e", "b c d x y z", "c d q r", "a b c d", "u v w x y z"]

    def likeness(index):
        rest = " ".join(s for n, s in enumerate(sentences) if n != index)
        return score("rouge1", rouge_statistics("rouge1", [sentences[index]], [rest]))

    best = max(range(5), key=likeness)
    assert principal_sentence(sentences) == sentences[best]
    assert principal_sentence(["a b c d e"]) is None
    assert principal_sentence(["a b c", "a b c"]) is None  # too short to be worth copying


def test_a_conversation_gives_an_example_per_reply(tmp_path):
    path = write_jsonl(
        tmp_path / "talks.jsonl", [{"dialog": [a, b, f"{a} again"]} for a, b in pairs(60)]
    )
    task = build_task(small("dialogue", f"data.train={path}", "evaluate.batch_tokens=100000"))
    assert sum(task.report["examples"].values()) == 120
    (batch,) = task.batches("test")
    first, second = (
        task.tokenizer.decode(r, skip_special_tokens=True) for r in batch.inputs["input_ids"][:2]
    )
    opening, reply = second.split(TURN)
    assert first == opening
    assert references(task, "test")[:2] == [reply, f"{opening} again"]


def test_a_persona_goes_with_the_replies_of_the_second_speaker_alone(tmp_path):
    talks = [
        {"dialog": [a, b, f"{a} again", f"{b} again"], "personality": [f"I like {b}."]}
        for a, b in pairs(60)
    ]
    path = write_jsonl(tmp_path / "talks.jsonl", talks)
    task = build_task(small("dialogue", f"data.train={path}", "evaluate.batch_tokens=100000"))
    assert task.report["columns"] == {"dialog": "dialog", "persona": "personality"}
    assert sum(task.report["examples"].values()) == 120  # two of the three replies of each
    (batch,) = task.batches("test")
    decoded = [
        task.tokenizer.decode(r, skip_special_tokens=True) for r in batch.inputs["input_ids"]
    ]
    persona, opening, reply, again = decoded[1].split(TURN)
    assert persona == f"I like {reply}."
    assert decoded[0] == TURN.join([persona, opening])
    assert again == f"{opening} again"
    assert references(task, "test")[:2] == [reply, f"{reply} again"]
    scores = task.score("test", outputs(task, "test", references(task, "test")))
    for metric in ("bleu1", "rougeL", "embedding_average"):
        assert scores.metrics[metric] == pytest.approx(100)
    assert {"bleu4", "cider", "meteor15_no_wordnet"} <= scores.metrics.keys()
    assert "training split" in scores.signatures["embedding_average"]


def test_a_long_history_keeps_its_end(tmp_path):
    rows = [{"history": f"{a} {'so ' * 30}{n}", "reply": b} for n, (a, b) in enumerate(pairs(60))]
    path = write_jsonl(tmp_path / "talks.jsonl", rows)
    task = build_task(small("dialogue", f"data.train={path}", "model.max_len=20"))
    (batch, *_) = task.batches("test")
    ending = task.tokenizer.decode(batch.inputs["input_ids"][0], skip_special_tokens=True).split()
    assert ending[-1].isdecimal()
    assert task.report["overlong"]["test"]["truncated"] == task.report["examples"]["test"]


def test_labels_are_inferred_and_scored(tmp_path):
    rows = [("comment", "mood"), *((a, "good" if "cat" in a else "bad") for a, _ in pairs(100))]
    path = write_tsv(tmp_path / "moods.tsv", rows)
    task = build_task(small("classification", f"data.train={path}"))
    assert task.report["columns"] == {"text": "comment", "label": "mood"}
    assert task.labels == ["bad", "good"]
    targets = torch.cat([batch.inputs["labels"] for batch in task.batches("test")]).numpy()
    train = torch.cat([batch.inputs["labels"] for batch in task.batches("train")])
    majority = 100 * (targets == train.mode().values.item()).mean()
    assert task.report["majority"]["test"] == pytest.approx(majority, abs=0.01)
    scores = task.score("test", outputs(task, "test", predictions=targets))
    assert scores.metrics["accuracy"] == scores.metrics["macro_f1"] == 100
    wrong = task.score("test", outputs(task, "test", predictions=1 - targets))
    assert wrong.metrics["accuracy"] == 0
    (batch, *_) = task.batches("test")
    assert (batch.inputs["input_ids"][:, 0] == task.tokenizer.cls_token_id).all()
    whole = first(task, 20)
    same(next(task.train_batches(11)), whole[11])


def test_a_label_unknown_to_train_stops(tmp_path):
    rows = [("text", "label"), *((a, "xy"[n % 2]) for n, (a, _) in enumerate(pairs(60)))]
    train = write_tsv(tmp_path / "train.tsv", rows)
    test = write_tsv(tmp_path / "test.tsv", [("text", "label"), ("a cat", "z")])
    with pytest.raises(UserError, match=r"test.tsv, row 2: unknown label 'z' in column 'label'"):
        build_task(small("classification", f"data.train={train}", f"data.test={test}"))


def test_unknown_words_are_counted(tmp_path):
    rows = [("text", "label"), *((a, "xy"[n % 2]) for n, (a, _) in enumerate(pairs(60)))]
    path = write_tsv(tmp_path / "train.tsv", rows)
    recipe = small("classification", f"data.train={path}", "text.kind=word", "text.vocab_size=8")
    assert build_task(recipe).report["unknown_tokens"]["train.text"] > 0


def test_every_byte_and_word_of_the_text_is_counted_once(book):
    for kind in ("byte", "bpe", "word"):
        task = build_task(book("language_modeling", f"text.kind={kind}", "data.holdout=0.2"))
        result = outputs(task, "test")
        rows = task.score("test", result).statistics[task.main_metric].sum(0)
        (documents, texts) = task.report["examples"]["test"], _texts(task)
        assert rows[3] == sum(len(text.encode()) for text in texts)
        assert rows[2] == sum(len(text.split()) + 1 for text in texts)
        assert rows[1] == task.report["tokens"]["test"] == result.counts.sum()
        assert len(texts) == documents


def _texts(task):
    stream, _ = task.split("test")
    ends = np.flatnonzero(stream == task.tokenizer.eos_token_id)
    return [task.tokenizer.decode(stream[a + 1 : b]) for a, b in itertools.pairwise(ends)]


def test_bits_per_byte_of_a_uniform_guess(book):
    task = build_task(book("language_modeling", "text.kind=byte"))
    assert task.main_metric == "bits_per_byte"
    counts = outputs(task, "test").counts
    scores = task.score("test", Outputs(counts * np.log(256.0), counts, counts))
    documents, size = task.report["examples"]["test"], task.report["tokens"]["test"]
    assert scores.metrics["bits_per_byte"] == pytest.approx(8 * size / (size - documents))
    assert scores.metrics["perplexity"] == pytest.approx(256)
    assert 1 < task.report["bigram"]["test"] < 4


def test_an_lm_prompt_begins_as_a_document_does(book):
    recipe = book("language_modeling")
    task = build_task(recipe)
    ids = prompt(recipe, task.tokenizer, "cat")
    assert task.tokenizer.decode(ids) == "</s>cat"
    with pytest.raises(UserError, match="the line is empty"):
        prompt(recipe, task.tokenizer, " ")
    with pytest.raises(UserError, match=r"the line has \d+ tokens and the model takes 16; shorten"):
        prompt(recipe, task.tokenizer, "zq" * 30)


def test_blank_documents_count_where_they_are_kept(tmp_path):
    rows = [{"text": text} for pair in pairs(60) for text in (pair[0], "")]
    path = write_jsonl(tmp_path / "lines.jsonl", rows)
    with pytest.raises(UserError, match="row 2: column 'text' is empty"):
        build_task(small("language_modeling", f"data.train={path}"))
    task = build_task(small("language_modeling", f"data.train={path}", "data.keep_blank=true"))
    assert sum(task.report["examples"].values()) == 120


def test_paragraphs_of_one_article_are_one_unit(tmp_path):
    texts = [
        " = Cats = ",
        "purr " * 19,
        " = = Food = = ",
        "they eat",
        " = Dogs = ",
        "dogs bark",
    ]
    path = write_jsonl(tmp_path / "lines.jsonl", [{"text": text} for text in texts])
    named = [f"data.{split}={path}" for split in ("train", "validation", "test")]
    options = (*named, "text.kind=byte", "model.max_len=8")
    by_row = build_task(small("language_modeling", *options)).documents("test")
    assert [*np.unique(by_row)] == [0, 1, 2, 3, 4, 5]
    task = build_task(small("language_modeling", *options, "data.article_start='^ = [^=]'"))
    articles = task.documents("test")
    assert [*np.unique(articles)] == [1, 2]
    assert len(articles) == len(by_row)
    assert (articles == np.where(by_row < 4, 1, 2)).all()
    with pytest.raises(UserError, match=r"article_start is '\('; expected a regular expression"):
        small("language_modeling", "data.article_start=(")


def test_a_streamed_train_split_resumes_and_goes_round(tmp_path, monkeypatch):
    monkeypatch.setattr("synthesizer_attention.tasks.stream.BLOCK", 16)
    paths = {
        split: write_jsonl(tmp_path / f"{split}.jsonl", [{"text": f"{a} {b}"} for a, b in rows])
        for split, rows in {
            "train": list(pairs(60)),
            "validation": list(pairs(3)),
            "test": list(pairs(3)),
        }.items()
    }
    named = [f"data.{split}={path}" for split, path in paths.items()]
    recipe = small("language_modeling", *named, "data.streaming=true", "model.max_len=16")
    task = build_task(recipe)
    whole = first(task, 80)
    for start in (0, 13, 55):
        same(next(build_task(recipe).train_batches(start)), whole[start])
    shown = {
        word for b in whole for word in task.tokenizer.decode(b.inputs["input_ids"].ravel()).split()
    }
    assert {*ENGLISH} <= {word.replace("</s>", "") for word in shown}
    with pytest.raises(UserError, match=r"data.streaming reads train as a stream and cannot cut"):
        build_task(small("language_modeling", named[0], "data.streaming=true"))


def test_a_streamed_hub_set_goes_on_from_its_own_state_without_reading_what_came_before(
    tmp_path, monkeypatch
):
    import datasets

    monkeypatch.setattr("synthesizer_attention.tasks.stream.BLOCK", 16)
    monkeypatch.setattr("synthesizer_attention.tasks.stream.SAMPLE", 4)
    rows = [{"text": f"{a} {b} {n}"} for n, (a, b) in enumerate(pairs(160))]
    for split, part in {"train": rows, "validation": rows[:5], "test": rows[:5]}.items():
        for shard in range(4 if split == "train" else 1):
            write_jsonl(
                tmp_path / f"{split}-{shard}.jsonl", part[shard::4] if part is rows else part
            )
    files = {
        split: sorted(map(str, tmp_path.glob(f"{split}-*.jsonl")))
        for split in ("train", "validation", "test")
    }
    read = []

    def note(fields):
        read.append(fields["text"])
        return fields

    def load(*names, **options):
        loaded = load_json("json", data_files=files, streaming=True)
        loaded["train"] = loaded["train"].map(note)
        return loaded

    load_json = datasets.load_dataset
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


def test_the_held_out_splits_of_a_stream_have_as_many_documents_as_asked_for(tmp_path):
    rows = [{"text": a} for a, _ in pairs(40)]
    files = [
        f"data.{split}={write_jsonl(tmp_path / f'{split}.jsonl', rows)}"
        for split in ("train", "validation", "test")
    ]
    for sample in (5, 20):
        task = build_task(
            small("language_modeling", *files, "data.streaming=true", f"data.sample={sample}")
        )
        assert task.report["examples"] == {"train": sample, "validation": sample, "test": sample}
        assert f"first {sample} documents" in task.report["streaming"]


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


def test_spans_are_corrupted_anew_each_epoch_and_alike_when_held_out(book):
    recipe = book("pretrain", "model.max_len=48")
    task = build_task(recipe)
    by_window = {}
    for batch in first(task, 60):
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


def test_a_window_with_more_spans_than_sentinels_is_refused(book):
    with pytest.raises(UserError, match=r"the tokenizer has 100 tokens <extra_id_0> ...; windows"):
        build_task(book("pretrain", "model.max_len=4000", "model.decoder_max_len=4000",
                        "text.vocab_size=400"))  # fmt: skip


def test_the_shift_probe_asks_for_the_token_three_back():
    task = build_task(load_recipe("shift"))
    (batch, *_) = task.batches("test")
    ids, labels = batch.inputs["input_ids"], batch.inputs["labels"]
    asked = labels[:, 1:]  # of output i
    assert torch.equal(asked[:, 3:], ids[:, : 32 - 3])
    assert (asked[:, :3] == IGNORED).all()
    scores = task.score("test", outputs(task, "test"))
    assert scores.metrics["token_accuracy"] == 100
    same(next(task.train_batches(7)), first(task, 8)[7])
    with pytest.raises(UserError, match=r"model.max_len must be the number of its tokens and one"):
        build_task(load_recipe("shift", overrides=["model.max_len=32"]))


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


def test_replies_of_one_conversation_are_one_document():
    sources = ["a", f"a{TURN}b", f"a{TURN}b{TURN}c", "a", "ab"]
    assert conversations(sources, TURN).tolist() == [0, 0, 0, 1, 2]
    assert conversations(sources, None).tolist() == [0, 1, 2, 3, 4]


def test_train_can_be_scored_as_the_held_out_splits_are(tmp_path):
    rows = [{"en": a, "de": b} for a, b in pairs(60)]
    task = build_task(small("translation", f"data.train={write_jsonl(tmp_path / 'p.jsonl', rows)}"))
    right = references(task, "train")
    assert len(right) == task.report["examples"]["train"]
    scores = task.score("train", outputs(task, "train", right))
    assert scores.metrics["bleu"] == pytest.approx(100)
    assert scores.samples[0]["reference"] == right[0]


def test_a_streamed_train_split_has_no_score(tmp_path):
    files = {}
    for split in ("train", "validation", "test"):
        files[split] = write_jsonl(tmp_path / f"{split}.jsonl", [{"text": a} for a, _ in pairs(40)])
    named = [f"data.{split}={path}" for split, path in files.items()]
    task = build_task(small("language_modeling", *named, "data.streaming=true"))
    with pytest.raises(UserError, match=r"data\.streaming reads train as a stream, without an end"):
        next(task.batches("train"))
