"""The direction of imports, read from the source, so that the arrows cannot rot."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "synthesizer"
TORCH_ALONE = [
    "resizing",
    "synthesis",
    "places",
    "fast",
    "attention",
    "baselines",
    "convolution",
    "mixers",
]
MODEL_SIDE = [
    "spec",
    *TORCH_ALONE,
    "layers",
    "universal",
    "config",
    "cache",
    "generation",
    "outputs",
    "backbone",
    "models",
]
DATA_SIDE = [
    "recipe",
    "catalog",
    "corpora",
    "sources",
    "columns",
    "text",
    "order",
    "batch",
    "encoded",
    "metrics",
    "tasks",
]
MEETING = [
    "optim",
    "run",
    "checkpoint",
    "snapshot",
    "progress",
    "curves",
    "interruption",
    "processes",
    "launch",
    "meter",
    "evaluation",
    "building",
    "cost",
    "decoding",
    "inspection",
    "results",
    "keeping",
    "answers",
    "training",
    "check",
    "verdict",
    "report",
    "matching",
    "inference",
    "plan",
    "board",
    "workers",
    "crew",
    "study",
    "benchmark",
    "cli",
]
ORDER = ["errors", *MODEL_SIDE, *DATA_SIDE, *MEETING]  # a file imports only files before it
NO_TORCH = [
    "errors",
    "spec",
    "recipe",
    "catalog",
    "corpora",
    "metrics",
    "run",
    "processes",
    "verdict",
    "report",
    "cli",
]
STANDARD = sys.stdlib_module_names


def files(name):
    """The files of a module or package."""
    path = PACKAGE / name
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def imported(name, *, at_start=False):
    """Every module a file imports, ours as 'synthesizer.x'; at_start leaves out function bodies."""
    found = set()
    for path in files(name):
        tree = ast.parse(path.read_text())
        for node in tree.body if at_start else ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module == "synthesizer":
                found |= {f"synthesizer.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
    return found


def ours(name, **how):
    """The names of ORDER that a module imports, itself aside."""
    inside = {m.split(".")[1] for m in imported(name, **how) if m.startswith("synthesizer.")}
    return {
        module for module in inside if (PACKAGE / module).exists() or files(module)[0].exists()
    } - {name}


def test_every_file_has_its_place():
    stems = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert stems | packages == set(ORDER)
    assert len(ORDER) == len(set(ORDER))


@pytest.mark.parametrize("name", ORDER)
def test_a_file_imports_only_files_before_it(name):
    assert ours(name) <= set(ORDER[: ORDER.index(name)])


def test_models_and_tasks_never_import_each_other():
    assert not any(ours(name) & set(DATA_SIDE) for name in MODEL_SIDE)
    assert not any(ours(name) & (set(MODEL_SIDE) - {"spec"}) for name in DATA_SIDE)


@pytest.mark.parametrize("name", TORCH_ALONE)
def test_the_core_imports_torch_alone(name):
    foreign = {m.partition(".")[0] for m in imported(name)} - STANDARD - {"synthesizer"}
    assert foreign <= {"torch"}


@pytest.mark.parametrize("name", NO_TORCH)
def test_what_must_start_at_once_does_not_import_torch(name):
    reached, waiting = set(), {name}
    while waiting:
        reached |= waiting
        waiting = {m for one in waiting for m in ours(one, at_start=True)} - reached
    heavy = {"torch", "transformers", "accelerate", "datasets", "tokenizers"}
    for one in reached:
        assert not {m.partition(".")[0] for m in imported(one, at_start=True)} & heavy


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
        "import sys; import synthesizer; assert 'torch' not in sys.modules;"
        "from synthesizer import SyntheticAttention, build_mixer, build_synthesis, Size;"
        "heavy = {'transformers', 'accelerate', 'datasets', 'tokenizers', 'pydantic', 'rich'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert printed == "[]"


def test_a_missing_extra_is_named():
    printed = run(
        "import sys; sys.modules['transformers'] = None\n"
        "import synthesizer\n"
        "try: synthesizer.SynthesizerConfig\n"
        "except synthesizer.UserError as error: print(error)"
    )
    assert printed == (
        "SynthesizerConfig needs transformers, which is not installed; "
        "run pip install 'synthesizer-attention[train]'"
    )


def test_what_is_public_is_found():
    import synthesizer

    for name in synthesizer.__all__:
        assert getattr(synthesizer, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        _ = synthesizer.Missing
