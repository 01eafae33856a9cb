"""The work of one variant in one setting: a sublayer, a training step, or decoding."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from synthesizer_attention.attention.baselines import build_mixer
from synthesizer_attention.attention.fast import dispatch as fast
from synthesizer_attention.attention.layer import SyntheticAttention
from synthesizer_attention.attention.synthesis import Size
from synthesizer_attention.bench.peers import PEERS, build_peer
from synthesizer_attention.bench.plan import (
    COMPILED,
    DECODING,
    DOT,
    FROZEN,
    FUSED,
    MODELS_OF,
    PRECISIONS,
    SUBLAYERS,
    TORCH,
    Plan,
    Setting,
)
from synthesizer_attention.errors import UserError
from synthesizer_attention.models.config import SynthesizerConfig
from synthesizer_attention.models.heads import MODELS


@dataclass(frozen=True)
class Case:
    """One variant in one setting: a call, ready to run; its module and inputs exist already."""

    work: Callable[[], object]
    module: nn.Module
    forward: Callable[[], Tensor] | None = None  # keeps tensors for backward; None in inference


def build_case(name: str, setting: Setting, path: str = "auto") -> Case:
    """The work of a variant; the attentions in it take this path."""
    if setting.mode in SUBLAYERS:
        case = _sublayer(name, setting)
    else:
        case = (_decode if setting.mode in DECODING else _model_step)(name, setting)
    for part in case.module.modules():
        if isinstance(part, SyntheticAttention):
            part.path = path
            if name.endswith(FROZEN):
                part.freeze()
    return case


def count_flops(name: str, setting: Setting) -> int | None:
    """Multiplications and additions of one call on the plain path; None for peers and decoding.

    Counted on the meta device: all pairs of a long sequence need no memory.
    """
    name = name.removesuffix(FROZEN).removesuffix(COMPILED)
    if name in (TORCH, FUSED, *PEERS.get(setting.mode, ())) or setting.mode in DECODING:
        return None
    view = setting.view.replace("padded", "full")  # plain computes what padding hides, too
    case = build_case(name, replace(setting, device="meta", view=view), path="plain")
    with FlopCounterMode(display=False) as counter:
        case.work()
    return counter.get_total_flops()


def saved_bytes(case: Case) -> int | None:
    """What a forward pass keeps for backward beside parameters and buffers."""
    if case.forward is None:
        return None
    own = {tensor.untyped_storage().data_ptr() for tensor in case.module.state_dict().values()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        output = case.forward()
    del output
    return sum(kept.values())


def _sublayer(name: str, setting: Setting) -> Case:
    """One attention: a forward pass, and in training a backward one."""
    length, device, training = setting.length, setting.device, setting.mode == "train"
    shape = (setting.batch, length, setting.d_model)
    x = torch.randn(shape, device=device, requires_grad=training)
    causal, mask = "causal" in setting.view, None
    if "padded" in setting.view:  # at the right: from none to half of an example
        lengths = torch.linspace(length, length // 2, setting.batch).long()
        mask = (torch.arange(length) < lengths[:, None]).to(device)
    module: nn.Module
    if name == TORCH:
        module = nn.MultiheadAttention(setting.d_model, setting.num_heads, batch_first=True)
        options: dict[str, Any] = {"need_weights": False, "is_causal": causal}
        future = nn.Transformer.generate_square_subsequent_mask(length).to(device)
        options["attn_mask"] = future if causal else None
        options["key_padding_mask"] = None if mask is None else ~mask
    elif name == FUSED:
        module = FusedDot(setting, causal)
    else:
        size = Size(setting.d_model, setting.num_heads, length)
        plain = name.removesuffix(FROZEN).removesuffix(COMPILED)
        module = build_mixer(plain, size, causal=causal)
    module = module.to(device)
    run = torch.compile(module, fullgraph=True) if name.endswith(COMPILED) else module

    def forward() -> Tensor:
        with setting.in_autocast:
            return run(x, x, x, **options)[0] if name == TORCH else run(x, attention_mask=mask)

    if training:
        grad = torch.randn_like(x, dtype=PRECISIONS[setting.precision])

        def work() -> None:
            module.zero_grad()
            x.grad = None
            forward().backward(grad)

        return Case(work, module, forward)
    module.eval()
    if name != TORCH:  # frozen parameters send nn.MultiheadAttention to a slower path
        module.requires_grad_(False)
    return Case(torch.no_grad()(forward), module)


class FusedDot(nn.Module):
    """Dot product attention as PyTorch's users write it: four projections, one fused kernel."""

    def __init__(self, setting: Setting, causal: bool) -> None:
        super().__init__()
        self.num_heads, self.causal = setting.num_heads, causal
        self.qkv = nn.Linear(setting.d_model, 3 * setting.d_model, bias=False)
        self.output = nn.Linear(setting.d_model, setting.d_model, bias=False)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        seen = None if attention_mask is None else attention_mask[:, None, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=self.causal)
        out: Tensor = self.output(y.transpose(1, 2).flatten(-2))
        return out


def _model_step(name: str, setting: Setting) -> Case:
    """A training step of a whole model on random tokens."""
    kind = MODELS_OF[setting.mode]
    model = build_model(name.removesuffix(COMPILED), kind, setting)
    run = torch.compile(model) if name.endswith(COMPILED) else model
    shape = (setting.batch, setting.length)
    ids = torch.randint(2, setting.vocab_size, shape, device=setting.device)
    labels = ids[:, 0] % 2 if kind == "encoder" else ids

    def forward() -> Tensor:
        with setting.in_autocast:
            loss: Tensor = run(input_ids=ids, labels=labels).loss
        return loss

    def work() -> None:
        model.zero_grad()
        forward().backward()

    return Case(work, model, forward)


def _decode(name: str, setting: Setting) -> Case:
    """As many new tokens as fit behind one; of an encoder-decoder, behind as many of a source."""
    if setting.precision != "float32":
        raise UserError("decoding is timed in float32; leave --precision or the mode out")
    translates = setting.mode == "translate"
    kind = "encoder_decoder" if translates else "decoder"
    model = build_model(name.removesuffix(FROZEN), kind, setting).eval()
    shape, new = (setting.batch, setting.length if translates else 1), setting.length - 1
    prompt = torch.full(shape, 2, device=setting.device)
    options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    options["num_beams"] = 1
    return Case(lambda: model.generate(prompt, **options), model)


def build_model(name: str, kind: str, setting: Setting) -> Any:  # noqa: ANN401
    """A model of the setting's size with this variant in every layer, or a peer."""
    peer = build_peer(name, setting)
    if peer is not None:
        return peer
    ours = SynthesizerConfig(
        kind=kind,
        vocab_size=setting.vocab_size,
        d_model=setting.d_model,
        num_heads=setting.num_heads,
        num_layers=setting.num_layers,
        d_ff=4 * setting.d_model,
        max_len=setting.length,
        synthesis=name,
        positions=setting.positions,
        window=setting.window or None,
    )
    return MODELS[kind](ours).to(setting.device)


def explain(plan: Plan) -> list[tuple[str, str, str, str, str]]:
    """Variant, view, length, path and reason, for each attention of a plan, in training."""
    lines = []
    for setting in replace(plan, modes=("train",)).settings():
        for name in (DOT, *plan.variants):
            choice = chosen_path(name, setting)
            lines.append((name, setting.view, str(setting.length), choice.path, choice.reason))
    return lines


def chosen_path(name: str, setting: Setting) -> fast.Choice:
    """The path of a variant in a setting, asked of the attention itself; nothing is computed."""
    size = Size(setting.d_model, setting.num_heads, setting.length)
    mixer = build_mixer(name, size, causal="causal" in setting.view)
    if not isinstance(mixer, SyntheticAttention):
        return fast.Choice("its own", "no attention is synthesized")
    x = torch.empty(1, 1, 1).expand(setting.batch, setting.length, setting.d_model)
    padded = torch.ones(1, 1, dtype=torch.bool).expand(setting.batch, setting.length)
    call = fast.Call(
        x,
        keys=None,
        values=x.to(PRECISIONS[setting.precision])
        .unflatten(-1, (setting.num_heads, -1))
        .transpose(1, 2),
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
