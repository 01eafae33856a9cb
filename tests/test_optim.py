import math
from copy import deepcopy

import pytest
import torch

from synthesizer_attention.models.config import SynthesizerConfig
from synthesizer_attention.models.heads import SynthesizerForCausalLM
from synthesizer_attention.run.recipe_keys import Train
from synthesizer_attention.training.optim import Adafactor, build_optimizer, learning_rate, set_rate


def tiny_model(synthesis, **settings):
    sizes = {"d_model": 12, "num_heads": 3, "num_layers": 1, "d_ff": 20, "max_len": 7}
    return SynthesizerForCausalLM(
        SynthesizerConfig(**sizes, vocab_size=11, synthesis=synthesis, **settings)
    )


def group_of(model, optimizer):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)].removeprefix("model.decoder."): group["name"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def test_tables_and_mixing_weights_have_their_own_group():
    model = tiny_model("random+factorized_random+dot")
    groups = group_of(model, build_optimizer(model, Train()))
    tables = {
        name.rpartition("synthesis.")[2] for name, group in groups.items() if group == "tables"
    }
    assert tables == {"mix", "parts.0.table", "parts.1.rows", "parts.1.columns"}


def test_a_relative_bias_is_a_table():
    model = tiny_model("random", positions="relative")
    groups = group_of(model, build_optimizer(model, Train()))
    assert groups["relative.table"] == "tables"
    assert groups["layers.0.attention.synthesis.table"] == "tables"


def test_neither_norms_nor_biases_decay_even_those_with_a_heads_axis():
    model = tiny_model("dense")
    optimizer = build_optimizer(model, Train(weight_decay=0.1))
    groups = group_of(model, optimizer)
    others = {name for name, group in groups.items() if group == "others"}
    assert {"layers.0.attention.synthesis.b1", "layers.0.attention.synthesis.b2"} <= others
    assert {"layers.0.attention_norm.weight", "layers.0.feed_forward.widen.bias"} <= others
    decays = {group["name"]: group["weight_decay"] for group in optimizer.param_groups}
    assert decays == {"decayed": 0.1, "others": 0.0}


def test_every_trained_parameter_is_in_exactly_one_group():
    model = tiny_model("random+dense")
    grouped = group_of(model, build_optimizer(model, Train()))
    assert len(grouped) == len(list(model.parameters()))


def test_tables_move_at_a_multiple_of_the_rate():
    optimizer = build_optimizer(tiny_model("random"), Train(table_rate=30.0))
    set_rate(optimizer, 0.002)
    rates = {group["name"]: group["lr"] for group in optimizer.param_groups}
    assert rates == {"tables": pytest.approx(0.06), "decayed": 0.002, "others": 0.002}


@pytest.mark.parametrize("name", ["adam", "adamw", "adafactor"])
def test_every_optimizer_lowers_the_loss(name):
    torch.manual_seed(0)
    model, ids = tiny_model("random+dot"), torch.arange(14).remainder(11).view(2, 7)
    train = Train(optimizer=name, lr=0.01)
    optimizer = build_optimizer(model, train)
    first = model(input_ids=ids, labels=ids).loss
    for _ in range(10):
        set_rate(optimizer, 0.01)
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    assert model(input_ids=ids, labels=ids).loss < 0.9 * first


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "cosine", "linear", "constant"])
def test_every_schedule_climbs_to_the_highest_rate_at_the_end_of_warmup(schedule):
    train = Train(lr=0.5, schedule=schedule, warmup=10, steps=100)
    assert learning_rate(5, train) == pytest.approx(0.25)
    assert learning_rate(10, train) == pytest.approx(0.5)
    assert all(learning_rate(step, train) <= 0.5 for step in range(1, 101))


def test_schedules_end_where_they_should():
    def last(schedule, warmup=10):
        return learning_rate(90, Train(lr=1.0, schedule=schedule, warmup=warmup, steps=90))

    assert last("cosine") == pytest.approx(0.0)
    assert last("linear") == 0.0
    assert last("constant") == 1.0
    assert last("inverse_sqrt") == pytest.approx(math.sqrt(10 / 90))
    assert last("inverse_sqrt", warmup=0) == pytest.approx(math.sqrt(1 / 90))


def test_halfway_through_its_fall_the_cosine_is_at_half_the_rate():
    assert learning_rate(55, Train(lr=1.0, schedule="cosine", warmup=10, steps=100)) == (
        pytest.approx(0.5)
    )


def drawn(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_adafactor_moves_tables_at_their_multiple_of_the_rate_at_every_step():
    for step in (0, 1_000, 20_000, 500_000):
        model = tiny_model("random")
        optimizer = build_optimizer(model, Train(optimizer="adafactor", table_rate=30.0))
        set_rate(optimizer, 1e-2)
        table = model.model.decoder.layers[0].attention.synthesis.table
        weight = model.model.decoder.layers[0].attention.value.weight
        for parameter in (table, weight):
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()  # builds the state
        before = {parameter: parameter.detach().clone() for parameter in (table, weight)}
        for parameter in (table, weight):
            optimizer.state[parameter]["step"].fill_(step)
        optimizer.step()
        moved = {
            parameter: (parameter - old).abs().mean() / old.square().mean().sqrt().clamp(min=1e-3)
            for parameter, old in before.items()
        }
        assert (moved[table] / moved[weight]).item() == pytest.approx(30, rel=1e-3)


@pytest.mark.parametrize("shape", [(5,), (4, 6), (3, 4, 6)])
def test_adafactor_is_torchs_while_the_rate_is_below_its_bound(shape):
    ours, theirs = (torch.nn.Parameter(drawn(shape, 0)) for _ in range(2))
    steps = Adafactor([ours], lr=1e-2, weight_decay=0.1)
    bounded = torch.optim.Adafactor([theirs], lr=1e-2, weight_decay=0.1)
    for seed in range(1, 20):  # 1 / sqrt(t) is above 0.2
        ours.grad, theirs.grad = drawn(shape, seed), drawn(shape, seed)
        steps.step()
        bounded.step()
    torch.testing.assert_close(ours, theirs)
    assert steps.state[ours].keys() == {
        key for key, value in bounded.state[theirs].items() if value is not None
    }


def test_adafactor_goes_on_from_a_checkpoint_of_torchs():
    ours, theirs = (torch.nn.Parameter(drawn((4, 6), 0)) for _ in range(2))
    bounded, steps = torch.optim.Adafactor([theirs], lr=1e-2), Adafactor([ours], lr=1e-2)
    for seed in (1, 2):
        theirs.grad = drawn((4, 6), seed)
        bounded.step()
    ours.data.copy_(theirs.data)
    steps.load_state_dict(deepcopy(bounded.state_dict()))
    ours.grad, theirs.grad = drawn((4, 6), 3), drawn((4, 6), 3)
    steps.step()
    bounded.step()
    torch.testing.assert_close(ours, theirs)
