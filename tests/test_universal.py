"""The universal option: shared weights over depth, each token halting alone."""

import math

import pytest
import torch

from synthesizer_attention import (
    SynthesizerConfig,
    SynthesizerForCausalLM,
    SynthesizerForConditionalGeneration,
    SynthesizerForSequenceClassification,
    UserError,
)
from synthesizer_attention.attention.layer import Inputs
from synthesizer_attention.models.layers import Context, Shape, sinusoids
from synthesizer_attention.models.universal import UniversalStack
from variants import redrawn, tokens

SPECS = ["dot", "random+dot", "factorized_dense", "dynamicconv:kernel=3", "none"]
CLOSE = {"atol": 1e-10, "rtol": 0}
every_spec = pytest.mark.parametrize("spec", SPECS)


def thinking(module, seed=0):
    """Redraw a module so that its tokens halt at different steps."""
    for name, parameter in redrawn(module, seed).named_parameters():
        parameter.data.mul_(0.3)
        if name.endswith("halting.bias"):
            parameter.data.fill_(-1.5)
    return module.eval()


def config(spec="random+dot", **changes):
    sizes = {"vocab_size": 17, "d_model": 12, "num_heads": 3, "num_layers": 5, "d_ff": 20}
    return SynthesizerConfig(
        **{**sizes, "max_len": 12, "synthesis": spec, "universal": True, **changes}
    )


def build(cls, spec="random+dot", **changes):
    return thinking(cls(config(spec, **changes)))


def ids(*shape, seed=2):
    return torch.randint(2, 17, shape, generator=torch.Generator().manual_seed(seed))


def token_by_token(stack, x, context):
    """Adaptive computation time as it is defined: one token at a time, plain numbers."""
    length, state, y = x.shape[1], x, torch.zeros_like(x)
    total, halted = [0.0] * length, [False] * length
    counts, remainders = [0] * length, [0.0] * length
    for step in range(stack.num_steps):
        place = sinusoids(torch.arange(length), 12).to(x.dtype)
        new = stack.layers[0](state + place + stack.signals.weight[step], context)[0]
        rows = []
        for i in range(length):
            if halted[i]:
                rows.append(state[:, i])
                continue
            rows.append(new[:, i])
            counts[i] += 1
            p = torch.sigmoid(new[0, i] @ stack.halting.weight + stack.halting.bias)
            if total[i] + p >= stack.halt_at or step == stack.num_steps - 1:
                p = remainders[i] = 1 - total[i]
                halted[i] = True
            total[i] = total[i] + p
            here = torch.arange(length) == i
            y = y + here[:, None] * (p * new[:, i : i + 1])
        state = torch.stack(rows, dim=1)
    costs = [count + remainder for count, remainder in zip(counts, remainders, strict=True)]
    return stack.stack.norm(y), counts, sum(costs) / length


@pytest.mark.parametrize("spec", ["dot", "lightconv:kernel=3"])
def test_a_universal_stack_is_its_definition_gradients_included(spec):
    shape = Shape(12, 3, 20, 9, causal=True)
    stack = thinking(UniversalStack(shape, spec, num_steps=6, halt_at=0.95))
    x = (3 * tokens(1, 9, 12)).requires_grad_()
    context = Context(Inputs(), torch.arange(9))
    output = stack(x, context)
    y, counts, cost = token_by_token(stack, x, context)
    torch.testing.assert_close(output.x, y, **CLOSE)
    assert len(set(counts)) > 2
    assert output.num_steps.item() == pytest.approx(sum(counts) / 9)
    torch.testing.assert_close(output.ponder_cost[0], cost, **CLOSE)
    leaves = [x, *stack.parameters()]
    probe = tokens(1, 9, 12, seed=4)
    fast = torch.autograd.grad((output.x * probe).sum() + output.ponder_cost.sum(), leaves)
    plain = torch.autograd.grad((y * probe).sum() + cost, leaves)
    torch.testing.assert_close(fast, plain)


def test_a_halted_token_keeps_its_state():
    model = build(SynthesizerForCausalLM)
    output = model(ids(1, 8), output_hidden_states=True)
    states = torch.stack(output.hidden_states[:-1])[:, 0]  # (steps, T, D)
    frozen = (states[1:] == states[:-1]).all(-1)
    assert frozen.any()
    assert not frozen.all(0).any()
    assert torch.equal(frozen, frozen.cummax(0).values)


@every_spec
def test_a_left_padded_batch_gives_what_each_gives_alone(spec):
    model, tokens_ = build(SynthesizerForCausalLM, spec), ids(2, 7)
    mask = torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1]])
    together = model(tokens_, attention_mask=mask)
    for row, start in ((0, 0), (1, 2)):
        alone = model(tokens_[row : row + 1, start:])
        torch.testing.assert_close(together.logits[row : row + 1, start:], alone.logits, **CLOSE)
        assert together.num_steps[row] == alone.num_steps[0]


@every_spec
def test_cached_logits_are_the_uncached_ones(spec):
    model, tokens_ = build(SynthesizerForCausalLM, spec), ids(2, 9)
    mask = torch.tensor([[1] * 9, [0, 0, 1, 1, 1, 1, 1, 1, 1]])
    whole = model(tokens_, attention_mask=mask).logits
    cache, steps = None, []
    for start, stop in ((0, 4), (4, 5), (5, 9)):
        given = {"attention_mask": mask[:, :stop], "past_key_values": cache, "use_cache": True}
        output = model(tokens_[:, start:stop], **given)
        cache = output.past_key_values
        steps.append(output.logits)
    torch.testing.assert_close(torch.cat(steps, dim=1)[mask.bool()], whole[mask.bool()], **CLOSE)
    assert len(cache.layers) == 5


@pytest.mark.parametrize("cls", [SynthesizerForCausalLM, SynthesizerForConditionalGeneration])
@pytest.mark.parametrize("spec", ["random+dot", "dynamicconv:kernel=3"])
def test_generating_with_a_cache_gives_the_tokens_of_generating_without(cls, spec):
    model = build(cls, spec)
    cached, uncached = (
        model.generate(ids(2, 4), use_cache=use_cache, max_new_tokens=6, num_beams=3)
        for use_cache in (True, False)
    )
    assert torch.equal(cached, uncached)


def test_the_future_never_leaks_into_how_long_a_token_thinks():
    model, tokens_ = build(SynthesizerForCausalLM), ids(1, 8)
    changed = tokens_.clone()
    changed[0, 5] = 3
    before, after = (model(given).logits[0, :5] for given in (tokens_, changed))
    torch.testing.assert_close(after, before, **CLOSE)


@pytest.mark.parametrize("cls", [SynthesizerForCausalLM, SynthesizerForConditionalGeneration])
def test_thinking_costs_in_training_and_not_in_evaluation(cls):
    model, tokens_ = build(cls, ponder_cost=0.5), ids(3, 6)
    free = build(cls, ponder_cost=0.0)
    given = {"input_ids": tokens_, "labels": ids(3, 5, seed=6)}
    if cls is SynthesizerForCausalLM:
        given["labels"] = tokens_
    assert torch.equal(model(**given).loss, free(**given).loss)
    model.train()
    free.train()
    output = model(**given)
    stacks = [output.num_steps] + (
        [] if model.config.kind == "decoder" else [output.encoder_num_steps]
    )
    steps = torch.stack(stacks).sum(0).mean()
    cost = 2 * (output.loss - free(**given).loss)
    assert steps < cost < steps + len(stacks)  # N + R, with 0 < R <= 1 for each stack


def test_the_cost_of_a_batch_is_the_sum_of_its_parts():
    """As for the loss: so that processes and accumulated batches take the step of one batch."""
    model = build(SynthesizerForCausalLM, ponder_cost=0.5).train()
    tokens_ = ids(3, 7)
    labels = tokens_.clone()
    labels[1, 3:], labels[2, :5] = -100, -100
    whole = model(tokens_, labels=labels).loss
    count = int((labels[:, 1:] != -100).sum())
    parts = [
        model(tokens_[row], labels=labels[row], num_items_in_batch=count).loss
        for row in (slice(0, 1), slice(1, 3))
    ]
    torch.testing.assert_close(sum(parts), whole, atol=1e-6, rtol=0)


def test_a_classifier_and_a_regressor_pay_for_thinking_too():
    for num_labels, labels in ((3, torch.tensor([0, 2])), (1, torch.tensor([0.5, 2.0]))):
        model = build(SynthesizerForSequenceClassification, num_labels=num_labels).train()
        output = model(ids(2, 6), labels=labels)
        assert output.num_steps.shape == (2,)
        output.loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        assert output.loss > model.eval()(ids(2, 6), labels=labels).loss


def test_depth_adds_no_parameters_but_its_signals():
    def count(**changes):
        model = SynthesizerForCausalLM(config("dot", **changes))
        return sum(p.numel() for p in model.parameters())

    assert count(num_layers=9) - count(num_layers=5) == 4 * 12
    halting, signals = 12 + 1, 5 * 12
    assert count() == count(universal=False, num_layers=1) + halting + signals


def test_a_new_model_uses_all_its_depth():
    model = SynthesizerForCausalLM(config()).eval()
    assert model(ids(2, 6)).num_steps.tolist() == [5.0, 5.0]
    assert math.isfinite(model(ids(2, 6), labels=ids(2, 6)).loss.item())
    for steps in (2, 6, 24):
        stack = UniversalStack(Shape(12, 3, 20, 9, True), "dot", num_steps=steps, halt_at=0.95)
        p = stack.halting(tokens(1, 9, 12).float())
        assert (steps - 1) * p.max() < 0.1  # the rest goes to the last step
        assert p[0, 0].item() == pytest.approx(0.1 / steps)


def test_every_step_shows_its_states_and_weights():
    output = build(SynthesizerForCausalLM)(
        ids(2, 6), output_attentions=True, output_hidden_states=True
    )
    assert [weights.shape for weights in output.attentions] == [(2, 3, 6, 6)] * 5
    assert len(output.hidden_states) == 6


def test_a_universal_model_is_resized_and_checkpointed_like_any_other():
    model, tokens_ = build(SynthesizerForCausalLM, "factorized_dense", dropout=0.0), ids(2, 9)
    before = model(tokens_).logits
    model.resize(20)
    torch.testing.assert_close(model(tokens_).logits, before, **CLOSE)
    assert model.config.synthesis == "factorized_dense:a=4:b=5"
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    model.train()(tokens_, labels=tokens_).loss.backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"synthesis": "random*2,dot*3"},
            "universal=True shares one layer over depth, and synthesis 'random*2,dot*3' names "
            "layers one by one; write one spec for all",
        ),
        (
            {"synthesis": "dot", "decoder_synthesis": "random*5"},
            "universal=True shares one layer over depth, and synthesis 'random*5' names layers one "
            "by one; write one spec for all",
        ),
        (
            {"universal": False, "ponder_cost": 0.1},
            "ponder_cost=0.1 without universal=True does nothing; leave ponder_cost out",
        ),
        (
            {"universal": False, "fixed_depth": True},
            "fixed_depth=True without universal=True does nothing; leave fixed_depth out",
        ),
        ({"halting_epsilon": 1.5}, "halting_epsilon=1.5; choose it between 0 and 1"),
        (
            {"num_layers": 1},
            "universal=True with num_layers=1 has nothing to share; choose 2 or more",
        ),
    ],
)
def test_mistakes_are_told(changes, text):
    with pytest.raises(UserError) as caught:
        config(**changes)
    assert str(caught.value) == text


def test_at_a_fixed_depth_the_output_is_the_state_after_the_last_step():
    shape = Shape(12, 3, 20, 9, causal=True, universal=True)
    stack = redrawn(UniversalStack(shape, "dot", num_steps=3, halt_at=None)).eval()
    x, context = tokens(1, 9, 12), Context(Inputs(), torch.arange(9))
    state = x
    for step in range(3):
        place = sinusoids(torch.arange(9), 12).to(x.dtype)
        state = stack.layers[0](state + place + stack.signals.weight[step], context)[0]
    output = stack(x, context)
    torch.testing.assert_close(output.x, stack.stack.norm(state), **CLOSE)
    assert output.num_steps.tolist() == [3]
    assert output.ponder_cost is None


def test_a_fixed_depth_model_trains_saves_and_loads(tmp_path):
    model = SynthesizerForCausalLM(config("random+dot", fixed_depth=True)).eval()
    assert not any("halting" in name for name, _ in model.named_parameters())
    loss = model(ids(2, 8), labels=ids(2, 8)).loss
    loss.backward()
    model.save_pretrained(tmp_path)
    again = SynthesizerForCausalLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(ids(2, 8)).logits, model(ids(2, 8)).logits)
