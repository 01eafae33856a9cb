"""Which path an attention takes, asked of the attention itself."""

from dataclasses import replace

import torch

from synthesizer_attention.attention.baselines import build_mixer
from synthesizer_attention.attention.fast import dispatch as fast
from synthesizer_attention.attention.layer import SyntheticAttention
from synthesizer_attention.attention.synthesis import Size
from synthesizer_attention.benchmark.cases import Setting
from synthesizer_attention.benchmark.measure import BASELINE, Plan


def chosen_path(name: str, setting: Setting) -> fast.Choice:
    """The path of a variant in a setting, nothing computed."""
    size = Size(setting.d_model, setting.num_heads, setting.length)
    mixer = build_mixer(name, size, causal="causal" in setting.view)
    if not isinstance(mixer, SyntheticAttention):
        return fast.Choice("its own", "no attention is synthesized")
    x = torch.empty(1, 1, 1).expand(setting.batch, setting.length, setting.d_model)
    padded = torch.ones(1, 1, dtype=torch.bool).expand(setting.batch, setting.length)
    call = fast.Call(
        x,
        keys=None,
        values=x.unflatten(-1, (setting.num_heads, -1)).transpose(1, 2),
        causal=mixer.causal,
        mask=padded if "padded" in setting.view else None,
    )
    choice = fast.choose(mixer.synthesis, call)
    if choice.path not in ("table", "blocks") or mixer.synthesis.num_outer:
        return choice
    compiled = fast.has_kernel(torch.device(setting.device))
    return (
        choice._replace(reason=choice.reason + "; by the compiled kernel") if compiled else choice
    )


def explain(plan: Plan) -> list[tuple[str, str, str, str, str]]:
    """Variant, view, length, path and reason, for each attention of a plan, in training."""
    lines = []
    for setting in replace(plan, modes=("train",)).settings():
        for name in (BASELINE, *plan.variants):
            choice = chosen_path(name, setting)
            lines.append((name, setting.view, str(setting.length), choice.path, choice.reason))
    return lines
