"""The README tells the truth: its table is the code's, its example runs as printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from synthesizer.spec import variants

HOME = Path(__file__).parents[1]
README = (HOME / "README.md").read_text()
PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
PAGES += [str(page.relative_to(HOME)) for page in sorted((HOME / "docs").glob("*.md"))]


def test_the_table_of_variants_is_the_codes_own():
    for variant in variants().values():
        row = (
            f"| `{variant.name}` | {variant.paper} | {variant.equation} "
            f"| {variant.parameters} | {variant.depends_on} |"
        )
        assert row in README


def test_the_python_example_runs_as_printed(tmp_path):
    example = re.search(r"```python\n(.*?)```", README, re.DOTALL).group(1)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "torch.Size([4, 100, 512]) torch.Size([4, 8, 100, 100])\n"


@pytest.mark.parametrize("name", PAGES)
def test_every_relative_link_and_every_file_that_a_page_names_is_there(name):
    page = HOME / name
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s#]+)", text) + re.findall(r'src(?:set)?="([^"]+)"', text)
    missing = [
        link
        for link in links
        if not re.match(r"[a-z]+:", link) and not (page.parent / link).exists()
    ]
    bases = (HOME, HOME / "src" / "synthesizer", HOME / "docs", HOME / "tests")
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|toml|c))`", text)
    # The log and the changelog also tell of files that are no more.
    if name not in ("docs/log.md", "CHANGELOG.md"):
        missing += [file for file in named if not any((base / file).exists() for base in bases)]
    assert missing == []


def test_the_tree_names_every_folder():
    package = HOME / "src" / "synthesizer"
    tree = README.partition("## Where things are")[2]
    for folder in (path.parent for path in package.glob("*/__init__.py")):
        assert f"\n  {folder.name}/ " in tree
    assert "\n  recipes/ " in tree
    assert "\n    fast/ " in tree
