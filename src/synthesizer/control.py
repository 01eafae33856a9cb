"""The control that spends another variant's parameters on a wider feed-forward."""

import torch

from synthesizer.config import SynthesizerConfig
from synthesizer.errors import UserError
from synthesizer.models import MODELS


def num_parameters(config: SynthesizerConfig) -> int:
    """Trained parameters of the model of a config, tied ones once; nothing is allocated."""
    if config.kind is None:
        raise UserError("a config without kind has no model to count; set its kind")
    with torch.device("meta"):
        model = MODELS[config.kind](config)
    return sum(parameter.numel() for parameter in model.parameters())


def widen_dot(config: SynthesizerConfig, parameters: int) -> SynthesizerConfig:
    """The same model with dot-product attention and the d_ff that brings it nearest to a count.

    The count is linear in d_ff, so that two of them tell the rest.
    """
    dot = {"synthesis": "dot", "decoder_synthesis": ""}
    least, next_least = (num_parameters(_changed(config, d_ff=d_ff, **dot)) for d_ff in (1, 2))
    d_ff = 1 + round((parameters - least) / (next_least - least))
    if d_ff < 1:
        raise UserError(
            f"a dot-product model of this width has at least {least:,} parameters, more than the "
            f"{parameters:,} asked for; lower d_model or num_layers"
        )
    return _changed(config, d_ff=d_ff, **dot)


def _changed(config: SynthesizerConfig, **changes: object) -> SynthesizerConfig:
    changed: SynthesizerConfig = type(config).from_dict({**config.to_dict(), **changes})
    return changed
