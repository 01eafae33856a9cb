"""What programs on top of Hugging Face's `generate` and forward ask of a model."""

import pytest
import torch

from synthesizer.data.tokenizer import train_tokenizer
from synthesizer.errors import UserError
from synthesizer.experiment.recipe import Text
from synthesizer.models.config import SynthesizerConfig
from synthesizer.models.heads import SynthesizerForCausalLM, SynthesizerForConditionalGeneration

SYNTHESES = ["random+dot", "random", "dense", "dot"]
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


def test_packed_sequences_are_refused_in_one_line():
    model = build(SynthesizerForCausalLM)
    starts = torch.tensor([0, 4, 8], dtype=torch.int32)
    with pytest.raises(UserError, match=r"cu_seq_lens_q says that a row holds several packed seq"):
        model(IDS, cu_seq_lens_q=starts, cu_seq_lens_k=starts, max_length_q=4, max_length_k=4)


def test_prompts_padded_on_the_right_are_refused_by_name():
    model = build(SynthesizerForCausalLM)
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, -2:] = 0
    with pytest.raises(UserError, match=r"a prompt ends in padding .* pad on the left: tokenizer"):
        model.generate(IDS.repeat(2, 1), attention_mask=mask, max_new_tokens=2)
    model.generate(IDS.repeat(2, 1), attention_mask=mask.flip(1), max_new_tokens=2)
