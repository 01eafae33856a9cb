"""How long a study takes and what it can decide, before its first run (no torch)."""

from dataclasses import replace
from statistics import fmean

from synthesizer_attention.metrics.scores import METRICS
from synthesizer_attention.run.recipe import dump
from synthesizer_attention.study.evidence import FEWEST_SEEDS
from synthesizer_attention.study.live import SETTLING, run_seconds
from synthesizer_attention.study.plan import QUICK, SEEDS, Plan, shorten
from synthesizer_attention.study.rows import AGAIN, QUICK_ROWS, Row
from synthesizer_attention.study.search import (
    fit_length,
    fit_precision,
    num_trials,
    open_choices,
    settle,
)
from synthesizer_attention.study.stats import (
    FAR,
    LANGUAGE_MODEL,
    Measured,
    allowed,
    power_sentence,
)
from synthesizer_attention.study.tune import TRIALS, best_of, settings_tried
from synthesizer_attention.study.workers import Say, WorkerPool, ask, parse_jobs

EVENING = 3 * 3600.0  # seconds that a study of a user's file may take by default
FEWER = (TRIALS, 4, 3)  # trials of a row, until it fits
FEWEST_STEPS = 100
BITS = "bits_per_byte"
FEWEST_PAIRS = 4  # settings tried under two seeds, from which the spread of seeds is estimated


def fit_budget(plan: Plan, pool: WorkerPool, say: Say) -> None:
    """Say how long the study takes and what it can decide; shorten that of a user's file.

    A run is timed by steps of its first row. What a study began with stays.
    """
    fit_length(plan, pool, say)
    fit_precision(plan, pool, say)
    if plan.is_begun:  # each stage says what is left of it
        say_power(settled_copy(plan), say)
        return
    pretrains = plan.asked.pretrain is not None  # fine-tuning starts from what is not there yet
    recipe = plan.recipe(plan.rows[0], plan.seeds[0], pretraining=pretrains)
    found = ask(pool, "prepare", recipe=dump(recipe))
    workers = parse_jobs(plan.asked.jobs).workers or pool.capacity
    each = run_seconds(found, recipe)[0]
    if plan.guessed and not (pretrains or plan.asked.quick or plan.asked.ladder):
        _fit_evening(plan, each / workers, say)
        each = run_seconds(found, plan.recipe(plan.rows[0], plan.seeds[0]))[0]
    say_power(settled_copy(plan), say)
    number = num_runs(plan)
    quick = ""
    if not (plan.asked.quick or pretrains):
        runs = plan.rule.dot_seeds(SEEDS, len(QUICK_ROWS) - 1) + SEEDS * (len(QUICK_ROWS) - 1)
        short = (each - SETTLING) / QUICK + SETTLING
        quick = f"; --quick: {span(runs * short / workers)}"
    looks = " to the first look" if plan.looks else " of pretraining" if pretrains else ""
    cores = f"{workers} worker{'s' * (workers > 1)} {pool.place}"
    say(f"about {span(number * each / workers)}{looks} on {cores} ({number} runs){quick}")


def settled_copy(plan: Plan) -> Plan:
    """The plan as it will be, but for what the search chooses."""
    copy = replace(plan)
    settle(copy, lambda line: None)
    return copy


def num_runs(plan: Plan) -> int:
    """All runs of a study, the search's too, as far as they can be told before it."""
    trials = [num_trials(plan, row) for row in plan.rows]
    searched = sum(count + min(plan.repeated, count) for count in trials)
    if plan.asked.searches:
        searched += sum(1 + len(choice.options) for choice in open_choices(plan))
    return searched + len(settled_copy(plan).runs)


def _fit_evening(plan: Plan, seconds: float, say: Say) -> None:
    """Fewer trials, then fewer rows, then fewer steps, until the study takes three hours."""
    asked = plan.asked
    free = asked.tune is None and asked.trials
    tunes = FEWER if free else (asked.tune,)
    few = tuple(row for row in plan.rows if row.spec in QUICK_ROWS)
    tables: list[tuple[Row, ...]] = [plan.rows] if asked.syntheses else [plan.rows, few]
    tried = plan
    for rows, tune in ((rows, tune) for rows in tables for tune in tunes):
        tried = replace(plan, rows=rows, asked=replace(asked, tune=tune))
        if num_runs(tried) * seconds <= EVENING:
            break
    plan.rows, plan.asked, whole = tried.rows, tried.asked, plan.shared.train.steps
    took, changed = num_runs(plan) * seconds, []
    if asked.tune != plan.asked.tune and plan.asked.tune != TRIALS:
        changed.append(f"{plan.asked.tune} trials a row (--tune)")
    if plan.rows is few:
        changed.append("the rows of --quick (--synthesis)")
    if took > EVENING and "train.steps" not in asked.settings:
        steps = max(FEWEST_STEPS, round(whole * EVENING / took, -1))
        if steps < whole:
            plan.set(shorten(plan.shared, int(steps)))
            changed.append(f"{steps:.0f} of {whole} steps (--set train.steps)")
    if changed:
        say(f"to fit an evening, {span(EVENING)}: {', '.join(changed)}; these options keep yours")


def say_power(plan: Plan, say: Say) -> None:
    """What so many seeds can be expected to decide, before they are run."""
    judged = [row for row in plan.rows if row.left_out is None and row.label != AGAIN]
    tables = len({tuple(row.varied.items()) for row in judged}) or 1
    seeds = sorted({len(plan.seeds), *(plan.looks.planned if plan.looks else ())})
    if len(plan.seeds) >= FEWEST_SEEDS and len(judged) > tables:
        rows = max(round(len(judged) / tables) - 1, 1)
        sd, margin = _spread(plan)
        say(power_sentence(seeds, sd=sd, margin=margin, rows=rows, rule=plan.rule))


def _spread(plan: Plan) -> tuple[float | None, float]:
    """What the search says of the spread of seeds, and the margin; None before it does."""
    tried = [one for row in plan.rows if row.spec not in FAR for one in settings_tried(row.trials)]
    pairs = [one.known for one in tried if len(one.known) == 2]
    best = best_of((plan.opponent or {}).get("trials") or [])
    known = plan.metric in METRICS and best is not None
    if len(pairs) < FEWEST_PAIRS or not known or plan.metric in {*LANGUAGE_MODEL} - {BITS}:
        return None, 1.0
    assert best is not None
    margin = allowed(plan.metric, Measured("dot", {0: best.mean}, {}), plan.rule)
    sd = fmean((a - b) ** 2 / 2 for a, b in pairs) ** 0.5
    return (sd, plan.asked.margin or margin) if margin and sd else (None, 1.0)


def span(seconds: float) -> str:
    """A time to plan by."""
    minutes = seconds / 60
    return f"{max(1, round(minutes))} min" if minutes < 90 else f"{minutes / 60:.1f} h"
