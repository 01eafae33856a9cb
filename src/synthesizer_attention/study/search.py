"""Search the settings of rows on validation, before the table is trained (no torch).

A user's file may be large or small, so some settings of all rows depend on it. `dot`, a cheap row,
is trained with each tokenizer, then with each dropout, and the best go into every recipe. For a
translation, max_len grows until it cuts at most one pair in a hundred. Then every row is searched
alike: dot products and rows without one try their kinds of positions, each with all learning rates.
Mixtures with dot wait until dot is chosen, take its positions and start, and search their rates.

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
from synthesizer_attention.study.plan import PRECISION, Plan
from synthesizer_attention.study.rows import (
    AUTO,
    DOT,
    DOTS_OWN,
    FOUND,
    WIDTHS,
    Row,
    again,
    named_folder,
    size_control,
    slugs,
)
from synthesizer_attention.study.stats import FAR
from synthesizer_attention.study.tune import TRIAL_SEEDS, best_of, settings_of, worth_repeating
from synthesizer_attention.study.workers import Say, WorkerPool, ask

MAX_LEN = "model.max_len"
IN_TABLE = "its validation scores in this table"


def fit_to_data(plan: Plan, pool: WorkerPool, say: Say, plain: bool) -> None:
    """Measure what the amount of data decides, where a recipe was inferred from a user's file."""
    for choice in open_choices(plan):
        if plan.asked.searches:
            made = _measure(plan, choice, pool, say, plain)
            plan.set(parse_settings(made["chosen"]))
            plan.measured = (*plan.measured, made)
        else:
            say(f"{choice.name}: {_value(plan, choice)}, not measured in this kind of study")


def open_choices(plan: Plan) -> list[Choice]:
    """What of a user's file is neither inferred nor set by the user."""
    if plan.guessed is None or plan.asked.pretrain:
        return []
    given = plan.asked.settings.keys()
    return [choice for choice in plan.guessed.choices if not given & {*choice.keys}]


def fit_length(plan: Plan, pool: WorkerPool, say: Say) -> None:
    """Raise max_len until it cuts at most one pair of a user's translation in a hundred."""
    translates = plan.guessed is not None and plan.shared.task == "translation"
    if not translates or MAX_LEN in plan.asked.settings:
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
    plan.set({MAX_LEN: str(length), "train.batch_tokens": str(tokens)})


def fit_precision(plan: Plan, pool: WorkerPool, say: Say) -> None:
    """Where train.precision is auto, give every row the precision in which the first trains faster.

    One row is timed once, so that rows are alike; a study keeps what it began with.
    """
    stages = (True, False) if plan.pretrain else (False,)
    for pretraining in stages:
        recipe = plan.recipe(plan.rows[0], plan.seeds[0], pretraining=pretraining)
        if recipe.train.precision != "auto":
            continue
        begun = Run(plan.path(plan.rows[0], plan.seeds[0], pretraining=pretraining))
        if pretraining and begun.is_begun:
            chosen = begun.recipe().train.precision
        else:
            found = ask(pool, "precision", recipe=dump(recipe))
            say(found["why"] + (", in pretraining" if pretraining else ""))
            chosen = found["precision"]
        if plan.pretrain and pretraining:
            plan.pretrain = plan.pretrain[0], {**plan.pretrain[1], PRECISION: chosen}
        else:
            plan.set({PRECISION: chosen})


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


def _value(plan: Plan, choice: Choice) -> str:
    """What a plan has where the choice is."""
    return str(dict(leaves(plan.shared.model_dump()))[choice.keys[0]])


def search(plan: Plan, pool: WorkerPool, say: Say, plain: bool, *, following: bool = False) -> None:
    """Try settings on validation, the best again under a second seed; choose the best.

    Rows that follow dot are searched by themselves, once the opponent is found.
    """
    counts = [num_trials(plan, row) if row.follows_dot == following else 0 for row in plan.rows]
    tried = [number for number, count in enumerate(counts) if count]
    if not tried:
        return
    coming = {number: min(plan.repeated, counts[number]) for number in tried}
    once = [(n, trial) for trial in range(max(counts)) for n in tried if trial < counts[n]]
    trials, second = plan.asked.trials, sum(coming.values())
    what = f"search: {trials} trials per variant" if trials else f"positions: {len(once)} trials"
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


def num_trials(plan: Plan, row: Row) -> int:
    """All rows have the same number; without tuning, kinds of positions are tried once each."""
    if row.left_out is not None:
        return 0
    several = row.candidate and sum(one.candidate for one in plan.rows) > 1
    several |= row.kind_of is not None or any(one.kind_of == row.label for one in plan.rows)
    finds = plan.asked.searches and plan.asked.finds_opponent
    return plan.asked.trials or int(several and finds)


def _trial(
    plan: Plan, row: Row, number: int, seed: int
) -> tuple[Path, Settings, dict[str, Any] | None]:
    """Where a trial goes, what it sets, and what study.json says of one whose run is not kept."""
    settings = settings_of(plan.shared, number) if plan.asked.trials else {}
    name = f"trial{number + 1}" + ("" if seed == TRIAL_SEEDS[0] else "-again")
    path = plan.out / "trials" / row.folder / name
    known = plan.known.get(str(path.relative_to(plan.out)))
    same = known is not None and known["changes"] == list_settings(settings)
    return path, settings, known if same and not path.exists() else None


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
        # offered by the search alone: nobody asked for it
        offered = row.offered and (row.candidate or row.kind_of is not None)
        return replace(row, left_out="all of its trials failed") if offered else row
    if not best.changes:
        return row
    scores = ", ".join(f"{score:.4f}" for score in best.known)
    mean = f", the mean of {scores}" if len(best.known) > 1 else ""
    say(f"{row.label}: best with {', '.join(best.changes)} (validation {best.mean:.4f}{mean})")
    chosen = parse_settings(best.changes)
    folder = check_folder_name("-".join([row.folder, *slugs(chosen)]), "the row's settings")
    return row.with_settings(chosen, folder=folder)


def choose_positions(plan: Plan, say: Say) -> None:
    """Find the opponent and each row's positions; give mixtures with dot the opponent's."""
    plan.rows = tuple(_choose_kind(plan, row, say) for row in plan.rows if row.kind_of is None)
    asked = plan.asked
    candidates = [row for row in plan.rows if row.candidate and row.left_out is None]
    if not candidates or asked.vary:
        return
    if asked.ladder:
        how = "as configured" if asked.opponent in FOUND else "asked for"
        name = candidates[0].label
        plan.opponent = {"label": name, "configured": name, "how": how, "trials": []}
        return
    tried = [trial for row in candidates for trial in _told(plan, row)]
    opponent, how = _find_opponent(plan, candidates, tried, say)
    own = {key: text for key, text in opponent.settings.items() if key in DOTS_OWN}
    # what only the search offered, and what another dot product beat, is not a row of the table
    plan.rows = tuple(
        _with_kind(row, own, f"as {opponent.label}") if own and row.follows_dot else row
        for row in plan.rows
        if not (row.candidate and row.offered) or row is opponent
    )
    label, configured = opponent.label if how != IN_TABLE else None, candidates[0].label
    plan.opponent = {"label": label, "configured": configured, "how": how, "trials": tried}


def _choose_kind(plan: Plan, row: Row, say: Say) -> Row:
    """The row with the positions that did best on validation."""
    kinds = [row, *(one for one in plan.rows if one.kind_of == row.label)]
    tried = [trial for one in kinds for trial in _told(plan, one)]
    best = best_of(tried)
    if len(kinds) < 2 or best is None:
        return row
    chosen = next(one for one in kinds if one.label == best.row)
    if chosen is row:
        return replace(row, trials=tuple(tried))
    say(f"{row.label}: {chosen.positions} is best of {len(kinds)} kinds of positions")
    note = "; ".join(filter(None, [f"{chosen.positions}, chosen on validation", chosen.note]))
    own = replace(chosen, label=row.label, kind_of=None, offered=row.offered)
    return replace(own, trials=tuple(tried), note=note)


def _with_kind(row: Row, settings: Settings, how: str) -> Row:
    """A row with positions, or a start, that were found for another."""
    words = ", ".join(slug.removeprefix("positions=") for slug in slugs(settings))
    folder = named_folder(row.folder, settings)
    return row.with_settings(settings, folder=folder, note=f"{words}, {how}", sized=False)


def _told(plan: Plan, row: Row) -> list[dict[str, Any]]:
    """The trials of a row, as they are told beside those of other kinds of positions."""
    own = {"row": row.label, "positions": row.positions or plan.shared.model.positions}
    return [{**own, **trial} for trial in row.trials]


def settle(plan: Plan, say: Say) -> None:
    """Add the rows that depend on the opponent, and name the primary comparison."""
    if plan.opponent is None:
        choose_positions(plan, say)
    asked, label = plan.asked, (plan.opponent or {}).get("label")
    configured = (plan.opponent or {}).get("configured")
    opponent = next((row for row in plan.rows if row.label == (label or configured)), None)
    if opponent is None or asked.vary or asked.ladder:
        return
    rows = [*plan.rows]
    if asked.has_controls and label:
        rows.append(again(opponent, plan.shared))
    if asked.has_controls and asked.match not in WIDTHS:
        rows.append(size_control(opponent, plan.shared))
    plan.rows = tuple(rows)
    if plan.rule.primary and not plan.keeps_primary:
        plan.primary = asked.primary or plan.primary or _primary(plan, say)


def _primary(plan: Plan, say: Say) -> str | None:
    """The row without dot product that did best on validation, or the first; controls are none."""
    pure = [row for row in plan.rows if row.is_pure and row.spec not in FAR]
    pure = [row for row in pure if row.left_out is None]
    tried = [(best.rank, row) for row in pure if (best := best_of(row.trials))]
    if not pure:
        return None
    row = max(tried, key=lambda one: one[0])[1] if tried else pure[0]
    why = "best on validation" if tried else "the first, as nothing was searched"
    if len(pure) > 1:
        say(f"primary row: {row.label}, without dot product and {why} (--primary names another)")
    return row.label


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
