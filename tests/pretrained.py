"""Tiny random models: nine architectures of transformers' attention interface, and five of ours."""

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from synthesizer_attention.audit.hook import Hook
from synthesizer_attention.audit.tables import HeadTables
from synthesizer_attention.models import MODELS as OUR_CLASSES
from synthesizer_attention.models import SynthesizerConfig

VOCAB = 37


def bert():
    return BertForMaskedLM(
        BertConfig(
            vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
            intermediate_size=20, max_position_embeddings=16,
        )
    )  # fmt: skip


def gpt2():
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB, n_embd=24, n_layer=2, n_head=3, n_positions=16, bos_token_id=1,
            eos_token_id=2, pad_token_id=0,
        )
    )  # fmt: skip


def llama():
    """Four heads of queries share two of keys."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, intermediate_size=20, max_position_embeddings=16, pad_token_id=0,
        )
    )  # fmt: skip


def gemma():
    """A sliding window in one layer, a soft cap on the logits, three heads that share one key."""
    return Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
            num_key_value_heads=1, head_dim=8, intermediate_size=20, max_position_embeddings=16,
            sliding_window=3, attn_logit_softcapping=2.0, pad_token_id=0,
        )
    )  # fmt: skip


def t5():
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCAB, d_model=24, d_kv=8, num_layers=2, num_heads=3, d_ff=20,
            relative_attention_num_buckets=6, decoder_start_token_id=0,
        )
    )  # fmt: skip


def bart():
    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=VOCAB, d_model=24, encoder_layers=2, decoder_layers=2,
            encoder_attention_heads=3, decoder_attention_heads=3, encoder_ffn_dim=20,
            decoder_ffn_dim=20, max_position_embeddings=16, pad_token_id=0, bos_token_id=1,
            eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None, dropout=0.0,
        )
    )  # fmt: skip


def vit():
    return ViTForImageClassification(
        ViTConfig(
            hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
            image_size=8, patch_size=4, num_labels=3,
        )
    )  # fmt: skip


def opt():
    """Projections are split into as many heads as the config says."""
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
            ffn_dim=20, max_position_embeddings=16, word_embed_proj_dim=24, pad_token_id=0,
        )
    )  # fmt: skip


def whisper():
    """Sixteen frames of sound, which a convolution makes eight tokens of."""
    return WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=VOCAB, d_model=24, encoder_layers=2, decoder_layers=2,
            encoder_attention_heads=3, decoder_attention_heads=3, encoder_ffn_dim=20,
            decoder_ffn_dim=20, num_mel_bins=4, max_source_positions=8, max_target_positions=16,
            pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
            suppress_tokens=None, begin_suppress_tokens=None,
        )
    )  # fmt: skip


MODELS = {
    "bert": bert, "gpt2": gpt2, "llama": llama, "gemma": gemma, "t5": t5, "bart": bart, "vit": vit,
    "opt": opt, "whisper": whisper,
}  # fmt: skip
OWN = {  # what positions add to logits or turn, and who may look
    "decoder": {"kind": "decoder", "positions": "sinusoidal+relative"},
    "window": {"kind": "decoder", "positions": "rotary", "window": 3},
    "classifier": {"kind": "encoder", "positions": "learned+alibi", "num_labels": 3},
    "translator": {"kind": "encoder_decoder", "positions": "relative", "decoder_max_len": 9},
    "mixed": {"kind": "encoder", "positions": "relative", "synthesis": "dot,random,dot"},
}
TRANSLATORS = ("t5", "bart")  # texts to texts
ENCODER_DECODERS = (*TRANSLATORS, "whisper")


def crossed(names, values):
    """Every name and every value once, more by `make slow`."""
    plain = {(name, place % len(values)) for place, name in enumerate(names)}
    return [
        pytest.param(name, value, marks=() if (name, at) in plain else pytest.mark.slow)
        for name in names
        for at, value in enumerate(values)
    ]


def build(name, seed=0, **more):
    """A model with weights large enough that attention is far from uniform."""
    torch.manual_seed(seed)
    if name in MODELS:
        model = MODELS[name]().eval()
    else:
        given = {"synthesis": "dot", "num_layers": 3 if name == "mixed" else 2} | OWN[name] | more
        config = SynthesizerConfig(
            vocab_size=VOCAB, d_model=12, num_heads=4, d_ff=10, max_len=11, dropout=0.0, **given
        )
        model = OUR_CLASSES[config.kind](config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 or name in OWN:
                parameter.normal_(std=0.5 if name in OWN else 0.4)
    return model


def inputs(name, *, padded=True):
    """A batch of two, the first one shorter."""
    torch.manual_seed(1)
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 8, 8)}
    ids = torch.randint(3, VOCAB, (2, 7))
    batch = {"input_ids": ids}
    if name == "whisper":
        batch = {"input_features": torch.randn(2, 4, 16)}
    elif padded:
        batch["attention_mask"] = torch.tensor([[1] * 5 + [0] * 2, [1] * 7])
    if name in (*ENCODER_DECODERS, "translator"):
        batch["decoder_input_ids"] = torch.randint(3, VOCAB, (2, 4))
    return batch


def real_logits(model, batch):
    """Those of real tokens: what is computed for padding is of no consequence."""
    logits, mask = model(**batch).logits, batch.get("attention_mask")
    same = mask is not None and logits.dim() == 3 and mask.shape[1] == logits.shape[1]
    return logits[mask.bool()] if same else logits


def drawn(heads, kind="relative", max_len=16):
    """Tables of random logits."""
    tables = HeadTables(heads, max_len, kind).requires_grad_(False)
    for parameter in tables.parameters():
        parameter.normal_()
    return tables


def found_layers(model, batch):
    """The layers that an audit would find."""
    with torch.no_grad(), Hook(model) as hook:
        return hook.discover(batch)
