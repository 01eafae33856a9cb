"""The verdict: its error rates by simulation, its words and its sentence."""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy import stats

from simulation import BIMODAL, NARROW, NOISES, UNEQUAL, binary, draw, family_wise
from synthesizer_attention.errors import UserError
from synthesizer_attention.metrics.labels import percent_from_statistics
from synthesizer_attention.metrics.scores import score
from synthesizer_attention.report.summary import Varied, answer, answer_by_value, kind_of
from synthesizer_attention.study.evidence import (
    HOLM,
    RULE,
    Evidence,
    effective_units,
    jackknife,
    seed_freedom,
    t_quantile,
)
from synthesizer_attention.study.stats import (
    BITS,
    LEVEL,
    PLANNED,
    UNDECIDED,
    Comparison,
    Looks,
    Measured,
    allowed,
    check_margin,
    decide,
    failing_rate,
    is_void,
    judge,
    judge_again,
    power,
    power_sentence,
)

STUDIES, ROWS = 250, 4


def at_most(rate, repeats):
    """What chance lets a rate show in so many repeats."""
    return rate + 3.3 * np.sqrt(rate / repeats)


OLDER = ("seeds", "seeds, dot's spread a tenth", "all three", "23 documents of uneven size")
JUDGED = [(HOLM, name) for name in OLDER] + [(RULE, name) for name in NOISES | UNEQUAL | NARROW]


@cache
def rates(rule, name):
    noise = (NOISES | UNEQUAL | NARROW | BIMODAL)[name]
    return family_wise(noise, rows=ROWS, studies=STUDIES, rule=rule)


@pytest.mark.parametrize(("rule", "name"), JUDGED, ids=lambda one: getattr(one, "name", one))
def test_a_table_with_any_wrong_word_is_as_rare_as_stated(rule, name):
    """At the margin (all words wrong) and at equality, for 3 to 12 seeds, and with looks."""
    for count, found in rates(rule, name).items():
        assert found.margin <= at_most(LEVEL, STUDIES), count
        assert found.equality <= at_most(LEVEL, STUDIES), count


@pytest.mark.parametrize("rule", [HOLM, RULE], ids=["holm", "graph"])
def test_all_kinds_of_noise_together_leave_less_room_for_chance(rule):
    every = [rates(*one) for one in JUDGED if one[0] is rule]
    for count in every[0]:
        for truth in ("margin", "equality"):
            wrong = np.mean([getattr(found[count], truth) for found in every])
            assert wrong <= LEVEL, (count, truth)


def test_more_seeds_decide_more_and_looks_lose_little():
    found = rates(RULE, "seeds, 0.7 margins wide")
    assert found[3].decided < found[5].decided < found[8].decided
    assert found["looks"].decided > found[8].decided - 0.05
    assert found[12].decided > 0.9


def test_the_rule_of_new_studies_decides_three_times_as_much_with_five_seeds():
    """Eight rows equal to dot; seeds spread by 0.7 of the margin."""
    noise = NOISES["seeds, 0.7 margins wide"]
    old, new = (
        family_wise(noise, rows=8, studies=300, rule=rule, planned=(5,))[5] for rule in (HOLM, RULE)
    )
    assert new.decided > 3 * old.decided
    assert new.primary > new.decided


def test_failing_seeds_are_not_covered_and_the_page_says_so():
    """A row that loses its margin by seeds that fail now and then is called no worse too often."""
    found = rates(HOLM, "5% of a row's seeds fail")
    assert found[3].margin > 2 * LEVEL


@pytest.mark.parametrize("rule", [HOLM, RULE], ids=["holm", "graph"])
@pytest.mark.parametrize("examples", [20, 100, 300, 1000])
def test_rare_kinds_of_examples_are_not_missed(examples, rule):
    """A row wrong on one example in a hundred is rarely called no worse by the margin of 1 %."""
    assert binary(examples, rows=ROWS, seeds=3, studies=500, rule=rule) <= at_most(LEVEL, 500)


def test_twenty_examples_answered_alike_prove_nothing():
    dot = accuracy("dot", [1.0] * 3, size=20)
    (row,) = compared(dot, accuracy("row", [1.0] * 3, size=20))
    assert (row.word, row.difference) == ("undecided", 0.0)
    assert row.advice == "too few test examples: no worse takes more than 369"
    dot = accuracy("dot", [1.0] * 3, size=370)
    assert compared(dot, accuracy("row", [1.0] * 3, size=370))[0].word == "no worse"


def test_the_simulation_has_the_jackknife_of_the_verdict():
    rng = np.random.default_rng(0)
    sizes = (3, 9, 2, 6)
    values, units = rng.normal(0, 1, 20), np.repeat(np.arange(4), sizes)
    rows = np.column_stack([values, np.ones(20)])
    noise = replace(NOISES["300 documents"], documents=sizes)
    ((found,),) = draw(np.random.default_rng(1), noise, 1, (3,), 0.0)
    assert found.units == pytest.approx(effective_units(20, units)) == 400 / 130
    sums = np.bincount(units, values)
    left_out = [(values.sum() - s) / (20 - n) for s, n in zip(sums, sizes, strict=True)]
    expected = [3 * (values.mean() - one) for one in left_out]
    influence = jackknife(percent_from_statistics, rows, units) / 100
    assert influence == pytest.approx(np.array(expected))


def test_the_quantiles_are_students():
    for freedom in (1, 2, 3, 4, 7, 20, 499):
        for level in (0.05, 0.005, 0.0005):
            assert t_quantile(level, freedom) == pytest.approx(stats.t.ppf(1 - level, freedom))
    for freedom in (1.3, 2.5, 3.7, 12.5, 71.2):
        for level in (0.025, 0.0018, 0.0001):
            exact = stats.t.ppf(1 - level, freedom)
            assert 0 <= t_quantile(level, freedom) / exact - 1 < 0.04


def test_freedom_lies_between_one_row_and_satterthwaite():
    for seeds in (3, 5, 12):
        degrees = (seeds - 1, seeds - 1)
        assert seed_freedom(1.0, 0.0, seeds, *degrees) == seeds - 1
        two = seed_freedom(1.0, 1.0, seeds, *degrees)
        assert seeds - 1 < two < 2 * (seeds - 1)
    assert seed_freedom(1.0, 1.0, 1000, 999, 999) == pytest.approx(2 * 999, rel=0.01)


def test_the_jackknife_of_a_mean_has_the_variance_of_a_mean_and_joins_neighbours():
    right = np.random.default_rng(1).integers(0, 2, 300)
    influence = jackknife(percent_from_statistics, np.column_stack([right, np.ones(300)]))
    assert influence.var(ddof=1) / 300 == pytest.approx((100 * right).var(ddof=1) / 300)
    rows = np.column_stack([np.arange(1203.0), np.ones(1203)])
    assert len(jackknife(percent_from_statistics, rows)) == 500
    assert len(jackknife(percent_from_statistics, rows, np.arange(1203) // 3)) == 401


def evidence(gain, variance, seeds=3):
    return Evidence(gain, seeds, variance, seeds - 1, 1000.0, 0.0)


def test_holm_is_stricter_with_more_rows():
    row = evidence(0.0, 0.01)
    words = [[one.word for one in decide([[row] * rows], 0.5)] for rows in (1, 5)]
    assert words == [["no worse"], ["undecided"] * 5]


def test_a_row_hands_its_level_on_only_when_it_is_better():
    even, open_row = evidence(0.0, 1e-6), evidence(0.0, 0.005)
    good, bad = evidence(9.0, 1e-6), evidence(-9.0, 1e-6)

    def last(*rows):
        return decide([[*rows, open_row]], 0.5)[-1]

    assert last(even, even, even).lower == LEVEL / 2 / 4
    assert last(good, good, good).lower == pytest.approx(LEVEL / 2)
    assert (last(even, even, even).word, last(good, good, good).word) == ("undecided", "no worse")
    assert last(bad, bad, bad).upper == pytest.approx(LEVEL / 2)
    assert last(bad, bad, bad).lower == LEVEL / 2 / 4


def test_no_word_contradicts_its_interval():
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows = [evidence(rng.normal(0, 2), rng.exponential(0.05)) for _ in range(6)]
        for one, row in zip(decide([rows], 1.0), rows, strict=True):
            low, high = one.interval(row)
            assert (one.word == "better") == (low > 0)
            assert (one.word in ("better", "no worse")) == (low > -1)
            assert (one.word == "worse") == (high < -1)


def test_looks_spend_the_level_in_proportion_to_their_seeds():
    looks = Looks(PLANNED, (3, 5))
    assert [HOLM.look_share(looks.planned, look) for look in range(4)] == [
        3 / 12,
        2 / 12,
        3 / 12,
        4 / 12,
    ]
    assert Looks.read(looks.record()) == looks
    assert looks.after(["better", "undecided"]).taken == (*looks.taken, 8)
    assert looks.after(["better", "worse", "no worse"]) is None
    assert Looks(PLANNED, PLANNED).after(["undecided"]) is None
    assert looks.after(["undecided"]) == Looks(PLANNED, (3, 5, 8))
    assert looks.after(["worse"]) is None
    with pytest.raises(UserError, match=r"taken at \[3, 4\] seeds where \[3, 5\] were planned"):
        Looks.read({"planned": [3, 5], "taken": [3, 4]})
    with pytest.raises(UserError, match="expected rising numbers from 3 on"):
        Looks.read({"planned": [2, 5], "taken": []})


def test_a_row_that_is_decided_at_a_look_keeps_its_word():
    sure, unsure = evidence(9.0, 1e-6), evidence(0.0, 1.0)
    later = evidence(-9.0, 1e-6, 5)
    first, second = decide([[sure, unsure], [later, later]], 1.0, Looks((3, 5), (3, 5)))
    assert (first.word, first.look) == ("better", 0)
    assert (second.word, second.look) == ("worse", 1)
    dot = accuracy("dot", [0.9] * 5, size=4000)
    rows = accuracy("row", [1.0, 1.0, 1.0, 0.2, 0.2], size=4000)
    looked = judge(
        dot,
        [rows],
        metric="accuracy",
        higher_is_better=True,
        looks=Looks((3, 5), (3, 5)),
    )
    assert (looked[0].word, looked[0].num_seeds) == ("better", 3)


@pytest.mark.parametrize("seeds", [3, 4])
def test_a_look_that_was_begun_and_lacks_seeds_is_not_taken(seeds):
    """A study that was interrupted in its second look has the words of its first."""
    dot, row = (accuracy(name, [0.9] * seeds, seed=seeds) for name in ("dot", "row"))
    found = [
        judge(dot, [row], metric="accuracy", higher_is_better=True, looks=Looks((3, 5), taken))
        for taken in ((3,), (3, 5))
    ]
    assert found[0] == found[1]
    assert found[0][0].num_seeds == 3
    begun = Looks((3, 5, 8), (3, 5))
    assert [begun.within(count).taken for count in (2, 3, 4, 5, 8)] == [(3,)] * 3 + [(3, 5)] * 2


def test_power_agrees_with_the_simulated_studies_and_is_said():
    for seeds in (3, 5, 8):
        stated = power(seeds, row_sd=0.3, dot_sd=0.3, margin=1.0, rows=ROWS)
        assert stated == pytest.approx(rates(HOLM, "seeds")[seeds].decided, abs=0.08)
    unknown = power_sentence((3,), sd=None, margin=1.0, rows=4)
    assert unknown.startswith("With 3 seeds and 4 rows, a row equal to dot is decided in ")
    told = power_sentence((3, 5), sd=0.3, margin=1.0, rows=4)
    assert told.startswith("A row equal to dot, one of 4, where seeds spread by 0.3 and the margin")
    assert [round(100 * failing_rate(n)) for n in (3, 5, 10)] == [63, 45, 26]


def test_seeds_that_agree_by_luck_leave_the_examples_their_say():
    (row,) = compared(accuracy("dot", [0.9] * 3), accuracy("row", [0.9] * 3, seed=1))
    assert row.low < 0 < row.high
    assert row.word == "undecided"


def test_documents_that_differ_widen_the_interval():
    rng = np.random.default_rng(0)
    units = np.repeat(np.arange(20), 50)
    easy = rng.normal(0.0, 0.3, 20)[units]

    def row(label, shift):
        right = (rng.random((3, 1000)) < 0.6 + shift).astype(float)
        tables = {seed: np.column_stack([r, np.ones(1000)]) for seed, r in enumerate(right)}
        scores = {seed: score("accuracy", rows) for seed, rows in tables.items()}
        return Measured(label, scores, tables)

    dot, other = row("dot", 0.0), row("row", easy)
    (alone,) = compared(dot, other)
    (grouped,) = compared(replace(dot, units=units), replace(other, units=units))
    assert grouped.units == 20
    assert grouped.high - grouped.low > 2 * (alone.high - alone.low)


def test_dot_under_other_seeds_voids_a_table_it_differs_in():
    asked = {"metric": "accuracy", "higher_is_better": True, "margin": None}
    dot = accuracy("dot", [0.9, 0.91, 0.9], size=4000)
    same = accuracy("again", [0.9, 0.9, 0.905], size=4000, seed=0)
    moved = {seed + 10: value for seed, value in same.scores.items()}
    tables = {seed + 10: value for seed, value in same.statistics.items()}
    other = judge_again(dot, Measured("again", moved, tables), **asked)
    assert other.num_seeds == 3
    assert not is_void(other)
    assert is_void(judge_again(dot, accuracy("again", [0.5, 0.5, 0.51], size=4000), **asked))
    assert judge_again(dot, accuracy("again", [0.5, 0.5]), **asked) is None


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
    dot = accuracy("dot", [0.9, 0.9, 0.9], size=4000)
    rows = [
        accuracy("twin", [0.9, 0.9, 0.9], size=4000),
        accuracy("bad", [0.3, 0.31, 0.29], size=4000),
        accuracy("good", [1.0, 1.0, 0.999], size=4000),
        accuracy("shaky", [0.95, 0.85, 0.88], size=4000),
    ]
    words = {row.label: row.word for row in compared(dot, *rows)}
    assert words == {"twin": "no worse", "bad": "worse", "good": "better", "shaky": "undecided"}


def test_two_seeds_give_numbers_and_no_verdict():
    (row,) = compared(accuracy("dot", [0.9, 0.9]), accuracy("row", [0.5, 0.5]))
    assert (row.word, row.advice) == ("not judged", "2 of 3 seeds")
    assert row.difference == pytest.approx(-40)
    assert not row.covers_seeds
    assert row.low < -40 < row.high


def test_only_seeds_that_dot_has_too_count_and_only_with_statistics():
    dot, row = accuracy("dot", [0.9, 0.9, 0.9]), accuracy("row", [0.9, 0.9, 0.9])
    other = Measured("row", {7: 50.0, **row.scores}, row.statistics)
    assert compared(dot, other)[0].difference == 0
    assert compared(dot, Measured("row", {7: 50.0}, {})) == []
    (found,) = compared(dot, Measured("row", row.scores, {}))
    assert (found.word, found.advice) == ("not judged", "no per-example statistics")


def test_less_is_better_for_a_language_model_and_an_infinite_perplexity_is_no_verdict():
    def windows(label, metric, nll):
        rows = {seed: np.full((50, 4), [value, 1, 1, 1]) for seed, value in enumerate(nll)}
        return Measured(label, {seed: score(metric, each) for seed, each in rows.items()}, rows)

    bits, less = "bits_per_byte", {"higher_is_better": False}
    dot, row = windows("dot", bits, [2.0, 2.01, 1.99]), windows("row", bits, [1.5, 1.51, 1.49])
    (found,) = judge(dot, [row], metric=bits, **less)
    assert (found.word, found.margin) == ("better", BITS)
    assert found.difference < 0
    dot, lost, fine = (windows("row", "perplexity", [nll] * 3) for nll in (2.0, 1e4, 2.0))
    judged = judge(dot, [lost, fine], metric="perplexity", **less)
    assert [one.word for one in judged] == ["not judged", "no worse"]


def test_margins_never_outgrow_the_score():
    known = {("bleu4", 0.5): 0.01, ("bleu", 27.0): 0.5, ("accuracy", 50.8): 1.0}
    for (metric, value), margin in {**known, ("accuracy", 8.0): 0.16}.items():
        assert allowed(metric, Measured("dot", {1: value}, {})) == pytest.approx(margin)


def test_language_models_have_one_margin_whatever_they_count():
    """A row at the margin in bits per byte is at the margin in either perplexity."""
    rows = np.tile([4.0 * 6.0, 6.0, 1.5, 24.0], (50, 1))  # nll, tokens, words, bytes
    worse = rows * [1, 1, 1, 1] + [BITS * np.log(2) * 24.0, 0, 0, 0]
    for metric in ("bits_per_byte", "perplexity", "word_perplexity"):
        dot = Measured("dot", {1: score(metric, rows)}, {1: rows})
        assert score(metric, worse) - dot.scores[1] == pytest.approx(allowed(metric, dot))
    spans = rows * [1, 1, 0, 0]
    dot = Measured("dot", {1: score("perplexity", spans)}, {1: spans})
    assert allowed("perplexity", dot) == pytest.approx(dot.scores[1] * (2**BITS - 1))


def test_a_margin_stays_within_its_metric():
    """A share ends at 100; as many bits again as dot has are no small loss."""
    dot = Measured("dot", {1: 2.0, 2: 2.2}, {})
    check_margin(99.0, "accuracy", dot)
    check_margin(2.0, "bits_per_byte", dot)
    with pytest.raises(UserError, match=r"margin is 100 points of accuracy; .* less than 100, its"):
        check_margin(100.0, "accuracy", dot)
    with pytest.raises(UserError, match=r"points of bits_per_byte; .* less than 2.1, dot's own"):
        check_margin(3.0, "bits_per_byte", dot)


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
    control = Comparison("dot, as large as random+dot", 0.1, -1, 1, 3, 0.5, "undecided")
    mixed = Comparison("random+dot", 2.0, 1, 3, 3, 0.5, "better")
    both = answer("shift", [("random+dot", mixed), ("dot", control)], "0.5 BLEU")
    assert both.endswith(
        "random+dot is better than dot, while dot, as large as random+dot, is undecided."
    )
    assert said(random="no worse", fixed_random="no worse", dense="better") == (
        "No: on shift dense is better and random and fixed_random are no worse than dot product "
        "(margin 0.5 BLEU)."
    )
    assert said(random="undecided", dense="worse") == (
        "Undecided: on shift more seeds or test examples are needed for random (margin 0.5 BLEU)."
    )
    assert said(random="worse", dense="worse", lightconv="no worse", linformer="better") == (
        "No: on shift lightconv is no worse than dot product, while both rows of synthetic "
        "attention are worse (margin 0.5 BLEU)."
    )
    assert said(random="worse", lightconv="undecided", dynamicconv="worse") == (
        "Undecided: on shift more seeds or test examples are needed for lightconv, while the one "
        "row of synthetic attention is worse (margin 0.5 BLEU)."
    )
    assert said(random="worse", lightconv="worse", linformer="no worse") == (
        "Yes: on shift both rows without dot product are worse (margin 0.5 BLEU)."
    )
    assert said(random="no worse", none="no worse") == (
        "No: shift does not even need self-attention; none is no worse than dot (margin 0.5 BLEU)."
    )
    assert said(random="void") == (
        "No verdict on shift: dot differs from itself under other seeds (A/A check)."
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


def test_a_dot_that_scores_nothing_has_no_margin_and_no_crash():
    zero = Comparison("random", 0.0, -1.0, 1.0, 3, 0.0, UNDECIDED, unseen=1.0)
    assert zero.advice == "dot scores 0, and so does a share of it: set --margin"


def test_rows_are_told_apart_by_what_they_hold():
    assert kind_of("random+dense") == "synthetic"
    assert kind_of("R*3,V*3") == "mixed"
    assert kind_of("none") == "none"
    assert kind_of("lightconv*1,dynamicconv*1") == kind_of("lightconv*1,random*1") == "baseline"
    assert kind_of("linformer") == kind_of("lightconv*1,dot*1") == "other"
    assert kind_of("a_later_invention") == "other"


def varied(value, words, closing=()):
    rows = [
        (spec, Comparison(spec, 0.0, -1, 1, 3, 0.5, word, (0.025, 0.025)))
        for spec, word in words.items()
    ]
    return Varied(value, rows, closing)


def test_one_sentence_speaks_of_all_varied_values():
    """Values that say the same are named together, and an undecided one decides nothing."""

    def said(*tables):
        return answer_by_value("copying", "difficulty", tables, "1 point")

    four, eight = (varied(v, {"random": "worse", "dense": "no worse"}) for v in "48")
    open_ = varied("16", {"random": "worse", "dense": "undecided"})
    assert said(four, replace(eight, closing={"dense"}), open_) == (
        "On copying, by difficulty: no at 4 and 8 (dense is no worse than dot product), undecided "
        "at 16 (more seeds or test examples are needed for dense); margin 1 point. "
        "So far: dense at 8 still comes closer to dot."
    )
    assert said(four, eight).startswith("On copying, no at every difficulty tried: no at 4 and 8 (")
    worse = varied("32", {"random": "worse", "dense": "worse"})
    assert said(four, worse).startswith("On copying, it depends on difficulty: no at 4 (")
    assert "yes at 32 (both rows without dot product are worse)" in said(four, worse)
    missing = Varied("64", [])
    assert "no verdict at 64 (no finished pair of rows)" in said(four, missing)
    few = [(spec, replace(one, num_seeds=2, word="not judged")) for spec, one in four.compared]
    fewer = said(replace(four, compared=few), eight)
    assert "by difficulty: no verdict at 4 (fewer than 3 seeds shared with dot), no at 8" in fewer
    mixed = varied("4", {"random": "worse", "random+dot": "better"})
    assert "(the one row without dot product is worse; random+dot is better than dot)" in said(
        mixed, eight
    )


def words_again(dot, rows, margin, primary, width):
    """The words of rule graph, from p-values and a matrix of transitions (Bretz et al. 2009).

    Written from docs/compare.md alone: accuracies, 3 seeds or more, no looks. Intervals are
    `width` times as wide.
    """
    n, many = len(rows[0]), len(rows)
    m = min(len(dot), round(n * min(3, many**0.5)))
    dot = dot[:m]
    scores = [100 * side.mean(1) for side in (dot, *rows)]
    degrees = np.array([m - 1] + [n - 1] * many)
    spreads = np.array([one.var(ddof=1) for one in scores])
    more = 3 if many >= 8 else 2 if many >= 4 else 0
    shared = (degrees * spreads).sum() / degrees.sum()

    def one_row(place):
        row, extra = rows[place], 0 if place == primary else more
        gain = scores[place + 1].mean() - scores[0].mean()
        parts, freedoms = [], []
        for side, add in ((place + 1, extra), (0, more)):
            freedoms.append(degrees[side] + add)
            moderated = (add * shared + degrees[side] * spreads[side]) / freedoms[-1]
            parts.append(moderated / len(scores[side]))
        freedoms[1] = min(freedoms)
        both = sum(parts) ** 2 / sum(p**2 / f for p, f in zip(parts, freedoms, strict=True))
        f = min(freedoms) + max(0, both - min(freedoms)) * (n - 2) / (n + 1)
        examples = 100 * (row.mean(0) - dot.mean(0))
        fixed = examples.var(ddof=1) / len(examples)
        seen = sum(1e4 * side.var(0, ddof=1).mean() / side.size for side in (row, dot))
        beside = max(0, fixed - seen)
        units = len(examples)
        alike = (examples != 0).sum() < 0.01 * units

        def error(level):
            by_units = stats.t.ppf(1 - level, units - 1) ** 2
            seeds = stats.t.ppf(1 - level, f) ** 2 * sum(parts)
            known = max(by_units * fixed, seeds + by_units * beside)
            unseen = (-100 * np.log(level) / units) ** 2 if alike else 0
            return width * np.sqrt(known + unseen)

        return gain, error

    found = [one_row(place) for place in range(many)]
    words = ["undecided"] * many
    first = np.full(many, 0.3 / (many - 1))
    first[primary] = 0.7
    # lower ends: nodes 0..many-1 are "no worse", the rest "better"
    weights = np.concatenate([first, np.zeros(many)])
    moves = np.zeros((2 * many, 2 * many))
    for place in range(many):
        others = [other for other in range(many) if other != place]
        moves[place, others] = 0.8 / len(others)
        moves[place, many + place] = 0.2
        moves[many + place, others] = 1 / len(others)
    left = set(range(2 * many))
    while True:
        for node in sorted(left):
            gain, error = found[node % many]
            bound = gain - error(0.025 * weights[node]) if weights[node] > 1e-12 else -np.inf
            if bound > (-margin if node < many else 0):
                break
        else:
            break
        words[node % many] = "no worse" if node < many else "better"
        left.discard(node)
        weights = weights + weights[node] * moves[node]
        weights[node] = 0
        new = np.zeros_like(moves)
        for a in left:
            for b in left - {a}:
                back = 1 - moves[a, node] * moves[node, a]
                if back > 1e-12:
                    new[a, b] = (moves[a, b] + moves[a, node] * moves[node, b]) / back
        moves = new
    upper, open_ones = first.copy(), set(range(many))
    while passed := [
        p for p in sorted(open_ones) if found[p][0] + found[p][1](0.025 * upper[p]) < -margin
    ]:
        words[passed[0]] = "worse"
        open_ones.discard(passed[0])
        for other in open_ones:
            upper[other] += upper[passed[0]] / len(open_ones)
    for place, (gain, error) in enumerate(found):
        if words[place] == "undecided" and gain + error(0.025 * upper[place]) < 0:
            words[place] = "behind"
    return words


def test_verdicts_are_those_of_an_independent_recomputation():
    """Random studies of accuracies; a word may change where intervals are 4 % wider or narrower."""
    rng = np.random.default_rng(3)
    counts, units = Counter(), 400
    for _ in range(60):
        many, n = int(rng.integers(2, 10)), int(rng.integers(3, 7))
        hard, margin = rng.random(units), 2.0

        def side(level, seeds, hard=hard):
            shifts = level + rng.normal(0, 0.01, (seeds, 1))
            return (hard[None] + rng.normal(0, 0.02, (seeds, units)) < shifts).astype(float)

        dot = side(0.8, 3 * n)
        levels = rng.choice([0.8, 0.79, 0.82, 0.76, 0.6], many)
        rows = [side(level, n) for level in levels]
        primary = int(rng.integers(many))
        made = [
            Measured(
                f"row{k}",
                {seed: 100 * one.mean() for seed, one in enumerate(runs)},
                {seed: np.column_stack([one, np.ones(units)]) for seed, one in enumerate(runs)},
            )
            for k, runs in enumerate([dot, *rows])
        ]
        how = {"metric": "accuracy", "higher_is_better": True, "margin": margin, "rule": RULE}
        found = [c.word for c in judge(made[0], made[1:], primary=f"row{primary + 1}", **how)]
        allowed_words = [words_again(dot, rows, margin, primary, w) for w in (0.97, 1.0, 1.04)]
        assert all(word in ok for word, *ok in zip(found, *allowed_words, strict=True)), (
            found, allowed_words)  # fmt: skip
        counts.update(found)
    assert counts.keys() == {"better", "no worse", "behind", "worse", "undecided"}
