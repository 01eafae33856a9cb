"""From a recipe to a model at its first step."""

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from synthesizer_attention.attention.synthesis import Synthesis
from synthesizer_attention.errors import UserError
from synthesizer_attention.models.backbone import SynthesizerPreTrainedModel
from synthesizer_attention.models.config import SynthesizerConfig
from synthesizer_attention.models.cost import sketch
from synthesizer_attention.models.heads import MODELS
from synthesizer_attention.run.files import check_regular_file, read_regular
from synthesizer_attention.run.recipe import Recipe
from synthesizer_attention.run.run import Run
from synthesizer_attention.spec import import_modules

FLOAT = 4  # bytes
SMALLER = " (factorized_random and relative need no table of all pairs)"


def build_config(
    recipe: Recipe, tokenizer: PreTrainedTokenizerFast, labels: list[str] | None
) -> SynthesizerConfig:
    """The settings of a recipe's model."""
    named: dict[str, Any] = {}
    if labels is not None:
        ids = {label: number for number, label in enumerate(labels)}
        named = {"num_labels": len(labels), "id2label": dict(enumerate(labels)), "label2id": ids}
    return SynthesizerConfig(
        **_chosen(recipe),
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.eos_token_id,
        **named,
    )


def rough_config(recipe: Recipe) -> SynthesizerConfig:
    """The settings as far as they are known without data."""
    return SynthesizerConfig(**_chosen(recipe), vocab_size=recipe.text.vocab_size)


def check_size(recipe: Recipe) -> None:
    """Refuse sizes that no vocabulary could make fit: before the data are read."""
    check_memory(SynthesizerConfig(**_chosen(recipe), vocab_size=8))


def build_model(
    recipe: Recipe, tokenizer: PreTrainedTokenizerFast, labels: list[str] | None
) -> SynthesizerPreTrainedModel:
    """The model of a recipe before its first step."""
    config = build_config(recipe, tokenizer, labels)
    check_memory(config)
    model = MODELS[str(config.kind)](config)
    initialize_by_name(model, recipe.seed)
    if recipe.train.start_from is not None:
        start_from(model, Path(recipe.train.start_from), recipe.seed)
    return model


def check_memory(config: SynthesizerConfig) -> None:
    """Refuse a model whose weights and gradients this machine cannot hold, before it is built."""
    try:
        sizes = {name: tuple(p.shape) for name, p in sketch(config).named_parameters()}
        needed = 2 * FLOAT * sum(math.prod(shape) for shape in sizes.values())
        name = max(sizes, key=lambda name: math.prod(sizes[name]), default="")
        cause = f"{needed / 1e9:,.1f} GB of weights and gradients, most in {name} {sizes[name]}"
    except UserError:
        raise
    except (RuntimeError, OverflowError, TypeError) as error:
        if "size" not in str(error) and "overflow" not in str(error).lower():
            raise
        needed, cause, name = math.inf, "more bytes than can be counted", ""
    there = machine_memory()
    if there is not None and needed > there:
        raise UserError(
            f"this model takes {cause}, and the machine has {there / 1e9:,.1f} GB; lower "
            "model.max_len, model.d_model, model.d_ff or model.num_layers, or choose another "
            f"synthesis{SMALLER if name.endswith('table') else ''}"
        )


def machine_memory() -> int | None:
    """The bytes of memory that this machine has or that its control group may use."""
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return None
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        there = min(there, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return there


def initialize_by_name(model: SynthesizerPreTrainedModel, seed: int) -> None:
    """Draw every module anew from the seed and its role: its name, or what it is in a mixture.

    So two variants of one recipe begin with equal values wherever they have the same parameters:
    the dot product of random+dot with the queries and keys of dot alone.
    """
    drawn: set[int] = set()
    roles = _roles(model)
    for name, module in model.named_modules():
        tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        own = {id(tensor) for tensor in tensors}
        if own and not own & drawn:  # a tied weight belongs to the module that comes first
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(stable_seed(seed, roles.get(name, name)))
                model._init_weights(module)
            drawn |= own


def _roles(model: nn.Module) -> dict[str, str]:
    """Synthesizing functions by their layer and kind, whether they stand alone or in a mixture."""
    roles: dict[str, str] = {}
    for name, module in model.named_modules():
        if not isinstance(module, Synthesis) or name in roles:
            continue
        seen: Counter[str] = Counter()
        for path, part in module.named_modules(prefix=name):
            inside = sum(isinstance(each, Synthesis) for each in part.modules())
            if isinstance(part, Synthesis) and inside == 1:  # no mixture
                kind = type(part).__name__
                roles[path] = f"{name} {kind} {seen[kind]}"
                seen[kind] += 1
    return roles


def stable_seed(*words: object) -> int:
    """A seed from any words, the same in every process and version of Python."""
    digest = hashlib.sha256("\0".join(str(word) for word in words).encode()).digest()
    return int.from_bytes(digest[:8]) >> 1


def start_from(model: SynthesizerPreTrainedModel, run: Path, seed: int) -> None:
    """Take over the weights of another run, its tables grown or cropped to this model's lengths."""
    home = run / "model"
    if not (home / "model.safetensors").exists():
        raise UserError(
            f"train.start_from={run} holds no model/; name the directory of a finished run"
        )
    Run(run).check("model/")
    old = load_pretrained(home)
    lengths = (model.config.max_len, model.config.decoder_max_len)
    if lengths != (old.config.max_len, old.config.decoder_max_len):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stable_seed(seed, "grown from", run.name))
            old.resize(*lengths)
    load_weights(model, unique_weights(old), str(run))


_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError)


def load_pretrained(folder: Path) -> SynthesizerPreTrainedModel:
    """The model of a Hugging Face folder: safetensors alone, no code of the folder, no network.

    Its config.json may ask for more than its weights hold, so shapes are compared before memory is.
    """
    safe = {"local_files_only": True, "trust_remote_code": False}
    weights = folder / "model.safetensors"
    try:
        values = json.loads(read_regular(folder / "config.json"))
        check_regular_file(weights)
        with safe_open(weights, "pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        layers = max(int(values.get(key) or 0) for key in ("num_layers", "num_decoder_layers"))
        if layers > len(shapes) and not values.get("universal"):
            raise UserError(
                f"{folder}: config.json has more layers than {weights.name} has tensors; "
                "check where it comes from"
            )
        config = SynthesizerConfig.from_pretrained(folder, **safe)
        with torch.device("meta"):
            _check_shapes(MODELS[str(config.kind)](config), shapes, str(folder))
        model: SynthesizerPreTrainedModel = MODELS[str(config.kind)].from_pretrained(
            folder, config=config, use_safetensors=True, **safe
        )
    except (UserError, PermissionError):
        raise
    except _DAMAGE as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{folder} is not a model folder ({cause}); expected config.json and model.safetensors"
        ) from None
    return model


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], origin: str) -> None:
    """Fill a model, tied weights once; every name and shape must agree."""
    _check_shapes(model, {name: tuple(t.shape) for name, t in weights.items()}, origin)
    model.load_state_dict(dict(weights), strict=False)


def _check_shapes(model: nn.Module, given: Mapping[str, tuple[int, ...]], origin: str) -> None:
    """Refuse weights of which a name or a shape does not fit a model; tied ones come once."""
    named = model.state_dict(keep_vars=True)
    shapes = {name: tuple(tensor.shape) for name, tensor in named.items()}
    held = {id(named[name]) for name in given if name in named}  # under one of its names
    wrong = [
        name
        for name, shape in shapes.items()
        if shape != given.get(name) and (name in given or id(named[name]) not in held)
    ]
    wrong += [name for name in given if name not in shapes]
    if wrong:
        name = wrong[0]
        raise UserError(
            f"the weights of {origin} do not fit this model: {name} is "
            f"{given.get(name, 'missing')} there and {shapes.get(name, 'missing')} here "
            f"({len(wrong)} differ); use the same model and synthesis"
        )


def unique_weights(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and saved buffer under its first name."""
    first: dict[int, str] = {}
    named = model.state_dict(keep_vars=True)
    for name, tensor in named.items():
        first.setdefault(id(tensor), name)
    return {name: named[name].detach() for name in first.values()}


def _chosen(recipe: Recipe) -> dict[str, Any]:
    """What the recipe says of the model; functions of the user's own are imported for it."""
    import_modules(recipe.imports)
    return {
        **recipe.model.model_dump(),
        "synthesis": recipe.synthesis,
        "decoder_synthesis": recipe.decoder_synthesis or "",
        "label_smoothing": recipe.train.label_smoothing,
    }
