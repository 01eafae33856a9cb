"""A study as a Slurm array script: one task per run, requeued until its run is finished."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

SCRIPT = """\
#!/bin/bash
# {count} runs of {folder}. Options that your cluster needs go before the script's name:
#   sbatch --time=04:00:00 --partition=PARTITION SCRIPT
# A task that is asked to stop saves a checkpoint, is queued again and goes on from there.
# Watch with: synthesizer report {folder} --watch
#SBATCH --job-name={name}
#SBATCH --array=1-{count}{limit}
#SBATCH --cpus-per-task=1
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
#SBATCH --open-mode=append
#SBATCH --output={log}
{gpus}
cd {home} || exit 1
export OMP_NUM_THREADS=1
child=
stopped=
trap 'stopped=yes; kill -TERM "$child" 2>/dev/null' TERM

run() {{
  "$@" &
  child=$!
  wait "$child"
  code=$?
  if [ "$stopped" ]; then  # the signal ended the waiting; bash still knows how the child ends
    wait "$child"
    code=$?
  fi
  case "$code" in
    0) return ;;
    130 | 143) scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}" ;;
  esac
  exit "$code"
}}

case "$SLURM_ARRAY_TASK_ID" in
{tasks}
esac
"""


def array_script(
    runs: Sequence[Sequence[str]], folder: Path, *, jobs: int | None, gpus: float | None
) -> str:
    """The script of runs, each a list of commands that follow each other."""
    # -P: a json.py in the directory where the tasks start is not imported.
    program = shlex.join([sys.executable, "-P", "-m", "synthesizer"])
    tasks = []
    for number, commands in enumerate(runs, start=1):
        tasks.append(f"{number})")
        tasks += [f"  run {program} {text.removeprefix('synthesizer ')}" for text in commands]
        tasks.append("  ;;")
    return SCRIPT.format(
        count=len(runs),
        folder=shlex.quote(str(folder)),
        name=shlex.quote(folder.name),
        limit=f"%{jobs}" if jobs else "",
        log=shlex.quote(str(folder.absolute() / "slurm-%a.log")),
        gpus="#SBATCH --gpus-per-task=1\n" if gpus else "",
        home=shlex.quote(str(Path.cwd())),
        tasks="\n".join(tasks),
    )
