"""What the paper reports, from paper.toml: shown beside our numbers, never among them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from synthesizer_attention.run.published import paper

BIBTEX = """@inproceedings{tay2021synthesizer,
  title     = {Synthesizer: Rethinking Self-Attention for Transformer Models},
  author    = {Tay and Bahri and Metzler and Juan and Zhao and Zheng},
  booktitle = {International Conference on Machine Learning},
  series    = {PMLR},
  volume    = {139},
  pages     = {10183--10192},
  year      = {2021},
}"""
UNKNOWN = "\N{EN DASH}"


@dataclass(frozen=True)
class PaperTable:
    """Some columns of one published table."""

    title: str
    source: str
    notes: tuple[str, ...]
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def paper_tables(key: str | None, here: Sequence[str]) -> list[PaperTable]:
    """The published tables that a recipe's `paper` names; `here` are our rows: specs and labels."""
    stored = paper()
    return [_table(stored, choice, here) for choice in stored["recipes"].get(key, [])]


def _table(known: dict[str, Any], choice: dict[str, Any], here: Sequence[str]) -> PaperTable:
    stored = known["tables"][choice["table"]]
    columns = choice.get("columns", list(stored["columns"]))
    rows = [
        (
            row["name"],
            next((row[key] for key in ("label", "synthesis") if row.get(key) in here), UNKNOWN),
            *(str(row.get(column, UNKNOWN)) for column in columns),
        )
        for row in stored["rows"]
        if any(column in row for column in columns)
    ]
    head = ("published row", "our row", *(stored["columns"][column] for column in columns))
    source = known["sources"][stored["source"]]
    return PaperTable(stored["title"], source, tuple(stored.get("notes", ())), head, tuple(rows))
