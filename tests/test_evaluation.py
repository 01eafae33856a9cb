from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from synthesizer_attention.data.batch import Batch
from synthesizer_attention.models.config import SynthesizerConfig
from synthesizer_attention.models.cost import (
    cache_bytes_per_token,
    count_parameters,
    flops_per_token,
    sketch,
)
from synthesizer_attention.models.heads import (
    MODELS,
    SynthesizerForCausalLM,
    SynthesizerForConditionalGeneration,
    SynthesizerForSequenceClassification,
)
from synthesizer_attention.run.recipe_keys import Evaluate
from synthesizer_attention.run.run import Run
from synthesizer_attention.tasks import build_task
from synthesizer_attention.training.build import build_model, initialize_by_name
from synthesizer_attention.training.evaluate import (
    NEW_TOKENS,
    PROMPTS,
    beam_search,
    continuations,
    decode,
    evaluate,
    source_gap,
    until_end,
)
from synthesizer_attention.training.loop import fit
from synthesizer_attention.training.maps import (
    alphas_of,
    histogram,
    inspect,
    look_at,
    sharpness,
)

SIZES = {"d_model": 12, "num_heads": 3, "num_layers": 2, "d_ff": 20, "max_len": 7}


def tiny_model(cls, synthesis="random+dot", **settings):
    kind = {"vocab_size": 11, "synthesis": synthesis, "pad_token_id": 0, "eos_token_id": 1}
    model = cls(SynthesizerConfig(**{**SIZES, **kind, **settings}))
    initialize_by_name(model, 3)
    return model


class FakeTask:
    """Batches as given; the score is what it was handed."""

    def __init__(self, kind, batches, generates=False):
        self.kind, self.generates, self._batches = kind, generates, batches
        self.tokenizer = SimpleNamespace(
            batch_decode=lambda rows, skip_special_tokens: [" ".join(map(str, r)) for r in rows]
        )

    def batches(self, split):
        return iter([Batch(inputs, 0, 0, ()) for inputs in self._batches])

    def score(self, split, outputs):
        return outputs


def test_how_deep_tokens_go_is_told_of_universal_models_alone():
    """A halting unit that always says stop stops at the first step, one that never does at all."""
    ids = torch.tensor([[1, 5, 6, 7], [1, 8, 9, 2]])
    inputs = {"input_ids": ids, "labels": ids}
    told = {}
    for cls, kind in (
        (SynthesizerForCausalLM, "decoder"),
        (SynthesizerForConditionalGeneration, "encoder_decoder"),
    ):
        model = tiny_model(cls, "dot", universal=True)
        with torch.no_grad():
            model.model.decoder.halting.bias.fill_(20.0)
            if kind == "encoder_decoder":
                model.model.encoder.halting.bias.fill_(-20.0)
        task = FakeTask(kind, [inputs, inputs])
        told[kind] = evaluate(model, task, "test", Evaluate()).steps_per_token
    assert told == {
        "decoder": {"decoder": 1.0},
        "encoder_decoder": {"decoder": 1.0, "encoder": 2.0},
    }
    plain = tiny_model(SynthesizerForCausalLM)
    task = FakeTask("decoder", [inputs])
    assert evaluate(plain, task, "test", Evaluate()).steps_per_token == {}


def test_the_source_gap_by_its_definition():
    """Example by example, each with the source of the one half a batch away; padding included."""
    model = tiny_model(SynthesizerForConditionalGeneration).double()
    generator = torch.Generator().manual_seed(0)
    sources = torch.randint(2, 11, (5, 6), generator=generator)
    mask = torch.tensor([[1] * n + [0] * (6 - n) for n in (6, 3, 5, 2, 4)])
    labels = torch.randint(2, 11, (5, 4), generator=generator)
    labels[1, 2:] = -100
    batch = {"input_ids": sources, "attention_mask": mask, "labels": labels}
    single = {name: tensor[:1] for name, tensor in batch.items()}
    task = FakeTask("encoder_decoder", [batch, single])
    lost, count = 0.0, 0
    for row in range(5):
        n = int((labels[row] != -100).sum())
        for source, sign in ((row, -1), ((row - 2) % 5, 1)):
            length = int(mask[source].sum())
            with torch.no_grad():
                found = model(
                    input_ids=sources[source, :length][None], labels=labels[row, :n][None]
                )
            lost += sign * n * float(found.loss)
        count += n
    assert source_gap(model, task, "test") == pytest.approx(lost / count, rel=1e-5)
    assert abs(lost) > 1e-4
    assert source_gap(model, FakeTask("encoder_decoder", [single]), "test") is None
    same = {**batch, "input_ids": sources[:1].expand(5, 6), "attention_mask": torch.ones_like(mask)}
    equal = source_gap(model, FakeTask("encoder_decoder", [same]), "test")
    assert equal == pytest.approx(0, abs=1e-12)


def measured(model, kind, batches, generates=False, **settings):
    """What a task is handed of a model's batches."""
    task = FakeTask(kind, batches, generates)
    return evaluate(model, task, "test", Evaluate(**settings)).scores


def test_a_decoder_is_measured_target_by_target():
    model = tiny_model(SynthesizerForCausalLM).eval()
    ids = torch.tensor([[1, 5, 6, 7], [1, 8, 9, 0]])
    labels = torch.tensor([[-100, 5, 6, 7], [-100, 8, 9, -100]])
    inputs = {"input_ids": ids, "attention_mask": ids != 0}
    outputs = measured(model, "decoder", [{**inputs, "labels": labels}])
    with torch.no_grad():
        logits = model(**inputs).logits.log_softmax(-1)
    rows = ((0, (1, 2, 3)), (1, (1, 2)))
    expected = [-sum(logits[r, p - 1, labels[r, p]].item() for p in places) for r, places in rows]
    np.testing.assert_allclose(outputs.losses, expected, rtol=1e-5)
    assert outputs.counts.tolist() == [3, 2]
    best = logits.argmax(-1)
    right = [sum((best[r, p - 1] == labels[r, p]).item() for p in places) for r, places in rows]
    assert outputs.correct.tolist() == right


def test_a_classifier_is_measured_with_its_predictions():
    model = tiny_model(SynthesizerForSequenceClassification, num_labels=4).eval()
    ids, labels = torch.tensor([[2, 3, 4], [5, 6, 0]]), torch.tensor([3, 1])
    inputs = {"input_ids": ids, "attention_mask": ids != 0}
    outputs = measured(model, "encoder", [{**inputs, "labels": labels}])
    with torch.no_grad():
        logits = model(**inputs).logits
    assert outputs.predictions.tolist() == logits.argmax(-1).tolist()
    assert outputs.counts.tolist() == [1, 1]
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    np.testing.assert_allclose(outputs.losses, expected.numpy(), rtol=1e-5)


@pytest.mark.parametrize("beam", [1, 3])
def test_an_encoder_decoder_answers_each_source_on_its_own(beam):
    """What stands beside a source in its batch, padding included, changes nothing."""
    model = tiny_model(SynthesizerForConditionalGeneration)
    ids, labels = torch.tensor([[2, 3, 4, 5], [6, 7, 0, 0]]), torch.tensor([[4, 1], [5, 1]])
    together = [{"input_ids": ids, "attention_mask": ids != 0, "labels": labels}]
    apart = [
        {"input_ids": ids[:1], "attention_mask": ids[:1] != 0, "labels": labels[:1]},
        {"input_ids": ids[1:, :2], "attention_mask": ids[1:, :2] != 0, "labels": labels[1:]},
    ]
    one, two = (
        measured(model, "encoder_decoder", batches, generates=True, beam=beam, max_new_tokens=5)
        for batches in (together, apart)
    )
    assert one.texts == two.texts
    np.testing.assert_allclose(one.losses, two.losses, rtol=1e-5)


def every_answer(model, source, limit):
    """All answers of up to `limit` tokens that end in </s> or at the limit, and their log p."""
    vocabulary, end = model.config.vocab_size, model.config.eos_token_id
    open_ones, found = [((model.config.decoder_start_token_id,), 0.0)], {}
    for length in range(1, limit + 1):
        grown = []
        for prefix, total in open_ones:
            logits = model(input_ids=source, decoder_input_ids=torch.tensor([prefix])).logits[0, -1]
            for token, log_p in enumerate(logits.log_softmax(-1).tolist()):
                grown.append(((*prefix, token), total + log_p))
        for answer, total in grown:
            if answer[-1] == end or length == limit:
                found[answer[1:]] = total
        open_ones = [each for each in grown if each[0][-1] != end]
    assert len(found) > vocabulary**2
    return found


@pytest.mark.parametrize(
    ("form", "norm"), [("power", lambda n: n**0.6), ("wu", lambda n: ((5 + n) / 6) ** 0.6)]
)
def test_a_full_beam_finds_the_best_answer_under_each_length_penalty(form, norm):
    settings = Evaluate(beam=130, length_penalty_form=form)
    chosen = []
    for seed in (0, 4, 7):  # whose best answers have 3, 1 and 3 tokens
        model = tiny_model(SynthesizerForConditionalGeneration, vocab_size=5).eval()
        initialize_by_name(model, seed)
        model.model.embedding.weight.data.mul_(2)
        source = torch.tensor([[2, 3, 4]])
        with torch.no_grad():
            answers = every_answer(model, source, 3)
            made = model.generate(
                source,
                max_new_tokens=3,
                early_stopping="never",
                return_dict_in_generate=True,
                output_scores=True,
                **beam_search(settings, settings.beam),
            )
        best = max(answers, key=lambda answer: answers[answer] / norm(len(answer)))
        assert made.sequences_scores[0].item() == pytest.approx(
            answers[best] / norm(len(best)), rel=1e-4
        )
        assert tuple(made.sequences[0, 1 : 1 + len(best)].tolist()) == best
        chosen.append(len(best))
    assert len(set(chosen)) > 1  # lengths differ, or the penalty would not show


def test_evaluating_leaves_a_training_model_in_training():
    model = tiny_model(SynthesizerForCausalLM, dropout=0.5).train()
    inputs = {"input_ids": torch.tensor([[1, 5]]), "labels": torch.tensor([[-100, 5]])}
    one, two = (measured(model, "decoder", [inputs]).losses[0] for _ in range(2))
    assert one == two
    assert model.training


def test_an_answer_ends_before_its_end_token():
    assert until_end([4, 5, 1, 0, 0], 1) == [4, 5]
    assert until_end([4, 5], 1) == [4, 5]


def test_sharpness_is_zero_where_all_are_seen_alike_and_one_where_one_is_seen():
    mask = torch.ones(1, 3, dtype=torch.bool)
    even = torch.tril(torch.ones(3, 3)) / torch.arange(1, 4)[:, None]
    single = torch.full((3, 3), 1e-12) + torch.diag(torch.ones(3))
    assert sharpness(even[None, None], mask)[0] == pytest.approx(0.0, abs=1e-6)
    assert sharpness(single[None, None], mask)[0] == pytest.approx(1.0, abs=1e-6)
    assert np.isfinite(sharpness(torch.ones(1, 1, 1, 1), mask[:, :1])[0])  # one visible key


def test_a_histogram_counts_each_visible_weight_of_real_tokens():
    weights = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])
    assert histogram(weights, torch.tensor([[True, True]])).sum() == 3
    assert histogram(weights, torch.tensor([[True, False]])).sum() == 1


def test_inspection_keeps_maps_alphas_and_both_ends_of_training():
    start, end = (
        tiny_model(SynthesizerForConditionalGeneration, "random+dot,dot") for _ in range(2)
    )
    ids, labels = (
        torch.tensor([[2, 3, 4, 5], [6, 7, 0, 0]]),
        torch.tensor([[4, 5, 1], [5, 1, -100]]),
    )
    inputs = {"input_ids": ids, "attention_mask": ids != 0, "labels": labels}
    arrays = inspect(start, end, inputs)
    assert arrays["encoder.map"].shape == (2, 3, 4, 4)
    assert arrays["decoder.map"].shape == (2, 3, 3, 3)
    assert arrays["encoder.map"].dtype == np.uint8
    assert arrays["decoder.sharpness"].shape == (2, 3)
    assert arrays["encoder.histogram"].shape == (2, 2, 48)
    alphas = arrays["encoder.alphas"]
    np.testing.assert_allclose(alphas[0], 0.5)
    assert np.isnan(alphas[1]).all()


def inspected(synthesis, ids, **settings):
    model = tiny_model(SynthesizerForCausalLM, synthesis, **settings)
    return inspect(model, model, {"input_ids": ids, "labels": ids})


def test_maps_are_cropped_universal_models_told_by_step_and_other_mixers_left_out():
    ids = torch.tensor([[2, 3, 4]])
    long = inspected("random", torch.full((1, 300), 4), max_len=300)
    assert long["decoder.map"].nbytes <= 48_000
    universal = inspected("random+dot", ids, universal=True, num_layers=3)
    assert universal["decoder.layers"].tolist() == [0, 1, 2]
    assert len(universal["decoder.sharpness"]) == len(universal["decoder.alphas"]) == 3
    mixed = inspected("lightconv,random", ids)
    assert mixed["decoder.layers"].tolist() == [1]
    assert mixed["decoder.map"].shape == (1, 3, 3, 3)
    assert set(inspected("none", ids)) == {"edges"}
    assert alphas_of(tiny_model(SynthesizerForCausalLM, "none"), "decoder") is None


def test_the_weights_seen_are_those_that_hugging_face_shows():
    model = tiny_model(SynthesizerForCausalLM, "random+dense").eval()
    ids = torch.tensor([[2, 3, 4, 5], [6, 7, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": ids != 0}
    shown = model(**inputs, output_attentions=True).attentions
    seen = look_at(model, {**inputs, "labels": ids})["decoder"]
    for ours, theirs in zip(seen, shown, strict=True):
        torch.testing.assert_close(ours[1], theirs)


def test_the_flops_of_dot_product_are_its_formula():
    """Per token: projections 2 * 4 D^2, feed-forward 2 * 2 D F, scores and values 4 N D, head."""
    config = tiny_model(SynthesizerForCausalLM, "dot").config
    layer = 8 * 12**2 + 4 * 12 * 20 + 4 * 7 * 12
    assert flops_per_token(config) == 2 * layer + 2 * 12 * 11


def test_random_attention_costs_less_arithmetic_and_half_the_cache():
    dot, random = (tiny_model(SynthesizerForCausalLM, name).config for name in ("dot", "random"))
    assert flops_per_token(random) < flops_per_token(dot)
    assert cache_bytes_per_token(dot) == 2 * 2 * 12 * 4
    assert cache_bytes_per_token(random) == 2 * 12 * 4
    encoder = tiny_model(SynthesizerForSequenceClassification, num_labels=2).config
    assert cache_bytes_per_token(encoder) is None
    assert cache_bytes_per_token(tiny_model(SynthesizerForCausalLM, "lightconv").config) == 0


def test_parts_sum_to_all_parameters_and_tied_ones_count_once():
    model = tiny_model(SynthesizerForConditionalGeneration, positions="relative")
    counts = count_parameters(model)
    assert counts["total"] == sum(p.numel() for p in model.parameters())
    assert counts["total"] == sum(count for part, count in counts.items() if part != "total")
    assert counts["embedding"] == 11 * 12
    assert counts["attention logits"] == 2 * 2 * (3 * 7 * 7 + 3 * 2 + 2 * 12 * 12)
    assert counts == count_parameters(sketch(model.config))


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
    model = tiny_model(MODELS[kind], kind=kind, max_len=max_len)
    with torch.no_grad():
        model.get_output_embeddings().weight[1] = 1e3 * model.get_output_embeddings().weight[2]
    decoded = decode(model, batch_of(PROMPTS + 3, max_len))
    assert decoded.prompts.shape == (PROMPTS, prompt)
    assert decoded.written.shape == (PROMPTS, new)
    assert 1 not in decoded.written
    assert decoded.tokens_per_second > 0


def test_short_texts_are_no_prompts_where_longer_ones_are_there():
    """They ended the training in an error: a prompt ends in padding."""
    model, batch = tiny_model(SynthesizerForCausalLM, max_len=80), batch_of(5, 40)
    real = torch.ones(5, 40, dtype=torch.bool)
    real[1, 10:] = real[3, 33:] = False
    decoded = decode(model, replace(batch, inputs=batch.inputs | {"attention_mask": real}))
    assert decoded.rows.tolist() == [0, 2, 3, 4]
    real[:, 10:] = False
    decoded = decode(model, replace(batch, inputs=batch.inputs | {"attention_mask": real}))
    assert decoded.prompts.tolist() == batch.inputs["input_ids"][:, :10].tolist()


def test_what_a_decoder_writes_stands_beside_how_the_text_goes_on(tiny_run):
    recipe, run, _ = tiny_run
    task = build_task(recipe)
    batch = next(iter(task.batches("test")))
    model = build_model(recipe, task.tokenizer, task.labels)
    first, *_ = continuations(task, batch, decode(model, batch))
    assert first["source"] + first["reference"] in (run.path.parent / "text.txt").read_text()
    samples = (run.path / "samples.txt").read_text()
    assert samples.startswith(f"source: {first['source']}\nreference: {first['reference']}\noutput")


def test_a_run_says_what_its_training_needed_whatever_its_process_did_before(tiny_run, tmp_path):
    recipe, _, result = tiny_run
    least = 16 * result["parameters"]["total"]  # weights, gradients, two moments
    again = fit(recipe, Run(tmp_path / "run"))
    assert least < result["training_memory_bytes"] < 20 * least
    assert again["training_memory_bytes"] == result["training_memory_bytes"]
