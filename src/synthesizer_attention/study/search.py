"""What is tried on validation before the table: rows with better settings, the opponent (no torch).

Where a user's file is read, the amount of data decides some settings of all rows. Each choice
(tokenizer, then dropout) is a few whole trainings of one cheap row, `dot`; the best goes into the
recipe of every row. A translation's length is raised until no more than one pair in a hundred is
cut. Then each row's learning rates and dot's positions are searched.

Trials have seeds of their own and never see test. Where they have two seeds, the best settings of
each row are trained again under the second, and the mean of both decides: tune.py.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from synthesizer_attention.run.recipe import (
    Settings,
    dump,
    leaves,
    list_settings,
    parse_settings,
)
from synthesizer_attention.run.run import STUDY, Run
from synthesizer_attention.study.asked import AUTO, FOUND, WIDTHS
from synthesizer_attention.study.guess import LONGEST, Choice, round_up
from synthesizer_attention.study.perform import Job, Say, main_metric, perform
from synthesizer_attention.study.plan import Plan
from synthesizer_attention.study.rows import DOT, Row, again, size_control, slugs
from synthesizer_attention.study.tune import (
    TRIAL_SEEDS,
    Tried,
    best_of,
    settings_of,
    worth_repeating,
)
from synthesizer_attention.study.workers import WorkerPool, ask
from synthesizer_attention.untrusted import check_folder_name

MAX_LEN = "model.max_len"


def fit_to_data(plan: Plan, pool: WorkerPool, say: Say, plain: bool) -> Plan:
    """Measure what the amount of data decides, where a recipe was inferred from a user's file."""
    if plan.guessed is None:
        return plan
    choices = () if plan.asked.pretrain else plan.guessed.choices
    plan = _fit_length(plan, pool, say)
    for choice in choices:
        if plan.asked.settings.keys() & {*choice.keys}:
            continue
        if not plan.asked.searches:
            say(f"{choice.name}: {_value(plan, choice)}, not measured in this kind of study")
            continue
        made = _measure(plan, choice, pool, say, plain)
        plan = _with(plan, parse_settings(made["chosen"]))
        plan = replace(plan, measured=(*plan.measured, made))
    return plan


def _fit_length(plan: Plan, pool: WorkerPool, say: Say) -> Plan:
    """The plan with a max_len that cuts at most one pair of a translation in a hundred."""
    if plan.shared.task != "translation" or MAX_LEN in plan.asked.settings:
        return plan
    recipe = plan.recipe(plan.rows[0], TRIAL_SEEDS[0])
    found = ask(pool, "prepare", recipe=dump(recipe))
    needed, now = int(found["report"]["longest"]["train"]), plan.shared.model.max_len
    if needed <= now:
        return plan
    length = round_up(needed)
    say(f"max_len: {length} in place of {now} (99 of 100 pairs have up to {needed} tokens)")
    if length < needed:
        say(f"more than 1 of 100 pairs are cut: --set {MAX_LEN}=N takes longer ones than {LONGEST}")
    tokens = max(plan.shared.train.batch_tokens, 4 * length)
    return _with(plan, {MAX_LEN: str(length), "train.batch_tokens": str(tokens)})


def _measure(plan: Plan, choice: Choice, pool: WorkerPool, say: Say, plain: bool) -> dict[str, Any]:
    """Train dot with each option; return what each reached and which is best."""
    options: list[Settings] = [{}, *choice.options]
    paths = [_choice_path(plan, option) for option in options]
    values = [option.get(choice.keys[0]) or _value(plan, choice) for option in options]
    rows = [
        Row(f"{choice.name} {value}", DOT, f"trials/{path.parent.name}", settings=option)
        for value, path, option in zip(values, paths, options, strict=True)
    ]
    say(f"{choice.name}: {len(rows)} trials of dot ({', '.join(values)}), chosen on validation")
    jobs = [
        Job(number, plan.recipe(row, TRIAL_SEEDS[0]), path, "validation")
        for number, (row, path) in enumerate(zip(rows, paths, strict=True))
    ]
    perform(plan.with_rows(rows), jobs, pool, say, plain)
    plan.errors.clear()  # a trial that fails is a trial that is not chosen
    trials = [
        _trial_record(plan, path, option) for path, option in zip(paths, options, strict=True)
    ]
    for trial, path in zip(trials, paths, strict=True):
        if Run(path).is_finished:
            trial["best_step"] = Run(path).result().get("best_step")
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


def _with(plan: Plan, settings: Settings) -> Plan:
    """The plan with more settings for every row."""
    settings = {**plan.settings, **settings}
    shared = plan.base.make(settings).model_copy(update={"synthesis": DOT, "seed": 0})
    return replace(plan, settings=settings, shared=shared, before=plan.before or plan.shared)


def _value(plan: Plan, choice: Choice) -> str:
    """What a plan has where the choice is."""
    return str(dict(leaves(plan.shared.model_dump()))[choice.keys[0]])


def _choice_path(plan: Plan, option: Settings) -> Path:
    """Where a trial goes: settings that were chosen before are part of its name."""
    assert plan.guessed is not None
    keys = {key for choice in plan.guessed.choices for key in choice.keys}
    own = {key: text for key, text in {**plan.settings, **option}.items() if key in keys}
    names = sorted(slug.replace('"', "") for slug in slugs(own))
    length = f"max_len={plan.shared.model.max_len}"
    return plan.out / "trials" / "-".join(["settings", length, *names]) / "trial1"


def search(plan: Plan, pool: WorkerPool, say: Say, plain: bool) -> Plan:
    """Try settings on validation, the best again under a second seed; choose the best."""
    counts = {number: _num_trials(plan, row) for number, row in enumerate(plan.rows)}
    tried = [number for number, count in counts.items() if count]
    if not tried:
        return plan
    coming = {number: min(plan.repeated, counts[number]) for number in tried}
    once = [
        (number, trial)
        for trial in range(max(counts.values()))
        for number in tried
        if trial < counts[number]
    ]
    say(_announce(plan, len(once), sum(coming.values())))
    jobs = _jobs(plan, once, TRIAL_SEEDS[0])
    if len(jobs) < len(once):
        say(f"{len(once) - len(jobs)} of the trials are known from {STUDY}")
    perform(plan, jobs, pool, say, plain, coming=coming if jobs else None)
    best = [
        (number, trial)
        for number in tried
        for trial in _best_trials(plan, plan.rows[number], counts[number])
    ]
    twice = _jobs(plan, best, TRIAL_SEEDS[1])
    if twice:
        finished = [job for job in jobs if Run(job.path).is_finished]
        perform(plan, [*finished, *twice], pool, say, plain)
    plan.errors.clear()  # a trial that fails is a trial that is not chosen
    return plan.with_rows(
        _choose(plan, row, counts[number], say) if counts[number] else row
        for number, row in enumerate(plan.rows)
    )


def _announce(plan: Plan, first: int, second: int) -> str:
    per_row = f"{plan.asked.trials} trials per variant"
    what = f"search: {per_row}" if plan.asked.trials else f"dot's positions: {first} trials"
    which = f"the best {plan.repeated} of each" if plan.asked.trials > plan.repeated else "all"
    more = f", {which} again under a second seed" if second else ""
    return f"{what}{more}, chosen on validation: {first + second} runs before those of the table"


def _num_trials(plan: Plan, row: Row) -> int:
    """All rows have the same number; without tuning, dot's positions are tried once each."""
    if row.left_out is not None:
        return 0
    if plan.asked.trials:
        return plan.asked.trials
    candidates = [one for one in plan.rows if one.candidate]
    if not row.candidate or not plan.asked.searches or len(candidates) < 2:
        return 0
    return 1 if plan.asked.finds_opponent else 0


def _jobs(plan: Plan, chosen: Sequence[tuple[int, int]], seed: int) -> list[Job]:
    """The runs of trials, given as row and trial, but for those that study.json knows."""
    jobs = []
    for number, trial in chosen:
        row = plan.rows[number]
        if _known(plan, row, trial, seed) is None:
            recipe = plan.recipe(row, seed, _settings(plan, trial))
            jobs.append(Job(number, recipe, _trial_path(plan, row, trial, seed), "validation"))
    return jobs


def _known(plan: Plan, row: Row, trial: int, seed: int) -> dict[str, Any] | None:
    """What study.json says of a trial whose run is not kept."""
    path, tried = _trial_path(plan, row, trial, seed), list_settings(_settings(plan, trial))
    if path.exists():
        return None
    run = str(path.relative_to(plan.out))
    return next((t for t in row.trials if (t["run"], t["changes"]) == (run, tried)), None)


def _settings(plan: Plan, trial: int) -> Settings:
    return settings_of(plan.shared, trial) if plan.asked.trials else {}


def _trial_path(plan: Plan, row: Row, trial: int, seed: int) -> Path:
    name = f"trial{trial + 1}" + ("" if seed == TRIAL_SEEDS[0] else "-again")
    return plan.out / "trials" / row.folder / name


def _best_trials(plan: Plan, row: Row, count: int) -> list[int]:
    """The numbers of the trials that are trained again."""
    once = [_record(plan, row, trial, TRIAL_SEEDS[0]) for trial in range(count)]
    best = worth_repeating(once, plan.repeated)
    return [t for t in range(count) if tuple(list_settings(_settings(plan, t))) in best]


def _record(plan: Plan, row: Row, trial: int, seed: int) -> dict[str, Any]:
    path = _trial_path(plan, row, trial, seed)
    record = _trial_record(plan, path, _settings(plan, trial), seed=seed)
    return record | (_known(plan, row, trial, seed) or {})


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


def _trials(plan: Plan, row: Row, count: int) -> list[dict[str, Any]]:
    """Every trial of a row, also one that was trained again before more trials beat it."""
    again_too = set(_best_trials(plan, row, count))
    if plan.repeated:
        paths = {trial: _trial_path(plan, row, trial, TRIAL_SEEDS[1]) for trial in range(count)}
        again_too |= {
            trial
            for trial, path in paths.items()
            if Run(path).is_finished or _known(plan, row, trial, TRIAL_SEEDS[1])
        }
    once = [_record(plan, row, trial, TRIAL_SEEDS[0]) for trial in range(count)]
    return once + [_record(plan, row, trial, TRIAL_SEEDS[1]) for trial in sorted(again_too)]


def _choose(plan: Plan, row: Row, count: int, say: Say) -> Row:
    """A row with the best settings it tried, under a name of its own where they differ."""
    trials = _trials(plan, row, count)
    best = best_of(trials)
    row = replace(row, trials=tuple(trials))
    if best is None:
        offered = row.candidate and row.offered  # by the search alone: nobody asked for it
        return replace(row, left_out="all of its trials failed") if offered else row
    if not best.changes:
        return row
    say(f"{row.label}: best with {', '.join(best.changes)} ({_seen(best)})")
    chosen = parse_settings(best.changes)
    folder = check_folder_name("-".join([row.folder, *slugs(chosen)]), "the row's settings")
    return row.with_settings(chosen, folder=folder)


def _seen(best: Tried) -> str:
    scores = ", ".join(f"{score:.4f}" for score in best.known)
    mean = f", the mean of {scores}" if len(best.known) > 1 else ""
    return f"validation {best.mean:.4f}{mean}"


def settle(plan: Plan, say: Say) -> Plan:
    """Say which dot product the others are compared with, and add what depends on it."""
    candidates = [row for row in plan.rows if row.candidate and row.left_out is None]
    if not candidates or plan.asked.vary:
        return plan
    if plan.asked.ladder:
        how = "as configured" if plan.asked.opponent in FOUND else "asked for"
        name = candidates[0].label
        told = {"label": name, "configured": name, "how": how, "trials": []}
        return replace(plan, opponent=told)
    tried = [
        {"row": row.label, "positions": row.positions or plan.shared.model.positions, **trial}
        for row in candidates
        for trial in row.trials
    ]
    opponent, how = _find_opponent(plan, candidates, tried, say)
    # what only the search offered, and what another dot product beat, is not a row of the table
    rows = [row for row in plan.rows if not (row.candidate and row.offered) or row is opponent]
    known = how != IN_TABLE
    if plan.asked.has_controls and known and not plan.asked.quick:
        rows.append(again(opponent, plan.shared))
    if plan.asked.has_controls and plan.asked.match not in WIDTHS:
        rows.append(size_control(opponent, plan.shared))
    label = opponent.label if known else None
    record = {"label": label, "configured": candidates[0].label, "how": how, "trials": tried}
    return replace(plan.with_rows(rows), opponent=record)


IN_TABLE = "its validation scores in this table"


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
