"""From an audit to a model folder in which replaced heads have no query and no key projection."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel

from synthesizer_attention.audit import load
from synthesizer_attention.audit.converted import Layer, build_converted
from synthesizer_attention.audit.cost import most_heads, random_texts
from synthesizer_attention.audit.examples import (
    METRICS,
    Examples,
    RunData,
    TuningRows,
    read_examples,
    token_rows,
    tuning_rows,
)
from synthesizer_attention.audit.hook import Hook, cause, tables_before
from synthesizer_attention.audit.media import media_of, read_media
from synthesizer_attention.audit.record import (
    RECORD,
    TABLES,
    Point,
    Say,
    check_tables,
    model_name,
    model_path,
    read_audit,
)
from synthesizer_attention.audit.tables import HeadTables
from synthesizer_attention.audit.tune import CHECKPOINT, Tuned, Tuning, tune
from synthesizer_attention.errors import UserError, fenced, plain
from synthesizer_attention.run.files import (
    CONVERTED,
    check_regular_file,
    files_of,
    read_regular,
    remove_leftovers,
    write_folder,
    write_record,
)

_NEAR = 0.01  # of the largest output: rounding moves less, another head's weights more
_AUTO = {  # by how the name of a class ends; its task, as the hub calls it
    "ForCausalLM": ("AutoModelForCausalLM", "text-generation"),
    "LMHeadModel": ("AutoModelForCausalLM", "text-generation"),
    "ForMaskedLM": ("AutoModelForMaskedLM", "fill-mask"),
    "ForConditionalGeneration": ("AutoModelForSeq2SeqLM", "text-generation"),
    "ForSequenceClassification": ("AutoModelForSequenceClassification", "text-classification"),
    "ForImageClassification": ("AutoModelForImageClassification", "image-classification"),
    "ForAudioClassification": ("AutoModelForAudioClassification", "audio-classification"),
}
_READERS = {
    load.TEXTS: ("tokenizer", "AutoTokenizer"),
    load.IMAGES: ("processor", "AutoImageProcessor"),
    load.SOUNDS: ("processor", "AutoFeatureExtractor"),
}


def convert(
    audit: Path,
    out: Path,
    say: Say,
    *,
    heads: int | None = None,
    keep: float | None = None,
    tuning: Tuning | None = None,
    texts: Path | None = None,
    command: str = "",
) -> int:
    """Write the converted model's folder; how many heads were replaced is returned.

    heads   so many; or as many as `keep` this share of the metric's value
    texts   to tune on
    """
    record = read_audit(audit)
    _check_out(out, is_tuned=tuning is not None)
    count, name = _count(record, heads, keep), model_path(record)
    model = load.load_model(name, record["metric"])
    check_tables(audit, record)
    if record.get("weights"):
        load.check_weights(name, record["weights"], audit)
    else:
        say(f"{audit / RECORD} names no sha256 of the weights: they cannot be compared")
    now = load.hash_readers(name)
    for file, before in record.get("readers", {}).items():
        if now.get(file) != before:
            say(f"{file} of {name} was changed since the audit: the new model gets it as it is now")
    reader = load.load_reader(name, model)
    layers = [Layer(**layer) for layer in record["layers"]]
    chosen = read_tables(audit, record, record["order"][:count])
    try:
        converted = build_converted(model, layers, chosen)
        if reader.kind == load.TEXTS:  # code that needs all heads fails before anything is written
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                converted(**{key: ids[:1] for key, ids in random_texts(converted, 2).items()})
    except UserError:
        raise
    except Exception as error:  # whatever an architecture's code says
        named = {layer.name for layer in layers} <= {name for name, _ in model.named_modules()}
        if not named or not record.get("weights"):
            raise UserError(
                f"{audit} is an audit of another model than {name} ({cause(error)}); audit this one"
            ) from None
        raise UserError(
            f"a {type(model).__name__} cannot be run with heads left out of it ({cause(error)}); "
            "audit works, convert does not"
        ) from None
    tuned = None
    if tuning is not None:
        rows = _rows(texts, record, model, reader)
        out.mkdir(parents=True, exist_ok=True)
        tuned = tune(model, converted, rows, tuning, say, out)

    def fill(folder: Path) -> None:
        converted.save_pretrained(folder)
        reader.save(folder)
        card = model_card(record, count, out.name, tuned, command)
        (folder / "README.md").write_text(card, encoding="utf-8")
        write_record(folder / CONVERTED, {"command": command}, files_of(folder))

    remove_leftovers(out.resolve().parent, f"{out.resolve().name}.")
    write_folder(out, fill, lambda: _clear(out))
    return count


def why_refused(hook: Hook, examples: Examples, max_len: int, kind: str) -> str:
    """Why convert will refuse a model, or nothing: it is tried, and answers as its hook does.

    One head is left out of the first layer, and all of the last.
    """
    (chosen, inputs), *_ = examples.batches
    few = replace(examples, batches=[(list(range(len(chosen))), inputs)])
    places = [place for place, layer in enumerate(hook.layers) if layer.dots]
    first, last = (hook.layers[places[end]].dots for end in (0, -1))
    heads = {places[0]: first[:1], places[-1]: last}
    tables = {place: HeadTables(each, max_len, kind) for place, each in heads.items()}
    name = type(hook.model).__name__
    try:
        with torch.random.fork_rng(devices=[]):
            converted = build_converted(hook.model, hook.layers, tables, share=True)
        hook.tables, found = tables, few.run(converted)
        expected = few.run(hook.model)
    except UserError as error:
        return str(error)
    except Exception as error:  # whatever an architecture's code says
        return f"a {name} cannot be run with heads left out of it ({cause(error)})"
    finally:
        hook.tables = {}
    if float((found - expected).abs().max()) > _NEAR * float(expected.abs().max()):
        return f"a {name} computes something else with heads left out of it"
    return ""


def _check_out(out: Path, *, is_tuned: bool) -> None:
    """Refuse a folder that holds anything but a tuning that was stopped."""
    if not os.path.lexists(out):
        return
    there = list(out.iterdir()) if out.is_dir() else [out]
    if any(not is_tuned or not _is_tuning(path) for path in there):
        raise UserError(f"{out} is not an empty directory; name another --out")


def _is_tuning(path: Path) -> bool:
    """Whether a file is a tuning's checkpoint, or half of one: ours, safetensors' beneath it."""
    return path.name == CHECKPOINT or path.name.startswith((f".{CHECKPOINT}.", ".tmp"))


def _clear(out: Path) -> None:
    """Make a folder empty that held a tuning."""
    for path in out.iterdir() if out.is_dir() else ():
        if _is_tuning(path):
            path.unlink()


def _rows(
    texts: Path | None, record: dict[str, Any], model: PreTrainedModel, reader: load.Reader
) -> TuningRows:
    """The rows to tune on: the user's texts or files, or an audited run's train split."""
    if texts is None:
        run = load.run_of(model_path(record))
        if run is None:
            raise UserError(f"--tune needs {reader.kind} to tune on; name them with --texts")
        return token_rows(RunData(run, record["metric"]).rows(model), reader.tokenizer)
    metric = "loss" if load.reads_targets(model) else "agreement"
    if reader.kind == load.TEXTS:
        examples = read_examples(texts, metric)
        rows = tuning_rows(examples, model, reader.tokenizer, record["max_len"])
        return token_rows(rows, reader.tokenizer)
    files = read_media(texts, metric, reader)
    media, _ = media_of(files, metric, model, reader)
    return TuningRows(
        [1] * len(files), lambda chosen: media.inputs([files[i] for i in chosen], tuning=True)
    )


def read_tables(
    path: Path, record: dict[str, Any], heads: Sequence[Sequence[int]]
) -> dict[int, HeadTables]:
    """The tables that an audit left for these (layer, head)s, by layer."""
    file = path / TABLES
    found = {}
    try:
        check_regular_file(file)
        tensors = load_file(file)
        for place in sorted({layer for layer, _ in heads}):
            size = record["layers"][place]["num_heads"]
            with torch.device("meta"):  # sizes are compared before memory is taken
                whole = HeadTables(range(size), record["max_len"], record["table"])
            state = {name: tensors[f"{place}.{name}"] for name, _ in whole.named_parameters()}
            whole.load_state_dict(state, assign=True)
            found[place] = whole.pick(sorted(head for layer, head in heads if layer == place))
            found[place].requires_grad_(True)
    except (UserError, PermissionError):
        raise
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise UserError(
            f"{file} does not fit {RECORD} ({cause(error)}); run synthesizer audit again"
        ) from None
    return found


def _count(record: dict[str, Any], heads: int | None, keep: float | None) -> int:
    total = len(record["order"])
    if (heads is None) == (keep is None):
        raise UserError("give either --heads N or --keep SHARE, to say how many heads to replace")
    if heads is not None:
        if not 1 <= heads <= total:
            more = " that are dot products" if _tables_before(record) else ""
            raise UserError(f"--heads is {heads}; the model has {total}{more}: give 1 to {total}")
        return heads
    keep = float(keep or 0)
    if not 0 < keep < 1:
        raise UserError(f"--keep is {keep}; give the share of quality to keep, as in 0.99")
    points = [Point(**point) for point in record["curve"]]
    best = most_heads(points, (1 - keep) * abs(record["value"]))
    if not best.replaced:
        raise UserError(
            f"the audit shows no head that can go at --keep {keep}; give a smaller share, "
            "or --heads N"
        )
    return best.replaced


def _tables_before(record: dict[str, Any]) -> int:
    return tables_before([Layer(**layer) for layer in record["layers"]])


def _given(model: str, task: str) -> dict[str, str]:
    """The license and the task that the original's card names; by default unknown and its class's.

    No other line of it holds for the new model.
    """
    told: dict[str, Any] = {}
    card = Path(model, "README.md")
    if card.is_file():
        with suppress(Exception):  # whatever somebody's front matter is
            told = ModelCard(read_regular(card)).data.to_dict()
    own = {key: told[key] for key in ("license", "license_name", "license_link", "pipeline_tag")
           if isinstance(told.get(key), str)}  # fmt: skip
    return {"license": "unknown", "pipeline_tag": task} | own


def model_card(
    record: dict[str, Any], count: int, name: str, tuned: Tuned | None, command: str
) -> str:
    """The folder's README, with the front matter that the hub reads."""
    base, metric, reads = model_name(record), record["metric"], record.get("reads", load.TEXTS)
    architecture = str(record.get("architecture", ""))
    found = (pair for end, pair in _AUTO.items() if architecture.endswith(end))
    auto, task = next(found, ("AutoModel", "feature-extraction"))
    if reads == load.SOUNDS and auto == "AutoModelForSeq2SeqLM":
        auto, task = "AutoModelForSpeechSeq2Seq", "automatic-speech-recognition"
    if reads == load.IMAGES and auto == "AutoModel":
        task = "image-feature-extraction"
    task = "sentence-similarity" if METRICS[metric].has_pairs else task
    point = next((p for p in record["curve"] if p["replaced"] == count), None)
    results = []
    said = f"{count} heads are no point of the audit's curve, so nothing was measured of them."
    if tuned is not None:
        said = (
            f"Tuned for {len(tuned.losses)} steps after conversion: on held-out texts the distance "
            f"from the original went from {tuned.before:.3g} to {tuned.after:.3g}; {metric} was "
            "not measured since."
        )
    elif point is not None:
        data = record.get("run") or record["data"]
        value = round(point["value"], 4)
        results.append(EvalResult(task, data, record["data"], metric, value, verified=False))
        said = (
            f"{metric} {point['value']:.4g} on {record['num_judge']} examples of "
            f"{plain(record['data'])}, the original's {record['value']:.4g}; the loss of "
            f"{point['cost']:.3g} has the interval {point['low']:.3g} to {point['high']:.3g}."
        )
    front = ModelCardData(
        library_name="transformers", base_model=base, tags=["synthesizer", "attention"],
        model_name=name, eval_results=results or None, **_given(model_path(record), task),
    )  # fmt: skip
    where = "synthesis" if record.get("model_type") == "synthesizer" else "replaced"
    by = "distance" if record["table"] == "relative" else "position"
    variable, reader = _READERS.get(reads, _READERS[load.TEXTS])
    before = _tables_before(record)
    heads = f"{before + count} of {before + len(record['order'])}"
    return f"""---
{front}
---
# {plain(base)}, {heads} heads as tables

In the heads that `config.json` names under `{where}`, attention is a learned table by {by}:
they have no query and no key projection. {said}

```python
import synthesizer_attention.models  # registers the classes; without it the folder cannot be loaded
from transformers import {auto}, {reader}

model = {auto}.from_pretrained("{name}")
{variable} = {reader}.from_pretrained("{name}")
```

Made by

{fenced(command or "synthesizer convert")}
"""
