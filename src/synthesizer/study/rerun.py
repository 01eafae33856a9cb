"""A study whose runs come from two commits: one of them is run again and compared (no torch)."""

from collections.abc import Sequence
from pathlib import Path

from synthesizer.experiment.run import Run

RERUN = "rerun"  # the folder of the second run


def choose_rerun(paths: Sequence[Path]) -> Path | None:
    """The first finished run of another commit than the last one has; None where all agree."""
    finished = [path for path in paths if Run(path).is_finished]
    commits = {path: Run(path).result().get("commit") for path in finished}
    if len(set(commits.values())) < 2:
        return None
    last = max(finished, key=lambda path: (path / "result.json").stat().st_mtime_ns)
    return next(path for path in finished if commits[path] != commits[last])


def same_bits(first: Path, second: Path) -> bool:
    """Whether two runs logged the same losses and scores at every step, and the same result."""
    one, other = Run(first), Run(second)
    return one.result()["metrics"] == other.result()["metrics"] and one.metrics() == other.metrics()
