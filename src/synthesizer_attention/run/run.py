"""A run directory: what training leaves behind and everything after it reads (no torch).

    recipe.toml      the resolved recipe       metrics.jsonl    no clock in it: equal after a resume
    timing.jsonl     how fast it went          result.json      written last: the run is finished
    statistics.npz   per example, no text      samples.txt      what it writes
    attention.npz    where the model looks     checkpoints/     to resume, and the weights behind it
    model/           a Hugging Face model

Every file is written atomically, so a killed run is readable and resumable. result.json holds the
hashes of the others (files.py).
"""

import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synthesizer_attention.errors import UserError
from synthesizer_attention.run.files import (
    MANIFEST,
    append_line,
    check_folder_name,
    digest,
    files_of,
    find_damage,
    locked,
    make_folder,
    read_regular,
    remedy,
    write_atomically,
    write_record,
    write_text,
)
from synthesizer_attention.run.recipe import Recipe, differences, dump, parse_recipe
from synthesizer_attention.run.records import Logged, Result

RECIPE, RESULT = "recipe.toml", "result.json"
WEIGHTS = ("model", "checkpoints")  # directories that a record may be kept without
PASSING = ("checkpoints", "tensorboard", "tracking", "wandb")  # directories: resuming, trackers
LIBRARIES = ("torch", "transformers", "accelerate", "tokenizers", "numpy", "sacrebleu")


class Run:
    """One directory of one resolved recipe."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints, self.model = self.path / "checkpoints", self.path / "model"

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do."""
        return (self.path / RESULT).exists()

    def recipe(self) -> Recipe:
        """The recipe it was made with."""
        path = self.path / RECIPE
        try:
            return parse_recipe(read_regular(path), str(path))
        except UnicodeDecodeError:
            raise self._damaged(f"{RECIPE} is damaged (it is not UTF-8)") from None
        except FileNotFoundError:
            self.check(hashes=False)
            raise UserError(
                f"{self.path} holds no {RECIPE}, so it is not a run; name a run directory"
            ) from None

    def result(self) -> dict[str, Any]:
        """What a finished run reached."""
        try:
            return Result.read(self.path / RESULT)
        except FileNotFoundError:
            self.check(hashes=False)
            raise UserError(
                f"{self.path} holds no {RESULT}; train the run to its end first"
            ) from None

    def check(self, *large: str, hashes: bool = True, spared: tuple[str, ...] = ()) -> None:
        """Refuse a run of which a file is not as it was written: see find_damage."""
        damage = find_damage(self.path / RESULT, large, hashes=hashes, spared=spared)
        if damage is not None and (self.is_finished or not any(self.checkpoints.glob("step-*"))):
            raise self._damaged(damage)

    def _damaged(self, what: str) -> UserError:
        return UserError(f"{self.path}: {what}; {remedy(what)}")

    def claim(self, recipe: Recipe, *, record: bool = False) -> None:
        """Make the directory this recipe's, or refuse to mix it with what is there.

        record   of a finished run its record is enough: weights may have been left out of it
        """
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise UserError(f"{self.path} exists and is not a directory; choose another --out")
        self.check(spared=WEIGHTS if record and self.is_finished else ())
        if not self.is_begun:
            return
        if not (self.path / RECIPE).exists():
            raise UserError(f"{self.path} exists and is not a run; choose another --out")
        changed = differences(self.recipe(), recipe)
        if changed:
            raise UserError(
                f"{self.path} holds a run of another recipe ({'; '.join(changed)}); "
                "choose another --out, or delete the directory"
            )

    @property
    def is_begun(self) -> bool:
        """Whether more is there than a run leaves that was killed, or refused, as it started."""
        own = {self.path / RECIPE}
        if not any(self.checkpoints.glob("*")):
            own.add(self.checkpoints)
        return self.path.exists() and any(
            path not in own and not path.name.startswith(".") for path in self.path.iterdir()
        )

    @contextmanager
    def held(
        self, recipe: Recipe, say: Callable[[str], None] = lambda text: None
    ) -> Iterator[None]:
        """Make the directory, write the recipe, and keep other processes out until the end."""
        make_folder(self.checkpoints)
        with locked(self.path, "training", say):
            for pattern in (".*.partial", ".tmp*"):  # ours, and those of safetensors beneath them
                for leftover in self.path.rglob(pattern):  # of a killed process: the lock is ours
                    leftover.unlink(missing_ok=True)
            self.claim(recipe)  # again: the process that was waited for may have begun another
            if not self.is_begun:
                self.write(RECIPE, dump(recipe))
            yield

    def log(self, step: int, values: Mapping[str, object]) -> None:
        """Add a line to metrics.jsonl."""
        append_line(self.path / "metrics.jsonl", {"step": step, **values})

    def log_time(self, step: int, values: Mapping[str, object]) -> None:
        """Add a line to timing.jsonl."""
        append_line(self.path / "timing.jsonl", {"step": step, **values})

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return self._lines("metrics.jsonl")

    def timing(self) -> list[dict[str, Any]]:
        """The lines of timing.jsonl."""
        return self._lines("timing.jsonl")

    def rewind(self, step: int, logged: str | None = None) -> None:
        """Forget what was logged after a step, and a last line that was cut off.

        `logged` is what the step's checkpoint knows of metrics.jsonl; older ones know nothing.
        """
        for name in ("metrics.jsonl", "timing.jsonl"):
            kept = [line for line in self._lines(name) if line["step"] <= step]
            text = "".join(json.dumps(line) + "\n" for line in kept)
            if name == "metrics.jsonl" and logged not in (None, digest(text)):
                raise self._damaged(f"{name} is not as the checkpoint of step {step} knows it")
            self.write(name, text)

    def digest_of_metrics(self) -> str:
        """What metrics.jsonl holds, for a checkpoint to know."""
        path = self.path / "metrics.jsonl"
        return digest(path.read_text(encoding="utf-8") if path.exists() else "")

    def write(self, name: str, text: str) -> None:
        """Write a text file atomically."""
        write_text(self.path / name, text)

    def finish(self, result: Mapping[str, object]) -> None:
        """Write result.json with the hashes of all that is there: the run is finished."""
        passing = {self.path / name for name in PASSING}
        kept = [path for path in files_of(self.path) if passing.isdisjoint(path.parents)]
        offered = sorted(self.checkpoints.glob("*.safetensors"))
        kept += [path for path in offered if "-" not in path.stem]  # the others will be deleted
        (self.path / MANIFEST).unlink(missing_ok=True)
        write_record(self.path / RESULT, result, kept)

    def write_arrays(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write arrays atomically, as a compressed .npz."""

        def fill(path: Path) -> None:
            with path.open("wb") as file:
                np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

        write_atomically(self.path / name, fill)

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.path / name
        try:
            text = read_regular(path) if path.exists() else ""
        except UnicodeDecodeError:
            raise self._damaged(f"{name} is damaged (it is not UTF-8)") from None
        whole, _, _ = text.rpartition("\n")
        lines: list[dict[str, Any]] = []
        for number, line in enumerate(whole.split("\n") if whole else [], start=1):
            try:
                lines.append(json.loads(line))
                Logged.check(line)
            except (ValueError, RecursionError):
                raise self._damaged(f"line {number} of {name} is damaged") from None
        return lines


def default_path(recipe: Recipe) -> Path:
    """The default path of a run: runs/<recipe>/<synthesis>/seed<k>."""
    name = check_folder_name(recipe.name, "the recipe's name")
    return Path("runs") / name / spec_folder(recipe) / f"seed{recipe.seed}"


def spec_folder(recipe: Recipe) -> str:
    """What the runs of a recipe's synthesis are filed under."""
    specs = [spec for spec in (recipe.synthesis, recipe.decoder_synthesis) if spec]
    return check_folder_name("--".join(specs).replace(":", "_").replace("|", "~"), "the synthesis")


@cache
def provenance() -> dict[str, Any]:
    """Which code and machine make a result: commit of a checkout, versions, host and processor.

    Asked once, when the process begins its work: the checkout may change under it.
    """
    from synthesizer_attention import __version__

    versions = {name: metadata.version(name) for name in LIBRARIES}
    return {
        "commit": _commit(),
        "versions": {"synthesizer": __version__, **versions},
        "host": platform.node(),
        "processor": _processor(),
    }


def _processor() -> str:
    """The CPU's model, as the system names it."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The checkout's commit, with a mark where files differ from it; None where it is installed."""
    home = Path(__file__).parents[1]
    known = _git(home, "ls-files", "--error-unmatch", __file__)
    commit = None if known is None else _git(home, "rev-parse", "HEAD")
    if commit is None:
        return None
    return commit + ("-dirty" if _git(home, "status", "--porcelain", ".") else "")


def _git(home: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(home), *words], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
