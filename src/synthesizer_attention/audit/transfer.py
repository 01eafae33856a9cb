"""transfer: swap the attention of a pretrained encoder, distil it, fine-tune it, judge it.

    swap        each self-attention makes its logits anew, as the row's synthesis does
    distil      each sublayer reads the original's hidden states; only what makes logits is trained,
                until the sublayer's output is the original's
    fine-tune   everything but the input embeddings, on the task
    judge       by the study's own statistics: a run directory for each row and seed, study.json

`kept` is the original, fine-tuned: a ceiling. `dot` has its queries and keys drawn anew and is
distilled as long as the others: the opponent. `none` has no attention: the floor. The rows of one
seed share the held-out tenth of train, the batches and the head's first weights. A step depends on
its number alone, so that a run which was killed goes on and ends with the same bits.
"""

import copy
import json
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from synthesizer_attention.audit import load
from synthesizer_attention.audit.examples import (
    METRICS,
    Example,
    Metric,
    Rows,
    encode_rows,
    found_path,
    is_number,
    pad,
    read_examples,
)
from synthesizer_attention.audit.projections import layout_of
from synthesizer_attention.audit.record import Say
from synthesizer_attention.audit.replace import replace_attention, self_attentions
from synthesizer_attention.audit.tune import Batches, load_trained, table_parameters, train, trained
from synthesizer_attention.errors import UserError, listed
from synthesizer_attention.metrics import labels as counts
from synthesizer_attention.metrics.scores import score
from synthesizer_attention.run.files import locked, make_folder, read_regular, sha256, write_text
from synthesizer_attention.run.progress import clock
from synthesizer_attention.run.recipe import dump
from synthesizer_attention.run.records import STUDY
from synthesizer_attention.run.run import RECIPE, Run, provenance
from synthesizer_attention.spec import NONE, normalize_spec, parse_spec
from synthesizer_attention.study.evidence import RULE
from synthesizer_attention.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint

KEPT, DOT = "kept", "dot"
ROWS = (KEPT, DOT, "random", "dense", "random+dot", "dense+dot", NONE)
LABELS, REGRESSION = ("accuracy", "macro_f1", "matthews", "f1"), ("pearson", "spearman")
HELD_OUT = 10  # one of so many examples of train chooses the step
EVALUATED = 3  # times
BATCH = 32  # examples
AT_ONCE = 64  # examples of an evaluation


@dataclass(frozen=True)
class Asked:
    """The options of a transfer."""

    model: str
    train: Path
    test: Path
    out: Path
    synthesis: tuple[str, ...] = ()
    metric: str | None = None
    apart: bool = False
    layers: int | None = None
    max_len: int = 128
    distil: int = 300
    distil_rate: float = 1e-3
    distil_table_rate: float = 3e-2
    steps: int = 300
    rate: float = 1e-4
    table_rate: float = 1.0
    examples: int | None = None
    seeds: int = 3
    seed: int = 1
    margin: float | None = None
    command: str = ""


# the task


@dataclass(frozen=True)
class Task:
    """Two files of a task as the model's tokens; targets are classes, or numbers from 0 to 1."""

    rows: dict[str, list[Rows]]  # of train and test: one input an example, or two
    targets: dict[str, list[Any]]
    labels: list[str]  # none of a regression
    metric: str
    apart: bool
    tokenizer: Any

    def inputs(self, split: str, chosen: Sequence[int]) -> dict[str, Tensor]:
        """The inputs of examples; where they are read apart, all first texts, then all second."""
        rows = [self.rows[split][i][side] for side in range(1 + self.apart) for i in chosen]
        return pad([dict(row) for row in rows], self.tokenizer)

    def lengths(self, split: str) -> list[int]:
        """The tokens of each example's longest input."""
        return [max(len(row["input_ids"]) for row in rows) for rows in self.rows[split]]

    def loss(self, outputs: Tensor, split: str, chosen: Sequence[int]) -> Tensor:
        """Cross-entropy of classes, or the squared error of a score."""
        targets = [self.targets[split][i] for i in chosen]
        if self.labels:
            return nn.functional.cross_entropy(outputs, torch.tensor(targets))
        return nn.functional.mse_loss(outputs[:, 0], torch.tensor(targets))

    def statistics(
        self, outputs: Tensor, split: str, chosen: Sequence[int]
    ) -> dict[str, counts.Statistics]:
        """Per example, for every metric of the task."""
        targets = [self.targets[split][i] for i in chosen]
        if not self.labels:
            found = outputs[:, 0].double().tolist()
            return {
                "pearson": counts.pearson_statistics(found, targets),
                "spearman": counts.spearman_statistics(found, targets),
            }
        predicted, count = outputs.argmax(-1).tolist(), len(self.labels)
        confused = counts.confusion_statistics(predicted, targets, num_labels=count)
        return {
            "accuracy": counts.accuracy_statistics(predicted, targets),
            **dict.fromkeys(LABELS[1 : 3 + (count == 2)], confused),
        }


def read_task(asked: Asked, model: PreTrainedModel, tokenizer: Any) -> Task:  # noqa: ANN401
    """Read both files; labels are those of train."""
    kind = "spearman" if asked.apart else "accuracy"  # two texts and a score, or a label
    files = {"train": asked.train, "test": asked.test}
    found: dict[str, list[Example]] = {}
    for split, path in files.items():
        found[split] = read_examples(path, kind)
        empty = sum(example.target in (None, "") for example in found[split])
        if empty:
            raise UserError(f"{path}: {empty} rows have no label; leave them out")
    if asked.examples is not None:
        found["train"] = random.Random(0).sample(
            found["train"], min(asked.examples, len(found["train"]))
        )
    if len(found["train"]) < 2 * HELD_OUT:
        raise UserError(f"{asked.train} has {len(found['train'])} rows; give at least 20")
    given = {split: [str(e.target) for e in each] for split, each in found.items()}
    numbers = all(is_number(text) for text in given["train"])
    graded = numbers and any(float(text) % 1 for text in given["train"])
    metric = asked.metric or ("pearson" if graded or asked.apart else "accuracy")
    names: list[str] = []
    if metric in REGRESSION:
        targets = _scaled(given, files)
    elif asked.apart:
        raise UserError(f"--apart compares cosines with a score; --metric {metric} needs one input")
    else:
        names = sorted(set(given["train"]))
        for text in given["test"]:
            if text not in names:
                raise UserError(
                    f"{asked.test} has the label {text!r} and {asked.train} has {listed(names)}; "
                    "give a test file whose labels are known"
                )
        targets = {split: [names.index(t) for t in each] for split, each in given.items()}
        if metric == "f1" and len(names) != 2:
            raise UserError(f"--metric f1 is for 2 labels and {asked.train} has {len(names)}")
    rows: dict[str, list[Rows]] = {}
    reading = "spearman" if asked.apart else "agreement"
    sides = 1 + METRICS[reading].has_pairs
    for split, each in found.items():
        flat, _ = encode_rows(each, reading, model, tokenizer, asked.max_len)
        rows[split] = [flat[at : at + sides] for at in range(0, len(flat), sides)]
    return Task(rows, targets, names, metric, asked.apart, tokenizer)


def _scaled(
    given: Mapping[str, Sequence[str]], files: Mapping[str, Path]
) -> dict[str, list[float]]:
    """Scores from 0 to 1, as train's reach."""
    for split, each in given.items():
        bad = next((text for text in each if not is_number(text)), None)
        if bad is not None:
            raise UserError(f"{files[split]} has the score {bad!r}; expected a number in every row")
    low, high = min(map(float, given["train"])), max(map(float, given["train"]))
    if low == high:
        raise UserError(f"every score of {files['train']} is {low:g}; there is nothing to learn")
    return {s: [(float(text) - low) / (high - low) for text in each] for s, each in given.items()}


# the model


class Encoder(nn.Module):
    """An encoder with a head on the mean of its last states; without one, the cosine of a pair."""

    def __init__(self, body: PreTrainedModel, num_outputs: int) -> None:
        super().__init__()
        self.body = body
        width = body.config.get_text_config().hidden_size
        self.head = nn.Linear(width, num_outputs) if num_outputs else None

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        pooled = Metric().outputs(self.body(**inputs), inputs, causal=False)
        if self.head is not None:
            found: Tensor = self.head(pooled)
            return found
        first, second = pooled.chunk(2)
        return torch.cosine_similarity(first, second)[:, None]


class NoAttention(nn.Module):
    """In the place of an attention: nothing is added to the residual but the output's bias."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:  # noqa: ANN401
        return torch.zeros_like(hidden_states), None


def first_layers(model: PreTrainedModel, count: int) -> None:
    """Leave out the layers behind the first ones."""
    config = model.config.get_text_config()
    total = config.num_hidden_layers
    if count > total:
        raise UserError(f"--layers is {count} and the model has {total}; give at most {total}")
    stacks = [
        (holder, name)
        for holder in model.modules()
        for name, child in holder.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == total
    ]
    if len(stacks) != 1:
        raise UserError(
            f"{type(model).__name__} has {len(stacks)} stacks of {total} layers; leave out --layers"
        )
    holder, name = stacks[0]
    setattr(holder, name, getattr(holder, name)[:count])
    config.num_hidden_layers = count


def swap(model: PreTrainedModel, row: str, max_len: int) -> list[nn.Parameter]:
    """Swap every self-attention for a row's; what makes logits, drawn anew, is returned.

    Values and outputs keep their weights. Queries and keys are drawn by Xavier, without biases.
    """
    names, base = self_attentions(model), model.base_model
    if row == KEPT:
        return []
    layouts = {name: layout_of(base.get_submodule(name)) for name in names}
    for name, layout in layouts.items():
        if not layout or any(len(part.parts) > 1 for part in layout.values()):
            raise UserError(
                f"{name} makes queries, keys and values in one projection, so that logits cannot "
                "be distilled alone; give a model with projections of their own"
            )
    if row == NONE:
        for name in names:
            base.set_submodule(name, NoAttention())
        return []
    before = {name: copy.deepcopy(base.get_submodule(name).state_dict()) for name in names}
    if row != DOT:
        replace_attention(model, row, max_len=max_len, fresh=True)
    logits: list[nn.Parameter] = []
    for name in names:
        attention, made = base.get_submodule(name), (*layouts[name], "synthesized")
        values = {k: v for k, v in before[name].items() if k.partition(".")[0] not in made}
        attention.load_state_dict(values, strict=False)
        for projection in layouts[name]:
            for parameter in attention.get_submodule(projection).parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)
                else:
                    nn.init.zeros_(parameter)
        logits += [p for k, p in attention.named_parameters() if k.partition(".")[0] in made]
    return logits


class Distance:
    """How far each sublayer of a student is from the original's, both on the original's states."""

    def __init__(self, original: PreTrainedModel, student: PreTrainedModel) -> None:
        self.original, self.student, self.names = original, student, self_attentions(original)

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        """The squared error as a share of the original's output, the mean over layers."""
        seen: dict[str, tuple[Any, Any, Tensor]] = {}

        def keep(name: str) -> Callable[..., None]:
            def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:  # noqa: ANN401
                seen[name] = args, kwargs, output[0] if isinstance(output, tuple) else output

            return hook

        base = self.original.base_model
        hooks = [
            base.get_submodule(name).register_forward_hook(keep(name), with_kwargs=True)
            for name in self.names
        ]
        try:
            with torch.no_grad():
                self.original(**inputs)
        finally:
            for each in hooks:
                each.remove()
        real, apart = inputs["attention_mask"].bool(), list[Tensor]()
        for name, (args, kwargs, theirs) in seen.items():
            output = self.student.base_model.get_submodule(name)(*args, **kwargs)
            ours = output[0] if isinstance(output, tuple) else output
            apart.append(((ours - theirs)[real] ** 2).sum() / (theirs[real] ** 2).sum())
        return torch.stack(apart).mean()


# a run


@dataclass(frozen=True)
class OneRun:
    """One row under one seed, in a directory of its own."""

    asked: Asked
    row: str
    seed: int
    task: Task
    original: PreTrainedModel
    recipe: dict[str, Any]
    facts: dict[str, Any]  # that must be unchanged for it to go on
    say: Say

    @property
    def run(self) -> Run:
        """Its directory."""
        return Run(self.asked.out / folder_of(self.row) / f"seed{self.seed}")

    def perform(self) -> dict[str, Any]:
        """Swap, distil, fine-tune, judge; what a finished run reached is returned."""
        run, text, began = self.run, dump(self.recipe), time.perf_counter()
        if (run.path / RECIPE).exists() and read_regular(run.path / RECIPE) != text:
            raise UserError(
                f"{run.path} holds a run of other options or data; repeat those, or name another "
                "--out"
            )
        if run.is_finished:
            run.check()
            return run.result()
        make_folder(run.checkpoints)
        run.write(RECIPE, text)
        count = len(self.task.targets["train"])
        order = random.Random(self.seed).sample(range(count), count)
        held_out, kept = order[: count // HELD_OUT], order[count // HELD_OUT :]
        torch.manual_seed(self.seed)
        outputs = 0 if self.task.apart else max(1, len(self.task.labels))
        model = Encoder(copy.deepcopy(self.original), outputs)  # the head is drawn before the row
        logits = swap(model.body, self.row, self.asked.max_len)
        model.eval()
        distance = self._distil(model, logits, kept, held_out) if logits else None
        seen, losses = self._fine_tune(model, kept, held_out)
        best = max(seen, key=lambda step: (seen[step][self.task.metric], -int(step)))
        statistics = self._measure(model, "test", range(len(self.task.targets["test"])))
        statistics = counts.in_single_precision(statistics)
        run.write_arrays("statistics.npz", statistics)
        run.write_arrays("attention.npz", _alphas(model))
        logged: list[dict[str, Any]] = [
            {"step": step, "loss": loss} for step, loss in enumerate(losses, start=1)
        ]
        for step, values in seen.items():
            logged[int(step) - 1]["validation"] = values
        run.write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in logged))
        total, made = sum(p.numel() for p in model.parameters()), sum(p.numel() for p in logits)
        result = {
            "recipe": self.recipe["name"],
            "task": self.recipe["task"],
            "synthesis": self.recipe["synthesis"],
            "seed": self.seed,
            "main_metric": self.task.metric,
            "higher_is_better": True,
            "metrics": {name: score(name, rows) for name, rows in statistics.items()},
            "split": "test",
            "checkpoint": "best",
            "best_step": int(best),
            "steps": self.asked.steps,
            "validation": seen[best],
            "distance": distance,
            "parameters": {"total": total, "distilled": made},
            "seconds": time.perf_counter() - began,  # since it was last begun
            "device": "cpu",
            "threads": torch.get_num_threads(),
            "data": {
                "identity": self.facts["data"],
                "examples": {"train": len(kept), "validation": len(held_out),
                             "test": len(self.task.targets["test"])},
                "labels": self.task.labels,
            },
            **provenance(),
        }  # fmt: skip
        run.finish(result)
        shutil.rmtree(run.checkpoints)
        return result

    def _distil(
        self, model: Encoder, logits: list[nn.Parameter], kept: list[int], held_out: list[int]
    ) -> dict[str, float]:
        """Train what makes logits; how far sublayers were and are from the original's."""
        asked, path = self.asked, self.run.checkpoints / "1-distilled.safetensors"
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for parameter in logits:
            parameter.requires_grad_(True)
        if path.exists():
            done = _whole(path)
            load_trained(model, done)
            return dict(done.meta)
        tables = {id(p) for p in table_parameters(model)}
        groups = [
            [p for p in logits if (id(p) in tables) == is_table] for is_table in (True, False)
        ]
        distance, lengths = Distance(self.original, model.body), self.task.lengths("train")
        few = [self.task.inputs("train", held_out[:AT_ONCE])]
        with torch.no_grad():
            before = distance(few[0]).item()
        batches = Batches([lengths[place] for place in kept], BATCH, self.seed)
        train(
            model, [(groups[0], asked.distil_table_rate), (groups[1], asked.distil_rate)],
            asked.distil,
            lambda step: distance(self.task.inputs("train", [kept[i] for i in batches(step)])),
            self.say, path=path.with_name("1-distilling.safetensors"), facts=self.facts,
            advice="give a lower --distil-rate", what="distilling",
        )  # fmt: skip
        with torch.no_grad():
            after = distance(few[0]).item()
        found = {"before": before, "after": after}
        self.say(f"distance from the original: {before:.3f} to {after:.3f}")
        write_checkpoint(path, Checkpoint(trained(model), found))
        return found

    def _fine_tune(
        self, model: Encoder, kept: list[int], held_out: list[int]
    ) -> tuple[dict[str, dict[str, float]], list[float]]:
        """Train on the task; leave the weights of the best evaluation, return all and the losses.

        Evaluations and the best weights are in one file. A later evaluation than the checkpoint's
        is made again, and is the same.
        """
        asked, path = self.asked, self.run.checkpoints / "2-best.safetensors"
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        for parameter in model.body.get_input_embeddings().parameters():
            parameter.requires_grad_(False)
        tables = table_parameters(model)
        chosen = {id(p) for p in tables}
        others = [p for p in model.parameters() if p.requires_grad and id(p) not in chosen]
        lengths = self.task.lengths("train")
        batches = Batches([lengths[place] for place in kept], BATCH, self.seed)
        steps = {round(asked.steps * part / EVALUATED) for part in range(1, EVALUATED + 1)}
        seen: dict[str, dict[str, float]] = dict(_whole(path).meta) if path.exists() else {}

        def loss_of(step: int) -> Tensor:
            batch = [kept[i] for i in batches(step)]
            torch.manual_seed(self.seed * 2**20 + step)  # of dropout
            model.train()
            return self.task.loss(model(self.task.inputs("train", batch)), "train", batch)

        def evaluate(step: int) -> None:
            if step not in steps:
                return
            rows, metric = self._measure(model, "train", held_out), self.task.metric
            values = {name: score(name, each) for name, each in rows.items()}
            earlier = [v[metric] for at, v in seen.items() if int(at) < step]
            seen[str(step)] = values
            is_best = values[metric] > max(earlier, default=-np.inf)
            weights = trained(model) if is_best else _whole(path).tensors
            write_checkpoint(path, Checkpoint(weights, seen))
            self.say(f"step {step}: held-out {metric} {values[metric]:.2f}")

        losses = train(
            model, [(tables, asked.rate * asked.table_rate), (others, asked.rate)], asked.steps,
            loss_of, self.say, path=path.with_name("2-tuning.safetensors"), facts=self.facts,
            advice="give a lower --rate", what="fine-tuning", after=evaluate,
        )  # fmt: skip
        load_trained(model, _whole(path))
        return seen, losses

    @torch.no_grad()
    def _measure(
        self, model: Encoder, split: str, chosen: Sequence[int]
    ) -> dict[str, counts.Statistics]:
        """Statistics of examples, in their order."""
        model.eval()
        lengths, found = self.task.lengths(split), dict[int, Tensor]()
        order = sorted(chosen, key=lengths.__getitem__)
        for start in range(0, len(order), AT_ONCE):
            batch = order[start : start + AT_ONCE]
            found.update(zip(batch, model(self.task.inputs(split, batch)), strict=True))
        outputs = torch.stack([found[place] for place in chosen])
        return self.task.statistics(outputs, split, list(chosen))


def _whole(path: Path) -> Checkpoint:
    found = read_checkpoint(path)
    if found is None:
        raise UserError(f"{path} is damaged; delete {path.parents[1]} to repeat that run")
    return found


def _alphas(model: nn.Module) -> dict[str, Any]:
    """The weights of a mixture's parts, (layers, heads, parts), as other runs keep them."""
    parts = (getattr(module, "synthesized", None) for module in model.modules())
    mixes = [part.mix.detach().softmax(-1).numpy() for part in parts if part is not None]
    return {"encoder.alphas": np.stack(mixes)} if mixes and mixes[0].shape[1] > 1 else {}


# a study


def folder_of(row: str) -> str:
    """The directory of a row's runs."""
    return row.replace(":", "_").replace("|", "~")


def transfer(asked: Asked, say: Say) -> None:
    """Make every run that is not finished, seed by seed, and study.json."""
    rows = [row if row in ROWS else normalize_spec(row) for row in asked.synthesis or ROWS]
    if len({*rows}) < len(rows):
        raise UserError(f"--synthesis names {listed(rows)}; name each row once")
    if asked.metric not in (None, *LABELS, *REGRESSION):
        raise UserError(
            f"--metric is {asked.metric!r}; choose from {', '.join((*LABELS, *REGRESSION))}"
        )
    original = load.load_model(asked.model, "spearman")
    tokenizer = load.load_reader(asked.model, original).tokenizer
    limit = load.num_positions(original)
    if limit is not None and asked.max_len > limit:
        raise UserError(f"--max-len is {asked.max_len} and the model has positions for {limit}")
    if asked.layers:
        first_layers(original, asked.layers)
    load.attend_fast(original)
    for row in rows:  # refuses what cannot be swapped before anything is trained
        swap(copy.deepcopy(original), row, asked.max_len)
    task = read_task(asked, original, tokenizer)
    files = [found_path(path, "a file") for path in (asked.train, asked.test)]
    hashes = [sha256(path) for path in files]
    config = original.config.get_text_config()
    lengths = task.lengths("train")
    shared: dict[str, Any] = {
        "data": {"train": str(asked.train), "test": str(asked.test), "apart": asked.apart,
                 "examples": len(lengths)},
        "model": {"name": Path(asked.model).name, "kind": "encoder", "positions": "learned",
                  "num_layers": config.num_hidden_layers, "d_model": config.hidden_size,
                  "num_heads": config.num_attention_heads, "max_len": asked.max_len},
        "distil": {"steps": asked.distil, "rate": asked.distil_rate,
                   "table_rate": asked.distil_table_rate},
        "train": {"steps": asked.steps, "batch_tokens": round(BATCH * float(np.mean(lengths))),
                  "lr": asked.rate, "table_rate": asked.table_rate},
    }  # fmt: skip
    facts = {
        "data": " ".join(hashes),
        "weights": " ".join(load.hash_weights(asked.model).values()),
        "threads": torch.get_num_threads(),
        "commit": provenance()["commit"],
        "torch": torch.__version__,
    }
    name = f"transfer-{asked.train.parent.name or asked.train.stem}{'-apart' * asked.apart}"
    seeds = range(asked.seed, asked.seed + asked.seeds)
    make_folder(asked.out)
    with locked(asked.out, "transferring", say):
        _write_study(asked, name, rows, seeds)
        began, made = time.perf_counter(), 0
        every = [(row, seed) for seed in seeds for row in rows]
        for place, (row, seed) in enumerate(every, start=1):
            spec = DOT if row == KEPT else row
            top = {"name": name, "task": "transfer", "seed": seed, "synthesis": spec}
            one = OneRun(
                asked, row, seed, task, original, {**top, "kept": row == KEPT, **shared},
                {**facts, "row": row, "seed": seed}, say,
            )  # fmt: skip
            made += not one.run.is_finished
            value = one.perform()["metrics"][task.metric]
            left = (time.perf_counter() - began) / max(1, made) * (len(every) - place)
            say(f"{place} of {len(every)}: {row}, seed {seed}: {task.metric} {value:.2f}; "
                f"{clock(left)} left")  # fmt: skip


def _write_study(asked: Asked, name: str, rows: Sequence[str], seeds: Sequence[int]) -> None:
    """The record that `report` reads; dot drawn anew is the opponent."""
    pure = [row for row in rows if row not in (KEPT, NONE) and not _has_dot(row)]
    opponent = {"label": DOT, "configured": DOT, "how": "as configured", "trials": []}
    notes = {KEPT: "the original's weights: a ceiling", DOT: "drawn anew"}
    study = {
        "command": asked.command,
        "recipe": name,
        "rows": [
            {
                "label": "dot, kept" if row == KEPT else row,
                "spec": DOT if row == KEPT else row,
                "runs": [f"{folder_of(row)}/seed{seed}" for seed in seeds],
                "note": notes.get(row, "its dot product is drawn anew" if _has_dot(row) else None),
            }
            for row in rows
        ],
        "rule": RULE.name,
        "primary": pure[0] if pure else None,
        "margin": asked.margin,
        "match": "none",
        "tune": 0,
        "opponent": opponent if DOT in rows else None,
    }
    write_text(asked.out / STUDY, json.dumps(study, indent=2) + "\n")


def _has_dot(row: str) -> bool:
    return row != KEPT and any(term.name == DOT for term in parse_spec(row))
