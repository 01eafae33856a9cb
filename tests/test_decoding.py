from dataclasses import replace

import pytest
import torch

from synthesizer_attention.data.batch import Batch
from synthesizer_attention.models.config import SynthesizerConfig
from synthesizer_attention.models.heads import MODELS
from synthesizer_attention.run.run import Run
from synthesizer_attention.tasks import build_task
from synthesizer_attention.training.build import build_model, initialize_by_name
from synthesizer_attention.training.evaluate import NEW_TOKENS, PROMPTS, continuations, decode
from synthesizer_attention.training.loop import fit
from tiny import language_model

CPU = torch.device("cpu")
END = 1


def built(kind, **sizes):
    config = SynthesizerConfig(
        kind=kind, vocab_size=11, d_model=12, num_heads=3, num_layers=2, d_ff=20,
        synthesis="random+dot", pad_token_id=0, eos_token_id=END, **sizes,
    )  # fmt: skip
    model = MODELS[kind](config)
    initialize_by_name(model, 3)
    return model


def batch_of(rows, length):
    ids = torch.randint(2, 11, (rows, length), generator=torch.Generator().manual_seed(5))
    return Batch({"input_ids": ids, "labels": ids}, 0, 0, ())


@pytest.mark.parametrize(
    ("kind", "max_len", "prompt", "new"),
    [
        ("decoder", 80, NEW_TOKENS, NEW_TOKENS),
        ("decoder", 7, 4, 3),
        ("encoder_decoder", 80, 80, NEW_TOKENS),
        ("encoder_decoder", 7, 7, 7),
    ],
)
def test_every_model_writes_as_many_tokens_after_as_long_a_prompt(kind, max_len, prompt, new):
    """One that would end at once writes on: else a worse model would look faster."""
    model = built(kind, max_len=max_len)
    with torch.no_grad():
        model.get_output_embeddings().weight[END] = 1e3 * model.get_output_embeddings().weight[2]
    decoded = decode(model, batch_of(PROMPTS + 3, max_len))
    assert decoded.prompts.shape == (PROMPTS, prompt)
    assert decoded.written.shape == (PROMPTS, new)
    assert END not in decoded.written
    assert decoded.tokens_per_second > 0


def test_short_texts_are_no_prompts_where_longer_ones_are_there():
    """They ended the training in an error: a prompt ends in padding."""
    model, batch = built("decoder", max_len=80), batch_of(5, 40)
    real = torch.ones(5, 40, dtype=torch.bool)
    real[1, 10:] = real[3, 33:] = False
    decoded = decode(model, replace(batch, inputs=batch.inputs | {"attention_mask": real}))
    assert decoded.rows.tolist() == [0, 2, 3, 4]
    real[:, 10:] = False
    decoded = decode(model, replace(batch, inputs=batch.inputs | {"attention_mask": real}))
    assert decoded.prompts.tolist() == batch.inputs["input_ids"][:, :10].tolist()


def test_what_a_decoder_writes_stands_beside_how_the_text_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("SYNTHESIZER_CACHE", str(tmp_path / "cache"))
    recipe = language_model(tmp_path)
    fit(recipe, Run(tmp_path / "run"))
    text = (tmp_path / "text.txt").read_text()
    task = build_task(recipe)
    batch = next(iter(task.batches("test")))
    model = build_model(recipe, task.tokenizer, task.labels)
    first, *_ = continuations(task, batch, decode(model, batch))
    assert first["source"] + first["reference"] in text
    samples = (tmp_path / "run/samples.txt").read_text()
    assert samples.startswith(f"source: {first['source']}\nreference: {first['reference']}\noutput")


def test_a_run_says_what_its_training_needed_whatever_its_process_did_before(tmp_path):
    recipe = language_model(tmp_path)
    results = [fit(recipe, Run(tmp_path / name)) for name in ("first", "second")]
    least = 16 * results[0]["parameters"]["total"]  # weights, gradients, two moments
    first, second = (result["training_memory_bytes"] for result in results)
    assert least < first < 20 * least
    assert first == second
