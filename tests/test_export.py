"""Models as programs without Python: torch.export, and ONNX Runtime, at any batch and length."""

import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.export import Dim
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from synthesizer_attention.audit.converted import Layer, build_converted
from synthesizer_attention.audit.export import export as write_onnx
from synthesizer_attention.audit.tables import HeadTables
from synthesizer_attention.errors import UserError
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


def tokenizer():
    words = {name: number for number, name in enumerate(["[PAD]", "[UNK]", *"abcdefghijklmno"])}
    made = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")


@pytest.mark.filterwarnings("ignore")
def test_a_converted_encoder_is_served_without_any_dot_product(tmp_path):
    """All heads are tables: the graph multiplies no two activations but weights and values."""
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(
        **sizes, vocab_size=17, intermediate_size=16, max_position_embeddings=MAX_LEN
    )
    layers = [Layer(0, "encoder.layer.0.attention.self", 2, 2, 8, False, None)]
    tables = HeadTables(range(2), 8)
    for parameter in tables.parameters():
        torch.nn.init.normal_(parameter)
    model = build_converted(BertModel(config).eval(), layers, {0: tables})
    model.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    said = []
    record = write_onnx(str(tmp_path / "model"), tmp_path / "out", said.append, lengths=[8])
    assert json.loads((tmp_path / "out" / "export.json").read_text())["output"] == "states"
    assert record["distance"] < 1e-5
    assert record["cosine_int8"] > 0.99
    assert [row["length"] for row in record["milliseconds"]] == [8]
    given = inputs("encoder", 3, 9, 1)
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    (found,) = session.run(["states"], {name: value.numpy() for name, value in given.items()})
    real = given["attention_mask"].bool()
    torch.testing.assert_close(
        torch.from_numpy(found)[real], model(**given)[0][real], atol=1e-5, rtol=1e-4
    )
    with pytest.raises(UserError, match="out is not an empty directory; name another --out"):
        write_onnx(str(tmp_path / "model"), tmp_path / "out", said.append)


@pytest.mark.filterwarnings("ignore")
def test_a_classifier_is_served_and_a_decoder_refused(tmp_path):
    pytest.importorskip("onnxruntime")
    for kind in ("encoder", "decoder"):
        build(kind, "random+dot").save_pretrained(tmp_path / kind)
        tokenizer().save_pretrained(tmp_path / kind)
    record = write_onnx(str(tmp_path / "encoder"), tmp_path / "out", print)
    assert (record["output"], record["max_len"]) == ("logits", MAX_LEN)
    assert record["distance"] < 1e-5
    assert record["cosine_int8"] > 0.98
    with pytest.raises(UserError, match="ForCausalLM; export takes encoders and classifiers of te"):
        write_onnx(str(tmp_path / "decoder"), tmp_path / "other", print)
