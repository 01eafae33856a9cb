"""The site, in build/site/html: python tools/site_pages.py [gallery | play].

Without a word it builds the pages and checks every link of them. `gallery` makes the report of
each committed study and `play` trains the models of the live page; both are slow, are kept in
build/site and are in the site from then on.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

HOME = Path(__file__).parents[1]
BUILD = HOME / "build" / "site"
SOURCE, PAGES, EXTRA = BUILD / "source", BUILD / "html", BUILD / "extra"
SYNTHESIZER = (sys.executable, "-m", "synthesizer_attention")
PLAYED = {  # the recipes of the live page, and the variants of each
    "python-docs": ("dot", "random", "dense", "random+dot"),
    "grammar-ende": ("dot", "random", "dense", "random+dot"),
}
CODE = r"^```.*?^```|``[^`\n]+``|`[^`\n]+`"
LINK = r"\[([^\[\]]*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)"
LINK_OR_CODE = re.compile(f"{CODE}|{LINK}", re.MULTILINE | re.DOTALL)  # a link's text may be code


def address() -> str:
    """The repository's address, which pyproject.toml alone holds; "" where it does not."""
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    return project.get("urls", {}).get("Source", "")


def gathered() -> dict[Path, str]:
    """The pages of the site that are files of the repository, and the place of each in the site."""
    pages = {page: page.name for page in (HOME / "docs").glob("*.md")}
    pages |= {page: f"results/{page.name}" for page in (HOME / "results").glob("*.md")}
    pages |= {HOME / name: name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")}
    for kind, pattern in (("images", "*.svg"), ("notebooks", "*.ipynb")):
        files = (HOME / "docs" / kind).glob(pattern)
        pages |= {file: f"{kind}/{file.name}" for file in files}
    return pages


def relinked(text: str, page: Path, pages: dict[Path, str]) -> str:
    """The text of a page with its links as the site has them; to other files, at the repository."""
    here = (HOME / "site" / pages[page]).parent

    def relink(match: re.Match[str]) -> str:
        label, link, anchor = match.groups("")
        if not link:  # code
            return match[0]
        target = Path(os.path.normpath(page.parent / link))
        if target in pages:
            return f"[{label}]({os.path.relpath(HOME / 'site' / pages[target], here)}{anchor})"
        if not target.exists():
            raise SystemExit(f"{page.relative_to(HOME)} links to {link}, which is not there")
        kind = "tree" if target.is_dir() else "blob"
        at = f"{address()}/{kind}/main/{target.relative_to(HOME)}{anchor}"
        return f"[{label}]({at})" if address() else label

    return LINK_OR_CODE.sub(relink, text)


def gather() -> None:
    """Write the sources that Sphinx reads; a file that is unchanged keeps its time."""
    pages = gathered()
    texts = {place: page.read_text() for page, place in pages.items()}
    for page, place in pages.items():
        if page.suffix == ".md":
            texts[place] = relinked(texts[place], page, pages)
        elif page.suffix == ".ipynb":
            texts[place] = with_badge(page)
    texts["cli.md"] = command_line()
    texts["gallery.md"] = gallery_page()
    texts["play.md"] = play_page()
    texts["conf.py"] = (HOME / "docs" / "conf.py").read_text()
    texts["static/site.css"] = (HOME / "docs" / "site.css").read_text()
    EXTRA.mkdir(parents=True, exist_ok=True)
    for place, text in texts.items():
        path = SOURCE / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for path in [path for path in SOURCE.rglob("*") if path.is_file()]:
        if str(path.relative_to(SOURCE)) not in texts:
            path.unlink()


def with_badge(page: Path) -> str:
    """A notebook whose first cell links to Colab and to itself."""
    notebook = json.loads(page.read_text())
    path = page.relative_to(HOME)
    colab = (
        f"{address().replace('https://', 'https://colab.research.google.com/')}/blob/main/{path}"
    )
    badge = f"[![Open in Colab](../images/colab.svg)]({colab.replace('github.com', 'github')}) "
    links = (badge if address() else "") + f"{{download}}`Download <{page.name}>`"
    notebook["cells"][0]["source"] += ["\n", "\n", links]
    return json.dumps(notebook, indent=1)


def command_line() -> str:
    """The reference of the command line, by typer itself."""
    page = BUILD / "cli.md"
    BUILD.mkdir(parents=True, exist_ok=True)
    typer = (sys.executable, "-m", "typer", "synthesizer_attention.cli", "utils", "docs")
    command = [*typer, "--name", "synthesizer", "--title", "Command line", "--output", str(page)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return page.read_text()


def gallery_page() -> str:
    """Every committed study: its question, its answer, and its report where it was made."""
    lines = ["# Gallery", "", "Every committed study, and the answer of its report.", ""]
    for record in sorted((HOME / "results").glob("*.zip")):
        text = record.with_suffix(".md").read_text().split("\n")
        answer = next((line for line in text[1:] if line.startswith("**")), "")
        links = [f"[tables](results/{record.stem}.md)"]
        if (EXTRA / "gallery" / record.stem / "report.html").exists():
            links.insert(0, f'<a href="gallery/{record.stem}/report.html">the report</a>')
        lines += [f"## {text[0].removeprefix('# ')}", "", answer.strip("*"), ""]
        lines += [f"`{record.stem}`: {', '.join(links)}", ""]
    return "\n".join([*lines, "```{toctree}", ":hidden:", ":glob:", "", "results/*", "```", ""])


def play_page() -> str:
    """The page that leads to the live ones."""
    lines = ["# Models in your browser", ""]
    lines += ["Type a text and see what each trained model makes of it and where it attends. Each"]
    lines += ["page is one offline file, made by `synthesizer play`; nothing leaves your browser."]
    made = [name for name in PLAYED if (EXTRA / "play" / f"{name}.html").exists()]
    for name in made:
        lines += ["", f'- <a href="play/{name}.html">{name}</a>: {", ".join(PLAYED[name])}']
    if not made:
        lines += ["", "This build of the site has none; `make play` trains them."]
    return "\n".join([*lines, ""])


def gallery() -> None:
    """The report of every committed study."""
    for record in sorted((HOME / "results").glob("*.zip")):
        out = EXTRA / "gallery" / record.stem
        if not (out / "report.html").exists():
            subprocess.run([*SYNTHESIZER, "report", record, "--out", out], check=True)
            for other in ("report.md", "table.csv"):
                (out / other).unlink(missing_ok=True)


def play() -> None:
    """Train the models of the live pages, and write them."""
    (EXTRA / "play").mkdir(parents=True, exist_ok=True)
    for recipe, variants in PLAYED.items():
        runs = [BUILD / "runs" / recipe / variant for variant in variants]
        for variant, run in zip(variants, runs, strict=True):
            command = [*SYNTHESIZER, "train", recipe, "--synthesis", variant, "--out", run]
            subprocess.run([*command, "--plain"], check=True)
        page = EXTRA / "play" / f"{recipe}.html"
        subprocess.run([*SYNTHESIZER, "play", *runs, "--out", page], check=True)


class Page(HTMLParser):
    """What a built page has and names: anchors, links, and what a browser loads at once."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.assets: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        is_asset = tag == "link" and found.get("rel") not in ("next", "prev", "index", "search")
        links = self.assets if is_asset or tag != "a" else self.links
        links += [found[name] for name in ("href", "src", "poster", "data") if found.get(name)]


def broken_links(root: Path) -> list[str]:
    """Local links of a built site that lead nowhere, and assets that would be fetched."""
    pages = {path: Page(path) for path in root.rglob("*.html")}
    wrong = []
    for path, page in pages.items():
        name = path.relative_to(root)
        wrong += [
            f"{name} loads {asset[:99]}" for asset in page.assets
            if urlsplit(asset).scheme not in ("", "data") or asset.startswith("//")
        ]  # fmt: skip
        for link in (*page.links, *page.assets):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = Path(os.path.normpath(path.parent / unquote(parts.path)))
            target = (
                path if not parts.path else target / "index.html" if target.is_dir() else target
            )
            anchor = unquote(parts.fragment)
            is_page = target in pages and anchor and not target.is_relative_to(root / "play")
            if not target.exists() or (is_page and anchor not in pages[target].anchors):
                wrong.append(f"{name} links to {link}")
    for sheet in root.rglob("*.css"):
        fetched = re.findall(r"url\(['\"]?(https?:[^)]*)|@import[^;]*", sheet.read_text())
        wrong += [f"{sheet.relative_to(root)} loads {url}" for url in fetched]
    return wrong


def build() -> None:
    """Gather, let Sphinx build with warnings as errors, and check the links."""
    gather()
    shutil.rmtree(PAGES, ignore_errors=True)
    options = ("-b", "html", "-W", "--keep-going", "-q", "-d", str(BUILD / "doctrees"))
    command = [sys.executable, "-m", "sphinx", *options, str(SOURCE), str(PAGES)]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    env["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm's, in a notebook
    done = subprocess.run(command, env=env)
    wrong = [] if done.returncode else broken_links(PAGES)
    for line in wrong:
        print(line, file=sys.stderr)
    if done.returncode or wrong:
        raise SystemExit(1)
    print(f"{PAGES.relative_to(HOME)}: {len([*PAGES.rglob('*.html')])} pages")


if __name__ == "__main__":
    {"": build, "gallery": gallery, "play": play}["".join(sys.argv[1:])]()
