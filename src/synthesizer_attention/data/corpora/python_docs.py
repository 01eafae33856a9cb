"""The English of the running Python's own documentation: help topics and docstrings.

Nothing is downloaded and no documented module is imported: docstrings are read by `ast` from the
source files. One row is one docstring, or a section of a help topic. Rows are shared out one by
one, so that held-out splits have hundreds of independent documents; text of the same module or
topic may be in train. The text, and so every number on it, changes with the version of Python.
"""

import ast
import hashlib
import importlib
import inspect
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from synthesizer_attention.data.corpora.drawing import Splits
from synthesizer_attention.errors import UserError

_SKIPPED = {"site-packages", "pydoc_data", "encodings", "idlelib", "lib2to3", "test", "tests"}
_HELD_OUT = {"test": range(5), "validation": range(5, 10)}
_SECTION = 1000  # letters of a help topic that make a document


def splits(seed: int = 0) -> Splits:
    """About 90, 5 and 5 percent of the docstrings and sections, by a hash of the text."""
    shared: Splits = {"train": [], "validation": [], "test": []}
    for text in _documents():
        percent = int(hashlib.sha256(f"{seed} {text}".encode()).hexdigest(), 16) % 100
        split = next((split for split, part in _HELD_OUT.items() if percent in part), "train")
        shared[split].append({"text": text})
    return shared


def _documents() -> Iterator[str]:
    """The text of each section and docstring, in order; one that was seen before is left out."""
    seen: set[str] = {""}
    for text in (*_topics(), *_modules()):
        if text not in seen:
            seen.add(text)
            yield text


def _sections(text: str) -> Iterator[str]:
    """Cut a topic before paragraphs that begin at the margin, once _SECTION letters are reached."""
    section = ""
    for paragraph in text.split("\n\n"):
        if len(section) >= _SECTION and not paragraph.startswith((" ", "\n")):
            yield section
            section = ""
        section += f"\n\n{paragraph}" if section else paragraph
    yield section


def _topics() -> Iterator[str]:
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        raise UserError(
            "this Python has no help topics (pydoc_data.topics); python-docs is made from them: "
            "run a Python installed with its full standard library, or choose another corpus"
        ) from None
    for name in sorted(topics):
        yield from _sections(inspect.cleandoc(topics[name]).strip())


def _modules() -> Iterator[str]:
    library = Path(sysconfig.get_path("stdlib"))
    files = [path for path in sorted(library.rglob("*.py")) if _is_documented(path, library)]
    if not files:
        raise UserError(
            f"{library} has no .py files; python-docs is made from the standard library's sources: "
            "run a Python installed with them, or choose another corpus"
        )
    for path in files:
        yield from _docstrings(ast.parse(path.read_bytes()))


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
