"""Equal budgets: the feed-forward width at which one variant costs what another does."""

from synthesizer_attention.errors import UserError
from synthesizer_attention.models.cost import (
    count_parameters,
    flops_per_token,
    sketch,
    unread_parameters,
)
from synthesizer_attention.run.recipe import Recipe
from synthesizer_attention.training.build import rough_config


def count(recipe: Recipe, measure: str) -> float:
    """A recipe's trained parameters ("params"), or its forward FLOPs per token ("flops").

    Entries of a causal table that no query reads do not count as parameters.
    """
    config = rough_config(recipe)
    if measure == "flops":
        return flops_per_token(config)
    model = sketch(config)
    return count_parameters(model)["total"] - unread_parameters(model)


def match_width(recipe: Recipe, like: Recipe, measure: str) -> int:
    """The d_ff at which `recipe` comes nearest to the count of `like`.

    Both counts are linear in d_ff, and what the vocabulary adds is the same on both sides.
    """
    budget = count(like, measure)
    first = count(at_width(recipe, 1), measure)
    slope = count(at_width(recipe, 2), measure) - first
    width = 1 + round((budget - first) / slope)
    if width < 1:
        raise UserError(
            f"{recipe.synthesis} has {first:,.0f} {measure} with a feed-forward of width 1, more "
            f"than the {budget:,.0f} of {like.synthesis} it must match; leave the row out, "
            "shorten model.max_len or use --match none"
        )
    return width


def at_width(recipe: Recipe, d_ff: int) -> Recipe:
    """The recipe with another feed-forward width."""
    model = recipe.model.model_copy(update={"d_ff": d_ff})
    return recipe.model_copy(update={"model": model})
