"""Settings that the amount of data decides: tried on validation where a file of the user's is read.

Each choice (tokenizer, then dropout) is a few whole trainings of one cheap row, `dot`, with a seed
that is never reported; what is best on validation goes into the recipe of every row. Test is not
seen. A translation's length is raised until no more than one pair in a hundred is cut.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from synthesizer.experiment.recipe import leaves, load_recipe
from synthesizer.experiment.run import Run
from synthesizer.study.guess import Choice
from synthesizer.study.guess_sizes import LONGEST, round_up
from synthesizer.study.plan import Plan
from synthesizer.study.rows import DOT, Row
from synthesizer.study.tune import best_of

MAX_LEN = "model.max_len"

Say = Callable[[str], None]
Train = Callable[[Plan, Sequence[Path]], None]  # runs the rows of a plan, each at its path
Prepare = Callable[[Plan], dict[str, Any]]  # the report of a plan's data


def fit_length(plan: Plan, prepare: Prepare, say: Say) -> Plan:
    """The plan with a max_len that cuts at most one pair of a translation in a hundred."""
    if plan.guessed is None or plan.shared.task != "translation" or _is_set(plan, MAX_LEN):
        return plan
    needed = int(prepare(plan)["longest"]["train"])
    now = plan.shared.model.max_len
    if needed <= now:
        return plan
    length = round_up(needed)
    say(f"max_len: {length} in place of {now} (99 of 100 pairs have up to {needed} tokens)")
    if length < needed:
        say(f"more than 1 of 100 pairs are cut: --set {MAX_LEN}=N takes longer ones than {LONGEST}")
    tokens = max(plan.shared.train.batch_tokens, 4 * length)
    return _with(plan, (f"{MAX_LEN}={length}", f"train.batch_tokens={tokens}"))


def choose_settings(plan: Plan, train: Train, say: Say) -> Plan:
    """The plan with the settings that were best on validation, and the record of how."""
    if plan.guessed is None or plan.asked.pretrain:
        return plan
    before, made = plan.before or plan.shared, []
    for choice in plan.guessed.choices:
        if any(_is_set(plan, key) for key in choice.keys):
            continue
        if not plan.asked.searches:
            say(f"{choice.name}: {_value(plan, (), choice)}, not measured in this kind of study")
            continue
        options = ((), *choice.options)
        values = [_value(plan, option, choice) for option in options]
        paths = [_path(plan, option) for option in options]
        rows = [
            Row(f"{choice.name} {value}", DOT, f"trials/{path.parent.name}", changes=option)
            for value, path, option in zip(values, paths, options, strict=True)
        ]
        say(f"{choice.name}: {len(rows)} trials of dot ({', '.join(values)}), chosen on validation")
        train(plan.with_rows(rows), paths)
        trials = [_record(plan, *trial) for trial in zip(options, paths, strict=True)]
        best = best_of(trials)
        chosen = best.changes if best else options[0]
        found = ", ".join(
            f"{value} {_score(trial['validation'])}"
            for value, trial in zip(values, trials, strict=True)
        )
        plan = _with(plan, chosen)
        say(
            f"{choice.name}: {_value(plan, (), choice)} (dot on validation, one seed: {found}; "
            f"--set {choice.keys[0]}=... keeps one)"
        )
        made.append({"choice": choice.name, "row": DOT, "trials": trials, "chosen": list(chosen)})
        plan = replace(plan, before=before, measured=tuple(made))
    return plan


def _is_set(plan: Plan, key: str) -> bool:
    """Whether the user says what a key is."""
    return any(text.partition("=")[0].strip() == key for text in plan.asked.recipe_overrides)


def _with(plan: Plan, changes: tuple[str, ...]) -> Plan:
    """The plan with more settings for every row."""
    overrides = (*plan.overrides, *changes)
    recipe = load_recipe(plan.base, overrides=overrides, imports=plan.asked.imports)
    shared = recipe.model_copy(update={"synthesis": DOT, "seed": 0})
    return replace(plan, overrides=overrides, shared=shared, before=plan.before or plan.shared)


def _value(plan: Plan, option: tuple[str, ...], choice: Choice) -> str:
    """What the choice's first key has under an option."""
    recipe = load_recipe(plan.base, overrides=(*plan.overrides, *option))
    return str(dict(leaves(recipe.model_dump()))[choice.keys[0]])


def _path(plan: Plan, option: tuple[str, ...]) -> Path:
    """Where a trial goes: settings that were chosen before are part of its name."""
    assert plan.guessed is not None
    keys = {key for choice in plan.guessed.choices for key in choice.keys}
    own = [text for text in (*plan.overrides, *option) if text.partition("=")[0] in keys]
    last = {text.partition("=")[0]: text.partition(".")[2].replace('"', "") for text in own}
    length = f"max_len={plan.shared.model.max_len}"
    return plan.out / "trials" / "-".join(["settings", length, *sorted(last.values())]) / "trial1"


def _record(plan: Plan, option: tuple[str, ...], path: Path) -> dict[str, Any]:
    record: dict[str, Any] = {
        "run": str(path.relative_to(plan.out)),
        "changes": list(option),
        "validation": None,
    }
    if Run(path).is_finished:
        result = Run(path).result()
        record["validation"] = float(result["validation"][result["main_metric"]])
        record["higher_is_better"] = result["higher_is_better"]
        record["best_step"] = result.get("best_step")
    return record


def _score(value: float | None) -> str:
    return "failed" if value is None else f"{value:.4g}"
