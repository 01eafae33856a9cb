"""One audit, from a model and texts to an answer.

    audit.json           what was measured: heads, ranking, curve, answer
    tables.safetensors   each head's average attention, as logits
    report.html          the same as a page

Rows that judge are not those that fit: half of the data averages and ranks, the other half makes
the curve, unless --fit names a file of its own. A run of ours has data of its own: its train
split fits, its test split judges.
"""

import json
import platform
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from transformers import PreTrainedModel

import synthesizer
from synthesizer.audit.averages import Average, Explained, explain, measure_averages
from synthesizer.audit.convert import build_converted
from synthesizer.audit.cost import (
    Auditor,
    HeadCost,
    Say,
    checkpoints_of,
    most_heads,
    sentence,
    why_ended,
)
from synthesizer.audit.encode import encode
from synthesizer.audit.examples import METRICS, Example, Examples, read_examples
from synthesizer.audit.hook import Hook, Layer, tables_before
from synthesizer.audit.load import (
    attend_fast,
    check_metric,
    guess_metric,
    load_model,
    load_tokenizer,
    num_positions,
    run_of,
    settle_padding,
)
from synthesizer.audit.page import audit_page
from synthesizer.audit.record import PAGE, RECORD, TABLES, read_audit
from synthesizer.audit.run_data import RunData
from synthesizer.audit.size import LENGTHS, measure_speed, size_with
from synthesizer.errors import UserError
from synthesizer.experiment.run import provenance, write_atomically
from synthesizer.models.converted import replaced_before
from synthesizer.models.table_heads import is_own, other_layers
from synthesizer.models.tables import KINDS

SHOWN = 5  # examples whose outputs moved farthest
LONGEST = 512  # tokens of a text, where neither the user nor the model says less


@dataclass(frozen=True)
class Asked:
    """What the user asked for."""

    model: str
    data: Path | None  # None: the run's own
    out: Path
    metric: str | None = None
    keep: float = 0.99
    fit: Path | None = None
    max_len: int | None = None
    examples: int | None = None  # that judge
    fit_examples: int = 1000  # whose attention is averaged
    rank_examples: int = 100
    steps: int = 12  # of the curve
    rankings: int = 3  # how often the ranking is measured
    table: str = "relative"
    lengths: tuple[int, ...] = ()  # of timed texts
    seed: int = 0
    command: str = ""


def audit(asked: Asked, say: Say) -> dict[str, Any]:
    """Measure which heads need their dot products; leave a record, tables and a page in out."""
    _check(asked)
    model = load_model(asked.model, asked.metric)
    tokenizer = load_tokenizer(asked.model)
    settle_padding(model, tokenizer)
    metric = asked.metric or guess_metric(model)
    check_metric(metric, model)
    lengths = _lengths(asked, model)
    if asked.data is None:
        max_len = max(model.config.max_len, model.config.decoder_max_len)
        fit, rank, judge = _run_parts(asked, metric)
    else:
        max_len = _max_len(asked, model)
        fitting, judging = _split(asked, asked.data, metric)
        fit, rank, judge = (
            encode(rows, metric, model, tokenizer, max_len, limit)
            for rows, limit in (
                (fitting, asked.fit_examples),
                (fitting, asked.rank_examples),
                (judging, asked.examples),
            )
        )
    left = _left(model)
    _check_tables(asked, model)
    if left:
        say(f"left as they are: {', '.join(f'{name} ({left[name]})' for name in left)}")
    with Hook(model) as hook:
        hook.discover(judge.probe(model))
        say(f"{len(hook.layers)} layers of self-attention; averaging the attention of each head")
        averages = measure_averages(hook, fit.inputs(model), max_len)
        explained = explain(hook, rank.inputs(model), averages)
        auditor = Auditor(hook, averages, asked.table)
        before = tables_before(hook.layers)
        if before:
            say(f"{before} heads are tables already, and stay as they are")
        say(f"replacing each of {len(auditor.heads)} heads alone")
        costs = auditor.costs(rank, say=say)
        order = auditor.walk(rank, costs, asked.rankings, say)
        counts = checkpoints_of(len(auditor.heads), asked.steps)
        points = auditor.curve(judge, order, counts, say)
        original = points[0].value
        margin = (1 - asked.keep) * abs(original)
        best = most_heads(points, margin)
        halves = sorted({len(order) // 2, best.replaced, 2 * len(order) // 3} - {0})
        control = auditor.curve(judge, auditor.shuffled(asked.seed), halves, say)
        moved = auditor.most_moved(judge, order[: best.replaced], SHOWN) if best.replaced else []
    record = _record(asked, hook, metric, max_len, (fit, rank, judge))
    record |= {
        "left": left,
        "value": original,
        "margin": margin,
        "curve": [point.as_dict() for point in points],
        "control": [{**point.as_dict(), "order": "random"} for point in control],
        "order": order,
        "most_moved": moved,
        "heads": _heads(costs, explained),
        "answer": best.as_dict(),
        "sentence": sentence(best, len(order), margin, metric, before),
        "ended": why_ended(points, best, margin, metric),
    }
    record["sizes"] = sizes(record)
    say("timing forward passes")
    record["speed"] = _speeds(model, record, auditor, lengths)
    _write(asked.out, record, averages, asked.table)
    return record


def _left(model: PreTrainedModel) -> dict[str, str]:
    """Layers that are no dot product and are left as they are, by name, and their specs."""
    if is_own(model):
        return other_layers(model)
    before = replaced_before(model).items()
    return {name: str(facts["spec"]) for name, facts in before if "spec" in facts}


def _check_tables(asked: Asked, model: PreTrainedModel) -> None:
    """New tables of a converted model are of the kind of those it has."""
    kinds = {facts["kind"] for facts in replaced_before(model).values() if "kind" in facts}
    if kinds - {asked.table}:
        (kind,) = kinds - {asked.table}
        raise UserError(
            f"--table is {asked.table} and the tables of {asked.model} are {kind}; give --table "
            f"{kind}, or audit the model that it was made of"
        )


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
    model: PreTrainedModel, record: dict[str, Any], auditor: Auditor, lengths: list[int]
) -> list[Any]:
    """Time the original beside models along the curve: thirds of it, and the answer."""
    models, total = {0: model}, len(record["order"])
    counts = {total // 3, 2 * total // 3, record["answer"]["replaced"], total} - {0}
    try:
        for count in sorted(counts if lengths else ()):
            tables = auditor.tables(record["order"][:count])
            models[count] = build_converted(model, auditor.hook.layers, tables, share=True)
    except UserError:  # an architecture that can be audited and not converted
        return []
    attend_fast(model)
    return measure_speed(models, lengths)


def _lengths(asked: Asked, model: PreTrainedModel) -> list[int]:
    """The lengths to time: the user's, or those of LENGTHS that the model has positions for."""
    limit = num_positions(model)
    longer = [length for length in asked.lengths if limit is not None and length > limit]
    if longer:
        raise UserError(
            f"--length is {longer[0]} and the model has positions for {limit} tokens; "
            f"give at most {limit}"
        )
    return [n for n in asked.lengths or LENGTHS if n <= (limit or LONGEST) or asked.lengths]


def _check(asked: Asked) -> None:
    if asked.metric is not None and asked.metric not in METRICS:
        raise UserError(f"--metric is {asked.metric!r}; choose from {', '.join(METRICS)}")
    if asked.table not in KINDS:
        raise UserError(f"--table is {asked.table!r}; choose from {', '.join(KINDS)}")
    if asked.data is None:
        if run_of(asked.model) is None:
            raise UserError(
                f"{asked.model} is not a run of synthesizer train, so there are no data to measure "
                "on; give a file of texts behind it"
            )
        for name, given in (("--fit", asked.fit), ("--max-len", asked.max_len)):
            if given is not None:
                raise UserError(
                    f"{name} is for the texts of a file, and a run's own data are split and cut as "
                    f"in training; leave it out, or name a file of texts"
                )
    if not 0 < asked.keep < 1:
        raise UserError(f"--keep is {asked.keep}; give the share of quality to keep, as in 0.99")
    if (asked.out / RECORD).exists():
        raise UserError(f"{asked.out} holds an audit already; name another --out, or remove it")
    if asked.out.exists() and not asked.out.is_dir():
        raise UserError(f"{asked.out} is not a directory; name another --out")


def _max_len(asked: Asked, model: PreTrainedModel) -> int:
    limit = num_positions(model)
    if asked.max_len is None:
        return min(LONGEST, limit or LONGEST)
    if limit is not None and asked.max_len > limit:
        raise UserError(
            f"--max-len is {asked.max_len} and the model has positions for {limit} tokens; "
            f"give at most {limit}: longer texts are cut there, and counted"
        )
    return asked.max_len


def _run_parts(asked: Asked, metric: str) -> tuple[Examples, Examples, Examples]:
    """What fits, ranks and judges, of a run's own data."""
    run = run_of(asked.model)
    assert run is not None
    data = RunData(run, metric)
    fit, rank = data.fitting(asked.fit_examples), data.fitting(asked.rank_examples)
    return fit, rank, data.judging(asked.examples)


def _split(asked: Asked, data: Path, metric: str) -> tuple[list[Example], list[Example]]:
    """The rows that fit and the rows that judge."""
    if asked.fit is not None:
        fitting = read_examples(asked.fit, metric)
        return _shuffled(fitting, metric, asked.seed), read_examples(data, metric)
    rows = _shuffled(read_examples(data, metric), metric, asked.seed)
    if len(rows) < 4:
        raise UserError(
            f"{data} holds {len(rows)} rows; at least 4 are needed, half to fit and half to "
            "judge by, and hundreds for an answer"
        )
    return rows[: len(rows) // 2], rows[len(rows) // 2 :]


def _shuffled(rows: list[Example], metric: str, seed: int) -> list[Example]:
    """In random order; rows that make windows of one stream stay beside their neighbours."""
    return rows if metric == "loss" else random.Random(seed).sample(rows, len(rows))


def _record(
    asked: Asked, hook: Hook, metric: str, max_len: int, parts: tuple[Examples, Examples, Examples]
) -> dict[str, Any]:
    """What was measured, on what, with what."""
    fit, rank, judge = parts
    config, run = hook.model.config, run_of(asked.model)
    name = "" if run is None else run.recipe().name
    data, fitted = f"{name}, its test split", "its train split"
    if asked.data is not None:
        data, fitted = asked.data.name, asked.fit.name if asked.fit else "half of the rows"
    return {
        "model": asked.model,
        "run": name,
        "architecture": type(hook.model).__name__,
        "model_type": config.model_type,
        "d_model": config.get_text_config().hidden_size,
        "data": data,
        "fit": fitted,
        "metric": metric,
        "higher_is_better": judge.higher_is_better,
        "keep": asked.keep,
        "table": asked.table,
        "max_len": max_len,
        "num_fit": len(fit),
        "num_rank": len(rank),
        "num_judge": len(judge),
        "num_cut": fit.num_cut + judge.num_cut,
        "seed": asked.seed,
        "layers": [asdict(layer) for layer in hook.layers],
        "parameters": sum(p.numel() for p in hook.model.parameters()),
        "command": asked.command,
        "commit": provenance()["commit"],
        "versions": {
            "synthesizer": synthesizer.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
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
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {out} ({error.strerror}); check --out") from None
    write_atomically(out / TABLES, lambda path: save_file(tensors, path))
    text = json.dumps(record, indent=1)
    write_atomically(out / RECORD, lambda path: _text(path, text))
    write_page(out)


def write_page(out: Path) -> None:
    """Draw the page of an audit from its record."""
    html = audit_page(read_audit(out), out / TABLES)
    write_atomically(out / PAGE, lambda path: _text(path, html))


def _text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
