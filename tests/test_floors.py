"""What needs no network: floors that a study names, learned or written from the data alone."""

import numpy as np

from synthesizer.data.batch import Ragged
from synthesizer.tasks.bag_of_words import BagOfWords
from synthesizer.tasks.summarization import _first_sentences


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
    assert _first_sentences([], sources) == ["One thing.", "No end", "A line", "Mr?"]
