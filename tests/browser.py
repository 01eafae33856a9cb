"""Chromium without a window, driven over its debugging pipe: what a page does in it."""

import atexit
import json
import os
import shutil
import subprocess
import threading
from dataclasses import dataclass, field

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATH = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-sync --remote-debugging-pipe "
    "--disable-background-networking --disable-component-update"
)
PATIENCE = 120.0  # seconds for a page
COMPLAINTS = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


@dataclass
class Seen:
    """What was observed while a page was open."""

    text: str = ""
    width: int = 0  # that the page takes, at the window's width or beyond it
    answers: list = field(default_factory=list)
    requests: list = field(default_factory=list)
    complaints: list = field(default_factory=list)


def look(page, profile, *, width, scheme, ask=()):
    """Open a file in a window of this width and colour scheme; then evaluate what is asked.

    One browser serves a whole test run, in the profile of the first page; each page has a context.
    """
    if not _Browser.running or _Browser.running.process.poll() is not None:
        _Browser.running = _Browser(profile)
        atexit.register(_Browser.running.close)
    browser = _Browser.running
    watch = threading.Timer(PATIENCE, browser.process.kill)
    watch.start()
    try:
        context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=context)
        session = browser.call("Target.attachToTarget", flatten=True, **target)["sessionId"]
        browser.events.clear()
        for domain in ("Page", "Network", "Runtime", "Log"):
            browser.call(f"{domain}.enable", session)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", session, **size)
        wish = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.call("Emulation.setEmulatedMedia", session, features=wish)
        browser.call("Page.navigate", session, url=page.as_uri())
        browser.wait_for("Page.loadEventFired")
        expressions = ("document.body.innerText", "document.documentElement.scrollWidth", *ask)
        text, taken, *answers = (browser.evaluate(session, one) for one in expressions)
        seen = Seen(text, taken, answers)
        for event in browser.events:
            if event["method"] == "Network.requestWillBeSent":
                seen.requests.append(event["params"]["request"]["url"])
            elif event["method"] in COMPLAINTS:
                seen.complaints.append(event["params"])
        browser.call("Target.disposeBrowserContext", browserContextId=context)
        return seen
    finally:
        watch.cancel()


class _Browser:
    running = None

    def __init__(self, profile):
        (theirs_in, self._out), (self._in, theirs_out) = os.pipe(), os.pipe()

        def take_pipes():  # the browser reads orders at 3 and answers at 4
            ends = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self.process = subprocess.Popen(
            [PATH, *FLAGS.split(), f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=take_pipes, close_fds=False, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest, self._calls, self.events = b"", 0, []

    def call(self, method, session=None, **params):
        self._calls += 1
        order = {"id": self._calls, "method": method, "params": params}
        if session:
            order["sessionId"] = session
        os.write(self._out, json.dumps(order).encode() + b"\0")
        while (answer := self._read()).get("id") != self._calls:
            self.events.append(answer)
        return answer["result"]

    def evaluate(self, session, expression):
        given = {"expression": expression, "awaitPromise": True}
        return self.call("Runtime.evaluate", session, **given)["result"]["value"]

    def wait_for(self, name):
        while not any(event["method"] == name for event in self.events):
            self.events.append(self._read())

    def close(self):
        self.process.terminate()
        self.process.wait()
        os.close(self._in)
        os.close(self._out)

    def _read(self):
        while b"\0" not in self._rest:
            part = os.read(self._in, 1 << 16)
            if not part:
                raise RuntimeError("the browser ended")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)
