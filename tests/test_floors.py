"""What needs no network: floors that a study names, learned or written from the data alone."""

import numpy as np
import pytest

from corpus import SMALL, pairs, small, write_tsv
from synthesizer_attention.data.batch import Ragged
from synthesizer_attention.metrics.language_model import token_bigram_perplexity
from synthesizer_attention.report.notes import WITHOUT_A_NETWORK
from synthesizer_attention.run.recipe import load_recipe
from synthesizer_attention.tasks import build_task
from synthesizer_attention.tasks.labels import BagOfWords
from synthesizer_attention.tasks.pairs import (
    commonest_reply,
    first_sentences,
    translate_by_dictionary,
)
from tiny import write_text


def ragged(lists):
    offsets = np.cumsum([0, *map(len, lists)])
    return Ragged(np.concatenate([np.array(each, dtype=np.int64) for each in lists]), offsets)


def texts(count, seed):
    """Token 1 or 2 says the label, among noise."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    lists = [[1 + label, *rng.integers(5, 40, 6)] for label in labels]
    return ragged(lists), labels


def test_a_bag_of_words_learns_what_single_tokens_say():
    model = BagOfWords(40, 2)
    model.fit(*texts(600, 0))
    held_out, labels = texts(200, 1)
    assert (model.predict(held_out) == labels).mean() > 0.97


def test_a_bag_of_words_does_not_know_order():
    lists = [[1, 2], [2, 1]] * 100
    labels = np.array([0, 1] * 100)
    model = BagOfWords(4, 2)
    model.fit(ragged(lists), labels)
    assert len(set(model.predict(ragged(lists)))) == 1


def test_its_gradient_is_that_of_the_cross_entropy():
    """One step from zero moves every weight against the difference quotient of the loss."""
    held, labels = texts(1, 3)
    model = BagOfWords(40, 2)
    _, tokens, values = model._bags(held, np.array([0]))
    bag = np.zeros(40)
    bag[tokens] = values[:, 0]

    def loss(weights):
        scores = bag @ weights
        return np.log(np.exp(scores).sum()) - scores[labels[0]]

    model.fit(held, labels)
    for token in np.unique(held.flat):
        for label in (0, 1):
            moved = np.zeros((40, 2))
            moved[token, label] = 1e-6
            slope = (loss(moved) - loss(np.zeros((40, 2)))) / 1e-6
            assert np.sign(model.weights[token, label]) == -np.sign(slope)


def test_the_first_sentence_is_taken_from_each_source():
    sources = ["One thing. And two!", "No end", "A line\nanother.", " Mr? yes."]
    assert first_sentences([], sources) == ["One thing.", "No end", "A line", "Mr?"]


def test_the_dictionary_translates_words_and_leaves_order_alone():
    rows = [("red dog.", "Hund rot."), ("red cat.", "Katze rot."), ("old dog.", "Hund alt.")]
    assert translate_by_dictionary(rows, ["old red cat, dog."]) == ["alt rot Katze, Hund."]


def test_the_commonest_reply_and_its_ties():
    train = [("a", "yes"), ("b", "no"), ("c", "no"), ("d", "yes"), ("e", "maybe")]
    assert commonest_reply(iter(train), ["x", "y"]) == ["yes", "yes"]


def test_a_bigram_model_of_tokens_is_the_interpolation_that_it_says():
    """Two tokens that take turns: the weights go to the bigram, whose perplexity is near one."""
    turns = np.array([0, 1] * 300)
    assert token_bigram_perplexity(turns, turns, turns, 2) < 1.02
    rng = np.random.default_rng(0)
    noise, held, scored = (rng.integers(0, 50, n) for n in (40_000, 4_000, 4_000))
    assert token_bigram_perplexity(noise, held, scored, 50) == pytest.approx(50, rel=0.02)
    unseen = token_bigram_perplexity(np.array([0, 1, 0, 1]), np.array([2, 3, 2]), scored, 50)
    assert np.isfinite(unseen), "a token that train does not have costs a bounded price"


@pytest.mark.parametrize("task", ["translation", "dialogue", "probe", "language_modeling"])
def test_every_study_has_a_floor_in_the_unit_of_its_main_metric(task, tmp_path):
    data = tmp_path / "train.tsv"
    write_tsv(data, [("source", "target"), *pairs(150)])
    changes = [f"data.train={data}", "data.holdout=0.1", *SMALL]
    if task == "dialogue":
        changes += ["data.columns.history=source", "data.columns.reply=target"]
    if task == "probe":
        recipe = load_recipe("shift")
    elif task == "language_modeling":
        (tmp_path / "text.txt").write_text("\n".join(" ".join(pair) for pair in pairs(150)))
        recipe = load_recipe(task, overrides=[f"data.train={tmp_path}/text.txt", *SMALL])
    else:
        recipe = load_recipe(task, overrides=changes)
    known = build_task(recipe).report
    (name,) = set(known) & set(WITHOUT_A_NETWORK)
    floor = known[name]["test"]
    low, high = {"probe": (5, 8), "language_modeling": (1, 300)}.get(task, (0, 100.1))
    assert low <= floor <= high


def test_labels_have_the_floors_of_the_commonest_and_of_a_bag_of_words(tmp_path):
    """One word says the label, wherever it stands."""
    rows = [
        (f"{source} good {target}" if n % 2 else f"bad {source} {target}", ["no", "yes"][n % 2])
        for n, (source, target) in enumerate(pairs(300))
    ]
    path = write_tsv(tmp_path / "reviews.tsv", [("text", "label"), *rows])
    known = build_task(small("classification", f"data.train={path}", "data.holdout=0.2")).report
    assert set(known) & set(WITHOUT_A_NETWORK) == {"majority", "bag_of_words"}
    for split in ("validation", "test"):
        assert known["majority"][split] < 70
        assert known["bag_of_words"][split] > 95


def test_a_floor_of_bits_per_byte_is_not_set_beside_a_perplexity(tmp_path):
    """Span corruption is measured in perplexity, whatever its tokens are."""
    write_text(tmp_path / "text.txt", lines=200)
    changes = [f"data.train={tmp_path}/text.txt", "text.kind=byte", *SMALL]
    assert not set(build_task(load_recipe("pretrain", overrides=changes)).report) & set(
        WITHOUT_A_NETWORK
    )
