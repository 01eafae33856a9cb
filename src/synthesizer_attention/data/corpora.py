"""Data sets that the project makes itself, without any file: probes, ListOps, Python's docs.

Each makes its own train, validation and test rows. The input of a probe is tokens between spaces
and its target has one token for each, `_` where nothing is scored.
"""

import ast
import hashlib
import importlib
import inspect
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

from synthesizer_attention.data import grammar
from synthesizer_attention.errors import UserError

Row = dict[str, str]
Splits = dict[str, list[Row]]

DRAW = 1  # the seed of what is drawn; draw 0 has been looked at by the records before it
_PATIENCE = 10_000
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_NUMBERS = tuple(str(number) for number in range(20))
_EASY = {"train": 8_000, "validation": 500, "test": 1_000}
_GRADED = {"train": 12_000, "validation": 500, "test": 1_000}


def draw_splits(
    draw: Callable[[Random], Row], column: str, seed: int, sizes: dict[str, int]
) -> Splits:
    """Draw rows whose column differs from every other row's, in all splits together.

    Test and validation are drawn first: a longer or shorter train split leaves them as they are.
    """
    assert list(sizes) == ["train", "validation", "test"], sizes
    rng, seen = Random(seed), set[str]()

    def new() -> Row:
        for _ in range(_PATIENCE):
            row = draw(rng)
            if row[column] not in seen:
                seen.add(row[column])
                return row
        raise UserError(
            f"the corpus ran out after {len(seen):,} distinct rows; ask for smaller splits"
        )

    drawn = {name: [new() for _ in range(sizes[name])] for name in reversed(sizes)}
    return {name: drawn[name] for name in sizes}


def _probe(given: Iterable[str], target: Iterable[str]) -> Row:
    return {"input": " ".join(given), "target": " ".join(target)}


def _check_difficulty(difficulty: int, most: int, what: str) -> None:
    if not 1 <= difficulty <= most:
        raise UserError(
            f"data.difficulty is {difficulty}; it is the number of {what} here: choose 1 to {most}"
        )


def shift(seed: int = DRAW, *, length: int = 32, distance: int = 3, **sizes: int) -> Splits:
    """A probe that positions solve: say the token that stood a fixed distance back.

    input    d a f c b e ...
    target   _ _ _ d a f ...
    """

    def draw(rng: Random) -> Row:
        tokens = rng.choices(_LETTERS[:16], k=length)
        return _probe(tokens, ["_"] * distance + tokens[: length - distance])

    return draw_splits(draw, "input", seed, _EASY | sizes)


def _bind(rng: Random, keys: str, values: Sequence[str], count: int) -> dict[str, str]:
    return {key: rng.choice(values) for key in rng.sample(keys, count)}


def _ask(rng: Random, value: dict[str, str], given: list[str], questions: int) -> Row:
    """What was given, then keys to say the value of."""
    asked = rng.choices(list(value), k=questions)
    return _probe(given + asked, ["_"] * len(given) + [value[key] for key in asked])


def recall(seed: int = DRAW, *, bindings: int = 12, questions: int = 24, **sizes: int) -> Splits:
    """A probe that needs content: say the value that this key was bound to.

    input    f3 b12 k7 b f f ...       letters are keys, numbers their values
    target   _  _   _  12 3 3 ...      scored where a key is asked

    Each row binds its own keys to its own values, so the answer is in the row and nowhere else. A
    model that cannot compare tokens can at best guess one of the row's values.
    """

    def draw(rng: Random) -> Row:
        value = _bind(rng, _LETTERS[:20], _NUMBERS, bindings)
        return _ask(rng, value, [key + value[key] for key in value], questions)

    return draw_splits(draw, "input", seed, _EASY | sizes)


def multi_query_recall(seed: int = DRAW, *, difficulty: int = 8, **sizes: int) -> Splits:
    """Say the values that several keys were bound to; the difficulty is the number of keys.

    input    c 12 f 3 k 7 | f c f k ...       letters are keys, numbers their values
    target   _ _  _ _ _ _ _ 3 12 3 7 ...      scored where a key is asked

    A key and its value are two tokens, so that an answer takes two steps: put each key beside its
    value, by position, then find the key that is asked, by content.
    """
    _check_difficulty(difficulty, len(_LETTERS), "keys")

    def draw(rng: Random) -> Row:
        value = _bind(rng, _LETTERS, _NUMBERS[:16], difficulty)
        return _ask(rng, value, [token for pair in value.items() for token in pair] + ["|"], 16)

    return draw_splits(draw, "input", seed, _GRADED | sizes)


def noisy_recall(seed: int = DRAW, *, difficulty: int = 8, **sizes: int) -> Splits:
    """The same, a pair in one token, so that content alone decides; the difficulty is the noise.

    input    ~3 c12 ~0 ~5 f3 | f c f ...      every row has 8 pairs
    target   _  _   _  _  _  _ 3 12 3 ...
    """

    def draw(rng: Random) -> Row:
        value = _bind(rng, _LETTERS, _NUMBERS[:16], 8)
        noise = rng.choices([f"~{number}" for number in range(8)], k=difficulty)
        given = [key + value[key] for key in value] + noise
        rng.shuffle(given)
        return _ask(rng, value, [*given, "|"], 16)

    return draw_splits(draw, "input", seed, _GRADED | sizes)


def selective_copying(
    seed: int = DRAW, *, difficulty: int = 8, letters: int = 8, **sizes: int
) -> Splits:
    """Say the letters again in order, and none of the noise between them.

    input    . c . . a f . b > > > >        the noise is somewhere else in every row
    target   _ _ _ _ _ _ _ _ c a f b        scored where a letter is asked

    Where a letter stands says nothing of its number: a model has to tell letters from noise. The
    difficulty is the number of tokens without meaning.
    """

    def draw(rng: Random) -> Row:
        chosen = rng.choices(_LETTERS[:16], k=letters)
        places = set(rng.sample(range(letters + difficulty), letters))
        left = iter(chosen)
        given = [next(left) if place in places else "." for place in range(letters + difficulty)]
        return _probe(given + [">"] * letters, ["_"] * len(given) + chosen)

    return draw_splits(draw, "input", seed, _GRADED | sizes)


def distance_copying(
    seed: int = DRAW, *, difficulty: int = 4, length: int = 32, **sizes: int
) -> Splits:
    """Copying by a distance that the input names: say the letter that stood so many tokens back.

    input    c2 a1 f3 b1 e2 ...      a token is a letter and a distance
    target   _  c  _  f  f  ...      not scored where the distance leads before the row

    With one distance a position table solves it (`shift`). With several, where to attend depends on
    the input: a table can fetch one distance per head and leave the choice to the feed-forward
    layer, so that it lasts as long as its heads; a dot product with positions can go wherever a
    token says. The difficulty is the number of distances.
    """
    _check_difficulty(difficulty, length - 1, "distances")

    def draw(rng: Random) -> Row:
        letters = rng.choices(_LETTERS[:8], k=length)
        back = [rng.randint(1, difficulty) for _ in letters]
        target = [letters[i - n] if n <= i else "_" for i, n in enumerate(back)]
        return _probe((f"{letter}{n}" for letter, n in zip(letters, back, strict=True)), target)

    return draw_splits(draw, "input", seed, _GRADED | sizes)


def _median(values: list[int]) -> int:
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) // 2


_OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": _median,
    "[SM": lambda values: sum(values) % 10,
}
_NAMES = list(_OPERATORS)
_OPERATOR_SHARE = 0.25


def listops(
    seed: int = DRAW,
    *,
    longer_than: int = 500,
    shorter_than: int = 2_000,
    max_depth: int = 10,
    min_operators: int = 1,
    **sizes: int,
) -> Splits:
    """ListOps after the Long Range Arena: nested lists of digits under MIN, MAX, MED and SM.

        [MAX 2 9 [MIN 4 7 ] 0 ]   ->   9

    SM is the sum modulo 10; MED of an even count is the mean of the two middle values, rounded
    down. Source is tokens between spaces, longer_than < tokens < shorter_than: an operator carries
    its opening bracket, `]` closes, and each token counts. The Long Range Arena's files also have
    parentheses, which its reader drops before counting, and it reads X for `]`: the same 15 tokens.
    Defaults are the published parameters.
    """

    def draw(rng: Random) -> Row:
        while True:
            tokens: list[str] = []
            value = _grow(rng, tokens, max_depth, shorter_than)
            if longer_than < len(tokens) < shorter_than:
                source = " ".join(tokens)
                if source.count("[") >= min_operators:
                    return {"Source": source, "Target": str(value)}

    wanted = {"train": 96_000, "validation": 2_000, "test": 2_000} | sizes
    return draw_splits(draw, "Source", seed, wanted)


def listops_short(seed: int = DRAW, **sizes: int) -> Splits:
    """Lists small enough to learn in a minute: 10 < tokens < 60, at least two operators."""
    wanted = {"train": 20_000, "validation": 1_000, "test": 1_000} | sizes
    return listops(seed, longer_than=10, shorter_than=60, min_operators=2, **wanted)


def _grow(rng: Random, tokens: list[str], depth: int, limit: int) -> int:
    """Append one list of 2 to 10 arguments in at most depth levels and return its value.

    Past the limit nothing grows. The published generator may also draw a lone digit, which no
    length limit here lets through.
    """
    name = _NAMES[int(rng.random() * len(_NAMES))]
    tokens.append(name)
    values = []
    for _ in range(2 + int(rng.random() * 9)):
        if depth > 2 and rng.random() < _OPERATOR_SHARE and len(tokens) < limit:
            values.append(_grow(rng, tokens, depth - 1, limit))
        else:
            digit = int(rng.random() * 10)
            tokens.append(str(digit))
            values.append(digit)
    tokens.append("]")
    return _OPERATORS[name](values)


def grammar_ende(seed: int = DRAW, **sizes: int) -> Splits:
    """English sentences beside their German, from a grammar; no English sentence comes twice."""
    wanted = {"train": 50_000, "validation": 500, "test": 1_000} | sizes
    return draw_splits(grammar.draw_pair, "en", seed, wanted)


_SKIPPED = {"site-packages", "pydoc_data", "encodings", "idlelib", "lib2to3", "test", "tests"}
_SECTION = 1000  # letters of a help topic that make a document


def python_docs(seed: int = 0) -> Splits:
    """The English of the running Python's own documentation: help topics and docstrings.

    No documented module is imported: docstrings are read by `ast` from the source files. One row is
    one docstring, or a section of a help topic. Rows are shared out one by one, by a hash of the
    text, about 90, 5 and 5 percent, so that held-out splits have hundreds of independent documents;
    text of the same module or topic may be in train. The text, and so every number on it, changes
    with the version of Python.
    """
    shared: Splits = {"train": [], "validation": [], "test": []}
    for text in dict.fromkeys(filter(None, (*_topics(), *_docstrings()))):
        percent = int(hashlib.sha256(f"{seed} {text}".encode()).hexdigest(), 16) % 100
        split = "test" if percent < 5 else "validation" if percent < 10 else "train"
        shared[split].append({"text": text})
    return shared


def cut_sections(text: str) -> Iterator[str]:
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
        yield from cut_sections(inspect.cleandoc(topics[name]).strip())


def _docstrings() -> Iterator[str]:
    """Those of each module and class and of what its body defines, dedented, in order."""

    def below(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield (ast.get_docstring(node) or "").strip()
        if isinstance(node, ast.Module | ast.ClassDef):
            for child in node.body:
                yield from below(child)

    library = Path(sysconfig.get_path("stdlib"))
    every = sorted(library.rglob("*.py"))
    files = [path for path in every if _SKIPPED.isdisjoint(path.relative_to(library).parts)]
    if not files:
        raise UserError(
            f"{library} has no .py files; python-docs is made from the standard library's sources: "
            "run a Python installed with them, or choose another corpus"
        )
    for path in files:
        yield from below(ast.parse(path.read_bytes()))


CORPORA: dict[str, Callable[..., Splits]] = {
    "python-docs": python_docs,
    "grammar-ende": grammar_ende,
    "listops": listops,
    "listops-short": listops_short,
    "shift": shift,
    "recall": recall,
    "multi-query-recall": multi_query_recall,
    "noisy-recall": noisy_recall,
    "selective-copying": selective_copying,
    "distance-copying": distance_copying,
}
GRADED = ("multi-query-recall", "noisy-recall", "selective-copying", "distance-copying")
"""Corpora that have a difficulty."""
_DRAWN = {*CORPORA} - {"python-docs"}


def describe_corpus(name: str, difficulty: int | None = None) -> str:
    """A corpus as records name it, with its draw and difficulty: 'recall, draw 1'."""
    drawn = [f"draw {DRAW}"] if name in _DRAWN else []
    graded = [f"difficulty {difficulty}"] if difficulty is not None else []
    return ", ".join([name, *drawn, *graded])
