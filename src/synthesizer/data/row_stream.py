"""Rows of a split that too large a set is read by, taken up again where they were left."""

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Any

from synthesizer.data.sources import Row, Source

State = dict[str, Any]  # JSON-able


class RowStream:
    """The rows of a split from the first, or from behind those that a state has passed.

    A hub's stream keeps its own state (shard and row), so that nothing is read twice. Of files the
    rows before are read again, but not encoded.
    """

    def __init__(self, source: Source, split: str, state: State | None = None) -> None:
        self._source, self._split = source, split
        self._number: int = state["number"] if state else 0
        self._hub = copy.deepcopy(source.streams.get(split))
        if self._hub is not None and state:
            self._hub.load_state_dict(state["hub"])

    def __iter__(self) -> Iterator[Row]:
        rows: Iterator[Row]
        if self._hub is None:
            rows = islice(self._source.splits[self._split](), self._number, None)
        else:
            rows = (
                Row(f"{self._source.origin} {self._split}", number, fields)
                for number, fields in enumerate(self._hub, start=self._number + 1)
            )
        for row in rows:
            self._number += 1
            yield row

    def state(self) -> State:
        """What takes up the stream behind the rows given so far."""
        hub = None if self._hub is None else self._hub.state_dict()
        return {"number": self._number, "hub": hub}
