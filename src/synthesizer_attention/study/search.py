"""Search the settings of rows on validation, before the table is trained (no torch).

A user's file may be large or small, so some settings of all rows depend on it. `dot`, a cheap row,
is trained with each tokenizer, then with each dropout, and the best go into every recipe. For a
translation, max_len grows until it cuts at most one pair in a hundred. Then each row searches its
learning rates, and dot its positions.

Trials have seeds of their own and never see test. The best settings of a row are trained again
under a second seed, and the mean of both decides: tune.py.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from synthesizer_attention.run.files import check_folder_name
from synthesizer_attention.run.recipe import (
    Settings,
    dump,
    leaves,
    list_settings,
    parse_settings,
)
from synthesizer_attention.run.records import STUDY
from synthesizer_attention.run.run import Run
from synthesizer_attention.study.guess import LONGEST, Choice, round_up
from synthesizer_attention.study.live import Job, main_metric, perform
from synthesizer_attention.study.plan import Plan
from synthesizer_attention.study.rows import (
    AUTO,
    DOT,
    FOUND,
    WIDTHS,
    Row,
    again,
    size_control,
    slugs,
)
from synthesizer_attention.study.tune import TRIAL_SEEDS, best_of, settings_of, worth_repeating
from synthesizer_attention.study.workers import Say, WorkerPool, ask

MAX_LEN = "model.max_len"
IN_TABLE = "its validation scores in this table"


def fit_to_data(plan: Plan, pool: WorkerPool, say: Say, plain: bool) -> None:
    """Measure what the amount of data decides, where a recipe was inferred from a user's file."""
    if plan.guessed is None:
        return
    _fit_length(plan, pool, say)
    for choice in () if plan.asked.pretrain else plan.guessed.choices:
        if plan.asked.settings.keys() & {*choice.keys}:
            continue
        if plan.asked.searches:
            made = _measure(plan, choice, pool, say, plain)
            _set(plan, parse_settings(made["chosen"]))
            plan.measured = (*plan.measured, made)
        else:
            say(f"{choice.name}: {_value(plan, choice)}, not measured in this kind of study")


def _fit_length(plan: Plan, pool: WorkerPool, say: Say) -> None:
    """Raise max_len until it cuts at most one pair of a translation in a hundred."""
    if plan.shared.task != "translation" or MAX_LEN in plan.asked.settings:
        return
    recipe = plan.recipe(plan.rows[0], TRIAL_SEEDS[0])
    found = ask(pool, "prepare", recipe=dump(recipe))
    needed, now = int(found["report"]["longest"]["train"]), plan.shared.model.max_len
    if needed <= now:
        return
    length = round_up(needed)
    say(f"max_len: {length} in place of {now} (99 of 100 pairs have up to {needed} tokens)")
    if length < needed:
        say(f"more than 1 of 100 pairs are cut: --set {MAX_LEN}=N takes longer ones than {LONGEST}")
    tokens = max(plan.shared.train.batch_tokens, 4 * length)
    _set(plan, {MAX_LEN: str(length), "train.batch_tokens": str(tokens)})


def _measure(plan: Plan, choice: Choice, pool: WorkerPool, say: Say, plain: bool) -> dict[str, Any]:
    """Train dot with each option; return what each reached and which is best."""
    assert plan.guessed is not None
    keys = {key for one in plan.guessed.choices for key in one.keys}
    rows, jobs, trials = [], [], []
    for number, option in enumerate([{}, *choice.options]):
        # settings that were chosen before are part of its name
        own = {key: text for key, text in {**plan.settings, **option}.items() if key in keys}
        names = sorted(slug.replace('"', "") for slug in slugs(own))
        length = f"max_len={plan.shared.model.max_len}"
        path = plan.out / "trials" / "-".join(["settings", length, *names]) / "trial1"
        value = option.get(choice.keys[0]) or _value(plan, choice)
        row = Row(f"{choice.name} {value}", DOT, f"trials/{path.parent.name}", settings=option)
        rows.append(row)
        jobs.append(Job(number, plan.recipe(row, TRIAL_SEEDS[0]), path, "validation"))
    values = [row.label.removeprefix(f"{choice.name} ") for row in rows]
    say(f"{choice.name}: {len(rows)} trials of dot ({', '.join(values)}), chosen on validation")
    perform(replace(plan, rows=tuple(rows)), jobs, pool, say, plain)
    plan.errors.clear()  # a trial that fails is a trial that is not chosen
    for job, row in zip(jobs, rows, strict=True):
        trials.append(_trial_record(plan, job.path, row.settings))
        if Run(job.path).is_finished:
            trials[-1]["best_step"] = Run(job.path).result().get("best_step")
    best = best_of(trials)
    chosen = list(best.changes) if best else []
    place = [trial["changes"] for trial in trials].index(chosen)
    scores = [trial["validation"] for trial in trials]
    found = ", ".join(
        f"{value} {'failed' if score is None else f'{score:.4g}'}"
        for value, score in zip(values, scores, strict=True)
    )
    say(
        f"{choice.name}: {values[place]} (dot on validation, one seed: {found}; "
        f"--set {choice.keys[0]}=... keeps one)"
    )
    return {"choice": choice.name, "row": DOT, "trials": trials, "chosen": chosen}


def _set(plan: Plan, settings: Settings) -> None:
    """Give every row more settings."""
    plan.settings, plan.before = {**plan.settings, **settings}, plan.before or plan.shared
    plan.shared = plan.base.make(plan.settings).model_copy(update={"synthesis": DOT, "seed": 0})


def _value(plan: Plan, choice: Choice) -> str:
    """What a plan has where the choice is."""
    return str(dict(leaves(plan.shared.model_dump()))[choice.keys[0]])


def search(plan: Plan, pool: WorkerPool, say: Say, plain: bool) -> None:
    """Try settings on validation, the best again under a second seed; choose the best."""
    counts = [_num_trials(plan, row) for row in plan.rows]
    tried = [number for number, count in enumerate(counts) if count]
    if not tried:
        return
    coming = {number: min(plan.repeated, counts[number]) for number in tried}
    once = [(n, trial) for trial in range(max(counts)) for n in tried if trial < counts[n]]
    trials, second = plan.asked.trials, sum(coming.values())
    what = (
        f"search: {trials} trials per variant" if trials else f"dot's positions: {len(once)} trials"
    )
    which = f"the best {plan.repeated} of each" if trials > plan.repeated else "all"
    more = f", {which} again under a second seed" if second else ""
    runs = len(once) + second
    say(f"{what}{more}, chosen on validation: {runs} runs before those of the table")
    jobs = _jobs(plan, once, TRIAL_SEEDS[0])
    if len(jobs) < len(once):
        say(f"{len(once) - len(jobs)} of the trials are known from {STUDY}")
    perform(plan, jobs, pool, say, plain, coming=coming if jobs else None)
    best = [(n, trial) for n in tried for trial in _best_trials(plan, plan.rows[n], counts[n])]
    if twice := _jobs(plan, best, TRIAL_SEEDS[1]):
        finished = [job for job in jobs if Run(job.path).is_finished]
        perform(plan, [*finished, *twice], pool, say, plain)
    plan.errors.clear()  # a trial that fails is a trial that is not chosen
    plan.rows = tuple(
        _choose(plan, row, count, say) if count else row
        for row, count in zip(plan.rows, counts, strict=True)
    )


def _num_trials(plan: Plan, row: Row) -> int:
    """All rows have the same number; without tuning, dot's positions are tried once each."""
    if row.left_out is not None:
        return 0
    several = sum(one.candidate for one in plan.rows) > 1
    finds = plan.asked.searches and plan.asked.finds_opponent
    return plan.asked.trials or int(row.candidate and several and finds)


def _trial(
    plan: Plan, row: Row, number: int, seed: int
) -> tuple[Path, Settings, dict[str, Any] | None]:
    """Where a trial goes, what it sets, and what study.json says of one whose run is not kept."""
    settings = settings_of(plan.shared, number) if plan.asked.trials else {}
    name = f"trial{number + 1}" + ("" if seed == TRIAL_SEEDS[0] else "-again")
    path = plan.out / "trials" / row.folder / name
    own = str(path.relative_to(plan.out)), list_settings(settings)
    known = next((t for t in row.trials if (t["run"], t["changes"]) == own), None)
    return path, settings, None if path.exists() else known


def _jobs(plan: Plan, chosen: Sequence[tuple[int, int]], seed: int) -> list[Job]:
    """The runs of trials, given as row and trial, but for those that study.json knows."""
    jobs = []
    for number, trial in chosen:
        path, settings, known = _trial(plan, plan.rows[number], trial, seed)
        if known is None:
            recipe = plan.recipe(plan.rows[number], seed, settings)
            jobs.append(Job(number, recipe, path, "validation"))
    return jobs


def _best_trials(plan: Plan, row: Row, count: int) -> list[int]:
    """The numbers of the trials that are trained again."""
    once = [_record(plan, row, trial, TRIAL_SEEDS[0]) for trial in range(count)]
    best = worth_repeating(once, plan.repeated)
    return [number for number, trial in enumerate(once) if tuple(trial["changes"]) in best]


def _record(plan: Plan, row: Row, trial: int, seed: int) -> dict[str, Any]:
    path, settings, known = _trial(plan, row, trial, seed)
    return _trial_record(plan, path, settings, seed=seed) | (known or {})


def _trial_record(plan: Plan, path: Path, settings: Settings, **more: int) -> dict[str, Any]:
    """What a trial set and reached, as study.json keeps it."""
    record: dict[str, Any] = {
        "run": str(path.relative_to(plan.out)),
        "changes": list_settings(settings),
        **more,
        "validation": None,
    }
    if Run(path).is_finished:
        result = Run(path).result()
        record["validation"] = main_metric(result, "validation")[1]
        record["higher_is_better"] = result["higher_is_better"]
    return record


def _choose(plan: Plan, row: Row, count: int, say: Say) -> Row:
    """A row with the best settings it tried, under a name of its own where they differ."""
    first, second = TRIAL_SEEDS
    again_too = set(_best_trials(plan, row, count))
    for trial in range(count) if plan.repeated else ():  # or before more trials beat it
        path, _, known = _trial(plan, row, trial, second)
        if known or Run(path).is_finished:
            again_too.add(trial)
    trials = [_record(plan, row, trial, first) for trial in range(count)]
    trials += [_record(plan, row, trial, second) for trial in sorted(again_too)]
    best = best_of(trials)
    row = replace(row, trials=tuple(trials))
    if best is None:
        offered = row.candidate and row.offered  # by the search alone: nobody asked for it
        return replace(row, left_out="all of its trials failed") if offered else row
    if not best.changes:
        return row
    scores = ", ".join(f"{score:.4f}" for score in best.known)
    mean = f", the mean of {scores}" if len(best.known) > 1 else ""
    say(f"{row.label}: best with {', '.join(best.changes)} (validation {best.mean:.4f}{mean})")
    chosen = parse_settings(best.changes)
    folder = check_folder_name("-".join([row.folder, *slugs(chosen)]), "the row's settings")
    return row.with_settings(chosen, folder=folder)


def settle(plan: Plan, say: Say) -> None:
    """Say which dot product the others are compared with, and add what depends on it."""
    asked = plan.asked
    candidates = [row for row in plan.rows if row.candidate and row.left_out is None]
    if not candidates or asked.vary:
        return
    if asked.ladder:
        how = "as configured" if asked.opponent in FOUND else "asked for"
        name = candidates[0].label
        plan.opponent = {"label": name, "configured": name, "how": how, "trials": []}
        return
    tried = [
        {"row": row.label, "positions": row.positions or plan.shared.model.positions, **trial}
        for row in candidates
        for trial in row.trials
    ]
    opponent, how = _find_opponent(plan, candidates, tried, say)
    # what only the search offered, and what another dot product beat, is not a row of the table
    rows = [row for row in plan.rows if not (row.candidate and row.offered) or row is opponent]
    known = how != IN_TABLE
    if asked.has_controls and known and not asked.quick:
        rows.append(again(opponent, plan.shared))
    if asked.has_controls and asked.match not in WIDTHS:
        rows.append(size_control(opponent, plan.shared))
    label, configured = opponent.label if known else None, candidates[0].label
    plan.rows = tuple(rows)
    plan.opponent = {"label": label, "configured": configured, "how": how, "trials": tried}


def _find_opponent(
    plan: Plan, candidates: Sequence[Row], tried: Sequence[dict[str, Any]], say: Say
) -> tuple[Row, str]:
    """The dot product that the others are compared with, and how it was found."""
    if plan.asked.opponent not in FOUND:
        wanted, configured = plan.asked.opponent, plan.shared.model.positions
        mine = (row for row in candidates if (row.positions or configured) == wanted)
        return next(mine), "asked for"
    # no trial could be pretrained beforehand, but rows that are asked for can be chosen among
    among_rows = plan.asked.opponent == AUTO and plan.asked.pretrain is not None
    if not (plan.asked.finds_opponent or among_rows) or len(candidates) < 2:
        return candidates[0], "as configured"
    if among_rows or not plan.asked.searches:
        return candidates[0], IN_TABLE
    best = best_of(tried)
    opponent = next((row for row in candidates if best and row.label == best.row), candidates[0])
    say(f"the opponent is {opponent.label}: best of {len(candidates)} on validation")
    return opponent, "chosen on validation"
