import os

import pytest

# Some virtual machines announce AMX and do not grant it: oneDNN's bfloat16 products then end the
# process with an illegal instruction. Without AMX the same tests run everywhere.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Threads of two-thread tests sleep while they wait, so that they do not take each other's cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Triton reads this as it is imported: GPU kernels run on CPU tensors.
os.environ.setdefault("TRITON_INTERPRET", "1")

# No test compiles the kernel unasked: most caches are new, and a second each adds up.
os.environ["SYNTHESIZER_KERNEL"] = "0"


@pytest.fixture(autouse=True)
def _own_data_folders(tmp_path, monkeypatch):
    """No test reads or fills the user's caches."""
    monkeypatch.setenv("SYNTHESIZER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SYNTHESIZER_DATA", raising=False)
