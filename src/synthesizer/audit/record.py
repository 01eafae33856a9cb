"""What an audit leaves in its folder."""

import json
from pathlib import Path
from typing import Any

from synthesizer.errors import UserError

RECORD, TABLES, PAGE = "audit.json", "tables.safetensors", "report.html"


def read_audit(path: Path) -> dict[str, Any]:
    """The record of a finished audit."""
    try:
        record: dict[str, Any] = json.loads((path / RECORD).read_text(encoding="utf-8"))
    except OSError:
        raise UserError(
            f"{path} holds no {RECORD}, so it is not an audit; "
            f"run synthesizer audit --out {path} first"
        ) from None
    return record


def model_name(record: dict[str, Any]) -> str:
    """The audited model's name, as short as it says something: a folder may be called model."""
    return "/".join(Path(record["model"]).parts[-2:])
