"""What a user asks of a comparison, and what cannot be asked together (no torch)."""

import math
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe import parse_settings
from synthesizer_attention.spec import parse_positions
from synthesizer_attention.study.stats import PLANNED
from synthesizer_attention.study.tune import TRIALS

FOUND = AUTO, CONFIGURED = "auto", "configured"  # how the opponent is found; else its positions
MATCHES = ("none", "params", "flops")  # budgets that are met through d_ff
WIDTHS = MATCHES[1:]
PRETRAIN = "pretrain."  # of an override: it changes the recipe that pretrains


@dataclass(frozen=True)
class Asked:
    """What a user asks of a comparison."""

    recipe: str = "python-docs"  # or data
    syntheses: tuple[str, ...] = ()
    seeds: int | None = None
    jobs: str | None = None  # workers here, or a Ray cluster: see parse_jobs
    track: str | None = None
    match: str = "none"
    tune: int | None = None  # trials per row; None: TRIALS, or none in a quick look
    opponent: str = AUTO
    until_decided: bool = False
    lists_commands: bool = False  # nothing runs, so nothing can be searched
    margin: float | None = None
    quick: bool = False
    baselines: bool = False
    controls: bool = False
    pretrain: str | None = None  # the recipe that makes what every run starts from
    vary: tuple[str, ...] = ()  # "key=value,value": rows are crossed with the values
    ladder: int | None = None  # rungs: rows are trained at so many sizes, the largest the recipe's
    against: tuple[str, ...] = ()  # rows that all others are compared with, beside dot
    overrides: tuple[str, ...] = ()  # --set: "key=value"
    imports: tuple[str, ...] = ()
    out: Path | None = None
    command: str = "synthesizer compare"

    @property
    def settings(self) -> dict[str, str]:
        """What --set changes of the recipe."""
        given = parse_settings(self.overrides).items()
        return {key: value for key, value in given if not key.startswith(PRETRAIN)}

    @property
    def pretrain_settings(self) -> dict[str, str]:
        """What --set changes of the recipe that pretrains."""
        given = parse_settings(self.overrides).items()
        own = {key: value for key, value in given if key.startswith(PRETRAIN)}
        return {key.removeprefix(PRETRAIN): value for key, value in own.items()}

    @property
    def trials(self) -> int:
        """How many trials each row has."""
        if self.tune is not None:
            return self.tune
        without = self.quick or self.lists_commands or self.pretrain or self.ladder
        return 0 if without else TRIALS

    @property
    def has_controls(self) -> bool:
        """Whether dot is trained under other seeds and in a larger size too."""
        return self.controls or not self.syntheses

    @property
    def finds_opponent(self) -> bool:
        """Whether dot's positions are to be chosen; these three keep the recipe's."""
        return self.opponent == AUTO and not (self.vary or self.pretrain or self.ladder)

    @property
    def searches(self) -> bool:
        """Whether runs of validation choose the opponent's positions beforehand."""
        return not (self.quick or self.lists_commands) or self.trials > 0


def check(asked: Asked) -> None:
    """Refuse what contradicts itself."""
    if asked.pretrain and asked.trials:
        raise UserError(
            "--tune with --pretrain would pretrain every trial; leave one of them out, or name "
            "pretrained runs: --set train.start_from=RUNS/{synthesis}/seed{seed}"
        )
    if asked.pretrain_settings and not asked.pretrain:
        raise UserError(f"--set {PRETRAIN}... changes nothing without --pretrain; leave it out")
    parse_jobs(asked.jobs)
    if asked.match not in MATCHES:
        raise UserError(f"--match is {asked.match!r}; choose from {', '.join(MATCHES)}")
    others = (("vary", asked.vary), ("pretrain", asked.pretrain))
    for name, given in (*others, ("until-decided", asked.until_decided)):
        if asked.ladder and given:
            raise UserError(f"--ladder cannot be combined with --{name}; leave one of them out")
    if asked.margin is not None and not 0 < asked.margin < math.inf:
        raise UserError(f"--margin is {asked.margin:g}; expected a number of points above 0")
    if asked.tune == 1:
        raise UserError("--tune 1 has nothing to choose from; ask for 2 trials or more")
    if asked.until_decided and (asked.quick or asked.seeds or asked.lists_commands):
        raise UserError(
            f"--until-decided looks at {', '.join(map(str, PLANNED))} seeds; leave out --seeds, "
            "--quick and --plan"
        )
    if asked.opponent not in FOUND:
        parse_positions(asked.opponent)


@dataclass(frozen=True)
class Jobs:
    """Who trains: so many workers here, or as many as a Ray cluster has room for."""

    workers: int | None = None
    ray: str | None = None  # "auto", or its head's "HOST:PORT"
    gpus: float | None = None  # of a worker on the cluster


def parse_jobs(text: str | None) -> Jobs:
    """'4', 'ray:auto' or 'ray:HOST:PORT,gpus=0.5'."""
    if text is None:
        return Jobs()
    kind, _, address = text.partition("ray:")
    if not kind and address:
        address, _, share = address.partition(",gpus=")
        if not share:
            return Jobs(ray=address)
        with suppress(ValueError):
            gpus = float(share)
            if 0 <= gpus < math.inf and (gpus <= 1 or gpus % 1 == 0):
                return Jobs(ray=address, gpus=gpus)
    elif text.isascii() and text.isdecimal() and 0 < len(text) < 5 and int(text):
        return Jobs(workers=int(text))
    raise UserError(
        f"--jobs is {text!r}; expected a number of workers such as 2, or a Ray cluster: ray:auto, "
        "ray:HOST:PORT or ray:auto,gpus=0.5 (a share of a GPU, or whole GPUs, for each worker)"
    )
