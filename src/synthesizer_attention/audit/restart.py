"""Passes that begin at the first attention that differs from a pass before.

    passes = Passes(hook, alone)
    passes.reach(tables, examples, place)      run up to this layer, and keep the states before it
    passes.outputs(other, examples)            begins there, if `other` differs from there on
    passes.outputs(other, examples, place)     and keeps its own states before this layer

Every module returns what it returned before if its call ended before that attention, so that the
architecture's own code runs and skips the work. Outputs are the bits of whole passes. That is tried
on two rows, layer by layer, before it is relied on: where a model remembers what modules do not
return, all passes are whole ones. States that do not fit into KEPT bytes are computed again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from synthesizer_attention.audit.examples import Examples
from synthesizer_attention.audit.hook import Hook
from synthesizer_attention.audit.tables import HeadTables

KEPT = 2**30  # bytes of states
Tables = Mapping[int, HeadTables]  # by layer


class _Call:
    """One call of a module: what it returned, and where it ended."""

    def __init__(self) -> None:
        self.end = 0  # the calls begun by then, its own and those inside it among them
        self.seen = 0  # attention calls begun by then
        self.kept: tuple[list[Any], Any, list[int]] | None = None

    def keep(self, output: Any, room: int) -> bool:  # noqa: ANN401
        """Keep an output of tensors and plain values, if there is room."""
        leaves, form = tree_flatten(output)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        plain = all(isinstance(leaf, Tensor | int | float | str | None) for leaf in leaves)
        if not plain or _bytes(tensors) > room:
            return False
        self.kept = leaves, form, [tensor._version for tensor in tensors]
        return True

    def again(self) -> Any:  # noqa: ANN401
        """The output in new containers; None where code wrote into its tensors."""
        if self.kept is None:
            return None
        leaves, form, versions = self.kept
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        same = [tensor._version for tensor in tensors] == versions
        return tree_unflatten(leaves, form) if same else None

    @property
    def size(self) -> int:
        """The bytes that it keeps."""
        return 0 if self.kept is None else _bytes(self.kept[0])


class Passes:
    """Runs a hooked model on examples, with tables in the place of heads."""

    def __init__(self, hook: Hook, alone: Sequence[Tables]) -> None:
        self.hook = hook
        self._alone = alone  # one head of each layer: to try whether passes may begin there
        self._exact: bool | None = None
        self._examples: Examples | None = None  # whose states are kept, behind these tables
        self._tables: Tables = {}
        self._limit = -1  # the attention call that they lead to
        self._traces: list[list[_Call]] = []  # by batch
        self._room = KEPT
        self._calls: list[_Call] = []  # of the pass at hand
        self._prepare([], -1, -1, -1)

    def outputs(self, tables: Tables, examples: Examples, keep: int | None = None) -> Tensor:
        """The model's outputs; with `keep`, the states before that layer are kept."""
        if not self.is_exact(examples):
            with self._replaced(tables):
                return examples.run(self.hook.model)
        with self._kept(tables, examples, keep) as run:
            return examples.run(self.hook.model, run)

    def reach(self, tables: Tables, examples: Examples, place: int) -> None:
        """Keep the states before this layer, and compute no more."""
        call = self.hook.layers[place].call
        if not self.is_exact(examples) or self._known(tables, examples)[1] >= call:
            return
        with self._kept(tables, examples, place, stop=call) as run:
            for inputs in examples.inputs(self.hook.model):
                run(**inputs)

    def is_exact(self, examples: Examples) -> bool:
        """Whether passes that begin late give the bits of whole ones: tried once, on two rows."""
        if self._exact is None:
            model = self.hook.model
            first, last = next(iter(examples.inputs(model))), examples.probe(model)
            self._exact = self._try(
                {name: value[:2] for name, value in first.items()},
                {name: value[-2:] for name, value in last.items()},
            )
        return self._exact

    @torch.no_grad()
    def _try(self, inputs: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
        """Begin at each layer, right after a pass over other rows in which all layers differed."""
        everywhere = {place: table for tables in self._alone for place, table in tables.items()}
        start, model = -1, self.hook.model
        for tables in self._alone:
            call = self.hook.layers[next(iter(tables))].call
            with self._patched():
                self._prepare(self._calls, start, call, call)
                self._run(**inputs)
            start = call
            trace = self._calls
            with self._replaced(everywhere):
                model(**others)
            with self._replaced(tables):
                with self._patched():
                    self._prepare(trace, start, -1, -1)
                    try:
                        late = self._run(**inputs)
                    except Exception:  # of states that are not those of these rows
                        return False
                whole = model(**inputs)
            self._calls = trace
            for name in ("logits", "last_hidden_state"):
                ours: Any = getattr(late, name, None)
                if ours is not None and not torch.equal(ours, getattr(whole, name)):
                    return False
        return True

    def _known(self, tables: Tables, examples: Examples) -> tuple[list[list[_Call]], int]:
        """The states that are kept, and the attention call at which a pass may begin with them."""
        if self._examples is not examples:
            return [], -1
        differ = (
            layer.call
            for place, layer in enumerate(self.hook.layers)
            if _heads(tables, place) != _heads(self._tables, place)
        )
        return self._traces, min(self._limit, next(differ, self._limit))

    @contextmanager
    def _kept(
        self, tables: Tables, examples: Examples, keep: int | None, stop: int = -1
    ) -> Iterator[Callable[..., Any]]:
        """What runs one batch after the other; in the end, their states are those that are kept."""
        traces, start = self._known(tables, examples)
        limit = -1 if keep is None else max(start, self.hook.layers[keep].call)
        made: list[list[_Call]] = []

        def run(**inputs: Any) -> Any:  # noqa: ANN401
            self._prepare(traces[len(made)] if traces else [], start, limit, stop)
            output = self._run(**inputs)
            made.append(self._calls)
            return output

        if keep is not None:
            self._examples, self._room = None, KEPT
        with self._replaced(tables), self._patched():
            yield run
        if keep is not None:
            self._examples, self._tables, self._limit, self._traces = examples, tables, limit, made

    def _prepare(self, before: list[_Call], start: int, keep: int, stop: int) -> None:
        """The next pass begins at attention call `start`, and keeps what ended before `keep`."""
        self._before, self._start, self._keep, self._stop = before, start, keep, stop
        self._calls = []

    @torch.no_grad()
    def _run(self, **inputs: Any) -> Any:  # noqa: ANN401
        try:
            return self.hook.model(**inputs)
        except _ReachedError:
            return None

    def _call(
        self, forward: Callable[..., Any], *args: Any, **inputs: Any  # noqa: ANN401
    ) -> Any:  # noqa: ANN401  # fmt: skip
        """In the place of a module's forward."""
        hook, place = self.hook, len(self._calls)
        if -1 < self._stop < hook.calls:
            raise _ReachedError
        if hook.calls > max(self._start, self._keep):
            return forward(*args, **inputs)
        if hook.calls <= self._start and place < len(self._before):
            known = self._before[place]
            again = known.again() if known.seen <= self._start else None
            if again is not None:
                self._calls += self._before[place : known.end]
                hook.calls = known.seen
                self._room -= known.size
                return again
        call = _Call()
        self._calls.append(call)
        output = forward(*args, **inputs)
        call.end, call.seen = len(self._calls), hook.calls
        if call.seen <= self._keep and call.keep(output, self._room):
            self._room -= call.size
            for inside in self._calls[place + 1 :]:  # skipped with it
                self._room += inside.size
                inside.kept = None
        return output

    @contextmanager
    def _patched(self) -> Iterator[None]:
        modules = [m for m in self.hook.model.modules() if m is not self.hook.model]
        before = [vars(module).get("forward") for module in modules]
        for module in modules:
            module.forward = partial(self._call, module.forward)
        try:
            yield
        finally:
            for module, forward in zip(modules, before, strict=True):
                del module.forward
                if forward is not None:
                    module.forward = forward

    @contextmanager
    def _replaced(self, tables: Tables) -> Iterator[None]:
        self.hook.tables = tables
        try:
            yield
        finally:
            self.hook.tables = {}


class _ReachedError(Exception):
    """A pass has got as far as it was to go."""


def _heads(tables: Tables, place: int) -> tuple[int, ...]:
    return tables[place].heads if place in tables else ()


def _bytes(leaves: Sequence[Any]) -> int:
    return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))
