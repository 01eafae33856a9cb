"""The verdict: its error rates by simulation, its words and its sentence."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy import stats

from synthesizer.metrics import SCORES, percent_from_statistics, score
from synthesizer.study.verdict import (
    LEVEL,
    MARGINS,
    Comparison,
    Evidence,
    Measured,
    answer,
    decide,
    jackknife,
    judge,
    kind_of,
    margin_for,
    seeds_needed,
    t_quantile,
    weigh,
)

NOISES = {  # of a seed, of an example, and of an example under one seed
    "seeds": (1.0, 0.0, 0.0),
    "examples": (0.0, 10.0, 0.0),
    "both alone": (0.0, 0.0, 10.0),
    "all": (0.6, 6.0, 6.0),
}
EXAMPLES, REPEATS = 30, 1000


@cache
def simulated(seeds, noise):
    """What is found, time and again, of a row whose gain over dot is zero."""
    rng = np.random.default_rng(seeds)
    seed, example, both = NOISES[noise]
    found = []
    for _ in range(REPEATS):
        table = (
            rng.normal(0, 1, (seeds, 1)) * seed
            + rng.normal(0, 1, EXAMPLES) * example
            + rng.normal(0, 1, (seeds, EXAMPLES)) * both
        )
        found.append(weigh(table.mean(1), table))
    return found


def at_most(level, repeats):
    """What chance lets a rate of `level` show in so many repeats."""
    return level + 3.3 * np.sqrt(level / repeats)


both_sizes = pytest.mark.parametrize("seeds", [3, 5])


@both_sizes
@pytest.mark.parametrize("noise", NOISES)
def test_a_bound_errs_no_more_than_it_says(seeds, noise):
    for level in (LEVEL, LEVEL / 10):
        wrong = [evidence.gain > evidence.error(level) for evidence in simulated(seeds, noise)]
        assert np.mean(wrong) <= at_most(level, REPEATS)


@both_sizes
@pytest.mark.parametrize("noise", ["seeds", "examples"])
def test_a_bound_is_not_wasteful(seeds, noise):
    wrong = [evidence.gain > evidence.error(LEVEL) for evidence in simulated(seeds, noise)]
    assert np.mean(wrong) > 0.7 * LEVEL


def test_a_bootstrap_over_three_seeds_would_claim_too_much():
    rng = np.random.default_rng(1)
    wrong = []
    for _ in range(1000):
        gains = rng.normal(0, 1, 3)
        wrong.append(np.quantile(gains[rng.integers(0, 3, (200, 3))].mean(1), LEVEL) > 0)
    assert np.mean(wrong) > 3 * LEVEL


def tables(seeds, gain):
    """Tables of ten rows each, all with this gain."""
    rows = [replace(evidence, gain=evidence.gain + gain) for evidence in simulated(seeds, "all")]
    return [rows[start : start + 10] for start in range(0, REPEATS, 10)]


@both_sizes
def test_a_table_with_any_wrong_verdict_is_as_rare_as_stated(seeds):
    """Every row is at the margin's edge: just too bad to be called no worse."""
    words = [decide(rows, margin=1.0)[0] for rows in tables(seeds, gain=-1.0)]
    assert np.mean(["no worse" in row for row in words]) <= at_most(LEVEL, len(words))
    assert np.mean(["worse" in row for row in words]) <= at_most(LEVEL, len(words))


@both_sizes
def test_equal_rows_are_rarely_called_better(seeds):
    words = [decide(rows, margin=1.0)[0] for rows in tables(seeds, gain=0.0)]
    assert np.mean(["better" in row for row in words]) <= at_most(LEVEL, len(words))


def test_seeds_that_agree_by_luck_leave_the_examples_their_say():
    (row,) = compared(accuracy("dot", [0.9] * 3), accuracy("row", [0.9] * 3, seed=1))
    assert row.low < 0 < row.high
    assert row.word == "undecided"


def test_the_quantiles_are_students():
    for freedom in (1, 2, 3, 4, 7, 20, 499):
        for level in (0.05, 0.005, 0.0005):
            assert t_quantile(level, freedom) == pytest.approx(stats.t.ppf(1 - level, freedom))


def test_the_jackknife_of_a_mean_has_the_variance_of_a_mean():
    right = np.random.default_rng(1).integers(0, 2, 300)
    rows = np.column_stack([right, np.ones(300)])
    influence = jackknife(percent_from_statistics, rows)
    assert influence.var(ddof=1) / 300 == pytest.approx((100 * right).var(ddof=1) / 300)


def test_neighbours_are_one_block_where_there_are_many():
    rows = np.column_stack([np.arange(1203.0), np.ones(1203)])
    assert len(jackknife(percent_from_statistics, rows)) == 500


def test_holm_is_stricter_with_more_rows():
    row = Evidence(gain=0.0, seeds=3, seed_variance=0.02, blocks=100, example_variance=0.0)
    assert decide([row], margin=0.5)[0] == ["no worse"]
    assert decide([row] * 5, margin=0.5)[0] == ["undecided"] * 5
    sure = Evidence(gain=-9.0, seeds=3, seed_variance=1e-6, blocks=100, example_variance=0.0)
    assert decide([sure] * 4 + [row], margin=0.5)[0] == ["worse"] * 4 + ["no worse"]


def accuracy(label, shares, *, size=400, seed=0):
    """A row whose seeds got these shares of the examples right."""
    rng = np.random.default_rng(seed)
    statistics = {
        number: np.column_stack([rng.permutation(np.arange(size) < share * size), np.ones(size)])
        for number, share in enumerate(shares)
    }
    scores = {number: score("accuracy", rows) for number, rows in statistics.items()}
    return Measured(label, scores, statistics)


def compared(dot, *rows, margin=None):
    return judge(dot, rows, metric="accuracy", higher_is_better=True, margin=margin)


def test_the_words_follow_from_the_interval():
    dot = accuracy("dot", [0.9, 0.9, 0.9])
    rows = [
        accuracy("twin", [0.9, 0.9, 0.9]),
        accuracy("bad", [0.3, 0.31, 0.29]),
        accuracy("good", [1.0, 1.0, 0.999]),
        accuracy("shaky", [0.95, 0.85, 0.88]),
    ]
    words = {row.label: row.word for row in compared(dot, *rows)}
    assert words == {"twin": "no worse", "bad": "worse", "good": "better", "shaky": "undecided"}


def test_an_undecided_row_says_how_many_seeds_would_do():
    dot = accuracy("dot", [0.90, 0.90, 0.90], size=4000)
    (row,) = compared(dot, accuracy("row", [0.91, 0.90, 0.89], size=4000), margin=1.5)
    assert row.word == "undecided"
    assert 3 < row.settled_by < 20
    assert row.advice == f"about {row.settled_by} seeds would probably settle it"
    (row,) = compared(dot, accuracy("row", [0.91, 0.90, 0.89], size=4000), margin=0.1)
    assert row.advice == "more than 100 seeds, or a larger test set"


def test_as_many_seeds_as_are_advised_probably_settle_it():
    """Of rows that three seeds leave undecided, most are decided with the number advised."""
    rng, settled = np.random.default_rng(0), []
    for _ in range(300):
        gains = rng.normal(0.0, 1.0, 3)
        (word,), (level,) = decide([weigh(gains, np.zeros((3, 50)))], 1.0)
        seeds = seeds_needed(weigh(gains, np.zeros((3, 50))), level, 1.0)
        if word == "undecided" and seeds:
            more = np.concatenate([gains, rng.normal(0.0, 1.0, seeds - 3)])
            (word,), _ = decide([weigh(more, np.zeros((seeds, 50)))], 1.0)
            settled.append(word != "undecided")
    assert len(settled) > 100
    assert np.mean(settled) > 0.7


def test_two_seeds_give_numbers_and_no_verdict():
    (row,) = compared(accuracy("dot", [0.9, 0.9]), accuracy("row", [0.5, 0.5]))
    assert (row.word, row.advice) == ("not judged", "2 of 3 seeds")
    assert row.difference == pytest.approx(-40)
    assert not row.covers_seeds
    assert row.low < -40 < row.high


def test_only_seeds_that_dot_has_too_count():
    dot, row = accuracy("dot", [0.9, 0.9, 0.9]), accuracy("row", [0.9, 0.9, 0.9])
    other = Measured("row", {7: 50.0, **row.scores}, row.statistics)
    assert compared(dot, other)[0].difference == 0
    assert compared(dot, Measured("row", {7: 50.0}, {})) == []


def test_without_statistics_there_is_no_verdict():
    dot, row = accuracy("dot", [0.9, 0.9, 0.9]), accuracy("row", [0.9, 0.9, 0.9])
    (found,) = compared(dot, Measured("row", row.scores, {}))
    assert (found.word, found.advice) == ("not judged", "no per-example statistics")


def test_less_is_better_for_a_language_model():
    def windows(label, bits):
        nll = {seed: np.full((50, 4), [value, 1, 1, 1]) for seed, value in enumerate(bits)}
        scores = {seed: score("bits_per_byte", rows) for seed, rows in nll.items()}
        return Measured(label, scores, nll)

    dot, row = windows("dot", [2.0, 2.01, 1.99]), windows("row", [1.5, 1.51, 1.49])
    (found,) = judge(dot, [row], metric="bits_per_byte", higher_is_better=False)
    assert found.word == "better"
    assert found.difference < 0
    assert found.margin == pytest.approx(0.02 * np.mean(list(dot.scores.values())))


def test_an_infinite_perplexity_is_no_verdict_and_no_crash():
    def windows(label, nll):
        rows = np.full((50, 4), [nll, 1, 1, 1])
        value = score("perplexity", rows)
        return Measured(label, dict.fromkeys((1, 2, 3), value), dict.fromkeys((1, 2, 3), rows))

    rows = [windows("row", 1e4), windows("fine", 2.0)]
    lost, fine = judge(windows("dot", 2.0), rows, metric="perplexity", higher_is_better=False)
    assert (lost.word, fine.word) == ("not judged", "no worse")


def test_every_margin_is_of_a_metric_and_can_be_read():
    assert str(margin_for("bleu")) == "0.5"
    assert str(margin_for("bits_per_byte")) == "2% of dot's value"
    assert str(margin_for("accuracy")) == "1"
    assert set(MARGINS) <= set(SCORES)


def said(seeds=3, gain=0.0, **words):
    rows = [
        (spec.replace("_and_", "+"), Comparison(spec, gain, -1.0, 1.0, seeds, 0.5, word))
        for spec, word in words.items()
    ]
    return answer("shift", rows, "0.5 BLEU")


def test_the_sentence_on_top():
    assert said(random="no worse", dense="worse") == (
        "No: on shift random is no worse than dot product (margin 0.5 BLEU)."
    )
    assert said(random="worse", dense="worse", random_and_dot="better") == (
        "Yes: on shift both rows without dot product are worse (margin 0.5 BLEU); "
        "random_and_dot is better than dot."
    )
    assert said(random="no worse", fixed_random="no worse", dense="better") == (
        "No: on shift dense is better and random and fixed_random are no worse than dot product "
        "(margin 0.5 BLEU)."
    )
    assert said(random="undecided", dense="worse") == (
        "Undecided: on shift more seeds are needed for random (margin 0.5 BLEU)."
    )
    assert said(random="no worse", none="no worse") == (
        "No: shift does not even need self-attention; none is no worse than dot (margin 0.5 BLEU)."
    )
    for gain, words in ((0.0, "equal to"), (0.25, "0.25 better than"), (-2.0, "2 worse than")):
        assert said(2, gain, random="not judged") == (
            "No verdict on shift from 2 seeds shared with dot; 3 give one. "
            f"So far the best row without dot product is random, {words} dot."
        )
    assert said(random="not judged") == (
        "No verdict on shift: its runs have no per-example statistics to judge by."
    )
    assert said() == "No verdict: there is no finished pair of dot and another row on shift."
    assert said(random_and_dot="no worse") == (
        "No verdict on shift: no row does without dot product (margin 0.5 BLEU)."
    )


def test_rows_are_told_apart_by_what_they_hold():
    assert kind_of("random+dense") == "synthetic"
    assert kind_of("R*3,V*3") == "mixed"
    assert kind_of("none") == "none"
    assert kind_of("linformer") == "other"
    assert kind_of("a_later_invention") == "other"
