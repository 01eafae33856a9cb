"""Spec strings: how a user names what makes the attention, the same in Python, CLI and recipes.

    dense                            one synthesizing function
    factorized_random:k=16           with its own options
    dynamicconv:kernel=7             a baseline: another token mixer in the place of attention
    random+dot                       a mixture, weighted by learned alphas
    random*3,dot*3                   per layer, first layer first
    R+V, FR, D+V                     the paper's short names

Nothing here imports torch: the tables of variants are read from the sources that hold them.
"""

import ast
import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from synthesizer.errors import UserError

NONE = "none"
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
    """What the tables say of one name; parameters are those beside values and output."""

    name: str
    paper: str
    equation: str
    parameters: str
    looks_at: str
    baseline: bool = False


def parse_spec(spec: str) -> tuple[Term, ...]:
    """Split one layer's spec into its terms, aliases resolved."""
    terms = tuple(_parse_term(text, spec) for text in spec.split("+"))
    if len(terms) > 1 and any(term.name == NONE for term in terms):
        raise UserError(
            f"synthesis {spec!r} mixes with 'none', which leaves the sublayer out; write it alone"
        )
    for term in terms:
        if len(terms) > 1 and variants()[term.name].baseline:
            raise UserError(
                f"synthesis {spec!r} mixes with {term.name!r}, a baseline that makes no logits "
                "to add; write it alone, or per layer with commas"
            )
    return terms


def normalize_spec(spec: str) -> str:
    """Write a spec, per-layer lists included, in its long names."""
    return ",".join(item + repeat for item, repeat in split_layers(spec))


def split_layers(spec: str) -> list[tuple[str, str]]:
    """Split 'R*3,V' into long names and how each is repeated: [('random', '*3'), ('dot', '')]."""
    split = []
    for text in spec.split(","):
        body, star, count = text.strip().partition("*")
        if star and not (count.isdecimal() and int(count) > 0):
            raise UserError(
                f"{text.strip()!r} in synthesis {spec!r} repeats a layer {count!r} times; "
                "write a whole number, as in random*3,dot*3"
            )
        split.append(("+".join(str(term) for term in parse_spec(body)), star + count))
    return split


def expand_layers(spec: str, num_layers: int) -> list[str]:
    """Give each layer its spec: 'random*3,dot*3' names every layer, 'random' serves them all."""
    items = split_layers(spec)
    if len(items) == 1 and not items[0][1]:
        return [items[0][0]] * num_layers
    layers = [item for item, repeat in items for _ in range(int(repeat[1:] or 1))]
    if len(layers) != num_layers:
        raise UserError(
            f"synthesis {spec!r} names {len(layers)} layers but the model has {num_layers}; "
            f"name {num_layers} layers, or write one spec for all"
        )
    return layers


@cache
def variants() -> dict[str, Variant]:
    """Read the synthesizing functions, 'none' and the baselines, without importing torch."""
    table = _read_table(Path(__file__).parent / "attention" / "synthesis.py", "SYNTHESES")
    control = "no self-attention: the sublayer is left out, to show whether a task needs it at all"
    others = _read_table(Path(__file__).parent / "attention" / "baselines.py", "BASELINES")
    baselines = {name: replace(variant, baseline=True) for name, variant in others.items()}
    return {**table, NONE: Variant(NONE, "", control, "0", ""), **baselines}


def shows_weights(spec: str) -> bool:
    """Whether every layer of a spec that has a token mixer can show attention weights."""
    terms = [term for item, _ in split_layers(spec) for term in parse_spec(item)]
    return not any(variants()[term.name].baseline for term in terms)


def check_name(name: str, spec: str) -> None:
    """Refuse a name that is in no table, and offer the nearest."""
    known = [*variants(), *ALIASES]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        inside = f" in {spec!r}" if name != spec else ""
        raise UserError(
            f"unknown synthesis {name!r}{inside}; {hint}choose from {', '.join(variants())}"
        )


def options_of(cls: type) -> Mapping[str, inspect.Parameter]:
    """The options of a class: its keyword-only arguments, each of which it keeps as attribute."""
    parameters = inspect.signature(cls).parameters
    return {key: p for key, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def read_options(term: Term, cls: type) -> dict[str, Any]:
    """Turn the options written behind a name into the arguments of its class."""
    known = options_of(cls)
    options = {}
    for key, value in term.options:
        if key not in known:
            allowed = f"its options are {', '.join(known)}" if known else "it takes none"
            raise UserError(f"unknown option {key!r} in synthesis '{term}'; {allowed}")
        read, wanted = _READERS.get(known[key].annotation, _READERS[int])
        try:
            options[key] = read(value)
        except (ValueError, KeyError):
            raise UserError(f"option {key}={value} in synthesis '{term}' is not {wanted}") from None
    return options


def term_of(name: str, module: object) -> Term:
    """Write the term that builds this module, with the options that differ from their defaults."""
    changed = [
        (key, value)
        for key, parameter in options_of(type(module)).items()
        if (value := getattr(module, key)) != parameter.default
    ]
    return Term(name, tuple((key, str(+value)) for key, value in changed))  # +True is 1


def require_positive(name: str, **options: int) -> None:
    """Refuse an option below one."""
    for key, value in options.items():
        if value < 1:
            raise UserError(f"{name}:{key}={value}; {key} must be at least 1")


_READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: ({"0": False, "1": True}.__getitem__, "0 or 1"),
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


def _read_table(path: Path, table: str) -> dict[str, Variant]:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if ast.unparse(target) != table:
                continue
            pairs = zip(node.value.keys, node.value.values, strict=True)
            named = {ast.literal_eval(key): ast.unparse(value) for key, value in pairs if key}
            return {name: _describe(name, classes[cls]) for name, cls in named.items()}
    raise AssertionError(f"{path} holds no table {table}")


def _describe(name: str, cls: ast.ClassDef) -> Variant:
    facts = {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in cls.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }
    equation = (ast.get_docstring(cls) or "").splitlines()[0]
    return Variant(name, facts["paper"], equation, facts["parameter_count"], facts["looks_at"])
