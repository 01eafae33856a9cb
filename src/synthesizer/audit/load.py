"""Load a pretrained model, and what reads for it, from a folder, a run, a .gguf file or the hub.

A folder may be anybody's: no code of it is executed, no pickle is read, no file outside of it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoModel,
    AutoTokenizer,
    PreTrainedModel,
)

from synthesizer.audit.converted import Converted, converted_model, replaced_before
from synthesizer.audit.hook import dot_layers, is_own, require_interface
from synthesizer.audit.tables import ABSOLUTE
from synthesizer.audit.weights import check_folder, check_size, locate
from synthesizer.errors import UserError
from synthesizer.models import MODELS, SynthesizerModel
from synthesizer.models.config import CONVERTED
from synthesizer.untrusted import check_regular_file

SAFE: dict[str, Any] = {"trust_remote_code": False}
TEXTS, IMAGES, SOUNDS = "texts", "images", "sounds"
_READ = {  # by a model's main input
    "input_ids": TEXTS,
    "pixel_values": IMAGES,
    "input_features": SOUNDS,
    "input_values": SOUNDS,
}
_CLASSIFIERS = ("ForSequenceClassification", "ForImageClassification", "ForAudioClassification")
_LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")


def load_model(name: str, metric: str | None) -> PreTrainedModel:
    """The model, as the class that its folder names; its base alone where embeddings are asked."""
    where, options = locate(name)
    try:
        held = _held(Path(where), options)
        config = AutoConfig.from_pretrained(where, **SAFE, **options)
        chosen = _class_of(config, is_gguf=bool(options))
        if metric == "spearman" and not chosen.__name__.endswith("EncoderModel"):
            chosen = AutoModel  # embeddings need no head
        if held is not None:
            check_size(chosen, config, held, name)
        model, found = chosen.from_pretrained(
            where,
            output_loading_info=True,
            attn_implementation=None if config.model_type == CONVERTED else "eager",
            dtype=torch.float32,
            use_safetensors=None if options else True,
            **SAFE,
            **options,
        )
    except (UserError, PermissionError):
        raise
    except Exception as error:  # whatever an architecture's code says to an odd config.json
        raise _unreadable(name, error) from None
    missing = sorted(key for key in found["missing_keys"] if "pooler" not in key)  # it is not read
    if missing:
        raise UserError(
            f"{name} holds no weights for {len(missing)} parameters of a {type(model).__name__}, "
            f"such as {missing[0]}; give the folder of a whole model"
        )
    if is_own(model):
        dot_layers(model)  # refuses a model that has none
    else:
        require_interface(model)
    return model.eval()


def attend_fast(model: PreTrainedModel) -> None:
    """Let a model whose weights need not be seen attend by PyTorch's fused kernel; ours does."""
    if not is_own(model) and not isinstance(model, Converted):
        model.set_attn_implementation("sdpa")


@dataclass(frozen=True)
class Reader:
    """What makes a model's inputs of a user's rows."""

    kind: str  # of what it reads: texts, images or sounds
    tokenizer: Any = None  # of texts, and of what an encoder-decoder writes
    processor: Any = None  # of images or sounds

    def save(self, folder: Path) -> None:
        """Put it beside a model."""
        for part in (self.tokenizer, self.processor):
            if part is not None:
                part.save_pretrained(folder)


def load_reader(name: str, model: PreTrainedModel) -> Reader:
    """The tokenizer or the processor in the model's folder."""
    kind = what_is_read(model)
    if kind == TEXTS:
        tokenizer = load_tokenizer(name)
        settle_padding(model, tokenizer)
        return Reader(kind, tokenizer)
    auto: Any = AutoImageProcessor if kind == IMAGES else AutoFeatureExtractor
    try:
        processor = auto.from_pretrained(locate(name)[0], **SAFE)
    except Exception as error:
        raise UserError(
            f"cannot load a processor of {kind} from {name} ({_cause(error)}); put the model's "
            "preprocessor_config.json into its folder"
        ) from None
    return Reader(kind, load_tokenizer(name) if reads_targets(model) else None, processor)


def what_is_read(model: PreTrainedModel) -> str:
    """Texts, images or sounds."""
    kind = _READ.get(model.main_input_name)
    if kind is None:
        raise UserError(
            f"{type(model).__name__} reads {model.main_input_name}; audit reads texts, images or "
            "sounds: choose another architecture"
        )
    return kind


def load_tokenizer(name: str) -> Any:  # noqa: ANN401  one of many classes
    """The tokenizer in the model's folder."""
    where, options = locate(name)
    try:
        return AutoTokenizer.from_pretrained(where, **SAFE, **options)
    except Exception as error:
        raise UserError(
            f"cannot load a tokenizer from {name} ({_cause(error)}); put the model's "
            "tokenizer into its folder"
        ) from None


def settle_padding(model: PreTrainedModel, tokenizer: Any) -> None:  # noqa: ANN401
    """Tell a classifier whose config names no padding token which one its tokenizer has.

    A decoder reads the class at the last real token, and finds it by the padding.
    """
    if not type(model).__name__.endswith("ForSequenceClassification") or is_own(model):
        return
    config: Any = model.config
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id
    if config.pad_token_id is None:
        raise UserError(
            f"{type(model).__name__} needs a padding token to read several texts at once, and "
            "neither config.json nor the tokenizer has one; set pad_token_id in config.json"
        )
    if not 0 <= config.pad_token_id < config.get_text_config().vocab_size:
        raise UserError(
            f"pad_token_id in config.json is {config.pad_token_id}, and the model has "
            f"{config.get_text_config().vocab_size} tokens; set it to the tokenizer's"
        )


def guess_metric(model: PreTrainedModel) -> str:
    """What fits a model whose user named no metric."""
    name = type(model).__name__
    if name.endswith(_LANGUAGE_MODELS):
        return "loss"
    return "accuracy" if name.endswith(_CLASSIFIERS) else "agreement"


def is_causal(model: PreTrainedModel) -> bool:
    """Whether this is a decoder that predicts each next token."""
    return type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))


def reads_targets(model: PreTrainedModel) -> bool:
    """Whether a decoder reads a text of its own; that of a classifier reads the encoder's."""
    named = type(model).__name__.endswith(_CLASSIFIERS)
    return bool(model.config.is_encoder_decoder) and not named


def decoder_start(model: PreTrainedModel) -> int:
    """The token that an encoder-decoder's decoder begins with."""
    start = model.config.decoder_start_token_id
    if start is None:
        raise UserError(
            f"config.json of this {type(model).__name__} names no decoder_start_token_id, so that "
            "its decoder cannot begin; add it"
        )
    return int(start)


def check_metric(metric: str, model: PreTrainedModel) -> None:
    """Refuse a metric that the model has no outputs for."""
    fits = {"loss": _LANGUAGE_MODELS, "accuracy": _CLASSIFIERS}
    name = type(model).__name__
    if metric == "spearman" and what_is_read(model) != TEXTS:
        raise UserError(
            f"--metric spearman compares pairs of texts, and a {name} reads {what_is_read(model)}; "
            "choose --metric agreement"
        )
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
    facts = replaced_before(model).values()
    ends = [each["max_len"] for each in facts if each.get("kind") == ABSOLUTE]
    for key in ("max_position_embeddings", "n_positions"):
        found = getattr(config, key, None)
        if isinstance(found, int) and found > 0:
            ends.append(found - _positions_before_text(model))
            break
    return min(ends, default=None)


def _positions_before_text(model: PreTrainedModel) -> int:
    """RoBERTa counts a text's positions from behind that of padding."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0


def _class_of(config: Any, *, is_gguf: bool) -> Any:  # noqa: ANN401  a class of models
    """The class of models that a config names, if it is one; a .gguf names none."""
    unnamed = transformers.AutoModelForCausalLM if is_gguf else AutoModel
    own: tuple[type[PreTrainedModel], ...] = (SynthesizerModel, *MODELS.values())
    ours = {cls.__name__: cls for cls in own}
    name = str((config.architectures or [""])[0])
    is_converted = config.model_type == CONVERTED
    name = name.removeprefix("Converted") if is_converted else name
    named = ours.get(name) or getattr(transformers, name, unnamed)
    if not (isinstance(named, type) and issubclass(named, PreTrainedModel)):
        return unnamed
    return converted_model(named) if is_converted else named


def _held(where: Path, options: dict[str, str]) -> int | None:
    """How many numbers the weights of a folder or a .gguf hold at most; None of a hub name."""
    if not options:
        return check_folder(where) if where.is_dir() else None
    check_regular_file(where / options["gguf_file"])
    return 8 * (where / options["gguf_file"]).stat().st_size  # one bit each, at least


def _unreadable(name: str, error: Exception) -> UserError:
    missing = "" if Path(name).exists() else "no such path, and as a name of the hub: "
    return UserError(
        f"cannot load a model from {name} ({missing}{_cause(error)}); give a folder of a "
        "Hugging Face model, a run, a .gguf file, or a name of the hub"
    )


def _cause(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or repr(error)
