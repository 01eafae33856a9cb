"""Pages and Markdown files, both written from one list of blocks (no network, no torch).

    page("Title", [Section("Results", [Table(head, rows), Text("A note.", "note")])]) -> .html
    markdown(sections) -> the paragraphs of an .md

page.html is the template, which escapes every text. Plots are inline SVG in the page's own colours
(see style.py), so they follow the reader's theme. Should markup slip through all the same, the
page's content-security policy runs nothing but our own inline code and fetches nothing.
"""

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import ClassVar, NamedTuple

from jinja2 import Environment, FileSystemLoader, Template
from markupsafe import Markup

from synthesizer_attention.errors import fenced, plain, printable
from synthesizer_attention.report.style import css_variables

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Block:
    """A part of a section; `only`, "page" or "text", leaves it out of the other."""

    kind: ClassVar[str]
    only: str = field(default="", kw_only=True)

    def markdown(self) -> str:
        return ""


@dataclass(frozen=True)
class Text(Block):
    """A paragraph; the style is "answer", "box", "note" or none. A page may fold it."""

    kind = "text"
    words: str
    style: str = ""
    folds: bool = False  # behind its first sentence

    @property
    def parts(self) -> tuple[str, str]:
        """Its first sentence, and what is folded behind it."""
        first, _, rest = self.words.partition(". ") if self.folds else (self.words, "", "")
        return (f"{first}.", rest) if rest else (first, "")

    def markdown(self) -> str:
        return f"**{plain(self.words)}**" if self.style == "answer" else plain(self.words)


@dataclass(frozen=True)
class Link(Block):
    """A paragraph that leads to a file beside the page."""

    kind = "link"
    words: str
    file: str

    def markdown(self) -> str:
        return f"[{plain(self.words)}]({self.file})"


@dataclass(frozen=True)
class Points(Block):
    """A list of sentences."""

    kind = "points"
    items: Sequence[str]
    style: str = ""

    def markdown(self) -> str:
        return "\n".join(f"- {plain(item)}" for item in self.items)


@dataclass(frozen=True)
class Table(Block):
    """Cells of one or two lines; a heading among `terms` shows its meaning and links to it."""

    kind = "table"
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    terms: Mapping[str, str] = field(default_factory=dict)
    sortable: bool = False
    of_words: bool = False  # cells are texts, and wrap

    def markdown(self) -> str:
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join(
            "| " + " | ".join(plain(cell.strip().replace("\n", "; ")) for cell in line) + " |"
            for line in lines
        )


class Plot(NamedTuple):
    """An SVG or the data of an image, its caption and, in a group, its title."""

    svg: str
    caption: str
    title: str = ""
    image: str = ""


@dataclass(frozen=True)
class Figures(Block):
    """Plots side by side, on a page alone; empty ones are left out."""

    kind = "figures"
    plots: Sequence[Plot]

    @property
    def shown(self) -> list[Plot]:
        return [plot for plot in self.plots if plot.svg or plot.image]


@dataclass(frozen=True)
class Code(Block):
    """Preformatted text; on a page it may be folded behind a line."""

    kind = "code"
    text: str
    fold: str = ""
    language: str = ""

    def markdown(self) -> str:
        return fenced(self.text, self.language)


@dataclass(frozen=True)
class Glossary(Block):
    """The terms that headings link to."""

    kind = "glossary"
    terms: Mapping[str, str]

    def markdown(self) -> str:
        return Points([f"{name}: {meaning}" for name, meaning in self.terms.items()]).markdown()


class Section(NamedTuple):
    """A heading and its blocks."""

    heading: str
    blocks: Sequence[Block]


def markdown(sections: Iterable[Section]) -> Iterator[str]:
    """Sections as paragraphs of Markdown; those without words are left out."""
    for section in sections:
        texts = [block.markdown() for block in section.blocks if block.only != "page"]
        if any(texts):
            yield f"## {plain(section.heading)}"
            yield from filter(None, texts)


def page(title: str, sections: Sequence[Section], lead: Sequence[Block] = ()) -> str:
    """A page that needs no other file; sections without blocks are left out."""
    style = f"\n{css_variables()}\n{(HERE / 'page.css').read_text(encoding='utf-8')}"
    script = (HERE / "page.js").read_text(encoding="utf-8")
    first, *others = (
        Section(one.heading, [block for block in one.blocks if block.only != "text"])
        for one in (Section("", lead), *sections)
    )
    return _template().render(
        title=title,
        lead=first.blocks,
        sections=[one for one in others if one.blocks],
        style=style,
        script=script,
        policy=policy(style, script),
    )


def policy(style: str, script: str) -> str:
    """The content-security policy of a page: its own style and script, and nothing fetched."""
    ours, run = (
        b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in (style, script)
    )
    return (
        f"default-src 'none'; script-src 'sha256-{run}'; style-src-elem 'sha256-{ours}'; "
        "style-src-attr 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )


@cache
def _template() -> Template:
    def shown(value: object) -> object:
        """Text without control characters; Jinja escapes its markup."""
        if isinstance(value, str) and not isinstance(value, Markup):
            return printable(value, lines=True)
        return value

    made = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, finalize=shown, keep_trailing_newline=True
    )
    made.filters["anchor"] = lambda name: (
        "term-" + "".join(letter if letter.isalnum() else "-" for letter in name)
    )
    return made.get_template("page.html")
