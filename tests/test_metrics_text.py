"""Scores of generated text, each against a library or the definition written out."""

import random
from collections import Counter
from functools import partial
from itertools import combinations

import nltk
import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.stem.snowball import EnglishStemmer
from pycocoevalcap.cider.cider import Cider
from rouge_score.rouge_scorer import RougeScorer
from sklearn.metrics.pairwise import cosine_similarity

from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.scores import score
from synthesizer_attention.metrics.text import (
    FUNCTION_WORDS,
    bleu_from_statistics,
    bleu_statistics,
    chrf_from_statistics,
    chrf_statistics,
    cider_signature,
    cider_statistics,
    embedding_statistics,
    meteor_signature,
    meteor_statistics,
    rouge_signature,
    rouge_statistics,
    sacrebleu_signature,
    split_sentences,
    train_vectors,
    vectors_signature,
    words,
)

VOCABULARY = [
    "the",
    "cat",
    "cats",
    "running",
    "run",
    "Größe",
    "日本",
    "don't",
    ".",
    "!",
    "I",
]

sentences = st.lists(st.sampled_from(VOCABULARY), max_size=9).map(" ".join)
examples = st.lists(
    st.tuples(sentences, st.lists(sentences, min_size=1, max_size=3)), min_size=1, max_size=6
).map(lambda pairs: tuple(zip(*pairs, strict=True)))
few = settings(max_examples=60, deadline=None, derandomize=True)


def streams(references):
    """References as sacrebleu takes them: the first of each example, the second of each, ..."""
    longest = max(map(len, references))
    return [[each[i] if i < len(each) else None for each in references] for i in range(longest)]


@pytest.fixture
def offline(monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("nltk looked for data")

    monkeypatch.setattr(nltk, "download", refuse)
    monkeypatch.setattr(nltk.data, "find", refuse)
    monkeypatch.setattr(nltk.data, "load", refuse)


@few
@given(examples, st.sampled_from([1, 2, 4]))
def test_bleu_from_summed_counts_is_sacrebleu_to_the_last_bit(texts, order):
    hypotheses, references = texts
    oracle = sacrebleu.BLEU(max_ngram_order=order, force=True)
    expected = oracle.corpus_score(hypotheses, streams(references)).score
    statistics = bleu_statistics(hypotheses, references, max_order=order)
    assert bleu_from_statistics(statistics.sum(0)) == expected


@few
@given(examples)
def test_chrf_from_summed_counts_is_sacrebleu_to_the_last_bit(texts):
    hypotheses, references = texts
    expected = sacrebleu.CHRF().corpus_score(hypotheses, streams(references)).score
    statistics = chrf_statistics(hypotheses, references)
    assert chrf_from_statistics(statistics.sum(0)) == expected


def test_signatures_are_those_of_sacrebleu_and_tell_orders_and_references_apart():
    bleu = f"case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    chrf = f"case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}"
    assert sacrebleu_signature(["a", "b"]) == f"nrefs:1|{bleu}"
    assert sacrebleu_signature(["a"], max_order=1) == f"order:1|nrefs:1|{bleu}"
    assert sacrebleu_signature([["a", "b"], ["a"]]) == f"nrefs:var|{bleu}"
    assert sacrebleu_signature([["a", "b"]], None) == f"nrefs:2|{chrf}"


def test_an_empty_answer_scores_nothing_and_the_reference_itself_everything():
    text = ["the cat sat on the mat near the door.", "no, it did not; a dog was there."]
    vectors = train_vectors(text, size=5)
    made = {
        "bleu": bleu_statistics,
        "chrf": chrf_statistics,
        "rougeLsum": partial(rouge_statistics, "rougeLsum"),
        "cider": lambda *texts: cider_statistics(*texts) / [10, 1],
        "embedding_average": lambda *texts: embedding_statistics(*texts, vectors),
    }
    for name, make in made.items():
        assert score(name, make(["", ""], text)) == 0
        assert score(name, make(text, text)) == pytest.approx(100)


@few
@given(examples)
def test_rouge_is_the_best_f_over_references(texts):
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    for name in scorer.rouge_types:
        best = [
            max(scorer.score(reference, hypothesis)[name].fmeasure for reference in references)
            for hypothesis, references in zip(*texts, strict=True)
        ]
        np.testing.assert_allclose(rouge_statistics(name, *texts)[:, 0], best)


def test_rouge_l_is_the_longest_common_subsequence_of_stems():
    """Of 3 and 4 words, 2 follow each other in both: police and kill, once stemmed."""
    ((f, count),) = rouge_statistics(
        "rougeL", ["police kill gunman"], ["the gunman polices killing"]
    )
    assert count == 1
    assert f == pytest.approx(2 * 2 / (3 + 4))


def test_rouge_lsum_takes_sentences_in_any_order_and_rouge_l_does_not(offline):
    texts = ['He left. "Why?" I asked.'], ["Why? I asked. He left."]
    assert rouge_statistics("rougeLsum", *texts)[0, 0] == 1
    assert rouge_statistics("rougeL", *texts)[0, 0] < 1


def test_sentences_end_at_marks_before_spaces_and_newlines_stay():
    text = 'Version 2.6 came. "Really?" she said!\nYes'
    assert split_sentences(text).split("\n") == [
        "Version 2.6 came.",
        '"Really?"',
        "she said!",
        "Yes",
    ]


def test_meteor_matches_stems_not_synonyms_and_asks_for_no_data(offline):
    made = meteor_statistics(["running", "car"], ["runs", "automobile"])
    assert 0 < made[0, 0] < 1
    assert made[1, 0] == 0


def naive_alignments(hypothesis, reference):
    """The alignments of most credit, then of fewest chunks, then of least distance."""
    stem = EnglishStemmer().stem
    pairs = [
        (i, j)
        for i, word in enumerate(hypothesis)
        for j, other in enumerate(reference)
        if stem(word) == stem(other)
    ]
    found = {}
    for size in range(len(pairs) + 1):
        for chosen in combinations(pairs, size):
            if len({i for i, _ in chosen}) == len({j for _, j in chosen}) == size:
                chunks = size - sum((i + 1, j + 1) in chosen for i, j in chosen)
                credit = sum(1 if hypothesis[i] == reference[j] else 0.5 for i, j in chosen)
                key = (-credit, chunks, sum(abs(i - j) for i, j in chosen))
                found.setdefault(key, []).append(chosen)
    return min(found)[1], found[min(found)]


def naive_meteor15(hypothesis, reference, alignment, chunks):
    """The definition on one alignment."""
    if not alignment:
        return 0.0
    worth = {word: 0.25 if word in FUNCTION_WORDS else 0.75 for word in hypothesis + reference}
    in_hypothesis = in_reference = 0
    for i, j in alignment:
        factor = 1 if hypothesis[i] == reference[j] else 0.6
        in_hypothesis += factor * worth[hypothesis[i]]
        in_reference += factor * worth[reference[j]]
    precision = in_hypothesis / sum(worth[word] for word in hypothesis)
    recall = in_reference / sum(worth[word] for word in reference)
    f = 1 / (0.15 / precision + 0.85 / recall)
    same = len(alignment) == len(hypothesis) == len(reference) and chunks == 1
    return f * (1 - (0 if same else 0.6 * (chunks / len(alignment)) ** 0.2))


def test_meteor_15_without_wordnet_is_its_definition():
    draw = random.Random(0)
    vocabulary = ["the", "cat", "cats", "sat", "on", "mat", "running", "runs"]
    for _ in range(60):
        hypothesis, reference = (draw.choices(vocabulary, k=draw.randint(1, 5)) for _ in range(2))
        made = meteor_statistics([" ".join(hypothesis)], [" ".join(reference)])
        chunks, alignments = naive_alignments(hypothesis, reference)
        possible = [naive_meteor15(hypothesis, reference, a, chunks) for a in alignments]
        assert any(made[0, 0] == pytest.approx(each) for each in possible)


def test_a_text_has_the_whole_score_of_meteor_beside_itself():
    same = meteor_statistics(["the dog is black"], ["the dog is black"])
    assert score("meteor15_no_wordnet", same) == pytest.approx(100)
    assert meteor_signature().startswith("1.5 en rank, exact+snowball, no syn")


@few
@given(examples)
def test_cider_is_that_of_the_coco_evaluation(texts):
    cut = [[" ".join(words(text)) for text in texts[0]]]
    cut += [[[" ".join(words(each)) for each in references] for references in texts[1]]]
    made = cider_statistics(*texts)
    if not any(text for references in cut[1] for text in references):
        assert not made[:, 0].any()  # where the oracle stops at max of nothing
        return
    numbered = (dict(enumerate(cut[1])), {i: [h] for i, h in enumerate(cut[0])})
    np.testing.assert_allclose(made[:, 0], Cider().compute_score(*numbered)[1], atol=1e-12)


def test_cider_of_one_example_is_nothing_since_no_word_tells_it_from_others():
    assert score("cider", cider_statistics(["a b"], ["a b"])) == 0


def test_embedding_similarity_is_the_cosine_of_means():
    draw = np.random.default_rng(3)
    vectors = {word: draw.standard_normal(5) for word in "abcdefg"}
    for _ in range(50):
        left, right = ("".join(draw.choice(list("abcdefg"), draw.integers(1, 6))) for _ in "lr")
        made = embedding_statistics([" ".join(left)], [" ".join(right)], vectors)
        means = [np.mean([vectors[word] for word in side], axis=0) for side in (left, right)]
        np.testing.assert_allclose(made[0, 0], cosine_similarity(*([mean] for mean in means))[0, 0])


def test_words_without_vectors_are_passed_over_and_the_best_reference_counts():
    vectors = {"a": np.array([1.0, 0.0]), "b": np.array([0.0, 1.0])}
    made = embedding_statistics(["a x", "x"], [["b", "a y"], ["x"]], vectors)
    np.testing.assert_allclose(made, [[1, 1], [0, 1]])


def test_trained_vectors_reproduce_the_positive_pointwise_information():
    texts, window = ["a b a c d", "d c c", "b e", "e"], 2
    lines = [text.split() for text in texts]
    met = Counter()
    for line in lines:
        for i, word in enumerate(line):
            met.update((word, other) for other in line[max(0, i - window) : i])
            met.update((word, other) for other in line[i + 1 : i + 1 + window])
    alone = Counter()
    for (word, _), count in met.items():
        alone[word] += count
    total = sum(met.values())
    information = np.zeros((5, 5))
    for (word, other), count in met.items():
        ratio = count * total / (alone[word] * alone[other])
        information["abcde".index(word), "abcde".index(other)] = max(0, np.log(ratio))
    left, singular, _ = np.linalg.svd(information)
    vectors = train_vectors(texts, size=5, window=window)
    points = np.array([vectors[word] for word in "abcde"])
    np.testing.assert_allclose(points @ points.T, left * singular @ left.T, atol=1e-6)


def test_trained_vectors_are_repeatable_and_put_like_words_together():
    draw = np.random.default_rng(0)
    nouns, verbs = ["cat", "dog", "cow"], ["eats", "sees"]
    texts = [f"the {draw.choice(nouns)} {draw.choice(verbs)} grass ." for _ in range(200)]
    vectors, again = train_vectors(texts, size=4), train_vectors(texts, size=4)
    assert all((vectors[word] == again[word]).all() for word in vectors)
    like = cosine_similarity([vectors["cat"]], [vectors["dog"], vectors["eats"]])[0]
    assert like[0] > like[1] + 0.1


def test_training_vectors_on_no_words_is_an_error():
    with pytest.raises(UserError, match="no words to train vectors on"):
        train_vectors(["", " "])


def test_a_signature_says_what_it_takes_to_repeat_the_figure():
    vectors = train_vectors(["a b c"], size=2)
    assert vectors_signature(vectors) == "ppmi+svd of the training split|words:3|size:2"
    assert cider_signature().startswith("cider-d|n:4|sigma:6|")
    assert rouge_signature().startswith("F|stem:porter|")
