"""Trials that are too long for the tests: `python tools/torture.py [damage] [kill] [fuzz]`.

damage   every file of a run, a study, an audit, a converted model and their data truncated,
         emptied, flipped, replaced, edited, deleted or made a directory; then the commands on it
kill     trainings, comparisons, audits and conversions killed at random moments again and again,
         compared with one left alone
fuzz     trainings of recipes with absurd values

subjects.py has the table of what is damaged and killed. `--seconds` bounds each trial, making the
subjects included, `--seed` chooses what is drawn, `--only` names subjects. A trial fails on a
traceback, on a result that is wrong without a word about it, and on a command that does not end.
Linux.
"""

import argparse
import faulthandler
import json
import os
import random
import shlex
import shutil
import signal
import tempfile
import time
from collections import Counter
from contextlib import chdir
from itertools import zip_longest
from pathlib import Path

import pyarrow.parquet

import synthesizer_attention.audit.run
import synthesizer_attention.report.write
import synthesizer_attention.study.compare
import synthesizer_attention.training.evaluate
import synthesizer_attention.training.generate
from subjects import KILLED, SUBJECTS, TRAIN, Command
from synthesizer_attention.run.progress import silence_libraries
from synthesizer_attention.run.recipe import dump, leaves
from synthesizer_attention.run.run import provenance
from tiny import language_model

SAID = ("damaged", "unreadable", "be read", "missing", "failed", "not a regular file", "disagree",
        "resuming", "changed", "are not those")  # fmt: skip
LEFT = (".*.partial", ".tmp*")  # temporary files


def damages(path, draw):
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
    for number in range(6):
        flipped = bytearray(content or b"x")
        flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
        yield f"bit flipped ({number + 1})", write(bytes(flipped))
    for text in (b"{}", b"[]", b"null", b'{"files": 1, "step": "x"}', b"\xff\xfe\x00", b"a = 1\n"):
        yield f"replaced by {text!r}", write(text)
    yield "zeros", write(b"\0" * len(content))
    yield "deleted", path.unlink
    yield "made a directory", directory
    if path.suffix == ".parquet":
        for name, rows in _edits_of_rows(pyarrow.parquet.read_table(path).to_pylist()):
            table = pyarrow.Table.from_pylist(rows)
            yield name, lambda table=table: pyarrow.parquet.write_table(table, path)
    if path.suffix in (".txt", ".csv", ".jsonl"):
        for name, lines in _edits_of_rows(content.splitlines(keepends=True)):
            yield name, write(b"".join(lines))
    if path.suffix == ".json":
        for number in range(6):
            text = json.dumps(_edited(json.loads(content), draw), indent=2)
            yield f"value edited ({number + 1})", write(text.encode())


def _edits_of_rows(rows):
    if len(rows) > 2:
        yield "a row less", rows[:-1]
        yield "a row twice", [*rows, rows[-1]]
        yield "two rows swapped", [*rows[:-2], rows[-1], rows[-2]]


def _edited(value, draw):
    """The value with one value below it gone, or another."""
    if not isinstance(value, dict | list) or not value:
        return draw.choice((None, "x", -1, 1.5, 10**30, True, [], {}, ["x"], {"x": 1}))
    key = draw.choice([*value] if isinstance(value, dict) else range(len(value)))
    if draw.random() < 0.2:
        del value[key]
    else:
        value[key] = _edited(value[key], draw)
    return value


def judge(code, output, expected=None, result=None):
    """TRACEBACK, HANGS, refused, told, unchanged or SILENT; expected is an output and a result."""
    if code is None:
        return "HANGS"
    logs = "".join(path.read_text(errors="replace") for path in Path().glob("study/worker*.log"))
    if "Traceback (most recent" in output + logs or code not in (0, 2):
        return "TRACEBACK"
    if code == 2:
        return "refused" if "synthesizer: error:" in output.strip().split("\n")[-1] else "TRACEBACK"
    if expected is None or result(output) == expected[1]:
        return "unchanged"
    told = any(output.lower().count(word) > expected[0].lower().count(word) for word in SAID)
    return "told" if told else "SILENT"


def damage_trial(home, end, rng, say, names):
    """Every damage of every file of every subject, in turn, as long as there is time."""
    cases, expected, counts, bad = {}, {}, {name: Counter() for name in names or SUBJECTS}, []
    for name in counts:
        cases[name] = _cases(name, home, rng)
        for word, verb in SUBJECTS[name].verbs.items():
            code, output = _perform(home / name, home / "case", verb)
            with chdir(home / "case"):
                expected[name, word] = output, verb.result(output)
            say(f"{word} of the {name}, nothing damaged: exit code {code}")
    turns = zip_longest(*cases.values())
    for name, file, what, word in filter(None, (case for turn in turns for case in turn)):
        if time.monotonic() > end:
            break
        subject, seed = SUBJECTS[name], rng.random()
        verb = subject.verbs[word]
        code, output = _perform(home / name, home / "case", verb, (file, what, seed))
        with chdir(home / "case"):
            verdict = judge(code, output, expected[name, word], verb.result)
        told = f"{verdict}: {word} of the {name} with {file} {what} (exit code {code})"
        unseen = verdict == "SILENT" and str(file).startswith(subject.unhashed)
        counts[name]["unseen" if unseen else verdict] += 1
        if unseen:
            say(f"{told}; no hash was written")
        elif verdict.isupper():
            bad.append(told)
            say(f"{told}\n{output[-1500:]}")
    for name, found in counts.items():
        say(f"damage: {name}: {found.total()} of {len(cases[name])} cases: {_listed(found)}")
    return bad


def _cases(name, home, rng):
    """Make a subject; all its files with all damages and all commands, in random order."""
    subject = SUBJECTS[name]
    _make(subject.make, home / name, home / "case")
    with chdir(home / name):
        files = sorted({path for pattern in subject.files for path in Path().glob(pattern)})
        files = [path for path in files if path.is_file() and path.name[0] != "."]
        cases = [(name, file, what, word) for file in files
                 for what, _ in damages(file, rng) for word in subject.verbs]  # fmt: skip
    return rng.sample(cases, len(cases))


def _make(make, whole, case):
    """Make a subject where its copies will be, for the sake of absolute paths, and keep it."""
    shutil.rmtree(case, ignore_errors=True)
    case.mkdir()
    with chdir(case):
        make()
    case.rename(whole)


def _perform(whole, case, verb, damage=None):
    """A command on a copy, once it is damaged."""
    shutil.rmtree(case, ignore_errors=True)
    shutil.copytree(whole, case)
    if damage:
        file, what, seed = damage
        with chdir(case):
            dict(damages(file, random.Random(seed)))[what]()
    return Command(verb.what, case).wait()


def _listed(counts):
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))


def kill_trial(home, end, rng, say, names):
    """A command killed again and again ends as one that was left alone."""
    names, bad = names or [*KILLED], []
    shares = {name: 3 if name == "compare" else 1 for name in names}  # its workers start slowly
    for name in names:
        now = time.monotonic()
        until = now + (end - now) * shares[name] / sum(shares.values())
        del shares[name]
        make, verb, times = KILLED[name]
        _make(make, home / name, home / "case")
        kills, rounds, found = 0, 0, len(bad)
        alone, took = _alone(home / name, home / "case", verb)
        while time.monotonic() < until:
            shutil.rmtree(home / "case")
            shutil.copytree(home / name, home / "case")
            number = rng.randint(*times)
            for _ in range(number):
                command = Command(verb.what, home / "case")
                time.sleep(rng.uniform(0.0, took * min(1, 3 / number)))
                command.kill(workers=rng.random() < 0.5)
                kills += command.wait()[0] == -signal.SIGKILL
            code, output = Command(verb.what, home / "case").wait()
            rounds += 1
            with chdir(home / "case"):
                verdict, (ended, _) = judge(code, output), verb.result("")
                left = [str(path) for name in LEFT for path in Path().rglob(name)]
            other = [file for file in {*ended, *alone} if ended.get(file) != alone.get(file)]
            if verdict.isupper() or other or left:  # refused: nothing is left to do
                bad.append(f"kill: {name}: exit code {code}, not equal {other}, left behind {left}")
                say(f"{bad[-1]}\n{output[-1500:]}")
        say(f"kill: {name}: {kills} kills over {rounds}, {len(bad) - found} not as if left alone")
    return bad


def _alone(whole, case, verb):
    """What a command leaves that nobody kills, and the seconds it takes; the first fills caches."""
    for _ in range(2):
        begin = time.monotonic()
        code, output = _perform(whole, case, verb)
        assert code == 0, output
    with chdir(case):
        return verb.result("")[0], time.monotonic() - begin


NUMBERS = ("0", "-1", "1", "2", "7", "1e300", "1e-300", "nan", "inf", "1.5", "2147483648",
           "4611686018427387904", "1000000000000000000", "100000", '"x"', "true", "[]", "{}",
           "9" * 400)  # fmt: skip
TEXTS = ('"/"', '"/dev/zero"', '"/proc/self/mem"', '""', '"."', '"\\u0000"', "1", '"none"', "[]",
         '"random*1000000000"', '"factorized_random:k=1000000000000"')  # fmt: skip
LONG = ("train.steps=100000", "train.compile=true")  # nothing absurd, and not to be waited for


def fuzz_trial(home, end, rng, say, names):
    """Trainings of a recipe one or two of whose keys are absurd end, with one line or a result."""
    with chdir(home):
        recipe = language_model(Path())
        Path("recipe.toml").write_text(dump(recipe))
    keys = [(key, value) for key, value in leaves(recipe.model_dump()) if key != "imports"]
    counts, bad = Counter(), []
    while time.monotonic() < end:
        changes = []
        for key, value in rng.sample(keys, rng.choice((1, 1, 2))):
            kind = NUMBERS if isinstance(value, int | float) else TEXTS
            change = f"{key}={rng.choice(kind)}"
            changes += ["--set", change] if change not in LONG else []
        shutil.rmtree(home / "run", ignore_errors=True)
        code, output = Command(f"{TRAIN} {shlex.join(changes)}", home, memory=2**35).wait(60)
        verdict = judge(code, output)
        counts[verdict] += 1
        if verdict.isupper():
            bad.append(f"{verdict}: {' '.join(changes)[:300]}")
            say(f"{bad[-1]}\n{output[-1500:]}")
    say(f"fuzz: {counts.total()} trainings: {_listed(counts)}")
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
    parser.add_argument("--only", action="append", metavar="SUBJECT")
    asked = parser.parse_args()
    provenance()
    synthesizer_attention.training.evaluate.SECONDS = 0.0  # time one decoding alone
    failures = []
    for name in asked.trials:
        end = time.monotonic() + asked.seconds
        with tempfile.TemporaryDirectory() as folder:
            os.environ["SYNTHESIZER_CACHE"] = f"{folder}/cache"
            rng = random.Random(asked.seed)
            failures += TRIALS[name](Path(folder), end, rng, _say, asked.only)
    _say(json.dumps(failures, indent=1))
    return 1 if failures else 0


def _say(text):
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(torture())
