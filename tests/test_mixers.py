"""A token mixer of the user's own, in the user's own file, works everywhere: the documents' own."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from synthesizer_attention import Mixer, Size, UserError, ValueCache, build_mixer, register_mixer
from synthesizer_attention import spec as registry
from synthesizer_attention.attention.baselines import spec_of_mixer
from synthesizer_attention.models import SynthesizerConfig, SynthesizerForCausalLM
from synthesizer_attention.run.recipe import dump
from synthesizer_attention.run.recipe_keys import Train
from synthesizer_attention.training.optim import build_optimizer
from tiny import language_model
from variants import SIZE, redrawn, tokens

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
BLOCKS.append((ROOT / "tools/linear_random.py").read_text())
SOURCES = {
    re.search(r'register_mixer\("(\w+)"', code)[1]: code for code in BLOCKS if "Mixer)" in code
}
TINY = {"d_model": 12, "num_heads": 3, "num_layers": 2, "d_ff": 20, "max_len": 9, "vocab_size": 11}
MASK = torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1], [1, 0, 1, 0, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]])
MASK = MASK.bool()


@pytest.fixture
def examples(tmp_path, forget):
    """Their files, imported."""
    for name, code in SOURCES.items():
        (tmp_path / f"{name}_file.py").write_text(code)
        registry.import_modules([str(tmp_path / f"{name}_file.py")])


def loop(mixer, x):
    """The definitions, pair by pair; x (T, D) is all real."""
    rows, heads, width = [], mixer.size.num_heads, mixer.size.d_head
    for i in range(len(x)):
        seen = range(i + 1 if mixer.causal else len(x))
        if mixer.name == "gmlp":
            u, v = nn.functional.gelu(mixer.widen(x)).chunk(2, -1)
            total = sum(mixer.spatial[i, j] * mixer.norm(v[j]) for j in seen) + mixer.offset[i]
            rows.append(mixer.narrow(u[i] * total))
            continue
        if mixer.name == "linear_random":
            v = mixer.value(x).view(len(x), heads, width)
            each = [sum(mixer.table[h, i, j] * v[j, h] for j in seen) for h in range(heads)]
            rows.append(mixer.output(torch.cat(each)))
            continue
        q, k, v = mixer.project(x).view(len(x), 3, heads, width).unbind(1)
        q, k = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1
        each = []
        for h in range(heads):
            weights = torch.stack([q[i, h] @ k[j, h] for j in seen])
            each.append(weights / weights.sum() @ v[: len(weights), h])
        rows.append(mixer.output(torch.cat(each)))
    return torch.stack(rows)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", SOURCES)
def test_an_example_is_its_definition_and_skips_padding(examples, name, causal):
    mixer, x = redrawn(build_mixer(name, SIZE, causal=causal)), tokens(4, 7, 12)
    found = mixer(x.masked_fill(~MASK[..., None], 99.0), attention_mask=MASK)
    for example, mask, one in zip(x, MASK, found, strict=True):
        torch.testing.assert_close(one[mask], loop(mixer, example[mask]))
    found.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


@pytest.mark.parametrize("chunks", [(1,) * 7, (3, 1, 3)])
@pytest.mark.parametrize("name", SOURCES)
def test_a_cache_gives_what_the_whole_sequence_gives(examples, name, chunks):
    """Linear attention keeps a state, the others their inputs."""
    mixer, x, cache = redrawn(build_mixer(name, SIZE, causal=True)), tokens(4, 7, 12), ValueCache()
    pieces, start = [], 0
    for piece in x.split(chunks, dim=1):
        start += piece.shape[1]
        pieces.append(mixer(piece, attention_mask=MASK[:, :start], cache=cache))
    whole = mixer(x, attention_mask=MASK)
    torch.testing.assert_close(torch.cat(pieces, dim=1)[MASK], whole[MASK])
    assert cache.values.shape == ((4, 3, 4, 5) if name == "linear_attention" else (4, 1, 7, 12))


@pytest.mark.parametrize("beams", [1, 3])
def test_a_model_of_both_generates_with_a_cache_as_without(examples, beams):
    torch.manual_seed(0)
    config = SynthesizerConfig(**TINY, synthesis="linear_attention,gmlp", eos_token_id=None)
    model = SynthesizerForCausalLM(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    ids, mask = torch.tensor([[3, 4, 5], [0, 7, 8]]), torch.tensor([[1, 1, 1], [0, 1, 1]])
    given = {"attention_mask": mask, "max_new_tokens": 5, "num_beams": beams, "do_sample": False}
    cached, whole = (model.generate(ids, **given, use_cache=use) for use in (True, False))
    assert torch.equal(cached, whole)
    with pytest.raises(UserError, match="linear_attention keeps the last tokens alone"):
        model.generate(ids[:1], max_new_tokens=2, prompt_lookup_num_tokens=2)


@pytest.mark.slow  # test_registry.py goes the same way with a function
def test_mixers_from_files_are_trained_measured_compared_and_loaded(
    tmp_path, command, load_elsewhere, examples
):
    files = [f"{name}_file.py" for name in SOURCES]
    recipe = language_model(tmp_path, "model.num_layers=2")
    (tmp_path / "mine.toml").write_text(dump(recipe.model_copy(update={"imports": tuple(files)})))
    spec = "linear_attention*1,gmlp*1"
    study = ["compare", "mine.toml", "--synthesis", "dot", "--synthesis", spec, "--seeds", 1]
    study += ["--jobs", 1, "--tune", 0, "--opponent", "configured", "--plain", "--out", "study"]
    assert "linear_attention" in command(*study)
    assert "linear_attention" in command("report", "study", "--out", "elsewhere")
    assert spec in (tmp_path / "elsewhere" / "table.csv").read_text()
    (out,) = (path.parent for path in (tmp_path / "study").glob("linear*/**/result.json"))
    imports = [word for file in files for word in ("--import", file)]
    assert "bits_per" in command("evaluate", out, *imports)
    assert command("generate", out, "--beam", 2, *imports)
    model = SynthesizerForCausalLM.from_pretrained(out / "model")
    refused, loaded = load_elsewhere(out / "model", *(tmp_path / file for file in files))
    assert refused.startswith("synthesis 'linear_attention' is not registered here; it was defined")
    said, number = loaded.split()
    assert said == spec
    assert float(number) == pytest.approx(model(torch.arange(5)[None]).logits.sum().item())
    listed = command("list", *imports)
    assert "linear_attention" in listed
    assert "gmlp" in listed
    assert "gmlp" not in command("list")
    bench = ["bench", "--variant", "linear_attention", *imports, "--length", 8, "--tokens", 16]
    bench += ["--d-model", 8, "--num-heads", 2, "--rounds", 1, "--plain"]
    assert "linear_attention" in command(*bench)


def test_a_packages_entry_point_needs_no_import(tmp_path, forks):
    (tmp_path / "brought.py").write_text(SOURCES["gmlp"])
    info = tmp_path / "brought-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    group = "[synthesizer_attention.mixers]\ngmlp = brought\nlost = not_there\n"
    (info / "entry_points.txt").write_text(group)
    script = f"""
import sys
sys.path.append({str(tmp_path)!r})
from synthesizer_attention import SynthesizerConfig
from synthesizer_attention.cli import main
print(SynthesizerConfig(kind="decoder", synthesis="gmlp").imports)
print(main(["list"]))
"""
    (tmp_path / "script.py").write_text(script)
    code, out, error = forks.run(cwd=tmp_path, script=tmp_path / "script.py")
    assert (code, out.splitlines()[0], out.splitlines()[-1]) == (0, "['brought']", "0")
    assert "Liu et al. 2021" in out
    assert error == (
        "synthesizer: brought brings 'lost' (synthesizer_attention.mixers), and importing it "
        "failed with ModuleNotFoundError: No module named 'not_there'; mend or remove brought\n"
    )
    (tmp_path / "script.py").write_text(script.replace('synthesis="gmlp"', 'synthesis="lost"'))
    code, out, error = forks.run(cwd=tmp_path, script=tmp_path / "script.py")
    assert code == 1
    assert "UserError: brought brings 'lost'" in error


def test_a_layer_of_fla_is_a_mixer(forget):
    pytest.importorskip("fla")
    blocks = re.findall(r"```py\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    (code,) = (block for block in blocks if "from fla" in block)
    exec(code, {"__name__": "gated"})
    mixer = build_mixer("gated_linear_attention", Size(32, 2, 16), causal=True)
    assert mixer.layer.hidden_size == 32
    if torch.cuda.is_available():
        x = torch.randn(2, 8, 32, device="cuda")
        assert mixer.cuda()(x).shape == x.shape


def test_a_mixers_tables_move_at_the_tables_rate_and_start_as_it_says(examples):
    model = SynthesizerForCausalLM(SynthesizerConfig(**TINY, synthesis="gmlp,dot"))
    optimizer = build_optimizer(model, Train(table_rate=7.0))
    (tables,) = (group for group in optimizer.param_groups if group["name"] == "tables")
    mixer = model.model.decoder.layers[0].attention
    assert {id(parameter) for parameter in tables["params"]} == {
        id(mixer.spatial),
        id(mixer.offset),
    }
    assert not mixer.spatial.any()
    assert (mixer.offset == 1).all()
    with pytest.raises(UserError, match=r"SpatialGating cannot be resized; define its resize\(max"):
        model.resize(20)


class Mean(Mixer):
    """Y[i] = mean_j x[j]."""

    depends_on_input = False

    def __init__(self, size, causal=False, dropout=0.0, *, power: int = 1):
        super().__init__(size, causal, dropout)
        self.power = power

    def mix(self, x, real, positions, cache):
        return x.mean(1, keepdim=True).expand_as(x)


class Summed(Mean):
    """Y[i] = sum of x[j] up to i, but for what came in earlier calls."""

    takes_causal = keeps_state = True

    def mix(self, x, real, positions, cache):
        if cache is not None:
            cache.keep(None, x, x.shape[1])
        return x.cumsum(1)


class Scaled(Mean):
    """Y = s x."""

    def __init__(self, size, causal=False, dropout=0.0):
        super().__init__(size, causal, dropout)
        self.scale = nn.Parameter(torch.ones(1))


def test_what_a_mixer_cannot_do_is_refused_in_a_line(forget):
    register_mixer("mean")(Mean)
    mixer, x = build_mixer("mean:power=2", SIZE), tokens(2, 3, 12)
    assert spec_of_mixer(mixer) == "mean:power=2"
    torch.testing.assert_close(mixer(x, attention_mask=torch.ones(2, 3)), mixer(x))
    with pytest.raises(UserError) as error:
        mixer(x, attention_mask=torch.tensor([[1, 1, 1], [1, 1, 0]]))
    assert str(error.value) == (
        "'mean' cannot leave padding out, and attention_mask hides tokens; give batches of "
        "sequences of one length, without a mask"
    )
    with pytest.raises(UserError) as error:
        SynthesizerConfig(**TINY, kind="decoder", synthesis="mean,dot")
    assert str(error.value) == (
        "mean cannot be causal: its outputs read later tokens; use it in an encoder, and another "
        "spec for a decoder (decoder_synthesis)"
    )
    with pytest.raises(UserError, match="mixes with 'mean', a token mixer that makes no logits"):
        build_mixer("mean+dot", SIZE)
    with pytest.raises(UserError, match="'mean' has no attention weights between tokens"):
        mixer.attend(x)


@pytest.mark.parametrize(
    ("cls", "claims", "text"),
    [
        (Mean, {"takes_causal": True}, "takes_causal=True, and its outputs change with a later"),
        (Mean, {"takes_padding": True}, "takes_padding=True, and its outputs change with padding"),
        (Summed, {}, "keeps_state=True, and token by token its outputs are others; correct mix()"),
        (Scaled, {}, "does not say what its parameter 'scale' is; name it in Scaled.tables, .wei"),
    ],
)
def test_a_mixer_is_held_to_its_word_and_no_draw_is_lost(forget, monkeypatch, cls, claims, text):
    for name, value in claims.items():
        monkeypatch.setattr(cls, name, value)
    register_mixer("mine")(cls)
    before = torch.get_rng_state()
    for _ in range(2):
        with pytest.raises(UserError) as error:
            build_mixer("mine", Size(12, 3, 7), causal=cls.takes_causal)
        assert text in str(error.value)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "cls", "text"),
    [
        ("lightconv", Mean, "synthesis 'lightconv' is already registered; choose another name"),
        ("mine", nn.Linear, "Linear, to be registered as 'mine', must be a class derived from syn"),
        ("mine", type("Empty", (Mixer,), {}), "synthesizer_attention.Mixer that defines mix()"),
        ("mine", type("Drawn", (Mean,), {"tables": ("t",)}), "that defines reset_parameters()"),
    ],
)
def test_a_bad_registration_says_why(forget, name, cls, text):
    with pytest.raises(UserError) as error:
        register_mixer(name)(cls)
    assert text in str(error.value)
