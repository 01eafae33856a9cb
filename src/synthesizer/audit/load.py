"""Load a pretrained model and its tokenizer from a folder, a .gguf file or the hub."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel

from synthesizer.errors import UserError
from synthesizer.models.interface import require_interface


def load_model(name: str, metric: str | None) -> PreTrainedModel:
    """The model, as the class that its folder names; its base alone where embeddings are asked."""
    where, options = _where(name)
    try:
        config = AutoConfig.from_pretrained(where, **options)
        unnamed = "AutoModelForCausalLM" if options else "AutoModel"  # .gguf names no class
        named = getattr(transformers, (config.architectures or [unnamed])[0], AutoModel)
        chosen = AutoModel if metric == "spearman" else named
        model = chosen.from_pretrained(
            where, attn_implementation="eager", dtype=torch.float32, **options
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise _unreadable(name, error) from None
    require_interface(model)
    return model.eval()


def load_tokenizer(name: str) -> Any:  # noqa: ANN401  one of many classes
    """The tokenizer in the model's folder."""
    where, options = _where(name)
    try:
        return AutoTokenizer.from_pretrained(where, **options)
    except (OSError, ValueError, ImportError, KeyError) as error:
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
    for key in ("max_position_embeddings", "n_positions"):
        found = getattr(config, key, None)
        if isinstance(found, int) and found > 0:
            return found
    return None


def _where(name: str) -> tuple[str, dict[str, str]]:
    path = Path(name)
    if path.suffix == ".gguf":
        return str(path.parent), {"gguf_file": path.name}
    return name, {}


def _unreadable(name: str, error: Exception) -> UserError:
    cause = (str(error).strip() or repr(error)).splitlines()[0][:200]
    return UserError(
        f"cannot load a model from {name} ({cause}); give a folder of a Hugging Face model, a "
        ".gguf file, or a name of the hub"
    )
