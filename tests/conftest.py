import os
import sys

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "ours",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # of a busy machine
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("ours")

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


@pytest.fixture(scope="session", autouse=True)
def _one_timed_decoding():
    """Time one decoding of every trained model, not the best of some twenty."""
    timing = sys.modules.get("synthesizer_attention.training.evaluate")
    if timing is None:  # nothing that was collected trains
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "SECONDS", 0.0)
        yield


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """One finished run of a language model, to read: its recipe, Run and result.

    With dropout, averaging and accumulation. A test that changes it works on a copy.
    """
    from synthesizer_attention.run.run import Run
    from synthesizer_attention.training.loop import fit
    from tiny import language_model

    folder = tmp_path_factory.mktemp("tiny")
    changes = ("model.dropout=0.3", "train.average=2", "train.accumulate=2", "train.keep=1")
    recipe, run = language_model(folder, *changes), Run(folder / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SYNTHESIZER_CACHE", str(folder / "cache"))
        return recipe, run, fit(recipe, run)


@pytest.fixture(scope="session")
def forks():
    """Commands in forks of one process that has imported everything."""
    from forked import Forks

    forks = Forks()
    yield forks
    forks.close()


@pytest.fixture
def command(forks, tmp_path):
    """What a verb prints, run as users run it in tmp_path."""

    def run(*arguments):
        code, out, error = forks.run(*arguments, cwd=tmp_path, stdin="the old cat\n")
        assert code == 0, error
        return out

    return run


@pytest.fixture
def forget():
    """Leave the tables of names as they were before a test registered its own."""
    from synthesizer_attention import spec
    from synthesizer_attention.attention.mixers import MIXERS
    from synthesizer_attention.attention.registry import SYNTHESES

    tables = (spec._VARIANTS, spec._FILES, SYNTHESES, MIXERS)
    before = [dict(table) for table in tables]
    yield
    for table, held in zip(tables, before, strict=True):
        table.clear()
        table.update(held)


LOAD = """
import torch
from synthesizer_attention import SynthesizerForCausalLM, UserError, import_modules
try:
    SynthesizerForCausalLM.from_pretrained({folder!r})
except UserError as error:
    print(error)
import_modules({imports!r})
model = SynthesizerForCausalLM.from_pretrained({folder!r})
print(model.config.synthesis, model(torch.arange(5)[None]).logits.sum().item())
"""


@pytest.fixture
def load_elsewhere(forks, tmp_path):
    """What another process prints that loads a model folder before and after the imports."""

    def load(folder, *imports):
        text = LOAD.format(folder=str(folder), imports=[str(path) for path in imports])
        script = tmp_path / "load.py"
        script.write_text(text)
        code, out, error = forks.run(cwd=tmp_path, script=script)
        assert code == 0, error
        return out.splitlines()

    return load


@pytest.fixture(scope="session")
def audits(tmp_path_factory):
    """Model folders and finished audits, each made once."""
    from pretrained import Audits

    return Audits(tmp_path_factory.mktemp("audits"))


@pytest.fixture
def asked(tmp_path):
    """A comparison of one seed on a tiny language model."""
    from synthesizer_attention.run.recipe import dump
    from synthesizer_attention.study.rows import Asked
    from tiny import language_model

    path = tmp_path / "tiny.toml"
    path.write_text(dump(language_model(tmp_path)))
    out = tmp_path / "study"
    return Asked(str(path), out=out, seeds=1, jobs="1", tune=0, opponent="configured")
