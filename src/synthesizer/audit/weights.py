"""Where a model's weights are, what they hold, and whether they are those that were audited."""

import copy
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers.utils import cached_file

from synthesizer.errors import UserError
from synthesizer.experiment.run import Run
from synthesizer.manifest import sha256
from synthesizer.untrusted import check_regular_file, read_regular

WEIGHTS = "model.safetensors"
_READERS = (
    "*config.json", "*token*.json", "vocab.*", "merges.txt", "*.model",
)  # fmt: skip
_SLACK = 2**26  # numbers that a model may have beside its weights: masks, tables of positions


def run_of(name: str) -> Run | None:
    """The finished run of `synthesizer train` that a name is the directory of."""
    run = Run(name)
    if not (run.path / "recipe.toml").exists():
        return None
    if not run.is_finished:
        raise UserError(f"{name} is a run that is not finished; train it to its end first")
    return run


def locate(name: str) -> tuple[str, dict[str, str]]:
    """What transformers is to load a model from, and its options: of a run, its model/."""
    path = Path(name)
    if (run := run_of(name)) is not None:
        run.check("model/")
        return str(run.model), {}
    if path.suffix == ".gguf":
        return str(path.parent), {"gguf_file": path.name}
    return name, {}


def hash_weights(name: str) -> dict[str, str]:
    """The sha256 of each file of a loaded model's weights; of a hub name, in the cache.

    Nothing where the hub keeps them in another form than safetensors.
    """
    where, options = locate(name)
    if options:
        files = [Path(where) / options["gguf_file"]]
    else:
        config = cached_file(where, "config.json", local_files_only=True)
        files = [] if config is None else _files(Path(config).parent)
    return {path.name: sha256(path) for path in files if path.exists()}


def hash_readers(name: str) -> dict[str, str]:
    """The sha256 of each file beside a folder's weights that says how a model is built or reads."""
    where, options = locate(name)
    found = [path for pattern in _READERS for path in sorted(Path(where).glob(pattern))]
    return {} if options else {path.name: sha256(path) for path in found if path.is_file()}


def check_weights(name: str, known: Mapping[str, str], audit: Path) -> None:
    """Refuse a model whose weights are not those that an audit was made of."""
    found = hash_weights(name)
    other = sorted(file for file in {*known, *found} if known.get(file) != found.get(file))
    if other:
        file = other[0]
        is_now = f"is now {found[file][:12]}..." if file in found else "is gone"
        raise UserError(
            f"the weights of {name} are not those that {audit} was made of ({file} was "
            f"{known.get(file, 'not there')[:12]}... by its sha256 and {is_now}); put those back, "
            "or audit the model again"
        )


def check_folder(folder: Path) -> int:
    """How many numbers the weights of a folder hold.

    Weights that are no safetensors of the folder are refused, and so are as many layers or classes
    in config.json as they cannot hold: transformers would count them one by one.
    """
    config = json.loads(read_regular(folder / "config.json"))
    shapes: list[tuple[int, ...]] = []
    for path in _files(folder):
        if not path.exists():
            raise UserError(
                f"{folder} holds no {path.name}; weights in a pickle are not read: load them where "
                "you trust them and save them again with save_pretrained"
            )
        check_regular_file(path)
        with safe_open(path, "pt") as file:
            shapes += [tuple(file.get_slice(key).get_shape()) for key in file.keys()]  # noqa: SIM118
    longest = max((size for shape in shapes for size in shape), default=0)
    for key, value in _numbers(config):
        # some architectures share one layer's weights among all
        if "layer" in key and value > 10 * len(shapes):
            raise UserError(
                f"{folder}: config.json has {key} {value} and the weights {len(shapes)} tensors; "
                "check where it comes from"
            )
        if key == "num_labels" and value > max(2, longest):
            raise UserError(
                f"{folder}: config.json has {key} {value} and no tensor of the weights has as many "
                "rows; check where it comes from"
            )
    return sum(math.prod(shape) for shape in shapes)


def check_size(auto: Any, config: Any, held: int, name: str) -> None:  # noqa: ANN401  a class
    """Refuse a config that asks for far more numbers than weights hold, before memory is taken."""
    build = getattr(auto, "_from_config", None) or auto.from_config
    with torch.device("meta"):
        model = build(copy.deepcopy(config))
    tensors = {id(t): t.numel() for t in (*model.parameters(), *model.buffers())}
    asked = sum(tensors.values())
    if asked > 2 * held + _SLACK:
        raise UserError(
            f"{name}: config.json asks for {asked:,} numbers and the weights hold {held:,}; check "
            "where it comes from"
        )


def _files(folder: Path) -> list[Path]:
    """The files of weights in a folder: one, or those that an index names."""
    index = folder / f"{WEIGHTS}.index.json"
    if (folder / WEIGHTS).exists() or not index.exists():
        return [folder / WEIGHTS]
    names = sorted({str(name) for name in json.loads(read_regular(index))["weight_map"].values()})
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(
                f"{index} names {name!r}; expected .safetensors files of the same folder"
            )
    return [folder / name for name in names]


def _numbers(config: Any) -> list[tuple[str, int]]:  # noqa: ANN401  whatever JSON holds
    """The integers of a config and of those inside it, by their keys."""
    if not isinstance(config, dict):
        return []
    found = [(str(key), value) for key, value in config.items() if isinstance(value, int)]
    return found + [pair for inside in config.values() for pair in _numbers(inside)]
