"""Sequences that share a row, as collators without padding pack them, are kept apart."""

import pytest
import torch
from transformers import DataCollatorWithFlattening

from synthesizer_attention.errors import UserError
from synthesizer_attention.models import (
    MODELS,
    SynthesizerConfig,
    SynthesizerForCausalLM,
    SynthesizerModel,
)
from synthesizer_attention.models.backbone import find_packing

LENGTHS = [3, 5, 1, 4]
SPECS = ["dot", "random", "dense", "random+dot", "factorized_random", "none", "lightconv:kernel=3"]
SPECS += ["dynamicconv:kernel=3"]
CLOSE = {"rtol": 1e-9, "atol": 1e-12}


def build(synthesis="random+dot", kind="decoder", **options):
    torch.manual_seed(0)
    sizes = {"vocab_size": 17, "d_model": 12, "num_heads": 3, "num_layers": 2, "max_len": 7}
    config = SynthesizerConfig(kind=kind, synthesis=synthesis, **(sizes | options))
    model = MODELS[kind](config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def sequences():
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(2, 17, (length,), generator=draw) for length in LENGTHS]


def packed():
    """13 tokens in one row: more than max_len, which each sequence alone keeps."""
    row = torch.cat(sequences())[None]
    at = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    return row, at


def ends():
    return torch.tensor([0, *LENGTHS], dtype=torch.int32).cumsum(0).int()


FORMS = {
    "position_ids": lambda: {"position_ids": packed()[1]},
    "cu_seq_lens": lambda: {"cu_seq_lens_q": ends(), "cu_seq_lens_k": ends()},
    "all": lambda: {
        "position_ids": packed()[1],
        "cu_seq_lens_q": ends(),
        "cu_seq_lens_k": ends(),
        "max_length_q": 5,
        "max_length_k": 5,
        "seq_idx": torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))[None],
    },
}


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("positions", ["sinusoidal", "relative"])
def test_packed_sequences_give_what_each_gives_alone(spec, positions):
    model = build(spec, positions=positions)
    expected = torch.cat([model(sequence[None]).logits for sequence in sequences()], dim=1)
    row, _ = packed()
    for form in FORMS.values():
        torch.testing.assert_close(model(row, **form()).logits, expected, **CLOSE)


@pytest.mark.parametrize("form", FORMS)
def test_packed_sequences_learn_as_rows_of_their_own(form):
    """Also where the labels of a collator do not hide the first token of each sequence."""
    one, other = build(window=2), build(window=2)
    row, _ = packed()
    one(row, labels=row, **FORMS[form]()).loss.backward()
    rows = torch.nn.utils.rnn.pad_sequence(sequences(), batch_first=True)
    labels = torch.nn.utils.rnn.pad_sequence(sequences(), batch_first=True, padding_value=-100)
    other(rows, attention_mask=labels != -100, labels=labels).loss.backward()
    for (name, mine), right in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, right.grad, **CLOSE, msg=lambda m, n=name: f"{n} {m}")


def test_what_hugging_faces_collator_without_padding_gives_is_taken():
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    batch = collate([{"input_ids": sequence.tolist()} for sequence in sequences()])
    row, at = packed()
    found, expected = build()(**batch), build()(row, position_ids=at, labels=row)
    torch.testing.assert_close(found.loss, expected.loss)
    assert torch.equal(found.logits, expected.logits)


def test_rows_may_be_packed_differently_and_end_in_hidden_tokens():
    model, (row, at) = build(), packed()
    rows = torch.cat([row[:, :8], row[:, 5:]])
    positions = torch.stack([at[0, :8], torch.tensor([0, 1, 2, 3, 0, 1, 0, 0])])
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 6:] = 0
    output = model(rows, position_ids=positions, attention_mask=mask, output_hidden_states=True)
    parts = [row[:, :3], row[:, 3:8], row[:, 5:9], row[:, 9:11]]
    alone = [model(part, output_hidden_states=True) for part in parts]
    for states, *each in zip(
        output.hidden_states, *(part.hidden_states for part in alone), strict=True
    ):
        torch.testing.assert_close(states[0], torch.cat(each[:2], 1)[0], **CLOSE)
        torch.testing.assert_close(states[1, :6], torch.cat(each[2:], 1)[0], **CLOSE)


def test_padding_at_position_0_is_not_a_sequence():
    """`generate` gives hidden tokens on the left the position 0, or 1."""
    model, tokens = build(), packed()[0][:, :6]
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]])
    at = torch.tensor([[0, 0, 0, 1, 2, 3]])
    output = model(tokens, attention_mask=mask, position_ids=at, use_cache=True)
    assert output.past_key_values.get_seq_length() == 6
    alone = model(tokens[:, 2:]).logits
    torch.testing.assert_close(output.logits[:, 2:], alone, **CLOSE)


def test_tokens_behind_a_cache_are_not_packed():
    """Their mask is longer than their positions are many."""
    model, tokens = build(), packed()[0][:, :6]
    mask, at = torch.ones(1, 6, dtype=torch.long), torch.arange(6)[None]
    mask[0, 0] = 0
    expected = model(tokens, attention_mask=mask).logits
    cache = model(tokens[:, :3], attention_mask=mask[:, :3], use_cache=True).past_key_values
    given = {"attention_mask": mask, "past_key_values": cache}
    found = model(tokens[:, 3:], position_ids=at[:, 3:] - 1, **given).logits
    torch.testing.assert_close(found, expected[:, 3:], **CLOSE)
    with pytest.raises(UserError, match="start again within a row: past_key_values cannot hold"):
        model(tokens[:, 3:], position_ids=torch.tensor([[0, 1, 0]]), past_key_values=cache)
    assert find_packing(torch.tensor([[0, 1, 0]]), torch.ones(1, 6), 1, 3) is None


@pytest.mark.parametrize("form", FORMS)
def test_the_body_alone_keeps_sequences_apart(form):
    """TRL's trainers call it, and compute the loss from its states."""
    model, (row, at) = build(), packed()
    states = model.base_model(row, **FORMS[form]()).last_hidden_state
    torch.testing.assert_close(model.lm_head(states), model(row, position_ids=at).logits)
    assert isinstance(model.base_model, SynthesizerModel)


def test_a_misspelt_keyword_of_a_forward_is_refused():
    for model in (build(), build().base_model):
        with pytest.raises(TypeError, match="unexpected keyword argument 'cu_seqlens'"):
            model(packed()[0][:, :6], cu_seqlens=torch.tensor([0, 6]))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"seq_idx": torch.zeros(1, 13)}, "seq_idx says that a row holds several sequences, and"),
        ({"max_length_q": 5}, "max_length_q says that a row holds several sequences, and not"),
        (
            {"cu_seq_lens_q": torch.tensor([0, 4, 9])},
            "cu_seq_lens_q runs from 0 to 9 over 1 rows of 13 tokens; expected one row, and",
        ),
        (
            {"cu_seq_lens_q": torch.tensor([0, 4, 13]), "cu_seq_lens_k": torch.tensor([0, 9, 20])},
            "cu_seq_lens_q and cu_seq_lens_k differ, as for keys of a cache in pages",
        ),
        (
            {"cu_seq_lens_q": torch.tensor([0, 4, 13]), "cu_seq_lens_k": {"full_attention": None}},
            "cu_seq_lens_q and cu_seq_lens_k differ, as for keys of a cache in pages",
        ),
        (
            {"cu_seq_lens_q": torch.tensor([0, 4, 13]), "position_ids": packed()[1]},
            "position_ids and cu_seq_lens_q disagree; leave one of them out",
        ),
        (
            {"position_ids": packed()[1].roll(-1)},
            "position_ids begin at 1 and start again at 0 within a row; have each sequence of it",
        ),
        (
            {"position_ids": packed()[1], "output_attentions": True},
            "position_ids start again within a row: output_attentions cannot hold several",
        ),
    ],
)
def test_what_cannot_be_kept_apart_is_refused_in_one_line(given, text):
    with pytest.raises(UserError) as error:
        build()(packed()[0], **given)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_a_cache_and_a_universal_model_refuse_packed_rows():
    model, (row, at) = build(), packed()
    with pytest.raises(UserError, match="start again within a row: past_key_values cannot hold"):
        model.generate(row[:, :6], position_ids=at[:, :6], max_new_tokens=1)
    with pytest.raises(UserError, match="start again within a row: a universal model cannot"):
        build("dot", universal=True)(row, position_ids=at)


def test_continuous_batching_is_refused_before_it_starts():
    """It gave its keys' lengths as a dict, and the error of a comparison with one."""
    with pytest.raises(UserError, match="continuous batching keeps keys in pages, and a Synthes"):
        build().generate_batch([[3, 4, 5], [6, 7]])


@pytest.mark.parametrize("kind", ["encoder", "encoder_decoder"])
def test_other_kinds_refuse_packed_rows(kind):
    row, _ = packed()
    with pytest.raises(
        UserError, match=r"cu_seq_lens_q says .* which only a causal language model"
    ):
        build(kind=kind)(row[:, :6], labels=row[:, :6], cu_seq_lens_q=torch.tensor([0, 3, 6]))
    with pytest.raises(UserError, match="cu_seq_lens_q says"):
        build(kind=kind).base_model(row[:, :6], cu_seq_lens_q=torch.tensor([0, 3, 6]))


def test_a_compiled_model_refuses_positions_that_start_again():
    """Its shapes do not depend on values: it followed the positions and mixed the sequences."""
    torch._dynamo.reset()
    model, (row, at) = build("random", num_layers=1), packed()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    counted = torch.arange(6)[None]
    expected = model(row[:, :6], position_ids=counted, use_cache=False).logits
    found = compiled(row[:, :6], position_ids=counted, use_cache=False).logits
    torch.testing.assert_close(found, expected)
    with pytest.raises(RuntimeError, match="position_ids start again within a row: a compiled"):
        compiled(row[:, :6], position_ids=at[:, :6], use_cache=False)


def test_positions_of_another_kind_are_followed():
    model, tokens = build(), packed()[0][:, :4]
    for at in ([3, 1, 0, 2], [0, 2, 4, 6], [2, 3, 4, 5]):
        output = model(tokens, position_ids=torch.tensor([at]), output_attentions=True)
        assert output.attentions[0].shape == (1, 3, 4, 4)
    assert isinstance(model, SynthesizerForCausalLM)
