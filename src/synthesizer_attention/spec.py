"""Spec strings: how a user names what makes the attention, the same in Python, CLI and recipes.

    dense                            one synthesizing function
    factorized_random:k=16           with its own options
    dynamicconv:kernel=7             another token mixer in the place of attention
    random+dot                       a mixture, weighted by learned alphas
    random@8|dot@4                   groups of heads in one layer, first heads first
    random*3,dot*3                   per layer, first layer first
    R+V, FR, D+V                     the paper's short names

Nothing here imports torch. The facts of each name are in one table, to which a user adds by
synthesizer_attention.register_synthesis and register_mixer; `import_modules` runs the file that
does so, and an installed package names its own as entry points of the group MIXERS.
"""

import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from importlib import util
from math import inf
from pathlib import Path
from traceback import extract_tb
from typing import Any, Literal

from synthesizer_attention.errors import UserError

NONE = "none"
MIXERS = "synthesizer_attention.mixers"  # the group of entry points
TABLE_2 = (  # the rows of the paper's Table 2, in its order
    "dot",
    "fixed_random",
    "random",
    "factorized_random",
    "dense",
    "factorized_dense",
    "random+dense",
    "dense+dot",
    "random+dot",
)
ALIASES = {
    "vanilla": "dot",
    "V": "dot",
    "R": "random",
    "Fix": "fixed_random",
    "FR": "factorized_random",
    "D": "dense",
    "FD": "factorized_dense",
}


@dataclass(frozen=True)
class Term:
    """One part of a spec: a name of the table, and the options written behind it."""

    name: str
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return ":".join([self.name, *(f"{key}={value}" for key, value in self.options)])


@dataclass(frozen=True)
class Variant:
    """What is known of one name; parameters are those beside values and output, biases aside."""

    name: str
    paper: str  # its name in the paper, or the paper it is from
    equation: str
    parameters: str
    depends_on_input: bool  # False: the logits are the same for every input
    depends_on_pairs: bool  # True: the logit of a query and a key reads both tokens
    baseline: bool = False  # another token mixer, which makes no logits that could be mixed
    module: str = ""  # the user's module or file that registered it; "" for ours

    @property
    def depends_on(self) -> str:
        """What the logits depend on, in words for tables."""
        if self.name == NONE:
            return ""
        if not self.depends_on_input:
            return "position only"
        return "every pair of tokens" if self.depends_on_pairs else "the query token"


# fmt: off
_VARIANTS = {variant.name: variant for variant in (
    Variant("dot", "V", "B[i,j] = (x[i] Wq)·(x[j] Wk) / sqrt(K): dot-product attention.",
            "2 D^2", depends_on_input=True, depends_on_pairs=True),
    Variant("random", "R", "B = R, a learned (N, N) table per head.",
            "H N^2", depends_on_input=False, depends_on_pairs=False),
    Variant("fixed_random", "Fix",
            "B = R, an (N, N) table per head, drawn once, saved and never trained.",
            "0", depends_on_input=False, depends_on_pairs=False),
    Variant("factorized_random", "FR", "B = R1 R2^T, both (N, k) and learned, k << N.",
            "2 H N k", depends_on_input=False, depends_on_pairs=False),
    Variant("dense", "D",
            "B[i] = relu(x[i] W1 + b1) W2 + b2: each token predicts its own row of logits.",
            "D^2 + D N", depends_on_input=True, depends_on_pairs=False),
    Variant("factorized_dense", "FD",
            "B[i,j] = F[i, j mod a] G[i, j div a], F, G = linear(relu(x[i] W1 + b1)).",
            "D^2 + D (a + b)", depends_on_input=True, depends_on_pairs=False),
    Variant("relative", "",
            "B[i,j] = r[j - i], clipped at N - 1, and one logit for the first token: a sink.",
            "2 H N", depends_on_input=False, depends_on_pairs=False),
    Variant(NONE, "",
            "No self-attention sublayer: the control that shows whether a task needs one.",
            "0", depends_on_input=False, depends_on_pairs=False),
    Variant("lightconv", "Wu et al. 2019",
            "Y[i] = sum_j softmax(w)[j] X[i+j], X gated, w learned per head.",
            "D^2 + H kernel", depends_on_input=False, depends_on_pairs=False, baseline=True),
    Variant("dynamicconv", "Wu et al. 2019", "Y[i] = sum_j softmax(W X[i])[j] X[i+j], X gated.",
            "D^2 + D H kernel", depends_on_input=True, depends_on_pairs=False, baseline=True),
    Variant("linformer", "Wang et al. 2020",
            "Y = softmax(Q (E^T K)^T / sqrt(d)) F^T V, E and F learned (N, k).",
            "2 D^2 + 2 N k", depends_on_input=True, depends_on_pairs=True, baseline=True),
)}
# fmt: on


def variants() -> dict[str, Variant]:
    """Every synthesizing function, 'none' and the baselines by name; the user's own come last."""
    return dict(_VARIANTS)


def load_packaged(name: str | None = None) -> list[str]:
    """Import what installed packages bring by this name, so that it is registered; None: all.

    One that fails is refused where it is named; of all, a line for each that fails is returned.
    """
    from importlib.metadata import entry_points  # which takes as long as all else here

    broken = []
    for point in entry_points(group=MIXERS):
        if point.name not in _VARIANTS and name in (None, point.name):
            try:
                point.load()
            except (Exception, SystemExit) as error:
                package = point.dist.name if point.dist is not None else "a package"
                said = (
                    f"{package} brings {point.name!r} ({MIXERS}), and importing it failed with "
                    f"{type(error).__name__}: {error}; mend or remove {package}"
                )
                if name is not None:
                    raise UserError(said) from error
                broken.append(said)
    return broken


def register_variant(variant: Variant) -> None:
    """Add a name of the user's own; registering the same one again replaces it."""
    name = variant.name
    old = _VARIANTS.get(name)
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise UserError(f"synthesis name {name!r}; use lower case letters, digits and _")
    if name in ALIASES or (old is not None and (not old.module or old.module != variant.module)):
        where = f" by {old.module}" if old is not None and old.module else ""
        raise UserError(f"synthesis {name!r} is already registered{where}; choose another name")
    _VARIANTS[name] = variant


_FILES: dict[str, str] = {}
"""The path of each file that import_modules has run, by the name of its module."""


def import_modules(names: Iterable[str]) -> None:
    """Import modules by name, or .py files by path, so that they register their functions.

    Args:
        names: Names of modules, or paths that end in .py.
    """
    for name in names:
        try:
            if not name.endswith(".py"):
                if (here := str(Path.cwd())) not in sys.path:
                    sys.path.append(here)  # a console script does not look where it is run
                importlib.import_module(name)
            elif (path := str(Path(name).resolve())) not in _FILES.values():
                _run_file(Path(path))
        except (Exception, SystemExit) as error:
            raise UserError(f"importing {name!r} failed{_cause(error)}") from error


def _cause(error: BaseException) -> str:
    """Where and why an import failed, and what to do."""
    frames = [(frame.filename, frame.lineno) for frame in extract_tb(error.__traceback__)]
    ours = (__file__, importlib.__file__)
    theirs = [at for at in frames if at[0] not in ours and not at[0].startswith("<frozen")]
    why = f" with {type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        theirs, why = [(error.filename or "", error.lineno)], f" with SyntaxError: {error.msg}"
    elif isinstance(error, SystemExit):
        why = f" with sys.exit({error.code!r})"
    elif isinstance(error, UserError):
        why = f": {error}"
    if not theirs:
        return f"{why}; give the name of a module that Python finds, or the path to a .py file"
    file, line = [at for at in theirs if at[0] == theirs[0][0]][-1]
    return f" at line {line} of {Path(file).name}{why}; correct it, or leave it out"


def defining_module(cls: type) -> str:
    """What import_modules has to be given so that this class is defined."""
    return _FILES.get(cls.__module__, cls.__module__)


def unregistered(specs: Iterable[str]) -> list[str]:
    """The names in some specs that nothing has registered yet."""
    names = re.findall(r"(?:^|[+,|])\s*([^+,:*@|\s]+)", ",".join(specs))
    return [name for name in names if not _is_known(name)]


def _is_known(name: str) -> bool:
    """Whether a name is in the table, once a package that brings it was asked."""
    if name not in _VARIANTS and name not in ALIASES:
        load_packaged(name)
    return name in _VARIANTS or name in ALIASES


def require_registered(specs: Iterable[str], imports: Iterable[str]) -> None:
    """Refuse a name that is only known once a module of the user's own is imported."""
    unknown, modules = unregistered(specs), ", ".join(imports)
    if unknown and modules:
        raise UserError(
            f"synthesis {unknown[0]!r} is not registered here; it was defined in {modules}: "
            "import that first (synthesizer_attention.import_modules, or --import on the command "
            "line)"
        )


def _run_file(path: Path) -> None:
    module_name = f"imported_{path.stem}"  # a user's random.py does not hide Python's
    found = util.spec_from_file_location(module_name, path)
    if found is None or found.loader is None or not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    module = util.module_from_spec(found)
    _FILES[module_name], sys.modules[module_name] = str(path), module
    try:
        found.loader.exec_module(module)
    except BaseException:
        del _FILES[module_name], sys.modules[module_name]
        raise


def parse_spec(spec: str) -> tuple[Term, ...]:
    """Split one layer's spec into its terms, those of all its groups of heads; no aliases left."""
    groups = split_groups(spec)
    if groups:
        terms = tuple(term for group, _ in groups for term in parse_spec(group))
        if alone := [term.name for term in terms if not has_logits(term.name)]:
            raise UserError(
                f"synthesis {spec!r} gives {alone[0]!r} to some heads; it takes the place of all "
                "attention in a layer: write it alone, or per layer with commas"
            )
        return terms
    terms = tuple(_parse_term(text, spec) for text in spec.split("+"))
    if len(terms) > 1 and any(term.name == NONE for term in terms):
        raise UserError(
            f"synthesis {spec!r} mixes with 'none', which leaves the sublayer out; write it alone"
        )
    for term in terms:
        if len(terms) > 1 and _VARIANTS[term.name].baseline:
            raise UserError(
                f"synthesis {spec!r} mixes with {term.name!r}, a token mixer that makes no logits "
                "to add; write it alone, or per layer with commas"
            )
    return terms


def split_groups(spec: str) -> list[tuple[str, int]]:
    """Split 'random@8|dot@4' into [('random', 8), ('dot', 4)]; [] where all heads are alike."""
    if "|" not in spec and "@" not in spec:
        return []
    groups = []
    for text in spec.split("|"):
        body, _, count = text.strip().partition("@")
        if not (body and _count(count)):
            raise UserError(
                f"{text.strip()!r} in synthesis {spec!r} does not say how many heads it is for; "
                "write it as in random@8|dot@4"
            )
        groups.append((body, _count(count)))
    return groups


def _count(text: str) -> int:
    """How many layers or heads a text says, in up to nine digits; 0 where it says none."""
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def normalize_spec(spec: str) -> str:
    """Write a spec, per-layer lists included, in its long names."""
    return ",".join(item + repeat for item, repeat in split_layers(spec))


def split_layers(spec: str) -> list[tuple[str, str]]:
    """Split 'R*3,V' into long names and how each is repeated: [('random', '*3'), ('dot', '')]."""
    split = []
    for text in spec.split(","):
        body, star, count = text.strip().partition("*")
        if star and not _count(count):
            raise UserError(
                f"{text.strip()!r} in synthesis {spec!r} repeats a layer {count!r} times; "
                "write a whole number of layers, as in random*3,dot*3"
            )
        terms = parse_spec(body)
        if groups := split_groups(body):
            each = [f"{_written(parse_spec(group))}@{heads}" for group, heads in groups]
            split.append(("|".join(each), star + count))
        else:
            split.append((_written(terms), star + count))
    return split


def _written(terms: Iterable[Term]) -> str:
    return "+".join(str(term) for term in terms)


def expand_layers(spec: str, num_layers: int) -> list[str]:
    """Give each layer its spec: 'random*3,dot*3' names every layer, 'random' serves them all."""
    items = split_layers(spec)
    if len(items) == 1 and not items[0][1]:
        return [items[0][0]] * num_layers
    repeats = [int(repeat[1:] or 1) for _, repeat in items]
    if sum(repeats) != num_layers:
        raise UserError(
            f"synthesis {spec!r} names {sum(repeats)} layers but the model has {num_layers}; "
            f"name {num_layers} layers, or write one spec for all"
        )
    return [item for (item, _), times in zip(items, repeats, strict=True) for _ in range(times)]


def has_logits(layer: str) -> bool:
    """Whether the spec of one layer makes logits between tokens, which a bias can be added to."""
    return not any(_VARIANTS[term.name].baseline for term in parse_spec(layer)) and layer != NONE


def modules_of(spec: str) -> list[str]:
    """The user's modules that register what a spec names."""
    terms = [term for item, _ in split_layers(spec) for term in parse_spec(item)]
    modules = dict.fromkeys(_VARIANTS[term.name].module for term in terms)
    return [module for module in modules if module]


def check_name(name: str, spec: str) -> None:
    """Refuse a name that is in no table, and offer the nearest."""
    if not _is_known(name):
        near = difflib.get_close_matches(name, [*_VARIANTS, *ALIASES], n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        inside = f" in {spec!r}" if name != spec else ""
        raise UserError(
            f"unknown synthesis {name!r}{inside}; {hint}choose from {', '.join(_VARIANTS)}"
        )


def options_of(made: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The keyword-only arguments of a class, which keeps them as attributes, or of a function."""
    parameters = inspect.signature(made).parameters
    return {key: p for key, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def read_options(term: Term, made: Callable[..., Any], what: str = "synthesis") -> dict[str, Any]:
    """Turn the options written behind a name into the arguments of its class or function."""
    known = options_of(made)
    options = {}
    for key, value in term.options:
        if key not in known:
            allowed = f"its options are {', '.join(known)}" if known else "it takes none"
            raise UserError(f"unknown option {key!r} in {what} '{term}'; {allowed}")
        read, wanted = _READERS.get(known[key].annotation, _READERS[int])
        try:
            options[key] = read(value)
        except (ValueError, KeyError):
            raise UserError(f"option {key}={value} in {what} '{term}' is not {wanted}") from None
    return options


def term_of(name: str, module: object) -> Term:
    """Write the term that builds this module, with the options that differ from their defaults."""
    options = options_of(type(module))
    if lost := [key for key in options if not hasattr(module, key)]:
        raise UserError(
            f"synthesis {name!r} does not keep its option {lost[0]}; set self.{lost[0]}"
        )
    changed = [
        (key, value)
        for key, parameter in options.items()
        if (value := getattr(module, key)) != parameter.default
    ]
    written = ((key, value if isinstance(value, str) else str(+value)) for key, value in changed)
    return Term(name, tuple(written))  # +True is 1


def require_positive(name: str, **options: int) -> None:
    """Refuse an option below one."""
    for key, value in options.items():
        if value < 1:
            raise UserError(f"{name}:{key}={value}; {key} must be at least 1")


def _whole(text: str) -> int:
    """A number that counts something: torch's sizes end long before their products do."""
    if abs(number := int(text)) < 2**31:
        return number
    raise ValueError


_READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (_whole, "a whole number below 2^31"),
    float: (float, "a number"),
    bool: ({"0": False, "1": True}.__getitem__, "0 or 1"),
    str: (str, "a word"),
}


def _parse_term(text: str, spec: str) -> Term:
    name, *options = text.strip().split(":")
    check_name(name, spec)
    pairs = []
    for option in options:
        key, equals, value = option.partition("=")
        if not (key and equals and value):
            raise UserError(
                f"option {option!r} in synthesis {spec!r} is not key=value; write it as {name}:k=16"
            )
        pairs.append((key, value))
    return Term(ALIASES.get(name, name), tuple(pairs))


Norm = Literal["layer", "rms"]
NormPosition = Literal["pre", "post"]
Activation = Literal["relu", "gelu"]
Pooling = Literal["cls", "mean"]

PRESETS: dict[str, dict[str, Any]] = {
    # Table 2 of the paper, translation: width, heads and layers; length from its parameter counts.
    "mt-base": {
        "kind": "encoder_decoder",
        "d_model": 512,
        "num_heads": 8,
        "num_layers": 6,
        "d_ff": 2048,
        "max_len": 256,
        "norm_position": "post",
        "dropout": 0.1,
        "label_smoothing": 0.1,
    },
    # The pretraining model of the authors' code base.
    "t5-base": {
        "kind": "encoder_decoder",
        "d_model": 768,
        "num_heads": 12,
        "num_layers": 12,
        "d_ff": 3072,
        "max_len": 512,
        "norm": "rms",
        "positions": "relative",
    },
    # Its small one: the captions of the paper's Tables 4 and 5 say small, their rows Base.
    "t5-small": {
        "kind": "encoder_decoder",
        "d_model": 512,
        "num_heads": 8,
        "num_layers": 6,
        "d_ff": 2048,
        "max_len": 512,
        "norm": "rms",
        "positions": "relative",
    },
    "laptop": {"d_model": 128, "num_heads": 4, "num_layers": 2, "d_ff": 512, "max_len": 128},
}


@dataclass(frozen=True)
class Defaults:
    """What a SynthesizerConfig is where nothing is chosen.

    A saved config leaves out what equals its default, so a value here never changes: models saved
    before would load as something else.
    """

    d_model: int = 512
    num_heads: int = 8
    num_layers: int = 6
    d_ff: int = 2048
    max_len: int = 256
    norm: Norm = "layer"
    norm_position: NormPosition = "pre"
    activation: Activation = "relu"
    positions: str = "sinusoidal"
    tie_word_embeddings: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0
    label_smoothing: float = 0.0
    pooling: Pooling = "mean"
    universal: bool = False
    fixed_depth: bool = False
    halting_epsilon: float = 0.05
    ponder_cost: float = 0.01
    window: int | str | None = None
    equal_qk_init: bool = False


DEFAULTS = Defaults()
RECIPE_DEFAULTS = replace(DEFAULTS, **PRESETS["laptop"], dropout=0.1)  # for training from scratch


POSITIONS = ("sinusoidal", "learned", "relative", "rotary", "alibi", "none")
_ADDED = ("sinusoidal", "learned", "none")  # to the embeddings, one of them


@dataclass(frozen=True)
class RotaryOptions:
    """How queries and keys are turned: RoPE (Su et al. 2021)."""

    base: float = 10_000.0  # the slowest turn takes about 2 pi base tokens
    share: float = 1.0  # of each head's width that is turned


@dataclass(frozen=True)
class PositionKinds:
    """What a model's `positions` asks for, part by part."""

    added: str = "none"  # to the embeddings: sinusoidal, learned or none
    relative: bool = False
    alibi: bool = False
    rotary: RotaryOptions | None = None


def parse_positions(text: str) -> PositionKinds:
    """Read 'sinusoidal', 'relative' or 'sinusoidal+rotary:base=500:share=0.5'."""
    parts = [part.strip().partition(":") for part in text.split("+")]
    names = [name for name, _, _ in parts]
    for name, _, options in parts:
        if name not in POSITIONS:
            raise UserError(
                f"positions={text!r}; choose from {', '.join(POSITIONS)}, or join some with +"
            )
        if options and name != "rotary":
            raise UserError(
                f"positions={text!r}: {name} has no options; only rotary has base and share"
            )
    added = [name for name in names if name in _ADDED]
    if len(set(names)) < len(names) or len(added) > 1 or ("none" in names and len(names) > 1):
        raise UserError(
            f"positions={text!r} combines kinds that exclude each other; write each once, at most "
            "one of sinusoidal and learned, and none alone"
        )
    turning = [options for name, _, options in parts if name == "rotary"]
    return PositionKinds(
        added[0] if added else "none",
        "relative" in names,
        "alibi" in names,
        _rotary_options(text, turning[0]) if turning else None,
    )


def _rotary_options(text: str, options: str) -> RotaryOptions:
    known = [field.name for field in fields(RotaryOptions)]
    found: dict[str, float] = {}
    for option in filter(None, options.split(":")):
        key, _, value = option.partition("=")
        try:
            found[key] = float(value)
        except ValueError:
            key = ""
        if key not in known:
            raise UserError(
                f"positions={text!r}: rotary has no {option!r}; write base=NUMBER or share=NUMBER"
            )
    rotary = RotaryOptions(**found)
    if not (1 < rotary.base < inf and 0 < rotary.share <= 1):
        raise UserError(f"positions={text!r}; rotary needs a base above 1 and a share in (0, 1]")
    return rotary
