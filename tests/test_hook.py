"""The layer is complete without the folder of kernels."""

import subprocess
import sys

from tiny import environment

HIDDEN = """
import sys
sys.modules["synthesizer_attention.kernels"] = None
import pytest
from synthesizer_attention.attention import hook

code = pytest.main(["-n0", "-p", "no:cacheprovider", *sys.argv[1:]])
assert type(hook.kernels()) is hook.Kernels
sys.exit(code)
"""


def test_the_layer_is_complete_without_the_folder_of_kernels():
    tests = ["tests/test_contract.py", "tests/test_attention_models.py"]
    tests += ["-k", "decoding_in_steps or frozen or and_generate"]
    words = [sys.executable, "-c", HIDDEN, *tests]
    done = subprocess.run(words, env=environment(), text=True, capture_output=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
