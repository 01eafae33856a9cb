"""What is audited: a model, and the examples that average, rank and judge its heads.

Rows that judge are not those that fit: half of the data averages and ranks, the other half makes
the curve, unless --fit names a file of its own. A run of ours has data of its own: its train
split fits, its test split judges.
"""

import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from transformers import PreTrainedModel

from synthesizer.audit.converted import replaced_before
from synthesizer.audit.encode import encode
from synthesizer.audit.examples import METRICS, Example, Examples, read_examples
from synthesizer.audit.hook import is_own, other_layers
from synthesizer.audit.load import (
    TEXTS,
    Reader,
    check_metric,
    guess_metric,
    is_causal,
    load_model,
    load_reader,
    num_positions,
)
from synthesizer.audit.media import encode_media, media_of, read_media
from synthesizer.audit.record import RECORD
from synthesizer.audit.run_data import RunData
from synthesizer.audit.size import LENGTHS
from synthesizer.audit.tables import KINDS
from synthesizer.audit.weights import hash_weights, run_of
from synthesizer.errors import UserError

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
    files: list[Example]  # those that judge, of images and sounds
    left: dict[str, str]  # layers that are no dot product, and their specs
    weights: dict[str, str]  # the sha256 of each file


def read_subject(asked: Asked) -> Subject:
    """Load the model, and encode the examples."""
    model = load_model(asked.model, asked.metric)
    weights = hash_weights(asked.model)
    reader = load_reader(asked.model, model)
    metric = asked.metric or guess_metric(model)
    check_metric(metric, model)
    files: list[Example] = []
    if asked.data is None:
        max_len = max(model.config.max_len, model.config.decoder_max_len)
        fit, rank, judge = _run_parts(asked, metric)
    else:
        streams = metric == "loss" and is_causal(model)
        fitting, judging = _split(asked, asked.data, metric, reader, streams)
        limits = (
            (fitting, asked.fit_examples),
            (fitting, asked.rank_examples),
            (judging, asked.examples),
        )
        if reader.kind == TEXTS:
            max_len, tokenizer = _max_len(asked, model), reader.tokenizer
            fit, rank, judge = (
                encode(rows, metric, model, tokenizer, max_len, limit, asked.seed)
                for rows, limit in limits
            )
        else:
            _refuse_lengths(asked, reader.kind)
            media, max_len = media_of([*fitting, *judging], metric, model, reader)
            fit, rank, judge = (encode_media(rows, media, max_len, limit) for rows, limit in limits)
            files = judging
    parts = (fit, rank, judge)
    return Subject(model, reader.kind, metric, max_len, *parts, files, _left(model), weights)


def _refuse_lengths(asked: Asked, kind: str) -> None:
    for name, given in (("--max-len", asked.max_len), ("--length", asked.lengths)):
        if given:
            raise UserError(f"{name} is for texts, and the model reads {kind}; leave it out")


def _left(model: PreTrainedModel) -> dict[str, str]:
    """Layers that are no dot product and are left as they are, by name, and their specs."""
    if is_own(model):
        return other_layers(model)
    before = replaced_before(model).items()
    return {name: str(facts["spec"]) for name, facts in before if "spec" in facts}


def _run_parts(asked: Asked, metric: str) -> tuple[Examples, Examples, Examples]:
    """What fits, ranks and judges, of a run's own data."""
    run = run_of(asked.model)
    assert run is not None
    data = RunData(run, metric)
    fit, rank = data.fitting(asked.fit_examples), data.fitting(asked.rank_examples)
    return fit, rank, data.judging(asked.examples, asked.seed)


def _split(
    asked: Asked, data: Path, metric: str, reader: Reader, streams: bool
) -> tuple[list[Example], list[Example]]:
    """The rows that fit and the rows that judge, drawn: a file may be in the order of its parts."""
    read = read_examples if reader.kind == TEXTS else partial(read_media, reader=reader)
    if asked.fit is not None:
        judging = _shuffled(read(data, metric), asked.seed, streams)
        return _shuffled(read(asked.fit, metric), asked.seed, streams), judging
    rows = _shuffled(read(data, metric), asked.seed, streams)
    if len(rows) < 4:
        raise UserError(
            f"{data} holds {len(rows)} rows; at least 4 are needed, half to fit and half to "
            "judge by, and hundreds for an answer"
        )
    return rows[: len(rows) // 2], rows[len(rows) // 2 :]


def _shuffled(rows: list[Example], seed: int, streams: bool) -> list[Example]:
    """In random order; rows that make windows of one stream stay beside their neighbours."""
    return rows if streams else random.Random(seed).sample(rows, len(rows))


def check_asked(asked: Asked) -> None:
    """Refuse what can be refused before a model is loaded."""
    if asked.metric is not None and asked.metric not in METRICS:
        raise UserError(f"--metric is {asked.metric!r}; choose from {', '.join(METRICS)}")
    if asked.table not in KINDS:
        raise UserError(f"--table is {asked.table!r}; choose from {', '.join(KINDS)}")
    if asked.data is None:
        if run_of(asked.model) is None:
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


def check_tables(asked: Asked, model: PreTrainedModel) -> None:
    """New tables of a converted model are of the kind of those it has."""
    kinds = {facts["kind"] for facts in replaced_before(model).values() if "kind" in facts}
    if kinds - {asked.table}:
        (kind,) = kinds - {asked.table}
        raise UserError(
            f"--table is {asked.table} and the tables of {asked.model} are {kind}; give --table "
            f"{kind}, or audit the model that it was made of"
        )


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


def timed_lengths(asked: Asked, model: PreTrainedModel) -> list[int]:
    """The lengths to time: the user's, or those of LENGTHS that the model has positions for."""
    limit = num_positions(model)
    longer = [length for length in asked.lengths if limit is not None and length > limit]
    if longer:
        raise UserError(
            f"--length is {longer[0]} and the model has positions for {limit} tokens; "
            f"give at most {limit}"
        )
    return [n for n in asked.lengths or LENGTHS if n <= (limit or LONGEST) or asked.lengths]
