"""One audit, from a model and examples to an answer.

audit.json           what was measured: heads, ranking, curve, answer
tables.safetensors   each head's average attention, as logits
report.html          the same as a page
measured.jsonl       of an unfinished audit: what it has measured so far
"""

import json
import math
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save
from torch import Tensor
from transformers import PreTrainedModel

import synthesizer
from synthesizer.audit.averages import Average, Explained, explain, measure_averages
from synthesizer.audit.convert import build_converted
from synthesizer.audit.cost import (
    Auditor,
    HeadCost,
    checkpoints_of,
    most_heads,
    sentence,
    why_ended,
)
from synthesizer.audit.examples import Examples, Outcome
from synthesizer.audit.hook import Hook, Layer, tables_before
from synthesizer.audit.load import IMAGES, TEXTS, attend_fast
from synthesizer.audit.measured import Measured, Say, fingerprint
from synthesizer.audit.media import thumbnail
from synthesizer.audit.page import audit_page
from synthesizer.audit.record import PAGE, RECORD, TABLES, checksum
from synthesizer.audit.size import measure_speed, num_timed, random_texts, size_with
from synthesizer.audit.subject import (
    Asked,
    Subject,
    check_asked,
    check_tables,
    check_unfinished,
    read_subject,
    timed_lengths,
)
from synthesizer.audit.weights import hash_readers, run_of
from synthesizer.errors import UserError
from synthesizer.experiment.disk import write_atomically
from synthesizer.experiment.lock import locked
from synthesizer.experiment.run import make_folder, provenance, remove_leftovers, write_text
from synthesizer.manifest import sha256

SHOWN = 5  # examples whose outputs moved farthest


def audit(asked: Asked, say: Say) -> dict[str, Any]:
    """Measure which heads need their dot products; leave a record, tables and a page in out.

    An audit that was stopped goes on behind what it has measured.
    """
    check_asked(asked)
    subject = read_subject(asked)
    timed = _timed(asked, subject)
    check_tables(asked, subject.model)
    hook = Hook(subject.model)
    with hook:
        hook.discover(subject.judge.probe(subject.model))
    if subject.left:
        named = ", ".join(f"{name} ({spec})" for name, spec in subject.left.items())
        say(f"left as they are: {named}")
    make_folder(asked.out)
    with locked(asked.out, "auditing", say):
        check_unfinished(asked.out)  # the process that was waited for may have finished it
        remove_leftovers(asked.out)
        with hook:
            record = _record(asked, hook, subject)
            count = len(hook.layers)
            say(f"{count} layers of self-attention; averaging the attention of each head")
            averages = measure_averages(hook, subject.fit.inputs(subject.model), subject.max_len)
            auditor = _auditor(asked, subject, hook, averages, say)
            record |= _measure(asked, subject, auditor, averages, say)
        record["sizes"] = sizes(record)
        say("timing forward passes")
        record["speed"], record["untimed"] = _speeds(subject.model, record, auditor, timed)
        if record["untimed"]:
            say(f"speed was not measured: {record['untimed']}")
        _write(asked.out, record, averages, asked.table)
        auditor.measured.finish()
    return record


def _auditor(
    asked: Asked, subject: Subject, hook: Hook, averages: list[Average], say: Say
) -> Auditor:
    """An auditor that remembers what the same command has measured before it was stopped.

    Averages tell one model's weights from others'. On another number of threads sums are rounded
    otherwise, and measurements would be mixed.
    """
    auditor = Auditor(hook, averages, asked.table)
    facts = {name: str(value) for name, value in asdict(asked).items()}
    for name in ("out", "command", "lengths"):
        del facts[name]
    parameters = [p for tables in auditor.whole for p in tables.parameters()]
    tensors = [t for part in (subject.rank, subject.judge) for t in part.tensors()]
    facts |= {
        "commit": str(provenance()["commit"]),
        **_versions(),
        "number of threads": str(torch.get_num_threads()),
        "checksum of texts": str(fingerprint(tensors)),
        "checksum of averages": str(fingerprint(parameters)),
        "sha256 of weights": " ".join(subject.weights.values()),
        "sha256 of config and tokenizer": " ".join(hash_readers(asked.model).values()),
    }
    auditor.measured = Measured(asked.out, facts)
    if auditor.measured.num_known:
        say(f"going on behind {auditor.measured.num_known} measurements")
    return auditor


def _measure(
    asked: Asked, subject: Subject, auditor: Auditor, averages: list[Average], say: Say
) -> dict[str, Any]:
    """Rank the heads, walk down the ranking, and answer."""
    rank, judge = subject.rank, subject.judge
    for examples in (rank, judge):
        _check_finite(auditor.original(examples), examples)
    explained = explain(auditor.hook, rank.inputs(subject.model), averages)
    before = tables_before(auditor.hook.layers)
    if before:
        say(f"{before} heads are tables already, and stay as they are")
    say(f"replacing each of {len(auditor.heads)} heads alone")
    costs = auditor.costs(rank, say=say)
    order = auditor.walk(rank, costs, asked.rankings, say)
    points = auditor.curve(judge, order, checkpoints_of(len(order), asked.steps), say)
    margin = (1 - asked.keep) * abs(points[0].value)
    best = most_heads(points, margin)
    halves = sorted({len(order) // 2, best.replaced, 2 * len(order) // 3} - {0})
    control = auditor.curve(judge, auditor.shuffled(asked.seed), halves, say, "random")
    moved = auditor.most_moved(judge, order[: best.replaced], SHOWN) if best.replaced else []
    for example in moved if subject.reads == IMAGES else ():
        example["image"] = thumbnail(subject.files[example["place"]])
    return {
        "left": subject.left,
        "value": points[0].value,
        "margin": margin,
        "curve": [point.as_dict() for point in points],
        "control": [point.as_dict() for point in control],
        "order": order,
        "most_moved": moved,
        "heads": _heads(costs, explained),
        "answer": best.as_dict(),
        "sentence": sentence(best, len(order), margin, subject.metric, before),
        "ended": why_ended(points, best, margin, subject.metric),
    }


def sizes(record: dict[str, Any]) -> list[dict[str, int]]:
    """Parameters, FLOPs and cache at every point of a record's curve."""
    layers = [Layer(**layer) for layer in record["layers"]]
    length = record["max_len"]
    found = [
        size_with(layers, record["d_model"], length, record["order"][: point["replaced"]])
        for point in record["curve"]
    ]
    return [asdict(size) for size in found]


def _speeds(
    model: PreTrainedModel,
    record: dict[str, Any],
    auditor: Auditor,
    timed: dict[int, dict[str, Tensor]],
) -> tuple[list[Any], str]:
    """Time the original beside models along the curve: thirds of it, and the answer.

    Where that cannot be done nothing is timed, and why is said: all else has been measured.
    """
    models, total = {0: model}, len(record["order"])
    counts = {total // 3, 2 * total // 3, record["answer"]["replaced"], total} - {0}
    try:
        for count in sorted(counts if timed else ()):
            tables = auditor.tables(record["order"][:count])
            models[count] = build_converted(model, auditor.hook.layers, tables, share=True)
        attend_fast(model)
        return measure_speed(models, timed), ""
    except Exception as error:  # of an architecture that can be audited and not converted
        cause = (str(error).strip() or repr(error)).splitlines()[0][:200]
        return [], f"{type(model).__name__} cannot be run with heads left out of it ({cause})"


def _check_finite(original: Outcome, examples: Examples) -> None:
    """Refuse a model that nothing can be compared with."""
    value = examples.value(original.statistics.sum(0))
    wrong = int((~original.outputs.isfinite()).any(-1).sum())
    if wrong or not math.isfinite(value):
        value = value if not math.isfinite(value) else math.nan
        raise UserError(
            f"the model's own {examples.metric} is {value} ({wrong} of {len(original.outputs)} "
            "outputs are no numbers); check its weights, its config.json and the data"
        )


def _timed(asked: Asked, subject: Subject) -> dict[int, dict[str, Tensor]]:
    """Inputs to time, by length: random texts, or the first images or sounds."""
    model = subject.model
    if subject.reads == TEXTS:
        return {length: random_texts(model, length) for length in timed_lengths(asked, model)}
    inputs, count = subject.judge.probe(model), num_timed(model, subject.max_len)
    return {subject.max_len: {name: value[:count] for name, value in inputs.items()}}


def _record(asked: Asked, hook: Hook, subject: Subject) -> dict[str, Any]:
    """What was measured, on what, with what."""
    fit, rank, judge = subject.fit, subject.rank, subject.judge
    config, run = hook.model.config, run_of(asked.model)
    name = "" if run is None else run.recipe().name
    data, fitted = f"{name}, its test split", "its train split"
    if asked.data is not None:
        data, fitted = asked.data.name, asked.fit.name if asked.fit else "half of the rows"
    return {
        "model": asked.model,
        "path": str(Path(asked.model).resolve()) if Path(asked.model).exists() else "",
        "weights": subject.weights,
        "readers": hash_readers(asked.model),
        "run": name,
        "architecture": type(hook.model).__name__,
        "model_type": config.model_type,
        "d_model": config.get_text_config().hidden_size,
        "data": data,
        "fit": fitted,
        "reads": subject.reads,
        "metric": subject.metric,
        "higher_is_better": judge.higher_is_better,
        "keep": asked.keep,
        "table": asked.table,
        "max_len": subject.max_len,
        "num_fit": len(fit),
        "num_rank": len(rank),
        "num_judge": len(judge),
        "num_fit_rows": fit.drawn_from,
        "num_judge_rows": judge.drawn_from,
        "num_cut": fit.num_cut + judge.num_cut,
        "seed": asked.seed,
        "layers": [asdict(layer) for layer in hook.layers],
        "parameters": sum(p.numel() for p in hook.model.parameters()),
        "command": asked.command,
        "commit": provenance()["commit"],
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    return {
        "synthesizer": synthesizer.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def _heads(costs: list[HeadCost], explained: list[list[Explained]]) -> list[dict[str, Any]]:
    """Every head: what it costs and what its attention depends on, cheapest first."""
    return [{**asdict(cost), **asdict(explained[cost.layer][cost.head])} for cost in costs]


def _write(out: Path, record: dict[str, Any], averages: list[Average], kind: str) -> None:
    tensors = {
        f"{place}.{name}": parameter.detach().contiguous()
        for place, average in enumerate(averages)
        for name, parameter in average.tables(kind).named_parameters()
    }
    write_atomically(out / TABLES, lambda path: _fill(path, save(tensors)))
    record["tables_sha256"] = sha256(out / TABLES)
    record["checksum"] = checksum(json.loads(json.dumps(record)))
    text = json.dumps(record, indent=1)
    write_text(out / PAGE, audit_page(json.loads(text), out / TABLES))
    write_text(out / RECORD, text)  # last: with it, the audit is finished


def _fill(path: Path, content: bytes) -> None:
    path.write_bytes(content)
