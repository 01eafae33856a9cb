"""The README tells the truth: its table is the code's, its example runs as printed."""

import re
import subprocess
import sys
from pathlib import Path

from synthesizer.spec import variants

README = (Path(__file__).parents[1] / "README.md").read_text()


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
