"""docs/paper.md: every command names recipes, rows, keys and options that exist."""

import re
import shlex
from pathlib import Path

import pytest

from synthesizer_attention.models.cost import count_parameters, sketch
from synthesizer_attention.run.recipe import load_recipe, published_parameters
from synthesizer_attention.spec import normalize_spec
from synthesizer_attention.study.rows import parse_vary
from synthesizer_attention.training.build import rough_config

PAGE = (Path(__file__).parents[1] / "docs" / "paper.md").read_text()
COMMANDS = re.findall(r"^synthesizer compare .*$", PAGE, re.MULTILINE)
FLAGS = {"--baselines"}
TABLES = ("Table 2", "Table 3", "Tables 4 and 5", "Table 6", "Linformer", "number of heads")


def options(command):
    _, _, recipe, *words = shlex.split(command)
    words = [each for word in words for each in ([word, ""] if word in FLAGS else [word])]
    pairs = list(zip(words[::2], words[1::2], strict=True))
    return recipe, pairs


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_can_be_planned(command):
    recipe, pairs = options(command)
    values = {name: [value for key, value in pairs if key == name] for name, _ in pairs}
    known = {"--synthesis", "--pretrain", "--against", "--vary", "--set", "--out"}
    known |= {"--ladder", "--seeds", "--opponent", *FLAGS}
    assert values.keys() <= known
    # a row may have settings of its own: dot@model.positions=rotary
    rows = [text.partition("@model.") for text in values.get("--synthesis", ["dot", "random"])]
    specs = [(normalize_spec(spec), f"{at[1:]}{own}") for spec, at, own in rows]
    against = {normalize_spec(row) for row in values.get("--against", [])}
    others = {"lightconv", "dynamicconv", "linformer"} if "--baselines" in values else set()
    assert against <= {spec for spec, _ in specs} | others
    varied = [
        change for text in values.get("--vary", []) for change in map("=".join, parse_vary(text))
    ]
    for spec, own in specs:
        for change in varied or ["seed=1"]:
            sets = [*values.get("--set", []), change, *filter(None, [own])]
            made = load_recipe(recipe, synthesis=spec, overrides=sets)
            assert made.paper, f"{recipe} shows no published table"
    for before in values.get("--pretrain", []):
        first, then = load_recipe(before).model, load_recipe(recipe).model
        assert (first.d_model, first.num_layers) == (then.d_model, then.num_layers)


def test_every_table_has_a_command_at_full_scale_and_one_in_miniature():
    for name in TABLES:
        (part,) = [each for each in PAGE.split("\n## ")[1:] if name in each.splitlines()[0]]
        recipes = [options(line)[0] for line in part.splitlines() if " compare " in line]
        assert any(recipe.startswith("tiny-") for recipe in recipes)
        assert any(not recipe.startswith("tiny-") for recipe in recipes)


def test_the_sizes_on_the_page_are_those_of_the_recipes_and_of_the_paper():
    (part,) = [each for each in PAGE.split("\n## ")[1:] if each.startswith("Sizes beside")]
    head, _, *lines = [line for line in part.splitlines() if line.startswith("|")]
    recipes = re.findall(r"`([a-z0-9-]+)` /", head)
    assert recipes == ["mt-wmt14-ende", "lm-lm1b", "pretrain-c4"]
    for line in lines:
        name, *cells = [cell.strip(" `") for cell in line.strip("|").split("|")]
        for recipe, cell in zip(recipes, cells, strict=True):
            if not cell:
                continue
            ours, theirs = cell.split(" / ")
            config = rough_config(load_recipe(recipe, synthesis=name))
            assert ours == f"{count_parameters(sketch(config))['total'] / 1e6:.1f}M"
            published = published_parameters(recipe, name)
            assert any(count.startswith(f"{theirs} (") for count in published)


def test_dot_has_the_printed_size_and_only_its_own_count_is_printed():
    for recipe, printed in (("mt-wmt14-ende", 68), ("mt-wmt14-enfr", 68), ("lm-lm1b", 70)):
        config = rough_config(load_recipe(recipe, synthesis="dot"))
        assert round(count_parameters(sketch(config))["total"] / 1e6) == printed
        (said,) = published_parameters(recipe, "dot")
        assert said.startswith(f"{printed}M (Machine translation")
    assert published_parameters("mt-wmt14-ende", "lightconv") == [], "a re-run at another size"
    assert published_parameters("pretrain-c4", "random")[0].startswith("254M")
