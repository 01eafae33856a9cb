"""A synthesizing function of the user's own, in the user's own file, works everywhere."""

import json
import sys
from pathlib import Path

import pytest
import torch

from synthesizer_attention import (
    Size,
    Synthesis,
    SyntheticAttention,
    build_synthesis,
    register_synthesis,
)
from synthesizer_attention import spec as registry
from synthesizer_attention.attention import fast
from synthesizer_attention.attention.registry import spec_of
from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError
from synthesizer_attention.models import SynthesizerConfig, SynthesizerForCausalLM
from synthesizer_attention.run.recipe import dump, load_recipe
from synthesizer_attention.run.recipe_keys import Train
from synthesizer_attention.training.build import rough_config
from synthesizer_attention.training.optim import build_optimizer
from tiny import language_model
from variants import redrawn, tokens

SOURCE = '''
import torch
from synthesizer_attention import Size, Synthesis, register_synthesis


@register_synthesis("decay", parameters="H", paper="mine")
class Decay(Synthesis):
    """B[i,j] = -power slope |i - j|, one learned slope per head."""

    tables = ("slope",)
    depends_on_input = False

    def __init__(self, size: Size, *, power: int = 1) -> None:
        super().__init__()
        self.power = power
        self.slope = torch.nn.Parameter(torch.empty(size.num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        torch.nn.init.ones_(self.slope)

    def forward(self, x, keys, positions, key_positions):
        distance = (positions[..., :, None] - key_positions[..., None, :]).abs()
        logits = distance[..., None, :, :] * -self.power * self.slope[:, None, None]
        return logits if logits.dim() == 4 else logits[None]

    def resize(self, max_len: int) -> None:
        pass
'''


@pytest.fixture
def decay(tmp_path, forget):
    path = tmp_path / "decay_function.py"
    path.write_text(SOURCE)
    registry.import_modules([str(path)])
    return path


def test_a_function_from_a_file_is_trained_measured_compared_and_loaded(
    tmp_path, command, load_elsewhere, decay
):
    path, out = decay, tmp_path / "run"
    recipe = language_model(tmp_path).model_copy(update={"imports": ("decay_function",)})
    (tmp_path / "mine.toml").write_text(dump(recipe))
    spec = "decay:power=2+dot"
    command("train", "mine.toml", "--synthesis", spec, "--out", out, "--plain")
    result = json.loads((out / "result.json").read_text())
    assert result["metrics"]
    assert "bits_per" in command("evaluate", out, "--import", "decay_function")
    assert command("generate", out, "--beam", 1, "--import", path.name)
    config = json.loads((out / "model" / "config.json").read_text())
    assert config["synthesis"] == spec
    assert config["imports"] == ["decay_function"]
    refused, loaded = load_elsewhere(out / "model", path)
    assert refused == (
        "synthesis 'decay' is not registered here; it was defined in decay_function: import that "
        "first (synthesizer_attention.import_modules, or --import on the command line)"
    )
    model = SynthesizerForCausalLM.from_pretrained(out / "model")
    assert sum(p.numel() for name, p in model.named_parameters() if "slope" in name) == 2
    assert loaded.split()[0] == spec
    total = model(torch.arange(5)[None]).logits.sum().item()
    assert float(loaded.split()[1]) == pytest.approx(total)
    listed = command("list", "--import", "decay_function.py")
    assert "decay" in listed
    assert "one learned slope per head." in listed
    assert "position only" in listed
    assert "decay" not in command("list")
    study = ["compare", "mine.toml", "--synthesis", "dot", "--synthesis", "decay", "--seeds", 1]
    study += ["--jobs", 1, "--tune", 0, "--opponent", "configured", "--plain", "--out", "study"]
    assert "decay" in command(*study)
    assert "decay" in command("report", "study", "--out", "elsewhere")
    assert "decay" in (tmp_path / "elsewhere" / "table.csv").read_text()
    bench = ["bench", "--variant", "decay", "--import", "decay_function.py", "--length", 8]
    bench += ["--tokens", 16, "--d-model", 8, "--num-heads", 2, "--rounds", 1, "--plain"]
    assert "decay frozen" in command(*bench)


def test_a_file_given_on_the_command_line_is_in_the_resolved_recipe(decay, tmp_path):
    recipe = load_recipe("language_modeling", synthesis="decay", imports=[str(decay)])
    assert recipe.imports == (str(decay),)
    assert load_recipe("language_modeling", imports=["decay_function"] * 2).imports == (
        "decay_function",
    )
    assert rough_config(recipe).imports == [str(decay)]


def test_what_the_module_calls_a_table_moves_at_the_tables_rate(decay):
    sizes = {"d_model": 12, "num_heads": 3, "num_layers": 1, "d_ff": 20, "max_len": 7}
    model = SynthesizerForCausalLM(SynthesizerConfig(**sizes, vocab_size=11, synthesis="decay+dot"))
    optimizer = build_optimizer(model, Train(table_rate=7.0))
    tables = next(group for group in optimizer.param_groups if group["name"] == "tables")
    slope = model.model.decoder.layers[0].attention.synthesis.parts[0].slope
    assert tables["scale"] == 7.0
    assert any(parameter is slope for parameter in tables["params"])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spec", ["decay", "decay:power=3", "random+decay", "decay+dense+dot"])
def test_a_users_function_takes_the_fast_path_and_equals_the_plain_one(decay, spec, causal):
    fast_one = redrawn(SyntheticAttention(12, 3, 100, spec, causal=causal, path="fast"))
    plain = redrawn(SyntheticAttention(12, 3, 100, spec, causal=causal, path="plain"))
    x = tokens(2, 90, 12)
    mask = torch.ones(2, 90, dtype=torch.bool)
    mask[1, :20] = False
    for given in ({}, {"attention_mask": mask}):
        torch.testing.assert_close(fast_one(x, **given), plain(x, **given))
    fast_one(x).square().sum().backward()
    plain(x).square().sum().backward()
    for one, other in zip(fast_one.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_a_users_table_can_be_frozen(decay):
    attention = redrawn(SyntheticAttention(12, 3, 9, "decay", causal=True)).eval()
    x = tokens(2, 9, 12)
    expected = attention(x)
    attention.freeze()
    with torch.no_grad():
        torch.testing.assert_close(attention(x), expected)
    assert fast.dispatch.freeze(build_synthesis("dot", Size(12, 3, 9)), 9, causal=True) is None


def test_a_built_function_tells_its_spec(decay):
    size = Size(12, 3, 7)
    assert spec_of(build_synthesis("decay:power=3+dot", size)) == "decay:power=3+dot"


class Nameless(Synthesis):
    """B = s."""

    def __init__(self, size, *, k: int = 1):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(size.num_heads, size.max_len))

    def reset_parameters(self):
        torch.nn.init.ones_(self.scale)

    def forward(self, x, keys, positions, key_positions):
        return self.scale[None, :, None, key_positions].expand(-1, -1, x.shape[1], -1)


def test_an_undeclared_parameter_is_refused(forget):
    register_synthesis("nameless")(Nameless)
    with pytest.raises(UserError) as error:
        build_synthesis("nameless", Size(12, 3, 7))
    assert str(error.value) == (
        "synthesis 'nameless' does not say what its parameter 'scale' is; name it in "
        "Nameless.tables, .weights or .biases"
    )


def test_what_a_function_lacks_is_named(forget, monkeypatch):
    monkeypatch.setattr(Nameless, "tables", ("scale",))
    register_synthesis("nameless")(Nameless)
    module = build_synthesis("nameless", Size(12, 3, 7))
    with pytest.raises(
        UserError, match=r"Nameless cannot be resized; define its resize\(max_len\)"
    ):
        module.resize(9)
    with pytest.raises(UserError, match="'nameless' does not keep its option k; set"):
        spec_of(module)
    monkeypatch.setattr(Nameless, "depends_on_input", False)
    monkeypatch.setattr(
        Nameless, "forward", lambda self, x, *rest: x.new_zeros(len(x), 3, x.shape[1], x.shape[1])
    )
    with pytest.raises(UserError, match="has depends_on_input=False, and its logits have a batch"):
        SyntheticAttention(12, 3, 70, "nameless", path="fast")(torch.ones(2, 70, 12))


@pytest.mark.parametrize(
    ("name", "cls", "text"),
    [
        ("random", Nameless, "synthesis 'random' is already registered; choose another name"),
        ("R", Nameless, "synthesis name 'R'; use lower case letters, digits and _"),
        ("vanilla", Nameless, "synthesis 'vanilla' is already registered; choose another name"),
        ("mine", torch.nn.Linear, "Linear, to be registered as 'mine', must be a class derived"),
        (
            "mine",
            type("Empty", (Synthesis,), {}),
            "synthesizer_attention.Synthesis that defines forward()",
        ),
    ],
)
def test_a_bad_registration_says_why(forget, name, cls, text):
    with pytest.raises(UserError) as error:
        register_synthesis(name)(cls)
    assert text in str(error.value)


def test_two_modules_may_not_take_one_name(decay):
    with pytest.raises(UserError, match=r"'decay' is already registered by .*decay_function.py"):
        register_synthesis("decay")(Nameless)


def test_what_cannot_be_imported_is_named(tmp_path, forget):
    with pytest.raises(UserError, match="importing 'no_such_module' failed with ModuleNotFound"):
        registry.import_modules(["no_such_module"])
    with pytest.raises(UserError, match=r"there is no file .*missing.py; give .* path to a .py"):
        registry.import_modules([str(tmp_path / "missing.py")])


BROKEN = {
    "def f():\n    return 1 / 0\n\n\nf()\n": "line 2 of mine.py with ZeroDivisionError: division",
    "x = 1\ndef f(:\n": "line 2 of mine.py with SyntaxError: invalid syntax",
    "import sys\n\nsys.exit(0)\n": "line 3 of mine.py with sys.exit(0)",
    "from synthesizer_attention import *\nregister_synthesis('R')(Synthesis)\n": "line 2 of mine",
}
VERBS = [
    "train tiny.toml --out out",
    "train tiny.toml --check",
    "compare tiny.toml --out out",
    "compare text.txt --quick --out out",
    "compare tiny.toml --plan --out out",
    "evaluate run",
    "generate run",
    "report run",
    "bench --explain",
    "list",
]


@pytest.mark.parametrize("source", BROKEN, ids=["error", "syntax", "exit", "registration"])
@pytest.mark.parametrize("name", ["mine", "mine.py"])
def test_a_module_that_fails_ends_every_verb_before_it_starts(
    source, name, tmp_path, monkeypatch, capsys, forget
):
    """No spec here needs the module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    recipe = dump(language_model(tmp_path))
    Path("tiny.toml").write_text(recipe)
    Path("mine.py").write_text(source)
    Path("importing.toml").write_text(recipe.replace("imports = []", f'imports = ["{name}"]'))
    importing = [verb.replace("tiny", "importing") for verb in VERBS if "tiny" in verb]
    for verb in (*(f"{verb} --import {name}" for verb in VERBS), *importing):
        code = main(verb.split())
        printed = capsys.readouterr()
        assert (verb, code, printed.out) == (verb, 2, "")
        assert printed.err.startswith("synthesizer: error: importing ")
        assert f"{name}' failed at {BROKEN[source]}" in printed.err
        assert printed.err.count("\n") == 1
        assert not Path("out").exists()
        sys.modules.pop("mine", None)


def test_a_module_that_is_interrupted_is_an_interruption(tmp_path, capsys, forget):
    path = tmp_path / "slow.py"
    path.write_text("raise KeyboardInterrupt\n")
    assert main(["list", "--import", str(path)]) not in (0, 2)
    assert capsys.readouterr().out == ""
