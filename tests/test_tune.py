"""Trials: evenly spread, the same for every row, and stable when more are asked for."""

import math
from itertools import pairwise

import pytest

from search_simulation import Rule, simulate
from synthesizer_attention.run.recipe import load_recipe
from synthesizer_attention.study.tune import (
    LR_RANGE,
    REPEATED,
    TABLE_RANGE,
    TRIAL_SEEDS,
    TRIALS,
    at_the_edge,
    best_of,
    expected_best,
    point,
    settings_of,
    worth_repeating,
)


def test_points_fill_the_square_evenly_whatever_their_number():
    """The largest gap between neighbours in either dimension stays near that of an even grid."""
    assert point(0) == (0.5, 0.5)
    for count in (4, 6, 10, 20):
        for axis in (0, 1):
            values = sorted(point(number)[axis] for number in range(count))
            around = [*values, values[0] + 1]
            gaps = [b - a for a, b in pairwise(around)]
            assert max(gaps) < 2.2 / count
            assert min(gaps) > 0.2 / count


def test_the_first_trial_is_the_recipe_and_all_stay_in_range():
    recipe = load_recipe("shift")
    lr, moved = recipe.train.lr, recipe.train.lr * recipe.train.table_rate
    first = settings_of(recipe, 0)
    table_rate = f"{recipe.train.table_rate:.3g}"
    assert first == {"train.lr": f"{lr:.3g}", "train.table_rate": table_rate}
    tried = [settings_of(recipe, number) for number in range(30)]
    assert len({tuple(one.items()) for one in tried}) == 30
    for settings in tried:
        rate, table = map(float, settings.values())
        assert lr / LR_RANGE * 0.99 <= rate <= lr * LR_RANGE * 1.01
        assert moved / TABLE_RANGE * 0.98 <= rate * table <= moved * TABLE_RANGE * 1.02


def trial(lr, score, higher=True, seed=0):
    told = {"changes": [f"train.lr={lr}"], "validation": score, "higher_is_better": higher}
    return {**told, "seed": seed}


def again(lr, score, higher=True):
    return trial(lr, score, higher, seed=TRIAL_SEEDS[1])


def test_the_best_trial_is_found_and_an_edge_is_seen():
    trials = [trial(0.1, 3.0), trial(0.2, None), trial(0.3, 5.0), trial(0.4, 4.0)]
    assert best_of(trials).changes == ("train.lr=0.3",)
    assert at_the_edge(trials) == ""
    assert at_the_edge([*trials, trial(0.5, 6.0)]) == "highest"
    assert at_the_edge([*trials, trial(0.01, 6.0)]) == "lowest"
    lower = [trial(0.1, 3.0, higher=False), trial(0.2, 5.0, higher=False)]
    assert best_of(lower).changes == ("train.lr=0.1",)
    assert best_of([trial(0.1, None)]) is None


def test_a_lucky_trial_loses_to_one_that_two_seeds_agree_on():
    first = [trial(0.1, 91.0), trial(0.2, 97.0), trial(0.3, 95.0)]
    assert worth_repeating(first, 2) == [("train.lr=0.2",), ("train.lr=0.3",)]
    best = best_of([*first, again(0.2, 92.0), again(0.3, 95.2)])
    assert (best.changes, best.mean) == (("train.lr=0.3",), pytest.approx(95.1))
    losses = [trial(0.1, 2.0, higher=False), trial(0.2, 2.1, higher=False)]
    best = best_of([*losses, again(0.1, 2.4, higher=False), again(0.2, 2.2, higher=False)])
    assert best.changes == ("train.lr=0.2",)
    assert at_the_edge([*first, again(0.2, 92.0), again(0.3, 95.2)]) == "highest"


def test_a_setting_that_fails_under_one_of_its_seeds_is_the_last_to_be_chosen():
    first = [trial(0.1, 91.0), trial(0.2, 97.0), trial(0.3, 95.0)]
    assert best_of([*first, again(0.2, None), again(0.3, 80.0)]).changes == ("train.lr=0.3",)
    assert best_of([*first, again(0.2, None), again(0.3, None)]).changes == ("train.lr=0.1",)
    alone = best_of([trial(0.2, 97.0), again(0.2, None)])
    assert (alone.changes, alone.known) == (("train.lr=0.2",), [97.0])


def test_settings_of_two_rows_are_never_averaged():
    one, other = ({**trial(0.1, score), "row": row} for row, score in (("a", 1.0), ("b", 3.0)))
    best = best_of([one, other, {**again(0.1, 4.0), "row": "a"}, {**again(0.1, 0.0), "row": "b"}])
    assert (best.row, best.mean) == ("a", 2.5)


def test_trials_recorded_before_there_was_a_second_seed_choose_as_they_did():
    old = [{key: value for key, value in trial(lr, lr).items() if key != "seed"} for lr in (1, 3)]
    assert best_of(old).changes == ("train.lr=3",)
    assert worth_repeating(old, 1) == [("train.lr=3",)]


@pytest.mark.parametrize("kinds", [1, 3])
def test_the_second_seed_buys_what_the_method_page_says(kinds):
    """At one cost, where seeds spread by two margins, and by none."""
    found = {
        (rule, spread): simulate(rule, spread, kinds=kinds, searches=1500)
        for rule in (Rule(8), Rule(TRIALS, REPEATED), Rule(4, 2, 2))
        for spread in (0.0, 2.0)
    }
    ours = {spread: found[Rule(TRIALS, REPEATED), spread] for spread in (0.0, 2.0)}
    assert Rule(TRIALS, REPEATED).runs == 8
    assert ours[2.0].lost < found[Rule(8), 2.0].lost - 0.1
    assert ours[2.0].luck < 0.7 * found[Rule(8), 2.0].luck
    assert ours[0.0].lost < found[Rule(8), 0.0].lost + 0.05
    assert ours[0.0].lost < found[Rule(4, 2, 2), 0.0].lost - 0.1
    assert ours[0.0].luck == pytest.approx(0.0)


def test_the_expected_best_is_the_mean_over_all_choices():
    scores = [1.0, 4.0, 2.0, 8.0]
    pairs = [max(a, b) for i, a in enumerate(scores) for b in scores[i + 1 :]]
    trials = [trial(lr, score) for lr, score in enumerate(scores)]
    found = expected_best(trials)
    assert found[0] == pytest.approx(sum(scores) / 4)
    assert found[1] == pytest.approx(sum(pairs) / math.comb(4, 2))
    assert found[-1] == 8.0
    assert expected_best([*trials, again(1, 9.0)]) == found, "of the first seed alone"
    lower = [trial(lr, score, higher=False) for lr, score in enumerate(scores)]
    assert expected_best(lower)[-1] == 1.0
    assert expected_best([]) == []
