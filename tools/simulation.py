"""The error rate of the whole verdict: made-up studies, judged by the code that judges real ones.

    python tools/simulation.py --studies 2000      # the tables of docs/compare.md

A study has one dot and some rows of one true gain; the first row is the primary one. At the margin
better, no worse and worse all count as wrong; at equality better, behind and worse do.
"""

import argparse
from dataclasses import astuple, dataclass, replace
from functools import partial

import numpy as np

from synthesizer_attention.study.evidence import HOLM, Influences, effective_units, weigh
from synthesizer_attention.study.stats import (
    BEHIND,
    BETTER,
    NO_WORSE,
    PLANNED,
    RULES,
    WORSE,
    Looks,
    decide,
    is_open,
)

MARGIN = 1.0
NORMAL, HEAVY = "normal", "heavy tails"


@dataclass(frozen=True)
class Noise:
    """Where the differences of a study come from."""

    row_seed: float = 0.0  # spread of a row's seeds
    dot_seed: float = 0.0
    example: float = 0.0  # of an example's own difference between two rows
    both: float = 0.0  # of an example under one seed
    examples: int = 100
    tails: str = NORMAL
    documents: tuple[int, ...] = ()  # examples of each, which share half of their variance
    failing: float = 0.0  # share of a row's seeds that fail, losing FALL margins
    unequal: float = 0.0  # standard deviation of the logarithm of each row's and dot's spread
    wider: tuple[int, ...] = ()  # rows that spread WIDER times as much as the others


FALL, WIDER = 20, 3

SIZES = tuple(int(size) for size in np.exp(np.random.default_rng(0).normal(2, 1.0, 23)) + 1)
NOISES = {
    "seeds": Noise(0.3, 0.3, examples=2),
    "seeds, 0.7 margins wide": Noise(0.7, 0.7, examples=2),
    "seeds, dot's spread a tenth": Noise(0.3, 0.03, examples=2),
    "seeds, rows' spread a tenth": Noise(0.03, 0.3, examples=2),
    "seeds, heavy tails (t, 3 degrees)": Noise(0.3, 0.3, examples=2, tails=HEAVY),
    "examples": Noise(example=3.0),
    "30 examples": Noise(example=1.5, examples=30),
    "30 examples, heavy tails": Noise(example=1.5, examples=30, tails=HEAVY),
    "examples that one seed gets right and another wrong": Noise(both=5.0),
    "all three": Noise(0.2, 0.2, 1.5, 1.5, 30),
    "23 documents, one with a third of the text": Noise(
        0.1, 0.1, 1.5, 1.0, documents=(154, *[14] * 22)
    ),
    "23 documents of uneven size": Noise(0.1, 0.1, 1.5, 1.0, documents=SIZES),
    "300 documents": Noise(0.1, 0.1, 6.0, 1.0, documents=(7,) * 300),
}
UNEQUAL = {
    "spreads differ by log-sd 0.5": Noise(0.3, 0.3, examples=2, unequal=0.5),
    "spreads differ by log-sd 1": Noise(0.3, 0.3, examples=2, unequal=1.0),
    "the primary row spreads three times as much": Noise(0.3, 0.3, examples=2, wider=(0,)),
    "another row spreads three times as much": Noise(0.3, 0.3, examples=2, wider=(1,)),
    "two rows spread three times as much": Noise(0.3, 0.3, examples=2, wider=(1, 2)),
    "dot spreads three times as much": Noise(0.3, 0.9, examples=2),
}
NARROW = {  # noise far above the margin: where better and worse are both near
    "seeds five margins wide": Noise(5.0, 5.0, examples=2),
    "examples, five margins wide": Noise(example=50.0),
}
BIMODAL = {
    f"{rate:.0%} of a row's seeds fail": Noise(0.05, 0.05, examples=2, failing=rate)
    for rate in (0.05, 0.1, 0.2)
}


def draw(rng, noise, rows, seeds, gain, rule=HOLM):
    """Evidence of each row of one study, at each number of seeds in `seeds`."""
    most, examples = max(seeds), sum(noise.documents) or noise.examples
    normal = partial(_heavy, rng) if noise.tails == HEAVY else partial(rng.normal, 0.0, 1.0)
    units = np.repeat(np.arange(len(noise.documents)), noise.documents) if noise.documents else None

    def table(level, spread, example, count):
        if noise.unequal:
            spread = spread * np.exp(noise.unequal * rng.normal())
        values = level + normal((count, 1)) * spread + np.zeros((1, examples))
        if example:
            own = normal(examples)
            if units is not None:
                own = np.sqrt(0.5) * (own + normal(len(noise.documents))[units])
            values = values + own * example
        return values + normal((count, examples)) * noise.both if noise.both else values

    dot = table(0.0, noise.dot_seed, 0.0, rule.dot_seeds(most, rows))
    found = []
    for place in range(rows):
        lost = FALL * MARGIN * (rng.random((most, 1)) < noise.failing)
        mean_lost = FALL * MARGIN * noise.failing
        spread = noise.row_seed * (WIDER if place in noise.wider else 1)
        found.append(table(gain + mean_lost, spread, noise.example, most) - lost)
    return [_weigh_all([row[:n] for row in found], dot, n, units, rule) for n in seeds]


def _weigh_all(rows, dot, seeds, units, rule):
    dot = dot[: rule.dot_seeds(seeds, len(rows))]
    variances = [side.mean(1).var(ddof=1) for side in (dot, *rows)]
    variance = np.average(variances, weights=[len(side) - 1 for side in (dot, *rows)])
    more = rule.prior_freedom(len(rows))
    return [
        _weigh(row, dot, units, rule, (variance, more if place else 0, more))
        for place, row in enumerate(rows)
    ]


def _heavy(rng, shape):
    """Student's t with 3 degrees of freedom, scaled to variance one."""
    return rng.standard_t(3, shape) / np.sqrt(3)


def _weigh(row, dot, units, rule=HOLM, prior=(0.0, 0, 0)):
    """The jackknife of a mean, in closed form; a test holds it against jackknife()."""
    scores = row.mean(1), dot.mean(1)
    sizes = np.bincount(units) if units is not None else np.ones(row.shape[1])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(int)
    rest = sizes.sum() - sizes
    sides = []
    for values, whole in zip((row, dot), scores, strict=True):
        sums = np.add.reduceat(values, starts, axis=1)
        without = (whole[:, None] * sizes.sum() - sums) / rest
        effect = (len(sizes) - 1) * (whole[:, None] - without)
        sides.append(Influences(effect, effective_units(row.shape[1], units)))
    return weigh(*scores, *sides, rule=rule, prior=prior)


def draw_binary(rng, examples, rows, seeds, rate, rule=HOLM):
    """Dot answers all examples right; a row fails on a kind of example that is `rate` of all."""
    ones = Influences(np.zeros((seeds, examples)), examples)
    found = []
    for _ in range(rows):
        right = 100.0 * (rng.random(examples) >= rate)
        values = np.tile(right, (seeds, 1))
        mine = Influences(values - values.mean(1, keepdims=True), examples)
        full = np.full(seeds, 100.0)
        found.append(weigh(values.mean(1), full, mine, ones, limit=100.0, rule=rule))
    return [found]


def simulate(make, studies, looks=None, *, seed=0, rule=HOLM):
    """The words of so many studies; with looks, each is stopped as `Looks.after` would."""
    rng = np.random.default_rng(seed)
    return [[one.word for one in decide(make(rng), MARGIN, looks, rule, 0)] for _ in range(studies)]


def rate_wrong(words, wrong):
    """The share of studies with any wrong word."""
    return float(np.mean([any(word in wrong for word in row) for row in words]))


AT_MARGIN, AT_EQUALITY = (BETTER, NO_WORSE, WORSE), (BETTER, BEHIND, WORSE)


@dataclass(frozen=True)
class Rates:
    """Of studies with any wrong word at the margin and at equality, and of equal rows decided."""

    margin: float
    equality: float
    decided: float
    primary: float  # of primary rows alone


def family_wise(noise, *, rows, studies, seed=0, rule=HOLM, planned=PLANNED):
    """Rates with the seeds of each planned look fixed before, and with all looks in turn."""
    rng, words = np.random.default_rng(seed), {}
    for _ in range(studies):
        at_margin = draw(rng, noise, rows, planned, -MARGIN, rule)
        equal = [[replace(one, gain=one.gain + MARGIN) for one in row] for row in at_margin]
        for truth, found in (("margin", at_margin), ("equality", equal)):
            for count, evidence in zip(planned, found, strict=True):
                once = decide([evidence], MARGIN, Looks.once(count), rule, 0)
                words.setdefault((count, truth), []).append([one.word for one in once])
            looked = decide(found, MARGIN, Looks(planned, planned), rule, 0)
            words.setdefault(("looks", truth), []).append([one.word for one in looked])
    return {
        count: Rates(
            rate_wrong(words[count, "margin"], AT_MARGIN),
            rate_wrong(words[count, "equality"], AT_EQUALITY),
            float(np.mean([not is_open(w) for row in words[count, "equality"] for w in row])),
            float(np.mean([not is_open(row[0]) for row in words[count, "equality"]])),
        )
        for count in (*planned, "looks")
    }


def binary(examples, *, rows, seeds, studies, seed=0, rule=HOLM):
    """How often any row is wrongly called no worse that fails on just the margin's share."""
    words = simulate(
        lambda rng: draw_binary(rng, examples, rows, seeds, MARGIN / 100, rule),
        studies,
        seed=seed,
        rule=rule,
    )
    return rate_wrong(words, (NO_WORSE, BETTER))


def percent(value):
    """As the tables print it."""
    return f"{100 * value:.1f}"


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 8, 13])
    parser.add_argument("--rules", nargs="+", default=[*RULES])
    parser.add_argument("--noises", default="", help="those whose name contains it")
    asked = parser.parse_args()
    seeds = " | ".join(f"{count} seeds" for count in PLANNED)
    print(f"| noise | rows | rule | {seeds} | looks |\n|---|---|---|{'---|' * 5}")
    for name, noise in (NOISES | UNEQUAL | NARROW | BIMODAL).items():
        if asked.noises not in name:
            continue
        for rows in asked.rows:
            for rule in asked.rules:
                found = family_wise(noise, rows=rows, studies=asked.studies, rule=RULES[rule])
                cells = [" / ".join(map(percent, astuple(rates))) for rates in found.values()]
                print(f"| {name} | {rows} | {rule} | {' | '.join(cells)} |", flush=True)
    print("\n| test examples | rule | any wrong no worse, 1 row | 10 rows |\n|---|---|---|---|")
    for examples in (20, 100, 300, 600, 1000, 3000):
        for rule in asked.rules:
            rates = [
                binary(examples, rows=rows, seeds=3, studies=asked.studies, rule=RULES[rule])
                for rows in (1, 10)
            ]
            print(f"| {examples} | {rule} | {' | '.join(map(percent, rates))} |", flush=True)


if __name__ == "__main__":
    main()
