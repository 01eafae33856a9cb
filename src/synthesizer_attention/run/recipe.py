"""A recipe: all that defines an experiment except the code, as frozen models read from TOML.

Its sections and their defaults are in recipe_keys.py; a run directory keeps the resolved recipe,
every key spelled.
"""

import copy
import difflib
import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field, ValidationError

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.files import read_regular, who_else_may_write
from synthesizer_attention.run.recipe_keys import (
    TASKS,
    Data,
    Evaluate,
    Model,
    Part,
    Text,
    Train,
    known_task,
)

LONGEST_SHOWN = 200  # characters of a value in a message
CPU_THREAD = 4e10  # floating point operations per second of one CPU thread, roughly


class Recipe(Part):
    """One experiment; the variant is its `synthesis`."""

    name: str
    """Name of the recipe, and of its directory under runs/."""
    task: Annotated[str, AfterValidator(known_task)]
    """The task: one of those listed below."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Seed of weights, data order and dropout."""
    synthesis: str = "random+dot"
    """What makes attention logits, as listed by synthesizer list."""
    decoder_synthesis: str | None = None
    """The decoder's, if it differs."""
    imports: tuple[str, ...] = ()
    """Modules or .py files that register functions of your own."""
    paper: str | None = None
    """Key into paper.toml: the published numbers that a report shows beside ours."""
    chosen_for: str | None = None
    """Whose validation score chose lr and table_rate, in words."""
    data: Data = Data()
    text: Text = Text()
    model: Model = Model()
    train: Train = Train()
    evaluate: Evaluate = Evaluate()

    def hash(self) -> str:
        """Twelve letters that two recipes share only if every key agrees."""
        canonical = json.dumps(self.model_dump(), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


Settings = Mapping[str, str]
"""Values by dotted key, as a user types them: TOML or a bare string; empty is the default."""


def parse_settings(overrides: Iterable[str]) -> dict[str, str]:
    """Read `key=value` texts; the last of a key counts."""
    settings = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--set got '{override}'; expected key=value, as in train.steps=100")
        settings[key.strip()] = text.lstrip()
    return settings


def list_settings(settings: Settings) -> list[str]:
    """Write settings as `key=value` texts."""
    return [f"{key}={text}" for key, text in settings.items()]


class BaseRecipe:
    """A recipe file that is read once; every recipe made of it is validated once.

    `imports` are added to those of the file.
    """

    def __init__(self, name_or_path: str | Path, imports: Iterable[str] = ()) -> None:
        self.name = str(name_or_path)
        self._values, self._origin = _read(name_or_path)
        named, imports = self._values.get("imports", []), list(imports)
        _refuse_foreign_imports(Path(name_or_path), named, imports)
        if imports:
            self._values["imports"] = [*named, *imports]
        self._made: dict[Any, Recipe] = {}

    def make(self, settings: Settings, synthesis: str | None = None) -> Recipe:
        """The recipe with a synthesis and settings of its own."""
        key = (synthesis, *settings.items())
        if key not in self._made:
            values = copy.deepcopy(self._values)
            if synthesis is not None:
                values["synthesis"] = synthesis
            self._made[key] = _changed(values, settings, self._origin)
        return self._made[key]


def load_recipe(
    name_or_path: str | Path,
    *,
    synthesis: str | None = None,
    overrides: Iterable[str] = (),
    imports: Iterable[str] = (),
) -> Recipe:
    """Read a built-in recipe by name or a TOML file by path, then apply `key=value` overrides."""
    return BaseRecipe(name_or_path, imports).make(parse_settings(overrides), synthesis)


def parse_recipe(text: str, origin: str = "recipe") -> Recipe:
    """Read the TOML text of a recipe; `origin` is what errors call it."""
    return _changed(_parse(text, origin), {}, origin)


def change(recipe: Recipe, overrides: Iterable[str]) -> Recipe:
    """A recipe after `key=value` overrides."""
    return _changed(_parse(dump(recipe), "recipe"), parse_settings(overrides), "recipe")


def _changed(values: dict[str, Any], settings: Settings, origin: str) -> Recipe:
    """Put settings into values, validate them, and fill in what follows from others."""
    for key, text in settings.items():
        *parents, last = key.split(".")
        table = values
        for parent in parents:
            table = table.setdefault(parent, {})
            if not isinstance(table, dict):
                raise UserError(
                    f"--set {key}: '{parent}' is a value, not a section; drop what follows"
                )
        if text.strip():
            table[last] = _value(key, text)
        else:
            table.pop(last, None)
    try:
        recipe = Recipe.model_validate(_tuples(values))
    except ValidationError as error:
        found = list(dict.fromkeys(_explain(item) for item in error.errors()))
        more = [f"and {len(found) - 10:,} more"] if len(found) > 10 else []
        raise UserError(f"{origin} {'; '.join(found[:10] + more)}") from None
    except RecursionError:
        raise UserError(f"{origin} is nested too deeply; a recipe is sections of keys") from None
    for problem in _contradictions(recipe):
        raise UserError(f"{origin} {problem}")
    model = recipe.model
    derived = {
        "kind": TASKS[recipe.task].kind,
        "num_decoder_layers": model.num_decoder_layers or model.num_layers,
        "d_ff": model.d_ff or 4 * model.d_model,
        "decoder_max_len": model.decoder_max_len or model.max_len,
    }
    files = [str(Path(name).resolve()) if name.endswith(".py") else name for name in recipe.imports]
    update: dict[str, Any] = {"model": model.model_copy(update=derived)}
    update["imports"] = tuple(dict.fromkeys(files))
    if start := recipe.train.start_from:
        start = start.replace("{synthesis}", recipe.synthesis.replace(":", "_"))
        start = start.replace("{seed}", str(recipe.seed))
        update["train"] = recipe.train.model_copy(update={"start_from": start})
    return recipe.model_copy(update=update)


def dump(recipe: Recipe | dict[str, Any]) -> str:
    """Write a recipe, or what a run has instead, as TOML that reads back equal."""
    top, sections = [], []
    values = recipe if isinstance(recipe, dict) else recipe.model_dump(exclude_none=True)
    for key, value in values.items():
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
    shown = [
        ["nothing" if values.get(key) is None else _toml(values[key]) for values in (before, after)]
        for key in keys
    ]
    return [f"{key}: {' -> '.join(both)}" for key, both in zip(keys, shown, strict=True)]


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is not a section, by its dotted key."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def contradicted(values: dict[str, Any], overrides: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """The `key=value`, the last of a key, that a stored recipe has otherwise; and what it has."""
    stored = dict(leaves(values))
    wanted = {text.partition("=")[0].strip(): text for text in overrides}
    for key, text in wanted.items():
        if stored.get(key) != _value(key, text.partition("=")[2].lstrip()):
            yield text, stored.get(key)


def recipe_names() -> list[str]:
    """The built-in recipes, sorted."""
    folder = resources.files("synthesizer_attention") / "recipes"
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
        text = (resources.files("synthesizer_attention") / "recipes" / origin).read_text(
            encoding="utf-8"
        )
    return _parse(text, origin), origin


def _refuse_foreign_imports(recipe: Path, named: object, trusted: list[str]) -> None:
    """Importing executes: what a recipe names is imported unasked only where it is the user's own.

    A run's own recipe.toml comes with the run, from whomever; --import repeats what is trusted.
    """
    for name in named if isinstance(named, list) else []:
        if name in trusted or not isinstance(name, str):
            continue
        problem = f"{recipe} is the record of a run" if recipe.name == "recipe.toml" else None
        package = name.partition(".")[0]  # a module's name is also looked for where one is
        for path in (recipe, Path(name), Path(package), Path(f"{package}.py")):
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
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits among them
        raise UserError(f"{origin} is not valid TOML: {error}; fix the file") from None


def _value(key: str, text: str) -> Any:  # noqa: ANN401  whatever TOML holds
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    if len(found) > 1:
        raise UserError(f"--set {key} got {text!r}, several keys at once; give each its own --set")
    return found["value"]


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
    try:
        shown = repr(error["input"])
    except ValueError:  # an integer of thousands of digits
        shown = hex(error["input"])
    shown = shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}..."
    return f"{where}{key} is {shown}; expected {expected}"


_SECTIONS: dict[str, type[Part]] = {
    name: field.annotation
    for name, field in Recipe.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Part)
}


_ONLY_FOR = {
    ("data", "tasks"): ("mixture",),
    ("data", "cap"): ("mixture",),
    ("data", "wording"): ("mixture",),
    ("data", "labels"): ("labels",),
    ("data", "prefix"): ("pairs",),
    ("data", "difficulty"): ("probe",),
    ("data", "keep_blank"): ("stream",),
    ("data", "article_start"): ("stream",),
    ("data", "sample"): ("stream",),
    ("data", "streaming"): ("stream",),
    ("text", "share"): ("pairs", "mixture"),
    ("model", "pooling"): ("labels",),
}
"""Keys that only tasks of some shapes read: elsewhere they are refused rather than ignored."""


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else f"; choose from {', '.join(known)}"


def _contradictions(recipe: Recipe) -> Iterator[str]:
    """What is wrong between keys that are each right: the section, what was found, what to do."""
    model, data, kind = recipe.model, recipe.data, TASKS[recipe.task].kind
    if model.kind not in (None, kind):
        yield f"[model]: kind is '{model.kind}'; task '{recipe.task}' needs '{kind}': drop the key"
    if model.d_model % model.num_heads:
        yield (
            f"[model]: d_model={model.d_model} is not divisible by num_heads={model.num_heads}; "
            "change one of them"
        )

    def is_set(part: Part, key: str) -> bool:
        return bool(getattr(part, key) != type(part).model_fields[key].default)

    for (section, key), shapes in _ONLY_FOR.items():  # keys that this task never reads
        tasks = [name for name, info in TASKS.items() if info.shape in shapes]
        if recipe.task not in tasks and is_set(getattr(recipe, section), key):
            yield (
                f"[{section}]: {key} is not used by task '{recipe.task}'; drop it "
                f"(it is for {', '.join(tasks)})"
            )
    for key in ("halting_epsilon", "ponder_cost", "fixed_depth"):
        if not model.universal and is_set(model, key):
            yield f"[model]: {key} is not used without universal = true; drop it"
        if model.fixed_depth and key != "fixed_depth" and is_set(model, key):
            yield f"[model]: {key} is not used with fixed_depth = true; drop one of them"
    if recipe.task == "text_to_text" and (data.train or not data.tasks):
        yield (
            "[data]: a text_to_text mixture is made of data.tasks, not of files; "
            "set data.tasks and drop data.train"
        )
    shares = data.holdout if isinstance(data.holdout, dict) else {}
    if shares and shares.keys() != {"validation", "test"}:
        yield f"[data]: holdout has a share of {', '.join(shares)} alone; give validation and test"
    if shares.get("test", data.holdout) == 0 and data.train and not data.test:
        yield (
            "[data]: holdout is 0 and test is missing; "
            "give data.test or let holdout cut it from train"
        )
    if data.streaming and any(not isinstance(names, str) for names in data.splits.values()):
        yield "[data]: splits joins several of the set's own, which streaming cannot; name one each"
    if data.streaming and recipe.train.data_share < 1:
        yield (
            f"[train]: data_share is {recipe.train.data_share:g} and data.streaming reads train "
            "without an end; drop one of them"
        )


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


@cache
def paper() -> dict[str, Any]:
    """paper.toml, its numbers as they are printed."""
    text = (resources.files("synthesizer_attention") / "paper.toml").read_text(encoding="utf-8")
    return tomllib.loads(text, parse_float=str)


def published_parameters(key: str | None, synthesis: str) -> list[str]:
    """The printed parameter counts of a recipe's row, with the table that prints them.

    The first table with counts is that of the recipe's own model; others have models of their own.
    """
    for choice in paper()["recipes"].get(key, []):
        table = paper()["tables"][choice["table"]]
        columns = choice.get("columns", list(table["columns"]))
        if counts := [name for name in columns if name.startswith("parameters")]:
            rows = [row for row in table["rows"] if row.get("synthesis") == synthesis]
            found = [(row[name], table["title"]) for row in rows for name in counts if name in row]
            return [f"{count} ({title})" for count, title in found]
    return []


class Summary(NamedTuple):
    """One line of `synthesizer recipes`."""

    name: str
    task: str
    data: str
    size: str
    cost: str


def summarize(recipe: Recipe) -> Summary:
    """Task, data, size and rough cost of a recipe, without building or reading anything."""
    model, data, train = recipe.model, recipe.data, recipe.train
    decoder = f"+{model.num_decoder_layers}" if model.kind == "encoder_decoder" else ""
    depth = f"{model.num_layers}{decoder} layer{'' if model.num_layers == 1 else 's'}"
    million = estimate_parameters(recipe) / 1e6
    weights = f"{million:.0f}" if million >= 10 else f"{million:.2g}"
    local = data.local if isinstance(data.local, str) else " or ".join(data.local or ())
    source = data.train or " ".join(filter(None, [data.hub, data.config])) or local
    if data.tasks:
        source = f"{len(data.tasks)} tasks of GLUE and SuperGLUE"
    elif data.builtin:
        source = "built in"
    return Summary(
        name=recipe.name,
        task=recipe.task,
        data=str(source) if source else "yours: data.train",
        size=f"{depth}, d {model.d_model}, length {model.max_len}, {weights}M",
        cost=f"{train.steps:,} steps, {describe_seconds(estimate_flops(recipe) / CPU_THREAD)} of "
        "one CPU thread",
    )


def estimate_parameters(recipe: Recipe) -> float:
    """Weights of the dot-product model, from the sizes alone."""
    return sum(_stacks(recipe)) + _embeddings(recipe)


def estimate_flops(recipe: Recipe) -> float:
    """Six operations per weight that a token meets, over all steps; attention's own left out.

    Half the tokens of an encoder-decoder are taken for sources, the others for targets.
    """
    train, stacks = recipe.train, _stacks(recipe)
    tokens = train.steps * train.accumulate * train.batch_tokens
    output = 0 if recipe.model.kind == "encoder" else _embeddings(recipe)
    return 6 * tokens / len(stacks) * (sum(stacks) + output)


def _stacks(recipe: Recipe) -> list[float]:
    """The weights of an encoder and a decoder, or of the one there is."""
    model = recipe.model
    assert model.d_ff is not None
    assert model.num_decoder_layers is not None
    attention, feed_forward = 4 * model.d_model**2, 2 * model.d_model * model.d_ff
    first = model.num_layers * (attention + feed_forward)
    if model.kind != "encoder_decoder":
        return [first]
    return [first, model.num_decoder_layers * (2 * attention + feed_forward)]


def _embeddings(recipe: Recipe) -> int:
    size = 256 if recipe.text.kind == "byte" else recipe.text.vocab_size
    return size * recipe.model.d_model


def describe_seconds(seconds: float) -> str:
    """A duration in the largest unit that leaves at least one of it."""
    units = {"years": 31_536_000, "days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
    unit = next((unit for unit, size in units.items() if seconds >= size), "seconds")
    number = max(1, round(seconds / units[unit]))
    return f"about {number:,} {unit if number > 1 else unit[:-1]}"
