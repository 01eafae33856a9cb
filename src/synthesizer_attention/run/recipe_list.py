"""The built-in recipes at a glance: task, data, size and rough cost, without building anything."""

from typing import NamedTuple

from synthesizer_attention.run.recipe import Recipe, load_recipe, recipe_names
from synthesizer_attention.run.recipe_keys import Data

CPU_THREAD = 4e10  # floating point operations per second of one CPU thread, roughly
BYTES = 256


class Summary(NamedTuple):
    """One line of `synthesizer recipes`."""

    name: str
    task: str
    data: str
    size: str
    cost: str


def summarize_recipes() -> list[Summary]:
    """Every built-in recipe, by name."""
    return [summarize(load_recipe(name)) for name in recipe_names()]


def summarize(recipe: Recipe) -> Summary:
    """What a recipe will take, before anything is read."""
    decoder = (
        f"+{recipe.model.num_decoder_layers}" if recipe.model.kind == "encoder_decoder" else ""
    )
    million = estimate_parameters(recipe) / 1e6
    depth = f"{recipe.model.num_layers}{decoder} layer{'' if recipe.model.num_layers == 1 else 's'}"
    shape = f"{depth}, d {recipe.model.d_model}"
    seconds = estimate_flops(recipe) / CPU_THREAD
    return Summary(
        name=recipe.name,
        task=recipe.task,
        data=describe_data(recipe.data),
        size=f"{shape}, length {recipe.model.max_len}, {_short(million)}M",
        cost=f"{recipe.train.steps:,} steps, {describe_seconds(seconds)} of one CPU thread",
    )


def estimate_parameters(recipe: Recipe) -> float:
    """Weights of the dot-product model, from the sizes alone."""
    return sum(_stacks(recipe)) + _vocabulary(recipe) * recipe.model.d_model


def estimate_flops(recipe: Recipe) -> float:
    """Six operations per weight that a token meets, over all steps; attention's own left out.

    Half the tokens of an encoder-decoder are taken for sources, the others for targets.
    """
    train, stacks = recipe.train, _stacks(recipe)
    tokens = train.steps * train.accumulate * train.batch_tokens
    output = 0 if recipe.model.kind == "encoder" else _vocabulary(recipe) * recipe.model.d_model
    return 6 * tokens / len(stacks) * (sum(stacks) + output)


def describe_data(data: Data) -> str:
    """Where the data comes from, in a few words."""
    if data.tasks:
        return f"{len(data.tasks)} tasks of GLUE and SuperGLUE"
    if data.builtin:
        return "built in"
    local = data.local if isinstance(data.local, str) else " or ".join(data.local or ())
    named = data.train or " ".join(filter(None, [data.hub, data.config])) or local
    return str(named) if named else "yours: data.train"


def describe_seconds(seconds: float) -> str:
    """A duration in the largest unit that leaves at least one of it."""
    units = {"years": 31_536_000, "days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
    unit = next((unit for unit, size in units.items() if seconds >= size), "seconds")
    number = max(1, round(seconds / units[unit]))
    return f"about {number:,} {unit if number > 1 else unit[:-1]}"


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"


def _stacks(recipe: Recipe) -> list[float]:
    """The weights of an encoder and a decoder, or of the one there is."""
    model = recipe.model
    assert model.d_ff is not None
    assert model.num_decoder_layers is not None
    attention, feed_forward = 4 * model.d_model**2, 2 * model.d_model * model.d_ff
    first = model.num_layers * (attention + feed_forward)
    if model.kind != "encoder_decoder":
        return [first]
    return [first, model.num_decoder_layers * (2 * attention + feed_forward)]


def _vocabulary(recipe: Recipe) -> int:
    return BYTES if recipe.text.kind == "byte" else recipe.text.vocab_size
