import pytest
import torch

from synthesizer_attention.errors import UserError
from synthesizer_attention.models.config import SynthesizerConfig
from synthesizer_attention.models.heads import SynthesizerForCausalLM
from synthesizer_attention.run.recipe import load_recipe
from synthesizer_attention.training.build import (
    initialize_by_name,
    load_weights,
    rough_config,
    unique_weights,
)


def drawn(synthesis, seed=1, **settings):
    sizes = {"d_model": 12, "num_heads": 3, "num_layers": 2, "d_ff": 20, "max_len": 7}
    config = SynthesizerConfig(**sizes, vocab_size=11, synthesis=synthesis, **settings)
    model = SynthesizerForCausalLM(config)
    initialize_by_name(model, seed)
    return model


def test_variants_begin_equal_wherever_they_share_a_parameter():
    dot, dense = drawn("dot").state_dict(), drawn("dense").state_dict()
    shared = dot.keys() & dense.keys()
    assert any("feed_forward" in name for name in shared)
    for name in shared:
        torch.testing.assert_close(dot[name], dense[name], rtol=0, atol=0)


def test_layers_and_seeds_begin_differently():
    first, second = drawn("random", seed=1).state_dict(), drawn("random", seed=2).state_dict()
    table = "model.decoder.layers.{}.attention.synthesis.table"
    assert not torch.equal(first[table.format(0)], second[table.format(0)])
    assert not torch.equal(first[table.format(0)], first[table.format(1)])


def test_drawing_leaves_the_generator_of_the_caller_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    model = drawn("dot")
    torch.manual_seed(5)
    initialize_by_name(model, 9)
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)


def test_tied_embeddings_keep_the_spread_of_an_embedding():
    model = drawn("dot")
    assert model.lm_head.weight is model.model.embedding.weight
    assert model.lm_head.weight.std().item() == pytest.approx(12**-0.5, rel=0.2)


def test_a_fixed_table_is_drawn_from_the_seed_too():
    tables = [drawn("fixed_random", seed).state_dict() for seed in (1, 1, 2)]
    name = "model.decoder.layers.0.attention.synthesis.table"
    assert torch.equal(tables[0][name], tables[1][name])
    assert not torch.equal(tables[0][name], tables[2][name])


def test_weights_pass_from_one_model_to_another_tied_ones_once():
    old, new = drawn("random+dot", seed=1), drawn("random+dot", seed=2)
    weights = unique_weights(old)
    assert "lm_head.weight" not in weights
    load_weights(new, weights, "a test")
    for name, tensor in new.state_dict().items():
        torch.testing.assert_close(tensor, old.state_dict()[name], rtol=0, atol=0)


def test_weights_of_another_shape_are_refused_with_the_first_difference():
    weights = unique_weights(drawn("random"))
    with pytest.raises(UserError, match=r"wq is missing there and \(3, 12, 4\) here \(6 differ\)"):
        load_weights(drawn("dot"), weights, "runs/old")


def test_a_universal_recipe_says_when_tokens_stop_and_what_steps_cost():
    changes = ["universal=true", "num_layers=2", "halting_epsilon=0.2", "ponder_cost=0.0"]
    recipe = load_recipe("shift", overrides=[f"model.{change}" for change in changes])
    config = rough_config(recipe)
    assert (config.halting_epsilon, config.ponder_cost) == (0.2, 0.0)
    plain, ours = load_recipe("shift").model, SynthesizerConfig()
    assert (plain.halting_epsilon, plain.ponder_cost) == (ours.halting_epsilon, ours.ponder_cost)
