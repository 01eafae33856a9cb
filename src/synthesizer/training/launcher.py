"""The other processes that `accelerate launch --cpu` was asked for, where it starts one.

With --cpu its launcher leaves the starting to MPI, and without MPI runs the command once: with the
address of a meeting place in the environment, and no number of processes.
"""

import argparse
import os
import sys
from pathlib import Path

SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Where the launchers that accelerate knows tell a process how many there are."""


def is_alone_by_mistake() -> bool:
    """Whether accelerate's launcher named a meeting place and started no others."""
    launched = "MASTER_ADDR" in os.environ and "ACCELERATE_MIXED_PRECISION" in os.environ
    return launched and not any(size in os.environ for size in SIZES)


def start_the_others() -> None:
    """Become as many processes as were asked for, by torchrun, where this one is alone by mistake.

    The launcher's own command line tells how many; it is read where the system shows it, on Linux.
    """
    told = Path(f"/proc/{os.getppid()}/cmdline")
    if not is_alone_by_mistake() or not told.exists():
        return
    number = processes_asked(told.read_text().split("\0"))
    if number is not None:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={number}"]
        command = [sys.executable, *torchrun, "-m", "synthesizer", *sys.argv[1:]]
        os.execv(sys.executable, command)


def processes_asked(command: list[str]) -> int | None:
    """How many processes a command line asks one machine for, if it tells."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--num_processes", "--num-processes", type=int)
    parser.add_argument("--num_machines", "--num-machines", type=int, default=1)
    asked, _ = parser.parse_known_args(command)
    number: int | None = asked.num_processes
    return number if asked.num_machines == 1 else None
