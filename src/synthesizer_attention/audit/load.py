"""Load a pretrained model, and what reads for it, from a folder, a run, a .gguf file or the hub.

A folder may be anybody's: no code of it is executed, no pickle is read, no file outside of it. An
audit knows the weights that it was made of by their sha256.
"""

import copy
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoImageProcessor,
    AutoModel,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.utils import cached_file

from synthesizer_attention.audit.converted import (
    Converted,
    converted_model,
    is_own,
    replaced_before,
)
from synthesizer_attention.audit.hook import cause, reachable
from synthesizer_attention.audit.tables import ABSOLUTE
from synthesizer_attention.errors import UserError
from synthesizer_attention.models import MODELS, SynthesizerModel
from synthesizer_attention.models.config import CONVERTED
from synthesizer_attention.run.files import check_regular_file, read_regular, sha256
from synthesizer_attention.run.run import Run

SAFE: dict[str, Any] = {"trust_remote_code": False}
TEXTS, IMAGES, SOUNDS = "texts", "images", "sounds"
_READ = {  # by a model's main input
    "input_ids": TEXTS,
    "pixel_values": IMAGES,
    "input_features": SOUNDS,
    "input_values": SOUNDS,
}
CLASSIFIERS = ("ForSequenceClassification", "ForImageClassification", "ForAudioClassification")
LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")
WEIGHTS = "model.safetensors"
_READERS = (
    "*config.json", "*token*.json", "vocab.*", "merges.txt", "*.model",
)  # fmt: skip
_SLACK = 2**26  # numbers that a model may have beside its weights: masks, tables of positions


def load_model(name: str, metric: str | None, *, audited: bool = True) -> PreTrainedModel:
    """The model, as the class that its folder names; its base alone where embeddings are asked.

    audited   refuse a model whose heads cannot be reached
    """
    where, options = locate(name)
    try:
        held = None  # numbers that the weights of a folder or a .gguf hold at most
        if options:
            check_regular_file(file := Path(where, options["gguf_file"]))
            held = 8 * file.stat().st_size  # one bit each, at least
        elif Path(where).is_dir():
            held = check_folder(Path(where))
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
        where = "" if Path(name).exists() else "no such path, and as a name of the hub: "
        raise UserError(
            f"cannot load a model from {name} ({where}{cause(error)}); give a folder of a "
            "Hugging Face model, a run, a .gguf file, or a name of the hub"
        ) from None
    missing = sorted(key for key in found["missing_keys"] if "pooler" not in key)  # it is not read
    if missing:
        raise UserError(
            f"{name} holds no weights for {len(missing)} parameters of a {type(model).__name__}, "
            f"such as {missing[0]}; give the folder of a whole model"
        )
    if audited:
        reachable(model)
    return model.eval()


def attend_fast(model: PreTrainedModel) -> None:
    """Let a model whose weights need not be seen attend by PyTorch's fused kernel; ours does."""
    if not is_own(model) and not isinstance(model, Converted):
        model.set_attn_implementation("sdpa")


@dataclass(frozen=True)
class Reader:
    """The tokenizer or processor that turns rows into a model's inputs."""

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
    auto = AutoImageProcessor if kind == IMAGES else AutoFeatureExtractor
    processor = _load(auto, name, f"processor of {kind}", "preprocessor_config.json")
    return Reader(kind, load_tokenizer(name) if reads_targets(model) else None, processor)


def load_tokenizer(name: str) -> Any:  # noqa: ANN401  one of many classes
    """The tokenizer in the model's folder."""
    return _load(AutoTokenizer, name, "tokenizer", "tokenizer")


def _load(auto: Any, name: str, what: str, file: str) -> Any:  # noqa: ANN401
    where, options = locate(name)
    try:
        return auto.from_pretrained(where, **SAFE, **options)
    except Exception as error:
        raise UserError(
            f"cannot load a {what} from {name} ({cause(error)}); put the model's {file} into its "
            "folder"
        ) from None


def what_is_read(model: PreTrainedModel) -> str:
    """Texts, images or sounds."""
    kind = _READ.get(model.main_input_name)
    if kind is None:
        raise UserError(
            f"{type(model).__name__} reads {model.main_input_name}; audit reads texts, images or "
            "sounds: choose another architecture"
        )
    return kind


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


def is_causal(model: PreTrainedModel) -> bool:
    """Whether this is a decoder that predicts each next token."""
    return type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))


def reads_targets(model: PreTrainedModel) -> bool:
    """Whether a decoder reads a text of its own; that of a classifier reads the encoder's."""
    named = type(model).__name__.endswith(CLASSIFIERS)
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
            modules = [m for n, m in model.named_modules() if n.endswith("position_embeddings")]
            padding = next((getattr(m, "padding_idx", None) for m in modules), None)
            # RoBERTa counts a text's positions from behind that of padding
            ends.append(found if padding is None else found - padding - 1)
            break
    return min(ends, default=None)


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


def run_of(name: str) -> Run | None:
    """The finished run of `synthesizer train` that a name is the directory of."""
    run = Run(name)
    if not (run.path / "recipe.toml").exists():
        return None
    if not run.is_finished:
        raise UserError(f"{name} is a run that is not finished; train it to its end first")
    return run


def locate(name: str) -> tuple[str, dict[str, str]]:
    """The folder or name that transformers loads a model from, and its options."""
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
    """Count the numbers that the weights of a folder hold.

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
        most = 10 * len(shapes) if "layer" in key else math.inf
        most = max(2, longest) if key == "num_labels" else most
        if value > most:
            raise UserError(
                f"{folder}: config.json has {key} {value} and the weights {len(shapes)} tensors of "
                f"at most {longest} rows; check where it comes from"
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
