"""Write docs/recipes.md, every key of a recipe: python tools/recipes.py."""

from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from synthesizer_attention.report.page import Table
from synthesizer_attention.run.recipe import Recipe, Summary, load_recipe, recipe_names, summarize
from synthesizer_attention.run.recipe_keys import TASKS

PAGE = Path(__file__).parents[1] / "docs" / "recipes.md"
FIRST = """# Recipes

Made by `python tools/recipes.py`. A recipe is a TOML file that says what to train: the task, the
data, the model and the budget. `synthesizer recipes` lists the built-in ones,
`synthesizer train RECIPE --set train.steps=100` changes a key, and `--check` prints the whole
recipe and what it costs."""


def default_of(field: FieldInfo) -> str:
    """A default as TOML writes it."""
    value: Any = field.default
    if value is PydanticUndefined:
        return "required"
    if value is None or value in ({}, (), ""):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def choices_of(field: FieldInfo) -> str:
    """The values that a key may have, where there are few."""
    found = [choice for choice in get_args(field.annotation) if isinstance(choice, str)]
    return f" One of {', '.join(found)}." if found else ""


def page() -> str:
    """docs/recipes.md."""
    parts = [FIRST]
    sections = {"": Recipe.model_fields}
    for name, field in Recipe.model_fields.items():
        if hasattr(field.annotation, "model_fields"):
            sections[name] = field.annotation.model_fields
    for section, fields in sections.items():
        parts += [f"## [{section}]" if section else "## At the top"]
        rows = [
            [key, default_of(field), f"{field.description}{choices_of(field)}"]
            for key, field in fields.items()
            if section or key not in sections
        ]
        parts += [Table(["key", "default", "meaning"], rows).markdown()]
    parts += ["## Tasks", ", ".join(f"`{name}` ({info.kind})" for name, info in TASKS.items())]
    parts += ["## Built-in recipes"]
    parts += [
        Table(Summary._fields, [summarize(load_recipe(name)) for name in recipe_names()]).markdown()
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
