"""Hugging Face's own model and generation tests over our models.

    pip install parameterized
    python tools/hugging_face_suite.py [--sources DIR] [--generation DIR] [-k "CausalLM" ...]

Without --sources, pip fetches the source distribution of the installed transformers version. No
source distribution holds the folders of generation and export tests: --generation takes the former
from a checkout of another version. The script names what is missing and does not run it. Other
arguments reach pytest. docs/hugging_face.md explains what is overridden below.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tarfile
import types
import unittest
from importlib import import_module
from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.auto import modeling_auto

import synthesizer_attention.models
from synthesizer_attention import SynthesizerConfig
from synthesizer_attention.models.generation import SynthesizerCache

# The environment variables that pytest's import of this file reads.
DIRECTORY, GENERATION = "TRANSFORMERS_SOURCE", "TRANSFORMERS_GENERATION"
ARCHIVES = Path(__file__).parents[1] / "build"
SYNTHESES = ["dot", "random", "random+dot", "dense"]
KINDS = {
    "decoder": ("SynthesizerModel", "SynthesizerForCausalLM"),
    "encoder_decoder": ("SynthesizerModel", "SynthesizerForConditionalGeneration"),
    "encoder": ("SynthesizerModel", "SynthesizerForSequenceClassification"),
}
NAMES = {
    "MODEL_MAPPING_NAMES": "SynthesizerModel",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "SynthesizerForCausalLM",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": "SynthesizerForConditionalGeneration",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": "SynthesizerForSequenceClassification",
}
OTHER_FOLDERS = {
    "tests.generation.test_utils": "GenerationTesterMixin",
    "tests.exporters.test_export": "ExportTesterMixin",
}


class Tester:
    """A small config and inputs for it, as Hugging Face's tests ask for them."""

    batch_size, seq_length, is_training = 3, 7, True
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4

    def __init__(self, kind, synthesis):
        self.kind, self.synthesis = kind, synthesis

    def get_config(self):
        return SynthesizerConfig(
            kind=self.kind,
            synthesis=self.synthesis,
            vocab_size=99,
            d_model=self.hidden_size,
            num_heads=self.num_attention_heads,
            num_layers=self.num_hidden_layers,
            d_ff=37,
            max_len=64,
            dropout=0.0,
        )

    def prepare_config_and_inputs_for_common(self):
        ids = torch.randint(2, 99, (self.batch_size, self.seq_length))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if self.kind == "encoder_decoder":
            inputs |= {"decoder_input_ids": ids.flip(0), "decoder_attention_mask": ids * 0 + 1}
        return self.get_config(), inputs


class ValuesAlone:
    """A layer without dot product needs no keys: its cache holds values alone."""

    def _check_past_key_values_for_generate(self, batch_size, past_key_values, seq_length, config):
        if "dot" in config.synthesis or not isinstance(past_key_values, SynthesizerCache):
            super()._check_past_key_values_for_generate(
                batch_size, past_key_values, seq_length, config
            )
            return
        width = config.d_model // config.num_heads
        assert len(past_key_values) == config.num_layers
        for layer in past_key_values.layers:
            assert layer.keys is None
            assert layer.values.shape == (batch_size, config.num_heads, seq_length, width)


def fetch():
    """The unpacked source distribution of the installed transformers."""
    name = f"transformers-{transformers.__version__}"
    if not (ARCHIVES / name).exists():
        pip = shlex.split(os.environ.get("PIP", f"{sys.executable} -m pip"))
        what = ("--no-deps", "--no-binary", "transformers", name.replace("-", "=="))
        subprocess.run([*pip, "download", "-q", "-d", ARCHIVES, *what], check=True)
        with tarfile.open(ARCHIVES / f"{name}.tar.gz") as archive:
            archive.extractall(ARCHIVES, filter="data")
    return ARCHIVES / name


def missing(directory, generation):
    """The test modules that neither directory holds."""
    homes = {"tests.generation.test_utils": [directory, generation]}
    return [
        name
        for name in OTHER_FOLDERS
        if not any(
            (home / (name.replace(".", "/") + ".py")).exists()
            for home in homes.get(name, [directory])
        )
    ]


def build_tests(directory, generation):
    """One test class per kind of model and variant, by name."""
    sys.path.insert(0, str(directory))
    for name in missing(
        directory, generation
    ):  # the model tests import it: an empty mixin stands in
        folder, module = name.rpartition(".")[0], types.ModuleType(name)
        setattr(module, OTHER_FOLDERS[name], type(OTHER_FOLDERS[name], (), {}))
        sys.modules |= {folder: types.ModuleType(folder), name: module}
    if not (directory / "tests" / "generation").exists() and "tests.generation" not in sys.modules:
        folder = types.ModuleType("tests.generation")  # of another checkout, beside these tests
        folder.__path__ = [str(generation / "tests" / "generation")]
        sys.modules["tests.generation"] = folder
    for names, model in NAMES.items():  # by which their tests choose labels
        getattr(modeling_auto, names)["synthesizer"] = model
    common = import_module("tests.test_modeling_common")
    found = {}
    for kind, names in KINDS.items():
        classes = tuple(getattr(synthesizer_attention.models, name) for name in names)
        bases = [common.ModelTesterMixin, unittest.TestCase]
        if kind != "encoder":
            bases = [ValuesAlone, common.ModelTesterMixin, common.GenerationTesterMixin, *bases[1:]]
        for synthesis in SYNTHESES:

            def set_up(self, kind=kind, synthesis=synthesis):
                self.model_tester = Tester(kind, synthesis)

            name = f"{names[-1].removeprefix('SynthesizerFor')}_{synthesis.replace('+', '_')}"
            body = {
                "setUp": set_up,
                "all_model_classes": classes,
                "is_encoder_decoder": kind == "encoder_decoder",
            }
            found[name] = type(name, tuple(bases), body)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sources", type=Path)
    parser.add_argument("--generation", type=Path)
    asked, arguments = parser.parse_known_args()
    directory = (asked.sources or fetch()).resolve()
    generation = (asked.generation or directory).resolve()
    os.environ |= {DIRECTORY: str(directory), GENERATION: str(generation)}
    os.environ["SYNTHESIZER_KERNEL"] = "0"
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # as tests/conftest.py says
    for name in missing(directory, generation):
        print(f"{directory} does not hold {name}: its tests are not run")
    options = ["-q", "--tb=short", "-rfE", "-W", "ignore", "-p", "no:cacheprovider"]
    apart = ["-c", os.devnull, "--rootdir", str(Path(__file__).parent)]  # not by our own settings
    return pytest.main([__file__, *apart, *options, *arguments])


if __name__ == "__main__":
    sys.exit(main())
elif DIRECTORY in os.environ:
    globals().update(build_tests(Path(os.environ[DIRECTORY]), Path(os.environ[GENERATION])))
