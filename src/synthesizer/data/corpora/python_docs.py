"""The English of the running Python's own documentation: help topics and docstrings.

Nothing is downloaded and no documented module is imported: docstrings are read by `ast` from the
source files. One row is one help topic, or all docstrings of one module. The text, and so every
number measured on it, changes with the version of Python.
"""

import ast
import hashlib
import importlib
import inspect
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from synthesizer.data.corpora.drawing import Splits
from synthesizer.errors import UserError

_SKIPPED = {"site-packages", "pydoc_data", "encodings", "idlelib", "lib2to3", "test", "tests"}
_HELD_OUT = {"test": range(5), "validation": range(5, 10)}


def splits(seed: int = 0) -> Splits:
    """About 90, 5 and 5 percent of the topics and modules, shared out by a hash of the name."""
    shared: Splits = {"train": [], "validation": [], "test": []}
    for name, text in _documents():
        percent = int(hashlib.sha256(f"{seed} {name}".encode()).hexdigest(), 16) % 100
        split = next((split for split, part in _HELD_OUT.items() if percent in part), "train")
        shared[split].append({"text": text})
    return shared


def _documents() -> Iterator[tuple[str, str]]:
    """Name and text of each topic and module; a docstring that was seen before is left out."""
    seen: set[str] = set()
    for name, texts in (*_topics(), *_modules()):
        fresh = dict.fromkeys(text for text in texts if text and text not in seen)
        seen.update(fresh)
        if fresh:
            yield name, "\n\n".join(fresh)


def _topics() -> Iterator[tuple[str, list[str]]]:
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        raise UserError(
            "this Python has no help topics (pydoc_data.topics); python-docs is made from them: "
            "run a Python installed with its full standard library, or choose another corpus"
        ) from None
    for name in sorted(topics):
        yield f"topic {name}", [inspect.cleandoc(topics[name]).strip()]


def _modules() -> Iterator[tuple[str, list[str]]]:
    library = Path(sysconfig.get_path("stdlib"))
    files = [path for path in sorted(library.rglob("*.py")) if _is_documented(path, library)]
    if not files:
        raise UserError(
            f"{library} has no .py files; python-docs is made from the standard library's sources: "
            "run a Python installed with them, or choose another corpus"
        )
    for path in files:
        name = ".".join(path.relative_to(library).with_suffix("").parts)
        yield f"module {name}", list(_docstrings(ast.parse(path.read_bytes())))


def _is_documented(path: Path, library: Path) -> bool:
    return _SKIPPED.isdisjoint(path.relative_to(library).parts)


def _docstrings(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> Iterator[str]:
    """The docstrings of a module or class and of what its body defines, dedented, in order."""
    yield (ast.get_docstring(node) or "").strip()
    if isinstance(node, ast.Module | ast.ClassDef):
        for child in node.body:
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _docstrings(child)
