"""What pages and Markdown files are made of: one list of blocks, written in both ways.

    Section("Results", [Table(head, rows), Text("A note.", "note")])

page.html shows the blocks of a page; `markdown` writes those of a text. OnPage and InText hold what
only one of them has.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from synthesizer_attention.untrusted import fenced, plain


@dataclass(frozen=True)
class Text:
    """A paragraph; the style is "answer", "note" or none."""

    kind: ClassVar = "text"
    words: str
    style: str = ""

    def markdown(self) -> str:
        return f"**{plain(self.words)}**" if self.style == "answer" else plain(self.words)


@dataclass(frozen=True)
class Points:
    """A list of sentences."""

    kind: ClassVar = "points"
    items: Sequence[str]
    style: str = ""

    def markdown(self) -> str:
        return "\n".join(f"- {plain(item)}" for item in self.items)


@dataclass(frozen=True)
class Table:
    """Cells of one or two lines; a heading among `terms` shows its meaning and links to it."""

    kind: ClassVar = "table"
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
class Figures:
    """Plots side by side, or below each other where there is no room; empty ones are left out."""

    kind: ClassVar = "figures"
    plots: Sequence[Plot]

    @property
    def shown(self) -> list[Plot]:
        """Those that hold something."""
        return [plot for plot in self.plots if plot.svg or plot.image]

    def markdown(self) -> str:
        return ""


@dataclass(frozen=True)
class Code:
    """Preformatted text; on a page it may be folded behind a line."""

    kind: ClassVar = "code"
    text: str
    fold: str = ""
    language: str = ""

    def markdown(self) -> str:
        return fenced(self.text, self.language)


@dataclass(frozen=True)
class Glossary:
    """The terms that headings link to."""

    kind: ClassVar = "glossary"
    terms: Mapping[str, str]

    def markdown(self) -> str:
        return Points([f"{name}: {meaning}" for name, meaning in self.terms.items()]).markdown()


Block = Text | Points | Table | Figures | Code | Glossary


class OnPage(NamedTuple):
    """A block that Markdown leaves out."""

    block: Block


class InText(NamedTuple):
    """A block that a page leaves out."""

    block: Block


Placed = Block | OnPage | InText


@dataclass(frozen=True)
class Section:
    """A heading and what is below it."""

    heading: str
    blocks: Sequence[Placed]


def on_page(blocks: Iterable[Placed]) -> list[Block]:
    """The blocks that a page has."""
    shown = (one.block if isinstance(one, OnPage) else one for one in blocks)
    return [one for one in shown if not isinstance(one, InText)]


def markdown(sections: Iterable[Section]) -> Iterator[str]:
    """Sections as paragraphs of Markdown; those without words are left out."""
    for section in sections:
        shown = (one.block if isinstance(one, InText) else one for one in section.blocks)
        texts = [one.markdown() for one in shown if not isinstance(one, OnPage)]
        if any(texts):
            yield f"## {plain(section.heading)}"
            yield from filter(None, texts)
