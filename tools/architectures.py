"""Which architectures of the installed transformers can be audited and converted.

    nice python tools/architectures.py [MODEL_TYPE ...]

Each is built tiny, with random weights, from its default config, and audited: heads are averaged
and replaced. One head of its first layer and all of its last one are left out of a copy, which must
answer as the hook did; a decoder must generate the same with a cache and without. Without names all
architectures are tried, which takes minutes, and the table in docs/audit.md is written.
"""

import contextlib
import io
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from synthesizer_attention.audit import load
from synthesizer_attention.audit.averages import measure_averages
from synthesizer_attention.audit.convert import why_refused
from synthesizer_attention.audit.converted import build_converted
from synthesizer_attention.audit.cost import Auditor
from synthesizer_attention.audit.examples import Examples
from synthesizer_attention.audit.hook import Hook, cause
from synthesizer_attention.errors import UserError

PAGE = Path(__file__).parent.parent / "docs" / "audit.md"
BEGIN, END = "<!-- python tools/architectures.py -->\n", "<!-- end -->\n"
KINDS = ("SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "CAUSAL_LM", "IMAGE_CLASSIFICATION")
VOCAB, LENGTH, SECONDS, MOST = 64, 8, 30, 30_000_000
TINY = (  # the first pattern that the whole name of a setting matches
    (r"num_key_value_heads|n_kv_heads|num_kv_heads|n_head_kv", 2),
    (r"(\w+_)?(num_attention_heads|n_heads?|num_heads|attention_heads)", 4),
    (r"(\w+_)?(num_hidden_layers|n_layers?|num_layers|encoder_layers|decoder_layers)", 4),
    (r"(\w*_)?head_dim|d_kv|(\w+_)?lora_rank", 8), (r"rotary_dim|attn_layer_period", 4),
    (r"attn_layer_offset", 1),
    (r"hidden_size|d_model|n_embd|dim|embed_dim|embedding_size|word_embed_proj_dim|emb_dim", 32),
    (r"(\w*_)?(intermediate_size\w*|ffn_dim|d_ff|n_inner|ffn_hidden_size|hidden_dim)", 32),
    (r"vocab_size\w*|(\w+_)?vocab_size", VOCAB),
    (r"max_position_embeddings|n_positions|max_(source|target)_positions|n_ctx", 64),
    (r"num_experts|n_routed_experts|num_local_experts|moe_num_experts", 4),
    (r"num_experts_per_tok\w*|moe_topk|moe_k|top_k", 2),
    (r"n_group|topk_group|first_k_dense_replace", 1),
    (r"sliding_window|local_attention|attention_window", 4),
    (r"pad_token_id", 0), (r"bos_token_id|cls_token_id|decoder_start_token_id", 1),
    (r"eos_token_id|sep_token_id", 2), (r"image_size", 16), (r"patch_size", 8),
)  # fmt: skip


class Found(NamedTuple):
    """What was found of one architecture."""

    name: str  # its model_type
    result: str


def classes() -> dict[str, Any]:
    """The class of each architecture that makes most use of its attention, by model_type."""
    found: dict[str, str] = {}
    for kind in KINDS:
        names = getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")
        for model_type, name in names.items():
            found.setdefault(model_type, name if isinstance(name, str) else name[0])
    return dict(sorted(found.items()))


def tiny_settings(config: Any) -> dict[str, Any]:  # noqa: ANN401
    """Small values of the settings that a default config has; lists are left to its own code."""
    found: dict[str, Any] = {"decoder_start_token_id": 1} if config.is_encoder_decoder else {}
    for key, value in config.to_dict().items():
        inside = getattr(config, key, None)
        if hasattr(inside, "to_dict"):
            found[key] = tiny_settings(inside)
        elif isinstance(value, int) or (value is None and key.endswith(("token_id", "head_dim"))):
            small = next((n for pattern, n in TINY if re.fullmatch(pattern, key)), value)
            if key == "num_key_value_heads" and value == config.to_dict().get(
                "num_attention_heads"
            ):
                small = 4
            if small != value:
                found[key] = small
    return found


def build(model_type: str, name: str) -> Any:  # noqa: ANN401
    """A tiny model, whose weights are large enough that attention is far from uniform."""
    made = CONFIG_MAPPING[model_type]
    config = made(**tiny_settings(made()))
    cls = getattr(transformers, name)
    with torch.device("meta"):
        size = sum(p.numel() for p in cls(made(**tiny_settings(made()))).parameters())
    if size > MOST:
        raise UserError(f"its settings leave {size:,} parameters")
    model = cls(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(std=0.2)
    return model


def inputs_of(model: Any) -> dict[str, torch.Tensor]:  # noqa: ANN401
    """Two texts, or images."""
    if model.main_input_name == "pixel_values":
        side = getattr(model.config, "image_size", 16)
        side = side if isinstance(side, int) else side[0]
        return {
            "pixel_values": torch.randn(2, getattr(model.config, "num_channels", 3), side, side)
        }
    ids = torch.randint(3, VOCAB, (2, LENGTH))
    found = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return found | ({"labels": ids[:, 1:].contiguous()} if load.reads_targets(model) else {})


def generated_alike(model: Any, inputs: dict[str, torch.Tensor]) -> bool:  # noqa: ANN401
    """Whether greedy decoding gives the same with a cache and without."""
    given = {key: value for key, value in inputs.items() if key != "labels"}
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "num_beams": 1}
    with torch.no_grad():
        both = [model.generate(**given, use_cache=cached, **options) for cached in (True, False)]
    return torch.equal(*both)


def tried(model_type: str, name: str) -> str:
    """What can be done with one architecture."""
    torch.manual_seed(0)
    try:
        model = build(model_type, name)
        inputs = inputs_of(model)
        with torch.no_grad():
            model(**inputs)
    except Exception as error:  # a default config may fit no tiny size
        return f"not tried: no tiny model was built ({cause(error)[:80]})"
    try:
        with Hook(model) as hook:
            hook.discover(inputs)
            averages = measure_averages(hook, [inputs], 64)
            auditor = Auditor(hook, averages, "relative")
            examples = Examples("agreement", [([0, 1], inputs)], [None] * 2, 0, [("",)] * 2)
            moved = auditor.outputs(auditor.heads, examples) - auditor.original(examples)
            if not bool(moved.isfinite().all()):
                return "audited with outputs that are no numbers"
            refused = why_refused(hook, examples, 64, "relative")
            if refused:
                return f"audited, not converted: {refused}"
            tables = auditor.tables(
                [(n, h) for n, la in enumerate(hook.layers) for h in la.dots[:1]]
            )
        converted = build_converted(model, hook.layers, tables)
    except UserError as error:
        return f"refused: {error}"
    except Exception as error:  # a crash is a finding
        return f"crashed: {type(error).__name__} {cause(error)[:100]}"
    if not model.can_generate():
        return "audited, converted"
    try:
        if not generated_alike(model, inputs):
            return "audited, converted; the original itself generates otherwise without a cache"
    except Exception:  # of the original
        return "audited, converted; the original does not generate here"
    try:
        alike = generated_alike(converted, inputs)
    except Exception as error:
        return f"crashed: generating, {type(error).__name__} {cause(error)[:100]}"
    return f"audited, converted, cached generation {'equals' if alike else 'DIFFERS FROM'} uncached"


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Quiet, and ended after so many seconds."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not done in {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        signal.alarm(0)


def sweep(names: list[str]) -> Iterator[Found]:
    """Try these architectures, or all."""
    transformers.logging.set_verbosity_error()
    for model_type, name in classes().items():
        if names and model_type not in names:
            continue
        try:
            with limited(SECONDS):
                yield Found(model_type, tried(model_type, name))
        except TimeoutError as error:
            yield Found(model_type, f"not tried: {error}")


def short(result: str) -> str:
    """A result without what is of one architecture alone."""
    what, _, reason = result.partition(": ")
    reason = re.sub(r"^(a )?\w+(For\w+|Model) |^\w+ has .* and (?=no )", "", reason)
    reason = re.sub(r" \(.*|; .*", "", reason)
    return f"{what}: {reason}" if reason else what


def table(found: list[Found]) -> str:
    """Architectures by what was found of them, most first."""
    groups: dict[str, list[str]] = {}
    for name, result in found:
        groups.setdefault(short(result), []).append(f"`{name}`")
    rows = sorted(groups.items(), key=lambda group: (group[0].split(":")[0], -len(group[1])))
    lines = [f"| {what} | {len(names)} | {', '.join(names)} |" for what, names in rows]
    title = f"| of transformers {transformers.__version__} | | architectures (`model_type`) |"
    return "\n".join([title, "|---|---|---|", *lines, ""])


def main(names: list[str]) -> None:
    """Print what is found; of all architectures write the table."""
    found = []
    for each in sweep(names):
        found.append(each)
        print(each.name, each.result, sep="\t", flush=True)
    if not names:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}{table(found)}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
