"""The whole models that are timed, ours and the one that a user would pick instead."""

from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from synthesizer_attention.benchmark.cases import GPT2, Setting
from synthesizer_attention.models.config import SynthesizerConfig
from synthesizer_attention.models.heads import MODELS


def build_model(name: str, kind: str, setting: Setting) -> Any:  # noqa: ANN401
    """A model of the setting's size with this variant in every layer, or GPT-2."""
    if name == GPT2:
        config = GPT2Config(
            vocab_size=setting.vocab_size,
            n_positions=setting.length,
            n_embd=setting.d_model,
            n_layer=setting.num_layers,
            n_head=setting.num_heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=2,
            eos_token_id=1,
        )
        return GPT2LMHeadModel(config).to(setting.device)
    ours = SynthesizerConfig(
        kind=kind,
        vocab_size=setting.vocab_size,
        d_model=setting.d_model,
        num_heads=setting.num_heads,
        num_layers=setting.num_layers,
        d_ff=4 * setting.d_model,
        max_len=setting.length,
        synthesis=name,
    )
    return MODELS[kind](ours).to(setting.device)


def step_inputs(kind: str, setting: Setting) -> dict[str, Tensor]:
    """Random tokens, and labels as the kind of model wants them."""
    shape = (setting.batch, setting.length)
    ids = torch.randint(2, setting.vocab_size, shape, device=setting.device)
    if kind == "encoder":
        return {"input_ids": ids, "labels": ids[:, 0] % 2}
    return {"input_ids": ids, "labels": ids}
