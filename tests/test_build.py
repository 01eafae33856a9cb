"""What a training begins with: weights by name, optimizer groups, learning rates."""

import math
from copy import deepcopy

import pytest
import torch

from synthesizer_attention.errors import UserError
from synthesizer_attention.models.config import SynthesizerConfig
from synthesizer_attention.models.heads import SynthesizerForCausalLM
from synthesizer_attention.run.recipe import load_recipe
from synthesizer_attention.run.recipe_keys import Train
from synthesizer_attention.training.build import (
    initialize_by_name,
    load_weights,
    rough_config,
    unique_weights,
)
from synthesizer_attention.training.optim import (
    Adafactor,
    build_optimizer,
    learning_rate,
    set_rate,
)

TABLE = "model.decoder.layers.0.attention.synthesis.table"


def built(synthesis, seed=1, **settings):
    sizes = {"d_model": 12, "num_heads": 3, "num_layers": 2, "d_ff": 20, "max_len": 7, **settings}
    config = SynthesizerConfig(**sizes, vocab_size=11, synthesis=synthesis)
    model = SynthesizerForCausalLM(config)
    initialize_by_name(model, seed)
    return model


def drawn(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_variants_begin_equal_wherever_they_share_a_parameter():
    dot, dense = built("dot").state_dict(), built("dense").state_dict()
    shared = dot.keys() & dense.keys()
    assert any("feed_forward" in name for name in shared)
    assert all(torch.equal(dot[name], dense[name]) for name in shared)


def test_layers_and_seeds_begin_differently_and_fixed_tables_with_them():
    for synthesis in ("random", "fixed_random"):
        first, again, other = (built(synthesis, seed).state_dict() for seed in (1, 1, 2))
        assert torch.equal(first[TABLE], again[TABLE])
        assert not torch.equal(first[TABLE], other[TABLE])
        assert not torch.equal(first[TABLE], first[TABLE.replace("0", "1")])


def test_drawing_leaves_the_generator_of_the_caller_alone_and_embeddings_their_spread():
    model = built("dot")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    initialize_by_name(model, 9)
    assert torch.equal(torch.rand(3), expected)
    assert model.lm_head.weight is model.model.embedding.weight
    assert model.lm_head.weight.std().item() == pytest.approx(12**-0.5, rel=0.2)


def test_weights_pass_from_one_model_to_another_tied_ones_once():
    old, new = built("random+dot", seed=1), built("random+dot", seed=2)
    weights = unique_weights(old)
    assert "lm_head.weight" not in weights
    load_weights(new, weights, "a test")
    for name, tensor in new.state_dict().items():
        assert torch.equal(tensor, old.state_dict()[name])
    with pytest.raises(UserError, match=r"wq is missing there and \(3, 12, 4\) here \(6 differ\)"):
        load_weights(built("dot"), unique_weights(built("random")), "runs/old")


def test_a_universal_recipe_says_when_tokens_stop_and_what_steps_cost():
    changes = ["universal=true", "num_layers=2", "halting_epsilon=0.2", "ponder_cost=0.0"]
    config = rough_config(load_recipe("shift", overrides=[f"model.{c}" for c in changes]))
    assert (config.halting_epsilon, config.ponder_cost) == (0.2, 0.0)
    plain, ours = load_recipe("shift").model, SynthesizerConfig()
    assert (plain.halting_epsilon, plain.ponder_cost) == (ours.halting_epsilon, ours.ponder_cost)


def groups_of(model, train):
    """The names of the parameters in each group, and the groups' decays."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = build_optimizer(model, train).param_groups
    found = {
        g["name"]: {names[id(p)].removeprefix("model.decoder.") for p in g["params"]}
        for g in groups
    }
    assert sum(map(len, found.values())) == len(names)  # each is in one group
    return found, {group["name"]: group["weight_decay"] for group in groups}


def test_tables_and_mixing_weights_have_their_own_group():
    groups, _ = groups_of(built("random+factorized_random+dot", num_layers=1), Train())
    tables = {name.rpartition("synthesis.")[2] for name in groups["tables"]}
    assert tables == {"mix", "parts.0.table", "parts.1.rows", "parts.1.columns"}
    groups, _ = groups_of(built("random", num_layers=1, positions="relative"), Train())
    assert groups["tables"] == {"relative.table", "layers.0.attention.synthesis.table"}


def test_neither_norms_nor_biases_decay_even_those_with_a_heads_axis():
    groups, decays = groups_of(built("dense"), Train(weight_decay=0.1))
    assert {"layers.0.attention.synthesis.b1", "layers.0.attention.synthesis.b2"} < groups["others"]
    assert {"layers.0.attention_norm.weight", "layers.0.feed_forward.widen.bias"} < groups["others"]
    assert decays == {"decayed": 0.1, "others": 0.0}


def test_tables_move_at_a_multiple_of_the_rate():
    optimizer = build_optimizer(built("random"), Train(table_rate=30.0))
    set_rate(optimizer, 0.002)
    rates = {group["name"]: group["lr"] for group in optimizer.param_groups}
    assert rates == {"tables": pytest.approx(0.06), "decayed": 0.002, "others": 0.002}


@pytest.mark.parametrize("name", ["adam", "adamw", "adafactor"])
def test_every_optimizer_lowers_the_loss(name):
    model, ids = built("random+dot"), torch.arange(14).remainder(11).view(2, 7)
    optimizer = build_optimizer(model, Train(optimizer=name, lr=0.01))
    first = model(input_ids=ids, labels=ids).loss
    for _ in range(10):
        set_rate(optimizer, 0.01)
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    assert model(input_ids=ids, labels=ids).loss < 0.9 * first


@pytest.mark.parametrize(
    ("schedule", "middle", "end"),
    [
        ("inverse_sqrt", math.sqrt(10 / 55), math.sqrt(10 / 100)),
        ("cosine", 0.5, 0.0),
        ("linear", 0.5, 0.0),
        ("constant", 1.0, 1.0),
    ],
)
def test_every_schedule_climbs_in_warmup_and_then_follows_its_shape(schedule, middle, end):
    train = Train(lr=1.0, schedule=schedule, warmup=10, steps=100)
    rates = [learning_rate(step, train) for step in (5, 10, 55, 100)]
    assert rates == pytest.approx([0.5, 1.0, middle, end])
    assert all(learning_rate(step, train) <= 1.0 for step in range(1, 101))
    cold = Train(lr=1.0, schedule="inverse_sqrt", warmup=0, steps=90)
    assert learning_rate(90, cold) == pytest.approx(math.sqrt(1 / 90))


def test_adafactor_moves_tables_at_their_multiple_of_the_rate_at_every_step():
    for step in (0, 1_000, 20_000, 500_000):
        model = built("random")
        optimizer = build_optimizer(model, Train(optimizer="adafactor", table_rate=30.0))
        set_rate(optimizer, 1e-2)
        attention = model.model.decoder.layers[0].attention
        both = (attention.synthesis.table, attention.value.weight)
        for parameter in both:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()  # builds the state
        before = [parameter.detach().clone() for parameter in both]
        for parameter in both:
            optimizer.state[parameter]["step"].fill_(step)
        optimizer.step()
        table, weight = (
            (parameter - old).abs().mean() / old.square().mean().sqrt().clamp(min=1e-3)
            for parameter, old in zip(both, before, strict=True)
        )
        assert (table / weight).item() == pytest.approx(30, rel=1e-3)


@pytest.mark.parametrize("shape", [(5,), (4, 6), (3, 4, 6)])
def test_adafactor_is_torchs_below_its_bound_and_reads_its_checkpoints(shape):
    ours, theirs = (torch.nn.Parameter(drawn(shape, 0)) for _ in range(2))
    steps = Adafactor([ours], lr=1e-2, weight_decay=0.1)
    bounded = torch.optim.Adafactor([theirs], lr=1e-2, weight_decay=0.1)
    for seed in range(1, 20):  # 1 / sqrt(t) is above 0.2
        if seed == 10:
            steps.load_state_dict(deepcopy(bounded.state_dict()))
        ours.grad, theirs.grad = drawn(shape, seed), drawn(shape, seed)
        steps.step()
        bounded.step()
        torch.testing.assert_close(ours, theirs)
    kept = {key for key, value in bounded.state[theirs].items() if value is not None}
    assert {key for key, value in steps.state[ours].items() if value is not None} == kept
