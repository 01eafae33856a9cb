"""What programs on top of Hugging Face's `generate` and forward ask of a model."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import init_empty_weights, load_checkpoint_and_dispatch
from transformers import AutoModelForCausalLM

from synthesizer_attention.data.tokenizer import train_tokenizer
from synthesizer_attention.errors import UserError
from synthesizer_attention.models.config import SynthesizerConfig
from synthesizer_attention.models.heads import (
    SynthesizerForCausalLM,
    SynthesizerForConditionalGeneration,
)
from synthesizer_attention.run.recipe_keys import Text
from tiny import environment

PAGE = Path(__file__).parents[1] / "docs" / "hugging_face.md"
SYNTHESES = ["random+dot", "dense"]
IDS = torch.tensor([[5, 9, 40, 9, 7, 30, 9, 40]])


def build(cls, synthesis="random+dot", **options):
    torch.manual_seed(0)
    config = SynthesizerConfig(
        kind=cls.kind,
        synthesis=synthesis,
        vocab_size=270,
        d_model=16,
        num_heads=2,
        num_layers=2,
        max_len=32,
        pad_token_id=0,
        eos_token_id=1,
        **options,
    )
    return cls(config).eval()


@pytest.mark.parametrize("synthesis", SYNTHESES)
@pytest.mark.parametrize("how", ["assistant", "lookup"])
def test_an_encoder_decoder_decodes_the_same_with_a_draft(synthesis, how):
    """It stopped in `crop` of the paired cache."""
    model = build(SynthesizerForConditionalGeneration, synthesis)
    drafts = {
        "assistant": {"assistant_model": build(SynthesizerForConditionalGeneration, "random")},
        "lookup": {"prompt_lookup_num_tokens": 3},
    }
    plain = model.generate(IDS, max_new_tokens=12, do_sample=False)
    drafted = model.generate(IDS, max_new_tokens=12, do_sample=False, **drafts[how])
    assert torch.equal(plain, drafted)


@pytest.mark.parametrize("cls", [SynthesizerForCausalLM, SynthesizerForConditionalGeneration])
def test_generation_ends_at_a_stop_string(cls):
    model, tokenizer = build(cls), train_tokenizer(Text(kind="byte"), [["a"]])
    letters = set(tokenizer("abcdefghijklmnopqrstuvwxyz", add_special_tokens=False).input_ids)
    plain = {
        "max_new_tokens": 10,
        "do_sample": False,
        "suppress_tokens": [token for token in range(270) if token not in letters],
    }
    prompt = 1 if cls.kind == "encoder_decoder" else IDS.shape[1]
    whole = model.generate(IDS, **plain)[0]
    wanted = tokenizer.decode(whole[prompt : prompt + 2])
    stopped = model.generate(IDS, stop_strings=[wanted], tokenizer=tokenizer, **plain)[0]
    assert torch.equal(stopped, whole[: prompt + 2])


def test_prompts_padded_on_the_right_are_refused_by_name():
    model = build(SynthesizerForCausalLM)
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, -2:] = 0
    with pytest.raises(UserError, match=r"a prompt ends in padding .* pad on the left: tokenizer"):
        model.generate(IDS.repeat(2, 1), attention_mask=mask, max_new_tokens=2)
    model.generate(IDS.repeat(2, 1), attention_mask=mask.flip(1), max_new_tokens=2)


def test_the_example_of_lora_in_the_docs_runs(tmp_path, monkeypatch):
    """A table's adapter learns, is saved and loaded, and merges into the table."""
    pytest.importorskip("peft")
    (example,) = re.findall(r"```python\n(from peft .*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    build(SynthesizerForCausalLM, "random+dot").save_pretrained("base")
    names = {"ids": IDS}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(example, names)
    adapted, merged = names["again"], names["merged"]
    grown = [name for name, p in names["adapted"].named_parameters() if p.requires_grad]
    assert {name.split(".")[-4] for name in grown} == {"0", "value", "output"}
    plain = AutoModelForCausalLM.from_pretrained("base")
    before, after = plain(IDS).logits, adapted(IDS).logits
    assert not torch.allclose(before, after, atol=1e-4)
    torch.testing.assert_close(merged(IDS).logits, after, atol=1e-5, rtol=1e-4)
    table = "model.decoder.layers.0.attention.synthesis.parts.0.table"
    assert not torch.equal(merged.get_parameter(table), plain.get_parameter(table))


def test_an_adapter_that_would_not_reach_the_keys_is_refused():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_parameters=["synthesis.wk"])
    adapted = peft.get_peft_model(build(SynthesizerForCausalLM, "dot"), config)
    with pytest.raises(UserError, match="an adapter on wk of DotProduct does not reach its keys"):
        adapted(IDS)


def test_the_example_of_loading_in_the_docs_fails_as_quoted_without_its_first_line(tmp_path):
    """And the line to type is that first line."""
    build(SynthesizerForCausalLM).save_pretrained(tmp_path / "folder")
    page = " ".join(PAGE.read_text().split())
    example = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    first, _, rest = example.partition("\n")
    script = f"""
try:
    exec({rest!r})
except ValueError as error:
    print(error)
exec({example!r})
print(type(model).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    refused, *_, opened = done.stdout.splitlines()
    (quoted,) = re.findall(r'The checkpoint [^."]*', page)
    assert quoted in refused
    assert f"Add `{first.split('  #')[0]}`" in page
    assert opened == "SynthesizerForCausalLM"


@pytest.mark.parametrize(
    ("cls", "place", "synthesis"),
    [
        *[(SynthesizerForCausalLM, "model.decoder", synthesis) for synthesis in SYNTHESES],
        (SynthesizerForConditionalGeneration, "model.encoder", "random+dot"),
        (SynthesizerForConditionalGeneration, "model.decoder", "random+dot"),
    ],
)
def test_offloaded_weights_are_read_by_layers_or_refused(cls, place, synthesis, tmp_path):
    """Read part by part they are on no device: logits were of uninitialised memory."""
    model = build(cls, synthesis)
    model.save_pretrained(tmp_path)
    causal = cls is SynthesizerForCausalLM
    names = ["model.embedding", "model.decoder", "lm_head"] + ([] if causal else ["model.encoder"])
    places = dict.fromkeys(names, "cpu") | {place: "disk"}
    given = {"input_ids": IDS} | ({} if causal else {"decoder_input_ids": IDS})
    for preloaded in (None, ["Layer"]):
        with init_empty_weights():
            empty = cls(model.config)
        empty.tie_weights()
        away = {"offload_folder": tmp_path / f"away {preloaded}"}
        offloaded = load_checkpoint_and_dispatch(
            empty, tmp_path, places, preload_module_classes=preloaded, **away
        ).eval()
        if preloaded is None:
            with pytest.raises(UserError, match="weights of a layer are offloaded, and its att"):
                offloaded(**given)
    assert torch.equal(offloaded(**given).logits, model(**given).logits)
    written = [each.generate(IDS, max_new_tokens=3) for each in (offloaded, model)]
    assert torch.equal(*written)


def test_a_head_that_is_offloaded_gives_the_same_logits(tmp_path):
    model = build(SynthesizerForCausalLM, tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    places = {"model": "cpu", "lm_head": "disk"}
    offloaded = AutoModelForCausalLM.from_pretrained(
        tmp_path, device_map=places, offload_folder=tmp_path / "away"
    )
    torch.testing.assert_close(offloaded(IDS).logits, model(IDS).logits)
