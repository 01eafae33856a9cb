"""The README tells the truth: its table is the code's, its code and its commands run."""

import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from pretrained import build, sentences, tokenizer
from synthesizer_attention.spec import variants
from test_inference import pairs, reviews
from tiny import write_text

HOME = Path(__file__).parents[1]
README = (HOME / "README.md").read_text()
CONTRIBUTING = (HOME / "CONTRIBUTING.md").read_text()
PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md"]
PAGES += [str(page.relative_to(HOME)) for page in sorted((HOME / "docs").glob("*.md"))]
BADGE = re.compile(r"\.\./\.\./actions/workflows/([a-z]+\.yml)(/badge\.svg)?")  # pages of GitHub


def blocks(language, page=README + CONTRIBUTING):
    """The fenced blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def test_the_table_of_variants_is_the_codes_own():
    for variant in variants().values():
        row = (
            f"| `{variant.name}` | {variant.paper} | {variant.equation} "
            f"| {variant.parameters} | {variant.depends_on} |"
        )
        assert row in (HOME / "docs" / "paper.md").read_text()


BLOCKS = """
import runpy, warnings
warnings.simplefilter("error")
for path in {paths!r}: runpy.run_path(path, run_name="__main__")
"""
PLAN = """
from synthesizer_attention.cli import main
from synthesizer_attention.study import compare as study
from synthesizer_attention.study.plan import draw_up
study.list_commands = lambda asked, say: [row.label for row in draw_up(asked).rows]
assert main({words!r}) == 0
"""


def scripted(forks, folder, text, **values):
    """What a script prints in a process of its own."""
    (folder / "script.py").write_text(text.format(**values))
    code, out, error = forks.run(cwd=folder, script=folder / "script.py")
    assert code == 0, error
    return out


def test_every_python_block_runs_as_printed(tmp_path, forks):
    for number, code in enumerate(blocks("py") + blocks("python")):
        if "from fla." in code and find_spec("fla") is None:
            continue  # the example of a package that is not installed
        (tmp_path / f"block{number}.py").write_text(code)
    paths = sorted(map(str, tmp_path.glob("block*.py")))
    assert len(paths) >= 4
    printed = scripted(forks, tmp_path, BLOCKS, paths=paths)
    assert printed.startswith("tensor([[0.5000, 0.5000],")  # the alphas of a new mixture


def test_the_function_of_ones_own_is_compared_as_printed(tmp_path, forks):
    (code,) = [code for code in blocks("py") + blocks("python") if "Decay" in code]
    (tmp_path / "decay.py").write_text(code)
    reviews(tmp_path / "my.csv")
    (line,) = set(
        re.findall(r"`(synthesizer compare my.csv .*?--synthesis decay .*?)`", CONTRIBUTING)
    )
    words = [*shlex.split(line)[1:], "--plan"]
    assert "decay+dot" in scripted(forks, tmp_path, PLAN, words=words)


SMALL = """model.d_model=8 model.num_heads=2 model.num_layers=1 model.max_len=24 train.steps=2
    train.warmup=1 train.batch_tokens=96 text.vocab_size=300 evaluate.limit=2 evaluate.beam=1
    evaluate.max_new_tokens=4"""
DATA = {  # in place of thousands of texts, or of a download
    "python-docs": "text.txt",
    "grammar-ende": "pairs.tsv",
    "mt-multi30k-ende": "pairs.jsonl",
}
OURS = "(echo .* [|] )?(python -m synthesizer_attention|synthesizer) "
MANNER = {  # what makes each verb short
    "train": [word for key in SMALL.split() for word in ("--set", key)],
    "bench": ["--explain", "--small"],
    "audit": ["--steps", "2", "--rankings", "1"],
    "compare": ["--plan"],  # whose workers are replaced by drawing up the plan
}


def shell_lines():
    """Every line of the shell blocks, without its comment."""
    lines = [
        line.partition(" #")[0].strip() for block in blocks("sh") for line in block.split("\n")
    ]
    return [line for line in lines if line]


def reduced(line):
    """The words of a `synthesizer` line, made short."""
    words = shlex.split(line)[1:]
    verb, subject = words[0], words[1] if len(words) > 1 else ""
    words += MANNER.get(verb, [])
    words += ["--set", f"data.train={DATA[subject]}"] if verb == "train" and subject in DATA else []
    return ["2" if word == "3" else word for word in words]  # of the heads of a tiny model


def test_every_synthesizer_line_runs(tmp_path, forks):
    lines = [line for line in shell_lines() if re.match(OURS, line)]
    write_text(tmp_path / "text.txt", lines=600)
    pairs(tmp_path / "pairs.tsv")
    rows = (f'{{"en": "the cat {n}", "de": "die Katze {n}"}}\n' for n in range(60))
    (tmp_path / "pairs.jsonl").write_text("".join(rows))
    for name in ("my.csv", "reviews.csv"):
        reviews(tmp_path / name)
    build("bert").save_pretrained(tmp_path / "MODEL")
    tokenizer().save_pretrained(tmp_path / "MODEL")
    (tmp_path / "texts.csv").write_text("\n".join(["text", *sentences(12)]))
    for line in lines:
        said, _, command = line.rpartition(" | ")
        words = reduced(command.replace("python -m synthesizer_attention", "synthesizer"))
        if words[0] == "compare":
            assert "dot" in scripted(forks, tmp_path, PLAN, words=words)
            continue
        text = said.removeprefix("echo ").strip('"') + "\n"
        code, out, error = forks.run(*words, cwd=tmp_path, stdin=text, env={"HF_HUB_OFFLINE": "1"})
        assert code == 0, (line, error)
        assert out, line


def test_every_other_line_names_what_there_is():
    """These would install, run for minutes, or run this test: what they name is looked up."""
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    targets = re.findall(r"^([a-z-]+):", (HOME / "Makefile").read_text(), re.MULTILINE)
    for line in shell_lines():
        words = shlex.split(line)
        if words[0] == "make":
            assert words[1] in targets
        elif words[0] == "pip":
            extras = re.findall(r"\[(.*?)\]", line)
            assert {*extras} <= {*project["optional-dependencies"]}
            assert words[2:] == ["torch"] or [w for w in words[2:] if w.startswith(".")], line
            assert all((HOME / name).exists() for name in words if name.endswith(".txt"))
        elif words[0] == "torchrun":
            assert re.match(OURS, f"python -m {line.partition(' -m ')[2]}")
        else:
            assert line == "python -m pytest" or re.match(OURS, line)


@pytest.mark.parametrize("name", PAGES)
def test_every_relative_link_and_every_file_that_a_page_names_is_there(name):
    page = HOME / name
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s#]+)", text) + re.findall(r'src(?:set)?="([^"]+)"', text)
    missing = [
        link
        for link in links
        if not re.match(r"[a-z]+:", link)
        and not (page.parent / BADGE.sub(r".github/workflows/\1", link)).exists()
    ]
    bases = (HOME, HOME / "src" / "synthesizer_attention", HOME / "docs", HOME / "tests")
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|toml|c))`", text)
    # The log and the changelog also tell of files that are no more.
    if name not in ("docs/log.md", "CHANGELOG.md"):
        missing += [file for file in named if not any((base / file).exists() for base in bases)]
    assert missing == []


def test_the_tree_names_every_folder():
    package = HOME / "src" / "synthesizer_attention"
    tree = CONTRIBUTING.partition("## Where things are")[2]
    for folder in (path.parent for path in package.glob("*/__init__.py")):
        assert f"\n{folder.name}/ " in tree or f" {folder.name}/ " in tree, folder.name
