"""Trials: evenly spread, the same for every row, and stable when more are asked for."""

import math
from itertools import pairwise

import pytest

from synthesizer.experiment.recipe import load_recipe
from synthesizer.study.tune import (
    LR_RANGE,
    TABLE_RANGE,
    at_the_edge,
    best_of,
    expected_best,
    point,
    settings_of,
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
    assert first == (f"train.lr={lr:.3g}", f"train.table_rate={recipe.train.table_rate:.3g}")
    tried = [settings_of(recipe, number) for number in range(30)]
    assert len(set(tried)) == 30
    for settings in tried:
        rate, table = (float(text.partition("=")[2]) for text in settings)
        assert lr / LR_RANGE * 0.99 <= rate <= lr * LR_RANGE * 1.01
        assert moved / TABLE_RANGE * 0.98 <= rate * table <= moved * TABLE_RANGE * 1.02


def trial(lr, score, higher=True):
    return {"changes": [f"train.lr={lr}"], "validation": score, "higher_is_better": higher}


def test_the_best_trial_is_found_and_an_edge_is_seen():
    trials = [trial(0.1, 3.0), trial(0.2, None), trial(0.3, 5.0), trial(0.4, 4.0)]
    assert best_of(trials) is trials[2]
    assert at_the_edge(trials) == ""
    assert at_the_edge([*trials, trial(0.5, 6.0)]) == "highest"
    assert at_the_edge([*trials, trial(0.01, 6.0)]) == "lowest"
    lower = [trial(0.1, 3.0, higher=False), trial(0.2, 5.0, higher=False)]
    assert best_of(lower) is lower[0]
    assert best_of([trial(0.1, None)]) is None


def test_the_expected_best_is_the_mean_over_all_choices():
    scores = [1.0, 4.0, 2.0, 8.0]
    pairs = [max(a, b) for i, a in enumerate(scores) for b in scores[i + 1 :]]
    found = expected_best([trial(0.1, score) for score in scores])
    assert found[0] == pytest.approx(sum(scores) / 4)
    assert found[1] == pytest.approx(sum(pairs) / math.comb(4, 2))
    assert found[-1] == 8.0
    assert expected_best([trial(0.1, s, higher=False) for s in scores])[-1] == 1.0
    assert expected_best([]) == []
