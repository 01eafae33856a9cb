"""What an audit leaves in its folder."""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from synthesizer.audit.cost import Point
from synthesizer.audit.hook import Layer
from synthesizer.errors import UserError
from synthesizer.untrusted import read_regular

RECORD, TABLES, PAGE = "audit.json", "tables.safetensors", "report.html"


class _Record(BaseModel):
    """The types of audit.json, as far as `convert` relies on them: it may be of any origin."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: str
    metric: Literal["loss", "accuracy", "spearman", "agreement"]
    table: Literal["relative", "random"]
    max_len: int
    layers: list[Layer]
    order: list[tuple[int, int]]
    curve: list[Point]
    value: float
    data: str
    num_judge: int
    reads: Literal["texts", "images", "sounds"] = "texts"
    path: str = ""  # absolute, where the model is on this disk
    weights: dict[str, str] = {}  # sha256 of each file; records of older versions have none
    tables_sha256: str = ""


def read_audit(path: Path) -> dict[str, Any]:
    """The record of a finished audit."""
    try:
        text = read_regular(path / RECORD)
        known = _Record.model_validate_json(text)
        if not all(
            0 <= layer < len(known.layers) and 0 <= head < known.layers[layer].num_heads
            for layer, head in known.order
        ):
            raise ValueError("order names a head that no layer has")
        record: dict[str, Any] = json.loads(text)
    except PermissionError:
        raise
    except OSError:
        raise UserError(
            f"{path} holds no {RECORD}, so it is not an audit; "
            f"run synthesizer audit --out {path} first"
        ) from None
    except UserError:
        raise
    except ValueError as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else str(error)
        raise UserError(
            f"{path / RECORD} is not the record of an audit ({why}); run synthesizer audit again"
        ) from None
    return record


def model_path(record: dict[str, Any]) -> str:
    """What to load the audited model from: where it was or, once that is gone, as it was named."""
    path = record.get("path", "")
    return str(path if path and Path(path).exists() else record["model"])


def model_name(record: dict[str, Any]) -> str:
    """The audited model's name, as short as it says something: a folder may be called model."""
    return "/".join(Path(record["model"]).parts[-3 if record.get("run") else -2 :])
