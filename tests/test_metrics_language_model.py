"""Perplexity, bits per byte, and the bigram model that stands beside the trained ones."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize

from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.language_model import (
    bigram_statistics,
    fit_bigram,
    interpolation_weights,
    language_model_statistics,
)
from synthesizer_attention.metrics.scores import score


def chain(length, seed):
    """Bytes of a text whose letters depend on the letter before, in documents of 50."""
    draw = np.random.default_rng(seed)
    text = bytearray(b"a")
    while len(text) < length:
        likely = b"ab cdefgh"[text[-1] % 9]
        text.append(likely if draw.random() < 0.7 else draw.choice(list(b"abcdefgh ")))
    return [bytes(text[start : start + 50]) for start in range(0, length, 50)]


def test_perplexities_and_bits_per_byte_are_their_definitions():
    windows = language_model_statistics([2.0, 7.0], [3, 2], [1, 2], [9, 6])
    assert score("perplexity", windows) == pytest.approx(math.exp(9 / 5))
    assert score("word_perplexity", windows) == pytest.approx(math.exp(9 / 3))
    assert score("bits_per_byte", windows) == pytest.approx(9 / math.log(2) / 15)


def test_a_uniform_model_of_bytes_has_perplexity_256_and_8_bits_per_byte():
    windows = language_model_statistics([5 * math.log(256)], [5], [1], [5])
    assert score("perplexity", windows) == pytest.approx(256)
    assert score("bits_per_byte", windows) == pytest.approx(8)


def test_a_hopeless_model_has_infinite_perplexity_and_not_an_overflow():
    windows = language_model_statistics([1e6], [1], [1], [1])
    assert score("perplexity", windows) == math.inf


def test_a_text_without_words_has_no_word_perplexity():
    windows = language_model_statistics([1.0], [1], [0], [1])
    with pytest.raises(UserError, match="nothing was scored: 0 words in the text"):
        score("word_perplexity", windows)


def test_windows_need_one_count_each():
    with pytest.raises(UserError, match="2 predictions and 1 targets"):
        language_model_statistics([1.0, 2.0], [1], [1, 1], [1, 1])


def test_the_bigram_model_is_a_distribution_over_bytes_and_the_end_after_every_symbol():
    log_probabilities = fit_bigram(chain(2000, seed=0))
    assert log_probabilities.shape == (257, 257)
    np.testing.assert_allclose(np.exp(log_probabilities).sum(1), 1)


def test_the_bigram_model_scores_each_byte_given_the_one_before():
    model = fit_bigram(chain(2000, seed=0))
    text = b"abc ha"
    stream = [256, *text, 256]
    nll = -sum(model[stream[i], stream[i + 1]] for i in range(len(stream) - 1))
    np.testing.assert_allclose(bigram_statistics(model, [text]), [[nll, 7, 3, 6]])


def test_the_bigram_model_beats_letter_frequencies_on_text_with_order():
    train, test = chain(20_000, seed=0), chain(5_000, seed=1)
    counts = np.bincount(np.frombuffer(b"".join(test), dtype=np.uint8))
    letters = stats.entropy(counts, base=2)
    bits = score("bits_per_byte", bigram_statistics(fit_bigram(train), test))
    assert bits < letters - 0.5


def test_a_byte_never_seen_in_training_has_a_finite_cost():
    """Where no held-out byte is new either, the uniform part must not die out."""
    model = fit_bigram([b"ab" * 2000] * 3)
    bits = score("bits_per_byte", bigram_statistics(model, ["ü".encode(), b""]))
    assert 8 < bits < 40


def test_bigrams_of_noise_are_not_trusted():
    """Weights fitted to the counted text itself would trust nothing else."""
    draw = np.random.default_rng(0)
    train, test = ([draw.integers(0, 256, 3000, dtype=np.uint8).tobytes()] for _ in "ab")
    statistics = bigram_statistics(fit_bigram(train), test)
    assert score("bits_per_byte", statistics) < 8.1


def test_interpolation_weights_are_the_most_likely_ones():
    draw = np.random.default_rng(0)
    estimates, counts = draw.dirichlet(np.ones(6), size=3), draw.integers(0, 9, 6).astype(float)

    def nll(logits):
        weights = np.exp(logits) / np.exp(logits).sum()
        return -(counts * np.log(weights @ estimates)).sum() - np.log(weights).sum()

    best = np.exp(minimize(nll, np.zeros(3)).x)
    weights = interpolation_weights(estimates, counts)
    np.testing.assert_allclose(weights, best / best.sum(), atol=1e-4)


def test_too_little_text_for_a_bigram_model_is_an_error():
    with pytest.raises(UserError, match="got 6 bytes of training text; it needs at least 100"):
        fit_bigram([b"short"])
