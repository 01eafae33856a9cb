"""Plan a study: rows, seeds and the recipe of every run; write and check study.json (no torch)."""

import hashlib
import json
import math
import platform
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from synthesizer_attention import __version__
from synthesizer_attention.data.corpora import describe_corpus
from synthesizer_attention.data.sources import Source, data_folder, open_source
from synthesizer_attention.errors import UserError, refuse_other_data
from synthesizer_attention.run.files import check_folder_name, write_text
from synthesizer_attention.run.recipe import (
    BaseRecipe,
    Recipe,
    Settings,
    differences,
    dump,
    list_settings,
    parse_recipe,
)
from synthesizer_attention.run.records import STUDY, Study, unpack
from synthesizer_attention.run.run import Run
from synthesizer_attention.spec import import_modules, normalize_spec, parse_positions
from synthesizer_attention.study.evidence import FEWEST_SEEDS, RULE, Rule
from synthesizer_attention.study.guess import Guess, infer_recipe, is_data
from synthesizer_attention.study.rows import (
    AGAIN,
    FOUND,
    MATCHES,
    PRETRAIN,
    QUICK_ROWS,
    Asked,
    Row,
    again,
    rows_of,
    size_control,
    with_positions,
)
from synthesizer_attention.study.stats import LEVEL, PLANNED, Looks, rule_of
from synthesizer_attention.study.tune import REPEATED, TRIAL_SEEDS
from synthesizer_attention.study.workers import parse_jobs

QUICK = 5  # a quick look takes this part of the steps
QUICK_LIMIT = 500  # validation examples of a quick look
SEEDS = 3
MOST_ROWS = 1000  # more get dot no further seeds
PRECISION = "train.precision"
PRETRAINED = "pretrained"  # the folder of the runs that others start from


@dataclass
class Plan:
    """All runs of a comparison, as settings of one base recipe."""

    asked: Asked
    base: BaseRecipe
    settings: Settings  # of all rows
    shared: Recipe  # what all runs have in common
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    out: Path
    fingerprint: str  # of the data, as far as it is known before they are read
    words: tuple[str, ...] = ()  # what was inferred or shortened
    metric: str = ""  # that judges, once it is known
    errors: dict[str, str] = field(default_factory=dict)  # by label
    opponent: dict[str, Any] | None = None  # which dot product the others are compared with, why
    rule: Rule = RULE  # of the verdicts
    primary: str | None = None  # label of the row that is judged first
    is_begun: bool = False  # it goes on with the rows, trials and steps that it has
    keeps_primary: bool = False  # as it is, None included: verdicts may have been seen
    dot_seeds: int | None = None  # of the opponent, where verdicts were seen; None: by the rule
    looks: Looks | None = None
    guessed: Guess | None = None  # where the recipe was inferred from data
    pretrain: tuple[BaseRecipe, Settings] | None = None  # what makes the run that a run starts from
    before: Recipe | None = None  # `shared` as it was inferred, once something was measured
    measured: tuple[dict[str, Any], ...] = ()  # settings that trials on validation chose
    searches_every_row: bool = True  # or dot's positions alone, as studies once began
    known: dict[str, dict[str, Any]] = field(default_factory=dict)  # earlier trials, by their runs
    repeated: int = REPEATED  # trials of a row that get a second seed; 0: as studies once began
    identities: dict[str, str] = field(default_factory=dict)  # of the data, by their settings

    def recipe(
        self, row: Row, seed: int, more: Settings | None = None, *, pretraining: bool = False
    ) -> Recipe:
        """The recipe of one run, or of the run that it starts from."""
        base, settings = self._made_of(row, seed, more, pretraining)
        return base.make(settings, row.spec)

    def seeds_of(self, row: Row) -> tuple[int, ...]:
        """The seeds that a row is trained with: the study's, and of the opponent more."""
        count, label = row.num_seeds or len(self.seeds), (self.opponent or {}).get("label")
        if row.num_seeds is None and row.label == label:
            others = [one for one in self.rows if one.left_out is None]
            rows = sum(one.label not in (label, AGAIN) for one in others)
            count = self.dot_seeds or self.rule.dot_seeds(count, rows)
        return tuple(range(self.seeds[0], self.seeds[0] + count))

    @property
    def runs(self) -> list[tuple[Row, int]]:
        """Every run as row and seed, seed by seed, so that whole tables come early."""
        seeds = {row.label: self.seeds_of(row) for row in self.rows if row.left_out is None}
        every = sorted({seed for own in seeds.values() for seed in own})
        return [
            (row, seed) for seed in every for row in self.rows if seed in seeds.get(row.label, ())
        ]

    def path(self, row: Row, seed: int, *, pretraining: bool = False) -> Path:
        """Where one run goes."""
        home = self.out / PRETRAINED if pretraining else self.out
        return home / row.folder / f"seed{seed + row.first_seed}"

    def command(self, row: Row, seed: int, *, pretraining: bool = False) -> str:
        """The command that makes one run alone."""
        base, settings = self._made_of(row, seed, None, pretraining)
        sets = [word for text in list_settings(settings) for word in ("--set", text)]
        sets += [word for name in self.asked.imports for word in ("--import", name)]
        out = ["--out", str(self.path(row, seed, pretraining=pretraining))]
        out += ["--track", self.asked.track] if self.asked.track else []
        return shlex.join(["synthesizer", "train", base.name, "--synthesis", row.spec, *sets, *out])

    def _made_of(
        self, row: Row, seed: int, more: Settings | None, pretraining: bool
    ) -> tuple[BaseRecipe, dict[str, str]]:
        own = {"seed": str(seed + row.first_seed)}
        if pretraining:  # the model is the same before and after; the learning rates are not
            assert self.pretrain is not None
            base, settings = self.pretrain
            model = {key: text for key, text in row.settings.items() if key.startswith("model.")}
            return base, {**settings, **model, **own}
        if self.pretrain:
            own = {"train.start_from": str(self.path(row, seed, pretraining=True)), **own}
        return self.base, {**self.settings, **row.settings, **(more or {}), **own}

    def set(self, settings: Settings) -> None:
        """Give every row more settings, which were found by measuring."""
        self.settings, self.before = {**self.settings, **settings}, self.before or self.shared
        made = self.base.make(self.settings)
        self.shared = made.model_copy(update={"synthesis": "dot", "seed": 0})

    def write(self) -> None:
        """Write study.json: what a report needs beside the runs."""
        pretrain = None
        if self.asked.pretrain:
            recipe = self.recipe(self.rows[0], self.seeds[0], pretraining=True)
            pretrain = {"recipe": recipe.name, "steps": recipe.train.steps, "folder": PRETRAINED}
        rows = [
            {
                "label": row.label,
                "spec": row.spec,
                "runs": [
                    str(self.path(row, seed).relative_to(self.out)) for seed in self.seeds_of(row)
                ],
                "left_out": row.left_out,
                "error": self.errors.get(row.label),
                "note": row.note,
                "varied": list_settings(row.varied),
                "trials": row.trials,
                "settings": list_settings(row.settings),
                "candidate": row.candidate,
            }
            for row in self.rows
        ]
        study = {
            "command": self.asked.command,
            "recipe": self.shared.name,
            "chosen_for": self.shared.chosen_for,
            "rows": rows,
            "rule": self.rule.name,
            "primary": self.primary,
            "margin": self.asked.margin,
            "match": self.asked.match,
            "tune": self.asked.trials,
            "search": {
                "repeated": self.repeated,
                "seeds": TRIAL_SEEDS[: 1 + bool(self.repeated)],
                "every_row": self.searches_every_row,
            },
            "quick": self.asked.quick,
            "against": list(self.asked.against),
            "ladder": self.asked.ladder,
            "pretrain": pretrain,
            "opponent": self.opponent,
            "looks": self.looks and self.looks.record(),
            "inferred": self.before and dump(self.before),
            "measured": list(self.measured),
            "shared": dump(self.shared),
            "data": self.fingerprint,
            "identity": self.identity,
        }
        write_text(self.out / STUDY, json.dumps(study, indent=2) + "\n")

    @property
    def identity(self) -> str | None:
        """Of the data that all rows share, once it is known."""
        return self.identities.get(self.shared.data.model_dump_json())

    def meet(self, recipe: Recipe, identity: str | None, run: Path | None = None) -> None:
        """Refuse data of a recipe, or a run of data, that are not those met before.

        What older versions wrote knows no identity.
        """
        if identity is not None:
            met = self.identities.setdefault(recipe.data.model_dump_json(), identity)
            refuse_other_data(run or self.out, *((identity, met) if run else (met, identity)))


def draw_up(asked: Asked) -> Plan:
    """Decide every run of a comparison but for widths and tuned learning rates."""
    check(asked)
    import_modules(asked.imports)
    unpacked = asked.out is not None and unpack(asked.out)
    asked = replace(
        asked,
        against=tuple(map(_row_name, asked.against)),
        primary=asked.primary and _row_name(asked.primary),
    )
    guess = Guess(asked.recipe, {}, ())
    if is_data(asked.recipe):
        given = {key: value.strip("\"' ") for key, value in asked.settings.items()}
        guess = infer_recipe(asked.recipe, given.get("task"), given)
    base = BaseRecipe(guess.recipe, asked.imports)
    whole = base.make(guess.settings) if asked.quick else None
    settings = {**guess.settings, **(_quicken(whole) if whole else {}), **asked.settings}
    recipe = base.make(settings)
    import_modules(recipe.imports)
    shared = recipe.model_copy(update={"synthesis": "dot", "seed": 0})
    fingerprint, identity = _identify(recipe, guess.source)
    pretrain = None
    if asked.pretrain:
        before, own = BaseRecipe(asked.pretrain, asked.imports), asked.pretrain_settings
        pretrain = before, {**(_quicken(before.make(own)) if asked.quick else {}), **own}
    seeds = asked.seeds or SEEDS
    rows = rows_of(asked, recipe, seeds)
    if asked.ladder:
        seeds = max(row.num_seeds or seeds for row in rows)
    packed = [f"{asked.out} was packed; its records are unpacked beside it"] if unpacked else []
    plan = Plan(
        asked,
        base,
        settings,
        shared,
        tuple(range(recipe.seed, recipe.seed + seeds)),
        tuple(rows),
        asked.out or _default_out(asked, shared, fingerprint, pretrain),
        fingerprint,
        (*packed, *guess.reasons, *_say_shortened(asked, whole, recipe)),
        looks=Looks(PLANNED, PLANNED[:1]) if asked.until_decided else None,
        guessed=guess if guess.source else None,
        pretrain=pretrain,
    )
    plan.meet(shared, identity)
    there = Study.read(plan.out / STUDY) if (plan.out / STUDY).exists() else None
    _refuse_to_mix(plan, there)
    _check_rows(plan)
    if there is not None:
        _go_on(plan, there)
    return plan


def check(asked: Asked) -> None:
    """Refuse what contradicts itself."""
    if asked.pretrain and asked.trials:
        raise UserError(
            "--tune with --pretrain would pretrain every trial; leave one of them out, or name "
            "pretrained runs: --set train.start_from=RUNS/{synthesis}/seed{seed}"
        )
    if asked.pretrain_settings and not asked.pretrain:
        raise UserError(f"--set {PRETRAIN}... changes nothing without --pretrain; leave it out")
    parse_jobs(asked.jobs)
    if asked.match not in MATCHES:
        raise UserError(f"--match is {asked.match!r}; choose from {', '.join(MATCHES)}")
    if asked.primary and (asked.vary or asked.ladder):
        raise UserError("--primary is for one table; leave out --vary and --ladder")
    for name in ("vary", "pretrain", "until_decided"):
        if asked.ladder and getattr(asked, name):
            name = name.replace("_", "-")
            raise UserError(f"--ladder cannot be combined with --{name}; leave one of them out")
    if asked.margin is not None and not 0 < asked.margin < math.inf:
        raise UserError(f"--margin is {asked.margin:g}; expected a number of points above 0")
    if asked.tune == 1:
        raise UserError("--tune 1 has nothing to choose from; ask for 2 trials or more")
    if asked.until_decided and (asked.quick or asked.seeds or asked.lists_commands):
        raise UserError(
            f"--until-decided looks at {', '.join(map(str, PLANNED))} seeds; leave out --seeds, "
            "--quick and --plan"
        )
    if asked.opponent not in FOUND:
        parse_positions(asked.opponent)


def _default_out(
    asked: Asked, shared: Recipe, fingerprint: str, pretrain: tuple[BaseRecipe, Settings] | None
) -> Path:
    """A directory that is named after all that its runs have in common."""
    # More trials go on where fewer ended, so that their number is not part of the name.
    named = [shared.hash(), fingerprint, asked.match, "tuned" if asked.trials else "0"]
    named += [asked.pretrain or "", *(list_settings(pretrain[1]) if pretrain else ()), *asked.vary]
    named += ["ladder"] if asked.ladder else []  # of any height: more rungs go below these
    digest = hashlib.sha256("\0".join(named).encode()).hexdigest()[:8]
    name = check_folder_name(shared.name, "the recipe's name")
    return Path("runs") / f"{name}-{digest}"


def _go_on(plan: Plan, there: dict[str, Any]) -> None:
    """A study goes on with the rule and the search that it began with."""
    plan.meet(plan.shared, there.get("identity"))
    plan.is_begun = True
    if plan.guessed and not plan.asked.syntheses:  # rows and steps were chosen by their time
        there_too = {row["spec"] for row in there["rows"]}
        plan.rows = tuple(row for row in plan.rows if row.spec in there_too)
    if plan.guessed and there.get("inferred"):
        old, new = (parse_recipe(there[name], STUDY) for name in ("inferred", "shared"))
        if new.train.steps < old.train.steps:
            plan.set(shorten(old, new.train.steps))
    if plan.shared.train.precision == "auto":
        plan.set({PRECISION: parse_recipe(there["shared"], STUDY).train.precision})
    plan.rule, plan.primary = rule_of(there), there.get("primary")
    if _is_judged(plan, there):
        _keep_plan(plan, there)
    plan.repeated = (there.get("search") or {}).get("repeated", 0)
    if plan.asked.tune is None:
        plan.asked = replace(plan.asked, tune=there["tune"])
    if plan.looks and there.get("looks"):
        plan.looks = replace(plan.looks, unplanned=Looks.read(there["looks"]).unplanned)
    if not (there.get("search") or {}).get("every_row"):
        plan.searches_every_row = False
        rows = [row for row in plan.rows if row.kind_of is None]
        plan.rows = tuple(replace(row, follows_dot=False) for row in rows)
    for holder in (*there["rows"], there.get("opponent") or {}):  # a dot product may be no row
        for trial in holder.get("trials") or ():
            if trial["validation"] is not None and trial.get("run"):
                own = {k: v for k, v in trial.items() if k not in ("row", "positions")}
                plan.known[trial["run"]] = own


def _say_shortened(asked: Asked, whole: Recipe | None, recipe: Recipe) -> Iterator[str]:
    """What a quick look leaves out, and whose learning rates all rows have."""
    train = recipe.train
    if whole is not None:
        steps = whole.train.steps
        fewer = f" where the recipe has {steps}" if train.steps != steps else ""
        names = f"{len(QUICK_ROWS)} rows, " if not asked.syntheses else ""
        yield (
            f"quick: {names}{train.steps} steps{fewer}, all with {recipe.model.positions} "
            "positions; without --quick the whole table is searched and trained"
        )
    if not asked.trials:
        none = "tuned for none of them (--tune K gives each its own)"
        chosen = f"chosen for {recipe.chosen_for}" if recipe.chosen_for else none
        rates = f"lr {train.lr:g}, tables x{train.table_rate:g}"
        yield f"learning rates of all rows: {rates}; {chosen}"


def _check_rows(plan: Plan) -> None:
    """Refuse another model before pretraining, seeds that choose settings, unknown opponents."""
    asked = plan.asked
    if asked.pretrain:
        before, after = (
            plan.recipe(plan.rows[0], plan.seeds[0], pretraining=stage).model.model_dump()
            for stage in (True, False)
        )
        free = ("max_len", "decoder_max_len", "dropout", "attention_dropout")  # weights fit all
        keys = [key for key in after if before[key] != after[key] and key not in free]
        if wrong := [f"{key}: {before[key]} -> {after[key]}" for key in keys]:
            raise UserError(
                f"--pretrain {asked.pretrain} makes another model than {plan.shared.name} "
                f"({'; '.join(wrong)}); set these keys alike with --set KEY and --set pretrain.KEY"
            )
    labels = [row.label for row in plan.rows]
    if asked.has_controls:
        labels += [row(plan.rows[0], plan.shared).label for row in (again, size_control)]
    for name in asked.against:
        if name not in labels:
            raise UserError(f"--against {name} is not a row; choose from {', '.join(labels)}")
    others = [row.label for row in plan.rows if not (row.candidate or row.kind_of)]
    if asked.primary not in (None, *others):
        raise UserError(
            f"--primary {asked.primary} is not a row to compare with dot; choose from "
            f"{', '.join(others)}"
        )
    first, most = plan.seeds[0], max(len(plan.seeds), *(plan.looks.planned if plan.looks else (0,)))
    used = range(first, first + plan.rule.dot_seeds(most, MOST_ROWS))
    shared = sorted(set(TRIAL_SEEDS) & set(used))
    if shared and (asked.trials or (asked.finds_opponent and asked.searches)):
        raise UserError(
            f"seed {shared[0]} chooses learning rates and is never reported; set another seed, "
            "or --tune 0 --opponent configured"
        )


def _row_name(name: str) -> str:
    """The label of the row that a user names: a spec may be written in the paper's letters."""
    try:
        return normalize_spec(name)
    except UserError:
        return name  # of a control, or of a row of --vary


def _quicken(recipe: Recipe) -> dict[str, str]:
    """A fifth of the steps, fewer validation examples, and relative positions.

    These were dot's best in most records, and are of use to every row.
    """
    return {
        **shorten(recipe, max(1, recipe.train.steps // QUICK)),
        "evaluate.limit": str(min(recipe.evaluate.limit or QUICK_LIMIT, QUICK_LIMIT)),
        "model.positions": with_positions(recipe, "relative") or recipe.model.positions,
    }


def shorten(recipe: Recipe, steps: int) -> dict[str, str]:
    """Fewer steps, and all that is counted in steps with them."""
    train, whole = recipe.train, recipe.train.steps
    changes = {
        "train.steps": steps,
        "train.warmup": train.warmup * steps // whole,
        "train.checkpoint_every": max(1, train.checkpoint_every * steps // whole),
        "evaluate.every": max(1, recipe.evaluate.every * steps // whole),
    }
    return {key: str(value) for key, value in changes.items()}


def _refuse_to_mix(plan: Plan, there: dict[str, Any] | None) -> None:
    """Refuse a directory with runs of another recipe, data or budget."""
    asked, path = plan.asked, plan.out / STUDY
    if there is None:  # but what a comparison leaves that was killed before its first record
        ours = re.compile(r"\..*|worker\d+\.log")
        if plan.out.exists() and not all(ours.fullmatch(p.name) for p in plan.out.iterdir()):
            raise UserError(f"{plan.out} exists and is not a comparison; choose another --out")
        return
    try:
        before = there.get("inferred") or there["shared"]
        changed = differences(parse_recipe(before, str(path)), plan.shared)
        tried, trials, rungs = there["tune"], asked.trials, there.get("ladder")
        for name, old, new, differs in (
            ("match", there["match"], asked.match, there["match"] != asked.match),
            ("tune", tried, trials, tried > trials or bool(tried) != bool(trials)),
            ("ladder", rungs, asked.ladder, bool(rungs) != bool(asked.ladder)),
        ):
            if differs:
                changed.append(f"--{name}: {old} -> {new}")
        old, new = there.get("identity"), plan.identity
        # Older studies know no identity; some have the versions in the name of their data.
        made = f"of synthesizer {__version__} on Python {platform.python_version()}"
        names = (plan.fingerprint, f"{plan.fingerprint} {made}")
        if new not in (None, old) if old else there["data"] not in names:
            changed.append("the data have changed")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not the record of a comparison ({type(error).__name__}: {error}); "
            "choose another --out"
        ) from None
    if changed:
        raise UserError(
            f"{plan.out} holds another comparison ({'; '.join(changed)}); "
            "choose another --out, or delete the directory"
        )
    _refuse_unplanned_seeds(plan, there)


def _is_judged(plan: Plan, there: dict[str, Any]) -> bool:
    """Whether a report could give words to the rows of a study."""
    finished = [sum(Run(plan.out / run).is_finished for run in r["runs"]) for r in there["rows"]]
    return sum(count >= FEWEST_SEEDS for count in finished) > 1


def _keep_plan(plan: Plan, there: dict[str, Any]) -> None:
    """Verdicts may have been seen: the primary row and the opponent's seeds stay as they are."""
    own, asked = there.get("primary"), plan.asked.primary
    labels = [row.label for row in plan.rows]
    if asked not in (None, own) or own not in (None, *labels):
        now = f"--primary {asked}" if asked else f"a table of {', '.join(labels)}"
        raise UserError(
            f"{plan.out} was planned with the primary row {own or '(none)'} and has runs to be "
            f"judged by; {now} would be chosen after verdicts: keep it, or name another --out"
        )
    plan.keeps_primary = True
    label = (there.get("opponent") or {}).get("label")
    runs = [row["runs"] for row in there["rows"] if row["label"] == label]
    if runs and not plan.looks:
        plan.dot_seeds = len(runs[0])


def _refuse_unplanned_seeds(plan: Plan, there: dict[str, Any]) -> None:
    """Once a report could judge a study, its seeds stay: others would depend on the verdicts."""
    old = Looks.read(there["looks"]).planned if there.get("looks") else ()
    new = plan.looks.planned if plan.looks else ()
    before = {row["label"]: [Path(run).name for run in row["runs"]] for row in there["rows"]}
    now = {row.label: [plan.path(row, s).name for s in plan.seeds_of(row)] for row in plan.rows}
    dots = (there.get("opponent") or {}).get("label")  # its seeds follow from the others'
    both = [(before[label], now[label]) for label in before if label in now and label != dots]
    if old == new:  # rows that were decided at a look have fewer seeds
        both = [(a, b) for a, b in both if (a[: len(b)] != b[: len(a)] if new else a != b)]
    if not both or not _is_judged(plan, there):
        return

    def say(runs: Sequence[str], looks: Sequence[int]) -> str:
        if looks:
            return f"looks at {', '.join(map(str, looks))} seeds"
        return f"{len(runs)} seeds ({runs[0]} to {runs[-1]})" if runs else "no seeds"

    used = re.findall(r"seed(\d{1,9})\b", " ".join((*both[0][0], *both[0][1])))
    fresh = 1 + max(map(int, used), default=0)
    raise UserError(
        f"{plan.out} was planned with {say(both[0][0], old)} and has runs to be judged by; "
        f"{say(both[0][1], new)} now would be chosen after verdicts, and wrong ones likelier than "
        f"{LEVEL:.0%}: repeat its own command, or begin anew with fresh seeds "
        f"(--set seed={fresh} --out DIR)"
    )


def _identify(recipe: Recipe, known: Source | None) -> tuple[str, str | None]:
    """What a study's directory is named after, and the identity of the data where that is files.

    Of all else a worker tells the identity before the first run. Data that were read for a guess
    are not opened again, unless the user set others.
    """
    if recipe.data.tasks:
        return "mixture", None
    if recipe.data.builtin and not recipe.data.train:
        return describe_corpus(recipe.data.builtin), None
    source = open_source(recipe.data, data_folder())
    source = known if known and known.origin == source.origin else source
    return source.fingerprint, source.identity if source.has_files else None
