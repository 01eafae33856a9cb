"""Make the rows of a comparison from what a user asks (no torch).

A row is a label, a spec and settings that other rows do not have. A user names it by both:

    dot
    dot@model.positions=rotary
    dot@model.d_ff=512@train.lr=0.002
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.files import check_folder_name
from synthesizer_attention.run.recipe import Recipe, Settings, parse_settings
from synthesizer_attention.run.run import spec_folder
from synthesizer_attention.spec import (
    NONE,
    TABLE_2,
    has_logits,
    normalize_spec,
    parse_positions,
    parse_spec,
    split_layers,
)
from synthesizer_attention.spec import variants as known_variants
from synthesizer_attention.study.ladder import FEWEST_RUNGS
from synthesizer_attention.study.tune import TRIALS

FOUND = AUTO, CONFIGURED = "auto", "configured"  # how the opponent is found; else its positions
MATCHES = ("none", "params", "flops")  # budgets that are met through d_ff
WIDTHS = MATCHES[1:]
PRETRAIN = "pretrain."  # of an override: it changes the recipe that pretrains
DOT = "dot"
AS_LARGE = "dot, as large as"  # how the label of the size control begins
CONTROL = "random+dot"  # whose parameters the size control has
SETTING = re.compile("@(?=[a-z_])")  # behind @ and a digit is a number of heads
AGAIN = "dot, other seeds"  # the label of the A/A row
OTHER_SEEDS = 1000  # the A/A row's seeds are those of the study plus this
POSITIONS = "model.positions"
DOTS_OWN = {POSITIONS, "model.equal_qk_init"}  # what one dot may have that another lacks
ADDED = ("relative", "rotary")  # what the opponent's positions are chosen from
OWN = ("model.", "train.")  # sections whose keys a row may set for itself
SHARED = ("model.kind", "train.start_from")
QUICK_ROWS = (DOT, "random", "dense", CONTROL, NONE)  # that answer the question soonest
MOST_SEEDS = 8  # of a small rung


@dataclass(frozen=True)
class Asked:
    """What a user asks of a comparison."""

    recipe: str = "python-docs"  # or data
    syntheses: tuple[str, ...] = ()
    seeds: int | None = None
    jobs: str | None = None  # workers here, or a Ray cluster: see parse_jobs
    track: str | None = None
    match: str = "none"
    tune: int | None = None  # trials per row; None: TRIALS, or none in a quick look
    opponent: str = AUTO
    until_decided: bool = False
    lists_commands: bool = False  # nothing runs, so nothing can be searched
    margin: float | None = None
    quick: bool = False
    baselines: bool = False
    controls: bool = False
    pretrain: str | None = None  # the recipe that makes what every run starts from
    vary: tuple[str, ...] = ()  # "key=value,value": rows are crossed with the values
    ladder: int | None = None  # rungs: rows are trained at so many sizes, the largest the recipe's
    against: tuple[str, ...] = ()  # rows that all others are compared with, beside dot
    primary: str | None = None  # the row whose verdict matters most; None: the search says
    overrides: tuple[str, ...] = ()  # --set: "key=value"
    imports: tuple[str, ...] = ()
    out: Path | None = None
    command: str = "synthesizer compare"

    @property
    def settings(self) -> dict[str, str]:
        """What --set changes of the recipe."""
        given = parse_settings(self.overrides).items()
        return {key: text for key, text in given if not key.startswith(PRETRAIN)}

    @property
    def pretrain_settings(self) -> dict[str, str]:
        """What --set changes of the recipe that pretrains."""
        given, begin = parse_settings(self.overrides).items(), len(PRETRAIN)
        return {key[begin:]: text for key, text in given if key.startswith(PRETRAIN)}

    @property
    def trials(self) -> int:
        """How many trials each row has."""
        if self.tune is not None:
            return self.tune
        without = self.quick or self.lists_commands or self.pretrain or self.ladder
        return 0 if without else TRIALS

    @property
    def has_controls(self) -> bool:
        """Whether dot is trained under other seeds and in a larger size too."""
        return self.controls or not (self.syntheses or self.quick)

    @property
    def finds_opponent(self) -> bool:
        """Whether dot's positions are to be chosen; these keep the recipe's."""
        keeps = self.vary or self.pretrain or self.ladder or (self.quick and not self.trials)
        return self.opponent == AUTO and not keeps

    @property
    def searches(self) -> bool:
        """Whether runs of validation choose the opponent's positions beforehand."""
        return not (self.quick or self.lists_commands) or self.trials > 0


@dataclass(frozen=True)
class Row:
    """One row of the table: a spec, and what its runs set in the recipe beside it."""

    label: str
    spec: str
    folder: str
    like: str | None = None  # the spec whose budget it must meet
    settings: Settings = field(default_factory=dict)
    note: str | None = None
    trials: tuple[dict[str, Any], ...] = ()
    varied: Settings = field(default_factory=dict)  # those of its settings that name its table
    rung: Settings = field(default_factory=dict)  # those that its rung of a ladder made
    offered: bool = False  # not asked for by name: where it cannot be built it is left out
    left_out: str | None = None  # because
    sized: bool = False  # its width is settled, and it can be built
    candidate: bool = False  # for the opponent: a dot product that sets DOTS_OWN at most
    follows_dot: bool = False  # a mixture that takes the opponent's positions and start
    kind_of: str | None = None  # label of the row whose positions these may become
    first_seed: int = 0  # added to the study's seeds
    num_seeds: int | None = None  # how many of the study's seeds it has; None: all

    @property
    def positions(self) -> str | None:
        """The positions that it sets for itself."""
        return self.settings.get(POSITIONS)

    @property
    def has_dot(self) -> bool:
        """Whether any layer or group of heads has a dot product."""
        layers = [layer for layer, _ in split_layers(self.spec)]
        return any(term.name == DOT for layer in layers for term in parse_spec(layer))

    @property
    def is_pure(self) -> bool:
        """Whether it has attention and no dot product; convolutions have neither."""
        return not self.has_dot and all(has_logits(layer) for layer, _ in split_layers(self.spec))

    def with_settings(self, settings: Settings, **changes: Any) -> "Row":  # noqa: ANN401  fields
        """The row with more settings."""
        return replace(self, settings={**self.settings, **settings}, **changes)

    def varied_by(self, named: Settings, **changes: Any) -> "Row":  # noqa: ANN401  fields
        """The row of another table, which is named by these settings."""
        names = [(key.rpartition(".")[2], value) for key, value in named.items()]
        folder = "-".join([self.folder, *(f"{key}-{value}" for key, value in names)])
        return self.with_settings(
            named,
            label=", ".join([self.label, *(f"{key} {value}" for key, value in names)]),
            folder=check_folder_name(folder, "the row's name"),
            varied=named,
            **changes,
        )


def slugs(settings: Settings) -> list[str]:
    """Settings as a folder is named by them: without their sections."""
    return [f"{key.partition('.')[2]}={value}" for key, value in settings.items()]


def named_folder(folder: str, settings: Settings) -> str:
    """A row's folder, named by its settings too."""
    named = "-".join([folder, *(slug.replace(":", "_") for slug in slugs(settings))])
    return check_folder_name(named, "the row's settings")


def parse_row(text: str) -> tuple[str, dict[str, str]]:
    """Split 'dot@model.positions=rotary' into its spec and its settings."""
    spec, *parts = (part.strip() for part in SETTING.split(text))
    settings = {}
    for part in parts:
        key, _, value = part.partition("=")
        if not (value and key.startswith(OWN)) or key in SHARED:
            raise UserError(
                f"row {text!r} sets {part!r}; a row may set keys of [model] and [train], as in "
                "dot@model.positions=rotary: all rows share the data"
            )
        settings[key] = value
    return normalize_spec(spec), settings


def make_row(spec: str, settings: Settings, recipe: Recipe, like: str | None = None) -> Row:
    """A row named by its spec and settings: 'dot, rotary'; what the recipe says is not repeated."""
    same = (POSITIONS, recipe.model.positions)
    own = dict(pair for pair in settings.items() if pair != same)
    words = [slug.removeprefix("positions=") for slug in slugs(own)]
    folder = spec_folder(recipe.model_copy(update={"synthesis": spec}))
    return Row(
        ", ".join([spec, *words]),
        spec,
        named_folder(folder, own),
        like if spec != DOT else None,
        own,
        candidate=spec == DOT
        and own.keys() <= DOTS_OWN
        and recipe.decoder_synthesis in (None, DOT),
    )


def rows_of(asked: Asked, recipe: Recipe, seeds: int) -> list[Row]:
    """Every row once, or once for each rung or choice of varied values."""
    rows = _variants(asked, recipe)
    if asked.ladder:
        positions = recipe.model.positions
        wanted = positions if asked.opponent in FOUND else asked.opponent
        dots = [row for row in rows if row.candidate]
        if not dots:
            raise UserError(
                "--ladder shows gaps to dot and none of its rows is; add --synthesis dot"
            )
        opponent = next((r for r in dots if (r.positions or positions) == wanted), dots[0])
        return climb(rows, make_rungs(recipe, asked.ladder, seeds), opponent)
    if not asked.vary:
        return rows
    if asked.has_controls and asked.match not in WIDTHS:
        rows.append(size_control(rows[0], recipe))
    chosen = list(itertools.product(*map(parse_vary, asked.vary)))
    return [row.varied_by(dict(values)) for row in rows for values in chosen]


def _variants(asked: Asked, recipe: Recipe) -> list[Row]:
    """The rows asked for, or the paper's table; dot's positions to choose from; other systems."""
    like = "dot" if asked.match in WIDTHS else None
    named = [parse_row(text) for text in asked.syntheses]
    named = named or [(spec, {}) for spec in (QUICK_ROWS if asked.quick else (*TABLE_2, NONE))]
    rows: dict[str, Row] = {}
    for spec, settings in named:
        row = make_row(spec, settings, recipe, like)
        rows.setdefault(row.folder, row)
    dots = [row for row in rows.values() if row.candidate]
    if dots and asked.opponent not in FOUND:
        row = make_row(DOT, {POSITIONS: asked.opponent}, recipe)
        rows.setdefault(row.folder, row)
    # who names positions, or a start, for a spec gets these and no others
    settled = {row.spec for row in rows.values() if row.settings.keys() & DOTS_OWN}
    apart = asked.vary or asked.ladder or asked.pretrain
    for folder, row in rows.items():
        if row.has_dot and row.spec not in (DOT, *settled) and not apart:
            rows[folder] = replace(row, follows_dot=True)
    found = list(rows.values())
    if len(dots) == 1 and dots[0].positions is None and asked.finds_opponent:
        # Searched rows leave the table but for the best; without a search the report chooses.
        offered = asked.searches
        found += [replace(row, offered=offered) for row in challengers(dots[0], recipe)]
        found += [
            replace(kind, offered=True, kind_of=row.label)
            for row in (rows.values() if offered else ())
            if row.is_pure and row.spec not in settled
            for kind in challengers(row, recipe)
        ]
    if asked.baselines:
        found += baselines(recipe, {row.spec for row in found}, like)
    return found


def challengers(row: Row, recipe: Recipe) -> Iterator[Row]:
    """A row that may be stronger: the recipe's positions with one kind added.

    Rotary positions turn queries and keys, so they are for dot products alone. Where pairs of texts
    are compared, a dot product may also start with equal queries and keys.
    """
    starts: list[Settings] = [{}]
    if row.has_dot and "text_pair" in recipe.data.columns and not recipe.model.equal_qk_init:
        starts.append({"model.equal_qk_init": "true"})
        yield make_row(row.spec, {**row.settings, **starts[1]}, recipe, row.like)
    for kind in ADDED if row.has_dot else ADDED[:1]:
        positions = with_positions(recipe, kind)
        for start in starts if positions and kind == ADDED[0] else starts[: bool(positions)]:
            settings = {**row.settings, POSITIONS: str(positions), **start}
            yield make_row(row.spec, settings, recipe, row.like)


def with_positions(recipe: Recipe, kind: str) -> str | None:
    """The recipe's positions and a kind; None where it is among them."""
    own = recipe.model.positions
    if getattr(parse_positions(own), kind):
        return None
    return kind if own == NONE else f"{own}+{kind}"


def again(opponent: Row, recipe: Recipe) -> Row:
    """The A/A row: the opponent under other seeds."""
    folder, note = f"{_dot_folder(recipe)}-other-seeds", f"{opponent.label} under other seeds"
    own = replace(opponent, label=AGAIN, folder=folder, note=note, first_seed=OTHER_SEEDS)
    return replace(own, candidate=False, trials=())


def size_control(opponent: Row, recipe: Recipe) -> Row:
    """The opponent as large as a mixture with a table."""
    folder = f"{_dot_folder(recipe)}-as-large-as-{CONTROL}"
    own = replace(opponent, label=f"{AS_LARGE} {CONTROL}", folder=folder, like=CONTROL)
    return replace(own, sized=False, candidate=False, trials=())


def _dot_folder(recipe: Recipe) -> str:
    return make_row(DOT, {}, recipe).folder


def baselines(recipe: Recipe, there: Iterable[str], like: str | None) -> Iterator[Row]:
    """The other systems that the paper measures itself against."""
    for name, variant in known_variants().items():
        if variant.baseline and not variant.module and name not in there:
            yield replace(make_row(name, {}, recipe, like), offered=True)
    # A ponder cost rewards a model for halting before its later steps have learned anything.
    universal = {"model.universal": "true", "model.ponder_cost": "0"}
    folder = f"{_dot_folder(recipe)}-universal"
    yield Row("universal", DOT, folder, like, universal, offered=True)


def parse_vary(text: str) -> list[tuple[str, str]]:
    """'model.num_heads=1,2' -> [('model.num_heads', '1'), ('model.num_heads', '2')]."""
    key, equals, values = text.partition("=")
    chosen = [value.strip() for value in values.split(",") if value.strip()]
    if not equals or len(chosen) < 2:
        raise UserError(f"--vary got '{text}'; expected KEY=V1,V2 as in model.num_heads=1,2,4")
    return [(key.strip(), value) for value in dict.fromkeys(chosen)]


Rung = tuple[dict[str, str], int]
"""A size and a budget: what it sets in the recipe, and how many seeds it gets."""


def make_rungs(recipe: Recipe, count: int, seeds: int) -> list[Rung]:
    """The recipe and smaller ones, the largest first; `seeds` are those of the largest."""
    if count < 2:
        raise UserError(f"--ladder is {count}; ask for 2 rungs or more ({FEWEST_RUNGS} for a law)")
    model, train, rungs = recipe.model, recipe.train, []
    assert model.d_ff is not None
    for down in range(count):
        heads = max(1, round(model.num_heads / 2 ** (down / 2)))
        width = heads * (model.d_model // model.num_heads)
        values = {
            "model.d_model": width,
            "model.num_heads": heads,
            "model.d_ff": max(1, round(model.d_ff * width / model.d_model)),
            "train.data_share": train.data_share / 2**down,
            "train.steps": max(1, train.steps >> down),
            "train.warmup": train.warmup >> down,
            "train.checkpoint_every": max(1, train.checkpoint_every >> down),
            "evaluate.every": max(1, recipe.evaluate.every >> down),
        }
        own = min(max(seeds, MOST_SEEDS), seeds * 2**down)
        rungs.append(({key: str(value) for key, value in values.items()}, own))
    if len({settings["model.d_model"] for settings, _ in rungs}) < count:
        raise UserError(
            f"--ladder {count} from {model.num_heads} heads gives two rungs the same width; "
            f"ask for fewer, or for more heads of the top rung (--set model.num_heads=8)"
        )
    return rungs


def climb(rows: Sequence[Row], rungs: Sequence[Rung], opponent: Row) -> list[Row]:
    """Every row at every rung, the largest first; the opponent alone is compared with."""
    for row in rows:
        if own := row.settings.keys() & rungs[0][0].keys():
            raise UserError(
                f"row {row.label!r} sets {', '.join(sorted(own))}, which --ladder scales; leave "
                "one of them out"
            )
    named = ("model.d_model", "train.steps")
    return [
        row.with_settings(settings).varied_by(
            {key: settings[key] for key in named},
            rung=settings,
            num_seeds=num_seeds,
            candidate=row is opponent,
        )
        for settings, num_seeds in rungs
        for row in rows
    ]
