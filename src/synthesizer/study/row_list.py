"""Which rows a study has: variants asked for, other systems, varied values, rungs (no torch)."""

import itertools
from collections.abc import Iterable
from dataclasses import replace

from synthesizer.errors import UserError
from synthesizer.experiment.recipe import Recipe
from synthesizer.study.asked import AUTO, CONFIGURED, FOUND, WIDTHS, Asked
from synthesizer.study.ladder import climb, make_rungs
from synthesizer.study.rows import (
    DOT,
    POSITIONS,
    Row,
    asked_rows,
    baselines,
    challengers,
    make_row,
    size_control,
)
from synthesizer.untrusted import check_folder_name


def rows_of(asked: Asked, recipe: Recipe, seeds: int) -> list[Row]:
    """Every row once, or once for each rung or choice of varied values."""
    rows = _variants(asked, recipe)
    if asked.ladder:
        rungs = make_rungs(recipe, asked.ladder, seeds)
        return climb(rows, rungs, _ladder_opponent(asked, recipe, rows))
    if not asked.vary:
        return rows
    if asked.has_controls and asked.match not in WIDTHS:
        rows.append(size_control(rows[0], recipe))
    crossed = []
    for row in rows:
        for varied in itertools.product(*map(parse_vary, asked.vary)):
            named = [change.rpartition(".")[2] for change in varied]
            tail = "".join(f"-{name.replace('=', '-')}" for name in named)
            crossed.append(
                replace(
                    row,
                    label=", ".join([row.label, *(name.replace("=", " ") for name in named)]),
                    folder=check_folder_name(row.folder + tail, "the row's name"),
                    changes=(*row.changes, *varied),
                    varied=varied,
                )
            )
    return crossed


def _variants(asked: Asked, recipe: Recipe) -> list[Row]:
    """The rows asked for, or the paper's table; dot's positions to choose from; other systems."""
    like = "dot" if asked.match in WIDTHS else None
    rows = asked_rows(asked.syntheses, recipe, like)
    dots = [row for row in rows if row.candidate]
    if dots and asked.opponent not in (AUTO, CONFIGURED):
        row = make_row(DOT, (f"{POSITIONS}={asked.opponent}",), recipe)
        rows += [row] if row.folder not in {row.folder for row in rows} else []
    kinds = tuple(challengers(recipe))
    if len(dots) == 1 and dots[0].positions is None and asked.finds_opponent and kinds:
        # Searched rows leave the table but for the best; without a search the report chooses.
        found = [make_row(DOT, (f"{POSITIONS}={kind}",), recipe) for kind in kinds]
        rows += [replace(row, offered=asked.searches) for row in found]
    if asked.baselines:
        rows += baselines(recipe, {row.spec for row in rows}, like)
    return rows


def parse_vary(text: str) -> list[str]:
    """'model.num_heads=1,2' -> ['model.num_heads=1', 'model.num_heads=2']."""
    key, equals, values = text.partition("=")
    chosen = [value.strip() for value in values.split(",") if value.strip()]
    if not equals or len(chosen) < 2:
        raise UserError(f"--vary got '{text}'; expected KEY=V1,V2 as in model.num_heads=1,2,4")
    return [f"{key.strip()}={value}" for value in dict.fromkeys(chosen)]


def _ladder_opponent(asked: Asked, recipe: Recipe, rows: Iterable[Row]) -> Row:
    """The dot product that gaps are measured to, the same at every rung."""
    wanted = recipe.model.positions if asked.opponent in FOUND else asked.opponent
    dots = [row for row in rows if row.candidate]
    mine = [row for row in dots if (row.positions or recipe.model.positions) == wanted]
    if not (mine or dots):
        raise UserError("--ladder shows gaps to dot and none of its rows is; add --synthesis dot")
    return (mine or dots)[0]
