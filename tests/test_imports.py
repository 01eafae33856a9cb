"""The direction of imports, read from the source, so that the arrows cannot rot."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "synthesizer"
ORDER = [  # a file imports only files above it
    "errors",
    "spec",
    "synthesis",
    "places",
    "fast.padding",
    "fast.terms",
    "fast.table",
    "fast.blocks",
    "fast",
    "attention",
    "baselines",
    "convolution",
    "mixers",
    "layers",
    "universal",
    "config",
    "cache",
    "generation",
    "outputs",
    "backbone",
    "models",
    "control",
]
TORCH_ALONE = (
    "synthesis",
    "places",
    "fast",
    "fast.terms",
    "fast.table",
    "fast.blocks",
    "attention",
    "baselines",
    "convolution",
    "mixers",
)
NO_TORCH = ("errors", "spec")
STANDARD = sys.stdlib_module_names


def imported(name):
    """Every module a file imports, ours as 'synthesizer.x'."""
    found = set()
    path = PACKAGE / name.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("name", ORDER)
def test_a_file_imports_only_files_above_it(name):
    ours = {m.removeprefix("synthesizer.") for m in imported(name) if m.startswith("synthesizer.")}
    assert ours <= set(ORDER[: ORDER.index(name)])


@pytest.mark.parametrize("name", TORCH_ALONE + NO_TORCH)
def test_the_core_imports_torch_alone(name):
    foreign = {m.partition(".")[0] for m in imported(name)} - STANDARD - {"synthesizer"}
    assert foreign <= ({"torch"} if name in TORCH_ALONE else set())


def test_the_layer_costs_a_torch_import_and_nothing_more():
    script = (
        "import sys; import synthesizer; assert 'torch' not in sys.modules;"
        "from synthesizer import SyntheticAttention, build_mixer, build_synthesis, Size;"
        "heavy = {'transformers', 'accelerate', 'datasets', 'tokenizers', 'pydantic', 'rich'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"


def test_a_missing_extra_is_named():
    script = (
        "import sys; sys.modules['transformers'] = None\n"
        "import synthesizer\n"
        "try: synthesizer.SynthesizerConfig\n"
        "except synthesizer.UserError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == (
        "SynthesizerConfig needs transformers, which is not installed; "
        "run pip install 'synthesizer-attention[train]'"
    )


def test_what_is_public_is_found():
    import synthesizer

    for name in synthesizer.__all__:
        assert getattr(synthesizer, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        _ = synthesizer.Missing
