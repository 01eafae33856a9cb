import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module, resources
from pathlib import Path

import pytest

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe import (
    describe_seconds,
    differences,
    dump,
    estimate_flops,
    estimate_parameters,
    load_recipe,
    parse_recipe,
    recipe_names,
    summarize,
)
from synthesizer_attention.run.recipe_keys import TASKS, Model
from synthesizer_attention.spec import DEFAULTS, PRESETS

every_recipe = pytest.mark.parametrize("name", recipe_names())


@every_recipe
def test_a_resolved_recipe_reads_back_equal(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert parse_recipe(dump(recipe)) == recipe
    assert parse_recipe(dump(recipe)).hash() == recipe.hash()


@every_recipe
def test_only_paper_scale_values_go_unmarked(name):
    """A recipe that names a paper table marks what is not the paper's."""
    text = (resources.files("synthesizer_attention") / "recipes" / f"{name}.toml").read_text()
    if "paper =" in text:
        assert "ours" in text


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.num_head=3", "[model]: unknown key 'num_head'; did you mean 'num_heads'?"),
        ("steps=3", "top level: unknown key 'steps'; did you mean 'train.steps'?"),
        ("train=4", "[train]: train is 4; expected a section with keys of its own, such as train."),
        ("trian.steps=3", "top level: unknown key 'trian'; did you mean 'train'?"),
        ("train.steps=ten", "[train]: steps is 'ten'; expected a valid integer"),
        ("train.steps=0", "[train]: steps is 0; expected greater than 0"),
        ("model.num_heads=7", "d_model=64 is not divisible by num_heads=7; change one of them"),
        ("model.kind=encoder", "kind is 'encoder'; task 'probe' needs 'decoder': drop the key"),
        ("data.streaming=true", "streaming is not used by task 'probe'; drop it"),
        ("model.ponder_cost=0.1", "[model]: ponder_cost is not used without universal = true"),
        ("model.halting_epsilon=2.0", "[model]: halting_epsilon is 2.0; expected less than 1"),
        ("train.steps", "--set got 'train.steps'; expected key=value"),
        (
            "train.steps=1\nseed=3",
            r"--set train.steps got '1\nseed=3', several keys at once; give",
        ),
        ("name.x=1", "--set name.x: 'name' is a value, not a section"),
    ],
)
def test_a_wrong_key_is_named_with_what_was_expected(override, message):
    with pytest.raises(UserError) as error:
        load_recipe("shift", overrides=[override])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name = ", "is not valid TOML"),
        ('name = "x"', "'task' is missing; give it a value"),
        (
            'name = "bad"\ntask = "probe"\n[model]\nnum_head = 2\n',
            r"broken.toml \[model\]: unknown key 'num_head'; did you",
        ),
        ("a = " + "[" * 10**5, "is not valid TOML"),
    ],
)
def test_a_broken_recipe_file_says_what_is_wrong(tmp_path, content, message):
    path = tmp_path / "broken.toml"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        load_recipe(path)


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(UserError, match=r"no recipe 'python-doc' .* did you mean 'python-docs'\?"):
        load_recipe("python-doc")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*none.toml: No such file"):
        load_recipe(tmp_path / "none.toml")


def test_overrides_are_toml_or_bare_strings():
    recipe = load_recipe(
        "translation",
        synthesis="random",
        overrides=[
            "train.steps=10",
            "train.lr=1e-3",
            "data.train=my file.csv",
            "data.columns.source=1",
            'data.test=["test.en", "test.de"]',
            "text.kind=word",
        ],
    )
    assert (recipe.synthesis, recipe.train.steps, recipe.train.lr) == ("random", 10, 1e-3)
    assert recipe.data.train == "my file.csv"
    assert recipe.data.test == ("test.en", "test.de")
    assert recipe.data.columns == {"source": "1"}
    assert recipe.text.kind == "word"


def test_an_empty_override_returns_the_default():
    recipe = load_recipe("mt-multi30k-ende", overrides=["data.hub="])
    assert recipe.data.hub is None


def test_sizes_follow_from_others():
    model = load_recipe("shift").model
    assert (model.d_ff, model.num_decoder_layers, model.decoder_max_len) == (256, 1, 33)
    assert model.kind == "decoder"


def test_differences_name_the_keys():
    old = load_recipe("shift")
    new = load_recipe("shift", overrides=["train.steps=7", "data.columns.input=x"])
    assert differences(old, new) == [
        "train.steps: 500 -> 7",
        'data.columns.input: nothing -> "x"',
    ]
    assert differences(old, old) == []
    assert old.hash() != new.hash()


def test_an_unknown_task_is_refused_with_the_list():
    names = ", ".join(map(repr, TASKS)).replace(", 'classification'", " or 'classification'")
    with pytest.raises(UserError, match=re.escape(f"task is 'chess'; expected {names}")):
        load_recipe("shift", overrides=["task=chess"])


def test_every_task_is_in_the_file_of_its_shape():
    for name, info in TASKS.items():
        shape = import_module(f"synthesizer_attention.tasks.{info.shape}")
        assert shape.build, info
        assert info.shape != "pairs" or name in shape.FORMS


def test_a_recipe_starts_from_the_laptop_preset():
    """The numbers that recipes were written against; a saved config has its own defaults."""
    chosen = {"d_model": 128, "num_heads": 4, "num_layers": 2, "max_len": 128, "dropout": 0.1}
    rest = {"norm": "layer", "norm_position": "pre", "activation": "relu", "pooling": "mean"}
    rest |= {"positions": "sinusoidal", "attention_dropout": 0.0, "universal": False}
    rest |= {"tie_word_embeddings": True, "halting_epsilon": 0.05, "ponder_cost": 0.01}
    assert (chosen | rest).items() <= Model().model_dump().items()
    assert PRESETS["laptop"]["d_ff"] == 4 * Model().d_model
    saved = {
        "d_model": 512,
        "num_heads": 8,
        "num_layers": 6,
        "d_ff": 2048,
        "max_len": 256,
        "dropout": 0.0,
    }
    assert (rest | saved).items() <= vars(DEFAULTS).items()


@pytest.mark.parametrize("name", recipe_names())
def test_a_built_in_recipe_has_what_it_spells_and_the_defaults_else(name):
    spelled = tomllib.loads(
        (resources.files("synthesizer_attention") / f"recipes/{name}.toml").read_text()
    )
    model = Model().model_dump() | spelled.get("model", {})
    model["kind"] = TASKS[spelled["task"]].kind
    model["num_decoder_layers"] = model["num_decoder_layers"] or model["num_layers"]
    model["d_ff"] = model["d_ff"] or 4 * model["d_model"]
    model["decoder_max_len"] = model["decoder_max_len"] or model["max_len"]
    assert load_recipe(name).model.model_dump() == model


def test_recipes_are_read_without_torch():
    code = "import sys; from synthesizer_attention.run.recipe import *;"
    code += "names = [summarize(load_recipe(name)).name for name in recipe_names()];"
    code += "assert names == recipe_names();"
    code += "print('torch' in sys.modules)"
    source = Path(__file__).parents[1] / "src"
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    assert run.stdout.strip() == "False"


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.startswith("mt-")])
def test_translations_are_ranked_by_the_length_penalty_of_the_papers_code_base(name):
    """((5 + length) / 6)^0.6; Hugging Face divides by length^0.6."""
    evaluate = load_recipe(name).evaluate
    assert evaluate.beam > 1
    assert (evaluate.length_penalty_form, evaluate.length_penalty) == ("wu", 0.6)


def test_a_line_says_task_data_size_and_cost():
    summary = summarize(load_recipe("mt-wmt14-ende"))
    assert summary.task == "translation"
    assert summary.data == "wmt/wmt14 de-en"
    assert summary.size == "6+6 layers, d 512, length 256, 68M"
    assert summary.cost.startswith("100,000 steps, about ")


def test_the_estimate_of_t5_base_is_its_published_size():
    assert round(estimate_parameters(load_recipe("pretrain-c4")) / 1e6) == 223


def test_a_target_meets_the_decoder_and_the_vocabulary_and_a_source_the_encoder():
    sizes = ["num_layers=1", "num_decoder_layers=2", "d_model=2", "d_ff=8", "num_heads=1"]
    train = ["train.steps=1", "train.batch_tokens=100", "train.accumulate=1", "text.vocab_size=50"]
    overrides = [f"model.{size}" for size in sizes] + train
    encoder, decoder, output = 4 * 4 + 2 * 16, 2 * (8 * 4 + 2 * 16), 2 * 50
    assert estimate_flops(load_recipe("translation", overrides=overrides)) == (
        6 * 50 * encoder + 6 * 50 * (decoder + output)
    )


def test_durations_read_well():
    assert describe_seconds(0.2) == "about 1 second"
    assert describe_seconds(59) == "about 59 seconds"
    assert describe_seconds(3 * 86_400) == "about 3 days"


def test_every_recipe_is_evaluated_within_the_first_third_of_its_steps():
    """Else a report cannot say whether the gap between two rows still closes."""
    recipes = [load_recipe(name) for name in recipe_names()]
    assert not [r.name for r in recipes if r.evaluate.every > r.train.steps / 3]
