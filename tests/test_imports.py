"""The direction of imports, read from the source, so that the arrows cannot rot."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "synthesizer_attention"
ROOT = {"errors", "spec"}
SHARED = {*ROOT, "run.files"}  # what every folder may import
LAZY = {"audit.converted"}  # the hook for converted folders, read when one is opened
MAY_IMPORT = {
    "attention": set(),
    "kernels": {"attention", "models"},
    "models": {"attention", *LAZY},
    "run": set(),
    "data": {"run"},
    "metrics": {"data.tokenizer"},
    "tasks": {"run", "data", "metrics"},
    "training": {"attention", "models", "run", "data", "metrics", "tasks"},
    "study": {"models", "run", "data", "metrics", "tasks", "training"},
    "report": {
        "run",
        "metrics",
        "study.evidence",
        "study.stats",
        "study.ladder",
        "study.rows",
        "study.tune",
    },
    "audit": {
        "attention",
        "models",
        "run",
        "data",
        "metrics",
        "tasks",
        "training.checkpoint",
        "report",
        "training.meter",
        "study.evidence",
    },
    "bench": {"attention", "models", "training.meter", "report"},
    "play": {"attention", "metrics", "models", "run", "data", "tasks", "training", "report"},
}
NO_TORCH = {"errors", "spec", "run", "metrics", "report", "cli"}
EDGE = {"cli"}  # the command line imports anything; nothing imports it
HOOK = "attention/hook.py"  # the only file that imports the kernels
STANDARD = sys.stdlib_module_names
HEAVY = {"torch", "transformers", "accelerate", "datasets", "tokenizers"}


def files(name):
    """The files of a module or folder."""
    path = PACKAGE.joinpath(*name.split("."))
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def imported(path, *, at_start=False):
    """Every module that a file imports; at_start leaves out function bodies."""
    found = set()
    tree = ast.parse(path.read_text())
    for node in tree.body if at_start else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {_module(f"{node.module}.{alias.name}", node.module) for alias in node.names}
    return found


def _module(dotted, parent):
    """`from a import b` imports a.b where that is a module of ours, else a."""
    inside = dotted.removeprefix("synthesizer_attention.")
    return dotted if dotted.startswith("synthesizer_attention.") and _exists(inside) else parent


def _exists(name):
    path = PACKAGE.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def ours(path, **how):
    """The modules of this package that a file imports, without 'synthesizer_attention.'."""
    modules = imported(path, **how)
    return {
        m.removeprefix("synthesizer_attention.")
        for m in modules
        if m.startswith("synthesizer_attention.")
    }


def test_every_file_has_its_place():
    stems = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert stems == ROOT | EDGE
    assert folders == set(MAY_IMPORT)


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_a_folder_imports_only_what_the_table_allows(folder):
    allowed = MAY_IMPORT[folder] | SHARED | {folder}
    for path in files(folder):
        if path == PACKAGE / HOOK:
            continue
        for module in ours(path):
            within = {".".join(module.split(".")[:n]) for n in range(1, module.count(".") + 2)}
            assert within & allowed, (
                f"{path.relative_to(PACKAGE)} imports synthesizer_attention.{module}"
            )


def test_models_know_of_surgery_by_one_lazy_hook():
    assert [path.name for path in files("models") if ours(path) & LAZY] == ["config.py"]
    assert not any(ours(path, at_start=True) & LAZY for path in files("models"))


def test_what_every_folder_may_import_imports_nothing_of_ours_but_errors():
    for name in SHARED:
        assert ours(files(name)[0]) <= {"errors"}


def test_no_init_holds_logic():
    for path in PACKAGE.rglob("*/__init__.py"):
        for node in ast.parse(path.read_text()).body:
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            is_all = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            plain = is_text or is_all or isinstance(node, ast.Import | ast.ImportFrom)
            assert plain, f"{path.relative_to(PACKAGE)}: {ast.unparse(node)[:60]}"


@pytest.mark.parametrize(
    "path", [*files("attention"), *files("audit.replace"), *files("audit.tables")],
    ids=lambda p: p.stem,
)  # fmt: skip
def test_the_core_imports_torch_alone(path):
    foreign = {m.partition(".")[0] for m in imported(path)} - STANDARD - {"synthesizer_attention"}
    assert foreign <= {"torch"}


@pytest.mark.parametrize("name", sorted(NO_TORCH))
def test_what_must_start_at_once_does_not_import_torch(name):
    reached, waiting = set(), set(files(name))
    while waiting:
        reached |= waiting
        names = {m for path in waiting for m in ours(path, at_start=True)}
        waiting = {
            PACKAGE.joinpath(*m.split("."), "__init__.py")
            if PACKAGE.joinpath(*m.split(".")).is_dir()
            else files(m)[0]
            for m in names
        } - reached
    for path in reached:
        assert not {m.partition(".")[0] for m in imported(path, at_start=True)} & HEAVY, path


def run(script):
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={"PYTHONPATH": str(PACKAGE.parent)},
    )
    return done.stdout.strip()


def test_the_layer_costs_a_torch_import_and_nothing_more():
    printed = run(
        "import sys; import synthesizer_attention; assert 'torch' not in sys.modules;"
        "from synthesizer_attention import SyntheticAttention, build_mixer, build_synthesis, Size;"
        "from synthesizer_attention import parameter_groups;"
        "heavy = {'transformers', 'accelerate', 'datasets', 'tokenizers', 'pydantic', 'rich'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert printed == "[]"


def test_a_missing_extra_is_named():
    printed = run(
        "import sys; sys.modules['transformers'] = None\n"
        "import synthesizer_attention\n"
        "try: synthesizer_attention.SynthesizerConfig\n"
        "except synthesizer_attention.UserError as error: print(error)"
    )
    assert printed == (
        "SynthesizerConfig needs transformers, which is not installed; "
        "run pip install 'synthesizer-attention[train]'"
    )


BARE = """
import sys
from importlib.machinery import PathFinder

class Bare(PathFinder):
    def find_spec(name, path=None, target=None):
        hidden = name.partition(".")[0] in {hidden!r}
        return None if hidden else PathFinder.find_spec(name, path, target)

sys.meta_path[-1] = Bare
from synthesizer_attention.cli import app, main

words = {words!r}
for command in app.registered_commands:
    verb = command.name or command.callback.__name__
    print(verb, file=sys.stderr)
    code = main([verb, *words.get(verb, [])])
    print(code, file=sys.stderr)
"""
NEEDED = {"train": ["shift"], "convert": ["x", "--out", "y"]}
NEEDED |= {"transfer": ["x", "x", "x"], "export": ["x", "--out", "y"]}
NEEDED |= {verb: ["x"] for verb in ("evaluate", "generate", "report", "audit", "play")}


@pytest.mark.parametrize("hidden", ["the whole extra", "numpy"])
def test_every_verb_says_what_a_bare_install_lacks(hidden, tmp_path):
    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())["project"]
    names = [re.match("[a-z-]+", name)[0] for name in project["optional-dependencies"]["train"]]
    modules = {name.replace("-", "_") for name in names} | {"PIL"}
    modules -= {"pydantic"}  # which comes with newer versions of typer
    script = BARE.format(hidden=[hidden] if hidden in modules else modules, words=NEEDED)
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        env={"PYTHONPATH": str(PACKAGE.parent)},
    )
    said = done.stderr.splitlines()
    assert done.returncode == 0, done.stderr
    assert said[:4] == ["list", "0", "recipes", "0"]
    verbs = said[4::3]
    assert {*NEEDED} | {"compare", "bench"} == {*verbs}
    for verb, line, code in zip(verbs, said[5::3], said[6::3], strict=True):
        lacks = "numpy|transformers" if hidden not in modules else hidden
        error = f"synthesizer: error: this needs ({lacks}), which is not installed; "
        install = "run pip install 'synthesizer-attention[train]'"
        assert re.fullmatch(error + re.escape(install), line), verb
        assert code == "2"
    assert [*tmp_path.iterdir()] == []


def test_what_is_public_is_found():
    import synthesizer_attention

    for name in synthesizer_attention.__all__:
        assert getattr(synthesizer_attention, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        _ = synthesizer_attention.Missing
