"""Build the source distribution and the wheel, and try the wheel as a new user would.

    python tools/wheel.py dist                    # build into dist, check, try in a clean venv
    python tools/wheel.py dist --quick --tag v0.1.0   # as a release: `compare --quick`, and a tag

It needs the extra `release`. The venv gets the wheel alone first, runs README's first Python block,
then adds the extra `train` and runs a study. PIP_ARGS reaches pip.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
LARGEST = 700_000  # bytes of the wheel
# A study of two rows, one seed and a few steps: recipes, corpora, training, verdict and page.
SMALL = """compare --quick --seeds 1 --opponent configured --synthesis dot --synthesis random
    --jobs 1 --set train.steps=4 --set train.warmup=1 --set evaluate.limit=4"""


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    """What a command prints; a command that fails ends the script with what it said."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}  # nothing of the checkout is importable
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    found = subprocess.run(
        list(map(str, words)), cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    if found.returncode:
        sys.exit(f"{shlex.join(map(str, words))}\n{found.stdout}\n{found.stderr}")
    return found.stdout


def build(directory: Path) -> Path:
    """The wheel, made from the source distribution, so that the latter is complete."""
    shutil.rmtree(directory, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", directory, ".")
    archives = sorted(directory.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *archives)
    (wheel,) = (path for path in archives if path.suffix == ".whl")
    (source,) = (path for path in archives if path.suffix == ".gz")
    return check(wheel, source)


def check(wheel: Path, source: Path) -> Path:
    """Refuse an archive that holds too much or too little."""
    if wheel.stat().st_size > LARGEST:
        sys.exit(f"{wheel.name} has {wheel.stat().st_size:,} bytes, the limit is {LARGEST:,}")
    package = ROOT / "src" / "synthesizer_attention"
    tracked = run("git", "ls-files", package).split() if (ROOT / ".git").exists() else []
    packed = {*zipfile.ZipFile(wheel).namelist()}
    lacking = {name.removeprefix("src/") for name in tracked} - packed
    with tarfile.open(source) as archive:
        top = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    if lacking or "results" in top:
        sys.exit(f"{wheel.name} lacks {sorted(lacking)}; {source.name} holds {sorted(top)}")
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes; {source.name}: {source.stat().st_size:,}")
    return wheel


def check_tag(tag: str, wheel: Path) -> None:
    """Refuse a tag that is not the version's, and a version that the changelog does not date."""
    version = wheel.name.split("-")[1]
    heading = rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$"
    if tag != f"v{version}":
        sys.exit(f"the tag is {tag}, the package says {version}: set __version__ or tag v{version}")
    if not re.search(heading, (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        sys.exit(f"CHANGELOG.md has no heading '## {version} (YYYY-MM-DD)': date the version")


def try_out(wheel: Path, python: str, quick: bool) -> None:
    """Install the wheel in a clean venv, bare and with [train], and use both."""
    arguments = [
        "-q",
        "--no-compile",
        *shlex.split(os.environ.get("PIP_ARGS", "")),
        "-c",
        ROOT / "constraints.txt",
    ]
    layer = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        run(python, "-m", "venv", "--without-pip", home / "venv")
        inside, command = home / "venv/bin/python", home / "venv/bin/synthesizer"
        pip = (python, "-m", "pip", "--python", inside, "install", *arguments)

        run(*pip, wheel)
        print(run(inside, "-c", layer, cwd=home).strip())
        print(run(command, "--version", cwd=home).strip())
        missing = subprocess.run(
            [command, "compare", "--quick"], cwd=home, capture_output=True, text=True, check=False
        )
        if missing.returncode != 2 or "[train]" not in missing.stderr:
            sys.exit(f"without [train], compare ends with {missing.returncode}: {missing.stderr}")

        run(*pip, f"{wheel}[train]")
        words = ["compare", "--quick"] if quick else SMALL.split()
        print(run(command, *words, "--out", "study", cwd=home).strip().splitlines()[-1])
        if not (home / "study" / "report.html").exists():
            sys.exit(f"no study/report.html, but {sorted(home.rglob('*.html'))}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--quick", action="store_true", help="run the whole `compare --quick`")
    parser.add_argument("--tag", help="the tag of a release: the version and the changelog agree")
    parser.add_argument("--python", default=sys.executable, help="the clean venv's interpreter")
    asked = parser.parse_args()
    built = build(asked.directory.resolve())
    if asked.tag:
        check_tag(asked.tag, built)
    try_out(built, asked.python, asked.quick)
