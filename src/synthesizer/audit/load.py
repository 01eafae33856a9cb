"""Load a pretrained model and its tokenizer from a folder, a run, a .gguf file or the hub.

A folder may be anybody's: no code of it is executed, no pickle is read, no file outside of it.
"""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel

from synthesizer.errors import UserError
from synthesizer.experiment.run import Run
from synthesizer.models import MODELS, SynthesizerModel
from synthesizer.models.interface import require_interface
from synthesizer.models.table_heads import dot_layers, is_own
from synthesizer.untrusted import check_regular_file, read_regular

WEIGHTS = "model.safetensors"
SAFE: dict[str, Any] = {"trust_remote_code": False}
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_decoder_layers")
_DAMAGE = (
    AttributeError, ImportError, KeyError, OSError, RuntimeError, SafetensorError, TypeError,
    ValueError,
)  # fmt: skip


def load_model(name: str, metric: str | None) -> PreTrainedModel:
    """The model, as the class that its folder names; its base alone where embeddings are asked."""
    where, options = _where(name)
    try:
        if Path(where).is_dir() and not options:
            _check_folder(Path(where))
        config = AutoConfig.from_pretrained(where, **SAFE, **options)
        chosen = AutoModel if metric == "spearman" else _class_of(config, is_gguf=bool(options))
        model = chosen.from_pretrained(
            where,
            attn_implementation="eager",
            dtype=torch.float32,
            use_safetensors=None if options else True,
            **SAFE,
            **options,
        )
    except UserError:
        raise
    except _DAMAGE as error:
        raise _unreadable(name, error) from None
    if is_own(model):
        dot_layers(model)  # refuses a model that has none
    else:
        require_interface(model)
    return model.eval()


def run_of(name: str) -> Run | None:
    """The finished run of `synthesizer train` that a name is the directory of."""
    run = Run(name)
    if not (run.path / "recipe.toml").exists():
        return None
    if not run.is_finished:
        raise UserError(f"{name} is a run that is not finished; train it to its end first")
    return run


def attend_fast(model: PreTrainedModel) -> None:
    """Let a model whose weights need not be seen attend by PyTorch's fused kernel; ours does."""
    if not is_own(model):
        model.set_attn_implementation("sdpa")


def load_tokenizer(name: str) -> Any:  # noqa: ANN401  one of many classes
    """The tokenizer in the model's folder."""
    where, options = _where(name)
    try:
        return AutoTokenizer.from_pretrained(where, **SAFE, **options)
    except _DAMAGE as error:
        raise _unreadable(name, error) from None


def guess_metric(model: PreTrainedModel) -> str:
    """What fits a model whose user named no metric."""
    name = type(model).__name__
    if name.endswith(("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")):
        return "loss"
    return "accuracy" if name.endswith("ForSequenceClassification") else "agreement"


def check_metric(metric: str, model: PreTrainedModel) -> None:
    """Refuse a metric that the model has no outputs for."""
    fits = {
        "loss": ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration"),
        "accuracy": ("ForSequenceClassification",),
    }
    name = type(model).__name__
    if metric in fits and not name.endswith(fits[metric]):
        kind = "a language model" if metric == "loss" else "a classifier"
        raise UserError(
            f"--metric {metric} needs {kind}, and the model is a {name}; "
            "choose --metric agreement, or spearman with pairs and a score"
        )


def num_positions(model: PreTrainedModel) -> int | None:
    """The longest text that the model has positions for; None where there is no such limit."""
    config = model.config.get_text_config()
    if is_own(model) and config.is_encoder_decoder:
        return min(config.max_len, config.decoder_max_len)
    for key in ("max_position_embeddings", "n_positions"):
        found = getattr(config, key, None)
        if isinstance(found, int) and found > 0:
            return found
    return None


def _class_of(config: Any, *, is_gguf: bool) -> Any:  # noqa: ANN401  a class of models
    """The class of models that a config names, if it is one; a .gguf names none."""
    unnamed = transformers.AutoModelForCausalLM if is_gguf else AutoModel
    own: tuple[type[PreTrainedModel], ...] = (SynthesizerModel, *MODELS.values())
    ours = {cls.__name__: cls for cls in own}
    name = str((config.architectures or [""])[0])
    named = ours.get(name) or getattr(transformers, name, unnamed)
    is_model = isinstance(named, type) and issubclass(named, PreTrainedModel)
    return named if is_model else unnamed


def _check_folder(folder: Path) -> None:
    """Refuse weights that are no safetensors of the folder, and layers that they do not hold."""
    config = json.loads(read_regular(folder / "config.json"))
    index = folder / f"{WEIGHTS}.index.json"
    if not (folder / WEIGHTS).exists() and index.exists():
        files = sorted(
            {str(name) for name in json.loads(read_regular(index))["weight_map"].values()}
        )
    else:
        files = [WEIGHTS]
    count = 0
    for name in files:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(
                f"{index} names {name!r}; expected .safetensors files of the same folder"
            )
        if not (folder / name).exists():
            raise UserError(
                f"{folder} holds no {name}; weights in a pickle are not read: load them where you "
                "trust them and save them again with save_pretrained"
            )
        check_regular_file(folder / name)
        with safe_open(folder / name, "pt") as file:
            count += len(list(file.keys()))
    layers = max(int(config.get(key) or 0) for key in _LAYERS)
    if layers > 10 * count:  # some architectures share one layer's weights among all
        raise UserError(
            f"{folder}: config.json has {layers} layers and the weights {count} tensors; "
            "check where it comes from"
        )


def _where(name: str) -> tuple[str, dict[str, str]]:
    path = Path(name)
    if (run := run_of(name)) is not None:
        run.check("model/")
        return str(run.model), {}
    if path.suffix == ".gguf":
        return str(path.parent), {"gguf_file": path.name}
    return name, {}


def _unreadable(name: str, error: Exception) -> UserError:
    cause = (str(error).strip() or repr(error)).splitlines()[0][:200]
    return UserError(
        f"cannot load a model from {name} ({cause}); give a folder of a Hugging Face model, a "
        "run, a .gguf file, or a name of the hub"
    )
