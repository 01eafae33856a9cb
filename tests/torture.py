"""Trials that are too long for the tests: `python tests/torture.py [damage] [kill] [fuzz]`.

damage   every file of a run directory truncated, emptied, flipped, replaced, deleted or made a
         directory; then train, evaluate, generate and report
kill     trainings killed at random moments again and again, compared with one left alone
fuzz     trainings of recipes with absurd values

One process imports everything once and forks: each fork is a command of its own. `--seconds` bounds
each trial, `--seed` chooses what is drawn. A trial fails on a traceback, on a result that is wrong
without a word about it, and on a command that does not end. Linux.
"""

import argparse
import faulthandler
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from synthesizer.cli import main
from synthesizer.experiment.console import silence_libraries
from synthesizer.experiment.recipe import dump
from synthesizer.experiment.run import Run
from synthesizer.training.loop import fit
from tiny import language_model

ENOUGH = 120  # seconds for one command
KILLED = ("model.dropout=0.2", "train.steps=60", "train.checkpoint_every=7", "train.log_every=5",
          "evaluate.every=20", "train.average=3")  # fmt: skip


class Command:
    """A command line in a process of its own; its output is a file."""

    def __init__(self, arguments, home, *, memory=None):
        self.output = home / "output"
        self.id = os.fork()
        if self.id:
            return
        try:
            os.chdir(home)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            if "generate" in arguments:
                read, write = os.pipe()
                os.write(write, b"the old cat\n")
                os.close(write)
                os.dup2(read, 0)
            out = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            if memory:
                resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
            code = main([*arguments])
        except BaseException:
            import traceback

            traceback.print_exc()
            code = 1
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
        os.kill(self.id, signal.SIGKILL)
        os.waitpid(self.id, 0)
        return None, "did not end"


def damages(path, random):
    """Each damage of a file: its name, and what does it."""
    content = path.read_bytes()

    def write(text):
        return lambda: path.write_bytes(text)

    def directory():
        path.unlink()
        path.mkdir()

    yield "emptied", write(b"")
    yield "cut in half", write(content[: len(content) // 2])
    yield "last byte cut", write(content[:-1])
    for number in range(4):
        place = random.randrange(max(1, len(content)))
        flipped = bytearray(content or b"x")
        flipped[place % len(flipped)] ^= 1 << random.randrange(8)
        yield f"bit flipped ({number + 1})", write(bytes(flipped))
    for text in (b"{}", b"[]", b"null", b'{"files": 1, "step": "x"}', b"\xff\xfe\x00", b"a = 1\n"):
        yield f"replaced by {text!r}", write(text)
    yield "zeros", write(b"\0" * len(content))
    yield "deleted", path.unlink
    yield "made a directory", directory


def judge(verb, name, code, output, expected):
    """traceback, refused, told, unchanged or SILENT."""
    if code is None:
        return "HANGS"
    if "Traceback (most recent" in output or code not in (0, 2):
        return "TRACEBACK"
    lines = [line for line in output.splitlines() if line.strip()]
    if code == 2:
        return "refused" if len(lines) >= 1 and "synthesizer: error:" in lines[-1] else "TRACEBACK"
    if output == expected:
        return "unchanged"
    said = ("damaged", "unreadable", "missing", "not a regular file", "disagree", "resuming")
    return "told" if any(word in output for word in said) else "SILENT"


def damage_trial(home, seconds, rng, say):
    """Every damage of every file, in runs that are finished, of an older version, and half-way."""
    recipe = language_model(home, "train.keep=3")
    (home / "recipe.toml").write_text(dump(recipe))
    fit(recipe, Run(home / "finished"))
    shutil.copytree(home / "finished", home / "old")
    (home / "old" / "manifest.json").unlink()
    _half_way(home)
    counts: dict[str, Counter] = {}
    cases = []
    for kind in ("finished", "half-way", "old"):
        files = [path.relative_to(home / kind) for path in (home / kind).rglob("*")]
        files = [p for p in files if (home / kind / p).is_file() and not p.name.startswith(".")]
        expected = {verb: _perform(verb, home, home / kind)[1] for verb in VERBS}
        for file in sorted(files):
            for number, (name, _) in enumerate(damages(home / kind / file, random.Random(0))):
                cases += [(kind, file, number, name, verb, expected[verb]) for verb in VERBS]
    rng.shuffle(cases)
    begin, done, bad = time.monotonic(), 0, []
    for kind, file, number, name, verb, expected in cases:
        if time.monotonic() - begin > seconds:
            break
        case = home / "case"
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(home / kind, case)
        [change for _, change in damages(case / file, random.Random(0))][number]()
        code, output = _perform(verb, home, case)
        verdict = judge(verb, str(file), code, output, expected)
        counts.setdefault(kind, Counter())[verdict] += 1
        done += 1
        # Without a hash nobody can know: older versions wrote none, and half-way none is written.
        unseen = verdict == "SILENT" and (kind != "finished")
        told = f"{verdict}: {verb} with {kind}/{file} {name} (exit code {code})"
        if verdict.isupper() and not unseen:
            bad.append(told)
            say(told + "\n" + output[-1500:])
        elif unseen:
            say(f"{told}; no hash was written")
    say(f"damage: {done} of {len(cases)} cases; " + "; ".join(
        f"{kind}: " + ", ".join(f"{count} {name}" for name, count in sorted(found.items()))
        for kind, found in counts.items()))  # fmt: skip
    return bad


VERBS = ("train", "evaluate", "generate", "report")


def _half_way(home):
    """A run that was stopped at step 8 of 12."""
    command = Command(["train", str(home / "recipe.toml"), "--out", "half-way", "--plain"], home)
    while not (home / "half-way/checkpoints/step-8.safetensors").exists():
        time.sleep(0.001)
    os.kill(command.id, signal.SIGKILL)
    command.wait()
    for path in (home / "half-way/checkpoints").glob("step-12*"):
        path.unlink()
    assert not Run(home / "half-way").is_finished


def _perform(verb, home, run):
    shutil.rmtree(home / "report", ignore_errors=True)
    options = {
        "train": ["train", str(home / "recipe.toml"), "--plain", "--out", str(run)],
        "evaluate": ["evaluate", str(run)],
        "generate": ["generate", str(run), "--max-new-tokens", "4"],
        "report": ["report", str(run), "--out", str(home / "report")],
    }
    if verb == "train" and run.name != "case":  # a dry run must not change what is copied
        copy = home / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        options["train"][-1] = str(copy)
    code, output = Command(options[verb], home).wait()
    output = _without_times(output.replace(options["train"][-1], "RUN").replace(str(run), "RUN"))
    if verb == "report" and code == 0:
        output += (home / "report" / "table.csv").read_text()
    return code, output


def _without_times(output):
    return "\n".join(line for line in output.splitlines() if "tokens/s" not in line)


def kill_trial(home, seconds, rng, say):
    """A training killed again and again ends as one that was left alone."""
    recipe = language_model(home, *KILLED)
    (home / "recipe.toml").write_text(dump(recipe))
    whole = Run(home / "whole")
    fit(recipe, whole)
    begin, kills, runs, bad = time.monotonic(), 0, 0, []
    while kills < 100 and time.monotonic() - begin < seconds:
        out, aim = home / "killed", rng.randint(5, 20)
        shutil.rmtree(out, ignore_errors=True)
        for _ in range(aim):
            command = Command(["train", "recipe.toml", "--out", "killed", "--plain"], home)
            time.sleep(rng.uniform(0.0, 0.6))
            os.kill(command.id, signal.SIGKILL)
            code, _ = command.wait()
            kills += code == -signal.SIGKILL
        code, output = Command(["train", "recipe.toml", "--out", "killed", "--plain"], home).wait()
        runs += 1
        same = [(whole.path / name).read_bytes() == (out / name).read_bytes() if code == 0 else None
                for name in ("metrics.jsonl", "model/model.safetensors")]  # fmt: skip
        left = [*out.rglob(".*.partial"), *out.rglob(".tmp*")]
        if code != 0 or not all(same) or left:
            bad.append(f"kill: exit code {code}, equal {same}, left behind {left}")
            say(bad[-1] + "\n" + output[-1500:])
    say(f"kill: {kills} kills over {runs} trainings, {len(bad)} not as if left alone")
    return bad


NUMBERS = ("0", "-1", "1", "2", "7", "1e300", "1e-300", "nan", "inf", "1.5", "2147483648",
           "4611686018427387904", "1000000000000000000", "100000", '"x"', "true", "[]", "{}",
           "9" * 400)  # fmt: skip
TEXTS = ('"/"', '"/dev/zero"', '"/proc/self/mem"', '""', '"."', '"\\u0000"', "1", '"none"', "[]",
         '"random*1000000000"', '"factorized_random:k=1000000000000"')  # fmt: skip
LONG = ("train.steps=100000",)  # nothing absurd, and not to be waited for


def fuzz_trial(home, seconds, rng, say):
    """Trainings of a recipe one or two of whose keys are absurd end, with one line or a result."""
    from synthesizer.experiment.recipe import leaves

    recipe = language_model(home)
    (home / "recipe.toml").write_text(dump(recipe))
    keys = [(key, value) for key, value in leaves(recipe.model_dump()) if key != "imports"]
    begin, counts, bad = time.monotonic(), Counter(), []
    while time.monotonic() - begin < seconds:
        changes = []
        for key, value in rng.sample(keys, rng.choice((1, 1, 2))):
            kind = NUMBERS if isinstance(value, int | float) else TEXTS
            change = f"{key}={rng.choice(kind)}"
            changes += ["--set", change] if change not in LONG else []
        out = home / "fuzzed"
        shutil.rmtree(out, ignore_errors=True)
        arguments = ["train", "recipe.toml", "--out", "fuzzed", "--plain", *changes]
        code, output = Command(arguments, home, memory=2**35).wait(60)
        verdict = judge("train", "", code, output, output)
        counts[verdict] += 1
        if verdict.isupper():
            bad.append(f"{verdict}: {' '.join(changes)[:300]}")
            say(bad[-1] + "\n" + output[-1500:])
    say(
        f"fuzz: {sum(counts.values())} trainings: "
        + ", ".join(f"{n} {k}" for k, n in counts.items())
    )
    return bad


TRIALS = {"damage": damage_trial, "kill": kill_trial, "fuzz": fuzz_trial}


def torture():
    """Run the trials that were asked for; the exit code is 1 where one of them failed."""
    faulthandler.enable()
    silence_libraries()
    parser = argparse.ArgumentParser()
    parser.add_argument("trials", nargs="*", default=[*TRIALS], metavar="TRIAL")
    parser.add_argument("--seconds", type=float, default=380.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    failures = []
    for name in asked.trials:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["SYNTHESIZER_CACHE"] = f"{folder}/cache"
            rng = random.Random(asked.seed)
            failures += TRIALS[name](Path(folder), asked.seconds, rng, _say)
    _say(json.dumps(failures, indent=1))
    return 1 if failures else 0


def _say(text):
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(torture())
