from synthesizer_attention.run.recipe import (
    describe_seconds,
    estimate_flops,
    estimate_parameters,
    load_recipe,
    recipe_names,
    summarize,
    summarize_recipes,
)


def test_every_recipe_has_a_line():
    assert [summary.name for summary in summarize_recipes()] == recipe_names()


def test_a_line_says_task_data_size_and_cost():
    summary = summarize(load_recipe("mt-wmt14-ende"))
    assert summary.task == "translation"
    assert summary.data == "wmt/wmt14 de-en"
    assert summary.size == "6+6 layers, d 512, length 256, 61M"
    assert summary.cost.startswith("100,000 steps, about ")


def test_the_estimate_of_t5_base_is_its_published_size():
    assert round(estimate_parameters(load_recipe("pretrain-c4")) / 1e6) == 223


def test_a_target_meets_the_decoder_and_the_vocabulary_and_a_source_the_encoder():
    sizes = ["num_layers=1", "num_decoder_layers=2", "d_model=2", "d_ff=8", "num_heads=1"]
    train = ["train.steps=1", "train.batch_tokens=100", "train.accumulate=1", "text.vocab_size=50"]
    overrides = [f"model.{size}" for size in sizes] + train
    encoder, decoder, output = 4 * 4 + 2 * 16, 2 * (8 * 4 + 2 * 16), 2 * 50
    assert estimate_flops(load_recipe("translation", overrides=overrides)) == (
        6 * 50 * encoder + 6 * 50 * (decoder + output)
    )


def test_durations_read_well():
    assert describe_seconds(0.2) == "about 1 second"
    assert describe_seconds(59) == "about 59 seconds"
    assert describe_seconds(3 * 86_400) == "about 3 days"


def test_every_recipe_is_evaluated_within_the_first_third_of_its_steps():
    """Else a report cannot say whether the gap between two rows still closes."""
    recipes = [load_recipe(name) for name in recipe_names()]
    assert not [r.name for r in recipes if r.evaluate.every > r.train.steps / 3]
