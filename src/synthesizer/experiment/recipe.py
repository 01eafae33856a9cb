"""A recipe: all that defines an experiment except the code, as frozen models read from TOML.

Defaults live here and nowhere else; a run directory keeps the resolved recipe, every key spelled.
"""

import difflib
import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from synthesizer import sizes
from synthesizer.errors import UserError
from synthesizer.untrusted import read_regular, who_else_may_write

Kind = Literal["encoder_decoder", "decoder", "encoder"]


class TaskInfo(NamedTuple):
    """What a recipe knows of a task; the task itself is tasks/<name>.py."""

    kind: Kind  # of the model it needs
    shape: Literal["pairs", "mixture", "stream", "probe", "labels"]  # of its examples
    from_file: bool = False  # whether it can be inferred from a user's file


TASKS = {
    "translation": TaskInfo("encoder_decoder", "pairs", from_file=True),
    "summarization": TaskInfo("encoder_decoder", "pairs", from_file=True),
    "dialogue": TaskInfo("encoder_decoder", "pairs", from_file=True),
    "span_corruption": TaskInfo("encoder_decoder", "stream"),
    "text_to_text": TaskInfo("encoder_decoder", "mixture"),
    "language_modeling": TaskInfo("decoder", "stream", from_file=True),
    "probe": TaskInfo("decoder", "probe"),
    "classification": TaskInfo("encoder", "labels", from_file=True),
}
_SIZE = sizes.RECIPE_DEFAULTS

Positive = Annotated[int, Field(gt=0)]
Layers = Annotated[int, Field(gt=0, le=1024)]
Width = Annotated[int, Field(gt=0, le=2**24)]  # beyond any machine, and products still count
Length = Annotated[int, Field(ge=2, le=2**24)]
Share = Annotated[float, Field(ge=0, lt=1)]
Files = str | tuple[str, ...]
Column = Annotated[str, BeforeValidator(lambda name: str(name) if type(name) is int else name)]


def _known_task(name: str) -> str:
    if name not in TASKS:
        *others, last = map(repr, TASKS)
        raise PydanticCustomError("task", f"{', '.join(others)} or {last}")
    return name


def _known_positions(text: str) -> str:
    try:
        sizes.parse_positions(text)
    except UserError as error:
        raise PydanticCustomError("positions", "{error}", {"error": str(error)}) from None
    return text


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Data(_Part):
    """Where examples come from: the first that is set of files, builtin, local and hub."""

    train: Files | None = (
        None  # a file, a directory of text, or parallel files (train.en, train.de)
    )
    validation: Files | None = None
    test: Files | None = None
    builtin: str | None = None  # a corpus of synthesizer.data.corpora
    difficulty: Positive | None = None  # of a graded probe among them; its own where absent
    local: Files | None = None  # directories under SYNTHESIZER_DATA; the first that exists is used
    hub: str | None = None  # a Hugging Face data set
    config: str | None = None  # which configuration of it
    revision: str | None = None  # which branch, tag or commit of it
    splits: dict[str, str] = {}  # our split -> the set's own name for it
    tasks: tuple[str, ...] = ()  # of a text_to_text mixture
    cap: Positive = 2**21  # a mixture task counts as at most this many examples
    wording: Literal["ours", "t5"] = "ours"  # of a mixture's prompts and answers
    columns: dict[str, Column] = {}  # role -> column; the missing ones are inferred and reported
    labels: tuple[str, ...] = ()  # names in order of their numbers; inferred when empty
    header: bool | None = None  # of csv and tsv; inferred when absent
    prefix: str = ""  # written before every source text
    keep_blank: bool = False  # an empty document is a document, as WikiText's blank lines
    streaming: bool = False  # read train block by block instead of at once
    sample: Positive = 4096  # with streaming: documents that the tokenizer and held-out splits get
    holdout: Share = 0.05  # share of train that each missing split is cut from it
    skip_bad: bool = False
    overlong: Literal["truncate", "drop", "error"] = "truncate"


class Text(_Part):
    """How text becomes token numbers."""

    kind: Literal["bpe", "word", "byte"] = "bpe"
    vocab_size: Width = 8000
    share: Literal["joint", "separate"] = "joint"  # learn on both sides, or half from each
    tokenizer: str | None = None  # an existing tokenizer directory instead


class Model(_Part):
    """The shape of the model, in the words of SynthesizerConfig."""

    kind: Kind | None = None  # follows from the task
    d_model: Width = _SIZE.d_model
    num_heads: Width = _SIZE.num_heads
    num_layers: Layers = _SIZE.num_layers
    num_decoder_layers: Layers | None = None  # as num_layers
    d_ff: Width | None = None  # 4 d_model
    max_len: Length = _SIZE.max_len
    decoder_max_len: Length | None = None  # as max_len
    norm: sizes.Norm = _SIZE.norm
    norm_position: sizes.NormPosition = _SIZE.norm_position
    activation: sizes.Activation = _SIZE.activation
    positions: Annotated[str, AfterValidator(_known_positions)] = _SIZE.positions
    tie_word_embeddings: bool = _SIZE.tie_word_embeddings
    dropout: Share = _SIZE.dropout
    attention_dropout: Share = _SIZE.attention_dropout
    pooling: sizes.Pooling = _SIZE.pooling
    window: Positive | None = _SIZE.window  # tokens that self-attention sees to either side
    universal: bool = _SIZE.universal  # one layer's weights at every depth
    fixed_depth: bool = _SIZE.fixed_depth  # of universal: every token takes all steps
    halting_epsilon: Annotated[float, Field(gt=0, lt=1)] = _SIZE.halting_epsilon
    ponder_cost: Annotated[float, Field(ge=0)] = _SIZE.ponder_cost


class Train(_Part):
    """How long and how the model is trained."""

    steps: Annotated[int, Field(gt=0, le=10**9)] = 1000
    batch_tokens: Positive = 4096  # padded tokens of one batch over all processes
    accumulate: Annotated[int, Field(gt=0, le=2**16)] = 1  # batches per step
    lr: Annotated[float, Field(gt=0)] = 1e-3  # the highest rate, reached at the end of warm-up
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] = "inverse_sqrt"
    warmup: Annotated[int, Field(ge=0)] = 100
    optimizer: Literal["adam", "adamw", "adafactor"] = "adamw"
    betas: tuple[Share, Share] = (0.9, 0.98)
    eps: Annotated[float, Field(gt=0)] = 1e-9
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip: Annotated[float, Field(ge=0)] = 1.0  # of the gradient norm; 0 is off
    label_smoothing: Share = 0.0
    table_rate: Annotated[float, Field(gt=0)] = 30.0  # the tables' rate is this times lr
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    data_share: Annotated[float, Field(gt=0, le=1)] = 1.0  # of train, always the same examples
    start_from: str | None = None  # a run to begin with; {synthesis} and {seed} are this run's own
    log_every: Positive = 50
    checkpoint_every: Positive = 500
    keep: Positive = 2  # checkpoints
    average: Annotated[int, Field(ge=0)] = 0  # the last so many checkpoints; 0 is off
    patience: Annotated[int, Field(ge=0)] = 0  # evaluations without improvement; 0 is off


class Evaluate(_Part):
    """How the model is measured."""

    every: Positive = 500
    limit: Positive | None = None  # of validation, or of each set of a mixture; test is whole
    batch_tokens: Positive = 8192
    beam: Annotated[int, Field(gt=0, le=1024)] = 4
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = 0.6  # the alpha of:
    length_penalty_form: Literal["power", "wu"] = "power"  # length^alpha, ((5 + length) / 6)^alpha
    max_new_tokens: Positive | None = None  # as decoder_max_len
    samples: Annotated[int, Field(ge=0)] = 5


class Recipe(_Part):
    """One experiment; the variant is its `synthesis`."""

    name: str
    task: Annotated[str, AfterValidator(_known_task)]
    seed: Annotated[int, Field(ge=0)] = 1
    synthesis: str = "random+dot"
    decoder_synthesis: str | None = None
    imports: tuple[str, ...] = ()  # modules or .py files that register functions of the user's own
    paper: str | None = None  # key into paper.toml
    chosen_for: str | None = None  # whose validation score chose lr and table_rate, in words
    data: Data = Data()
    text: Text = Text()
    model: Model = Model()
    train: Train = Train()
    evaluate: Evaluate = Evaluate()

    def hash(self) -> str:
        """Twelve letters that two recipes share only if every key agrees."""
        canonical = json.dumps(self.model_dump(), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def load_recipe(
    name_or_path: str | Path,
    *,
    synthesis: str | None = None,
    overrides: Iterable[str] = (),
    imports: Iterable[str] = (),
) -> Recipe:
    """Read a built-in recipe by name or a TOML file by path, then apply `key=value` overrides.

    `imports` are added to those of the recipe.
    """
    values, origin = _read(name_or_path)
    _refuse_foreign_imports(Path(name_or_path), values.get("imports"), imports := list(imports))
    if synthesis is not None:
        values["synthesis"] = synthesis
    if imports:
        values["imports"] = [*values.get("imports", []), *imports]
    for override in overrides:
        _apply(values, override)
    return _resolve(_validate(values, origin), origin)


def parse_recipe(text: str, origin: str = "recipe") -> Recipe:
    """Read the TOML text of a recipe; `origin` is what errors call it."""
    return _resolve(_validate(_parse(text, origin), origin), origin)


def dump(recipe: Recipe) -> str:
    """Write a recipe as TOML that reads back equal."""
    top, sections = [], []
    for key, value in recipe.model_dump(exclude_none=True).items():
        if isinstance(value, dict):
            lines = [f"{name} = {_toml(item)}" for name, item in value.items()]
            sections.append("\n".join([f"[{key}]", *lines]))
        else:
            top.append(f"{key} = {_toml(value)}")
    return "\n".join(top) + "\n\n" + "\n\n".join(sections) + "\n"


def differences(old: Recipe, new: Recipe) -> list[str]:
    """The keys on which two recipes differ, each as 'train.steps: 10 -> 20'."""
    before, after = dict(leaves(old.model_dump())), dict(leaves(new.model_dump()))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return [f"{key}: {_shown(before.get(key))} -> {_shown(after.get(key))}" for key in keys]


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is not a section, by its dotted key."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def recipe_names() -> list[str]:
    """The built-in recipes, sorted."""
    folder = resources.files("synthesizer") / "recipes"
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )


def _read(name_or_path: str | Path) -> tuple[dict[str, Any], str]:
    path = Path(name_or_path)
    if path.suffix == ".toml":
        try:
            text, origin = read_regular(path), str(path)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}; check the path") from None
        except UnicodeDecodeError:
            raise UserError(f"recipe {path} is not UTF-8; save it as UTF-8") from None
    else:
        name = str(name_or_path)
        if name not in recipe_names():
            if Path(name).is_file():
                raise UserError(
                    f"{name} is not a recipe, whose name ends in .toml; for a file of data: "
                    f"synthesizer compare {name}, or --set data.train={name} with a recipe"
                )
            raise UserError(
                f"no recipe '{name}' (`synthesizer recipes` lists all; a path ends in .toml)"
                f"{_nearest(name, recipe_names())}"
            )
        origin = f"{name}.toml"
        text = (resources.files("synthesizer") / "recipes" / origin).read_text(encoding="utf-8")
    return _parse(text, origin), origin


def _refuse_foreign_imports(recipe: Path, named: object, trusted: list[str]) -> None:
    """Importing executes: what a recipe names is imported unasked only where it is the user's own.

    A run's own recipe.toml comes with the run, from whomever; --import repeats what is trusted.
    """
    for name in named if isinstance(named, list) else []:
        if name in trusted or not isinstance(name, str):
            continue
        problem = f"{recipe} is the record of a run" if recipe.name == "recipe.toml" else None
        for path in (recipe, Path(name)):
            if problem is None and path.exists():
                problem = who_else_may_write(path)
        if problem is not None:
            raise UserError(
                f"{recipe} names {name!r} in imports, which would be executed, and {problem}; "
                f"read it, and pass --import {name} if you trust it"
            )


def _parse(text: str, origin: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"{origin} is not valid TOML: {error}; fix the file") from None


def _apply(values: dict[str, Any], override: str) -> None:
    """Put 'a.b=c' into values; c is TOML or a bare string, and nothing returns the default."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set got '{override}'; expected key=value, as in train.steps=100")
    *parents, last = key.strip().split(".")
    table = values
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise UserError(f"--set {key}: '{parent}' is a value, not a section; drop what follows")
    if text.strip():
        table[last] = _value(text.lstrip())
    else:
        table.pop(last, None)


def _value(text: str) -> Any:  # noqa: ANN401  whatever TOML holds
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _validate(values: dict[str, Any], origin: str) -> Recipe:
    try:
        return Recipe.model_validate(_tuples(values))
    except ValidationError as error:
        found = "; ".join(dict.fromkeys(_explain(item) for item in error.errors()))
        raise UserError(f"{origin} {found}") from None


def _tuples(value: Any) -> Any:  # noqa: ANN401
    """TOML arrays are tuples here, because a recipe is frozen."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _explain(error: Any) -> str:  # noqa: ANN401  pydantic's ErrorDetails
    keys = [str(key) for key in error["loc"] if not str(key).endswith("]")]
    section = keys[0] if keys and keys[0] in _SECTIONS else None
    where = f"[{section}]: " if section else "top level: "
    key = ".".join(keys[1:] if section else keys) or str(section)
    known = [*(_SECTIONS[section] if section else Recipe).model_fields]
    if error["type"] == "extra_forbidden":
        homes = [f"{name}.{key}" for name, part in _SECTIONS.items() if key in part.model_fields]
        if homes and section is None:
            return f"{where}unknown key '{key}'; did you mean '{homes[0]}'?"
        return f"{where}unknown key '{key}'{_nearest(key, known)}"
    if error["type"] == "missing":
        return f"{where}'{key}' is missing; give it a value"
    if error["type"] == "positions":
        return f"{where}{error['msg']}"
    expected = error["msg"].removeprefix("Input should be ")
    if error["type"] == "model_type" and section:
        expected = f"a section with keys of its own, such as {section}.{known[0]}"
    return f"{where}{key} is {error['input']!r}; expected {expected}"


_SECTIONS: dict[str, type[_Part]] = {
    "data": Data,
    "text": Text,
    "model": Model,
    "train": Train,
    "evaluate": Evaluate,
}


_ONLY_FOR = {
    ("data", "tasks"): ("mixture",),
    ("data", "cap"): ("mixture",),
    ("data", "wording"): ("mixture",),
    ("data", "labels"): ("labels",),
    ("data", "prefix"): ("pairs",),
    ("data", "difficulty"): ("probe",),
    ("data", "keep_blank"): ("stream",),
    ("data", "sample"): ("stream",),
    ("data", "streaming"): ("stream",),
    ("text", "share"): ("pairs", "mixture"),
    ("model", "pooling"): ("labels",),
}
"""Keys that only tasks of some shapes read: elsewhere they are refused rather than ignored."""


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else f"; choose from {', '.join(known)}"


def _resolve(recipe: Recipe, origin: str) -> Recipe:
    """Fill the sizes that follow from others, and refuse keys that contradict each other."""
    model, kind = recipe.model, TASKS[recipe.task].kind
    if model.kind not in (None, kind):
        raise UserError(
            f"{origin} [model]: kind is '{model.kind}'; task '{recipe.task}' needs '{kind}': "
            "drop the key"
        )
    if model.d_model % model.num_heads:
        raise UserError(
            f"{origin} [model]: d_model={model.d_model} is not divisible by "
            f"num_heads={model.num_heads}; change one of them"
        )
    _refuse_idle_keys(recipe, origin)
    if recipe.task == "text_to_text" and (recipe.data.train or not recipe.data.tasks):
        raise UserError(
            f"{origin} [data]: a text_to_text mixture is made of data.tasks, not of files; "
            "set data.tasks and drop data.train"
        )
    if recipe.data.holdout == 0 and recipe.data.train and not recipe.data.test:
        raise UserError(
            f"{origin} [data]: holdout is 0 and test is missing; "
            "give data.test or let holdout cut it from train"
        )
    if recipe.data.streaming and recipe.train.data_share < 1:
        raise UserError(
            f"{origin} [train]: data_share is {recipe.train.data_share:g} and data.streaming reads "
            "train without an end; drop one of them"
        )
    derived = {
        "kind": kind,
        "num_decoder_layers": model.num_decoder_layers or model.num_layers,
        "d_ff": model.d_ff or 4 * model.d_model,
        "decoder_max_len": model.decoder_max_len or model.max_len,
    }
    files = [str(Path(name).resolve()) if name.endswith(".py") else name for name in recipe.imports]
    model = model.model_copy(update=derived)
    if recipe.train.start_from:
        own = {"{synthesis}": recipe.synthesis.replace(":", "_"), "{seed}": str(recipe.seed)}
        start = recipe.train.start_from
        for name, value in own.items():
            start = start.replace(name, value)
        train = recipe.train.model_copy(update={"start_from": start})
        recipe = recipe.model_copy(update={"train": train})
    return recipe.model_copy(update={"model": model, "imports": tuple(dict.fromkeys(files))})


def _refuse_idle_keys(recipe: Recipe, origin: str) -> None:
    """Refuse keys that were set and that this task or this model never reads."""
    for (section, key), shapes in _ONLY_FOR.items():
        tasks = [name for name, info in TASKS.items() if info.shape in shapes]
        if recipe.task not in tasks and _is_set(getattr(recipe, section), key):
            raise UserError(
                f"{origin} [{section}]: {key} is not used by task '{recipe.task}'; drop it "
                f"(it is for {', '.join(tasks)})"
            )
    for key in ("halting_epsilon", "ponder_cost", "fixed_depth"):
        if not recipe.model.universal and _is_set(recipe.model, key):
            raise UserError(
                f"{origin} [model]: {key} is not used without universal = true; drop it"
            )
        if recipe.model.fixed_depth and key != "fixed_depth" and _is_set(recipe.model, key):
            raise UserError(
                f"{origin} [model]: {key} is not used with fixed_depth = true; drop one of them"
            )


def _is_set(part: _Part, key: str) -> bool:
    return bool(getattr(part, key) != type(part).model_fields[key].default)


def _toml(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, dict):
        inner = ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return repr(value)


def _shown(value: Any) -> str:  # noqa: ANN401
    return "nothing" if value is None else _toml(value)
