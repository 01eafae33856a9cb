"""Models of others that `bench --peers` times beside ours, of the same size and random weights."""

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

GPT2, LLAMA, MARIAN = "Hugging Face GPT-2", "Hugging Face Llama", "Hugging Face Marian"
ENCODER, OTHER = "torch.nn.TransformerEncoder", "x-transformers"  # the latter where it is installed
STATIC = ", compiled, static cache"  # ends the name of a peer that decodes so
PEERS = {  # by mode
    "lm": (GPT2, LLAMA, ENCODER, OTHER),
    "decode": (GPT2, LLAMA, OTHER, LLAMA + STATIC),
    "translate": (MARIAN,),
}


def is_here(name: str) -> bool:
    """Whether a peer can be built."""
    return name != OTHER or find_spec("x_transformers") is not None


def build_peer(name: str, setting: Any) -> Any:  # noqa: ANN401
    """A peer of the size of a plan.Setting; None where the name is no peer's."""
    import transformers

    if name in (ENCODER, OTHER):
        return (TorchModel if name == ENCODER else OtherModel)(setting).to(setting.device)
    size, d, heads = setting.length, setting.d_model, setting.num_heads
    shared = {"vocab_size": setting.vocab_size, "bos_token_id": 2, "eos_token_id": 1}
    model: Any
    if name == GPT2:
        sizes = {"n_positions": size, "n_embd": d, "n_layer": setting.num_layers, "n_head": heads}
        drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        config: Any = transformers.GPT2Config(**shared, **sizes, **drops)
        model = transformers.GPT2LMHeadModel(config)
    elif name.removesuffix(STATIC) == LLAMA:
        config = transformers.LlamaConfig(
            **shared,
            hidden_size=d,
            intermediate_size=8 * d // 3,  # its feed-forward has three matrices
            num_hidden_layers=setting.num_layers,
            num_attention_heads=heads,
            max_position_embeddings=size,
            tie_word_embeddings=True,
        )
        model = transformers.LlamaForCausalLM(config)
        if name.endswith(STATIC):
            model.generation_config.cache_implementation = "static"
            model.forward = torch.compile(model.forward, dynamic=False)
    elif name == MARIAN:
        config = transformers.MarianConfig(
            **shared,
            d_model=d,
            encoder_layers=setting.num_layers,
            decoder_layers=setting.num_layers,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            encoder_ffn_dim=4 * d,
            decoder_ffn_dim=4 * d,
            max_position_embeddings=size,
            activation_function="relu",
            dropout=0.0,
            pad_token_id=0,
            decoder_start_token_id=2,
            forced_eos_token_id=None,
        )
        model = transformers.MarianMTModel(config)
    else:
        return None
    return model.to(setting.device)


class TorchModel(nn.Module):
    """A causal language model of PyTorch's own encoder layers."""

    def __init__(self, setting: Any) -> None:  # noqa: ANN401
        super().__init__()
        d = setting.d_model
        self.tokens, self.places = (
            nn.Embedding(setting.vocab_size, d),
            nn.Embedding(setting.length, d),
        )
        layer = nn.TransformerEncoderLayer(
            d, setting.num_heads, 4 * d, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(
            layer, setting.num_layers, nn.LayerNorm(d), enable_nested_tensor=False
        )
        future = nn.Transformer.generate_square_subsequent_mask(setting.length)
        self.register_buffer("future", future)

    def forward(self, input_ids: Tensor, labels: Tensor) -> SimpleNamespace:
        x = self.tokens(input_ids) + self.places.weight
        y = self.layers(x, mask=self.future, is_causal=True) @ self.tokens.weight.T
        loss = F.cross_entropy(y[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return SimpleNamespace(loss=loss)


class OtherModel(nn.Module):
    """A decoder of x-transformers with its defaults and PyTorch's fused attention."""

    def __init__(self, setting: Any) -> None:  # noqa: ANN401
        super().__init__()
        from x_transformers import (
            AutoregressiveWrapper,
            Decoder,
            TransformerWrapper,
        )

        heads, d = setting.num_heads, setting.d_model
        sizes = {"dim": d, "depth": setting.num_layers, "heads": heads, "attn_dim_head": d // heads}
        whole = TransformerWrapper(
            num_tokens=setting.vocab_size,
            max_seq_len=setting.length,
            attn_layers=Decoder(**sizes, attn_flash=True),
            tie_embedding=True,
        )
        self.model = AutoregressiveWrapper(whole)

    def forward(self, input_ids: Tensor, labels: Tensor) -> SimpleNamespace:
        return SimpleNamespace(loss=self.model(labels))

    def generate(self, prompt: Tensor, **options: Any) -> Tensor:  # noqa: ANN401
        new: Tensor = self.model.generate(prompt, options["max_new_tokens"], temperature=0.0)
        return new
