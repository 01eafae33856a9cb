"""From an audit to a model folder in which replaced heads have no query and no key projection."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel

from synthesizer.audit.hook import Layer
from synthesizer.errors import UserError
from synthesizer.models.converted import (
    check_convertible,
    converted_config,
    converted_model,
    narrowed_state,
)
from synthesizer.models.tables import HeadTables


def build_converted(
    model: PreTrainedModel, layers: Sequence[Layer], tables: Mapping[int, HeadTables]
) -> PreTrainedModel:
    """A model like this one in which tables stand for the heads that they name, by layer."""
    base = model.base_model
    prefix = next((f"{name}." for name, m in model.named_modules() if m is base and name), "")
    replaced: dict[str, dict[str, Any]] = {}
    state = dict(model.state_dict())
    for place, table in sorted(tables.items()):
        layer = layers[place]
        if sum(other.name == layer.name for other in layers) > 1:
            raise UserError(
                f"{type(model).__name__} shares one attention among its layers, so that a head "
                "cannot be left out of one of them; audit works, convert does not"
            )
        name = layer.name.removeprefix(prefix)
        check_convertible(base.get_submodule(name))
        replaced[name] = {
            "heads": list(table.heads),
            "num_heads": layer.num_heads,
            "num_key_heads": layer.num_key_heads,
            "d_head": layer.d_head,
            "max_len": table.max_len,
            "kind": table.kind,
        }
        for key, value in table.state_dict().items():
            state[f"{layer.name}.tables.{key}"] = value
    state = narrowed_state(state, prefix, replaced)
    facts = copy.deepcopy(model.config).to_dict()
    original = facts.pop("model_type")
    facts |= {"original_model_type": original, "replaced": replaced}
    own: Any = type(model.config)
    config = converted_config(own).from_dict(facts)
    converted = converted_model(type(model))(config)
    missing, unexpected = converted.load_state_dict(state, strict=False)
    tied = set(converted.all_tied_weights_keys)
    assert not set(missing) - tied, missing
    assert not unexpected, unexpected
    converted.tie_weights()
    converted.generation_config = copy.deepcopy(getattr(model, "generation_config", None))
    return converted.to(model.dtype).eval()
