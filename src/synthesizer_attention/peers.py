"""Models of transformers that `bench --peers` times beside ours, of the same size."""

from typing import Any

import torch

GPT2, LLAMA, MARIAN = "Hugging Face GPT-2", "Hugging Face Llama", "Hugging Face Marian"
STATIC = ", compiled, static cache"  # ends the name of a peer that decodes so
PEERS = {  # by mode
    "lm": (GPT2,),
    "decode": (GPT2, LLAMA, LLAMA + STATIC),
    "translate": (MARIAN,),
}


def build_peer(name: str, setting: Any) -> Any:  # noqa: ANN401
    """A peer with random weights, of a bench.Setting's size; None where the name is no peer's."""
    import transformers

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
