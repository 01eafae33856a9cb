"""Time and memory of each variant beside dot product attention, in the same rounds.

bench(Plan(...)) -> Result     measures a sublayer, a training step of a model, or decoding
explain(plan)                  which path each variant would take, and why
write(result, ...)             bench.json, bench.csv, report.html
"""

import csv
import io
import json
import os
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Any

import torch
from matplotlib.ticker import FixedLocator, NullLocator
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from synthesizer_attention.attention.baselines import build_mixer
from synthesizer_attention.attention.fast import dispatch as fast
from synthesizer_attention.attention.hook import kernels
from synthesizer_attention.attention.layer import SyntheticAttention
from synthesizer_attention.attention.synthesis import Size
from synthesizer_attention.errors import UserError
from synthesizer_attention.models.config import SynthesizerConfig
from synthesizer_attention.models.heads import MODELS
from synthesizer_attention.peers import PEERS, STATIC, build_peer
from synthesizer_attention.report.page import (
    Block,
    Code,
    Figures,
    Glossary,
    Plot,
    Points,
    Section,
    Table,
    Text,
    page,
)
from synthesizer_attention.report.style import (
    BLUE,
    MUTED,
    TEXT,
    End,
    drawing,
    literal,
    look_of,
    name_at_right,
    to_svg,
)
from synthesizer_attention.report.write import write_files
from synthesizer_attention.spec import DEFAULTS, variants
from synthesizer_attention.training.meter import clock_name, peak_memory, time_in_turn

DOT, TORCH = "dot", "torch.nn.MultiheadAttention"
FUSED = "dot by PyTorch's fused kernel"
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FROZEN = " frozen"  # ends the name of a variant whose tables are frozen
VIEWS = ("causal", "full", "padded")
SUBLAYERS = ("train", "inference")  # modes without a model
MODELS_OF = {"lm": "decoder", "classifier": "encoder", "seq2seq": "encoder_decoder"}
DECODING = ("decode", "translate")
MODES = (*SUBLAYERS, *MODELS_OF, *DECODING)
VARIANTS = (
    "random", "fixed_random", "factorized_random", "dense", "factorized_dense", "relative",
    "random+dense", "random+dot", "dense+dot",
)  # fmt: skip
SMALL: dict[str, Any] = {"d_model": 64, "num_heads": 4, "num_layers": 2, "lengths": (64,)}
SMALL |= {"tokens": 2048, "vocab_size": 260}  # as the recipe python-docs
SHARED = ("mode", "view", "length", "batch", "threads", "compiled", "precision")  # and of its rows
TERMS = {  # the columns of a table, each with its meaning
    "variant": "What makes the attention logits; frozen: with its table's softmax computed once.",
    "times dot": "How many times as fast as dot-product attention, by the best rounds of both.",
    "rounds": "The least and the most of that in one round.",
    "best ms": "Milliseconds of one call in the best round.",
    "tokens/s": "Tokens per second in the best round.",
    "saved MB": "What a forward pass keeps for backward, beside parameters and buffers.",
    "peak MB": "The most memory that one call takes beyond what was there before.",
    "of GEMM": "Arithmetic per second as a share of a large matrix product's on this machine.",
}
SHOWN_MODES = {
    "train": "Training a sublayer",
    "inference": "Inference of a sublayer",
    "lm": "Training a language model",
    "classifier": "Training a classifier",
    "seq2seq": "Training an encoder-decoder",
    "decode": "Decoding",
    "translate": "Decoding by an encoder-decoder",
}

Tell = Callable[[int, int, str], None]
"""Called with the number of measurements done, their total, and the next one."""


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
    positions: str = DEFAULTS.positions
    window: int = 0
    precision: str = "float32"

    @property
    def in_autocast(self) -> torch.autocast:
        """What a forward pass runs in."""
        kind = torch.device(self.device).type
        lower = self.precision != "float32"
        return torch.autocast("cpu" if kind == "meta" else kind, torch.bfloat16, enabled=lower)


@dataclass(frozen=True)
class Plan:
    """What to measure; with `tokens` the batch follows the length."""

    variants: tuple[str, ...] = VARIANTS
    modes: tuple[str, ...] = SUBLAYERS
    views: tuple[str, ...] = ("causal", "full")
    lengths: tuple[int, ...] = (1024,)
    tokens: int = 4096
    d_model: int = 512
    num_heads: int = 8
    num_layers: int = 6
    vocab_size: int = 8000
    rounds: int = 5
    device: str = "cpu"
    peers: bool = False
    threads: str = "1"  # several as 1,2
    compiled: bool = False  # every sublayer by torch.compile, in one graph; in decode a peer
    positions: str = DEFAULTS.positions  # of a whole model
    window: int = 0  # of a whole model; 0: none
    precision: str = "float32"  # several as float32,bfloat16, by autocast

    def __post_init__(self) -> None:
        for name, given, known in (("mode", self.modes, MODES), ("view", self.views, VIEWS)):
            for wrong in set(given) - set(known):
                raise UserError(f"unknown {name} {wrong!r}; choose from {', '.join(known)}")
        if not re.fullmatch("[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})*", self.threads):
            raise UserError(f"--threads is {self.threads!r}; expected numbers such as 1 or 1,2")
        if not {*self.precision.split(",")} <= {*PRECISIONS}:
            raise UserError(
                f"--precision is {self.precision!r}; expected float32, bfloat16 or float32,bfloat16"
            )
        try:
            torch.empty(1, device=self.device)
        except (RuntimeError, AssertionError) as error:
            why = str(error).partition("\n")[0][:100]
            raise UserError(
                f"torch has no device {self.device!r} here ({why}); choose cpu or cuda"
            ) from None
        if self.compiled and set(self.modes) - {*SUBLAYERS, *DECODING}:
            raise UserError(
                "only the modes train and inference, and a peer in decode, are compiled; leave the "
                "others out"
            )

    def settings(self) -> Iterator[Setting]:
        """Every comparison: one mode, view and length; a whole model has its own view."""
        shared = ["d_model", "num_heads", "num_layers", "vocab_size", "device", "compiled"]
        shared += ["positions", "window"]
        sizes: dict[str, Any] = {name: getattr(self, name) for name in shared}
        numbers = dict.fromkeys(map(int, self.threads.split(",")))
        for mode in self.modes:
            views = self.views if mode in SUBLAYERS else ("",)
            precisions = self.precision.split(",")
            for view, length, *how in product(views, self.lengths, numbers, precisions):
                batch = max(1, self.tokens // length)
                sizes |= {"threads": how[0], "precision": how[1]}
                yield Setting(mode, view, length, batch, **sizes)

    def names(self, setting: Setting) -> list[str]:
        """Who is compared in a setting, dot first; one table alone can be frozen."""
        names = [DOT, *[name for name in self.variants if name != DOT]]
        if setting.mode in ("inference", *DECODING) and "padded" not in setting.view:
            known = ((name, variants().get(name)) for name in self.variants)
            names += [
                name + FROZEN
                for name, variant in known
                if variant and not (variant.depends_on_input or variant.baseline)
            ]
        if self.peers and setting.mode in SUBLAYERS:
            names += [TORCH, FUSED]
        peers = PEERS.get(setting.mode, ()) if self.peers else ()
        return [*names, *(name for name in peers if self.compiled or not name.endswith(STATIC))]


@dataclass(frozen=True)
class Row:
    """One variant in one setting, measured."""

    variant: str
    mode: str
    view: str
    length: int
    batch: int
    best_seconds: float
    median_seconds: float
    speed: float  # times as fast as dot, by best rounds
    speed_low: float  # of the rounds
    speed_high: float
    tokens_per_second: float
    saved_bytes: int | None
    peak_bytes: int | None
    flops: int | None
    gemm_fraction: float | None  # of this machine's rate for a large matrix product
    threads: int = 1
    compiled: bool = False
    precision: str = "float32"


@dataclass(frozen=True)
class Result:
    """All rows, and the machine that they were measured on."""

    plan: Plan
    machine: dict[str, Any]
    rows: list[Row] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """One variant in one setting: a call, ready to run; its module and inputs exist already."""

    work: Callable[[], object]
    module: nn.Module
    forward: Callable[[], Tensor] | None = None  # keeps tensors for backward; None in inference


def bench(plan: Plan, tell: Tell = lambda done, total, what: None) -> Result:
    """Measure everything in the plan, each setting in rounds of all its variants."""
    kernels().prepare()
    device, settings = torch.device(plan.device), list(plan.settings())
    torch.set_num_threads(settings[0].threads)
    rate, timed = gemm_rate(device), (settings[0].threads, "float32")
    result = Result(plan, machine(device, rate))
    total, done = len(settings) * (plan.rounds + 1), 0
    for setting in settings:
        what = f"{setting.mode} {setting.view} length {setting.length} {setting.precision}"
        how = (setting.threads, setting.precision)
        if how != timed:
            torch.set_num_threads(setting.threads)
            rate, timed = gemm_rate(device, PRECISIONS[setting.precision]), how
        tell(done, total, what)
        cases = {name: build_case(name, setting) for name in plan.names(setting)}
        peaks: dict[str, int | None] = dict.fromkeys(cases)
        if setting.mode not in DECODING:  # which is too many small steps to be watched
            for name, case in cases.items():  # first, while no gradient exists
                with peak_memory(device) as memory:
                    case.work()
                peaks[name] = memory.peak
        rounds = []
        for seconds in time_in_turn([case.work for case in cases.values()], plan.rounds, device):
            rounds.append(seconds)
            done += 1
            tell(done, total, what)
        columns = list(zip(*rounds, strict=True))
        for (name, case), ours in zip(cases.items(), columns, strict=True):
            best, speeds = min(ours), [d / s for d, s in zip(columns[0], ours, strict=True)]
            flops = count_flops(name, setting)
            row = Row(
                variant=name,
                **{each: getattr(setting, each) for each in SHARED},
                best_seconds=best,
                median_seconds=median(ours),
                speed=min(columns[0]) / best,
                speed_low=min(speeds),
                speed_high=max(speeds),
                tokens_per_second=setting.batch * setting.length / best,
                saved_bytes=saved_bytes(case),
                peak_bytes=peaks[name],
                flops=flops,
                gemm_fraction=None if flops is None else flops / best / rate,
            )
            result.rows.append(row)
        done += 1
    tell(total, total, "done")
    return result


def machine(device: torch.device, rate: float) -> dict[str, Any]:
    """The machine and the clock."""
    processor = f"{platform.machine()} CPU, {os.cpu_count()} cores"
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor,
        "threads": torch.get_num_threads(),
        "clock": clock_name(device),
        "torch": torch.__version__,
        "gemm_flops_per_second": round(rate),
        "kernel": "compiled" if fast.has_kernel(device) else "none",
        "load_average": os.getloadavg()[0],
        "claims": "CUDA" if device.type == "cuda" else "CPU only",
    }


def gemm_rate(device: torch.device, dtype: torch.dtype = torch.float32, side: int = 1024) -> float:
    """Arithmetic per second of a large matrix product: what this machine can do at best."""
    tries, (left, right) = 8, torch.randn(2, side, side, device=device).to(dtype)
    return 2.0 * side**3 / min(time_in_turn([lambda: left @ right], tries, device))[0]


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
    if name in (TORCH, FUSED, *PEERS.get(setting.mode, ())) or setting.mode in DECODING:
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
        module = build_mixer(name.removesuffix(FROZEN), size, causal=causal)
    module = module.to(device)
    run = torch.compile(module, fullgraph=True) if setting.compiled and name != TORCH else module

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
    model = build_model(name, kind, setting)
    shape = (setting.batch, setting.length)
    ids = torch.randint(2, setting.vocab_size, shape, device=setting.device)
    labels = ids[:, 0] % 2 if kind == "encoder" else ids

    def forward() -> Tensor:
        with setting.in_autocast:
            loss: Tensor = model(input_ids=ids, labels=labels).loss
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


def write(result: Result, command: str, directory: Path) -> Path:
    """Write bench.json, bench.csv and the page with plots; return the page."""
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, [field.name for field in fields(Row)])
    writer.writeheader()
    writer.writerows(asdict(row) for row in result.rows)
    texts = {
        "bench.json": json.dumps({"command": command, **asdict(result)}, indent=1) + "\n",
        "bench.csv": stream.getvalue(),
        "report.html": _page(result, command),
    }
    write_files(directory, texts)
    return directory / "report.html"


def _page(result: Result, command: str) -> str:
    """One section for each mode, mask and precision: its plots, then a table of each length."""
    sections, answers = [], []
    kinds = [(row.mode, row.view, row.precision) for row in result.rows]
    for mode, view, precision in dict.fromkeys(kinds):
        kind = (mode, view, precision)
        rows = [row for row, its in zip(result.rows, kinds, strict=True) if its == kind]
        lower = "" if precision == "float32" else f"in {precision}"
        heading = " ".join(filter(None, (SHOWN_MODES[mode], lower, view and f"({view} mask)")))
        blocks: list[Block] = [Figures(plots_of(rows))]
        settings = dict.fromkeys((row.length, row.batch, row.threads) for row in rows)
        for length, batch, threads in settings:
            own = [row for row in rows if (row.length, row.threads) == (length, threads)]
            caption = f"{length:,} tokens, batch {batch}, {_counted(threads, 'thread')}"
            blocks.append(Table(list(TERMS), [*map(cells, own)], caption, TERMS, sortable=True))
        sections.append(Section(heading, blocks))
        others = [row for row in rows if row.variant != DOT]
        for best in sorted(others, key=lambda row: -row.speed)[:1]:
            where = f"{heading}, {best.length:,} tokens"
            answers.append(f"{where}: {best.variant}, {best.speed:.2f} times as fast")
    sections.append(Section("Terms", [Glossary(TERMS)]))
    sections.append(Section("How it was measured", [*_measured(result), Code(command)]))
    lead: list[Block] = [
        Text("The fastest variant, beside dot-product attention in the same rounds:", "answer"),
        Points(answers),
    ]
    return page("Speed and memory of each variant beside dot", sections, lead)


def _measured(result: Result) -> list[Block]:
    found, plan = result.machine, result.plan
    how = (
        f"All variants ran in turn for {_counted(plan.rounds, 'round')}, timed by "
        f"{found['clock']}, on {found['device']} with torch {found['torch']}. Width "
        f"{plan.d_model}, {_counted(plan.num_heads, 'head')}, {plan.tokens:,} tokens a batch; in "
        f"whole models {_counted(plan.num_layers, 'layer')} and a vocabulary of "
        f"{plan.vocab_size:,}."
    )
    kernel = "The compiled kernel ran." if found["kernel"] == "compiled" else "No kernel ran."
    rate = (
        f"{kernel} A large matrix product reaches {found['gemm_flops_per_second'] / 1e9:.0f} "
        f"GFLOP/s here; the load average was {found['load_average']:.2f} at the start."
    )
    return [Text(how), Text(rate), Text(f"Claims hold for: {found['claims']}.", "note")]


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'s' * (count != 1)}"


def plots_of(rows: list[Row]) -> list[Plot]:
    """The plots of one mode and mask: speed and memory, by variant or by length."""
    plots = []
    for threads in dict.fromkeys(row.threads for row in rows):
        own = [row for row in rows if row.threads == threads]
        title = _counted(threads, "thread") if len({row.threads for row in rows}) > 1 else ""
        if len({row.length for row in own}) > 1:
            caption = "Times as fast as dot, by best rounds."
            plots.append(Plot(speed_by_length(own), caption, title))
            continue
        speeds = [(row.variant, row.speed, row.speed_low, row.speed_high) for row in own]
        caption = "By best rounds; bars: the range of the rounds."
        plots.append(Plot(beside_dot(speeds, "times as fast as dot"), caption, title))
        dot = next(row for row in own if row.variant == DOT)
        if dot.saved_bytes:
            shares = {row.variant: (row.saved_bytes or 0) / dot.saved_bytes for row in own}
            memory = [(name, share, share, share) for name, share in shares.items()]
            caption = "What a forward pass keeps for backward, beside parameters."
            plots.append(
                Plot(beside_dot(memory, "memory for backward, times dot's"), caption, title)
            )
    return plots


def cells(row: Row) -> list[str]:
    """A row as a reader wants it."""
    return [
        row.variant,
        f"{row.speed:.2f}",
        f"{row.speed_low:.2f} to {row.speed_high:.2f}",
        f"{row.best_seconds * 1e3:.1f}",
        f"{row.tokens_per_second:,.0f}",
        "" if row.saved_bytes is None else f"{row.saved_bytes / 1e6:.1f}",
        "" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.1f}",
        "" if row.gemm_fraction is None else f"{row.gemm_fraction:.0%}",
    ]


def beside_dot(values: Sequence[tuple[str, float, float, float]], label: str) -> str:
    """A value of each variant with its range, dot being 1: (name, value, low, high), in order."""
    with drawing(0.9 + 0.27 * len(values)) as (figure, axes):
        axes.grid(visible=False, axis="y")
        axes.axvline(1, color=MUTED, linewidth=1)
        for place, (name, value, low, high) in enumerate(values):
            colour = TEXT if name == DOT else BLUE
            axes.plot([low, high], [place, place], color=colour, linewidth=2)
            axes.plot(value, place, "o", color=colour, markersize=6)
        axes.set_yticks(range(len(values)), [fill(literal(name), 28) for name, *_ in values])
        axes.set_ylim(len(values) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(left=0)
        axes.set_xlabel(label)
        return to_svg(figure, f"{label}, one point per variant")


def speed_by_length(rows: list[Row]) -> str:
    """One curve per variant: times as fast as dot against the length."""
    lengths = sorted({row.length for row in rows})
    with drawing(4.2) as (figure, axes):
        ends = []
        for place, name in enumerate(dict.fromkeys(row.variant for row in rows)):
            look = look_of(place)
            mine = sorted((row.length, row.speed) for row in rows if row.variant == name)
            xs, ys = zip(*mine, strict=True)
            axes.plot(xs, ys, color=look["color"], linestyle=look["linestyle"], linewidth=1.5)
            ends.append(End(xs[-1], ys[-1], name, look))
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(lengths))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([str(length) for length in lengths])
        axes.set_xlabel("length, at a fixed number of tokens")
        axes.set_ylabel("times as fast as dot")
        figure.draw_without_rendering()
        name_at_right(axes, ends)
        return to_svg(figure, "times as fast as dot by length, one curve per variant")
