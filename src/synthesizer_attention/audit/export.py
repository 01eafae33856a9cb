"""An encoder or a classifier as ONNX, in float32 and int8, with its outputs compared.

    out/model.onnx         the graph in float32
    out/model-int8.onnx    8-bit weights, activations quantized as they come
    out/export.json        sizes, distances from the model, milliseconds, and how it was made
    out/tokenizer.json ... what turns texts into its inputs

Any batch and length: (B, T) ids and mask give (B, T, D) states or (B, C) logits. A decoder
would need its cache, which no graph here holds.
"""

import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers import PreTrainedModel

from synthesizer_attention.audit import load
from synthesizer_attention.audit.cost import MOST_TOKENS, ROUNDS
from synthesizer_attention.audit.record import Say
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.files import files_of, write_folder, write_record
from synthesizer_attention.training.meter import time_in_turn

WHOLE, SMALL, RECORD = "model.onnx", "model-int8.onnx", "export.json"
_NEAR = 1e-3  # of the largest output: rounding moves less
_CPU = torch.device("cpu")
Inputs = dict[str, Tensor]
Run = Callable[[Inputs], Tensor]


class _Output(nn.Module):
    """A model that returns its first output alone."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        found: Tensor = self.model(**inputs)[0]
        return found


def export(
    model: str,
    out: Path,
    say: Say,
    *,
    lengths: Sequence[int] = (),
    beside: str | None = None,
    command: str = "",
) -> dict[str, Any]:
    """Write the folder; its record is returned.

    lengths   time forward passes of so many tokens
    beside    another model, timed in the same rounds
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is not an empty directory; name another --out")
    record: dict[str, Any] = {"model": model, "command": command}

    def fill(folder: Path) -> None:
        runs, draw = _write(model, folder, record, say)
        with TemporaryDirectory() as other:
            if beside is not None:
                record["beside"] = {"model": beside}
                theirs, _ = _write(beside, Path(other), record["beside"], say)
                runs |= {f"{name} beside": run for name, run in theirs.items()}
            if lengths:
                record["threads"] = torch.get_num_threads()
                record["milliseconds"] = _measure(runs, draw, lengths)
        write_record(folder / RECORD, record, files_of(folder))

    write_folder(out, fill)
    return record


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters warn of what they skip and advise on shapes."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _write(
    name: str, folder: Path, record: dict[str, Any], say: Say
) -> tuple[dict[str, Run], Callable[[int, int], Inputs]]:
    """Write both graphs of a model and its tokenizer; what runs each, and what draws inputs."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  torch.onnx needs it
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ModuleNotFoundError as error:
        raise UserError(
            f"export needs {error.name}, which is not installed; "
            "run pip install 'synthesizer-attention[export]'"
        ) from None
    model = load.load_model(name, None, audited=False)
    if load.reads_targets(model) or load.is_causal(model) or load.what_is_read(model) != load.TEXTS:
        raise UserError(
            f"{name} is a {type(model).__name__}; export takes encoders and classifiers of texts"
        )
    load.attend_fast(model)
    reader = load.load_reader(name, model)
    reader.save(folder)
    names = ["input_ids", "attention_mask"]
    if "token_type_ids" in reader.tokenizer.model_input_names:
        names += {"token_type_ids"} & inspect.signature(model.forward).parameters.keys()
    most: int = load.num_positions(model) or getattr(model.config, "max_len", None) or 512

    def draw(batch: int, length: int) -> Inputs:
        vocabulary = model.config.get_text_config().vocab_size
        drawn = {each: torch.zeros(batch, length, dtype=torch.long) for each in names}
        drawn["input_ids"] = torch.randint(vocabulary, (batch, length))
        drawn["attention_mask"] = torch.ones(batch, length, dtype=torch.long)
        return drawn

    axes = {0: Dim("batch", min=1, max=2**16), 1: Dim("length", min=1, max=most)}
    output = "logits" if type(model).__name__.endswith(load.CLASSIFIERS) else "states"
    wrapped, shapes = _Output(model).eval(), dict.fromkeys(names, axes)
    with _quiet(), torch.no_grad():
        program = torch.export.export(wrapped, (), draw(2, 6), dynamic_shapes=shapes)
        graph = torch.onnx.export(program, dynamo=True, verbose=False, output_names=[output])
        assert graph is not None
        graph.save(folder / WHOLE)
        kind, shapeless = QuantType.QInt8, onnx.load(folder / WHOLE)
        del shapeless.graph.value_info[:]  # the quantizer infers them, and stops where they differ
        quantize_dynamic(shapeless, folder / SMALL, per_channel=True, weight_type=kind)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()

    def runner(file: str) -> Run:
        session = onnxruntime.InferenceSession(str(folder / file), options)

        def run(inputs: Inputs) -> Tensor:
            arrays = {each: value.numpy() for each, value in inputs.items()}
            return torch.from_numpy(session.run(None, arrays)[0])

        return run

    def plain(inputs: Inputs) -> Tensor:
        with torch.no_grad():
            return wrapped(**inputs)

    runs = {"PyTorch": plain, "ONNX": runner(WHOLE), "int8": runner(SMALL)}
    record |= _compare(runs, draw, most)
    size = {each: (folder / each).stat().st_size for each in (WHOLE, SMALL)}
    record |= {"inputs": names, "output": output, "max_len": most, "bytes": size}
    if record["distance"] > _NEAR:
        raise UserError(
            f"the graph of {name} gives other outputs than the model (by {record['distance']:.2g} "
            "of the largest); this is a bug: please report it"
        )
    say(
        f"{name}: {WHOLE} {size[WHOLE] / 1e6:.1f} MB, within {record['distance']:.1g} of the "
        f"model's largest output; {SMALL} {size[SMALL] / 1e6:.1f} MB, "
        f"cosine {record['cosine_int8']:.4f} with the model's outputs"
    )
    return runs, draw


def _compare(
    runs: Mapping[str, Run], draw: Callable[[int, int], Inputs], most: int
) -> dict[str, float]:
    """How far both graphs are from the model on random texts, padded on the right.

    distance      the largest difference of a real token's output, as a share of the largest output
    cosine_int8   the least mean cosine of a batch between outputs and the model's
    """
    distance, cosine = 0.0, 1.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for batch, length in ((3, 9), (1, 1), (2, most), (5, max(1, most // 3))):
            inputs = draw(batch, length)
            inputs["attention_mask"][-1, (length + 1) // 2 :] = 0
            expected, found, small = (runs[name](inputs) for name in ("PyTorch", "ONNX", "int8"))
            if expected.dim() == 3:
                real = inputs["attention_mask"].bool()
                expected, found, small = (each[real] for each in (expected, found, small))
            largest = float((expected - found).abs().max()) / float(expected.abs().max())
            distance = max(distance, largest)
            near = nn.functional.cosine_similarity(small, expected, dim=-1).mean()
            cosine = min(cosine, float(near))
    return {"distance": distance, "cosine_int8": cosine}


def _measure(
    runs: Mapping[str, Run], draw: Callable[[int, int], Inputs], lengths: Sequence[int]
) -> list[dict[str, Any]]:
    """Milliseconds of a forward pass over a batch of each length, best of ROUNDS, all in turn."""
    rows = []
    for length in lengths:
        inputs = draw(max(1, MOST_TOKENS // length), length)
        rounds = time_in_turn([partial(run, inputs) for run in runs.values()], ROUNDS, _CPU)
        best = [1000 * min(seconds) for seconds in zip(*rounds, strict=True)]
        batch = len(inputs["input_ids"])
        rows.append({"length": length, "batch": batch, **dict(zip(runs, best, strict=True))})
    return rows
