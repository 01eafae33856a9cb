"""One self-contained page: a title and sections, light and dark, wide and narrow (no network).

    page("Title", [Section("heading", "<p>...</p>"), ...]) -> the text of an .html file

Plots are inline SVG in the page's own colours (see style.py), so they follow the reader's theme.
Text of users goes through text(), and should markup slip through all the same, the page's
content-security policy runs nothing but our own inline code and fetches nothing.
"""

import hashlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from synthesizer.report.style import css_variables
from synthesizer.untrusted import printable


@dataclass(frozen=True)
class Section:
    """A heading and the HTML below it."""

    heading: str
    body: str


def text(words: str) -> str:
    """Text as HTML shows it: no markup, no control characters."""
    return escape(printable(words, lines=True))


def page(title: str, sections: Sequence[Section], lead: str = "") -> str:
    """Wrap sections into a page that needs no other file."""
    blocks = "\n".join(
        f"<section><h2>{text(section.heading)}</h2>\n{section.body}\n</section>"
        for section in sections
    )
    style = f"\n{css_variables()}\n{STYLE}"
    policy = _policy(style, SORT)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(title)}</title>\n"
        '<link rel="icon" href="data:,">\n'
        f"<style>{style}</style>\n</head>\n<body>\n<main>\n"
        f"<header><h1>{text(title)}</h1>\n{lead}</header>\n{blocks}\n</main>\n"
        f"<script>{SORT}</script>\n</body>\n</html>\n"
    )


def _policy(style: str, script: str) -> str:
    """Nothing but this style, this script, style attributes (of plots) and images in the page."""
    ours, sorting = (
        b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in (style, script)
    )
    return (
        f"default-src 'none'; script-src 'sha256-{sorting}'; style-src-elem 'sha256-{ours}'; "
        "style-src-attr 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    caption: str = "",
    terms: Mapping[str, str] | None = None,
    sortable: bool = False,
) -> str:
    """A table that scrolls by itself where the window is narrow; cells are one or two lines.

    A heading among `terms` shows its meaning, and links to it (see `glossary`).
    """
    top = "".join(_heading(cell, (terms or {}).get(cell), sortable) for cell in head)
    body = "\n".join(
        f"<tr><th scope=row>{_two_lines(first)}</th>"
        + "".join(f"<td>{_two_lines(cell)}</td>" for cell in others)
        + "</tr>"
        for first, *others in rows
    )
    title = f"<caption>{text(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll" tabindex="0"><table>{title}<thead><tr>{top}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _heading(name: str, meaning: str | None, sortable: bool) -> str:
    shown = f"<button>{text(name)}</button>" if sortable else text(name)
    if meaning is None:
        return f"<th scope=col>{shown}</th>"
    link = f' <a href="#{_anchor(name)}" aria-label="what it means">?</a>'
    return f'<th scope=col title="{text(meaning)}">{shown}{link}</th>'


def glossary(terms: Mapping[str, str]) -> str:
    """The terms that headings link to."""
    entries = (
        f'<dt id="{_anchor(name)}">{text(name)}</dt><dd>{text(meaning)}</dd>'
        for name, meaning in terms.items()
    )
    return f"<dl>{''.join(entries)}</dl>"


def _anchor(name: str) -> str:
    return "term-" + "".join(letter if letter.isalnum() else "-" for letter in name)


class Plot(NamedTuple):
    """An SVG, its caption and, in a group, its title."""

    svg: str
    caption: str
    title: str = ""


def figures(plots: Sequence[Plot]) -> str:
    """Plots side by side, or below each other where there is no room; empty ones are left out."""
    shown = [
        f"<figure>{f'<h3>{text(plot.title)}</h3>' if plot.title else ''}{plot.svg}"
        f"<figcaption>{text(plot.caption)}</figcaption></figure>"
        for plot in plots
        if plot.svg
    ]
    return "\n".join(['<div class="figures">', *shown, "</div>"]) if shown else ""


def _two_lines(name: str) -> str:
    """The first line of a cell and, below it, smaller, the second."""
    first, _, second = name.partition("\n")
    return text(first) + (f"<small>{text(second)}</small>" if second else "")


def paragraph(words: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f'<p class="{kind}">{text(words)}</p>' if kind else f"<p>{text(words)}</p>"


def details(summary: str, words: str) -> str:
    """Preformatted text behind a line that opens it."""
    return (
        f"<details><summary>{text(summary)}</summary>"
        f'<pre tabindex="0">{text(words)}</pre></details>'
    )


SORT = """
const sizes = {k: 1e3, M: 1e6, G: 1e9, T: 1e12};
const value = (row, at) => {
  const shown = row.children[at].firstChild?.textContent ?? "";
  const text = shown.replace("\u2212", "-").replace(/,/g, "");
  const number = text.match(/^[+-]?[\\d.]+(e[+-]?\\d+)?/)?.[0];
  return number ? number * (sizes[text[number.length]] ?? 1) : text;
};
for (const button of document.querySelectorAll("th button")) button.onclick = () => {
  const head = button.parentNode, body = head.closest("table").tBodies[0];
  const order = head.ariaSort === "descending" ? 1 : -1, at = head.cellIndex;
  for (const other of head.parentNode.children) other.ariaSort = null;
  head.ariaSort = order === 1 ? "ascending" : "descending";
  body.append(...[...body.rows].sort((a, b) => {
    const x = value(a, at), y = value(b, at);
    const words = (typeof x === "string") - (typeof y === "string");
    return words || order * (x > y ? 1 : x < y ? -1 : 0);
  }));
};
"""  # a click on a heading sorts by it, words after numbers
STYLE = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1340px; margin: 0 auto; padding: 1.5rem clamp(0.9rem, 3vw, 2rem) 4rem; }
h1 { font-size: clamp(1.4rem, 4vw, 2rem); line-height: 1.2; margin: 0 0 0.6rem; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 0.6rem; border-bottom: 1px solid var(--line);
  padding-bottom: 0.25rem; }
h3 { font-size: 1.05rem; margin: 1.4rem 0 0.4rem; }
p { margin: 0.4rem 0; max-width: 75ch; }
.answer { font-size: clamp(1.05rem, 2.6vw, 1.3rem); font-weight: 600; max-width: 60ch; }
.note, figcaption, caption { color: var(--muted); font-size: 0.88rem; }
.figures { display: grid; gap: 1rem 2rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); }
figure h3 { margin: 0 0 0.3rem; }
figure { margin: 0.5rem 0; min-width: 0; max-width: 36rem; }
figure svg { width: 100%; height: auto; display: block; color: var(--text); }
figure svg * { stroke-linejoin: round; stroke-linecap: butt; }
figure svg image { image-rendering: pixelated; }
.scroll { overflow-x: auto; margin: 0.6rem 0; }
table { border-collapse: collapse; font-size: 0.86rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: 0.3rem; }
th, td { padding: 0.35rem 0.55rem; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { vertical-align: bottom; white-space: normal; min-width: 5.5rem; font-weight: 600; }
th button { all: unset; cursor: pointer; }
th button:focus-visible { outline: 2px solid var(--c1); outline-offset: 2px; }
th[aria-sort] button::after { content: " \\2193"; }
th[aria-sort="ascending"] button::after { content: " \\2191"; }
th a { color: var(--muted); font-weight: 400; }
dt { font-weight: 600; }
dd { margin: 0 0 0.6rem; max-width: 75ch; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--page);
  white-space: normal; min-width: min(11rem, 36vw); overflow-wrap: break-word; }
small { display: block; font-weight: 400; color: var(--muted); }
td small { white-space: normal; min-width: 8rem; }
td:last-child small { min-width: 16rem; }
.words td, .words thead th { text-align: left; white-space: normal; min-width: 11rem;
  max-width: 32rem; overflow-wrap: anywhere; }
li { overflow-wrap: anywhere; }
h1, h2, h3, p, li, th, td, summary, caption, figcaption { unicode-bidi: isolate; }
pre, code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: 0.85rem; }
pre { overflow-x: auto; background: var(--shade); padding: 0.8rem; border-radius: 6px; }
details { margin: 0.5rem 0; }
summary { cursor: pointer; }
:focus-visible { outline: 2px solid var(--c1); outline-offset: 2px; }
@media print { .scroll { overflow: visible; } section { break-inside: avoid; } }
"""
