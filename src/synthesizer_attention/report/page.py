"""One self-contained page: a title and sections, light and dark, wide and narrow (no network).

    page("Title", [Section("heading", [Text("words")]), ...]) -> the text of an .html file

page.html is its template, which escapes every text. Plots are inline SVG in the page's own colours
(see style.py), so they follow the reader's theme. Should markup slip through all the same, the
page's content-security policy runs nothing but our own inline code and fetches nothing.
"""

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from synthesizer_attention.report.blocks import Placed, Section, on_page
from synthesizer_attention.report.style import css_variables
from synthesizer_attention.untrusted import printable

HERE = Path(__file__).parent


def page(title: str, sections: Sequence[Section], lead: Sequence[Placed] = ()) -> str:
    """Wrap sections into a page that needs no other file; those without blocks are left out."""
    style = f"\n{css_variables()}\n{(HERE / 'page.css').read_text(encoding='utf-8')}"
    script = (HERE / "page.js").read_text(encoding="utf-8")
    shown = [Section(one.heading, on_page(one.blocks)) for one in sections]
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=title,
            lead=on_page(lead),
            sections=[one for one in shown if one.blocks],
            style=style,
            script=script,
            policy=_policy(style, script),
        )
    )


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, finalize=_shown, keep_trailing_newline=True
    )
    made.filters["anchor"] = _anchor
    return made


def _shown(value: Any) -> Any:  # noqa: ANN401  what a template puts out
    """Text without control characters; Jinja escapes its markup."""
    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return printable(value, lines=True) if is_text else value


def _anchor(name: str) -> str:
    return "term-" + "".join(letter if letter.isalnum() else "-" for letter in name)


def _policy(style: str, script: str) -> str:
    """Nothing but this style, this script, style attributes (of plots) and images in the page."""
    ours, sorting = (
        b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in (style, script)
    )
    return (
        f"default-src 'none'; script-src 'sha256-{sorting}'; style-src-elem 'sha256-{ours}'; "
        "style-src-attr 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )
