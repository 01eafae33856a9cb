"""Hugging Face's own model and generation tests over our models.

    pip install parameterized
    python tools/hugging_face_suite.py DIR [arguments of pytest, such as -k "CausalLM and grad"]

DIR holds the sources of the installed transformers version, its tests included. A source
distribution leaves out the folders of generation and export tests: what is missing is said, and not
run. What differs here on purpose is skipped or overridden below and explained in
docs/hugging_face.md.
"""

import os
import sys
import types
import unittest
from importlib import import_module
from pathlib import Path

import pytest
import torch
from transformers.models.auto import modeling_auto

import synthesizer_attention.models
from synthesizer_attention import SynthesizerConfig
from synthesizer_attention.models.generation import SynthesizerCache

DIRECTORY = (
    "TRANSFORMERS_SOURCE"  # the environment variable that pytest's import of this file reads
)
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


def missing(directory):
    """The test modules that this directory does not hold."""
    return [
        name
        for name in OTHER_FOLDERS
        if not (directory / (name.replace(".", "/") + ".py")).exists()
    ]


def build_tests(directory):
    """One test class per kind of model and variant, by name."""
    sys.path.insert(0, str(directory))
    for name in missing(directory):  # imported by the model tests: stand for it by an empty mixin
        folder, module = name.rpartition(".")[0], types.ModuleType(name)
        setattr(module, OTHER_FOLDERS[name], type(OTHER_FOLDERS[name], (), {}))
        sys.modules |= {folder: types.ModuleType(folder), name: module}
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


def main(directory, *arguments):
    os.environ |= {DIRECTORY: str(Path(directory).resolve()), "SYNTHESIZER_KERNEL": "0"}
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # as tests/conftest.py says
    for name in missing(Path(directory)):
        print(f"{directory} does not hold {name}: its tests are not run")
    options = ["-q", "--tb=short", "-rfE", "-W", "ignore", "-p", "no:cacheprovider"]
    apart = ["-c", os.devnull, "--rootdir", str(Path(__file__).parent)]  # not by our own settings
    return pytest.main([__file__, *apart, *options, *arguments])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
elif DIRECTORY in os.environ:
    globals().update(build_tests(Path(os.environ[DIRECTORY])))
