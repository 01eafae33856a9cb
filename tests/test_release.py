"""What a release says of itself is one truth: version, Pythons, address, contents."""

import re
import subprocess
import tomllib
from pathlib import Path

import synthesizer_attention
from package_readme import absolute

HOME = Path(__file__).parents[1]
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
SOURCE = PROJECT["urls"]["Source"]
VERSION = synthesizer_attention.__version__


def test_the_version_is_the_same_everywhere():
    changelog = (HOME / "CHANGELOG.md").read_text()
    newest = re.findall(r"^## (\d\S*)", changelog, re.MULTILINE)[0]
    cited = re.search(r"^version: (.*)$", (HOME / "CITATION.cff").read_text(), re.MULTILINE)
    assert {newest, cited[1]} == {VERSION}
    if not (HOME / ".git").exists():
        return
    command = ["git", "tag", "--points-at", "HEAD", "--list", "v*"]
    tags = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=True)
    assert {*tags.stdout.split()} <= {f"v{VERSION}"}


def test_ci_runs_every_python_that_is_claimed():
    classified = [
        name.rpartition(" ")[2]
        for name in PROJECT["classifiers"]
        if re.search(r"Python :: 3\.", name)
    ]
    workflow = (HOME / ".github" / "workflows" / "ci.yml").read_text()
    assert re.findall(r'"(3\.\d+)"', re.search(r"python: \[(.*)\]", workflow)[1]) == classified
    assert {"make check", "make test", "make docs", "make wheel"} <= {
        *re.findall(r"run: (make \S+)", workflow)
    }
    assert f">={classified[0]}" == PROJECT["requires-python"]
    readme = (HOME / "README.md").read_text()
    assert f"Python {classified[0]} to {classified[-1]}, torch" in readme
    assert f"python-{classified[0]}_to_{classified[-1]}-" in readme


def test_the_address_stands_in_one_place():
    command = ["git", "grep", "-Il", SOURCE.removeprefix("https://")]
    named = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False)
    assert {*named.stdout.split()} <= {"pyproject.toml"}
    assert all(url.startswith(SOURCE) for key, url in PROJECT["urls"].items() if key != "Paper")


def test_the_package_index_gets_absolute_links():
    text = absolute((HOME / "README.md").read_text(), SOURCE, VERSION)
    links = re.findall(r'\]\(([^)\s]+)|src="([^"]+)', text)
    assert all("".join(link).startswith("https://") for link in links)
    assert f'src="{SOURCE}/raw/v{VERSION}/docs/images/picture.svg"' in text
    assert f"]({SOURCE}/blob/v{VERSION}/docs/paper.md)" in text
    assert f"[![CI]({SOURCE}/actions/workflows/ci.yml/badge.svg)]({SOURCE}/actions/" in text
