"""What users of Hugging Face rely on: saving, Auto classes, generate, Trainer, pipelines."""

import json
import re
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from safetensors import safe_open
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
    pipeline,
)

from synthesizer_attention import (
    SynthesizerForCausalLM,
    SynthesizerForConditionalGeneration,
    SynthesizerForSequenceClassification,
    SynthesizerModel,
    UserError,
    parameter_groups,
)
from test_models import EVERY_LAYER, TINY, build, config, every_layer, ids

KINDS = {
    AutoModelForCausalLM: SynthesizerForCausalLM,
    AutoModelForSeq2SeqLM: SynthesizerForConditionalGeneration,
    AutoModelForSequenceClassification: SynthesizerForSequenceClassification,
}
NO_STOP = {"eos_token_id": None, "pad_token_id": 0}


def logits_of(model):
    if model.config.is_encoder_decoder:
        return model(ids(2, 6), decoder_input_ids=ids(2, 5, seed=4)).logits
    return model(ids(2, 6)).logits


@pytest.mark.parametrize("spec", EVERY_LAYER)
def test_saved_and_loaded_a_model_is_the_same_to_the_bit(spec, tmp_path):
    """Models are built on the meta device first: what __init__ alone fills comes back void."""
    model = build(SynthesizerForCausalLM, spec, positions="learned")
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert type(again) is SynthesizerForCausalLM
    state = again.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(logits_of(again), logits_of(model))
    assert again.config.to_dict().keys() == model.config.to_dict().keys()


@pytest.mark.parametrize("auto", KINDS)
def test_auto_classes_find_every_model(auto, tmp_path):
    model = build(KINDS[auto], "fixed_random+dense", positions="relative")
    model.save_pretrained(tmp_path)
    again = auto.from_pretrained(tmp_path, dtype=torch.float64)
    assert type(again) is KINDS[auto]
    assert torch.equal(logits_of(again), logits_of(model))
    assert AutoConfig.from_pretrained(tmp_path).synthesis == "fixed_random+dense"
    assert type(AutoModel.from_pretrained(tmp_path)) is SynthesizerModel
    assert type(auto.from_config(config("R"))) is KINDS[auto]


def test_a_fresh_model_starts_as_its_parts_start():
    model = SynthesizerForCausalLM(config("random+fixed_random", d_model=96, max_len=64))
    for layer in model.model.decoder.layers:
        learned, fixed = layer.attention.synthesis.parts
        assert learned.table.std().item() == pytest.approx(0.02, rel=0.1)
        assert fixed.table.std().item() == pytest.approx(1.0, rel=0.1)


def test_tied_weights_are_saved_once(tmp_path):
    build(SynthesizerForCausalLM).save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = list(file.keys())
    assert len([name for name in names if "embedding" in name or "lm_head" in name]) == 1
    model = SynthesizerForCausalLM.from_pretrained(tmp_path)
    assert model.lm_head.weight is model.model.embedding.weight
    loose = SynthesizerForCausalLM(config(tie_word_embeddings=False))
    assert loose.lm_head.weight is not loose.model.embedding.weight


@every_layer
@pytest.mark.parametrize("how", ["greedy", "beam", "sampled"])
def test_generate_gives_the_same_with_and_without_a_cache(spec, how):
    model = build(SynthesizerForCausalLM, spec, max_len=8)
    prompt, mask = ids(2, 3), torch.tensor([[1, 1, 1], [0, 1, 1]])
    asked = {"max_new_tokens": 5, **NO_STOP, "do_sample": how == "sampled"}
    asked |= {"output_logits": True, "return_dict_in_generate": True}
    asked |= {"num_beams": 3 if how == "beam" else 1, "attention_mask": mask}
    torch.manual_seed(3)
    cached = model.generate(prompt, **asked)
    torch.manual_seed(3)
    plain = model.generate(prompt, use_cache=False, **asked)
    assert torch.equal(cached.sequences, plain.sequences)
    for ours, theirs in zip(cached.logits, plain.logits, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0)


@every_layer
def test_an_encoder_decoder_generates_the_same_with_and_without_a_cache(spec):
    model = build(SynthesizerForConditionalGeneration, spec)
    source, mask = ids(2, 5), torch.tensor([[1] * 5, [1, 1, 1, 0, 0]])
    asked = {"max_new_tokens": 6, "do_sample": False, "num_beams": 2, "eos_token_id": None}
    cached = model.generate(source, attention_mask=mask, **asked)
    plain = model.generate(source, attention_mask=mask, use_cache=False, **asked)
    assert torch.equal(cached, plain)


@pytest.mark.parametrize("spec", ["random", "fixed_random", "dense", "random+dot"])
def test_a_left_padded_batch_generates_what_each_prompt_generates_alone(spec):
    model = build(SynthesizerForCausalLM, spec)
    short, long = ids(1, 2, seed=6), ids(1, 4, seed=7)
    batch = torch.cat([torch.cat([torch.zeros(1, 2, dtype=torch.long), short], dim=1), long])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    asked = {"max_new_tokens": 4, "do_sample": False, **NO_STOP}
    together = model.generate(batch, attention_mask=mask, **asked)
    assert torch.equal(together[0, 2:], model.generate(short, **asked)[0])
    assert torch.equal(together[1], model.generate(long, **asked)[0])


def test_prompt_lookup_crops_the_cache_and_changes_nothing():
    model, prompt = build(SynthesizerForCausalLM, "random+dot", max_len=24), ids(1, 6)
    asked = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": 1, "pad_token_id": 0}
    plain = model.generate(prompt, **asked)
    assert plain.shape[1] > 8
    looked_up = model.generate(prompt, prompt_lookup_num_tokens=2, **asked)
    assert torch.equal(plain, looked_up)


@pytest.mark.parametrize(
    ("spec", "window", "text"),
    [("random+dot", 7, "window=7 keeps the last"), ("random,lightconv", None, "lightconv keeps")],
)
def test_what_cannot_take_tokens_back_refuses_an_assistant_before_the_first(spec, window, text):
    """It stopped in mid-generation, at the first rejected token."""
    forgetful = build(SynthesizerForCausalLM, spec, max_len=24, window=window)
    other, prompt, calls = build(SynthesizerForCausalLM, max_len=24), ids(1, 4), []
    asked = {"do_sample": False, **NO_STOP}
    for model in (forgetful, other):
        model.register_forward_pre_hook(lambda *_: calls.append(1))
    for model, helped in [
        (forgetful, {"prompt_lookup_num_tokens": 2}),
        (forgetful, {"assistant_model": other}),
        (other, {"assistant_model": forgetful}),
    ]:
        with pytest.raises(UserError, match=text):
            model.generate(prompt, max_new_tokens=12, **helped, **asked)
        assert calls == []
    if window is not None:  # nothing is forgotten up to here
        asked["eos_token_id"] = 1  # transformers 5.4 looks for one in what it looked up
        plain = forgetful.generate(prompt, max_new_tokens=3, **asked)
        looked_up = {"prompt_lookup_num_tokens": 2, **asked}
        assert torch.equal(forgetful.generate(prompt, max_new_tokens=3, **looked_up), plain)


def test_generate_refuses_to_pass_max_len_before_the_first_token():
    model = build(SynthesizerForCausalLM)
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    with pytest.raises(UserError) as error:
        model.generate(ids(1, 5), max_new_tokens=4, **NO_STOP)
    assert (
        "asked for 9 tokens, prompt and new ones together, from a model built for max_len=8"
        in str(error.value)
    )
    assert calls == []
    assert model.generate(ids(1, 5), max_new_tokens=3, **NO_STOP).shape == (1, 8)
    seq2seq = build(SynthesizerForConditionalGeneration)
    with pytest.raises(
        UserError, match="asked for 9 new tokens from a model built for decoder_max"
    ):
        seq2seq.generate(ids(1, 5), max_new_tokens=9)
    assert seq2seq.generate(ids(1, 8), max_new_tokens=8, eos_token_id=None).shape == (1, 9)


def test_a_static_cache_is_refused_clearly():
    with pytest.raises(UserError, match="cache_implementation='static' keeps keys that a Synth"):
        build(SynthesizerForCausalLM).generate(
            ids(1, 3), max_new_tokens=2, cache_implementation="static", **NO_STOP
        )


def test_generate_returns_attention_weights_when_asked():
    model = build(SynthesizerForCausalLM, "random")
    output = model.generate(
        ids(1, 3),
        max_new_tokens=2,
        output_attentions=True,
        return_dict_in_generate=True,
        **NO_STOP,
    )
    assert output.attentions[0][0].shape == (1, 3, 3, 3)
    assert output.attentions[1][0].shape == (1, 3, 1, 4)


@pytest.mark.parametrize("cls", [SynthesizerForCausalLM, SynthesizerForConditionalGeneration])
@pytest.mark.parametrize(("spec", "has_keys"), [("random", False), ("dense", False), ("dot", True)])
def test_generate_returns_a_cache_of_the_usual_shape_without_keys_that_nothing_needs(
    cls, spec, has_keys
):
    model = build(cls, spec)
    asked = {"max_new_tokens": 3, "return_dict_in_generate": True, **NO_STOP}
    output = model.generate(ids(2, 4), **asked)
    shapes = [(2, 3, output.sequences.shape[1] - 1, model.config.d_model // 3)]
    caches = [output.past_key_values]
    if cls.kind == "encoder_decoder":
        caches = [caches[0].self_attention_cache, caches[0].cross_attention_cache]
        shapes.append((2, 3, 4, model.config.d_model // 3))
    for cache, shape, keys in zip(caches, shapes, [has_keys, True], strict=False):
        assert len(cache) == 2
        assert cache.get_seq_length() == shape[2]
        for layer in cache.layers:
            assert layer.values.shape == shape
            assert (layer.keys is None) != keys
            assert layer.keys is None or layer.keys.shape == shape


def test_resizing_token_embeddings_keeps_the_old_tokens():
    model, tokens = build(SynthesizerForCausalLM), ids(2, 6)
    before = model(tokens).logits
    model.resize_token_embeddings(21, mean_resizing=False)
    assert model.config.vocab_size == 21
    assert model.lm_head.weight is model.model.embedding.weight
    torch.testing.assert_close(model(tokens).logits[..., :17], before, atol=1e-10, rtol=0)


@pytest.mark.parametrize("spec", ["random", "dense", "random+dot"])
def test_gradients_reach_the_attentions_that_were_asked_for(spec):
    model = build(SynthesizerForConditionalGeneration, spec).train()
    tokens = ids(2, 5)
    output = model(tokens, labels=tokens, output_attentions=True)
    shown = [*output.encoder_attentions, *output.decoder_attentions, *output.cross_attentions]
    for weights in shown:
        assert weights.shape == (2, 3, 5, 5)
        weights.retain_grad()
    output.loss.backward()
    assert all(weights.grad.abs().sum() > 0 for weights in shown)


def test_embeddings_in_place_of_tokens_give_the_same():
    model = build(SynthesizerForConditionalGeneration)
    source, target = ids(2, 6), ids(2, 5, seed=4)
    embed = model.get_input_embeddings()
    by_tokens = model(source, decoder_input_ids=target).logits
    by_vectors = model(inputs_embeds=embed(source), decoder_inputs_embeds=embed(target)).logits
    assert torch.equal(by_tokens, by_vectors)


def test_generation_starts_from_embeddings():
    model, prompt = build(SynthesizerForCausalLM), ids(2, 3)
    vectors = model.get_input_embeddings()(prompt)
    asked = {"max_new_tokens": 4, "do_sample": False, **NO_STOP}
    expected = model.generate(prompt, **asked)[:, 3:]
    assert torch.equal(model.generate(inputs_embeds=vectors, **asked), expected)
    with pytest.raises(UserError, match="asked for 9 tokens, prompt and new ones together"):
        model.generate(inputs_embeds=vectors, max_new_tokens=6, **NO_STOP)


@pytest.mark.parametrize("positions", ["sinusoidal", "relative"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_change_no_gradient(positions, reentrant):
    """The memory and the bias, inside other arguments, were differentiated twice."""
    model = build(SynthesizerForConditionalGeneration, positions=positions).train()
    tokens = ids(2, 6)
    model(tokens, labels=tokens).loss.backward()
    plain = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    enable = getattr(model, "activation_checkpointing_enable", None)  # from transformers 5.23 on
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    model(tokens, labels=tokens).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, plain[name], atol=1e-10, rtol=1e-10)


def test_labels_shifted_beforehand_take_the_place_of_labels():
    model, tokens = build(SynthesizerForCausalLM), ids(2, 6)
    shifted = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-100)
    expected = model(tokens, labels=tokens).loss
    assert torch.equal(model(tokens, labels=tokens * 0, shift_labels=shifted).loss, expected)


def test_several_labels_at_once_are_scored_one_by_one():
    model, tokens = build(SynthesizerForSequenceClassification, num_labels=3), ids(2, 6)
    labels = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    output = model(tokens, labels=labels)
    p = output.logits.sigmoid()
    expected = -(labels * p.log() + (1 - labels) * (1 - p).log()).mean()
    torch.testing.assert_close(output.loss, expected)
    model.config.problem_type = "multi_label_classification"
    with pytest.raises(UserError, match=r"labels have shape \(2,\) for multi_label.*\(2, 3\)"):
        model(tokens, labels=torch.tensor([0, 2]))


def arguments(cls, folder, **changes):
    return cls(
        output_dir=str(folder),
        max_steps=60,
        per_device_train_batch_size=16,
        learning_rate=1e-2,
        save_strategy="no",
        logging_steps=60,
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **changes,
    )


@pytest.mark.filterwarnings("ignore")
def test_trainer_trains_a_causal_lm(tmp_path):
    """With smoothing inside the model, a registered causal LM learns the next token, not a copy."""
    model = SynthesizerForCausalLM(config("random+dot", label_smoothing=0.05))
    rows = [{"input_ids": [(2 + i + j) % 15 + 2 for j in range(8)]} for i in range(64)]
    # nothing predicts the first token, and the oldest transformers count its label all the same
    rows = [{**row, "labels": [-100, *row["input_ids"][1:]]} for row in rows]
    trainer = Trainer(
        model=model,
        args=arguments(TrainingArguments, tmp_path),
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows[:15]),
    )
    trainer.train()
    found = trainer.evaluate()["eval_loss"]  # missing where forward has more arguments for labels
    tokens = torch.tensor([row["input_ids"] for row in rows[:15]])
    model.eval()
    assert found == pytest.approx(model(tokens, labels=tokens).loss.item(), rel=1e-5)
    assert (model(tokens).logits.argmax(-1)[:, :-1] == tokens[:, 1:]).float().mean() > 0.95


@pytest.mark.filterwarnings("ignore")
def test_trainers_schedule_keeps_the_ratio_of_the_tables_rate(tmp_path):
    """The lines of docs/hugging_face.md."""
    page = (Path(__file__).parents[1] / "docs" / "hugging_face.md").read_text()
    (example,) = re.findall(
        r"```python\n(optimizer = torch.optim.AdamW\(par.*?)```", page, re.DOTALL
    )
    model = SynthesizerForCausalLM(config("random+dot"))
    rows = Dataset.from_list([{"input_ids": [2, 3, 4, 5], "labels": [2, 3, 4, 5]}] * 16)
    names = {"torch": torch, "parameter_groups": parameter_groups, "Trainer": Trainer}
    short = arguments(TrainingArguments, tmp_path)
    short.max_steps, short.warmup_steps = 3, 2
    exec(example, {**names, "model": model, "arguments": short, "dataset": rows}, names)
    names["trainer"].train()
    groups = {group["name"]: group for group in names["trainer"].optimizer.param_groups}
    tables = [p for n, p in model.named_parameters() if n.endswith((".table", ".mix"))]
    assert {*map(id, tables)} == {*map(id, groups["tables"]["params"])}
    assert groups["tables"]["initial_lr"] == pytest.approx(30 * 3e-4)
    assert groups["decayed"]["initial_lr"] == groups["others"]["initial_lr"] == 3e-4
    decays = {name: group["weight_decay"] for name, group in groups.items()}
    assert decays == {"tables": 0.0, "decayed": 0.01, "others": 0.0}


@pytest.mark.filterwarnings("ignore")
def test_seq2seq_trainer_trains_and_generates(tmp_path):
    model = SynthesizerForConditionalGeneration(config("random+dot"))
    rows = [{"input_ids": [2 + i % 13] * 3, "labels": [2 + i % 13, 1]} for i in range(64)]
    data = Dataset.from_list(rows)
    args = arguments(Seq2SeqTrainingArguments, tmp_path, predict_with_generate=True)
    trainer = Seq2SeqTrainer(model=model, args=args, train_dataset=data, eval_dataset=data)
    trainer.train()
    predictions = trainer.predict(data.select(range(13)), max_length=3).predictions
    right = [int(row[1]) == 2 + i % 13 for i, row in enumerate(predictions)]
    assert sum(right) >= 12


def word_tokenizer():
    words = {"<pad>": 0, "<eos>": 1, **{f"w{i}": i for i in range(2, 17)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def test_the_text_generation_pipeline_works(tmp_path):
    build(SynthesizerForCausalLM).float().save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    generate = pipeline("text-generation", model=str(tmp_path), device="cpu")
    texts = generate(["w3 w4", "w5"], max_new_tokens=3, do_sample=False, batch_size=2)
    alone = generate(["w5"], max_new_tokens=3, do_sample=False)
    assert texts[0][0]["generated_text"].startswith("w3 w4")
    assert texts[1] == alone[0]


def test_the_text_classification_pipeline_works(tmp_path):
    model = build(SynthesizerForSequenceClassification, num_labels=3).float()
    model.save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    classify = pipeline("text-classification", model=str(tmp_path), device="cpu", top_k=None)
    scores = classify(["w3 w4 w5", "w6"], batch_size=2)
    expected = model(torch.tensor([[6]])).logits.softmax(-1)[0]
    assert {s["label"]: s["score"] for s in scores[1]} == pytest.approx(
        {f"LABEL_{i}": expected[i].item() for i in range(3)}, rel=1e-4
    )


def test_what_is_saved_is_plain_json(tmp_path):
    build(SynthesizerForCausalLM, "FD").save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["synthesis"] == "factorized_dense:a=3:b=3"
    assert saved["model_type"] == "synthesizer"
    assert saved["max_len"] == TINY["max_len"]
