"""What a launch does to its process, so that is one of its own."""

import platform
import subprocess
import sys

import pytest
import torch

FAULTS = """
import resource, torch
from synthesizer_attention.training.loop import open_accelerator
from synthesizer_attention.run.recipe import load_recipe

open_accelerator(load_recipe("shift"))
for number in range(40):
    [torch.ones(2**20) for _ in range(20)]
    if number == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or torch.accelerator.is_available(), reason="glibc's heap"
)
def test_training_on_cpu_uses_freed_memory_again():
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    pages_of_one_step = 20 * 2**20 * 4 // 4096
    assert int(done.stdout) < pages_of_one_step
