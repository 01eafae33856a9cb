"""What an audit leaves in its folder."""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from synthesizer.audit.cost import Point
from synthesizer.audit.hook import Layer
from synthesizer.errors import UserError
from synthesizer.manifest import sha256
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
    readers: dict[str, str] = {}  # sha256 of each file beside the weights that is read
    tables_sha256: str = ""


def checksum(record: dict[str, Any]) -> str:
    """Of all that was measured; where the model is may be edited."""
    own = {key: value for key, value in record.items() if key not in ("model", "path", "checksum")}
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()


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
        if record.get("checksum", "") not in ("", checksum(record)):
            raise ValueError("it was damaged: its checksum is another")
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


def check_tables(path: Path, record: dict[str, Any]) -> None:
    """Refuse tables that are not as the audit wrote them; older versions knew no sha256."""
    tables, known = path / TABLES, record.get("tables_sha256")
    if known and tables.is_file() and sha256(tables) != known:
        raise UserError(
            f"{tables} is damaged (its sha256 is not the one in {RECORD}); restore it from a copy, "
            "or run synthesizer audit again"
        )


def model_path(record: dict[str, Any]) -> str:
    """What to load the audited model from: where it was or, once that is gone, as it was named."""
    path = record.get("path", "")
    return str(path if path and Path(path).exists() else record["model"])


def model_name(record: dict[str, Any]) -> str:
    """The audited model's name, as short as it says something: a folder may be called model."""
    return "/".join(Path(record["model"]).parts[-3 if record.get("run") else -2 :])
