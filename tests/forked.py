"""Commands in processes of their own, forked from one that has imported everything once.

A process that trains spends seconds on its imports and milliseconds on a test's few steps; a fork
of one that has imported already is as much a process of its own: it may die, be stopped or limited,
and what it registers or changes ends with it. Linux.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tiny import environment

SERVER = """
import functools, importlib, json, os, resource, runpy, signal, sys, traceback
from synthesizer_attention.run.progress import silence_libraries

silence_libraries()  # as every command does, before torch is imported
import synthesizer_attention.training.evaluate
import synthesizer_attention.training.generate, synthesizer_attention.training.loop
from synthesizer_attention.cli import main

synthesizer_attention.training.evaluate.SECONDS = 0.0  # time one decoding alone


def serve(order):
    os.setsid()
    child = os.fork()
    if child:
        home = order["home"]
        for name, text in (("pid", child), ("code", None)):
            if name == "code":
                text = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            with open(f"{home}/.{name}", "w") as file:
                file.write(str(text))
            os.rename(f"{home}/.{name}", f"{home}/{name}")
        os._exit(0)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    sys.path[0] = ""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND if number else os.O_RDONLY
        os.dup2(os.open(f"{order['home']}/{name}", flags), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # without orders to others, read ahead
    if order["dies_in"]:  # the moment that a function is called
        module, _, name = order["dies_in"].partition(":")
        *inside, name = name.split(".")
        place = functools.reduce(getattr, inside, importlib.import_module(module))
        setattr(place, name, lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL))
    if order["limit"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["limit"],) * 2)
    code = 1
    try:
        if order["script"]:
            runpy.run_path(order["script"], run_name="__main__")
        code = 0 if order["script"] else main(order["words"])
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the ones that wait
for line in sys.stdin:
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        serve(json.loads(line))
"""


class Forks:
    """Starts commands; one for all tests of a process (the fixture `forks`)."""

    def __init__(self):
        self._server = None
        self._homes = []

    def start(self, *words, cwd, env=None, stdin="", largest_file=None, dies_in=None, script=None):
        """`synthesizer WORDS` in the directory cwd; no file may be larger than largest_file.

        dies_in   a "module:function" that kills the process (SIGKILL) when it is called
        script    a Python file to run in place of the command
        """
        if self._server is None:
            command = [sys.executable, "-c", SERVER]
            self._server = subprocess.Popen(
                command, stdin=subprocess.PIPE, text=True, env=environment()
            )
        home = Path(tempfile.mkdtemp(prefix="forked-"))
        self._homes.append(home)
        for name, text in (("stdin", stdin), ("stdout", ""), ("stderr", "")):
            (home / name).write_text(text)
        order = {"words": [*map(str, words)], "cwd": str(cwd), "home": str(home)}
        order |= {"limit": largest_file, "dies_in": dies_in, "script": script and str(script)}
        order["env"] = {**environment(), **(env or {})}
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        return Fork(home)

    def run(self, *words, **how):
        """Exit code, stdout and stderr of a command, once it has ended."""
        return self.start(*words, **how).wait()

    def close(self):
        if self._server is not None:
            self._server.communicate()
        for home in self._homes:
            shutil.rmtree(home)


class Fork:
    """A command that was started, with what subprocess.Popen would offer."""

    def __init__(self, home):
        self._home = home

    @property
    def pid(self):
        return int(self._content("pid"))

    @property
    def stdout(self):
        return (self._home / "stdout").read_text()

    @property
    def stderr(self):
        return (self._home / "stderr").read_text()

    def poll(self):
        """The exit code, or None."""
        code = self._home / "code"
        return int(code.read_text()) if code.exists() else None

    def wait(self, seconds=200):
        return int(self._content("code", seconds)), self.stdout, self.stderr

    def wait_for(self, text, seconds=200):
        """Wait until it has printed a text."""
        deadline = time.monotonic() + seconds
        while text not in self.stdout:
            assert self.poll() is None, self.stderr
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def kill(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _content(self, name, seconds=200):
        deadline = time.monotonic() + seconds
        while not (self._home / name).exists():
            assert time.monotonic() < deadline, f"no {name}: {self.stdout} {self.stderr}"
            time.sleep(0.005)
        return (self._home / name).read_text()
