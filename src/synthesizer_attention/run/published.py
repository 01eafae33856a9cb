"""What the paper and its re-runs report, from paper.toml (no torch)."""

import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def paper() -> dict[str, Any]:
    """paper.toml, its numbers as they are printed."""
    text = (resources.files("synthesizer_attention") / "paper.toml").read_text(encoding="utf-8")
    return tomllib.loads(text, parse_float=str)


def published_parameters(key: str | None, synthesis: str) -> list[str]:
    """The printed parameter counts of a recipe's row, each with the table that prints it."""
    found = []
    for choice in paper()["recipes"].get(key, []):
        table = paper()["tables"][choice["table"]]
        columns = choice.get("columns", list(table["columns"]))
        for column in (name for name in columns if name.startswith("parameters")):
            rows = [row for row in table["rows"] if row.get("synthesis") == synthesis]
            found += [f"{row[column]} ({table['title']})" for row in rows if column in row]
    return found
