"""What is measured: an attention sublayer, a whole training step, or decoding, of each variant.

Every case is one call, ready to run; its module and inputs exist already.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from synthesizer_attention.attention.baselines import build_mixer
from synthesizer_attention.attention.layer import SyntheticAttention
from synthesizer_attention.attention.synthesis import Size
from synthesizer_attention.benchmark.clock import Work
from synthesizer_attention.errors import UserError

GPT2 = "Hugging Face GPT-2"
FROZEN = " frozen"
"""Ends the name of a variant whose tables are frozen; inference only."""


@dataclass(frozen=True)
class Setting:
    """The sizes that all variants of one comparison share."""

    mode: str
    view: str
    length: int
    batch: int
    d_model: int
    num_heads: int
    num_layers: int
    vocab_size: int
    device: str
    threads: int = 1
    compiled: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens that one call of the work turns over."""
        return self.batch * self.length


@dataclass(frozen=True)
class Case:
    """One variant in one setting."""

    name: str
    work: Work
    module: nn.Module
    forward: Callable[[], Tensor] | None  # what keeps tensors for backward; None in inference


def build_case(name: str, setting: Setting, path: str = "auto") -> Case:
    """The work of a variant; the attentions in it take this path."""
    case = MODES[setting.mode](name, setting)
    for module in case.module.modules():
        if isinstance(module, SyntheticAttention):
            module.path = path
    return case


def count_flops(name: str, setting: Setting) -> int | None:
    """Multiplications and additions of one call on the plain path; None for what has none.

    Counted on the meta device: all pairs of a long sequence need no memory.
    """
    if name in (*PEERS, GPT2):
        return None
    view = setting.view.replace("padded", "full")  # plain computes what padding hides, too
    setting = replace(setting, compiled=False, device="meta", view=view)
    case = build_case(name.removesuffix(FROZEN), setting, path="plain")
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


def _sublayer(name: str, setting: Setting) -> tuple[nn.Module, Callable[..., Tensor], Tensor]:
    """A module, its forward pass, and the input that it is run on."""
    shape = (setting.batch, setting.length, setting.d_model)
    x = torch.randn(shape, device=setting.device, requires_grad=True)
    causal, mask = "causal" in setting.view, _mask(setting)
    if name in PEERS:
        module: nn.Module = PEERS[name](setting.d_model, setting.num_heads, batch_first=True)
        module = module.to(setting.device)
        future = torch.nn.Transformer.generate_square_subsequent_mask(setting.length)
        options: dict[str, Any] = {"need_weights": False, "is_causal": causal}
        options["attn_mask"] = future.to(setting.device) if causal else None
        options["key_padding_mask"] = None if mask is None else ~mask
        return module, lambda: module(x, x, x, **options)[0], x
    size = Size(setting.d_model, setting.num_heads, setting.length)
    module = build_mixer(name.removesuffix(FROZEN), size, causal=causal).to(setting.device)
    run = torch.compile(module, fullgraph=True) if setting.compiled else module
    return module, lambda: run(x, attention_mask=mask), x


def _mask(setting: Setting) -> Tensor | None:
    """Right padding from none to half of an example; None unless the view is padded."""
    if "padded" not in setting.view:
        return None
    lengths = torch.linspace(setting.length, setting.length // 2, setting.batch).long()
    slots = torch.arange(setting.length)
    return (slots < lengths[:, None]).to(setting.device)


def _train(name: str, setting: Setting) -> Case:
    module, forward, x = _sublayer(name, setting)
    grad = torch.randn_like(x)

    def work() -> None:
        module.zero_grad()
        x.grad = None
        forward().backward(grad)

    return Case(name, work, module, forward)


def _inference(name: str, setting: Setting) -> Case:
    module, forward, x = _sublayer(name, setting)
    module.eval()
    x.requires_grad_(False)
    if name not in PEERS:  # frozen parameters send nn.MultiheadAttention to a slower path
        module.requires_grad_(False)
    if name.endswith(FROZEN):
        if not isinstance(module, SyntheticAttention):
            raise UserError(f"{name!r}: only tables freeze; leave 'frozen' out")
        module.freeze()

    def work() -> None:
        with torch.no_grad():
            forward()

    return Case(name, work, module, None)


def _model_step(kind: str) -> Callable[[str, Setting], Case]:
    def build(name: str, setting: Setting) -> Case:
        from synthesizer_attention.benchmark.models import build_model, step_inputs

        model = build_model(name, kind, setting)
        inputs = step_inputs(kind, setting)

        def forward() -> Tensor:
            loss: Tensor = model(**inputs).loss
            return loss

        def work() -> None:
            model.zero_grad()
            forward().backward()

        return Case(name, work, model, forward)

    return build


def _decode(name: str, setting: Setting) -> Case:
    from synthesizer_attention.benchmark.models import build_model

    model = build_model(name.removesuffix(FROZEN), "decoder", setting).eval()
    if name.endswith(FROZEN):
        for module in model.modules():
            if isinstance(module, SyntheticAttention):
                module.freeze()
    prompt = torch.full((setting.batch, 1), 2, device=setting.device)
    options = {"max_new_tokens": setting.length - 1, "min_new_tokens": setting.length - 1}

    def work() -> None:
        model.generate(prompt, **options, do_sample=False, pad_token_id=0)

    return Case(name, work, model, None)


PEERS: dict[str, Callable[..., nn.Module]] = {"torch.nn.MultiheadAttention": nn.MultiheadAttention}
MODES: dict[str, Callable[[str, Setting], Case]] = {
    "train": _train,
    "inference": _inference,
    "lm": _model_step("decoder"),
    "classifier": _model_step("encoder"),
    "seq2seq": _model_step("encoder_decoder"),
    "decode": _decode,
}
