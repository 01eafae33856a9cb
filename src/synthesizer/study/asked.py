"""What a user asks of a comparison, and what cannot be asked together (no torch)."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from synthesizer.errors import UserError
from synthesizer.experiment.records import Match
from synthesizer.sizes import parse_positions
from synthesizer.study.sequential import PLANNED
from synthesizer.study.tune import TRIALS

FOUND = AUTO, CONFIGURED = "auto", "configured"  # how the opponent is found; else its positions
MATCHES: tuple[str, ...] = get_args(Match)
WIDTHS = ("params", "flops")  # budgets that are met through d_ff


@dataclass(frozen=True)
class Asked:
    """What a user asks of a comparison."""

    recipe: str = "python-docs"  # or data
    syntheses: tuple[str, ...] = ()
    seeds: int | None = None
    jobs: int | None = None
    cluster: str | None = None
    gpus: float | None = None
    track: str | None = None
    match: str = "none"
    tune: int | None = None  # trials per row; None: TRIALS, or none in a quick look
    positions: tuple[str, ...] = ()  # each variant once with each of these
    opponent: str = AUTO
    until_decided: bool = False
    lists_commands: bool = False  # nothing runs, so nothing can be searched
    margin: float | None = None
    quick: bool = False
    baselines: bool = False
    controls: bool = False
    pretrain: str | None = None  # the recipe that makes what every run starts from
    pretrain_overrides: tuple[str, ...] = ()
    vary: tuple[str, ...] = ()  # "key=value,value": rows are crossed with the values
    ladder: int | None = None  # rungs: rows are trained at so many sizes, the largest the recipe's
    against: tuple[str, ...] = ()  # rows that all others are compared with, beside dot
    overrides: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    out: Path | None = None
    command: str = "synthesizer compare"

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
    if asked.pretrain_overrides and not asked.pretrain:
        raise UserError("--pretrain-set without --pretrain changes nothing; leave it out")
    if asked.match not in MATCHES:
        raise UserError(f"--match is {asked.match!r}; choose from {', '.join(MATCHES)}")
    if asked.gpus is not None and asked.gpus > 1 and (asked.gpus % 1 or asked.cluster is None):
        raise UserError(f"--gpus is {asked.gpus:g}; a worker takes one GPU or a share of it")
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
    for text in (*asked.positions, *([asked.opponent] if asked.opponent not in FOUND else [])):
        parse_positions(text)
