"""One audit, from a model and examples to an answer.

Rows that judge are not those that fit: half of the data averages and ranks, the other half makes
the curve, unless --fit names a file of its own. A run of ours has data of its own: its train
split fits, its test split judges.
"""

import json
import math
import platform
import random
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save
from torch import Tensor
from transformers import PreTrainedModel

import synthesizer_attention
from synthesizer_attention.audit import cost, load
from synthesizer_attention.audit.averages import explain, measure_averages
from synthesizer_attention.audit.convert import why_refused
from synthesizer_attention.audit.converted import build_converted, replaced_before
from synthesizer_attention.audit.examples import (
    METRICS,
    Example,
    Examples,
    RunData,
    choose_metric,
    encode,
    read_examples,
)
from synthesizer_attention.audit.hook import Hook, cause, other_layers, tables_before
from synthesizer_attention.audit.media import encode_media, media_of, read_media, thumbnail
from synthesizer_attention.audit.page import audit_page
from synthesizer_attention.audit.record import (
    PAGE,
    RECORD,
    TABLES,
    Measured,
    Say,
    fingerprint,
)
from synthesizer_attention.audit.tables import KINDS
from synthesizer_attention.errors import UserError
from synthesizer_attention.run.files import (
    locked,
    make_folder,
    remove_leftovers,
    write_atomically,
    write_record,
    write_text,
)
from synthesizer_attention.run.run import provenance

LONGEST = 512  # tokens of a text, where neither the user nor the model says less
SHOWN = 5  # examples whose outputs moved farthest


@dataclass(frozen=True)
class Asked:
    """The options of an audit."""

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


@dataclass(frozen=True)
class Subject:
    """A model, and the examples that average, rank and judge its heads."""

    model: PreTrainedModel
    reads: str  # texts, images or sounds
    metric: str
    max_len: int
    fit: Examples
    rank: Examples
    judge: Examples
    timed: dict[int, dict[str, Tensor]]  # inputs to time, by length
    files: list[Example]  # those that judge, of images and sounds
    weights: dict[str, str]  # the sha256 of each file


def read_subject(asked: Asked) -> Subject:
    """Load the model, and encode the examples."""
    model = load.load_model(asked.model, asked.metric)
    weights = load.hash_weights(asked.model)
    reader = load.load_reader(asked.model, model)
    metric = choose_metric(asked.metric, model)
    kinds = {facts["kind"] for facts in replaced_before(model).values() if "kind" in facts}
    if kinds - {asked.table}:
        (kind,) = kinds - {asked.table}
        raise UserError(
            f"--table is {asked.table} and the tables of {asked.model} are {kind}; give --table "
            f"{kind}, or audit the model that it was made of"
        )
    limit = load.num_positions(model)
    for name, longest, more in (
        ("--max-len", asked.max_len or 0, ": longer texts are cut there, and counted"),
        ("--length", max(asked.lengths, default=0), ""),
    ):
        if longest and reader.kind != load.TEXTS:
            raise UserError(f"{name} is for texts, and the model reads {reader.kind}; leave it out")
        if limit is not None and longest > limit:
            raise UserError(
                f"{name} is {longest} and the model has positions for {limit} tokens; "
                f"give at most {limit}{more}"
            )
    max_len = asked.max_len or min(LONGEST, limit or LONGEST)
    files: list[Example] = []
    if asked.data is None:
        run = load.run_of(asked.model)
        assert run is not None
        max_len, data = (
            max(model.config.max_len, model.config.decoder_max_len),
            RunData(run, metric),
        )
        fit, rank = data.fitting(asked.fit_examples), data.fitting(asked.rank_examples)
        judge = data.judging(asked.examples, asked.seed)
    else:
        streams = METRICS[metric].has_tokens and load.is_causal(model)
        fitting, judging = _split(asked, asked.data, metric, reader, streams=streams)
        if reader.kind == load.TEXTS:
            making = partial(encode, metric=metric, model=model, tokenizer=reader.tokenizer)
            encoded = partial(making, max_len=max_len, seed=asked.seed)
        else:
            media, max_len = media_of([*fitting, *judging], metric, model, reader)
            encoded, files = partial(encode_media, media=media, max_len=max_len), judging
        fit, rank = (encoded(fitting, limit=n) for n in (asked.fit_examples, asked.rank_examples))
        judge = encoded(judging, limit=asked.examples)
    if reader.kind == load.TEXTS:
        lengths = asked.lengths or [n for n in cost.LENGTHS if n <= (limit or LONGEST)]
        timed = {length: cost.random_texts(model, length) for length in lengths}
    else:
        count, inputs = cost.num_timed(model, max_len), judge.probe(model)
        timed = {max_len: {name: value[:count] for name, value in inputs.items()}}
    parts = (fit, rank, judge)
    return Subject(model, reader.kind, metric, max_len, *parts, timed, files, weights)


def _split(
    asked: Asked, data: Path, metric: str, reader: load.Reader, *, streams: bool
) -> tuple[list[Example], list[Example]]:
    """The rows that fit and the rows that judge, drawn: a file may be in the order of its parts.

    Rows that make windows of one stream stay beside their neighbours.
    """
    read = read_examples if reader.kind == load.TEXTS else partial(read_media, reader=reader)

    def drawn(path: Path) -> list[Example]:
        rows = read(path, metric)
        return rows if streams else random.Random(asked.seed).sample(rows, len(rows))

    rows = drawn(data)
    if asked.fit is not None:
        return drawn(asked.fit), rows
    if len(rows) < 4:
        raise UserError(
            f"{data} holds {len(rows)} rows; at least 4 are needed, half to fit and half to "
            "judge by, and hundreds for an answer"
        )
    return rows[: len(rows) // 2], rows[len(rows) // 2 :]


def check_asked(asked: Asked) -> None:
    """Refuse what can be refused before a model is loaded."""
    if asked.metric is not None and asked.metric not in METRICS:
        raise UserError(f"--metric is {asked.metric!r}; choose from {', '.join(METRICS)}")
    if asked.table not in KINDS:
        raise UserError(f"--table is {asked.table!r}; choose from {', '.join(KINDS)}")
    if asked.data is None:
        if load.run_of(asked.model) is None:
            raise UserError(
                f"{asked.model} is not a run of synthesizer train, so there are no data to measure "
                "on; give a file of texts, or a directory of images, behind it"
            )
        for name, given in (("--fit", asked.fit), ("--max-len", asked.max_len)):
            if given is not None:
                raise UserError(
                    f"{name} is for the texts of a file, and a run's own data are split and cut as "
                    f"in training; leave it out, or name a file of texts"
                )
    if not 0 < asked.keep < 1:
        raise UserError(f"--keep is {asked.keep}; give the share of quality to keep, as in 0.99")
    check_unfinished(asked.out)
    if asked.out.exists() and not asked.out.is_dir():
        raise UserError(f"{asked.out} is not a directory; name another --out")


def check_unfinished(out: Path) -> None:
    """Refuse a folder that holds an audit."""
    if (out / RECORD).exists():
        raise UserError(f"{out} holds an audit already; name another --out, or remove it")


def audit(asked: Asked, say: Say) -> dict[str, Any]:
    """Measure which heads need their dot products; leave a record, tables and a page in out.

    An audit that was stopped goes on behind what it has measured.
    """
    check_asked(asked)
    subject = read_subject(asked)
    hook = Hook(subject.model)
    with hook:
        hook.discover(subject.judge.probe(subject.model))
    left = other_layers(subject.model)
    if left:
        say(f"left as they are: {', '.join(f'{name} ({spec})' for name, spec in left.items())}")
    make_folder(asked.out)
    with locked(asked.out, "auditing", say):
        check_unfinished(asked.out)  # the process that was waited for may have finished it
        remove_leftovers(asked.out)
        with hook:
            record = _record(asked, hook, subject) | {"left": left}
            count = len(hook.layers)
            refused = why_refused(hook, subject.rank, subject.max_len, asked.table)
            say(f"convert will refuse this model: {refused}" if refused else _convertible(hook))
            say(f"{count} layers of self-attention; averaging the attention of each head")
            averages = measure_averages(hook, subject.fit.inputs(subject.model), subject.max_len)
            auditor = cost.Auditor(hook, averages, asked.table)
            auditor.measured = Measured(asked.out, _facts(asked, subject, auditor))
            if auditor.measured.num_known:
                say(f"going on behind {auditor.measured.num_known} measurements")
            for examples in (subject.rank, subject.judge):
                _check_finite(auditor.original(examples), examples)
            if not auditor.passes.is_exact(subject.rank):
                say("every pass is a whole one: the model does not say what its layers start from")
            explained = explain(hook, subject.rank.inputs(subject.model), averages)
            record |= _measure(asked, subject, auditor, say)
            record["heads"] = [
                c | asdict(explained[c["layer"]][c["head"]]) for c in record["heads"]
            ]
        record["speed"], record["untimed"] = [], refused
        if not refused:
            say("timing forward passes")
            record["speed"], record["untimed"] = _speeds(record, auditor, subject.timed)
        if record["untimed"]:
            say(f"speed was not measured: {record['untimed']}")
        _write(asked.out, record, auditor)
        auditor.measured.finish()
    return record


def _convertible(hook: Hook) -> str:
    """What convert will be able to do."""
    if any(layer.normed for layer in hook.layers):
        return (
            "convert can replace heads; it keeps the projections of a layer until its last head, "
            "because queries and keys are normalized over all heads"
        )
    return "convert can replace heads, and leave out their query and key projections"


def _facts(asked: Asked, subject: Subject, auditor: cost.Auditor) -> dict[str, str]:
    """The facts that must be unchanged for a stopped audit to resume.

    Averages tell one model's weights from others'. On another number of threads sums are rounded
    otherwise, and measurements would be mixed.
    """
    facts = {name: str(value) for name, value in asdict(asked).items()}
    for name in ("out", "command", "lengths"):
        del facts[name]
    parameters = [p for tables in auditor.whole for p in tables.parameters()]
    tensors = [t for part in (subject.rank, subject.judge) for t in part.tensors()]
    return facts | {
        "commit": str(provenance()["commit"]),
        **_versions(),
        "number of threads": str(torch.get_num_threads()),
        "checksum of texts": str(fingerprint(tensors)),
        "checksum of averages": str(fingerprint(parameters)),
        "sha256 of weights": " ".join(subject.weights.values()),
        "sha256 of config and tokenizer": " ".join(load.hash_readers(asked.model).values()),
    }


def _measure(asked: Asked, subject: Subject, auditor: cost.Auditor, say: Say) -> dict[str, Any]:
    """Rank the heads, walk down the ranking, and answer."""
    rank, judge, layers = subject.rank, subject.judge, auditor.hook.layers
    before = tables_before(layers)
    if before:
        say(f"{before} heads are tables already, and stay as they are")
    say(f"replacing each of {len(auditor.heads)} heads alone")
    costs = auditor.costs(rank, say=say)
    order = auditor.walk(rank, costs, asked.rankings, say)
    points = auditor.curve(judge, order, cost.checkpoints_of(len(order), asked.steps), say)
    margin = (1 - asked.keep) * abs(points[0].value)
    best = cost.most_heads(points, margin)
    halves = sorted({len(order) // 2, best.replaced, 2 * len(order) // 3} - {0})
    random.Random(asked.seed).shuffle(shuffled := list(auditor.heads))
    control = auditor.curve(judge, shuffled, halves, say, "random")
    moved = auditor.most_moved(judge, order[: best.replaced], SHOWN) if best.replaced else []
    for example in moved if subject.reads == load.IMAGES else ():
        example["image"] = thumbnail(subject.files[example["place"]])
    d_model = subject.model.config.get_text_config().hidden_size
    counts = [order[: point.replaced] for point in points]
    return {
        "value": points[0].value,
        "margin": margin,
        "curve": [asdict(point) for point in points],
        "control": [asdict(point) for point in control],
        "order": order,
        "most_moved": moved,
        "heads": [asdict(head) for head in costs],
        "answer": asdict(best),
        "sentence": cost.sentence(best, len(order), margin, subject.metric, before),
        "ended": cost.why_ended(points, best, margin, subject.metric),
        "sizes": [cost.size_with(layers, d_model, subject.max_len, heads) for heads in counts],
    }


def _speeds(
    record: dict[str, Any], auditor: cost.Auditor, timed: dict[int, dict[str, Tensor]]
) -> tuple[list[Any], str]:
    """Time the original beside models along the curve: thirds of it, and the answer.

    Where that cannot be done nothing is timed, and why is said: all else has been measured.
    """
    model, total = auditor.hook.model, len(record["order"])
    models = {0: model}
    counts = {total // 3, 2 * total // 3, record["answer"]["replaced"], total} - {0}
    try:
        for count in sorted(counts if timed else ()):
            tables = auditor.tables(record["order"][:count])
            models[count] = build_converted(model, auditor.hook.layers, tables, share=True)
        load.attend_fast(model)
        return cost.measure_speed(models, timed), ""
    except Exception as error:  # of an architecture that can be audited and not converted
        name = type(model).__name__
        return [], f"{name} cannot be run with heads left out of it ({cause(error)})"


def _check_finite(outputs: Tensor, examples: Examples) -> None:
    """Refuse a model that nothing can be compared with."""
    total = examples.statistics(outputs, outputs).sum(0)
    value = METRICS[examples.metric].value(total)
    wrong = int((~outputs.isfinite()).any(-1).sum())
    if wrong or not math.isfinite(value):
        value = value if not math.isfinite(value) else math.nan
        raise UserError(
            f"the model's own {examples.metric} is {value} ({wrong} of {len(outputs)} "
            "outputs are no numbers); check its weights, its config.json and the data"
        )


def _record(asked: Asked, hook: Hook, subject: Subject) -> dict[str, Any]:
    """The part of the record that is known before anything is measured."""
    fit, rank, judge = subject.fit, subject.rank, subject.judge
    config, run = hook.model.config, load.run_of(asked.model)
    name = "" if run is None else run.recipe().name
    data, fitted = f"{name}, its test split", "its train split"
    if asked.data is not None:
        data, fitted = asked.data.name, asked.fit.name if asked.fit else "half of the rows"
    return {
        "model": asked.model,
        "path": str(Path(asked.model).resolve()) if Path(asked.model).exists() else "",
        "weights": subject.weights,
        "readers": load.hash_readers(asked.model),
        "run": name,
        "architecture": type(hook.model).__name__,
        "model_type": config.model_type,
        "d_model": config.get_text_config().hidden_size,
        "data": data,
        "fit": fitted,
        "reads": subject.reads,
        "metric": subject.metric,
        "higher_is_better": METRICS[judge.metric].higher_is_better,
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
        "synthesizer": synthesizer_attention.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def _write(out: Path, record: dict[str, Any], auditor: cost.Auditor) -> None:
    tensors = {
        f"{place}.{name}": parameter.detach().contiguous()
        for place, tables in enumerate(auditor.whole)
        for name, parameter in tables.named_parameters()
    }
    write_atomically(out / TABLES, lambda path: path.write_bytes(save(tensors)))
    write_text(out / PAGE, audit_page(json.loads(json.dumps(record)), out / TABLES))
    write_record(out / RECORD, record, [out / TABLES])  # last: with it, the audit is finished
