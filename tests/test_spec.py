import re

import pytest

from synthesizer_attention.attention.baselines import MIXERS
from synthesizer_attention.attention.registry import SYNTHESES, build_synthesis, spec_of
from synthesizer_attention.attention.synthesis import Size
from synthesizer_attention.errors import UserError
from synthesizer_attention.spec import (
    Term,
    expand_layers,
    has_logits,
    normalize_spec,
    parse_spec,
    variants,
)

SIZE = Size(d_model=12, num_heads=3, max_len=20)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("R+V", "random+dot"),
        ("FR", "factorized_random"),
        ("D+V", "dense+dot"),
        ("Fix", "fixed_random"),
        ("FD:a=4:b=5", "factorized_dense:a=4:b=5"),
        ("vanilla", "dot"),
        ("R*3,V*3", "random*3,dot*3"),
        ("none", "none"),
    ],
)
def test_the_papers_short_names_are_the_long_ones(short, long):
    assert normalize_spec(short) == long
    assert normalize_spec(long) == long


def test_a_spec_is_terms_with_options():
    assert parse_spec("factorized_random:k=16+dot") == (
        Term("factorized_random", (("k", "16"),)),
        Term("dot"),
    )


def test_per_layer_specs_name_every_layer():
    assert expand_layers("random*2,D+V", 3) == ["random", "random", "dense+dot"]
    assert expand_layers("random", 3) == ["random"] * 3
    assert expand_layers("none,dot", 2) == ["none", "dot"]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            "dence",
            "unknown synthesis 'dence'; did you mean 'dense'? choose from dot, random, "
            "fixed_random, factorized_random, dense, factorized_dense, relative, none, "
            "lightconv, dynamicconv, linformer",
        ),
        ("random+dence", "unknown synthesis 'dence' in 'random+dence'; did you mean 'dense'?"),
        ("", "unknown synthesis ''"),
        ("random+", "unknown synthesis '' in 'random+'"),
        ("none+dot", "synthesis 'none+dot' mixes with 'none', which leaves the sublayer out"),
        (
            "random:k",
            "option 'k' in synthesis 'random:k' is not key=value; write it as random:k=16",
        ),
        ("dot:k=3", "unknown option 'k' in synthesis 'dot:k=3'; it takes none"),
        (
            "factorized_random:rank=3",
            "unknown option 'rank' in synthesis 'factorized_random:rank=3'; its options are k, std",
        ),
        (
            "factorized_random:k=2.5",
            "option k=2.5 in synthesis 'factorized_random:k=2.5' is not a whole number",
        ),
        ("factorized_random:k=0", "factorized_random:k=0; k must be at least 1"),
        (
            "factorized_dense:a=3:b=5",
            "factorized_dense with a=3, b=5 covers 15 positions but max_len=20; "
            "choose a*b of at least 20",
        ),
        ("none", "synthesis 'none' makes no logits; it leaves the attention sublayer out"),
    ],
)
def test_a_bad_spec_says_what_is_wrong_and_what_to_do(spec, text):
    with pytest.raises(UserError) as error:
        build_synthesis(spec, SIZE)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("random*2,dot", "synthesis 'random*2,dot' names 3 layers but the model has 4"),
        ("random*x,dot", "'random*x' in synthesis 'random*x,dot' repeats a layer 'x' times"),
        ("random*0", "'random*0' in synthesis 'random*0' repeats a layer '0' times"),
    ],
)
def test_bad_layers_say_what_is_wrong(spec, text):
    with pytest.raises(UserError) as error:
        expand_layers(spec, 4)
    assert text in str(error.value)


def test_the_table_of_facts_agrees_with_the_classes():
    assert list(variants()) == [*SYNTHESES, "none", *MIXERS]
    for name, cls in {**SYNTHESES, **MIXERS}.items():
        assert variants()[name].equation == cls.__doc__.splitlines()[0]
        assert variants()[name].baseline is (name in MIXERS)


@pytest.mark.parametrize("name", SYNTHESES)
def test_the_facts_of_a_synthesizing_function_are_those_of_its_module(name):
    module, facts = build_synthesis(name, SIZE), variants()[name]
    assert facts.depends_on_input is module.depends_on_input
    assert facts.depends_on_pairs is module.depends_on_pairs
    named = [*module.tables, *module.weights]
    learned = sum(p.numel() for key, p in module.named_parameters() if key in named)
    sizes = {"D": 12, "H": 3, "N": 20, "k": 8, "a": 5, "b": 4}
    formula = re.sub(r"(?<=\w) (?=[\w(])", "*", facts.parameters).replace("^", "**")
    assert eval(formula, sizes) == learned


def test_a_layer_without_weights_is_known_from_the_spec():
    assert has_logits("R+V")
    assert not has_logits("lightconv:kernel=3")
    assert not has_logits("none")


@pytest.mark.parametrize(
    ("spec", "settled"),
    [
        ("factorized_dense", "factorized_dense:a=5:b=4"),
        ("FR", "factorized_random"),
        ("FR:k=3", "factorized_random:k=3"),
        ("random:std=0.5+dot", "random:std=0.5+dot"),
    ],
)
def test_a_built_module_tells_its_spec(spec, settled):
    assert spec_of(build_synthesis(spec, SIZE)) == settled
    assert spec_of(build_synthesis(settled, SIZE)) == settled
