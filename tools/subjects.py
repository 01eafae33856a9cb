"""What the trials of torture.py are made on: SUBJECTS and KILLED.

A subject is made in an empty directory, where its commands are run, so that all paths are relative.
One process imports everything once and forks: each fork is a command of its own.
"""

import csv
import hashlib
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet
import torch
import transformers
from transformers import AutoModelForMaskedLM

from pretrained import build, inputs, sentences, tokenizer
from synthesizer_attention.audit.load import load_model, load_reader
from synthesizer_attention.cli import main
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.recipe import dump, load_recipe
from synthesizer_attention.run.run import Run
from tiny import SIZE, WORDS, language_model

ENOUGH = 120  # seconds for one command
ELSE = re.compile("second|speed|memory|training|decoding|command|^study$|^recipe$")
Make = Callable[[], object]


class Command:
    """A command line, or a function, in a process of its own; its output is a file."""

    def __init__(self, what: "str | Make", home: Path, *, memory: int | None = None) -> None:
        self.output = home / ".output"
        self.id = os.fork()
        if self.id:
            return
        code = 1
        try:
            os.chdir(home)
            read, write = os.pipe()
            os.write(write, b"the old cat\n")
            os.close(write)
            os.dup2(read, 0)
            out = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            if memory:
                resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
            code = _call(what)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def wait(self, seconds=ENOUGH):
        """Exit code (None where it had to be stopped) and output."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            child, status = os.waitpid(self.id, os.WNOHANG)
            if child:
                text = self.output.read_text(errors="replace") if self.output.exists() else ""
                return os.waitstatus_to_exitcode(status), text
            time.sleep(0.005)
        self.kill(workers=True)
        os.waitpid(self.id, 0)
        return None, "did not end"

    def kill(self, *, workers=False):
        """Kill it and, as a power cut would, the processes that it has started."""
        children = Path(f"/proc/{self.id}/task/{self.id}/children").read_text().split()
        for process in (self.id, *(map(int, children) if workers else ())):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _call(what):
    if isinstance(what, str):
        sys.argv = ["synthesizer", *shlex.split(what)]
        return main(sys.argv[1:])
    try:
        what()
    except UserError as error:
        print(f"synthesizer: error: {error}", file=sys.stderr)
        return 2
    return 0


@dataclass(frozen=True)
class Verb:
    """A command, and what its result is: files that it leaves, and what it prints."""

    what: "str | Make"
    leaves: tuple[str, ...] = ()
    prints: bool = True

    def result(self, output):
        """Equal for equal results, whatever the clock said."""
        files = [path for pattern in self.leaves for path in sorted(Path().glob(pattern))]
        lines = [line for line in output.splitlines() if "tokens/s" not in line]
        return {str(p): _essence(p) for p in files}, lines if self.prints else None


def _essence(path):
    """A file's content; of a table without times and names."""
    if not path.is_file():
        return None
    content = path.read_bytes()
    with suppress(ValueError):  # what is damaged is compared as it is
        if path.suffix == ".json":
            return _found(json.loads(content))
        if path.suffix == ".csv":
            return _found([*csv.DictReader(content.decode().splitlines())])
    return hashlib.sha256(content).hexdigest()


def _found(value):
    if isinstance(value, dict):
        return {k: _found(v) for k, v in value.items() if not ELSE.search(k)}
    return [*map(_found, value)] if isinstance(value, list) else value


@dataclass(frozen=True)
class Subject:
    """What is damaged: it is made in an empty directory, where its commands are run."""

    make: Make
    files: tuple[str, ...]
    verbs: dict[str, Verb]
    unhashed: str = "-"  # how the names begin of files of which nobody can know what they were


TRAIN = "train recipe.toml --plain --out run"
COMPARE = ("compare recipe.toml --synthesis dot --synthesis random --seeds 3 --tune 0 --opponent "
           "configured --jobs 1 --plain --out study")  # fmt: skip
AUDIT = ("audit model texts.txt --max-len 12 --rank-examples 4 --fit-examples 20 --rankings 2 "
         "--steps 3 --out audit")  # fmt: skip
CONVERT = "convert audit --heads 3 --out converted"
TUNE = f"{CONVERT} --tune 250 --texts texts.txt"


def do(command):
    """Perform what must succeed."""
    code, output = Command(command, Path.cwd()).wait()
    assert code == 0, output


def stop(command, begun):
    """Perform a command until something is there, then kill it."""
    started = Command(command, Path.cwd())
    while not begun():
        time.sleep(0.001)
    started.kill(workers=True)
    assert started.wait()[0] == -signal.SIGKILL


def write_recipe(*changes):
    Path("recipe.toml").write_text(dump(language_model(Path(), "train.keep=3", *changes)))


def write_table_recipe():
    """A classification of a .csv, with the other splits in a .parquet and a .jsonl."""
    draw = random.Random(3)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) for _ in range(80)]
    rows = [{"text": text, "label": str("cat" in text.split())} for text in texts]
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.csv.write_csv(table[:40], "train.csv")
    pyarrow.parquet.write_table(table[40:60], "validation.parquet")
    Path("test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[60:]))
    short = ("text.kind=word", "text.vocab_size=60", "train.steps=12", "train.checkpoint_every=4",
             "train.log_every=3", "train.batch_tokens=48", "train.keep=3", "train.warmup=2",
             "evaluate.every=6", *(f"model.{size}" for size in SIZE))  # fmt: skip
    data = ("data.train=train.csv", "data.validation=validation.parquet", "data.test=test.jsonl")
    recipe = load_recipe("classification", synthesis="random", overrides=[*data, *short])
    Path("recipe.toml").write_text(dump(recipe))


def whole_run(write=write_recipe):
    write()
    do(TRAIN)


def old_run():
    whole_run()
    path = Path("run/result.json")
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in stored.items() if k not in ("files", "checksum")}))


def half_run(write=write_recipe):
    """A run that was stopped at step 8 of 12."""
    write()
    stop(TRAIN, Path("run/checkpoints/step-8.safetensors").exists)
    for path in Path("run/checkpoints").glob("step-12*"):
        path.unlink()
    assert not Run("run").is_finished


def whole_study():
    write_recipe()
    do(COMPARE)


def half_study():
    """Two runs are finished, the third is begun."""
    write_recipe()
    stop(COMPARE, lambda: any(Path("study/dot/seed2/checkpoints").glob("step-4*")))


def write_model():
    """A masked language model's folder, and texts."""
    build("bert").save_pretrained("model")
    tokenizer().save_pretrained("model")
    Path("texts.txt").write_text("\n".join(sentences(40)))


def whole_audit():
    write_model()
    do(AUDIT)


def half_audit():
    write_model()
    measured = Path("audit/measured.jsonl")
    stop(AUDIT, lambda: measured.exists() and len(measured.read_text().splitlines()) > 8)


def converted():
    whole_audit()
    do(CONVERT)
    for folder in ("model", "audit"):
        shutil.rmtree(folder)


def load_converted():
    """What the folder computes from texts, loaded as the commands do."""
    model = load_model("converted", None)
    reader = load_reader("converted", model)
    with torch.no_grad():
        for text in sentences(3):
            print(_hash(model(**reader.tokenizer(text, return_tensors="pt"))))


def load_by_transformers():
    """What the folder computes from ids, loaded as users do; what transformers says is shown."""
    transformers.logging.set_verbosity_warning()
    try:
        model = AutoModelForMaskedLM.from_pretrained("converted").eval()
    except Exception as error:
        raise UserError(repr(error)) from None  # in Python any exception will do
    with torch.no_grad():
        print(_hash(model(**inputs("bert"))))


def _hash(output):
    return hashlib.sha256(output[0].numpy().tobytes()).hexdigest()


TRAINED = ("run/metrics.jsonl", "run/result.json", "run/model/model.safetensors")
STUDIED = ("study/study.json", "study/table.csv", "study/*/seed*/metrics.jsonl",
           "study/*/seed*/result.json", "study/*/seed*/model/model.safetensors")  # fmt: skip
AUDITED = ("audit/audit.json", "audit/tables.safetensors")
CONVERTED = ("converted/model.safetensors", "converted/*.json")
MODEL = ("model/*.json", "model/*.safetensors")
DATA = ("train.csv", "validation.parquet", "test.jsonl")
REPORTED = ("report/table.csv", "report/report.md")

USE = {
    "train": Verb(TRAIN, TRAINED, prints=False),
    "evaluate": Verb("evaluate run"),
    "generate": Verb("generate run --max-new-tokens 4"),
    "report": Verb("report run --out report", REPORTED),
}
STUDY = {
    "compare": Verb(COMPARE, STUDIED, prints=False),
    "report": Verb("report study --out report", ("report/table.csv",), prints=False),
}
AUDITING = {"audit": Verb(AUDIT, AUDITED, prints=False)}
SUBJECTS = {
    "run": Subject(whole_run, ("run/**/*", "text.txt"), USE),
    "run half-way": Subject(half_run, ("run/**/*", "text.txt"), USE, "run/"),
    "run without hashes": Subject(old_run, ("run/**/*",), USE, "run/"),
    "data of a run": Subject(lambda: whole_run(write_table_recipe), DATA, USE),
    "data of a run half-way": Subject(lambda: half_run(write_table_recipe), DATA, USE),
    "study": Subject(whole_study, ("study/*.json", "study/random/seed2/**/*", "text.txt"), STUDY),
    "study half-way": Subject(
        half_study, ("study/*.json", "study/dot/seed2/**/*", "text.txt"), STUDY,
        "study/dot/seed2/"),
    "audit": Subject(whole_audit, ("audit/*", *MODEL), {
        **AUDITING,
        "convert": Verb(CONVERT, CONVERTED, prints=False),
        "report": Verb("report audit --out report", ("report/report.html",), prints=False),
    }),
    "audit half-way": Subject(half_audit, ("audit/*", *MODEL, "texts.txt"), AUDITING),
    "converted model": Subject(converted, ("converted/*",), {
        "load": Verb(load_converted),
        "from_pretrained": Verb(load_by_transformers),
        "audit": Verb(AUDIT.replace("model", "converted"), AUDITED, prints=False),
    }),
}  # fmt: skip
KILLED = {  # what is there, what is killed, what it leaves, and how often it is killed
    "train": (lambda: write_recipe("model.dropout=0.2", "train.steps=60", "train.average=3",
              "train.checkpoint_every=7", "train.log_every=5", "evaluate.every=20"),
              Verb(TRAIN, TRAINED), (5, 20)),
    "compare": (write_recipe, Verb(COMPARE, STUDIED), (2, 6)),
    "audit": (write_model, Verb(AUDIT, AUDITED), (2, 8)),
    "convert": (whole_audit, Verb(CONVERT, CONVERTED), (1, 4)),
    "convert --tune": (whole_audit, Verb(TUNE, CONVERTED), (1, 6)),
}  # fmt: skip
