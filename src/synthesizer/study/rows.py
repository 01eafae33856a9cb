"""The rows of a table: a spec with settings of its own, and the controls beside it (no torch).

dot                                  a spec
dot@model.positions=rotary           a spec with settings that other rows do not have
dot@model.d_ff=512@train.lr=0.002    several of them
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from synthesizer.errors import UserError
from synthesizer.experiment.recipe import Recipe
from synthesizer.experiment.run import spec_folder
from synthesizer.sizes import parse_positions
from synthesizer.spec import NONE, TABLE_2, normalize_spec
from synthesizer.spec import variants as known_variants
from synthesizer.untrusted import check_folder_name

DOT = "dot"
AS_LARGE = "dot, as large as"  # how the label of the size control begins
CONTROL = "random+dot"  # whose parameters the size control has
SETTING = re.compile("@(?=[a-z_])")  # behind @ and a digit is a number of heads
AGAIN = "dot, other seeds"  # the label of the A/A row
OTHER_SEEDS = 1000  # the A/A row's seeds are those of the study plus this
POSITIONS = "model.positions"
DOTS_OWN = (f"{POSITIONS}=", "model.equal_qk_init=")  # what one dot may have that another lacks
ADDED = ("relative", "rotary")  # what the opponent's positions are chosen from
OWN = ("model.", "train.")  # sections whose keys a row may set for itself
SHARED = ("model.kind", "train.start_from")


@dataclass(frozen=True)
class Row:
    """One row of the table: a spec, and what its runs change in the recipe beside it."""

    label: str
    spec: str
    folder: str
    like: str | None = None  # the spec whose budget it must meet
    changes: tuple[str, ...] = ()
    note: str | None = None
    trials: tuple[dict[str, Any], ...] = ()
    varied: tuple[str, ...] = ()  # those of its changes that --vary made
    offered: bool = False  # not asked for by name: where it cannot be built it is left out
    left_out: str | None = None  # because
    sized: bool = False  # its width is settled, and it can be built
    candidate: bool = False  # for the opponent: a dot product that sets DOTS_OWN at most
    first_seed: int = 0  # added to the study's seeds
    num_seeds: int | None = None  # how many of the study's seeds it has; None: all
    rung: tuple[str, ...] = ()  # those of its changes that its rung of a ladder made

    @property
    def positions(self) -> str | None:
        """The positions that it sets for itself."""
        own = [text for text in self.changes if text.startswith(f"{POSITIONS}=")]
        return own[-1].partition("=")[2] if own else None


def parse_row(text: str) -> tuple[str, tuple[str, ...]]:
    """Split 'dot@model.positions=rotary' into its spec and its settings."""
    spec, *settings = (part.strip() for part in SETTING.split(text))
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not (equals and value and key.startswith(OWN)) or key in SHARED:
            raise UserError(
                f"row {text!r} sets {setting!r}; a row may set keys of [model] and [train], as in "
                "dot@model.positions=rotary: all rows share the data"
            )
    return normalize_spec(spec), tuple(settings)


def make_row(spec: str, settings: Sequence[str], recipe: Recipe, like: str | None = None) -> Row:
    """A row named by its spec and settings: 'dot, rotary'; what the recipe says is not repeated."""
    own = [text for text in settings if text != f"{POSITIONS}={recipe.model.positions}"]
    mark = f"{POSITIONS}="
    words = [text.removeprefix(mark if text.startswith(mark) else _section(text)) for text in own]
    label = ", ".join([spec, *words])
    folder = spec_folder(recipe.model_copy(update={"synthesis": spec}))
    slugs = [text.removeprefix(_section(text)).replace(":", "_") for text in own]
    folder = check_folder_name("-".join([folder, *slugs]), "the row's settings")
    return Row(
        label,
        spec,
        folder,
        like if spec != DOT else None,
        tuple(own),
        candidate=spec == DOT
        and all(text.startswith(DOTS_OWN) for text in own)
        and recipe.decoder_synthesis in (None, DOT),
    )


def _section(setting: str) -> str:
    return setting[: setting.index(".") + 1]


def asked_rows(syntheses: Sequence[str], recipe: Recipe, like: str | None) -> list[Row]:
    """The rows asked for, or the paper's table."""
    named = [parse_row(text) for text in syntheses] or [(spec, ()) for spec in (*TABLE_2, NONE)]
    made = [make_row(spec, settings, recipe, like) for spec, settings in dict.fromkeys(named)]
    rows: dict[str, Row] = {}
    for row in made:
        rows.setdefault(row.folder, row)
    return list(rows.values())


def challengers(recipe: Recipe) -> list[str]:
    """The positions a stronger dot product may have: the recipe's with one kind added."""
    kinds = parse_positions(recipe.model.positions)
    missing = [kind for kind in ADDED if not getattr(kinds, kind)]
    own = "" if recipe.model.positions == NONE else f"{recipe.model.positions}+"
    return [f"{own}{kind}" for kind in missing]


def again(opponent: Row, recipe: Recipe) -> Row:
    """The A/A row: the opponent under other seeds."""
    return replace(
        opponent,
        label=AGAIN,
        folder=f"{make_row(DOT, (), recipe).folder}-other-seeds",
        first_seed=OTHER_SEEDS,
        note=f"{opponent.label} under other seeds",
        candidate=False,
        trials=(),
    )


def size_control(opponent: Row, recipe: Recipe) -> Row:
    """The opponent as large as a mixture with a table."""
    return replace(
        opponent,
        label=f"{AS_LARGE} {CONTROL}",
        folder=f"{make_row(DOT, (), recipe).folder}-as-large-as-{CONTROL}",
        like=CONTROL,
        candidate=False,
        sized=False,
        trials=(),
    )


def baselines(recipe: Recipe, there: Iterable[str], like: str | None) -> Iterator[Row]:
    """The other systems that the paper measures itself against."""
    for name, variant in known_variants().items():
        if variant.baseline and name not in there:
            yield replace(make_row(name, (), recipe, like), offered=True)
    # A ponder cost rewards a model for halting before its later steps have learned anything.
    universal = ("model.universal=true", "model.ponder_cost=0")
    row = make_row(DOT, (), recipe)
    yield Row("universal", DOT, f"{row.folder}-universal", like, universal, offered=True)
