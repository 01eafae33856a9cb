"""SynthesizerConfig: every choice that makes a model, as Hugging Face keeps it."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig

from synthesizer_attention.attention.baselines import build_mixer, spec_of_mixer
from synthesizer_attention.attention.synthesis import Rotary, Size
from synthesizer_attention.errors import UserError
from synthesizer_attention.models.layers import ACTIVATIONS, NORM_POSITIONS, NORMS, Shape
from synthesizer_attention.spec import (
    DEFAULTS,
    NONE,
    PRESETS,
    expand_layers,
    has_logits,
    modules_of,
    parse_positions,
    parse_spec,
    require_registered,
    split_layers,
)

CONVERTED = "synthesizer-converted"  # the model_type of pretrained models with replaced heads
KINDS = {  # and the class of Hugging Face that opens each
    "decoder": "AutoModelForCausalLM",
    "encoder": "AutoModelForSequenceClassification",
    "encoder_decoder": "AutoModelForSeq2SeqLM",
}
POOLINGS = ("cls", "mean")
OF_STACK = ("max_len", "causal", "cross", "halt_at")  # what a Shape does not take from a config
SHARED = [field.name for field in fields(Shape) if field.name not in OF_STACK]


@strict
class SynthesizerConfig(PreTrainedConfig):
    """The settings of a Synthesizer; `synthesis` says where its attention logits come from.

    Args:
        vocab_size: Number of tokens in the vocabulary.
        kind: "decoder", "encoder" or "encoder_decoder"; by default what the class needs.
        d_model: Width of the tokens.
        num_heads: Number of heads of each layer, a divisor of `d_model`.
        num_layers: Number of layers of the encoder, or of the only stack.
        num_decoder_layers: The same for an encoder-decoder's decoder; 0: as the encoder.
        d_ff: Width of the feed-forward sublayers.
        max_len: Longest sequence: every synthesized table has this side.
        decoder_max_len: The same for an encoder-decoder's decoder; 0: as the encoder.
        synthesis: Spec of the attention logits, for all layers or per layer.
        decoder_synthesis: The same for an encoder-decoder's decoder; "": as the encoder.
        norm: "layer" (with biases) or "rms" (without, as T5).
        norm_position: "pre" or "post" each sublayer.
        activation: Activation of the feed-forward sublayers.
        positions: "sinusoidal" or "learned" (added to the embeddings), "relative" (T5's bias,
            outside alpha), "alibi" (a fixed bias), "rotary" (turns the queries and keys of dot
            products; "rotary:base=10000:share=0.5" for its options) or "none"; joined with +, as
            in "sinusoidal+rotary". A layer without logits, as a convolution, runs without a bias;
            one without dot product is not turned.
        dropout: Dropout rate of the residuals.
        attention_dropout: Dropout rate of the attention weights.
        label_smoothing: Applied by the model itself, in training only.
        pooling: "cls" (the first real token) or "mean": what a classifier reads.
        universal: Use one layer's weights in all `num_layers` steps; each token may stop earlier.
        fixed_depth: With `universal`: every token takes all steps.
        halting_epsilon: A token stops where its halting probabilities reach 1 - halting_epsilon.
        ponder_cost: How much a step costs in the loss, in training only.
        window: How many tokens a query of self-attention sees on its left, itself included, and,
            in an encoder, on its right; None for no window; or a kind of mask that register_mask
            knows, "chunk:size=64".
        equal_qk_init: Start the dot products of self-attention with Wk = Wq: a token first attends
            to tokens like itself. The learned weights are free to part.
        imports: Set by the config itself: modules that register the user's own functions in its
            specs. They are not imported on loading; an error then names them.
        use_cache: Whether a decoder returns a cache by default.
        tie_word_embeddings: Use the embeddings as the output projection, too.
        pad_token_id: Token that fills short sequences.
        bos_token_id: Token that begins a sequence, if there is one.
        eos_token_id: Token, or tokens, that end a sequence.
        decoder_start_token_id: First input of an encoder-decoder's decoder; by default
            `pad_token_id`.
    """

    model_type = "synthesizer"
    keys_to_ignore_at_inference = ["past_key_values", "num_steps", "encoder_num_steps"]  # noqa: RUF012
    attribute_map = {  # noqa: RUF012
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "intermediate_size": "d_ff",
        "max_position_embeddings": "max_len",
    }
    auto_map: ClassVar[Mapping[str, str]] = MappingProxyType({})  # no code of others; TRL reads it

    vocab_size: int = 32_000
    kind: str | None = None
    d_model: int = DEFAULTS.d_model
    num_heads: int = DEFAULTS.num_heads
    num_layers: int = DEFAULTS.num_layers
    num_decoder_layers: int = 0
    d_ff: int = DEFAULTS.d_ff
    max_len: int = DEFAULTS.max_len
    decoder_max_len: int = 0
    synthesis: str = "random+dot"
    decoder_synthesis: str = ""
    norm: str = DEFAULTS.norm
    norm_position: str = DEFAULTS.norm_position
    activation: str = DEFAULTS.activation
    positions: str = DEFAULTS.positions
    dropout: float | int = DEFAULTS.dropout
    attention_dropout: float | int = DEFAULTS.attention_dropout
    label_smoothing: float | int = DEFAULTS.label_smoothing
    pooling: str = DEFAULTS.pooling
    universal: bool = DEFAULTS.universal
    fixed_depth: bool = DEFAULTS.fixed_depth
    halting_epsilon: float | int = DEFAULTS.halting_epsilon
    ponder_cost: float | int = DEFAULTS.ponder_cost
    window: int | str | None = DEFAULTS.window
    equal_qk_init: bool = DEFAULTS.equal_qk_init
    imports: list[str] | None = None
    use_cache: bool = True
    tie_word_embeddings: bool = DEFAULTS.tie_word_embeddings
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = 1
    decoder_start_token_id: int | None = None

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "SynthesizerConfig":  # noqa: ANN401
        """A size by name: the paper's translation model, its pretraining model, or a laptop's."""
        if name not in PRESETS:
            raise UserError(f"unknown preset {name!r}; choose from {', '.join(PRESETS)}")
        return cls(**{**PRESETS[name], **changes})

    def __post_init__(self, **kwargs: Any) -> None:  # noqa: ANN401
        for key in ("attn_implementation", "_attn_implementation", "auto_map"):
            named = kwargs.get(key)
            if isinstance(named, dict) or "/" in str(named):  # transformers would fetch and run it
                raise UserError(
                    f"config.json has {key} {named!r}, which names code of others; a synthesizer "
                    "needs none: remove the key"
                )
        specs = (self.synthesis, self.decoder_synthesis)
        require_registered(specs, self.imports or ())
        self._check()
        self.imports = modules_of(",".join(filter(None, specs))) or None
        self.num_decoder_layers = self.num_decoder_layers or self.num_layers
        self.decoder_max_len = self.decoder_max_len or self.max_len
        decoder = self.decoder_synthesis or self.synthesis
        if self.kind is not None:
            self.synthesis = self._settle(
                self.synthesis, self.num_layers, self.max_len, causal=self.kind == "decoder"
            )
        if self.kind == "encoder_decoder":
            self.decoder_synthesis = self._settle(
                decoder, self.num_decoder_layers, self.decoder_max_len, causal=True
            )
        if self.decoder_start_token_id is None:
            self.decoder_start_token_id = self.pad_token_id
        self.is_encoder_decoder = self.kind == "encoder_decoder"
        super().__post_init__(**kwargs)

    def of_kind(self, kind: str) -> "SynthesizerConfig":
        """The same settings for a model of this kind; a config made for another is refused."""
        if self.kind not in (None, kind):
            raise UserError(
                f"this config has kind={self.kind!r} and the model class needs {kind!r}; load it "
                f"with {KINDS[self.kind]}.from_pretrained(...), or make a SynthesizerConfig("
                f"kind={kind!r}, ...)"
            )
        if self.kind == kind:
            return self
        return type(self).from_dict({**self.to_dict(), "kind": kind})

    def shape(self, *, cross: bool = False) -> Shape:
        """What the encoder or the only stack is built from; cross: an encoder-decoder's decoder."""
        same = {name: getattr(self, name) for name in SHARED}
        return Shape(
            **same,
            max_len=self.decoder_max_len if cross else self.max_len,
            causal=cross or self.kind == "decoder",
            cross=cross,
            halt_at=None if self.fixed_depth else 1 - self.halting_epsilon,
        )

    @property
    def layers_without_bias(self) -> dict[str, int]:
        """Layers of each stack that have no logits for the bias of positions to act on."""
        kinds = parse_positions(self.positions)
        if not (kinds.relative or kinds.alibi):
            return {}
        return self._count_layers(lambda spec: not has_logits(spec))

    @property
    def layers_without_rotary(self) -> dict[str, int]:
        """Layers of each stack that have no dot product for rotary positions to turn."""
        if parse_positions(self.positions).rotary is None:
            return {}
        return self._count_layers(lambda spec: "dot" not in [t.name for t in parse_spec(spec)])

    def _count_layers(self, counts: Callable[[str], bool]) -> dict[str, int]:
        """How many layers of each stack have an attention for which this holds, where any has."""
        stacks = {"decoder" if self.kind == "decoder" else "encoder": self.synthesis}
        if self.kind == "encoder_decoder":
            stacks["decoder"] = self.decoder_synthesis
        depths = {"encoder": self.num_layers, "decoder": self.num_decoder_layers}
        found = {}
        for stack, spec in stacks.items():
            layers = [layer for layer in expand_layers(spec, depths[stack]) if layer != NONE]
            found[stack] = sum(map(counts, layers))
        return {stack: count for stack, count in found.items() if count}

    def _settle(self, spec: str, num_layers: int, max_len: int, *, causal: bool) -> str:
        """Write a spec with all that was left to defaults of size, so that it can be resized."""
        expand_layers(spec, num_layers)
        size = Size(self.d_model, self.num_heads, max_len)
        settled = []
        for item, repeat in split_layers(spec):
            if item != NONE:
                with torch.device("meta"):
                    item = spec_of_mixer(build_mixer(item, size, causal=causal, window=self.window))
            settled.append(item + repeat)
        return ",".join(settled)

    def _check(self) -> None:
        choices = {
            "norm": tuple(NORMS),
            "norm_position": NORM_POSITIONS,
            "activation": tuple(ACTIVATIONS),
            "pooling": POOLINGS,
            "kind": (None, *KINDS),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                named = ", ".join(str(choice) for choice in allowed if choice)
                raise UserError(f"{name}={getattr(self, name)!r}; choose from {named}")
        rotary = parse_positions(self.positions).rotary
        if rotary is not None:
            Rotary(rotary, self.d_model // self.num_heads)  # refuses heads too narrow to turn
        if not self.universal:
            for name in ("halting_epsilon", "ponder_cost", "fixed_depth"):
                if getattr(self, name) != getattr(type(self), name):
                    raise UserError(
                        f"{name}={getattr(self, name)} without universal=True does nothing; "
                        f"leave {name} out"
                    )
            return
        for spec in (self.synthesis, self.decoder_synthesis or self.synthesis):
            if split_layers(spec) != [(split_layers(spec)[0][0], "")]:
                raise UserError(
                    f"universal=True shares one layer over depth, and synthesis {spec!r} names "
                    "layers one by one; write one spec for all"
                )
        if max(self.num_layers, self.num_decoder_layers) == 1:
            raise UserError(
                "universal=True with num_layers=1 has nothing to share; choose 2 or more"
            )
        if not 0 < self.halting_epsilon < 1:
            raise UserError(f"halting_epsilon={self.halting_epsilon}; choose it between 0 and 1")


class ConvertedConfig(PreTrainedConfig):
    """What a folder of a converted model says; audit/ makes the architecture's own class of it."""

    model_type = CONVERTED

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:  # noqa: ANN401
        from synthesizer_attention.audit import converted  # the one hook for what audit/ makes

        return converted.read_config(config_dict, **kwargs)


AutoConfig.register(CONVERTED, ConvertedConfig, exist_ok=True)
