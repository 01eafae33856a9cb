"""Models as programs without Python: torch.export, and ONNX Runtime, at any batch and length."""

import numpy as np
import pytest
import torch
from torch.export import Dim

from synthesizer_attention.models import MODELS, SynthesizerConfig

MAX_LEN = 20
EVERY = (
    "dot,random,fixed_random,factorized_random:k=3,dense,factorized_dense,relative,random+dot,"
    "random@2|dot@2,lightconv:kernel=3,lightconv:kernel=7,dynamicconv:kernel=7"
)
SOME = "random+dot,lightconv:kernel=7"
SIZES = [(3, 9, 4), (1, 1, 1), (2, MAX_LEN, MAX_LEN)]  # batch, length, length of the targets


def build(kind, synthesis, positions="sinusoidal"):
    torch.manual_seed(0)
    layers = len(synthesis.split(","))
    config = SynthesizerConfig(
        kind=kind,
        synthesis=f"{synthesis},linformer:k=4" if kind != "decoder" else synthesis,
        decoder_synthesis=synthesis,
        vocab_size=17,
        d_model=16,
        num_heads=4,
        num_layers=layers if kind == "decoder" else layers + 1,
        num_decoder_layers=layers,
        d_ff=16,
        max_len=MAX_LEN,
        positions=positions,
    )
    model = MODELS[kind](config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)  # near-zero tables hide bugs
    return model


def inputs(kind, batch, length, target_length):
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1, : length // 2] = 0
    given = {"input_ids": torch.randint(2, 17, (batch, length)), "attention_mask": mask}
    if kind == "encoder_decoder":
        given["decoder_input_ids"] = torch.randint(2, 17, (batch, target_length))
    return given


def export(kind, model):
    batch, length = Dim("batch", min=1, max=64), Dim("length", min=1, max=MAX_LEN)
    shapes = {name: {0: batch, 1: length} for name in ("input_ids", "attention_mask")}
    if kind == "encoder_decoder":
        shapes["decoder_input_ids"] = {0: batch, 1: Dim("target_length", min=1, max=MAX_LEN)}
    return torch.export.export(model, (), inputs(kind, 2, 6, 5), dynamic_shapes=shapes)


def check(kind, model, run):
    for size in SIZES:
        given = inputs(kind, *size)
        found, expected = run(**given), model(**given).logits
        if kind == "decoder":  # what padding gives is nobody's concern
            real = given["attention_mask"].bool()
            found, expected = found[real], expected[real]
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-4)


def check_onnx(kind, model, program, folder):
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.onnx.export(program, dynamo=True, verbose=False).save(folder / "model.onnx")
    session = onnxruntime.InferenceSession(folder / "model.onnx")

    def run(**given):
        arrays = {name: np.asarray(value) for name, value in given.items()}
        return torch.from_numpy(session.run(None, arrays)[0])

    check(kind, model, run)


def test_an_encoder_decoder_exports_for_any_batch_and_length():
    """The decoder, without a mask, stopped at 'is_causal must be bool, not SymBool'."""
    model = build("encoder_decoder", "dot,dynamicconv:kernel=7")
    program = export("encoder_decoder", model)
    check("encoder_decoder", model, lambda **given: program.module()(**given).logits)


@pytest.mark.filterwarnings("ignore")
def test_onnx_runtime_gives_what_the_model_gives(tmp_path):
    model = build("decoder", SOME)
    program = export("decoder", model)
    check("decoder", model, lambda **given: program.module()(**given).logits)
    check_onnx("decoder", model, program, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", MODELS)
def test_every_variant_exports_to_onnx(kind, tmp_path):
    model = build(kind, EVERY)
    program = export(kind, model)
    check(kind, model, lambda **given: program.module()(**given).logits)
    check_onnx(kind, model, program, tmp_path)
