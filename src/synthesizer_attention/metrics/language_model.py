"""Perplexity and bits per byte, and the bigram model that is printed beside them.

Columns: nll (nats, of every predicted token), tokens, words, bytes.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.labels import (
    Statistics,
    Total,
    require_equal,
    require_examples,
)

END = 256  # the symbol after the last byte of a document, and before its first

Table = NDArray[np.float64]
ENOUGH_TOKENS = 5_000_000  # of train, to count a bigram model of


def language_model_statistics(
    nll: Sequence[float], tokens: Sequence[int], words: Sequence[int], text_bytes: Sequence[int]
) -> Statistics:
    """One row per window, from its summed nll and from how much text its targets spell."""
    for counts in (tokens, words, text_bytes):
        require_equal(len(nll), len(counts))
    return np.column_stack([nll, tokens, words, text_bytes]).astype(np.float64)


def perplexity_from_statistics(total: Total) -> float:
    """exp(nll / tokens)."""
    return _exp(_share(total, 1, "tokens"))


def word_perplexity_from_statistics(total: Total) -> float:
    """exp(nll / words): the same whatever the tokenizer."""
    return _exp(_share(total, 2, "words"))


def bits_per_byte_from_statistics(total: Total) -> float:
    """Nll in bits over the bytes of the text."""
    return _share(total, 3, "bytes") / math.log(2)


def fit_bigram(documents: Sequence[bytes]) -> Table:
    """log P(next symbol | symbol), (257, 257), interpolated from bigram, unigram and uniform.

    The weights are those that suit every tenth of a hundred slices of the training stream
    when the rest is counted; then the whole stream is counted.
    """
    pairs = np.concatenate([_pairs(document) for document in documents] or [np.empty((0, 2), int)])
    if len(pairs) < 100:
        raise UserError(
            f"the bigram model got {len(pairs)} bytes of training text; it needs at least 100"
        )
    held_out = np.arange(len(pairs)) * 100 // len(pairs) % 10 == 9
    weights = interpolation_weights(_estimates(pairs[~held_out]), _count(pairs[held_out]))
    return np.log(np.tensordot(weights, _estimates(pairs), 1))


def bigram_statistics(log_probabilities: Table, documents: Sequence[bytes]) -> Statistics:
    """Score documents, their ends included; an end is a token and a word but no byte."""
    require_examples(len(documents))
    nll = [-float(log_probabilities[tuple(_pairs(document).T)].sum()) for document in documents]
    return language_model_statistics(
        nll,
        [len(document) + 1 for document in documents],
        [len(document.split()) + 1 for document in documents],
        [len(document) for document in documents],
    )


def token_bigram_perplexity(train: Table, held_out: Table, scored: Table, vocab: int) -> float:
    """Perplexity of a stream of token numbers under a bigram model of train.

    Interpolated as `fit_bigram`, with the weights that suit the held-out stream.
    """
    pairs = train[:-1].astype(np.int64) * vocab + train[1:]
    codes, counts = np.unique(pairs, return_counts=True)
    before = np.bincount(train[:-1], minlength=vocab)
    unigram = np.bincount(train[1:], minlength=vocab) / len(pairs)

    def estimates(stream: Table) -> Table:
        code = stream[:-1].astype(np.int64) * vocab + stream[1:]
        place = np.minimum(np.searchsorted(codes, code), len(codes) - 1)
        together = np.where(codes[place] == code, counts[place], 0)
        met = before[stream[:-1]]
        common = unigram[stream[1:]]
        bigram = np.where(met > 0, together / np.maximum(met, 1), common)
        return np.stack([bigram, common, np.full(len(code), 1 / vocab)])

    fitted = estimates(held_out)
    weights = interpolation_weights(fitted, np.ones(fitted.shape[1]))
    return _exp(-float(np.log(weights @ estimates(scored)).mean()))


def interpolation_weights(estimates: Table, counts: Table, *, rounds: int = 100) -> Table:
    """The mixture of estimates under which counts are most likely, by expectation maximization.

    estimates (parts, ...), counts (...) -> weights (parts,) that sum to 1. Each part is credited
    with one count more, so that none dies out and a byte never seen has a bounded cost.
    """
    seen = counts > 0
    estimates, counts = estimates[:, seen], counts[seen]
    weights = np.full(len(estimates), 1 / len(estimates))
    for _ in range(rounds):
        joint = weights[:, None] * estimates
        credit = (joint / joint.sum(0)) @ counts + 1
        weights = credit / credit.sum()
    return weights


def _share(total: Total, column: int, unit: str) -> float:
    if total[column] == 0:
        raise UserError(f"nothing was scored: 0 {unit} in the text; expected at least one")
    return float(total[0] / total[column])


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _pairs(document: bytes) -> NDArray[np.int64]:
    """(symbol, next symbol) at each step from END over the bytes to END."""
    stream = np.array([END, *document, END])
    return np.column_stack([stream[:-1], stream[1:]])


def _count(pairs: NDArray[np.int64]) -> Table:
    counts = np.zeros((END + 1, END + 1))
    np.add.at(counts, tuple(pairs.T), 1)
    return counts


def _estimates(pairs: NDArray[np.int64]) -> Table:
    """Bigram, unigram and uniform P(next | symbol); after an unseen symbol bigram is unigram."""
    counts = _count(pairs)
    unigram = np.broadcast_to(counts.sum(0) / counts.sum(), counts.shape)
    met = counts.sum(1, keepdims=True)
    bigram = np.where(met > 0, counts / np.maximum(met, 1), unigram)
    return np.stack([bigram, unigram, np.full(counts.shape, 1 / len(counts))])
