"""Ctrl-C and SIGTERM, as a flag that the loop asks between steps."""

import signal
import threading
from types import FrameType, TracebackType


class Interrupted(Exception):  # noqa: N818  no error: the run can be resumed
    """The run stopped because it was asked to, and can be resumed."""


class Interruption:
    """While it lasts, a signal is noted instead of obeyed; a second Ctrl-C stops at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.asked = False
        self.stops_at_once = False

    def __enter__(self) -> "Interruption":
        self._listens = threading.current_thread() is threading.main_thread()
        if self._listens:
            self._before = {number: signal.getsignal(number) for number in self.SIGNALS}
            for number in self.SIGNALS:
                signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._listens:
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.stops_at_once or (self.asked and number == signal.SIGINT):
            raise KeyboardInterrupt
        self.asked = True
