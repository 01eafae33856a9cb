"""What a search loses: made-up rows, whose settings the code that chooses for real ones chooses.

    python tools/search_simulation.py --searches 20000      # the table of docs/compare.md

A row's true score falls off around its best learning rate and table rate, in margins, as steeply as
in the recorded searches; where `cliffs` is set, unevenly, and training breaks down beyond some
rate. A trial is the true score and a seed's luck. The loss of a rule is how far the true score of
what it chose lies below the best that any rates have; the luck is how far what was seen of it lies
above its true score.
"""

import argparse
from dataclasses import dataclass

import numpy as np

from synthesizer_attention.study.tune import TRIAL_SEEDS, best_of, point, worth_repeating

SPREADS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0)  # of seeds, in margins
KINDS = 3  # of positions: the opponent is the best of these
APART = 3.0  # margins, between kinds
CLIFF = 40.0  # margins lost where training breaks down


@dataclass(frozen=True)
class Rule:
    """So many trials of one seed; of them the best `repeated` get `seeds` more."""

    trials: int
    repeated: int = 0
    seeds: int = 1

    @property
    def runs(self):
        return self.trials + self.repeated * self.seeds

    def __str__(self):
        if not self.repeated:
            return f"{self.trials} trials"
        if self.repeated == self.trials:
            return f"{self.trials} trials, all of two seeds"
        more = "again" if self.seeds == 1 else f"under {self.seeds} more seeds"
        return f"{self.trials} trials, the best {self.repeated} {more}"


RULES = (
    Rule(4),
    Rule(6),
    Rule(4, 2),
    Rule(3, 3),
    Rule(8),
    Rule(6, 2),
    Rule(4, 2, 2),
    Rule(4, 4),
)


def draw_row(rng, trials, *, cliffs=False):
    """The true scores of a row's trials, where the best of all rates has zero."""
    x, y = 2 * np.array([point(number) for number in range(trials)]).T - 1
    best_x, best_y = rng.normal(0, 0.25), rng.normal(0, 0.4)
    steep_x, steep_y = 15 * np.exp(rng.normal(0, 0.7)), 3 * np.exp(rng.normal(0, 1.0))
    off_x, off_y = x - best_x, y - best_y
    if not cliffs:
        return -steep_x * off_x**2 - steep_y * off_y**2
    off_x = off_x * np.where(off_x > 0, np.exp(rng.normal(0, 0.35)), 1.0)
    lost = steep_x / 4 * np.abs(2 * off_x) ** rng.choice([1, 2, 3]) + steep_y * off_y**2
    edges = np.where(rng.random(2) < (0.4, 0.25), rng.uniform(0.1, 0.8, 2), np.inf)
    return -lost - CLIFF * ((off_x > edges[0]) * 1.0 + (off_y > edges[1]))


def choose(rng, rule, true, spread):
    """The trial that a rule takes, and its score as it was seen."""

    def run(number, seed):
        score = true[number] + rng.normal(0, spread)
        told = {"changes": [f"train.lr={number}"], "validation": score, "seed": seed}
        return {**told, "higher_is_better": True}

    trials = [run(number, TRIAL_SEEDS[0]) for number in range(rule.trials)]
    for changes in worth_repeating(trials, rule.repeated):
        number = int(changes[0].removeprefix("train.lr="))
        trials += [run(number, TRIAL_SEEDS[1] + more) for more in range(rule.seeds)]
    best = best_of(trials)
    return int(best.changes[0].removeprefix("train.lr=")), best.mean


@dataclass(frozen=True)
class Loss:
    """Means over searches, in margins: what is lost, and how lucky the chosen trial was."""

    lost: float
    luck: float

    def __str__(self):
        return f"{self.lost:.2f} ({self.luck:.2f})"


def simulate(rule, spread, *, kinds=1, searches, cliffs=False, seed=0):
    """A row's loss; with several kinds that of the best of them, as the opponent is chosen."""
    surfaces, rng = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    lost, luck = [], []
    for _ in range(searches):
        levels = surfaces.normal(0, APART, kinds) if kinds > 1 else np.zeros(1)
        found = []
        for level in levels:
            state = surfaces.integers(2**63)
            true = level + draw_row(np.random.default_rng(state), rule.trials, cliffs=cliffs)
            number, seen = choose(rng, rule, true, spread)
            found.append((seen, true[number]))
        seen, true = max(found)
        lost.append(levels.max() - true)
        luck.append(seen - true)
    return Loss(float(np.mean(lost)), float(np.mean(luck)))


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--searches", type=int, default=20_000)
    asked = parser.parse_args()
    for kinds, cliffs in ((1, False), (KINDS, False), (1, True), (KINDS, True)):
        uneven = ", uneven and with cliffs" if cliffs else ""
        print(f"\n{'a row' if kinds == 1 else f'the best of {kinds} kinds'}{uneven}\n")
        print(f"| rule | runs | {' | '.join(f'{spread:g}' for spread in SPREADS)} |")
        print("|---" * (len(SPREADS) + 2) + "|")
        for rule in RULES:
            cells = [
                simulate(rule, spread, kinds=kinds, searches=asked.searches, cliffs=cliffs)
                for spread in SPREADS
            ]
            print(f"| {rule} | {rule.runs} | {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
