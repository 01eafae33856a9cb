"""The live table of a study that others run: read from its run directories (no torch)."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synthesizer.errors import UserError
from synthesizer.experiment.interruption import Interrupted
from synthesizer.experiment.progress import clock
from synthesizer.experiment.recipe import parse_recipe
from synthesizer.experiment.records import read_study
from synthesizer.experiment.run import STUDY, Run
from synthesizer.study.live_table import RowStatus, StatusLines, open_status

EVERY = 2.0  # seconds between reads of the directories
SILENT = 300.0  # seconds without a new line after which a run is named

Event = dict[str, Any]


@dataclass
class Seen:
    """What was shown of a run."""

    row: int
    run: Run
    step: int = 0
    began: bool = False
    done: bool = False
    warned_at: int = -1  # the step
    seconds: float = 0.0  # of the whole run, at the speed it has

    def news(self) -> Iterator[Event]:
        """The events that a worker would have sent since the last look."""
        lines = self.run.metrics()
        if lines and not self.began:
            self.began = True
            yield {"event": "start"}
        if lines and lines[-1]["step"] > self.step:
            yield from self._progress(lines)
        if self.run.is_finished:
            result = self.run.result()
            name = result["main_metric"]
            self.done = True
            if not self.began:
                yield {"event": "start"}
            yield {"event": "done", "metric": name, "value": float(result["metrics"][name])}

    def _progress(self, lines: list[Event]) -> Iterator[Event]:
        recipe = self.run.recipe()
        laps = [lap for lap in self.run.timing() if "tokens" in lap and lap["seconds"]]
        shown = [line for line in lines if "loss" in line]
        values = [line["validation"] for line in lines if line.get("validation")]
        if values:
            metric = next(iter(values[-1]))
            yield {"event": "measure", "metric": metric, "value": values[-1][metric]}
        self.step = lines[-1]["step"]
        if shown and laps:
            spent, taken = sum(lap["seconds"] for lap in laps), laps[-1]["step"]
            self.seconds = recipe.train.steps * spent / max(1, taken)
            left = (recipe.train.steps - self.step) * spent / max(1, taken)
            yield {
                "event": "show",
                "step": self.step,
                "steps": recipe.train.steps,
                "loss": shown[-1]["loss"],
                "rate": laps[-1]["tokens"] / laps[-1]["seconds"],
                "left": left,
            }

    def silence(self) -> str | None:
        """A line on a run that has logged nothing for long, once."""
        if not self.began or self.done or self.warned_at == self.step:
            return None
        age = time.time() - (self.run.path / "metrics.jsonl").stat().st_mtime
        if age < SILENT:
            return None
        self.warned_at = self.step
        return f"{self.run.path}: nothing new for {clock(age)}, at step {self.step}"


def watch(folder: Path, *, plain: bool = False) -> None:
    """Show how the runs of a study go until all are finished."""
    stored = read_study(folder / STUDY)
    rows = [row for row in stored["rows"] if not row.get("left_out")]
    runs = [
        Seen(number, Run(folder / path)) for number, row in enumerate(rows) for path in row["runs"]
    ]
    shared = parse_recipe(stored.get("shared", ""), f"{folder / STUDY}, shared:")
    steps = shared.train.steps
    table = [RowStatus(row["label"], len(row["runs"]), 0.0) for row in rows]
    status = open_status(table, 1, steps, "test", plain=plain)
    try:
        while not all(seen.done for seen in runs):
            for seen in runs:
                if not seen.done:
                    _look(seen, status)
            status.jobs = max(1, sum(len(row.running) for row in status.rows))
            status.refresh()
            time.sleep(EVERY)
    except KeyboardInterrupt:
        raise Interrupted(f"watching stopped; the runs of {folder} go on") from None
    finally:
        status.close()


def _look(seen: Seen, status: StatusLines) -> None:
    try:
        for event in seen.news():
            row = status.rows[seen.row]
            row.expected = max(row.expected, seen.seconds)
            status.receive(seen.row, seen.run.path.name.replace("seed", "seed "), event)
        if line := seen.silence():
            status.say(line)
    except (OSError, UserError):  # read while it is written, or rewound
        return
