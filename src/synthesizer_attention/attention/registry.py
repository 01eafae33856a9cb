"""Which synthesizing functions there are, by name; from a spec to a module, and back."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from synthesizer_attention.attention.synthesis import (
    Dense,
    DotProduct,
    FactorizedDense,
    FactorizedRandom,
    FixedRandom,
    Grouped,
    Mixture,
    Random,
    Relative,
    Size,
    Synthesis,
)
from synthesizer_attention.errors import UserError
from synthesizer_attention.spec import (
    NONE,
    Term,
    Variant,
    defining_module,
    parse_spec,
    read_options,
    register_variant,
    split_groups,
    term_of,
)

SYNTHESES: dict[str, type[Synthesis]] = {
    "dot": DotProduct,
    "random": Random,
    "fixed_random": FixedRandom,
    "factorized_random": FactorizedRandom,
    "dense": Dense,
    "factorized_dense": FactorizedDense,
    "relative": Relative,
}

S = TypeVar("S", bound=type[Synthesis])


def register_synthesis(name: str, *, parameters: str = "", paper: str = "") -> Callable[[S], S]:
    """Register a synthesizing function of your own, so that a spec may name it.

    Example::

        @register_synthesis("decay", parameters="H")
        class Decay(Synthesis): ...

    The first line of its docstring is its equation in `synthesizer list`. Its keyword-only
    arguments, kept as attributes, are the options of a spec: "decay:k=3".

    Args:
        name: The name in a spec.
        parameters: How many parameters it learns, as `synthesizer list` shows it: "2 D^2".
        paper: Who proposed it, as `synthesizer list` shows it.
    """

    def register(cls: S) -> S:
        for methods in (("forward", "terms"), ("reset_parameters",)):
            is_one = issubclass(cls, Synthesis) and cls is not Synthesis
            if not is_one or not {*methods} & {*vars(cls)}:
                raise UserError(
                    f"{cls.__name__}, to be registered as {name!r}, must be a class derived from "
                    f"synthesizer_attention.Synthesis that defines {methods[0]}()"
                )
        add_facts(cls, name, parameters, paper)
        SYNTHESES[name] = cls
        return cls

    return register


def add_facts(
    cls: Any, name: str, parameters: str, paper: str, *, baseline: bool = False  # noqa: ANN401
) -> None:  # fmt: skip
    """Put a class into the table of names; spec.py has the facts of ours."""
    module = defining_module(cls)
    if not module.startswith("synthesizer_attention."):
        facts = (name, paper, (cls.__doc__ or "").split("\n")[0], parameters)
        reads = (cls.depends_on_input, cls.depends_on_pairs)
        register_variant(Variant(*facts, *reads, baseline, module))


def build_synthesis(spec: str, size: Size) -> Synthesis:
    """Turn a spec into a module that makes logits.

    Args:
        spec: Such as "dense", "factorized_random:k=16", "dense+dot" or "random@2|dot@1".
        size: Width, number of heads and longest sequence of the layer.
    """
    terms = parse_spec(spec)
    if groups := split_groups(spec):
        heads = [count for _, count in groups]
        if sum(heads) != size.num_heads:
            raise UserError(
                f"synthesis {spec!r} is for {sum(heads)} heads and the layer has {size.num_heads}; "
                "let the groups add up"
            )
        sizes = [
            replace(size, num_heads=count, head_width=size.d_head, first_head=sum(heads[:index]))
            for index, count in enumerate(heads)
        ]
        built = [build_synthesis(g, own) for (g, _), own in zip(groups, sizes, strict=True)]
        return built[0] if len(built) == 1 else Grouped(built, heads)
    if terms[0].name == NONE:
        raise UserError(
            "synthesis 'none' makes no logits; it leaves the attention sublayer out of a model"
        )
    parts = [_build_part(term, size) for term in terms]
    return parts[0] if len(parts) == 1 else Mixture(parts, size.num_heads)


def spec_of(synthesis: Synthesis) -> str:
    """Write the spec that builds this module, with the options that differ from their defaults."""
    if isinstance(synthesis, Mixture):
        return "+".join(spec_of(part) for part in synthesis.parts)
    if isinstance(synthesis, Grouped):
        parts = zip(synthesis.groups, synthesis.heads, strict=True)
        return "|".join(f"{spec_of(group)}@{count}" for group, count in parts)
    name = next(name for name, cls in SYNTHESES.items() if type(synthesis) is cls)
    return str(term_of(name, synthesis))


def _build_part(term: Term, size: Size) -> Synthesis:
    if term.name not in SYNTHESES:
        raise UserError(
            f"synthesis {term.name!r} is a token mixer and makes no logits; "
            "build it with build_mixer, or in a model"
        )
    cls = SYNTHESES[term.name]
    part = cls(size, **read_options(term, cls))
    check_declared(part, term.name)
    return part


def check_declared(part: Any, name: str) -> None:  # noqa: ANN401
    """Refuse a parameter of its own that a class does not name."""
    declared = {*part.tables, *part.weights, *part.biases}
    for own, _ in part.named_parameters(recurse=False):
        if own not in declared:
            raise UserError(
                f"synthesis {name!r} does not say what its parameter {own!r} is; name it in "
                f"{type(part).__name__}.tables, .weights or .biases"
            )
