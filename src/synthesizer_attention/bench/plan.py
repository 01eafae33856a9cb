"""What `synthesizer bench` compares: settings, the variants of each, and the rows it writes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch

from synthesizer_attention.bench.peers import PEERS, STATIC, is_here
from synthesizer_attention.errors import UserError
from synthesizer_attention.spec import DEFAULTS, variants

DOT, TORCH = "dot", "torch.nn.MultiheadAttention"
FUSED = "dot by PyTorch's fused kernel"
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FROZEN = " frozen"  # ends the name of a variant whose tables are frozen
COMPILED = ", compiled"  # ends the name of what torch.compile takes
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
SHARED = ("mode", "view", "length", "batch", "d_model", "threads", "precision")  # and of its rows
LENGTHS = tuple(2**n for n in range(7, 15))  # of --growth: 128 to 16,384
MOST_BYTES = 5 * 10**9  # of one variant's tables there; with larger ones it is left out
WIDTHS = tuple(2**n for n in range(6, 12))  # 64 to 2,048, in heads of at most 64


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
    compiled: bool = False  # all but decoding once more by torch.compile; in decode a peer
    positions: str = DEFAULTS.positions  # of a whole model
    window: int = 0  # of a whole model; 0: none
    precision: str = "float32"  # several as float32,bfloat16, by autocast
    growth: bool = False  # one sequence of each of LENGTHS, then of each of WIDTHS

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

    def settings(self) -> Iterator[Setting]:
        """Every comparison: one mode, view and length; a whole model has its own view."""
        shared = ["num_layers", "vocab_size", "device", "positions", "window"]
        sizes: dict[str, Any] = {name: getattr(self, name) for name in shared}
        numbers = dict.fromkeys(map(int, self.threads.split(",")))
        for mode in self.modes:
            views = self.views if mode in SUBLAYERS else ("",)
            precisions = self.precision.split(",")
            for view, shape, *how in product(views, self._shapes(), numbers, precisions):
                length, batch, width, heads = shape
                sizes |= {"threads": how[0], "precision": how[1]}
                yield Setting(mode, view, length, batch, width, heads, **sizes)

    def _shapes(self) -> list[tuple[int, int, int, int]]:
        """Length, batch, width and heads of each setting."""
        width, heads = self.d_model, self.num_heads
        if not self.growth:
            return [
                (length, max(1, self.tokens // length), width, heads) for length in self.lengths
            ]
        long = [(length, 1, width, heads) for length in LENGTHS]
        wide = [(self.lengths[0], 1, width, max(1, width // 64)) for width in WIDTHS]
        return list(dict.fromkeys([*long, *wide]))

    def names(self, setting: Setting) -> list[str]:
        """Who is compared in a setting, dot first; one table alone can be frozen."""
        names = [DOT, *[name for name in self.variants if name != DOT]]
        if self.growth:
            names = [name for name in names if table_bytes(name, setting) <= MOST_BYTES]
        peers = [name for name in PEERS.get(setting.mode, ()) if self.peers and is_here(name)]
        if self.compiled and setting.mode not in DECODING:
            names, peers = (each + [name + COMPILED for name in each] for each in (names, peers))
        if setting.mode in ("inference", *DECODING) and "padded" not in setting.view:
            known = ((name, variants().get(name)) for name in self.variants)
            names += [
                name + FROZEN
                for name, variant in known
                if variant and not (variant.depends_on_input or variant.baseline)
            ]
        if self.peers and setting.mode in SUBLAYERS:
            names += [TORCH, FUSED]
        return [*names, *(name for name in peers if self.compiled or not name.endswith(STATIC))]


def table_bytes(name: str, setting: Setting) -> int:
    """What the learned or drawn tables of all pairs of a spec take, and their gradients."""
    tables = sum("random" in part and "factorized" not in part for part in name.split("+"))
    return 8 * tables * setting.num_heads * setting.length**2


@dataclass(frozen=True)
class Row:
    """One variant in one setting, measured."""

    variant: str
    mode: str
    view: str
    length: int
    batch: int
    d_model: int
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
    precision: str = "float32"


@dataclass(frozen=True)
class Result:
    """All rows, and the machine that they were measured on."""

    plan: Plan
    machine: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
