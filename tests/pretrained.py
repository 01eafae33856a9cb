"""Tiny random models, fifteen architectures of transformers and five of ours; shared audits.

The session fixture `audits` (conftest.py) makes each model folder and each audit once.
"""

import csv
import json
import random

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import (
    BartForConditionalGeneration,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    Gemma2ForCausalLM,
    GPT2LMHeadModel,
    GPTBigCodeForCausalLM,
    GPTNeoXForCausalLM,
    GptOssForCausalLM,
    LlamaForCausalLM,
    ModernBertForMaskedLM,
    Olmo2ForCausalLM,
    OPTForCausalLM,
    Phi3ForCausalLM,
    PreTrainedTokenizerFast,
    T5ForConditionalGeneration,
    ViTForImageClassification,
    WhisperForConditionalGeneration,
)

from synthesizer_attention.audit.examples import METRICS
from synthesizer_attention.audit.hook import Hook
from synthesizer_attention.audit.run import Asked, audit
from synthesizer_attention.audit.tables import HeadTables
from synthesizer_attention.models import MODELS as OUR_CLASSES
from synthesizer_attention.models import SynthesizerConfig

VOCAB = 37
SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
         "intermediate_size": 20}  # fmt: skip
TEXT = {"vocab_size": VOCAB, "max_position_embeddings": 16, "pad_token_id": 0}
STACKS = {"vocab_size": VOCAB, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2,
          "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 20,
          "decoder_ffn_dim": 20, "pad_token_id": 0, "bos_token_id": 1,
          "eos_token_id": 2}  # fmt: skip
SHARED = SMALL | TEXT | {"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1,
                         "eos_token_id": 2}  # fmt: skip
BIGCODE = {"vocab_size": VOCAB, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 16,
           "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
MODELS = {
    "bert": (BertForMaskedLM, SMALL | TEXT),
    "gpt2": (GPT2LMHeadModel, {"vocab_size": VOCAB, "n_embd": 24, "n_layer": 2, "n_head": 3,
             "n_positions": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}),
    # four heads of queries share two of keys
    "llama": (LlamaForCausalLM, SMALL | TEXT | {"num_attention_heads": 4,
              "num_key_value_heads": 2}),
    # a sliding window in one layer, a soft cap on the logits, three heads that share one key
    "gemma": (Gemma2ForCausalLM, SMALL | TEXT | {"num_key_value_heads": 1, "head_dim": 8,
              "sliding_window": 3, "attn_logit_softcapping": 2.0}),
    "t5": (T5ForConditionalGeneration, {"vocab_size": VOCAB, "d_model": 24, "d_kv": 8,
           "num_layers": 2, "num_heads": 3, "d_ff": 20, "relative_attention_num_buckets": 6,
           "decoder_start_token_id": 0}),
    "bart": (BartForConditionalGeneration, STACKS | {"max_position_embeddings": 16,
             "decoder_start_token_id": 2, "forced_eos_token_id": None, "dropout": 0.0}),
    "vit": (ViTForImageClassification, SMALL | {"image_size": 8, "patch_size": 4,
            "num_labels": 3}),
    # projections are split into as many heads as the config says
    "opt": (OPTForCausalLM, TEXT | {"hidden_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 3, "ffn_dim": 20, "word_embed_proj_dim": 24}),
    # sixteen frames of sound, which a convolution makes eight tokens of
    "whisper": (WhisperForConditionalGeneration, STACKS | {"num_mel_bins": 4,
                "max_source_positions": 8, "max_target_positions": 16, "decoder_start_token_id": 1,
                "suppress_tokens": None, "begin_suppress_tokens": None}),
    # one projection of queries, keys and values: all queries first, or all of each head
    "phi3": (Phi3ForCausalLM, SHARED),
    "modernbert": (ModernBertForMaskedLM, SMALL | TEXT | {"local_attention": 4,
                   "global_attn_every_n_layers": 2, "cls_token_id": 1, "sep_token_id": 2}),
    "neox": (GPTNeoXForCausalLM, SMALL | TEXT),
    "bigcode": (GPTBigCodeForCausalLM, BIGCODE),
    "bigcode by head": (GPTBigCodeForCausalLM, BIGCODE | {"multi_query": False}),
    # a sink beside the keys of each head
    "gpt-oss": (GptOssForCausalLM, SHARED | {"head_dim": 6, "num_local_experts": 2,
                "num_experts_per_tok": 1, "sliding_window": 3}),
    # queries and keys are normalized over all heads
    "olmo2": (Olmo2ForCausalLM, SHARED),
}  # fmt: skip
OWN = {  # what positions add to logits or turn, and who may look
    "decoder": {"kind": "decoder", "positions": "sinusoidal+relative"},
    "window": {"kind": "decoder", "positions": "rotary", "window": 3},
    "classifier": {"kind": "encoder", "positions": "learned+alibi", "num_labels": 3},
    "translator": {"kind": "encoder_decoder", "positions": "relative", "decoder_max_len": 9},
    "mixed": {"kind": "encoder", "positions": "relative", "synthesis": "dot,random,dot"},
}
SUBJECTS = (*MODELS, *OWN)
TRANSLATORS = ("t5", "bart")  # texts to texts
ENCODER_DECODERS = (*TRANSLATORS, "whisper")
WORDS = [f"w{number}" for number in range(VOCAB - 5)]


def crossed(names, values):
    """Every name and every value once, more by `make slow`."""
    plain = {(name, place % len(values)) for place, name in enumerate(names)}
    return [
        pytest.param(name, value, marks=() if (name, at) in plain else pytest.mark.slow)
        for name in names
        for at, value in enumerate(values)
    ]


def spread(model, std=0.4, least=2):
    """Weights large enough that attention is far from uniform."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= least:
                parameter.normal_(std=std)
    return model.eval()


def build(name, seed=0, **more):
    """A tiny model with random weights."""
    torch.manual_seed(seed)
    if name in MODELS:
        cls, sizes = MODELS[name]
        return spread(cls(cls.config_class(**sizes)))
    given = {"synthesis": "dot", "num_layers": 3 if name == "mixed" else 2} | OWN[name] | more
    config = SynthesizerConfig(
        vocab_size=VOCAB, d_model=12, num_heads=4, d_ff=10, max_len=11, dropout=0.0, **given
    )
    return spread(OUR_CLASSES[config.kind](config), 0.5, least=0)


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


def tokenizer(special=("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")):
    """Of WORDS, with a first and a last token around each text."""
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    plain = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    plain.pre_tokenizer = Whitespace()
    plain.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )  # fmt: skip
    names = {f"{name[1:-1].lower()}_token": name for name in special}
    return PreTrainedTokenizerFast(tokenizer_object=plain, **names)


def sentences(count, seed=0):
    """Texts of two to nine words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) for _ in range(count)]


def value_of(examples, model):
    """The metric of a model that is its own original."""
    outputs = examples.run(model)
    return METRICS[examples.metric].value(examples.statistics(outputs, outputs).sum(0))


CASES = {  # a model and its data, by metric or architecture
    "loss": ("masked", "texts.txt"),
    "accuracy": ("classifier", "labels.csv"),
    "spearman": ("bare", "pairs.tsv"),
    "agreement": ("bare", "texts.txt"),
    "t5": ("t5", "pairs.csv"),
    "bart": ("bart", "pairs.csv"),
}


class Audits:
    """Model folders, their data, and one finished audit of each case, made when asked for."""

    def __init__(self, home):
        self.home = home
        texts, others = sentences(40), sentences(40, 1)
        self.write("texts.txt", texts)
        labels = [f"{text},{n % 2}" for n, text in enumerate(texts)]
        self.write("labels.csv", ["text,label", *labels])
        pairs = [f"{a}\t{b}\t{n % 7}" for n, (a, b) in enumerate(zip(texts, others, strict=True))]
        self.write("pairs.tsv", ["sentence1\tsentence2\tscore", *pairs])
        for name, count, seed in (("pairs.csv", 40, 0), ("more.csv", 400, 2)):
            rows = zip(sentences(count, seed + 1), sentences(count, seed), strict=True)
            with (home / name).open("w", newline="") as file:
                csv.writer(file).writerows([("target", "source"), *rows])

    def write(self, name, lines):
        """Lines as a file of data."""
        (self.home / name).write_text("\n".join(lines))
        return self.home / name

    def model(self, name):
        """The folder of a model and its tokenizer."""
        folder = self.home / name
        if not folder.exists():
            classes = {"classifier": BertForSequenceClassification, "bare": BertModel}
            model = build("bert" if name == "masked" or name in classes else name)
            if name in classes:
                model = spread(classes[name](model.config))
            model.save_pretrained(folder)
            tokenizer().save_pretrained(folder)
        return folder

    def measured(self, case, out, say=lambda text: None, **more):
        """An audit of its own."""
        model, data = CASES[case]
        options = {"max_len": 12, "rank_examples": 4, "fit_examples": 20, "rankings": 2, "steps": 3}
        options |= {"metric": case} if case in METRICS else {"rankings": 1, "lengths": (4,)}
        home = more.pop("home", None) or self.home
        self.model(model)
        asked = Asked(model=str(home / model), data=home / data, out=out, **options | more)
        return audit(asked, say)

    def finished(self, case):
        """The folder of one audit that tests share, and its record."""
        out = self.home / f"{case}-audit"
        if not out.exists():
            self.measured(case, out)
        return out, json.loads((out / "audit.json").read_text())
