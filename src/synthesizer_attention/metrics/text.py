"""Scores of written texts: BLEU, chrF, ROUGE, METEOR 1.5, CIDEr-D and the cosine of embeddings.

BLEU columns: hypothesis length, reference length, matches per order, totals per order. chrF
columns: hypothesis, reference and matching n-grams, three per character order. METEOR's stand with
it. All others: (score, 1). A signature says what a figure needs to be repeated.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import chain, pairwise, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.labels import Statistics, Total, mean_statistics, require_equal

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

Reference = str | Sequence[str]  # one text, or several that are equally right
Matrix = NDArray[Any]
Vectors = Mapping[str, Matrix]
NGrams = Counter[tuple[str, ...]]

ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")
EMBEDDING = "embedding_average"

_WORD = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")
_SENTENCE_END = re.compile(r"""([.!?]["'\u201d\u2019)\]]*)\s+""")


def words(text: str) -> list[str]:
    """Cut a lower-cased text into words (inner apostrophes kept) and single punctuation marks."""
    return _WORD.findall(text.lower())


def pair(hypotheses: Sequence[str], references: Sequence[Reference]) -> list[tuple[str, list[str]]]:
    """Pair each hypothesis with the list of its references."""
    require_equal(len(hypotheses), len(references))
    pairs = [
        (hypothesis, [reference] if isinstance(reference, str) else list(reference))
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    for index, (_, alternatives) in enumerate(pairs):
        if not alternatives:
            raise UserError(f"example {index} has no reference; give each example at least one")
    return pairs


def bleu_statistics(
    hypotheses: Sequence[str], references: Sequence[Reference], *, max_order: int = 4
) -> Statistics:
    """Count the n-gram matches up to max_order and both lengths: 2 + 2 max_order columns."""
    return _count(_sacrebleu(max_order), hypotheses, references)


def bleu_from_statistics(total: Total) -> float:
    """Corpus BLEU, 0 to 100, of the order that the number of columns tells."""
    from sacrebleu.metrics.bleu import BLEU

    hypothesis_length, reference_length, *counts = (int(count) for count in total)
    order = len(counts) // 2
    return BLEU.compute_bleu(
        counts[:order],
        counts[order:],
        hypothesis_length,
        reference_length,
        smooth_method="exp",
        max_ngram_order=order,
    ).score


def chrf_statistics(hypotheses: Sequence[str], references: Sequence[Reference]) -> Statistics:
    """Count character n-grams of orders 1 to 6: 18 columns."""
    return _count(_sacrebleu(None), hypotheses, references)


def chrf_from_statistics(total: Total) -> float:
    """Corpus chrF2, 0 to 100."""
    return float(_sacrebleu(None)._compute_score_from_stats([int(n) for n in total]).score)


def sacrebleu_signature(references: Sequence[Reference], max_order: int | None = 4) -> str:
    """sacrebleu's signature of BLEU, its order in front where it is not 4, or (None) of chrF.

    It depends on the number of references alone, so a placeholder is scored.
    """
    metric = _sacrebleu(max_order)
    counts = {1 if isinstance(reference, str) else len(reference) for reference in references}
    _count(metric, ["a"] * len(counts), [["a"] * count for count in counts])
    return f"order:{max_order}|" * (max_order not in (4, None)) + str(metric.get_signature())


def _sacrebleu(max_order: int | None) -> "Metric":
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    # force only silences a warning about texts that end in " .", as dialogue corpora do
    return CHRF() if max_order is None else BLEU(max_ngram_order=max_order, force=True)


def _count(
    metric: "Metric", hypotheses: Sequence[str], references: Sequence[Reference]
) -> Statistics:
    pairs = pair(hypotheses, references)
    streams = list(zip_longest(*(alternatives for _, alternatives in pairs)))
    # the entry that sacrebleu's own bootstrap takes; it has no public one for chrF's counts
    counts = metric._extract_corpus_statistics([hypothesis for hypothesis, _ in pairs], streams)
    return np.array(counts, dtype=np.int64)


def rouge_statistics(
    name: str, hypotheses: Sequence[str], references: Sequence[Reference]
) -> Statistics:
    """F of one ROUGE by rouge_score with the Porter stemmer; the best reference counts."""
    pairs = ((text, tuple(others)) for text, others in pair(hypotheses, references))
    return mean_statistics([score[ROUGE.index(name)] for score in _rouge(tuple(pairs))])


@functools.lru_cache(maxsize=1)
def _rouge(pairs: tuple[tuple[str, tuple[str, ...]], ...]) -> list[list[float]]:
    """F of every ROUGE: one pass over the texts gives them all."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer, found = RougeScorer(list(ROUGE), use_stemmer=True), []
    for hypothesis, texts in pairs:
        lines = [split_sentences(text) for text in texts]
        scores = scorer.score_multi(lines, split_sentences(hypothesis))
        found.append([scores[name].fmeasure for name in ROUGE])
    return found


def rouge_signature() -> str:
    """What a ROUGE figure needs to be repeated."""
    return f"F|stem:porter|sentences:newline or [.!?]|version:rouge_score-{version('rouge_score')}"


def split_sentences(text: str) -> str:
    """Put each sentence on its own line; only ROUGE-Lsum reads lines."""
    return _SENTENCE_END.sub(r"\1\n", text)


_ORDERS = range(1, 5)
_LENGTH_SPREAD = 6.0


def cider_statistics(hypotheses: Sequence[str], references: Sequence[Reference]) -> Statistics:
    """CIDEr-D per example, which the COCO evaluation computes under the name CIDEr.

    For n = 1 to 4, w(g) = count(g) * log(examples / examples with g in a reference); then
    10 * mean over n, mean over references, of exp(-(length difference)^2 / 72)
        * sum_g min(w_hyp(g), w_ref(g)) w_ref(g) / (|w_hyp| |w_ref|).
    The document frequencies are those of all references given here: a bootstrap keeps them.
    """
    pairs = [
        (words(hypothesis), [words(text) for text in texts])
        for hypothesis, texts in pair(hypotheses, references)
    ]
    found_in = Counter(
        gram for _, texts in pairs for gram in set().union(*(_grams(text) for text in texts))
    )

    def weigh(tokens: list[str], n: int) -> dict[tuple[str, ...], float]:
        return {
            gram: count * (math.log(len(pairs)) - math.log(max(1, found_in[gram])))
            for gram, count in _grams(tokens, [n]).items()
        }

    def similarity(hypothesis: list[str], reference: list[str]) -> float:
        # the COCO code measures length in bigrams
        difference = max(len(hypothesis) - 1, 0) - max(len(reference) - 1, 0)
        closeness = math.exp(-(difference**2) / (2 * _LENGTH_SPREAD**2))
        cosines = [_clipped_cosine(weigh(hypothesis, n), weigh(reference, n)) for n in _ORDERS]
        return 10 * closeness * sum(cosines) / len(_ORDERS)

    return mean_statistics(
        [sum(similarity(text, other) for other in others) / len(others) for text, others in pairs]
    )


def cider_signature() -> str:
    """What a CIDEr figure needs to be repeated."""
    return "cider-d|n:4|sigma:6|idf:references of the scored set|words:lower, with punctuation"


def _grams(tokens: list[str], orders: Sequence[int] = _ORDERS) -> NGrams:
    return Counter(
        tuple(tokens[start : start + n]) for n in orders for start in range(len(tokens) - n + 1)
    )


def _clipped_cosine(
    hypothesis: dict[tuple[str, ...], float], reference: dict[tuple[str, ...], float]
) -> float:
    product = sum(
        min(weight, reference[gram]) * reference[gram]
        for gram, weight in hypothesis.items()
        if gram in reference
    )
    norms = math.hypot(*hypothesis.values()) * math.hypot(*reference.values())
    return product / norms if norms else 0.0


ALPHA, BETA, GAMMA, DELTA, STEM = 0.85, 0.2, 0.6, 0.75, 0.6  # METEOR 1.5, English, ranking
BEAM = 40  # alignments kept while one is searched
_COMMON = """the , . to of and a in that for " is on 's it with was as said at he by be from
have has are his but an this not i will \u2019 they ) -rrb- ( -lrb- who their had we which were
been more or s its would about new one after you : also up when there than $ all out her people
she year two - can if last first \u201c over other \u201d into some what so -- no time years
could ? 't \u2014 '"""
FUNCTION_WORDS = frozenset(_COMMON.split())
"""What METEOR 1.5 takes for English function words: those that newspapers use most."""


def meteor_statistics(hypotheses: Sequence[str], references: Sequence[Reference]) -> Statistics:
    """Count what METEOR 1.5 adds up over a corpus, by exact and stem matches: 13 columns.

    For the hypothesis, then for the reference: words, function words, exact matches of content
    words and of function words, stem matches of both. Last: chunks, none where all words match in
    one. Of several references the one counts that scores best by itself.
    """
    rows = []
    for hypothesis, texts in pair(hypotheses, references):
        counted = [_count_matches(words(hypothesis), words(text)) for text in texts]
        rows.append(max(counted, key=lambda row: meteor_from_statistics(np.array(row))))
    return np.array(rows, dtype=np.int64)


def meteor_from_statistics(total: Total) -> float:
    """METEOR 1.5 for English (Denkowski and Lavie 2014), 0 to 100, of counts summed over a corpus.

    P = sum of w over matched words of the hypotheses / sum over all of them; R: of the references
        a content word counts DELTA, a function word 1 - DELTA; a stem match STEM times that
    F = P R / (ALPHA P + (1 - ALPHA) R)
    score = F (1 - GAMMA (chunks / matches)^BETA)
    """
    sides, chunks = np.reshape(total[:12], (2, 6)), total[12]
    length, common, content, function, stem_content, stem_function = sides.T
    matches = content + function + stem_content + stem_function
    if not matches[0]:
        return 0.0
    matched = DELTA * (content + STEM * stem_content)
    matched = matched + (1 - DELTA) * (function + STEM * stem_function)
    p, r = matched / (DELTA * (length - common) + (1 - DELTA) * common)
    penalty = GAMMA * (chunks / matches[0]) ** BETA
    return float(100 * p * r / (ALPHA * p + (1 - ALPHA) * r) * (1 - penalty))


def meteor_signature() -> str:
    """What a METEOR 1.5 figure needs to be repeated."""
    return (
        "1.5 en rank, modules exact+stem, corpus|words:lower, with punctuation|stem:snowball"
        f"|version:nltk-{version('nltk')}"
    )


def _count_matches(hypothesis: list[str], reference: list[str]) -> list[int]:
    matches = _align(hypothesis, reference)
    counts = []
    for side, text in enumerate((hypothesis, reference)):
        common = [word in FUNCTION_WORDS for word in text]
        kinds = Counter((match[2], common[match[side]]) for match in matches)
        counts += [len(text), sum(common)]
        counts += [kinds[exact, function] for exact in (True, False) for function in (False, True)]
    follows = sum((i + 1, j + 1) == (later[0], later[1]) for (i, j, _), later in pairwise(matches))
    chunks = len(matches) - follows
    whole = len(hypothesis) == len(reference) == len(matches) and chunks == 1
    return [*counts, 0 if whole else chunks]


@functools.lru_cache(maxsize=1 << 16)
def _stem(word: str) -> str:
    from nltk.stem.snowball import EnglishStemmer

    return str(EnglishStemmer().stem(word))


class _Alignment(NamedTuple):
    """A search as far as a word of the reference; matches are (hypothesis, reference, exact)."""

    matches: tuple[tuple[int, int, bool], ...] = ()
    exact: int = 0
    chunks: int = 0  # closed ones
    distance: int = 0
    end: int = -1  # the hypothesis word that would lengthen the open chunk

    def add(self, i: int, j: int, exact: bool, distance: int) -> "_Alignment":
        return _Alignment(
            (*self.matches, (i, j, exact)),
            self.exact + exact,
            self.chunks + (self.end not in (-1, i)),
            distance,
            i + 1,
        )

    def skip(self, distance: int) -> "_Alignment":
        return self._replace(chunks=self.chunks + (self.end != -1), distance=distance, end=-1)


def _align(hypothesis: list[str], reference: list[str]) -> tuple[tuple[int, int, bool], ...]:
    """The alignment of most exact matches, then of fewest chunks, then of least distance, by beam.

    It is the one that METEOR 1.5's program finds. So a word pair without rivals is always matched,
    other stem matches count nothing while it searches, and a match's distance is charged to the
    alternatives after it.
    """
    pairs = [[(i, True) for i, own in enumerate(hypothesis) if own == word] for word in reference]
    if hypothesis != reference:
        stems = [_stem(word) for word in hypothesis]
        for found, word in zip(pairs, reference, strict=True):
            stem = _stem(word)
            alike = (i for i, own in enumerate(stems) if own == stem and hypothesis[i] != word)
            found += [(i, False) for i in alike]
    rivals = Counter(i for found in pairs for i, _ in found)

    def rank(path: _Alignment) -> tuple[int, int, int]:
        return -path.exact, path.chunks, path.distance

    beam = [_Alignment()]
    for j, found in enumerate(pairs):
        grown = []
        for path in sorted(beam, key=rank)[:BEAM]:
            if len(found) == 1 and rivals[found[0][0]] == 1:
                i, exact = found[0]
                grown.append(path.add(i, j, exact, path.distance + abs(i - j)))
                continue
            distance, taken = path.distance, {match[0] for match in path.matches}
            for i, exact in found:
                if i not in taken:
                    grown.append(path.add(i, j, exact, distance))
                    distance += abs(i - j)
            grown.append(path.skip(distance))
        beam = grown
    last = sorted(beam, key=rank)[:BEAM]
    return min((path.skip(path.distance) for path in last), key=rank).matches


def embedding_statistics(
    hypotheses: Sequence[str], references: Sequence[Reference], vectors: Vectors
) -> Statistics:
    """Cosine of the mean word vectors of two texts; of several references the best counts.

    Words without a vector are passed over; a text without any known word scores 0.
    """

    def mean(text: str) -> Matrix:
        known = [vectors[word] for word in words(text) if word in vectors]
        return np.mean(known, axis=0) if known else np.zeros(1)

    def cosine(one: Matrix, other: Matrix) -> float:
        norms = np.linalg.norm(one) * np.linalg.norm(other)
        return float(one @ other / norms) if norms else 0.0

    return mean_statistics(
        [
            max(cosine(mean(hypothesis), mean(text)) for text in texts)
            for hypothesis, texts in pair(hypotheses, references)
        ]
    )


def vectors_signature(vectors: Vectors) -> str:
    """What a similarity by vectors from train_vectors needs to be repeated."""
    size = len(next(iter(vectors.values())))
    return f"ppmi+svd of the training split|words:{len(vectors)}|size:{size}"


def train_vectors(
    texts: Sequence[str], *, size: int = 64, window: int = 4, max_words: int = 4096
) -> dict[str, Matrix]:
    """Word vectors U sqrt(S) of the positive pointwise mutual information within a window.

    max(0, log P(i, j) / (P(i) P(j))), and 0 where the two never occur together. Deterministic. The
    max_words most frequent words get a vector; no window crosses a text.
    """
    tokens = [words(text) for text in texts]
    frequency = Counter(chain.from_iterable(tokens))
    if not frequency:
        raise UserError("no words to train vectors on; expected training texts that are not empty")
    ranked = sorted(frequency, key=lambda word: (-frequency[word], word))[:max_words]
    number = {word: index for index, word in enumerate(ranked)}
    ids = [[number.get(word, -1) for word in line] + [-1] * window for line in tokens]
    stream = np.fromiter(chain.from_iterable(ids), dtype=np.int64)
    counts = np.zeros((len(ranked), len(ranked)), dtype=np.float32)
    for distance in range(1, window + 1):
        left, right = stream[:-distance], stream[distance:]
        known = (left >= 0) & (right >= 0)
        np.add.at(counts, (left[known], right[known]), 1)
        np.add.at(counts, (right[known], left[known]), 1)
    left, right = np.nonzero(counts)
    marginal = counts.sum(0, dtype=np.float64)
    ratio = counts[left, right] * marginal.sum() / (marginal[left] * marginal[right])
    information = np.zeros_like(counts)
    information[left, right] = np.maximum(np.log(ratio), 0)
    return dict(zip(ranked, _factorize(information, size), strict=True))


def _factorize(matrix: Matrix, size: int, *, spare: int = 10, rounds: int = 4) -> Matrix:
    """U sqrt(S) of the largest `size` singular values, by subspace iteration from a fixed seed."""
    width = min(size + spare, len(matrix))
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((len(matrix), width)))[0]
    for _ in range(rounds):
        basis = np.linalg.qr(matrix @ (matrix.T @ basis))[0]
    left, singular, _ = np.linalg.svd(basis.T @ matrix, full_matrices=False)
    return np.asarray((basis @ left * np.sqrt(singular))[:, :size])
